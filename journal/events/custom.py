"""Custom converters: classes of the user's that decide what becomes of a column.

They are what Debezium's ``CustomConverter`` is in Java: each is asked once for every column, and
the first one that takes it makes the schema of its field and all of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.extensions import ERRORS, described, make
from firebird_cdc.journal.events.natural import natural
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.schema_check import Conformity
from firebird_cdc.journal.events.values import BadValue, FieldForm, ValueModes
from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.format.charsets import name_of
from firebird_cdc.journal.types import names

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as converters see it; Debezium's ``RelationalColumn``.

    ``database``: path of the database. ``type_name``: as in CREATE TABLE, e.g. ``VARCHAR``;
    ``type_expression``: with length and scale, ``NUMERIC(9,3)``. ``length``: characters, bytes
    or digits. ``native_type``: the engine's number of the type. ``charset``: of texts.
    """

    database: str
    table: str
    name: str
    type_name: str
    type_expression: str
    jdbc_type: int
    native_type: int
    length: int | None
    scale: int | None
    optional: bool
    charset: str | None


class CustomConverter(Protocol):
    """Interface of a converter; a class with it is called without arguments.

    A class without parameters may leave ``configure`` out.
    """

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Take the options ``<name>.<parameter>``, without ``type``; any error is told."""

    def converter_for(self, column: SourceColumn) -> tuple[Schema, Convert] | None:
        """The schema of the field and what makes its values, None to leave COLUMN alone.

        The function gets values as ``journal.events.natural`` describes them, None for NULL, and
        returns them in the physical form of the schema. Any error makes it an event that can't
        be processed. Of a column that may be NULL the schema becomes optional by itself: for NULL
        only. None for another value is an error, unless the schema that is given is optional.
        """


class CustomConverters:
    """The converters of a configuration. Raises ConfigError with all problems."""

    def __init__(self, config: ConnectorConfig) -> None:
        problems: list[str] = []
        self._converters: list[tuple[str, CustomConverter]] = []
        for item in config.converters:
            try:
                converter = make(item.type, item.parameters, "converter_for")
            except ConfigError as error:
                option = f"{item.origin}: {item.name}.type is {item.type}"
                problems += [f"{option}; {problem}" for problem in error.problems]
            else:
                self._converters.append((f"converter {item.name} ({item.type})", converter))
        if problems:
            raise ConfigError(problems)

    def form_for(
        self, database: str, table: str, column: Column, modes: ValueModes
    ) -> FieldForm | None:
        """Return how a converter sends COLUMN, None if none takes it.

        Raises BadValue if a converter fails over the column.
        """
        if not self._converters:
            return None
        seen = _seen(database, table, column)
        for name, converter in self._converters:
            try:
                taken = converter.converter_for(seen)
            except ERRORS as error:
                raise BadValue(
                    f"column {column.name}: {name} failed: {described(error)}"
                ) from error
            if taken is not None:
                return _form(name, taken, column, modes)
        return None


def _seen(database: str, table: str, column: Column) -> SourceColumn:
    is_text = column.storage in (Storage.TEXT, Storage.PADDED_TEXT) or names.is_text_blob(column)
    return SourceColumn(
        database=database,
        table=table,
        name=column.name,
        type_name=names.type_name(column),
        type_expression=names.type_expression(column),
        jdbc_type=names.jdbc_type(column),
        native_type=column.sql_type,
        length=names.type_length(column),
        scale=names.type_scale(column),
        optional=column.nullable,
        charset=name_of(column.charset_id) if is_text else None,
    )


def _form(name: str, taken: object, column: Column, modes: ValueModes) -> FieldForm:
    match taken:
        case (Schema() as given, function) if callable(function):
            pass
        case _:
            raise BadValue(
                f"column {column.name}: {name} gave neither None nor a schema and a function"
            )
    schema = given.as_optional(given.optional or column.nullable)
    try:
        check_null = Conformity(modes.non_finite).checker(schema)
        check = Conformity(modes.non_finite).checker(given)
    except BadValue as error:
        raise BadValue(f"column {column.name}: {name}: {error}") from error
    to_natural = natural(column, modes)

    def convert(value: Any) -> Any:
        seen = None if value is None else to_natural(value)
        try:
            result = function(seen)
            (check_null if value is None else check)(result)
        except BadValue as error:
            raise type(error)(f"{name}: {error}") from error
        except ERRORS as error:
            raise BadValue(f"{name} failed: {described(error)}") from error
        return result

    return FieldForm(schema, "{f}({v})", convert, of_null="{f}(None)", tells_default=False)
