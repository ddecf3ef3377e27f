"""Defaults of columns: the literal of one, as a value of its column.

A definition has the default as the engine has compiled it (its BLR), which tells a literal from
what is worked out for each row, and in which character set a text is. Only literals have a value
that stays: ``CURRENT_TIMESTAMP``, ``USER``, ``'NOW'`` and NULL have none here. Where the engine
would round, guess or need a session to make the literal one of the column's type, there is none
either: no default is better than a wrong one.

Source: Firebird's ``blr.h``, ``LiteralNode::genConstant`` in its ``ExprNodes.cpp``, ``cvt.cpp``.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from math import isfinite
from typing import Literal, TypeAlias

from firebird_cdc.journal.events.values import BadValue, FieldForm, ValueModes
from firebird_cdc.journal.format import Blob, Column, Storage, Value
from firebird_cdc.journal.format.charsets import NONE, OCTETS, codec_of
from firebird_cdc.journal.types.decfloat import encode_decfloat
from firebird_cdc.journal.types.names import is_text_blob
from firebird_cdc.journal.types.numbers import (
    ORDINAL_OF_DAY_0,
    TIME_TZ,
    TIMESTAMP_TZ,
    UNITS_PER_DAY,
)

_VERSIONS = (4, 5)
# Codes of BLR. Integers are a scale and two, four or eight bytes.
_LITERAL, _NEGATE, _END = 21, 38, 76
_DOUBLE, _DEC64, _DEC128, _INT128 = 27, 24, 25, 26
_TEXT, _TEXT_WITH_CHARSET = 14, 15
_DATE, _TIME, _TIMESTAMP = 12, 13, 35
_TIME_TZ, _TIMESTAMP_TZ = 28, 29
_BOOLEAN = 23

_INTEGERS = {
    7: struct.Struct("<bh"),
    8: struct.Struct("<bi"),
    16: struct.Struct("<bq"),
}
_NUMBERS: dict[int, Literal["exact", "decfloat", "double"]] = {
    _DOUBLE: "double",
    _DEC64: "decfloat",
    _DEC128: "decfloat",
    _INT128: "exact",
}
_U16 = struct.Struct("<H")
_DYNAMIC = 127  # the character set of whoever is attached

_CHAR = 452
_UTC = 1439
"""The id of the zone that is no minutes east of UTC; those around it are of the other offsets."""

_BITS = {
    Storage.SMALLINT: 16,
    Storage.INTEGER: 32,
    Storage.BIGINT: 64,
    Storage.INT128: 128,
}
_DIGITS = 60  # more than any literal has that a column takes


class _NoLiteral(Exception):
    """A default is no literal, or none that its column holds as it is."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A number, and what it is for the engine; only exact ones are rounded as ``decimal`` does."""

    value: Decimal
    kind: Literal["exact", "decfloat", "double", "text"]


@dataclass(frozen=True, slots=True)
class _Text:
    raw: bytes
    charset_id: int


@dataclass(frozen=True, slots=True)
class _Moment:
    """Days, units of 1/10000 s, and the zone: each None if the literal has none of it."""

    day: int | None
    units: int | None
    zone: int | None = None


_Literal: TypeAlias = _Number | _Text | _Moment | bool


def with_default(column: Column, form: FieldForm, modes: ValueModes) -> FieldForm:
    """Return FORM with the default of COLUMN in its schema, if that is a literal.

    A field that may be null gets none: Kafka Connect's ``JsonConverter`` reads an explicit null
    as the default. Nor does one whose values its own code makes, nor one that is hashed, nor a
    struct: ``JsonConverter`` refuses a schema with the default of one, and Debezium's JDBC sink
    stops at it, with Avro too.
    """
    schema = form.schema
    if column.nullable or schema.optional or not form.tells_default or schema.type == "struct":
        return form
    value = literal_value(column, modes.charset_none)
    if value is None:
        return form
    try:
        default = form.function()(value)
    except BadValue:
        return form
    return replace(form, schema=replace(schema, default=default))


@lru_cache(maxsize=4096)
def literal_value(column: Column, charset_none: str) -> Value:
    """Return the default of COLUMN as a row has it; None if it has none, or no literal.

    ``charset_none``: the codec of texts in character set NONE.
    """
    if column.default is None:
        return None
    try:
        return _fitted(_parse(column.default), column, charset_none)
    except (_NoLiteral, struct.error, ValueError, IndexError, ArithmeticError):
        return None


