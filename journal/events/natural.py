"""Column values as Python's own types: what a converter of the user's is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from firebird_cdc.journal.events.values import BadValue, TooLarge, ValueModes, field_form
from firebird_cdc.journal.format import Blob, Column, Storage
from firebird_cdc.journal.types.arrays import decode_array
from firebird_cdc.journal.types.decfloat import decode_decfloat
from firebird_cdc.journal.types.names import is_decimal
from firebird_cdc.journal.types.numbers import plain_decimal, shortest_float

Natural = Callable[[Any], Any]

_DAY_0 = datetime(1858, 11, 17)
_ORDINAL_OF_DAY_0 = _DAY_0.toordinal()
_UNIT_US = 100
_AS_IT_IS = frozenset(
    {Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128, Storage.DOUBLE}
    | {Storage.BOOLEAN}
)


def natural(column: Column, modes: ValueModes) -> Natural:
    """Return what makes Python's own value of a non-null value of COLUMN.

    int, Decimal for NUMERIC, DECIMAL and DECFLOAT, float, bool, date, time, datetime (with
    a time zone: in UTC), str, bytes for binaries and unknown types, lists for arrays. Texts
    that can't be decoded and blobs that can't be read are the placeholder. It raises BadValue.
    """
    storage = column.storage
    if storage is Storage.DOUBLE and is_decimal(column):
        return _dialect_1_decimal(-column.scale)
    if is_decimal(column):
        scale = -column.scale
        # Not by Decimal's arithmetic, which rounds to 28 digits.
        return lambda value: Decimal(plain_decimal(value, scale))
    if storage in _AS_IT_IS:
        return lambda value: value
    if storage is Storage.ARRAY:
        return _array(column, modes)
    if storage in _SIMPLE:
        return _SIMPLE[storage]
    plain = replace(modes, binary="bytes", unknown_types=True, text_head=None)
    form = field_form(column, plain)
    assert form is not None  # what is unknown has a form in these modes
    return form.function()


def _dialect_1_decimal(scale: int) -> Natural:
    def convert(value: float) -> Decimal:
        if not isfinite(value):
            return Decimal(repr(value))
        return Decimal(plain_decimal(round(Decimal(repr(value)).scaleb(scale)), scale))

    return convert


def _time(units: int) -> time:
    return (datetime.min + timedelta(microseconds=units * _UNIT_US)).time()


def _timestamp(units: int) -> datetime:
    return _DAY_0 + timedelta(microseconds=units * _UNIT_US)


def _time_tz(raw: bytes) -> time:
    return _time(int.from_bytes(raw[:4], "little")).replace(tzinfo=UTC)


def _timestamp_tz(raw: bytes) -> datetime:
    try:
        return _timestamp(int.from_bytes(raw[:8], "little", signed=True)).replace(tzinfo=UTC)
    except OverflowError:
        raise BadValue("in UTC it lies outside of the years that Python's datetime has") from None


_SIMPLE: dict[Storage, Natural] = {
    Storage.FLOAT: shortest_float,
    Storage.DATE: lambda day: date.fromordinal(day + _ORDINAL_OF_DAY_0),
    Storage.TIME: _time,
    Storage.TIMESTAMP: _timestamp,
    Storage.TIME_TZ: _time_tz,
    Storage.TIMESTAMP_TZ: _timestamp_tz,
    Storage.DECFLOAT16: decode_decfloat,
    Storage.DECFLOAT34: decode_decfloat,
}


def _array(column: Column, modes: ValueModes) -> Natural:
    def convert(blob: Blob) -> list[Any]:
        if not blob.available:
            raise BadValue("the content of an array could not be read")
        if blob.length > modes.max_bytes:
            raise TooLarge(
                f"an array of {blob.length} bytes does not fit into a message of"
                f" {modes.max_bytes} bytes; raise kafka.producer.max.request.size"
            )
        try:
            array = decode_array(blob.read(), column, modes.charset_none)
        except ValueError as error:
            raise BadValue(str(error)) from error
        return _each(array.values, len(array.bounds), natural(array.element, modes))

    return convert


def _each(values: list[Any], depth: int, convert: Natural) -> list[Any]:
    if depth == 1:
        return [convert(value) for value in values]
    return [_each(inner, depth - 1, convert) for inner in values]
