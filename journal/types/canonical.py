"""One text for one row: how a row is written down where contents are compared.

The text is JSON, one object per row with the columns as the table shows them (``Table.order``)
and no blanks, so that two rows are equal if their texts are. Spark's replay writes it, and
whoever compares the database or the topic with a replay builds the same text with
`canonical_row`.

| column | text |
|---|---|
| NULL | ``null`` |
| SMALLINT, INTEGER, BIGINT | number |
| NUMERIC, DECIMAL of any size, INT128 | string, all digits: ``"12.30"`` |
| DECFLOAT | string with its own exponent: ``"1.20"``, ``"1E+30"``, ``"NaN"`` |
| FLOAT, DOUBLE PRECISION | number, the shortest text that reads back as the same 4 or 8 bytes; |
| | not a number: ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` |
| BOOLEAN | ``true``, ``false`` |
| DATE | ``"2024-02-29"`` |
| TIME, TIMESTAMP | ``"23:59:59"``, ``"2024-02-29T23:59:59.9999"``: a fraction only if not zero |
| TIME/TIMESTAMP WITH TIME ZONE | in UTC, then the zone: ``"2024-02-29T21:00:00Z[+03:00]"``; |
| | a named zone by the engine's number of it: ``Z[65037]`` |
| VARCHAR, text BLOB | string |
| CHAR | string without trailing blanks |
| OCTETS, binary BLOB, ARRAY, unknown type | base64 string |
| text that its character set can't decode | ``{"base64":"..."}`` |
| BLOB above `BLOB_LIMIT` bytes | ``{"length":N,"sha256":"..."}`` |
| BLOB whose content was not captured | ``{"unavailable":true}`` |
"""

from __future__ import annotations

import hashlib
import math
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring as quote
from typing import Any, NamedTuple

from firebird_cdc.journal.format import Blob, Column, Storage, Table, Undecodable, Value
from firebird_cdc.journal.format.charsets import codec_of
from firebird_cdc.journal.types.decfloat import decode_decfloat
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

BLOB_LIMIT = 16 * 1024 * 1024
"""Bytes up to which a blob's content stands in the text; a guess, not measured."""


@dataclass(frozen=True, slots=True)
class LargeBlob:
    """Stands for a blob above `BLOB_LIMIT` whose content was left behind; ``length``: bytes."""

    length: int
    sha256: bytes


_Encoder = Callable[[Any], str]

_UNITS_PER_SECOND = 10_000
_UTC_ZONE = 1439  # zone numbers 0..2878 are minutes east of UTC plus 1439
_FLOAT = struct.Struct("<f")
_INTEGERS = (Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128)
_ZONED = (Storage.TIME_TZ, Storage.TIMESTAMP_TZ)
_TEXT_BLOB = 1  # RDB$FIELD_SUB_TYPE


_date = lru_cache(maxsize=4096)(iso_date)


def _timestamp(units: int) -> str:
    days, rest = divmod(units, UNITS_PER_DAY)
    return f"{_date(days)}T{iso_time(rest)}"


def _zone_text(zone: int) -> str:
    if zone > 2 * _UTC_ZONE:
        return f"Z[{zone}]"
    hour, minute = divmod(abs(zone - _UTC_ZONE), 60)
    return f"Z[{'-' if zone < _UTC_ZONE else '+'}{hour:02}:{minute:02}]"


def _time_tz(value: bytes) -> str:
    units, zone = TIME_TZ.unpack(value)
    return f'"{iso_time(units)}{_zone_text(zone)}"'


def _timestamp_tz(value: bytes) -> str:
    units, zone = TIMESTAMP_TZ.unpack(value)
    return f'"{_timestamp(units)}{_zone_text(zone)}"'


def _special_float(value: float) -> str:
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _double(value: float) -> str:
    return repr(value) if math.isfinite(value) else _special_float(value)


def _float(value: float) -> str:
    if not math.isfinite(value):
        return _special_float(value)
    return repr(shortest_float(_FLOAT.unpack(_FLOAT.pack(value))[0]))


def _bytes(value: bytes) -> str:
    return f'"{b64encode(value).decode("ascii")}"'


def _text(value: str | Undecodable) -> str:
    return quote(value) if isinstance(value, str) else f'{{"base64":{_bytes(value.raw)}}}'


def _decfloat(value: bytes | Decimal) -> str:
    return f'"{decode_decfloat(value) if isinstance(value, bytes) else value}"'


def _scaled_double(scale: int) -> _Encoder:
    """Return the encoder of a NUMERIC that dialect 1 keeps in a double."""

    def encode(value: float) -> str:
        if not math.isfinite(value):
            return _special_float(value)
        return f'"{plain_decimal(round(Decimal(repr(value)).scaleb(scale)), scale)}"'

    return encode