# What the engine has compiled


def _parse(blr: bytes) -> _Literal:
    """Return the literal that BLR is. Raises _NoLiteral, struct.error or IndexError."""
    if len(blr) < 3 or blr[0] not in _VERSIONS:
        raise _NoLiteral
    at = 1
    is_negated = blr[at] == _NEGATE
    at += is_negated
    if blr[at] != _LITERAL:
        raise _NoLiteral
    literal, at = _parse_constant(blr, at + 1)
    if blr[at:] != bytes([_END]):
        raise _NoLiteral
    if not is_negated:
        return literal
    if not isinstance(literal, _Number):
        raise _NoLiteral
    return replace(literal, value=literal.value.copy_negate())


def _parse_constant(blr: bytes, at: int) -> tuple[_Literal, int]:
    """Return the literal at AT, behind the code of one, and the offset after it."""
    kind = blr[at]
    at += 1
    if kind in _INTEGERS:
        scale, number = _INTEGERS[kind].unpack_from(blr, at)
        return _Number(Decimal(number).scaleb(scale), "exact"), at + _INTEGERS[kind].size
    if kind in _NUMBERS:
        at += kind == _INT128  # its scale, which its text has as well
        text, at = _counted(blr, at)
        return _Number(_decimal(text.decode("ascii")), _NUMBERS[kind]), at
    if kind in (_TEXT, _TEXT_WITH_CHARSET):
        charset_id = _DYNAMIC
        if kind == _TEXT_WITH_CHARSET:
            charset_id = _U16.unpack_from(blr, at)[0] & 0xFF  # above it is the collation
            at += _U16.size
        text, at = _counted(blr, at)
        return _Text(text, charset_id), at
    if kind == _BOOLEAN:
        return bool(blr[at]), at + 1
    if kind in _MOMENTS:
        layout, make = _MOMENTS[kind]
        return make(*layout.unpack_from(blr, at)), at + layout.size
    raise _NoLiteral


_MOMENTS: dict[int, tuple[struct.Struct, Callable[..., _Moment]]] = {
    _DATE: (struct.Struct("<i"), lambda day: _Moment(day, None)),
    _TIME: (struct.Struct("<I"), lambda units: _Moment(None, units)),
    _TIMESTAMP: (struct.Struct("<iI"), _Moment),
    _TIME_TZ: (struct.Struct("<IH"), lambda units, zone: _Moment(None, units, zone)),
    _TIMESTAMP_TZ: (struct.Struct("<iIH"), _Moment),
}


