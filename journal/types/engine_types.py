"""The engine's types, one row each: their codes, their names, and their values in its memory and
in Python.

Sources: the engine's ``dsc_pub.h`` (descriptors), ``blr.h`` (RDB$FIELD_TYPE), ``sqlda_pub.h`` (SQL
types), Jaybird's ``JdbcTypeConverter``; DECFLOAT as in JDBC 4.5. How a storage lies in a journal is
`journal.format.model`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.types.decfloat import decode_decfloat
from firebird_cdc.journal.types.numbers import ORDINAL_OF_DAY_0, UNITS_PER_DAY, shortest_float

UNKNOWN = "UNKNOWN"
"""Name of a type that the writer of the journal didn't know."""

_DAY_0 = datetime.fromordinal(ORDINAL_OF_DAY_0)
_UNIT_US = 100


def _int128(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _timestamp(raw: bytes) -> int:
    days, units = struct.unpack_from("<iI", raw)
    return int(days * UNITS_PER_DAY + units)


def _timestamp_tz(raw: bytes) -> bytes:
    return struct.pack("<q", _timestamp(raw)) + raw[8:]


def _same(value: Any) -> Any:
    return value


def _python_date(day: int) -> date:
    return date.fromordinal(day + ORDINAL_OF_DAY_0)


def _python_time(units: int) -> time:
    return (datetime.min + timedelta(microseconds=units * _UNIT_US)).time()


def _python_timestamp(units: int) -> datetime:
    return _DAY_0 + timedelta(microseconds=units * _UNIT_US)


def _python_time_tz(raw: bytes) -> time:
    return _python_time(int.from_bytes(raw[:4], "little")).replace(tzinfo=UTC)


def _python_timestamp_tz(raw: bytes) -> datetime:
    units = int.from_bytes(raw[:8], "little", signed=True)
    return _python_timestamp(units).replace(tzinfo=UTC)


class EngineType(NamedTuple):
    """A type of the engine.

    ``name``: as in CREATE TABLE. ``jdbc``: its code in ``java.sql.Types``. ``field_type``:
    RDB$FIELD_TYPE; ``sql_type``: in messages and records; ``descriptor``: in arrays. ``form``: a
    value in the engine's memory, as a format of `struct`; ``decode``: what makes it the value that
    journals have, None: it is that one. ``declared_digits``: the most that it can be declared with
    as a number; ``held_digits``: those of the largest number that it holds, where a declaration
    does not bound them. ``to_python``: makes Python's own value of that of a journal, where that
    takes no declaration; it raises OverflowError if Python has none.
    """

    storage: Storage
    name: str
    jdbc: int
    field_type: int = 0
    sql_type: int = 0
    descriptor: int = 0
    form: str = ""
    decode: Callable[[Any], Any] | None = None
    declared_digits: int | None = None
    held_digits: int | None = None
    to_python: Callable[[Any], Any] | None = None


_S = Storage
ENGINE_TYPES = (
    EngineType(_S.SMALLINT, "SMALLINT", 5, 7, 500, 8, "h", None, 4, 5, to_python=_same),
    EngineType(_S.INTEGER, "INTEGER", 4, 8, 496, 9, "i", None, 9, 10, to_python=_same),
    EngineType(_S.BIGINT, "BIGINT", -5, 16, 580, 19, "q", None, 18, 19, to_python=_same),
    EngineType(_S.INT128, "INT128", 2, 26, 32752, 24, "16s", _int128, 38, to_python=_same),
    EngineType(_S.FLOAT, "FLOAT", 6, 10, 482, 11, "f", to_python=shortest_float),
    EngineType(_S.DOUBLE, "DOUBLE PRECISION", 8, 27, 480, 12, "d", None, 15, to_python=_same),
    EngineType(_S.BOOLEAN, "BOOLEAN", 16, 23, 32764, 21, "?", to_python=_same),
    EngineType(_S.DATE, "DATE", 91, 12, 570, 14, "i", to_python=_python_date),
    EngineType(_S.TIME, "TIME", 92, 13, 560, 15, "I", to_python=_python_time),
    EngineType(
        _S.TIMESTAMP, "TIMESTAMP", 93, 35, 510, 16, "8s", _timestamp, to_python=_python_timestamp
    ),
    EngineType(
        _S.TIME_TZ, "TIME WITH TIME ZONE", 2013, 28, 32756, 25, "6s", to_python=_python_time_tz
    ),
    EngineType(
        _S.TIMESTAMP_TZ,
        "TIMESTAMP WITH TIME ZONE",
        2014,
        29,
        32754,
        26,
        "10s",
        _timestamp_tz,
        to_python=_python_timestamp_tz,
    ),
    EngineType(_S.DECFLOAT16, "DECFLOAT", 2015, 24, 32760, 22, "8s", to_python=decode_decfloat),
    EngineType(_S.DECFLOAT34, "DECFLOAT", 2015, 25, 32762, 23, "16s", to_python=decode_decfloat),
    EngineType(_S.TEXT, "VARCHAR", 12, 37, 448, 3),
    EngineType(_S.PADDED_TEXT, "CHAR", 1, 14, 452, 1),
    EngineType(_S.BLOB, "BLOB", 2004, 261, 520),
    EngineType(_S.ARRAY, "ARRAY", 2003, 0, 540),
    EngineType(_S.RAW, UNKNOWN, 1111),
)
"""A text of the character set OCTETS is of the storage OCTETS."""

OF_STORAGE = {each.storage: each for each in ENGINE_TYPES}

OF_DESCRIPTOR = {each.descriptor: each for each in ENGINE_TYPES if each.descriptor}

_OF_FIELD = {each.field_type: each for each in ENGINE_TYPES if each.field_type}


def type_of_field(field_type: int, *, is_array: bool = False) -> EngineType:
    """Return the type of a column by its RDB$FIELD_TYPE; with dimensions it is an array."""
    if is_array:
        return OF_STORAGE[Storage.ARRAY]
    return _OF_FIELD.get(field_type, OF_STORAGE[Storage.RAW])