def _decimal(scale: int) -> _Encoder:
    """Return the encoder of an integer with SCALE digits behind the point."""
    if not 0 < scale < 19:
        return lambda value: f'"{plain_decimal(value, scale)}"'
    one = 10**scale

    def encode(value: int) -> str:
        if value < 0:
            return f'"{plain_decimal(value, scale)}"'
        return f'"{value // one}.{value % one:0{scale}}"'

    return encode


def _blob(column: Column, none_charset: str, limit: int) -> _Encoder:
    is_text = column.storage == Storage.BLOB and column.sub_type == _TEXT_BLOB
    charset = (codec_of(column.charset_id) or none_charset) if is_text else None

    def encode(value: Blob | LargeBlob | bytes | str) -> str:
        if isinstance(value, LargeBlob):
            return f'{{"length":{value.length},"sha256":"{value.sha256.hex()}"}}'
        if isinstance(value, str):
            value = value.encode(charset or "UTF-8")
        if isinstance(value, bytes):
            length, chunks = len(value), iter((value,))
        elif value.available:
            length, chunks = value.length, value.chunks()
        else:
            return '{"unavailable":true}'
        if length > limit:
            digest = hashlib.sha256()
            for chunk in chunks:
                digest.update(chunk)
            return f'{{"length":{length},"sha256":"{digest.hexdigest()}"}}'
        content = b"".join(chunks)
        if charset is None:
            return _bytes(content)
        try:
            return quote(content.decode(charset))
        except UnicodeDecodeError:
            return f'{{"base64":{_bytes(content)}}}'

    return encode


_PLAIN: dict[Storage, _Encoder] = {
    Storage.FLOAT: _float,
    Storage.DOUBLE: _double,
    Storage.DATE: lambda value: f'"{_date(value)}"',
    Storage.TIME: lambda value: f'"{iso_time(value)}"',
    Storage.TIMESTAMP: lambda value: f'"{_timestamp(value)}"',
    Storage.TIME_TZ: _time_tz,
    Storage.TIMESTAMP_TZ: _timestamp_tz,
    Storage.DECFLOAT16: _decfloat,
    Storage.DECFLOAT34: _decfloat,
    Storage.OCTETS: _bytes,
    Storage.RAW: _bytes,
}


class _Written(NamedTuple):
    """Expression in Python that writes the text of a non-null value.

    ``{v}`` in it stands for the value, ``{f}`` for ``function``; else it has only the names of
    `_NAMES`. It goes into an f-string, so there are no quotes, backslashes or braces in it.
    """

    expression: str
    function: _Encoder | None = None

    def as_function(self) -> _Encoder:
        """The expression as a function of the value."""
        if self.expression == "{f}({v})" and self.function is not None:
            return self.function
        source = "lambda v: " + self.expression.replace("{v}", "v").replace("{f}", "f")
        made: _Encoder = eval(source, {**_NAMES, "f": self.function})  # noqa: S307 (ours)
        return made


def _form(column: Column, none_charset: str, blob_limit: int) -> _Written:
    """Return what makes the JSON text of a non-null value of COLUMN."""
    storage = column.storage
    if storage in (Storage.BLOB, Storage.ARRAY):
        return _Written("{f}({v})", _blob(column, none_charset, blob_limit))
    if storage in _INTEGERS:
        scale = -column.scale
        if storage == Storage.INT128 or scale or column.sub_type:
            return _Written("{f}({v})", _decimal(scale))
        return _Written("integer({v})")
    if storage == Storage.DOUBLE and column.scale:
        return _Written("{f}({v})", _scaled_double(-column.scale))
    if storage == Storage.TEXT:
        return _Written("(quote({v}) if {v}.__class__ is str else text({v}))")
    if storage == Storage.PADDED_TEXT:
        return _Written("(quote({v}.rstrip(blank)) if {v}.__class__ is str else text({v}))")
    if storage == Storage.BOOLEAN:
        return _Written("(true if {v} else false)")
    return _Written("{f}({v})", _PLAIN[storage])


@lru_cache(maxsize=4096)
def _encoder(column: Column, none_charset: str, blob_limit: int) -> _Encoder:
    """Return what makes the JSON text of a non-null value of COLUMN."""
    return _form(column, none_charset, blob_limit).as_function()


_NAMES: dict[str, Any] = {
    "integer": int.__repr__,
    "quote": quote,
    "text": _text,
    "blank": " ",
    "true": "true",
    "false": "false",
    "null": "null",
}

# Compiling takes some 20 us a column.
_MAX_COMPILED = 2000


