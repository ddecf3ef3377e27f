"""SQL text that makes the changes of a journal once more, value by value exactly.

Dialect 3. What a literal can't say is said by an expression: the engine reads decimal floating
point numbers with an error in the last bit, so that those that are not surely exact are written
as a whole number times a power of two; infinities and NaN come from aggregates, the only functions
that return them; texts are the bytes that the journal holds, with the name of their character
set. Each form was tried on Firebird 4.0.5 and 5.0.4, which agree in all of them.
"""

# ruff: noqa: S608 (statements are made here, of quoted names and values)

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

from firebird_cdc.journal.format import Blob, Column, Storage, Table, Undecodable, Value, charsets
from firebird_cdc.journal.types.decfloat import decode_decfloat
from firebird_cdc.journal.types.identifiers import identifier
from firebird_cdc.journal.types.numbers import (
    ORDINAL_OF_DAY_0,
    TIME_TZ,
    TIMESTAMP_TZ,
    UNITS_PER_DAY,
    iso_date,
    iso_time,
    plain_decimal,
    shortest_float,
)

INLINE_BLOB = 8 * 1024
"""Bytes up to which a blob stands in its statement; a longer one is put together before it."""

BLOB_PIECE = 30_000
"""Bytes of a blob in one literal; the engine takes 65,535."""

_LONGEST_TEXT = 8000  # characters of a literal that is no hexadecimal one; the engine takes 16,383
_LAST_DAY = date.max.toordinal() - ORDINAL_OF_DAY_0
_FIRST_DAY = date.min.toordinal() - ORDINAL_OF_DAY_0
_OFFSETS = 2 * 1439  # zone numbers up to this are offsets, in minutes from -23:59
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_INTEGERS = frozenset({Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128})
_TEXTS = frozenset({Storage.TEXT, Storage.PADDED_TEXT})

# Sets whose codes below 128 are those of ASCII, and nothing else: a plain literal is safe.
_LIKE_ASCII = frozenset(
    {0, 2, 3, 4, *range(9, 19), 21, 22, 23, *range(34, 41), *range(45, 56), *range(58, 67)}
)
_PLAIN = re.compile(rb"[ -~]*")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]*")

_TWO = "(SELECT 1e200 X FROM RDB$DATABASE UNION ALL SELECT -1e200 FROM RDB$DATABASE)"
_INFINITY = f"(SELECT VAR_POP(X) FROM {_TWO})"
_NAN = f"(SELECT CORR(X,X) FROM {_TWO})"


class Unwritable(Exception):
    """A value that no SQL text can say; the text tells why."""


def quoted(text: str) -> str:
    """Return a literal of TEXT, which is in UTF8 unless it is ASCII."""
    return ("" if text.isascii() else "_UTF8 ") + "'" + text.replace("'", "''") + "'"


def text_literal(raw: bytes, charset_id: int) -> str:
    """Return a literal of the bytes of a text of RDB$CHARACTER_SET_ID CHARSET_ID."""
    if len(raw) <= _LONGEST_TEXT:
        if charset_id in _LIKE_ASCII and _PLAIN.fullmatch(raw):
            return "'" + raw.decode("ascii").replace("'", "''") + "'"
        if charset_id == charsets.UTF8:
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                pass
            else:
                if _PRINTABLE.fullmatch(text):
                    return quoted(text)
    name = charsets.name_of(charset_id)
    introducer = f"_{name} " if " " not in name and charset_id != charsets.OCTETS else ""
    return f"{introducer}x'{raw.hex()}'"


def float_literal(value: float, *, is_single: bool = False) -> str:
    """Return an expression that is VALUE to the last bit (of a NaN, not which).

    is_single: it goes into a FLOAT, whose own shortest text may be used.
    """
    if math.isnan(value):
        return _NAN
    if math.isinf(value):
        return f"-{_INFINITY}" if value < 0 else _INFINITY
    if value == 0:
        return "-0e0" if math.copysign(1, value) < 0 else "0e0"
    short = shortest_float(value) if is_single else value
    _, digits, exponent = Decimal(repr(short)).as_tuple()
    # So the engine's own reading is exact: both 15 digits and 10**22 are whole doubles.
    is_exact = len(digits) <= 15 and isinstance(exponent, int) and -22 <= exponent <= 0
    if is_exact and (not is_single or _FLOAT.pack(short) == _FLOAT.pack(value)):
        return f"{Decimal(repr(short)):f}e0"
    fraction, power = math.frexp(value)
    mantissa = int(fraction * 2**53)
    power -= 53
    while mantissa % 2 == 0:
        mantissa //= 2
        power += 1
    return f"{mantissa}*POWER(2e0,{power})"


