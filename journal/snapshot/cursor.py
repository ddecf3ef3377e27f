"""Rows of a SELECT as the engine's own messages, and what decodes the columns of these."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from firebird_cdc.errors import QueryRefused
from firebird_cdc.journal.format import Column, Storage, Undecodable
from firebird_cdc.journal.format.charsets import NONE, name_of
from firebird_cdc.journal.format.model import BLOB_STORAGES, TEXT_STORAGES
from firebird_cdc.journal.format.row_decoder import ImageField, decode_text
from firebird_cdc.journal.snapshot.statements import Shown, Statement
from firebird_cdc.journal.types.engine_types import OF_STORAGE
from firebird_cdc.journal.types.names import is_text_blob, type_expression

if TYPE_CHECKING:
    from firebird_cdc.native._journal_files import write_rows
else:
    try:
        from firebird_cdc.native._journal_files import write_rows
    except ImportError:  # on Spark's executors, which have nothing compiled and write no rows
        write_rows = None

BIGINT, TEXT, VARYING = 580, 452, 448
"""SQL types."""

_FULL, _LEFT, _NO_NEXT = range(3)  # why C stopped
_SCALED = (Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128, Storage.DOUBLE)

Decoder = Callable[[Any], Any]

WriteRows = Callable[
    [int, int, int, list[bytes | None], list[bytes | None]], tuple[int, int, bool | None]
]
"""Writes the events of the row at hand, whose position is given, and of those behind it, as long as
each has one behind it: so many at most, and so many bytes. Appends keys and values; returns how
many it wrote, their bytes, and whether the row at hand now, which is none of them, has one behind
it; None: that was not looked for."""


class Field(NamedTuple):
    """A value that is wanted of each row: ``number``: which one of a message; ``form``: as of
    `struct`; ``decode``: what makes a value of what it has."""

    number: int
    form: str
    decode: Decoder


class Cursor:
    """Open cursor over the rows of STATEMENT, which is SQL prepared and ends with it.

    bind: returns, of what the messages show, the `Field` of each value that is wanted, in order.
    Raises the driver's errors; QueryRefused if SQL is no SELECT. ``message_bytes``: of a row,
    without its BLOBs; ``places``: offsets of value and null flag in it, of each field.
    """

    def __init__(
        self,
        statement: Statement,
        sql: str,
        bind: Callable[[Sequence[Shown]], Sequence[Field]],
    ) -> None:
        self._statement = statement
        try:
            if not statement.is_select:
                raise QueryRefused(f"this is no SELECT that only reads: {sql}")
            shown = statement.shown
            fields = bind(shown)
            layout, self._decoders = _layout(shown, fields)
            self.places = [
                (shown[each.number].offset, shown[each.number].null_offset) for each in fields
            ]
            self.message_bytes: int = statement.message_bytes
            self._row, self._next = (
                ctypes.create_string_buffer(self.message_bytes) for _ in range(2)
            )
            statement.open()
        except BaseException:
            statement.close()
            raise
        self._unpack = layout.unpack_from

    def close(self) -> None:
        """Close the cursor, and forget the statement."""
        self._statement.close()

    def fetch(self) -> bool:
        """Go on to the next row; False: there is none."""
        if not self.look_ahead():
            return False
        self.advance()
        return True

    def look_ahead(self) -> bool:
        """Fetch the row behind the one at hand, which stays; False: there is none."""
        return self._statement.fetch(self._next)

    def advance(self) -> None:
        """Have that one at hand."""
        self._row, self._next = self._next, self._row

    def writer(self, plan: tuple[bytes, bytes, bytes, bytes, bytes, int]) -> WriteRows:
        """Return what has C write rows as PLAN says (`quick_rows`)."""
        fetching = self._statement.fetching

        def write(
            position: int,
            most_rows: int,
            most_bytes: int,
            keys: list[bytes | None],
            values: list[bytes | None],
        ) -> tuple[int, int, bool | None]:
            rows, size, stop = write_rows(
                fetching,
                self._row,
                self._next,
                plan,
                position,
                most_rows,
                most_bytes,
                keys,
                values,
            )
            if rows % 2:
                self.advance()
            if stop == _NO_NEXT:
                self._statement.check()
            return rows, size, None if stop == _FULL else stop == _LEFT

        return write

    def values(self) -> list[Any]:
        """Return the values of the row at hand. A content of BLOBs is read with them."""
        raw = self._unpack(self._row)
        return [None if raw[null] else decode(raw[place]) for place, null, decode in self._decoders]


def _layout(
    shown: Sequence[Shown], fields: Sequence[Field]
) -> tuple[struct.Struct, list[tuple[int, int, Decoder]]]:
    """Return how a message is laid out, and (value, null flag, decoder) of each of FIELDS."""
    pieces: list[tuple[int, str, int, bool]] = []  # offset, form, index of the field, is value
    for index, field in enumerate(fields):
        pieces.append((shown[field.number].offset, field.form, index, True))
        pieces.append((shown[field.number].null_offset, "h", index, False))
    text, at = "=", 0
    places: dict[tuple[int, bool], int] = {}
    for place, (offset, form, index, is_value) in enumerate(sorted(pieces)):
        text += f"{offset - at}x{form}" if offset > at else form
        at = offset + struct.calcsize(f"={form}")
        places[index, is_value] = place
    return struct.Struct(text), [
        (places[index, True], places[index, False], field.decode)
        for index, field in enumerate(fields)
    ]


def difference(shown: Shown, column: Column) -> str | None:
    """Return of what type SHOWN is and of what COLUMN is, in words; None: it is the same."""
    storage = column.storage
    same = (shown.sql_type, shown.length) == (column.sql_type, column.length)
    if storage in _SCALED:
        same = same and shown.scale == column.scale
    elif storage in TEXT_STORAGES or storage is Storage.OCTETS or is_text_blob(column):
        same = same and shown.charset_id == column.charset_id
    if storage is Storage.BLOB:
        same = same and shown.sub_type == column.sub_type
    if same:
        return None
    charset = f" CHARACTER SET {name_of(column.charset_id)}" if column.charset_id else ""
    return (
        f"of type {shown.sql_type} (length {shown.length}, scale {shown.scale}, sub-type"
        f" {shown.sub_type}, character set {name_of(shown.charset_id)}), and the column is"
        f" {type_expression(column)}{charset}"
    )


def column_field(number: int, column: Column, field: ImageField, blob: Decoder) -> Field:
    """Return what decodes COLUMN, whose value is NUMBER in a message. BLOB: decodes the number of a
    content."""
    if column.sql_type == VARYING:
        return Field(number, f"{column.length + 2}s", _varying(field))
    if column.sql_type == TEXT:
        return Field(number, f"{column.length}s", _fixed_text(field))
    if column.storage in BLOB_STORAGES:
        return Field(number, "8s", blob)
    kind = OF_STORAGE[column.storage]
    return Field(number, kind.form, kind.decode or same_value)


def _varying(field: ImageField) -> Decoder:
    if field.storage is Storage.OCTETS:
        return lambda raw: raw[2 : 2 + (raw[0] | raw[1] << 8)]
    codec = field.codec
    if codec is None:
        return lambda raw: decode_text(raw[2 : 2 + (raw[0] | raw[1] << 8)], field)

    # One function, as this is called for each text: most are valid in their character set.
    def decode(raw: bytes) -> str | Undecodable:
        raw = raw[2 : 2 + (raw[0] | raw[1] << 8)]
        try:
            return raw.decode(codec)
        except UnicodeError:
            return decode_text(raw, field)

    return decode


def _fixed_text(field: ImageField) -> Decoder:
    if field.storage is Storage.OCTETS:
        return same_value
    codec, length = field.codec, field.char_length
    if codec is None or field.charset_id == NONE:  # whose length is in bytes
        return lambda raw: decode_text(raw.rstrip(b" "), field)

    def decode(raw: bytes) -> str | Undecodable:
        raw = raw.rstrip(b" ")
        try:
            return raw.decode(codec).ljust(length)
        except UnicodeError:
            return decode_text(raw, field)

    return decode


def same_value(value: Any) -> Any:
    """Return what was given, for values that need no decoding."""
    return value
