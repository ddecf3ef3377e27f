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
from datetime import date, datetime, time
from decimal import Decimal
from json.encoder import encode_basestring as quote
from typing import Any

from firebird_cdc.journal.charsets import codec_of
from firebird_cdc.journal.decfloat import decode_decfloat
from firebird_cdc.journal.format import Blob, Column, Storage, Table, Undecodable, Value
from firebird_cdc.journal.values import (
    iso_date,
    iso_time,
    plain_decimal,
    shortest_float,
)

BLOB_LIMIT = 16 * 1024 * 1024
"""Bytes up to which a blob's content stands in the text; a guess, not measured."""

_Encoder = Callable[[Any], str]

_DAY_0 = date(1858, 11, 17).toordinal()
_UNITS_PER_SECOND = 10_000
_UNITS_PER_DAY = 86_400 * _UNITS_PER_SECOND
_UTC_ZONE = 1439  # zone numbers 0..2878 are minutes east of UTC plus 1439
_FLOAT = struct.Struct("<f")
_TIME_TZ = struct.Struct("<IH")
_TIMESTAMP_TZ = struct.Struct("<qH")
_INTEGERS = (Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128)
_ZONED = (Storage.TIME_TZ, Storage.TIMESTAMP_TZ)
_TEXT_BLOB = 1  # RDB$FIELD_SUB_TYPE


def _timestamp(units: int) -> str:
    days, rest = divmod(units, _UNITS_PER_DAY)
    return f"{iso_date(days)}T{iso_time(rest)}"


def _zone_text(zone: int) -> str:
    if zone > 2 * _UTC_ZONE:
        return f"Z[{zone}]"
    hour, minute = divmod(abs(zone - _UTC_ZONE), 60)
    return f"Z[{'-' if zone < _UTC_ZONE else '+'}{hour:02}:{minute:02}]"


def _time_tz(value: bytes) -> str:
    units, zone = _TIME_TZ.unpack(value)
    return f'"{iso_time(units)}{_zone_text(zone)}"'


def _timestamp_tz(value: bytes) -> str:
    units, zone = _TIMESTAMP_TZ.unpack(value)
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


def _padded_text(value: str | Undecodable) -> str:
    return _text(value.rstrip(" ") if isinstance(value, str) else value)


def _decfloat(value: bytes | Decimal) -> str:
    return f'"{decode_decfloat(value) if isinstance(value, bytes) else value}"'


def _scaled_double(scale: int) -> _Encoder:
    """Return the encoder of a NUMERIC that dialect 1 keeps in a double."""

    def encode(value: float) -> str:
        if not math.isfinite(value):
            return _special_float(value)
        return f'"{plain_decimal(round(Decimal(repr(value)).scaleb(scale)), scale)}"'

    return encode


def _blob(column: Column, none_charset: str, limit: int) -> _Encoder:
    is_text = column.storage == Storage.BLOB and column.sub_type == _TEXT_BLOB
    charset = (codec_of(column.charset_id) or none_charset) if is_text else None

    def encode(value: Blob | bytes | str) -> str:
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
    Storage.BOOLEAN: lambda value: "true" if value else "false",
    Storage.DATE: lambda value: f'"{iso_date(value)}"',
    Storage.TIME: lambda value: f'"{iso_time(value)}"',
    Storage.TIMESTAMP: lambda value: f'"{_timestamp(value)}"',
    Storage.TIME_TZ: _time_tz,
    Storage.TIMESTAMP_TZ: _timestamp_tz,
    Storage.DECFLOAT16: _decfloat,
    Storage.DECFLOAT34: _decfloat,
    Storage.TEXT: _text,
    Storage.PADDED_TEXT: _padded_text,
    Storage.OCTETS: _bytes,
    Storage.RAW: _bytes,
}


def _encoder(column: Column, none_charset: str, blob_limit: int) -> _Encoder:
    """Return what makes the JSON text of a non-null value of COLUMN."""
    storage = column.storage
    if storage in (Storage.BLOB, Storage.ARRAY):
        return _blob(column, none_charset, blob_limit)
    if storage in _INTEGERS:
        scale = -column.scale
        if storage == Storage.INT128 or scale or column.sub_type:
            return lambda value: f'"{plain_decimal(value, scale)}"'
        return int.__repr__
    if storage == Storage.DOUBLE and column.scale:
        return _scaled_double(-column.scale)
    return _PLAIN[storage]


class RowText:
    """Writes rows of one table shape; made once per shape, called per row.

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
        parts = [
            (
                index,
                f"{quote(column.name)}:",
                _encoder(column, none_charset, blob_limit),
            )
            for index, column in enumerate(table.columns)
        ]
        self._key = tuple(parts[index] for index in table.key_columns)
        self._row = tuple(
            parts[index]
            for index in table.order
            if with_blobs or table.columns[index].storage not in (Storage.BLOB, Storage.ARRAY)
        )

    def row(self, values: Sequence[Value]) -> str:
        """Return the text of a whole row; VALUES as `JournalReader` yields them."""
        return _object(self._row, values)

    def key(self, values: Sequence[Value]) -> str | None:
        """Return the text of the key columns of a row in key order, None without a key."""
        return _object(self._key, values) if self._key else None


def _object(parts: Iterable[tuple[int, str, _Encoder]], values: Sequence[object]) -> str:
    fields = [
        name + ("null" if (value := values[index]) is None else encode(value))
        for index, name, encode in parts
    ]
    return "{" + ",".join(fields) + "}"


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
        return _days(value) * _UNITS_PER_DAY + _units(value.time())
    if isinstance(value, date):
        return _days(value)
    if isinstance(value, time):
        return _units(value)
    return value


def _days(value: date) -> int:
    return value.toordinal() - _DAY_0


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