def _counted(blr: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _U16.unpack_from(blr, at)
    at += _U16.size
    if at + length > len(blr):
        raise _NoLiteral
    return blr[at : at + length], at + length


_NUMBER = re.compile(r" *([+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?) *", re.ASCII)


def _decimal(text: str) -> Decimal:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise _NoLiteral
    return Decimal(found[1])


# As a value of the column


def _fitted(literal: _Literal, column: Column, charset_none: str) -> Value:
    """Return LITERAL as a row of COLUMN has it. Raises _NoLiteral if it holds another value."""
    storage = column.storage
    if storage in _BITS:
        return _integer(literal, column)
    if storage in (Storage.FLOAT, Storage.DOUBLE):
        return _float(literal, storage)
    if storage in (Storage.DECFLOAT16, Storage.DECFLOAT34):
        return _decfloat(literal, 8 if storage is Storage.DECFLOAT16 else 16)
    if storage is Storage.BOOLEAN:
        return _boolean(literal)
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        return _text(literal, column, charset_none)
    if storage is Storage.OCTETS:
        return _octets(literal, column)
    if storage is Storage.BLOB:
        return _blob(literal, column, charset_none)
    return _moment(literal, storage)


def _number(literal: _Literal) -> _Number:
    """Return the number that LITERAL is, or that it has the digits of."""
    if isinstance(literal, _Text):
        return _Number(_decimal(_ascii(literal)), "text")
    if isinstance(literal, _Number):
        return literal
    raise _NoLiteral


def _integer(literal: _Literal, column: Column) -> int:
    number = _number(literal)
    unscaled = number.value.scaleb(-column.scale, Context(prec=_DIGITS))
    rounded = unscaled.to_integral_value(ROUND_HALF_UP)
    if rounded != unscaled and number.kind != "exact":
        raise _NoLiteral
    value = int(rounded)
    # The engine multiplies doubles as such, and takes those for INT128 apart in a way of its own.
    if number.kind == "double" and (
        column.storage is Storage.INT128 or abs(value) >= _SURE_OF_DOUBLES
    ):
        raise _NoLiteral
    bits = _BITS[column.storage]
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _NoLiteral
    return value


_SURE_OF_DOUBLES = 10**14
"""Below, a decimal times a power of ten is nearer to its own integer than to others."""


def _float(literal: _Literal, storage: Storage) -> float:
    value = _double(_number(literal))
    if storage is Storage.FLOAT:
        try:
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        except OverflowError:
            raise _NoLiteral from None
    if not isfinite(value):
        raise _NoLiteral
    return value


def _double(number: _Number) -> float:
    """Return NUMBER as a double, if it is as near to it as any, for the engine as well."""
    sign, digits, exponent = number.value.as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    if sign and not coefficient:  # for the engine -0.0 is 0, and -0e0 is not
        raise _NoLiteral
    # The engine divides what it has rounded; its own conversion of texts is right.
    rounds_once = coefficient <= 1 << 53 and -exponent <= _EXACT_POWERS
    is_right = rounds_once or (exponent == 0 and coefficient < 1 << 63)
    is_decimal = number.kind in ("exact", "decfloat")
    if not is_right and (is_decimal or len(digits) > _DIGITS_OF_DOUBLE):
        raise _NoLiteral
    value = float(number.value)
    if coefficient and abs(value) < sys.float_info.min:  # where the engine has zero, or an error
        raise _NoLiteral
    return value


_EXACT_POWERS, _DIGITS_OF_DOUBLE = 22, 17
"""Powers of ten up to that are doubles themselves; so many digits tell every double."""


def _decfloat(literal: _Literal, size: int) -> bytes:
    number = _number(literal)
    raw = None if number.kind == "double" else encode_decfloat(number.value, size)
    if raw is None:
        raise _NoLiteral
    return raw


def _boolean(literal: _Literal) -> bool:
    if isinstance(literal, bool):
        return literal
    if isinstance(literal, _Text) and (text := _ascii(literal).strip(" ").lower()) in _BOOLEANS:
        return _BOOLEANS[text]
    raise _NoLiteral


_BOOLEANS = {"true": True, "false": False}


def _ascii(text: _Text) -> str:
    try:
        return text.raw.decode("ascii")
    except UnicodeDecodeError:
        raise _NoLiteral from None


def _is_plain(text: _Text) -> bool:
    """Tell whether every character set has the same bytes for TEXT."""
    return text.raw.isascii()


def _decoded(literal: _Literal, charset_id: int, charset_none: str) -> str:
    """Return the text that LITERAL becomes in the character set of a column."""
    own = charset_none if charset_id == NONE else codec_of(charset_id)
    if own is None:
        raise _NoLiteral
    if isinstance(literal, _Number):
        return _written(literal)
    if isinstance(literal, bool):
        return "TRUE" if literal else "FALSE"
    if not isinstance(literal, _Text):
        raise _NoLiteral
    if _is_plain(literal):
        return _ascii(literal)
    # From or to NONE, and from OCTETS, bytes are taken over as they are.
    if charset_id == NONE or literal.charset_id in (NONE, OCTETS, charset_id):
        return literal.raw.decode(own)
    foreign = codec_of(literal.charset_id)
    if foreign is None:  # that of whoever inserts, or unknown here
        raise _NoLiteral
    text = literal.raw.decode(foreign)
    text.encode(own)
    return text


def _written(number: _Number) -> str:
    """Return NUMBER as the engine writes it into a text."""
    if number.kind != "exact":
        raise _NoLiteral
    return f"{number.value:f}"


def _text(literal: _Literal, column: Column, charset_none: str) -> str:
    text = _decoded(literal, column.charset_id, charset_none)
    longest = column.char_length
    if column.charset_id == NONE:  # its length is in bytes, whatever they stand for
        longest -= len(text.encode(charset_none)) - len(text)
    if len(text) > longest:
        if text[max(longest, 0) :].strip(" "):
            raise _NoLiteral
        text = text[:longest]
    return text.ljust(longest) if column.storage is Storage.PADDED_TEXT else text


def _octets(literal: _Literal, column: Column) -> bytes:
    if not isinstance(literal, _Text) or not (_is_plain(literal) or literal.charset_id != _DYNAMIC):
        raise _NoLiteral
    if len(literal.raw) > column.length:
        raise _NoLiteral
    is_padded = column.sql_type == _CHAR
    return literal.raw.ljust(column.length, b"\0") if is_padded else literal.raw


def _blob(literal: _Literal, column: Column, charset_none: str) -> Blob:
    if not isinstance(literal, _Text):
        raise _NoLiteral
    if is_text_blob(column) and column.charset_id != OCTETS:
        codec = charset_none if column.charset_id == NONE else codec_of(column.charset_id)
        content = _decoded(literal, column.charset_id, charset_none).encode(codec or "ascii")
    elif _is_plain(literal) or literal.charset_id != _DYNAMIC:
        content = literal.raw
    else:
        raise _NoLiteral
    return Blob(0, True, None, (), content)


# Dates and times


_CALENDARS = (
    re.compile(r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})", re.ASCII),
    re.compile(r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})", re.ASCII),
    re.compile(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})", re.ASCII),
)
_CLOCK = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(:(?P<second>\d{1,2})(\.(?P<part>\d{1,4}))?)?"
    r"( *(?P<sign>[+-])(?P<hours>\d{1,2}):(?P<minutes>\d{2}))?",
    re.ASCII,
)