def _zone(number: int, zones: set[int]) -> str:
    """Return a zone for AT TIME ZONE; a region goes by the variable that ZONES asks for."""
    if number > _OFFSETS:
        zones.add(number)
        return f":Z{number}"
    hour, minute = divmod(abs(number - 1439), 60)
    return f"'{'-' if number < 1439 else '+'}{hour:02}:{minute:02}'"


def _timestamp(units: int) -> str:
    days, rest = divmod(units, UNITS_PER_DAY)
    return f"{_date(days)} {iso_time(rest)}"


def _date(days: int) -> str:
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise Unwritable("a date beyond the years 1 to 9999")
    return iso_date(days)


@dataclass(slots=True)
class Needs:
    """Variables that statements need before them: ``zones``, numbers of the engine's regions in
    variables ``Z<number>``; ``blobs`` in variables ``B0``, ``B1``, ... in this order."""

    zones: set[int] = field(default_factory=set)
    blobs: list[Blob] = field(default_factory=list)

    def variable(self, blob: Blob) -> str:
        """Return the variable that will hold BLOB."""
        self.blobs.append(blob)
        return f":B{len(self.blobs) - 1}"


def literal(column: Column, value: Value, needs: Needs) -> str:
    """Return an expression of a non-null value of COLUMN, as `raw_texts` decodes it.

    Raises Unwritable if there is none.
    """
    storage = column.storage
    if storage in _INTEGERS:
        text = plain_decimal(value, -column.scale)  # type: ignore[arg-type]
        return text if sum(map(str.isdigit, text)) <= 18 else f"'{text}'"
    if isinstance(value, Undecodable):
        return text_literal(value.raw, column.charset_id)
    if storage == Storage.BLOB:
        return _blob(column, value, needs)  # type: ignore[arg-type]
    simple = _SIMPLE.get(storage)
    if simple is None:
        what = "an array" if storage == Storage.ARRAY else "a value of an unknown type"
        raise Unwritable(what)
    return simple(value, needs)


def _blob(column: Column, blob: Blob, needs: Needs) -> str:
    if not blob.available:
        raise Unwritable("a blob whose content was not captured")
    if blob.length > INLINE_BLOB:
        return needs.variable(blob)
    raw = blob.read()
    if column.sub_type != 1:
        return f"x'{raw.hex()}'"
    if column.charset_id == charsets.UTF8:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return needs.variable(blob)  # as a literal the engine would refuse it
    return text_literal(raw, column.charset_id)


def _time_tz(value: Any, needs: Needs) -> str:
    units, zone = TIME_TZ.unpack(value)
    return f"(TIME '{iso_time(units)} UTC' AT TIME ZONE {_zone(zone, needs.zones)})"


def _timestamp_tz(value: Any, needs: Needs) -> str:
    units, zone = TIMESTAMP_TZ.unpack(value)
    return f"(TIMESTAMP '{_timestamp(units)} UTC' AT TIME ZONE {_zone(zone, needs.zones)})"


_SIMPLE: dict[Storage, Callable[[Any, Needs], str]] = {
    Storage.FLOAT: lambda value, _: float_literal(value, is_single=True),
    Storage.DOUBLE: lambda value, _: float_literal(value),
    Storage.BOOLEAN: lambda value, _: "TRUE" if value else "FALSE",
    Storage.DATE: lambda value, _: f"DATE '{_date(value)}'",
    Storage.TIME: lambda value, _: f"TIME '{iso_time(value)}'",
    Storage.TIMESTAMP: lambda value, _: f"TIMESTAMP '{_timestamp(value)}'",
    Storage.TIME_TZ: _time_tz,
    Storage.TIMESTAMP_TZ: _timestamp_tz,
    Storage.DECFLOAT16: lambda value, _: f"'{decode_decfloat(value)}'",
    Storage.DECFLOAT34: lambda value, _: f"'{decode_decfloat(value)}'",
    Storage.OCTETS: lambda value, _: f"x'{value.hex()}'",
}


