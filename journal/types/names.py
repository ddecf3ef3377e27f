"""Type of a column as Firebird calls it: its name, its length, its code in JDBC.

The names are those of CREATE TABLE; ``datatype.propagate.source.type`` and schema change events
use them. Where a number has a scale but no sub-type, as the doubles of dialect 1, it is a NUMERIC.
"""

from __future__ import annotations

from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.types.arrays import element_of

UNKNOWN = "UNKNOWN"
"""The name of a type that the writer of the journal didn't know."""

_SQL_TEXT = 452  # CHAR; VARCHAR is 448
_NUMERIC, _DECIMAL = 1, 2  # RDB$FIELD_SUB_TYPE of numbers
_TEXT_BLOB = 1  # RDB$FIELD_SUB_TYPE of BLOBs
_BINARY_BLOB = 0

_FULL_PRECISION = {
    Storage.SMALLINT: 4,
    Storage.INTEGER: 9,
    Storage.BIGINT: 18,
    Storage.INT128: 38,
    Storage.DOUBLE: 15,
}
HELD_DIGITS = {Storage.SMALLINT: 5, Storage.INTEGER: 10, Storage.BIGINT: 19}
"""Digits of the largest number that a storage holds: Firebird checks that, and not the digits that
a NUMERIC or DECIMAL is declared with, so a NUMERIC(4,2) takes 327.67."""

_EXACT = frozenset({Storage.SMALLINT, Storage.INTEGER, Storage.BIGINT, Storage.INT128})
_NAMES = {
    Storage.SMALLINT: "SMALLINT",
    Storage.INTEGER: "INTEGER",
    Storage.BIGINT: "BIGINT",
    Storage.INT128: "INT128",
    Storage.FLOAT: "FLOAT",
    Storage.DOUBLE: "DOUBLE PRECISION",
    Storage.BOOLEAN: "BOOLEAN",
    Storage.DATE: "DATE",
    Storage.TIME: "TIME",
    Storage.TIMESTAMP: "TIMESTAMP",
    Storage.TIME_TZ: "TIME WITH TIME ZONE",
    Storage.TIMESTAMP_TZ: "TIMESTAMP WITH TIME ZONE",
    Storage.DECFLOAT16: "DECFLOAT",
    Storage.DECFLOAT34: "DECFLOAT",
    Storage.TEXT: "VARCHAR",
    Storage.PADDED_TEXT: "CHAR",
    Storage.BLOB: "BLOB",
    Storage.ARRAY: "ARRAY",
    Storage.RAW: UNKNOWN,
}

# Codes of java.sql.Types; which goes with which type of Firebird: Jaybird's JdbcTypeConverter,
# DECFLOAT as in JDBC 4.5.
_JDBC = {
    "SMALLINT": 5,
    "INTEGER": 4,
    "BIGINT": -5,
    "INT128": 2,
    "NUMERIC": 2,
    "DECIMAL": 3,
    "FLOAT": 6,
    "DOUBLE PRECISION": 8,
    "DECFLOAT": 2015,
    "BOOLEAN": 16,
    "CHAR": 1,
    "VARCHAR": 12,
    "BINARY": -2,
    "VARBINARY": -3,
    "DATE": 91,
    "TIME": 92,
    "TIMESTAMP": 93,
    "TIME WITH TIME ZONE": 2013,
    "TIMESTAMP WITH TIME ZONE": 2014,
    "ARRAY": 2003,
    UNKNOWN: 1111,
}
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
    return column.precision or _FULL_PRECISION[column.storage]


def type_name(column: Column) -> str:
    """The name of the type without length and scale: ``VARCHAR``, ``NUMERIC``, ``BLOB``."""
    if is_decimal(column):
        return "DECIMAL" if column.sub_type == _DECIMAL else "NUMERIC"
    if column.storage is Storage.OCTETS:
        return "BINARY" if column.sql_type & ~1 == _SQL_TEXT else "VARBINARY"
    return _NAMES[column.storage]


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
    return _JDBC[type_name(column)]
