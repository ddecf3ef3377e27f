"""Column values as Kafka Connect's JSON: for each column its field schema and its encoder.

An encoder takes a value as ``journal.format`` yields it (never None) and returns JSON text.
The forms are those of Connect's JsonConverter with Debezium's semantic types; the sections of
features.md that rule them stand beside each group.
"""

from __future__ import annotations

import struct
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

from firebird_cdc.errors import ShipError
from firebird_cdc.journal.charsets import NONE, OCTETS, codec_of
from firebird_cdc.journal.decfloat import decode_decfloat as decode_decfloat
from firebird_cdc.journal.format import Blob, Column, Storage, Undecodable

quote = encode_basestring
"""A text as JSON text, not ASCII only; written in C in CPython."""

Schema = dict[str, Any]
Encoder = Callable[[Any], str]

_UNIX_DAY = 40587
"""Firebird's number of the day 1970-01-01."""

_UNITS_PER_DAY = 864_000_000
_UNIX_UNITS = _UNIX_DAY * _UNITS_PER_DAY
_ORDINAL_OF_DAY_0 = date(1858, 11, 17).toordinal()
_LAST_ORDINAL = date.max.toordinal()
_DAYS_OF_400_YEARS = 146_097
_FULL_PRECISION = {
    Storage.SMALLINT: 4,
    Storage.INTEGER: 9,
    Storage.BIGINT: 18,
    Storage.INT128: 38,
    Storage.DOUBLE: 15,
}


class BadValue(ShipError):
    """A value has no form in the chosen mode. The text says which and names the way out."""


@dataclass(frozen=True, slots=True)
class ValueModes:
    """The options that choose the form of values (names as in ``ConnectorConfig``)."""

    decimal: str = "precise"
    time: str = "adaptive"
    binary: str = "bytes"
    placeholder: str = "__debezium_unavailable_value"
    charset_none: str = "UTF-8"
    unknown_types: bool = False
    """Send columns of unknown type as bytes instead of leaving them out."""
    max_bytes: int = 1_000_000
    """Largest message the producer takes; a blob beyond it is refused before it is read."""


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """One column's part in a struct: field name, Connect schema and encoder of non-null values."""

    name: str
    schema: Schema
    encode: Encoder
    nullable: bool


def field_codec(column: Column, modes: ValueModes) -> FieldCodec | None:
    """Return how COLUMN is sent, or None if it is left out: its type or charset is unknown."""
    form = _form(column, modes) or (_unknown() if modes.unknown_types else None)
    if form is None:
        return None
    schema, encode = form
    ordered: Schema = {"type": schema["type"], "optional": column.nullable}
    ordered.update((key, value) for key, value in schema.items() if key != "type")
    ordered["field"] = column.name
    return FieldCodec(column.name, ordered, encode, column.nullable)


def _form(column: Column, modes: ValueModes) -> tuple[Schema, Encoder] | None:
    storage = column.storage
    if storage in _INTEGERS:
        if storage is Storage.INT128 or column.scale < 0 or column.sub_type in (1, 2):
            return _decimal(column, modes)
        return {"type": _INTEGERS[storage]}, int.__repr__
    if storage is Storage.DOUBLE and column.scale < 0:
        return _dialect_1_numeric(column, modes)
    if storage is Storage.DOUBLE:
        return {"type": "double"}, encode_double
    if storage is Storage.FLOAT:
        return {"type": "float"}, encode_float
    if storage is Storage.BOOLEAN:
        return {"type": "boolean"}, encode_boolean
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        return _text(column, modes)
    if storage is Storage.OCTETS:
        return _binary(modes)
    if storage is Storage.BLOB:
        is_text = column.sub_type == 1 and column.charset_id != OCTETS
        return _text_blob(column, modes) if is_text else _binary_blob(modes)
    if storage in (Storage.DECFLOAT16, Storage.DECFLOAT34):
        return _decfloat(modes)
    return _temporal(storage, modes)


_INTEGERS = {
    Storage.SMALLINT: "int16",
    Storage.INTEGER: "int32",
    Storage.BIGINT: "int64",
    Storage.INT128: "bytes",
}


# Plain values (5.1)


def encode_boolean(value: Any) -> str:
    """``true`` or ``false``."""
    return "true" if value else "false"


def encode_double(value: float) -> str:
    """The shortest decimal that reads back as the same double. NaN and infinities: BadValue."""
    if isfinite(value):
        return repr(value)
    raise BadValue(f"{value} cannot be written as a JSON number")


def encode_float(value: float) -> str:
    """The shortest decimal that reads back as the same 32-bit float."""
    if not isfinite(value):
        raise BadValue(f"{value} cannot be written as a JSON number")
    for digits in (6, 7, 8):
        text = f"{value:.{digits}g}"
        if struct.unpack("<f", struct.pack("<f", float(text)))[0] == value:
            return repr(float(text))
    return repr(float(f"{value:.9g}"))


def _codec(column: Column, modes: ValueModes) -> str | None:
    return modes.charset_none if column.charset_id == NONE else codec_of(column.charset_id)