def exact_match(column: Column, value: Value, needs: Needs) -> str | None:
    """Return a condition that COLUMN is exactly VALUE, not only equal to it; None: there is none.

    1.2 and 1.20, 'a' and 'A' under some collations, -0 and 0, or one moment in two zones are equal
    and not the same.
    """
    name = identifier(column.name)
    if value is None:
        return f"{name} IS NULL"
    storage = column.storage
    if storage in (Storage.DECFLOAT16, Storage.DECFLOAT34):
        return f"CAST({name} AS VARCHAR(50))={literal(column, value, needs)}"
    if storage in (Storage.FLOAT, Storage.DOUBLE):
        if math.isnan(value):  # type: ignore[arg-type]
            return f"{name}<>{name}"
        if value == 0:
            sign = "<" if math.copysign(1, value) < 0 else ">"
            return f"{name}=0e0 AND ATAN2({name},-1e0){sign}0"
        return f"{name}={float_literal(value)}"  # type: ignore[arg-type]
    try:
        text = literal(column, value, needs)
    except Unwritable:
        return None
    if storage in (Storage.TIME_TZ, Storage.TIMESTAMP_TZ):
        zone = _zone(int.from_bytes(value[-2:], "little"), needs.zones)  # type: ignore[index,arg-type]
        return f"{name}={text} AND CAST({name} AS VARCHAR(90)) LIKE '% '||{zone}"
    if storage == Storage.OCTETS:
        return f"{name}={text} AND OCTET_LENGTH({name})={len(value)}"  # type: ignore[arg-type]
    if storage == Storage.BLOB:
        return f"{name}={text} AND OCTET_LENGTH({name})={value.length}"  # type: ignore[union-attr]
    if storage in _TEXTS and isinstance(value, Undecodable):
        bare = f"TRIM(TRAILING FROM {name})" if storage == Storage.PADDED_TEXT else name
        width = max(column.length, 1)
        return (
            f"{name}={text} AND OCTET_LENGTH({bare})={len(value.raw)}"
            f" AND CAST({bare} AS VARCHAR({width}) CHARACTER SET OCTETS)=x'{value.raw.hex()}'"
        )
    return f"{name}={text}"


def same(one: Value, other: Value) -> bool:
    """Return whether two values of a column are the same to the last bit."""
    if one is None or other is None:
        return one is other
    if isinstance(one, float) and isinstance(other, float):
        return _DOUBLE.pack(one) == _DOUBLE.pack(other)
    if isinstance(one, Blob) and isinstance(other, Blob):
        if one.number == other.number:
            return True
        if one.length != other.length or not (one.available and other.available):
            return False
        return _bytes_equal(one.chunks(), other.chunks())
    return one == other


