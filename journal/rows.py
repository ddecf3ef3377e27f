"""Turns rows of a journal into structs: a function is written out for each shape of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from firebird_cdc.journal.format import Row
from firebird_cdc.journal.schema import Struct
from firebird_cdc.journal.values import BadValue, FieldForm


class FormedField(NamedTuple):
    """A field of a struct, and the column that it is made of: its index in the row, its name."""

    name: str
    position: int
    column: str
    form: FieldForm


StructFunction = Callable[[Row], Struct | None]


class StructMaker:
    """Makes the structs of one shape from full row images.

    ``struct_of`` is fast, and raises BadValue for a row with a value that has no form.
    ``careful_struct_of`` then names the column. Null stands for NULL only, never for what has no
    form: a consumer would take it for the row's value.
    """

    def __init__(self, fields: Sequence[FormedField], columns: int) -> None:
        self.struct_of: StructFunction = _compile(fields, columns)
        self._fields = fields

    @cached_property
    def _functions(self) -> list[tuple[FormedField, Callable[[Any], Any]]]:
        return [(field, field.form.function()) for field in self._fields]

    def careful_struct_of(self, row: Row) -> Struct | None:
        """The struct of ROW, made field by field. Raises BadValue with the column's name."""
        struct: Struct = {}
        for field, value_of in self._functions:
            try:
                struct[field.name] = value_of(row[field.position])
            except BadValue as error:
                raise type(error)(f"column {field.column}: {error}") from error
        return struct


class _NoStruct(StructMaker):
    """What a table without a key has in its place: null for every row."""

    def __init__(self) -> None:
        self.struct_of = lambda _: None

    def careful_struct_of(self, row: Row) -> None:
        """Null."""


NO_STRUCT = _NoStruct()


def _compile(fields: Sequence[FormedField], columns: int) -> Callable[[Row], Struct]:
    """Return the function from a row of COLUMNS values to a struct of FIELDS.

    Nothing from outside gets into the source but names, as literals, and numbers.
    """
    names: dict[str, Any] = {}
    items = []
    for place, field in enumerate(fields):
        value = f"c{field.position}"
        form = field.form
        if form.convert is not None:
            names[f"f{place}"] = form.convert
        expression = form.expression.replace("{v}", value).replace("{f}", f"f{place}")
        of_null = form.of_null.replace("{f}", f"f{place}")
        # What is sent as it is, or always the same, needs no question whether it is null.
        plain = expression == (value if of_null == "None" else of_null)
        guarded = expression if plain else f"{of_null} if {value} is None else {expression}"
        items.append(f"{field.name!r}: {guarded}")
    row = ", ".join(f"c{position}" for position in range(columns))
    lines = [
        "def struct_of(row):",
        f"    {row}, = row",
        f"    return {{{', '.join(items)}}}",
    ]
    exec("\n".join(lines), names)  # noqa: S102 (see above: the source is ours)
    made: Callable[[Row], Struct] = names["struct_of"]
    return made