def _text(column: Column, modes: ValueModes) -> tuple[Schema, Encoder] | None:
    if _codec(column, modes) is None:
        return None
    placeholder = quote(placeholder_text(modes.placeholder))

    def encode(value: Any) -> str:
        # The reader hands over an Undecodable where the charset doesn't fit the bytes.
        return quote(value) if type(value) is str else placeholder

    return {"type": "string"}, encode


# Decimals (5.3)


def unscaled_base64(value: int) -> str:
    """JSON text of a Connect Decimal: base64 of the shortest big-endian two's complement."""
    bits = value.bit_length() if value >= 0 else (~value).bit_length()
    return f'"{b64encode(value.to_bytes(bits // 8 + 1, "big", signed=True)).decode("ascii")}"'


def plain_decimal(unscaled: int, scale: int) -> str:
    """Plain notation with SCALE digits behind the point."""
    if scale <= 0:
        return str(unscaled * 10**-scale)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _decimal(column: Column, modes: ValueModes) -> tuple[Schema, Encoder]:
    scale = -column.scale
    if modes.decimal == "string":
        return {"type": "string"}, lambda value: f'"{plain_decimal(value, scale)}"'
    if modes.decimal == "double":
        divisor = 10**scale
        return {"type": "double"}, lambda value: repr(value / divisor)
    return _decimal_schema(column), unscaled_base64


def _decimal_schema(column: Column) -> Schema:
    precision = column.precision or _FULL_PRECISION[column.storage]
    return {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {
            "scale": str(-column.scale),
            "connect.decimal.precision": str(precision),
        },
    }


def _dialect_1_numeric(column: Column, modes: ValueModes) -> tuple[Schema, Encoder]:
    """A NUMERIC that dialect 1 keeps in a double: a decimal for the user all the same."""
    scale = -column.scale
    schema, encode_unscaled = _decimal(column, modes)

    def encode(value: float) -> str:
        if not isfinite(value):
            raise BadValue(f"{value} cannot be written as a NUMERIC of scale {scale}")
        return encode_unscaled(round(Decimal(repr(value)).scaleb(scale)))

    return schema, encode


_DECFLOAT_SCHEMA: Schema = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "version": 1,
    "fields": [
        {"type": "int32", "optional": False, "field": "scale"},
        {"type": "bytes", "optional": False, "field": "value"},
    ],
}


def _decfloat(modes: ValueModes) -> tuple[Schema, Encoder]:
    if modes.decimal == "string":
        return {"type": "string"}, lambda value: f'"{decode_decfloat(value)}"'
    if modes.decimal == "double":
        return {"type": "double"}, _decfloat_double
    return _DECFLOAT_SCHEMA, _decfloat_struct


def _decfloat_double(raw: bytes) -> str:
    value = decode_decfloat(raw)
    if not value.is_finite():
        raise BadValue(
            f"DECFLOAT {value} cannot be written as a JSON number;"
            " decimal.handling.mode: string can carry it"
        )
    return encode_double(float(value))


def _decfloat_struct(raw: bytes) -> str:
    value = decode_decfloat(raw)
    if not value.is_finite():
        raise BadValue(
            f"DECFLOAT {value} has no precise form; decimal.handling.mode: string can carry it"
        )
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)) or "0")
    return f'{{"scale":{-exponent},"value":{unscaled_base64(-unscaled if sign else unscaled)}}}'


# Binary values (5.4) and what cannot be read (5.5)


def placeholder_bytes(placeholder: str) -> bytes:
    """The placeholder as bytes; ``hex:`` in front means hexadecimal digits."""
    if placeholder.startswith("hex:"):
        return bytes.fromhex(placeholder[4:])
    return placeholder.encode()


def placeholder_text(placeholder: str) -> str:
    """The placeholder as text."""
    return placeholder_bytes(placeholder).decode("utf-8", "replace")


_BINARY_ENCODERS: dict[str, Encoder] = {
    "bytes": lambda value: f'"{b64encode(value).decode("ascii")}"',
    "base64": lambda value: f'"{b64encode(value).decode("ascii")}"',
    "base64-url-safe": lambda value: f'"{urlsafe_b64encode(value).decode("ascii")}"',
    "hex": lambda value: f'"{value.hex()}"',
}


def _binary(modes: ValueModes) -> tuple[Schema, Encoder]:
    kind = "bytes" if modes.binary == "bytes" else "string"
    return {"type": kind}, _BINARY_ENCODERS[modes.binary]


def _refuse_oversized(blob: Blob, modes: ValueModes) -> None:
    if blob.length > modes.max_bytes:
        raise BadValue(
            f"a blob of {blob.length} bytes does not fit into a message of {modes.max_bytes}"
            " bytes; raise kafka.producer.max.request.size"
        )


def _binary_blob(modes: ValueModes) -> tuple[Schema, Encoder]:
    schema, encode_bytes = _binary(modes)
    missing = encode_bytes(placeholder_bytes(modes.placeholder))

    def encode(blob: Blob) -> str:
        if not blob.available:
            return missing
        _refuse_oversized(blob, modes)
        return encode_bytes(blob.read())

    return schema, encode


