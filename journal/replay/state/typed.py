"""Rows of a table as typed columns, for Parquet and other sinks of Spark.

| column | type in Spark |
|---|---|
| SMALLINT, INTEGER, BIGINT | short, int, long |
| NUMERIC(p,s), DECIMAL(p,s) | decimal with s decimals and as many digits as the column's storage |
| | holds, which may be more than p: 5, 10, 19 or 38; NUMERIC of dialect 1 kept in doubles: double |
| INT128 | decimal(38,0) |
| FLOAT, DOUBLE PRECISION | float, double |
| DECFLOAT | string with its own exponent |
| BOOLEAN, DATE | boolean, date |
| TIMESTAMP | timestamp_ntz |
| TIME | string, ``23:59:59.1234`` |
| TIME, TIMESTAMP WITH TIME ZONE | string, in UTC with the zone behind, as canonical text has it |
| CHAR, VARCHAR, text BLOB | string; of CHAR without trailing blanks |
| OCTETS, binary BLOB, ARRAY, unknown types | binary |

What can't be shown so is null and counted, by table, column and cause (`CAUSES`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.format import Blob, Column, Storage, Undecodable
from firebird_cdc.journal.format.charsets import codec_of
from firebird_cdc.journal.replay.state.conversion import UNKNOWN
from firebird_cdc.journal.types.canonical import LargeBlob, canonical_value
from firebird_cdc.journal.types.names import HELD_DIGITS, is_text_blob
from firebird_cdc.journal.types.numbers import UNIX_DAY, UNIX_UNITS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CAUSES = {
    "undecodable": "texts that their character set can't decode",
    "not captured": "BLOBs whose content was not captured",
    "too large": "BLOBs above the limit of 16 MiB",
    "too many digits": "numbers of 39 digits, one more than a decimal of Spark holds",
    "unknown": "values of columns that were added with a default that no journal tells",
}
"""Causes of missing content, as the summary names them."""

Missing = Counter[str]
"""Number of times that content of a column is missing, by cause."""

_INTEGERS = {
    Storage.SMALLINT: pa.int16(),
    Storage.INTEGER: pa.int32(),
    Storage.BIGINT: pa.int64(),
}
_MOST_DIGITS = 38
_LIMIT = 10**_MOST_DIGITS

_Values: TypeAlias = Any  # a sequence, or an array of Arrow
_Build = Callable[[_Values, Missing], pa.Array]


def _form(column: Column, none_charset: str) -> tuple[pa.DataType, _Build]:
    storage = column.storage
    if storage in _INTEGERS:
        kind = _INTEGERS[storage]
        if column.scale or column.sub_type:
            exact = pa.decimal128(HELD_DIGITS[storage], -column.scale)
            return exact, _scaled(exact)
        return kind, _plain(kind)
    if storage is Storage.INT128:
        exact = pa.decimal128(_MOST_DIGITS, -column.scale)
        return exact, _int128(exact)
    if storage in (Storage.FLOAT, Storage.DOUBLE):
        kind = pa.float32() if storage is Storage.FLOAT else pa.float64()
        return kind, _plain(kind)
    if storage is Storage.BOOLEAN:
        return pa.bool_(), _plain(pa.bool_())
    if storage is Storage.DATE:
        return pa.date32(), _dates
    if storage is Storage.TIMESTAMP:
        return pa.timestamp("us"), _timestamps
    if storage is Storage.TEXT:
        return pa.string(), _texts
    if storage is Storage.PADDED_TEXT:
        return pa.string(), lambda values, missing: pc.utf8_rtrim(_texts(values, missing), " ")
    if storage in (Storage.BLOB, Storage.ARRAY):
        if is_text_blob(column):
            return pa.string(), _text_blobs(codec_of(column.charset_id) or none_charset)
        return pa.binary(), _binaries
    if storage in (Storage.OCTETS, Storage.RAW):
        return pa.binary(), _binaries
    return pa.string(), _as_canonical(column)


def _known(values: _Values, missing: Missing) -> _Values:
    """Replace what stands for an unknown value."""
    if isinstance(values, pa.Array):
        return values
    if any(value is UNKNOWN for value in values):
        missing["unknown"] += sum(value is UNKNOWN for value in values)
        return [None if value is UNKNOWN else value for value in values]
    return values


def _array(values: _Values, kind: pa.DataType) -> pa.Array:
    """Return VALUES as an array of KIND, whatever holds them."""
    if not isinstance(values, pa.Array):
        return pa.array(values, kind)
    return values if values.type == kind else values.cast(kind)


def _plain(kind: pa.DataType) -> _Build:
    return lambda values, _: _array(values, kind)


def _scaled(kind: pa.DataType) -> _Build:
    """Return what makes decimals of unscaled integers: the same digits, read with a scale."""

    def build(values: _Values, _: Missing) -> pa.Array:
        whole = _array(values, pa.int64()).cast(pa.decimal128(19, 0))
        return pa.Array.from_buffers(kind, len(whole), whole.buffers())

    return build


def _int128(kind: pa.DataType) -> _Build:
    def build(values: _Values, missing: Missing) -> pa.Array:
        fitting = [
            None if value is None or not -_LIMIT < value < _LIMIT else value for value in values
        ]
        missing["too many digits"] += fitting.count(None) - values.count(None)
        raw = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in fitting)
        valid = pa.array([value is not None for value in fitting]).buffers()[1]
        return pa.Array.from_buffers(kind, len(fitting), [valid, pa.py_buffer(raw)])

    return build


def _dates(values: _Values, _: Missing) -> pa.Array:
    days = _array(values, pa.int32())
    return pc.subtract(days, pa.scalar(UNIX_DAY, pa.int32())).cast(pa.date32())


def _timestamps(values: _Values, _: Missing) -> pa.Array:
    units = pc.subtract(_array(values, pa.int64()), UNIX_UNITS)
    return pc.multiply(units, 100).cast(pa.timestamp("us"))


def _texts(values: _Values, missing: Missing) -> pa.Array:
    try:
        return _array(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        fitting = [None if isinstance(value, Undecodable) else value for value in values]
        missing["undecodable"] += fitting.count(None) - values.count(None)
        return pa.array(fitting, pa.string())


def _content(value: Any, missing: Missing) -> bytes | None:
    if isinstance(value, LargeBlob):
        missing["too large"] += 1
        return None
    if isinstance(value, Blob):
        if not value.available:
            missing["not captured"] += 1
            return None
        return value.read()
    content: bytes | None = value
    return content


def _binaries(values: _Values, missing: Missing) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array([_content(value, missing) for value in values], pa.binary())


def _text_blobs(codec: str) -> _Build:
    def text(value: Any, missing: Missing) -> str | None:
        if isinstance(value, str):
            return value
        content = _content(value, missing)
        if content is None:
            return None
        try:
            return content.decode(codec)
        except UnicodeDecodeError:
            missing["undecodable"] += 1
            return None

    return lambda values, missing: pa.array([text(v, missing) for v in values], pa.string())


def _as_canonical(column: Column) -> _Build:
    return lambda values, _: pa.array(
        [
            None if value is None else canonical_value(column, value)[1:-1]
            for value in (values.to_pylist() if isinstance(values, pa.Array) else values)
        ],
        pa.string(),
    )


class TypedColumns:
    """Makes record batches of a table's rows."""

    def __init__(self, columns: Iterable[Column], none_charset: str) -> None:
        self._columns = list(columns)
        forms = [_form(column, none_charset) for column in self._columns]
        self._schema = pa.schema(
            [(c.name, kind) for c, (kind, _) in zip(self._columns, forms, strict=True)]
        )
        self._builds = [build for _, build in forms]

    def batch(self, values: Sequence[_Values], missing: dict[str, Missing]) -> pa.RecordBatch:
        """Return a batch of VALUES, a list for each column; counts what is MISSING by column."""
        arrays = []
        for column, build, of in zip(self._columns, self._builds, values, strict=True):
            counted: Missing = Counter()
            arrays.append(build(_known(of, counted), counted))
            if counted := +counted:
                missing.setdefault(column.name, Counter()).update(counted)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def typed_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the schema of a table's rows."""
    return pa.schema([(column.name, _form(column, "UTF-8")[0]) for column in columns])


def spark_schema(columns: Iterable[Column]) -> StructType:
    """Return the schema of a table's rows in Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(typed_schema(columns), prefer_timestamp_ntz=True)