def _compile(
    columns: Sequence[tuple[int, Column]], none_charset: str, blob_limit: int
) -> Callable[[Sequence[Any]], str]:
    """Return the function that writes COLUMNS, given with their indexes, of a row as an object.

    It is one f-string, written out as source, as that takes half the time of a loop. Nothing from
    outside gets into the source but names of columns, as text in which only letters of ASCII,
    digits and some signs stand for themselves.
    """
    if len(columns) > _MAX_COMPILED:
        return _looping(columns, none_charset, blob_limit)
    names = dict(_NAMES)
    lines = []
    pieces = []
    comma = ""
    for place, (index, column) in enumerate(columns):
        form = _form(column, none_charset, blob_limit)
        names[f"f{place}"] = form.function
        expression = form.expression.replace("{v}", f"v{place}").replace("{f}", f"f{place}")
        lines.append(f"    v{place} = row[{index}]")
        name = f"{comma}{quote(column.name)}:".encode("unicode_escape").decode()
        name = name.replace("'", "\\'").replace("{", "{{").replace("}", "}}")
        pieces.append(f"{name}{{null if v{place} is None else {expression}}}")
        comma = ","
    lines.append(f"    return f'{{{{{''.join(pieces)}}}}}'")
    source = "\n".join(["def write(row):", *lines])
    exec(source, names)  # noqa: S102 (see above: the source is ours)
    made: Callable[[Sequence[Any]], str] = names["write"]
    return made


def _looping(
    columns: Sequence[tuple[int, Column]], none_charset: str, blob_limit: int
) -> Callable[[Sequence[Any]], str]:
    """The same for a table too wide to be compiled."""
    parts = [
        (index, f"{quote(column.name)}:", _encoder(column, none_charset, blob_limit))
        for index, column in columns
    ]

    def write(row: Sequence[Any]) -> str:
        fields = [
            name + ("null" if (value := row[index]) is None else encode(value))
            for index, name, encode in parts
        ]
        return "{" + ",".join(fields) + "}"

    return write


class RowText:
    """Writes rows of one table shape; made once per shape.

    ``row(values)``: the text of a whole row; VALUES as `JournalReader` yields them.
    ``key(values)``: the text of the key columns in key order, None without a key.
    ``with_blobs=False`` leaves BLOB and ARRAY columns out and never reads their content.
    """

    def __init__(
        self,
        table: Table,
        *,
        none_charset: str = "UTF-8",
        blob_limit: int = BLOB_LIMIT,
        with_blobs: bool = True,
    ) -> None:
        columns = list(enumerate(table.columns))
        shown = [
            columns[index]
            for index in table.order
            if with_blobs or table.columns[index].storage not in (Storage.BLOB, Storage.ARRAY)
        ]
        keyed = [columns[index] for index in table.key_columns]
        self.row: Callable[[Sequence[Value]], str] = _compile(shown, none_charset, blob_limit)
        self.key: Callable[[Sequence[Value]], str | None] = (
            _compile(keyed, none_charset, blob_limit) if keyed else _no_key
        )


def _no_key(values: Sequence[Value]) -> None:  # noqa: ARG001
    return None


def _stored(column: Column, value: object) -> object:
    """Return VALUE, which may be of Python's natural type, as the journal holds it."""
    if isinstance(value, Decimal) and column.storage in _INTEGERS:
        # Not by Decimal's own arithmetic: it rounds to the context's 28 digits.
        numerator, denominator = value.as_integer_ratio()
        unscaled, rest = divmod(numerator * 10**-column.scale, denominator)
        if rest:
            raise ValueError(f"{column.name}: {value} has more than {-column.scale} decimals")
        return unscaled
    if column.storage in _ZONED and not isinstance(value, bytes):
        raise ValueError(f"{column.name}: a value with a time zone is taken as stored bytes only")
    if isinstance(value, datetime):
        return _days(value) * UNITS_PER_DAY + _units(value.time())
    if isinstance(value, date):
        return _days(value)
    if isinstance(value, time):
        return _units(value)
    return value


def _days(value: date) -> int:
    return value.toordinal() - ORDINAL_OF_DAY_0


def _units(value: time) -> int:
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    return seconds * _UNITS_PER_SECOND + value.microsecond // 100


def canonical_value(
    column: Column, value: object, *, none_charset: str = "UTF-8", blob_limit: int = BLOB_LIMIT
) -> str:
    """Return the JSON text of one value of COLUMN.

    value: as `JournalReader` yields it (numerics unscaled, temporal values in the engine's
    units), or of Python's natural type, as firebird-driver returns it: Decimal for numerics
    and DECFLOAT, date, time, datetime without a zone, bytes or str for blobs. An int for a
    column with a scale is always unscaled. Values with a time zone only as stored bytes.
    Raises ValueError for a Decimal that does not fit the column's scale, and for a value with a
    time zone that is not given as stored bytes.
    """
    if value is None:
        return "null"
    return _encoder(column, none_charset, blob_limit)(_stored(column, value))


def canonical_row(
    columns: Iterable[Column],
    values: Iterable[object],
    *,
    none_charset: str = "UTF-8",
    blob_limit: int = BLOB_LIMIT,
) -> str:
    """Return the text of a row, as `replay state` writes it; VALUES as in `canonical_value`.

    COLUMNS and VALUES: in the order in which the table shows them (``Table.order``).
    """
    fields = (
        f"{quote(column.name)}:"
        + canonical_value(column, value, none_charset=none_charset, blob_limit=blob_limit)
        for column, value in zip(columns, values, strict=True)
    )
    return "{" + ",".join(fields) + "}"