def _text_blob(column: Column, modes: ValueModes) -> tuple[Schema, Encoder] | None:
    codec = _codec(column, modes)
    if codec is None:
        return None
    missing = quote(placeholder_text(modes.placeholder))

    def encode(blob: Blob) -> str:
        if not blob.available:
            return missing
        _refuse_oversized(blob, modes)
        try:
            return quote(blob.read().decode(codec))
        except UnicodeDecodeError:
            return missing

    return {"type": "string"}, encode


def _unknown() -> tuple[Schema, Encoder]:
    """A column that can't be decoded, as the bytes it has in the journal."""

    def encode(value: Any) -> str:
        if isinstance(value, Blob):
            content = value.read()
        else:
            content = value.raw if isinstance(value, Undecodable) else value
        return f'"{b64encode(content).decode("ascii")}"'

    return {"type": "bytes"}, encode


# Dates and times (5.2)


def _semantic(literal: str, name: str) -> Schema:
    return {"type": literal, "name": name, "version": 1}


def iso_date(day: int) -> str:
    """``2026-03-02`` for Firebird's day number; beyond the years 1 to 9999 with a sign.

    A value with a time zone can lie there in UTC: the last hours of 9999 in a zone west of it.
    """
    ordinal = day + _ORDINAL_OF_DAY_0
    if 1 <= ordinal <= _LAST_ORDINAL:
        return date.fromordinal(ordinal).isoformat()
    cycles, rest = divmod(ordinal - 1, _DAYS_OF_400_YEARS)
    inside = date.fromordinal(rest + 1)
    year = inside.year + 400 * cycles
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{inside.month:02}-{inside.day:02}"


def iso_time(units: int) -> str:
    """``09:14:07.1234`` for 1/10000 s since midnight; no fraction where it is zero."""
    seconds, fraction = divmod(units, 10_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02}:{minute:02}:{second:02}"
    return f"{text}.{fraction:04}".rstrip("0") if fraction else text


def iso_timestamp(units: int) -> str:
    """``2026-03-02T09:14:07.1234`` for 1/10000 s since 1858-11-17."""
    day, time = divmod(units, _UNITS_PER_DAY)
    return f"{iso_date(day)}T{iso_time(time)}"


_ZONED: dict[Storage, tuple[Schema, Encoder]] = {
    Storage.TIME_TZ: (
        _semantic("string", "io.debezium.time.ZonedTime"),
        lambda raw: f'"{iso_time(int.from_bytes(raw[:4], "little"))}Z"',
    ),
    Storage.TIMESTAMP_TZ: (
        _semantic("string", "io.debezium.time.ZonedTimestamp"),
        lambda raw: f'"{iso_timestamp(int.from_bytes(raw[:8], "little", signed=True))}Z"',
    ),
}

_ADAPTIVE: dict[Storage, tuple[Schema, Encoder]] = {
    Storage.DATE: (
        _semantic("int32", "io.debezium.time.Date"),
        lambda day: int.__repr__(day - _UNIX_DAY),
    ),
    Storage.TIME: (
        _semantic("int64", "io.debezium.time.MicroTime"),
        lambda units: int.__repr__(units * 100),
    ),
    Storage.TIMESTAMP: (
        _semantic("int64", "io.debezium.time.MicroTimestamp"),
        lambda units: int.__repr__((units - _UNIX_UNITS) * 100),
    ),
}

_CONNECT: dict[Storage, tuple[Schema, Encoder]] = {
    Storage.DATE: (
        _semantic("int32", "org.apache.kafka.connect.data.Date"),
        lambda day: int.__repr__(day - _UNIX_DAY),
    ),
    Storage.TIME: (
        _semantic("int32", "org.apache.kafka.connect.data.Time"),
        lambda units: int.__repr__(units // 10),
    ),
    Storage.TIMESTAMP: (
        _semantic("int64", "org.apache.kafka.connect.data.Timestamp"),
        lambda units: int.__repr__((units - _UNIX_UNITS) // 10),
    ),
}

_ISO: dict[Storage, tuple[Schema, Encoder]] = {
    Storage.DATE: (
        _semantic("string", "io.debezium.time.IsoDate"),
        lambda day: f'"{iso_date(day)}"',
    ),
    Storage.TIME: (
        _semantic("string", "io.debezium.time.IsoTime"),
        lambda units: f'"{iso_time(units)}"',
    ),
    Storage.TIMESTAMP: (
        _semantic("string", "io.debezium.time.IsoTimestamp"),
        lambda units: f'"{iso_timestamp(units)}"',
    ),
}

_TEMPORAL = {
    "adaptive": _ADAPTIVE,
    "adaptive_time_microseconds": _ADAPTIVE,
    "connect": _CONNECT,
    "isostring": _ISO,
}


def _temporal(storage: Storage, modes: ValueModes) -> tuple[Schema, Encoder] | None:
    return _ZONED.get(storage) or _TEMPORAL[modes.time].get(storage)
