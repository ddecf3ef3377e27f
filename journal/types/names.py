"""Type of a column as Firebird calls it: its name, its length, its code in JDBC.

The names are those of CREATE TABLE; ``datatype.propagate.source.type`` and schema change events
use them. Where a number has a scale but no sub-type, as the doubles of dialect 1, it is a NUMERIC.
"""

from __future__ import annotations

from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.types.arrays import element_of
from firebird_cdc.journal.types.engine_types import ENGINE_TYPES, OF_STORAGE

_SQL_TEXT = 452  # CHAR; VARCHAR is 448
_NUMERIC, _DECIMAL = 1, 2  # RDB$FIELD_SUB_TYPE of numbers
_TEXT_BLOB = 1  # RDB$FIELD_SUB_TYPE of BLOBs
_BINARY_BLOB = 0

HELD_DIGITS = {each.storage: each.held_digits for each in ENGINE_TYPES if each.held_digits}
"""Digits of the largest number that a storage holds: Firebird checks that, and not the digits that
a NUMERIC or DECIMAL is declared with, so a NUMERIC(4,2) takes 327.67."""

_EXACT = frozenset({Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128})

# Codes of java.sql.Types.
_JDBC_NUMERIC, _JDBC_DECIMAL, _JDBC_BINARY, _JDBC_VARBINARY = 2, 3, -2, -3
_JDBC_BLOB, _JDBC_LONG_TEXT, _JDBC_LONG_BINARY = 2004, -1, -4


def is_decimal(column: Column) -> bool:
    """Tell whether COLUMN is a NUMERIC or DECIMAL, wherever it is kept: dialect 1 uses doubles
    too."""
    if column.storage in _EXACT:
        return column.scale != 0 or column.sub_type in (_NUMERIC, _DECIMAL)
    return column.storage is Storage.DOUBLE and column.scale != 0


def is_text_blob(column: Column) -> bool:
    """Tell whether COLUMN is declared as a BLOB SUB_TYPE TEXT, of whatever character set."""
    return column.storage is Storage.BLOB and column.sub_type == _TEXT_BLOB


def decimal_precision(column: Column) -> int:
    """The digits that a NUMERIC, DECIMAL or INT128 is declared with; those of its storage's longest
    declaration, where they are not known. Values may have more: `HELD_DIGITS`."""
    digits = column.precision or OF_STORAGE[column.storage].declared_digits
    assert digits is not None
    return digits


def type_name(column: Column) -> str:
    """The name of the type without length and scale: ``VARCHAR``, ``NUMERIC``, ``BLOB``."""
    if is_decimal(column):
        return "DECIMAL" if column.sub_type == _DECIMAL else "NUMERIC"
    if column.storage is Storage.OCTETS:
        return "BINARY" if column.sql_type & ~1 == _SQL_TEXT else "VARBINARY"
    return OF_STORAGE[column.storage].name


def type_length(column: Column) -> int | None:
    """Characters of a text, bytes of a binary, digits of a number that is declared with them.

    None for types without a length, and where it is not known.
    """
    if is_decimal(column):
        return decimal_precision(column)
    if column.storage is Storage.DECFLOAT16:
        return 16
    if column.storage is Storage.DECFLOAT34:
        return 34
    if column.storage in (Storage.TEXT, Storage.PADDED_TEXT, Storage.OCTETS):
        return column.char_length or None
    return None


def type_scale(column: Column) -> int | None:
    """Digits behind the point of a NUMERIC or DECIMAL, None for all others."""
    return -column.scale if is_decimal(column) else None


def type_expression(column: Column) -> str:
    """The type as CREATE TABLE would have it, without its character set.

    ``NUMERIC(9,3)``, ``VARCHAR(40)``, ``BLOB SUB_TYPE TEXT``, ``INTEGER [0:1, 3]``. An array
    whose elements are not known is an ``ARRAY``.
    """
    name = type_name(column)
    element = element_of(column)
    if element is not None and column.element is not None:
        bounds = ", ".join(
            str(upper) if lower == 1 else f"{lower}:{upper}"
            for lower, upper in column.element.bounds
        )
        return f"{type_expression(element)} [{bounds}]"
    if column.storage is Storage.BLOB:
        kinds = {_TEXT_BLOB: "TEXT", _BINARY_BLOB: "BINARY"}
        return f"{name} SUB_TYPE {kinds.get(column.sub_type, column.sub_type)}"
    length, scale = type_length(column), type_scale(column)
    if scale is not None:
        return f"{name}({length},{scale})"
    return name if length is None else f"{name}({length})"


def jdbc_type(column: Column) -> int:
    """The type's code in ``java.sql.Types``, as Jaybird, Firebird's JDBC driver, gives it."""
    if column.storage is Storage.BLOB:
        if column.sub_type < 0:
            return _JDBC_BLOB
        return _JDBC_LONG_TEXT if is_text_blob(column) else _JDBC_LONG_BINARY
    if is_decimal(column):
        return _JDBC_DECIMAL if column.sub_type == _DECIMAL else _JDBC_NUMERIC
    if column.storage is Storage.OCTETS:
        return _JDBC_BINARY if column.sql_type & ~1 == _SQL_TEXT else _JDBC_VARBINARY
    return OF_STORAGE[column.storage].jdbc
