"""Values of a column's former type as the engine shows them in its type of now.

An ALTER TABLE changes no record: the engine converts what was written before whenever it reads it.
`converter` does the same to the values of journals. What it does was learned from Firebird 5.0.4
(tests/spark/test_state_points.py asks it again); conversions that ALTER refuses are not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from firebird_cdc.journal.format import Column, Storage, Undecodable
from firebird_cdc.journal.format.charsets import codec_of
from firebird_cdc.journal.types.decfloat import decode_decfloat
from firebird_cdc.journal.types.names import is_text_blob
from firebird_cdc.journal.types.numbers import (
    ORDINAL_OF_DAY_0,
    TIME_TZ,
    TIMESTAMP_TZ,
    UNITS_PER_DAY,
    iso_date,
    plain_decimal,
)

Convert = Callable[[Any], Any]


class Unknown:
    """The class of `UNKNOWN`; one object in every process."""

    def __reduce__(self) -> str:
        return "UNKNOWN"

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()
"""Stands for a value that the engine has and the journals do not tell."""

_INTEGERS = frozenset({Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128})
_FLOATS = frozenset({Storage.FLOAT, Storage.DOUBLE})
_DECFLOATS = frozenset({Storage.DECFLOAT16, Storage.DECFLOAT34})
_TEXTS = frozenset({Storage.TEXT, Storage.PADDED_TEXT})
_CHAR = 452  # sql_type of a CHAR; VARCHAR is 448
_EXACT = Context(prec=100)  # digits, of which that of Python's own has 28
_UTC_ZONE = 1439  # zone numbers up to twice that are minutes east of UTC plus it


def converter(of: Column, to: Column) -> Convert | None:
    """Return what makes a value of column OF into one of column TO, None if there is no such ALTER.

    Values are as `JournalReader` yields them, never None; a DECFLOAT may come out as a Decimal.
    """
    convert = _converter(of, to)
    if convert is None:
        return None
    return lambda value: value if isinstance(value, Undecodable) else convert(value)


def _converter(of: Column, to: Column) -> Convert | None:
    if of.storage in _INTEGERS:
        return _of_number(of.scale, to)
    if of.storage in _FLOATS:
        return _of_float(of, to)
    if of.storage in _DECFLOATS:
        if to.storage in _DECFLOATS:
            return _decimal_of
        return _fitted(lambda value: str(_decimal_of(value)), to)
    if of.storage in _TEXTS and to.storage in _TEXTS:
        return _of_text(of, to)
    if of.storage is Storage.OCTETS and to.storage is Storage.OCTETS:
        return lambda value: _padded_bytes(value, to)
    return _of_time(of, to)


def _of_number(scale: int, to: Column) -> Convert | None:
    if to.storage in _INTEGERS:
        places = scale - to.scale
        if places >= 0:
            factor = 10**places
            return lambda value: value * factor
        return lambda value: _rounded(value, 10**-places)
    if to.storage in _FLOATS:
        if scale >= 0:
            return lambda value: float(value * 10**scale)
        return lambda value: value / 10**-scale
    if to.storage in _DECFLOATS:
        return lambda value: Decimal(f"{value}E{scale}")
    return _fitted(lambda value: plain_decimal(value, -scale), to)


def _rounded(value: int, divisor: int) -> int:
    """Divide as the engine does: halves away from zero."""
    whole, rest = divmod(abs(value), divisor)
    whole += 2 * rest >= divisor
    return -whole if value < 0 else whole


def _of_float(of: Column, to: Column) -> Convert | None:
    if of.storage is Storage.FLOAT and to.storage is Storage.DOUBLE and not to.scale:
        return lambda value: value
    if to.storage in _DECFLOATS:
        return lambda value: Decimal(f"{value:#.17g}")
    digits = 8 if of.storage is Storage.FLOAT else 16
    return _fitted(lambda value: f"{value:#.{digits}g}", to)


def _decimal_of(value: bytes | Decimal) -> Decimal:
    return decode_decfloat(value) if isinstance(value, bytes) else value


def _fitted(convert: Callable[[Any], str], to: Column) -> Convert | None:
    """Return a conversion to text, as the column TO keeps it; None if TO keeps none."""
    if to.storage is Storage.TEXT:
        return convert
    if to.storage is Storage.PADDED_TEXT:
        return lambda value: convert(value).ljust(to.char_length)
    return None


def _of_text(of: Column, to: Column) -> Convert:
    size = to.char_length
    if to.storage is Storage.PADDED_TEXT:
        return lambda value: value.rstrip(" ").ljust(size)
    if of.storage is Storage.TEXT:
        return lambda value: value
    # A CHAR fills its bytes with blanks, and all of them go into a VARCHAR that has room.
    codec = codec_of(of.charset_id) or "utf-8"

    def convert(value: str) -> str:
        text = value.rstrip(" ")
        room = of.length - len(text.encode(codec))
        return (text + " " * max(room, 0))[:size]

    return convert


def _padded_bytes(value: bytes, to: Column) -> bytes:
    return value.ljust(to.length, b"\0") if to.sql_type & ~1 == _CHAR else value


def _of_time(of: Column, to: Column) -> Convert | None:
    pair = (of.storage, to.storage)
    if pair == (Storage.DATE, Storage.TIMESTAMP):
        return lambda value: value * UNITS_PER_DAY
    if pair == (Storage.TIMESTAMP, Storage.DATE):
        return lambda value: value // UNITS_PER_DAY
    if pair == (Storage.TIMESTAMP, Storage.TIME):
        return lambda value: value % UNITS_PER_DAY
    if of.storage is Storage.DATE:
        return _fitted(iso_date, to)
    if of.storage is Storage.TIME:
        return _fitted(_time_text, to)
    if of.storage is Storage.TIMESTAMP:
        return _fitted(_timestamp_text, to)
    return None


def _time_text(units: int) -> str:
    seconds, fraction = divmod(units, 10_000)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:04}"


def _timestamp_text(units: int) -> str:
    days, rest = divmod(units, UNITS_PER_DAY)
    return f"{iso_date(days)} {_time_text(rest)}"


# Defaults: literals only. What a context variable or a word such as 'NOW' was at the time of the
# ALTER, the engine keeps and nobody else.

_LITERAL = re.compile(
    r"""\s*(?:DEFAULT\b|=)?\s*(?:
      (?P<null>NULL) | (?P<true>TRUE) | (?P<false>FALSE)
      | (?:(?:DATE|TIME|TIMESTAMP)\s*|_\w+\s*)?(?P<text>'(?:[^']|'')*')
      | x(?P<hex>'[0-9a-f\s]*')
      | (?P<number>[+-]?\s*(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)
    )\s*""",
    re.VERBOSE | re.IGNORECASE,
)
_DATE = re.compile(r"\s*(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})\s*")
_TIME = re.compile(r"\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:[.,](\d{1,4}))?)?\s*")
_OFFSET = re.compile(r"\s*([+-])(\d{1,2})(?::(\d{2}))?\s*")


def default_value(text: str, column: Column) -> Any:
    """Return what the default TEXT gives in COLUMN, as `JournalReader` would yield it, or UNKNOWN.

    text: that of the catalogue, with or without the word DEFAULT; a text BLOB's comes as str, a
    DECFLOAT's as Decimal.
    """
    found = _LITERAL.fullmatch(text)
    if found is None:
        return UNKNOWN
    if found["null"]:
        return None
    if found["true"] or found["false"]:
        return bool(found["true"]) if column.storage is Storage.BOOLEAN else UNKNOWN
    if found["hex"] is not None:
        raw = bytes.fromhex(found["hex"].strip("'"))
        return _padded_bytes(raw, column) if column.storage is Storage.OCTETS else UNKNOWN
    if found["number"] is not None:
        literal = re.sub(r"\s", "", found["number"])
    else:
        literal = found["text"][1:-1].replace("''", "'")
    try:
        return _of_literal(literal, column)
    except (ValueError, InvalidOperation):
        return UNKNOWN


def _of_literal(literal: str, column: Column) -> Any:
    storage = column.storage
    if storage in _INTEGERS:
        scaled = Decimal(literal.strip()).scaleb(-column.scale, _EXACT)
        return int(scaled.to_integral_value(ROUND_HALF_UP))
    if storage in _FLOATS:
        return float(literal)
    if storage in _DECFLOATS:
        return Decimal(literal.strip())
    if storage is Storage.BOOLEAN:
        return {"true": True, "false": False}.get(literal.strip().lower(), UNKNOWN)
    if storage is Storage.TEXT or is_text_blob(column):
        return literal
    if storage is Storage.PADDED_TEXT:
        return literal.ljust(column.char_length)
    if storage is Storage.OCTETS:
        return _padded_bytes(literal.encode(), column)
    if storage is Storage.DATE:
        return _day(literal)
    if storage is Storage.TIME:
        return _units(literal)
    if storage is Storage.TIMESTAMP:
        day, _, rest = literal.strip().partition(" ")
        return _day(day) * UNITS_PER_DAY + (_units(rest) if rest else 0)
    if storage in (Storage.TIME_TZ, Storage.TIMESTAMP_TZ):
        return _zoned(literal.strip(), storage)
    return UNKNOWN


def _day(text: str) -> int:
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    first, separator, second, third = found.groups()
    if separator == "." and len(first) < 3:
        year, month, day = third, second, first
    elif separator == "/" and len(first) < 3:
        year, month, day = third, first, second
    else:
        year, month, day = first, second, third
    if len(year) < 4:
        raise ValueError(text)
    return date(int(year), int(month), int(day)).toordinal() - ORDINAL_OF_DAY_0


def _units(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hour, minute, second, fraction = found.groups()
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    if seconds >= 86_400:
        raise ValueError(text)
    return seconds * 10_000 + int((fraction or "0").ljust(4, "0"))


def _zoned(text: str, storage: Storage) -> bytes:
    """Return a value with the zone given as an offset; one with a name or without raises."""
    body, sign, offset = text.rpartition("+") if "+" in text else text.rpartition(" -")
    found = _OFFSET.fullmatch(("+" if sign == "+" else "-") + offset)
    if found is None or not body:
        raise ValueError(text)
    minutes = int(found[2]) * 60 + int(found[3] or 0)
    minutes = -minutes if found[1] == "-" else minutes
    zone = minutes + _UTC_ZONE
    shift = minutes * 600_000
    if storage is Storage.TIME_TZ:
        return TIME_TZ.pack((_units(body) - shift) % UNITS_PER_DAY, zone)
    day, _, rest = body.strip().partition(" ")
    return TIMESTAMP_TZ.pack(
        _day(day) * UNITS_PER_DAY + (_units(rest) if rest else 0) - shift, zone
    )
