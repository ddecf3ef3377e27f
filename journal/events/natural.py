"""Column values as Python's own types: what a converter of the user's is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from math import isfinite
from typing import Any

from firebird_cdc.journal.events.values import BadValue, TooLarge, ValueModes, field_form
from firebird_cdc.journal.format import Blob, Column, Storage
from firebird_cdc.journal.types.arrays import decode_array
from firebird_cdc.journal.types.engine_types import OF_STORAGE
from firebird_cdc.journal.types.names import is_decimal
from firebird_cdc.journal.types.numbers import plain_decimal

Natural = Callable[[Any], Any]


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
    if storage is Storage.ARRAY:
        return _array(column, modes)
    to_python = OF_STORAGE[storage].to_python if storage in OF_STORAGE else None
    if to_python is not None:
        return _checked(to_python)
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


def _checked(to_python: Natural) -> Natural:
    def convert(value: Any) -> Any:
        try:
            return to_python(value)
        except OverflowError:
            why = "in UTC it lies outside of the years that Python's datetime has"
            raise BadValue(why) from None

    return convert


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