def _bytes_equal(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    left = right = b""
    while True:
        if not left:
            left = next(one, b"")
        if not right:
            right = next(other, b"")
        if not left or not right:
            return left == right
        length = min(len(left), len(right))
        if left[:length] != right[:length]:
            return False
        left, right = left[length:], right[length:]


class Text(NamedTuple):
    """Statements of one change, for the inside of a block of PSQL.

    ``contexts``: how many of the 256 contexts that a block may have they use, at most.
    """

    sql: str
    contexts: int


class TableText:
    """Writes the changes of one shape of a table.

    ``left_out``: how many values of which column could not be written, and why. ``tolerant``:
    a row that is not as the journal says, or not there, is made as it has to be.
    Whoever runs the statements has the procedures of `script` in the database.
    """

    def __init__(self, table: Table, *, tolerant: bool = False) -> None:
        self.table = table
        self.name = identifier(table.name)
        self.left_out: Counter[str] = Counter()
        self._tolerant = tolerant
        self._columns = [(index, table.columns[index]) for index in table.order]
        self._key = [(index, table.columns[index]) for index in table.key_columns]
        self._keyed = {index for index, _ in self._key}
        self._label = quoted(table.name)

    @property
    def has_key(self) -> bool:
        """Tell whether rows are found by a key."""
        return bool(self._key)

    def insert(self, after: Sequence[Value], needs: Needs) -> Text:
        """Return what inserts AFTER."""
        names, values = self._pairs(after, needs)
        row = f"{self.name} ({','.join(names)}) VALUES ({','.join(values)})"
        if self._tolerant and self._key:
            key = ",".join(identifier(column.name) for _, column in self._key)
            return Text(f"UPDATE OR INSERT INTO {row} MATCHING ({key});", 4)
        return Text(f"INSERT INTO {row};", 1 + self._subqueries(row))

    def delete(self, before: Sequence[Value], needs: Needs) -> Text:
        """Return what deletes BEFORE, one row if several are the same."""
        where = self._where(before, needs)
        sql = f"DELETE FROM {self.name} WHERE {where};"
        if not self._tolerant:
            # Whom a cascade has deleted already, the journal deletes once more.
            sql += (
                f" IF (ROW_COUNT<>1) THEN EXECUTE PROCEDURE {CASCADED} ({self._label},ROW_COUNT);"
            )
        return Text(sql, 3 + self._subqueries(where))

    def update(self, before: Sequence[Value], after: Sequence[Value], needs: Needs) -> Text:
        """Return what updates BEFORE to AFTER; the columns that are the same are left alone."""
        changed = [index for index, _ in self._columns if not same(before[index], after[index])]
        everything = self._tolerant and bool(self._key)
        chosen = [index for index, _ in self._columns] if everything or not changed else changed
        names, values = self._pairs(after, needs, chosen)
        if not names:
            # Of what has changed nothing can be written; the row has to be there all the same.
            names, values = self._pairs(after, needs)
        sets = ",".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        where = self._where(before, needs)
        sql = f"UPDATE {self.name} SET {sets} WHERE {where};"
        contexts = 3 + self._subqueries(sql)
        if everything:
            other = self.insert(after, needs)
            contexts += other.contexts
            if not self._keyed & set(changed):
                return Text(f"{sql} IF (ROW_COUNT=0) THEN {other.sql}", contexts)
            there = f"EXISTS(SELECT 1 FROM {self.name} WHERE {self._where(after, needs)})"
            gone = f"DELETE FROM {self.name} WHERE {where};"
            return Text(f"IF ({there}) THEN {gone} ELSE {sql} {other.sql}", contexts + 4)
        if self._tolerant:
            return Text(sql, contexts)
        missed = f"EXECUTE PROCEDURE {CASCADED} ({self._label},ROW_COUNT);"
        if self._keyed & set(changed):
            # A cascade may have changed the key already: the row is under the new one then.
            there = self._where(after, needs)
            again = f"UPDATE {self.name} SET {sets} WHERE {there};"
            missed = (
                f"BEGIN {missed} {again} IF (ROW_COUNT<>1) THEN"
                f" EXECUTE PROCEDURE {MISSED} ({self._label},ROW_COUNT); END"
            )
            contexts *= 2
        elif self._key:
            missed = f"EXECUTE PROCEDURE {MISSED} ({self._label},ROW_COUNT);"
        return Text(f"{sql} IF (ROW_COUNT<>1) THEN {missed}", contexts)

    @staticmethod
    def _subqueries(sql: str) -> int:
        return 2 * sql.count("(SELECT ")

    def _pairs(
        self, row: Sequence[Value], needs: Needs, chosen: Sequence[int] | None = None
    ) -> tuple[list[str], list[str]]:
        """Return names and expressions of the columns CHOSEN, None: all; without what can't be
        written."""
        names, values = [], []
        for index, column in self._columns:
            if chosen is not None and index not in chosen:
                continue
            try:
                value = row[index]
                text = "NULL" if value is None else literal(column, value, needs)
            except Unwritable as error:
                self.left_out[f"{self.table.name}.{column.name}: {error}"] += 1
                continue
            names.append(identifier(column.name))
            values.append(text)
        return names, values

    def _where(self, row: Sequence[Value], needs: Needs) -> str:
        if self._key:
            return " AND ".join(
                f"{identifier(column.name)}={literal(column, row[index], needs)}"
                for index, column in self._key
            )
        conditions = [
            text
            for index, column in self._columns
            if (text := exact_match(column, row[index], needs)) is not None
        ]
        return f"{' AND '.join(conditions) or 'TRUE'} ROWS 1"


CASCADED = identifier("FIREBIRD_CDC$CASCADED")
MISSED = identifier("FIREBIRD_CDC$MISSED")
