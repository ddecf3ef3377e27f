"""Turns rows of a journal into structs: a function is written out for each shape of a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from firebird_cdc.journal.events.schema import Schema, Struct
from firebird_cdc.journal.events.values import BadValue, FieldForm, TooLarge
from firebird_cdc.journal.format import Column, Row, Storage, Table, Value

_FLOATS = (Storage.FLOAT, Storage.DOUBLE)


class FormedField(NamedTuple):
    """A field of a struct, and the column that it is made of: its index in the row, its name."""

    name: str
    column_index: int
    column: str
    form: FieldForm


StructFunction = Callable[[Row], Struct | None]


class StructMaker:
    """Makes the structs of one shape from full row images.

    ``struct_of`` is fast, and raises BadValue for a row with a value that has no form.
    ``careful_struct_of`` then names the column. Null stands for NULL only, never for what has no
    form: a consumer would take it for the row's value. ``required``: columns of which NULL has
    none.
    """

    def __init__(
        self, fields: Sequence[FormedField], columns: int, required: Collection[int] = ()
    ) -> None:
        self.struct_of: StructFunction = _compile(fields, columns, required)
        self.fields = fields
        self._required = required

    @cached_property
    def functions(self) -> list[tuple[FormedField, Callable[[Any], Any]]]:
        """Each field with the function that makes its value of a row's."""
        return [(field, field.form.function()) for field in self.fields]

    def careful_struct_of(self, row: Row) -> Struct | None:
        """The struct of ROW, made field by field. Raises BadValue with the column's name."""
        struct: Struct = {}
        for field, value_of in self.functions:
            try:
                struct[field.name] = value_of(self._value(row, field))
            except BadValue as error:
                raise type(error)(f"column {field.column}: {error}") from error
        return struct

    def fitting_struct_of(self, row: Row) -> tuple[Struct, list[str]]:
        """The same with placeholders for values that are too large, and the names of these fields.

        Raises BadValue as well where no placeholder can stand.
        """
        struct: Struct = {}
        placed = []
        for field, value_of in self.functions:
            try:
                struct[field.name] = value_of(self._value(row, field))
            except BadValue as error:
                if not isinstance(error, TooLarge) or field.form.placeholder is None:
                    raise type(error)(f"column {field.column}: {error}") from error
                struct[field.name] = field.form.placeholder
                placed.append(field.name)
        return struct, placed

    def _value(self, row: Row, field: FormedField) -> Value:
        value = row[field.column_index]
        if value is None and field.column_index in self._required:
            refuse_null()
        return value


def refuse_null() -> NoReturn:
    """Raise BadValue for a NULL in a column that is NOT NULL."""
    raise BadValue("it is NULL, and its definition says NOT NULL")


class _NoStruct(StructMaker):
    """Maker of the key of a table without one: null for every row."""

    def __init__(self) -> None:
        self.struct_of = lambda _: None
        self.fields = ()

    def careful_struct_of(self, row: Row) -> None:
        """Null."""


NO_STRUCT = _NoStruct()


def _compile(
    fields: Sequence[FormedField], columns: int, required: Collection[int]
) -> Callable[[Row], Struct]:
    """Return the function from a row of COLUMNS values to a struct of FIELDS; NULL in one of
    REQUIRED has no form.

    Nothing from outside gets into the source but names, as literals, and numbers.
    """
    names: dict[str, Any] = {"refuse_null": refuse_null}
    items = []
    for number, field in enumerate(fields):
        value = f"c{field.column_index}"
        form = field.form
        if form.convert is not None:
            names[f"f{number}"] = form.convert
        expression = form.expression.replace("{v}", value).replace("{f}", f"f{number}")
        of_null = form.of_null.replace("{f}", f"f{number}")
        # What is sent as it is, or always the same, needs no question whether it is null.
        plain = expression == (value if of_null == "None" else of_null)
        guarded = expression if plain else f"{of_null} if {value} is None else {expression}"
        items.append(f"{field.name!r}: {guarded}")
    row = ", ".join(f"c{index}" for index in range(columns))
    is_wrong = " or ".join(f"c{index} is None" for index in sorted(required))
    lines = [
        "def struct_of(row):",
        f"    {row}, = row",
        *([f"    if {is_wrong}: refuse_null()"] if is_wrong else []),
        f"    return {{{', '.join(items)}}}",
    ]
    exec("\n".join(lines), names)  # noqa: S102 (see above: the source is ours)
    made: Callable[[Row], Struct] = names["struct_of"]
    return made


def formed_fields(
    table: Table,
    indices: list[int],
    form_of: Callable[[Column], FieldForm | None],
    named: Callable[[Sequence[str]], tuple[str, ...]],
) -> list[FormedField]:
    """Return the fields for the columns at POSITIONS that have a form; NAMED gives their names."""
    formed = [
        (index, table.columns[index].name, form)
        for index in indices
        if (form := form_of(table.columns[index])) is not None
    ]
    names = named([column for _, column, _ in formed])
    return [
        FormedField(name, index, column, form)
        for name, (index, column, form) in zip(names, formed, strict=True)
    ]


def schemas_of(fields: Sequence[FormedField]) -> list[tuple[str, Schema]]:
    """Return the names and schemas of FIELDS."""
    return [(field.name, field.form.schema) for field in fields]


def raw_key_of(table: Table, indices: list[int]) -> Callable[[Row], object] | None:
    """Return what tells by the raw values at POSITIONS whether two rows have the same key."""
    if not indices:
        return None
    values = itemgetter(*indices)
    if any(table.columns[index].storage in _FLOATS for index in indices):
        return lambda row: repr(values(row))  # as 0.0 and -0.0 are equal, but not the same key
    return values
