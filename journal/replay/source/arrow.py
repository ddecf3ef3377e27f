"""Arrow's record batches in tasks: Spark's, for a Python without pandas, and those without Spark.

Tables are described once for both: by their `Columns`, with the types as Spark names them.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from zipimport import zipimporter

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.replay.relational import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TEXT, NUMBER, TIME = "string", "bigint", "timestamp"
"""Types of columns, as Spark spells them."""

Columns = Sequence[tuple[str, str]]
"""Names of columns, and their types."""

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}

_COLLECTED_AFTER = 100_000  # new objects; a guess
_frozen_modules = 0

BatchMap = Callable[[Iterator[Any]], Iterator[Any]]
"""From the record batches of a partition to those of the result."""

_Task = TypeVar("_Task")


def schema_text(columns: Columns) -> str:
    """Return COLUMNS as Spark reads a schema."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def read_schema(text: str) -> Columns:
    """Return what `schema_text` has made TEXT of."""
    return [
        (name or bare, kind) for name, bare, kind in re.findall(r"(?:`([^`]*)`|(\w+)) (\w+)", text)
    ]


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return COLUMNS as Arrow has them."""
    return pa.schema((name, _TYPES[kind]) for name, kind in columns)


def record_batch(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return ROWS, at least one, as a batch of SCHEMA."""
    values = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def record_batches(
    rows: Iterable[Sequence[Any]], schema: pa.Schema, most: int
) -> Iterator[pa.RecordBatch]:
    """Yield ROWS in batches of SCHEMA with up to MOST rows."""
    left = iter(rows)
    while some := list(islice(left, most)):
        yield record_batch(some, schema)


def map_in_arrow(table: DataFrame, function: BatchMap, schema: StructType | str) -> DataFrame:
    """Do what ``table.mapInArrow(function, schema)`` does.

    PySpark 4.1 asks for pandas there, as it makes the function by ``pandas_udf``; what runs is
    Arrow alone, in the driver as in the workers. Without Spark FUNCTION runs in this process.
    """
    session: Any = table.sparkSession
    if is_local(session):
        found: DataFrame = session.map(table, function, schema)
        return found
    from pyspark.sql import DataFrame as SparkTable
    from pyspark.sql.udf import _create_udf
    from pyspark.util import PythonEvalType

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        _freeze_modules()
        try:
            with rare_collections():
                yield from function(batches)
        finally:
            forget_zip_finders()

    udf = _create_udf(run, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[table[f"`{name.replace('`', '``')}`"] for name in table.columns])
    return SparkTable(table._jdf.mapInArrow(column._jc, False, None), session)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Have the garbage collector look seldom meanwhile.

    Tasks make tuples by the million, and keep them a while: it went through them again and again
    for a fifth of their time, and found nothing.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _freeze_modules() -> None:
    """Spare the garbage collector what has been loaded, where that is more than before.

    Spark's worker collects after each task, which takes 25 ms for its own library and Arrow's. As
    it has just done so, nothing that could be collected is kept for good, but once for each time
    that something was loaded.
    """
    global _frozen_modules
    if len(sys.modules) > _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)


def forget_zip_finders() -> None:
    """Spare the next task of this process the reading of every zip file on Python's path.

    Spark's worker calls `importlib.invalidate_caches` before each task. Up to Python 3.11 that
    reads the directory of a zip file anew for each folder that was imported from, and Spark has
    its own library and a jar of 5,000 files there: 0.1 s a task, in which nothing has changed.
    A finder that is needed again is made from what zipimport still knows.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def in_tasks(
    spark: SparkSession,
    tasks: Sequence[_Task],
    read: Callable[[_Task], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Return what READ, which pickles, yields of TASKS, each in a task of its own.

    Not by a data source: for each of these Spark starts two processes of Python before the first
    task, which for a small history take longer than all else; and its options show in plans.
    """

    if is_local(spark):
        session: Any = spark
        found: DataFrame = session.in_tasks(tasks, read, schema)
        return found

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(tasks[number])

    return map_in_arrow(spark.range(0, len(tasks), 1, max(1, len(tasks))), run, schema)