def _moment(literal: _Literal, storage: Storage) -> Value:
    """Return LITERAL as a date or a time. Raises _NoLiteral, also for any other storage."""
    is_text = isinstance(literal, _Text)
    moment = _moment_in(_ascii(literal)) if isinstance(literal, _Text) else literal
    if not isinstance(moment, _Moment):
        raise _NoLiteral
    day, units, zone = moment.day, moment.units, moment.zone
    # In UTC it may be a day before the first one, of which the engine makes another.
    if (day is not None and day not in _DAYS) or (units or 0) >= UNITS_PER_DAY:
        raise _NoLiteral
    if (zone is not None) is not (storage in _WITH_ZONE):  # the session's zone decides
        raise _NoLiteral
    if storage is Storage.DATE and day is not None and not (is_text and units is not None):
        return day
    if storage is Storage.TIME and units is not None and day is None:
        return units
    if storage is Storage.TIMESTAMP and day is not None:
        return day * UNITS_PER_DAY + (units or 0)
    if storage is Storage.TIME_TZ and units is not None and day is None:
        return TIME_TZ.pack(units, zone)
    if storage is Storage.TIMESTAMP_TZ and day is not None and units is not None:
        return TIMESTAMP_TZ.pack(day * UNITS_PER_DAY + units, zone)
    raise _NoLiteral


_DAYS = range(date.min.toordinal() - ORDINAL_OF_DAY_0, date.max.toordinal() - ORDINAL_OF_DAY_0 + 1)
_WITH_ZONE = (Storage.TIME_TZ, Storage.TIMESTAMP_TZ)


def _moment_in(text: str) -> _Moment:
    """Return the date and the time in TEXT, in UTC if an offset follows.

    Raises _NoLiteral for any other text, ``NOW`` and names of zones among them, and ValueError.
    """
    text = text.strip(" ")
    found = next(filter(None, (calendar.match(text) for calendar in _CALENDARS)), None)
    day = None
    if found is not None:
        year, month, number = (int(found[part]) for part in ("year", "month", "day"))
        day = date(year, month, number).toordinal() - ORDINAL_OF_DAY_0
        rest = text[found.end() :]
        text = rest.lstrip(" ")
        if not text:
            return _Moment(day, None)
        if rest == text:
            raise _NoLiteral
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        raise _NoLiteral
    hour, minute, second = (int(clock[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise _NoLiteral
    units = ((hour * 60 + minute) * 60 + second) * 10_000 + int(
        (clock["part"] or "0").ljust(4, "0")
    )
    if clock["sign"] is None:
        return _Moment(day, units)
    offset = int(clock["hours"]) * 60 + int(clock["minutes"])
    if int(clock["hours"]) > 13 or int(clock["minutes"]) > 59:
        raise _NoLiteral
    offset = -offset if clock["sign"] == "-" else offset
    days, units = divmod(units - offset * 600_000, UNITS_PER_DAY)
    return _Moment(None if day is None else day + days, units, _UTC + offset)
