"""Writing of a state: all tables, from packs of changes, by Spark or by worker processes.

Both give `folding.rows_as` the packs of one bucket at a time. Spark brings them together in a
shuffle. Without it each task appends its packs to a file of its own and says which bytes are of
which bucket (`_Pack`), and whoever folds a bucket reads just these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.replay.local.files import new_folder, part_name, write_parquet
from firebird_cdc.journal.replay.output import local_path
from firebird_cdc.journal.replay.relational import F, is_local
from firebird_cdc.journal.replay.source.arrow import (
    arrow_schema,
    map_in_arrow,
    rare_collections,
    record_batch,
)
from firebird_cdc.journal.replay.source.planning import JournalOptions, JournalPartition
from firebird_cdc.journal.replay.source.storage import partition_value
from firebird_cdc.journal.replay.state.folding import TEXT_SCHEMA, Tally, rows_as
from firebird_cdc.journal.replay.state.images import (
    CONTROL,
    PACK_COLUMNS,
    Journals,
    Plan,
    read_packs,
)
from firebird_cdc.journal.replay.state.typed import spark_schema, typed_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WITHOUT_PATH = frozenset({"jdbc", "noop"})


@dataclass(frozen=True, slots=True)
class Sink:
    """Destination of rows."""

    output: str
    format: str
    options: dict[str, str]

    @property
    def has_path(self) -> bool:
        """Tell whether a table's rows are a folder of the output."""
        return self.options.get("path", "rows") != "" and self.format not in _WITHOUT_PATH

    def folder(self, database: str, table: str) -> str:
        """Return the folder of a table within the output."""
        return f"rows/database={partition_value(database)}/table={partition_value(table)}"

    def write(self, rows: DataFrame, database: str, table: str) -> None:
        """Have Spark write the rows of one table."""
        filled = {
            key: value.replace("{table}", table).replace("{database}", database)
            for key, value in self.options.items()
            if key != "path"
        }
        writer = rows.write.format(self.format).options(**filled)
        # Spark's noop can't tell whether something is there.
        writer = writer.mode("append" if self.format == "noop" else "errorifexists")
        if self.has_path:
            writer.save(f"{self.output}/{self.folder(database, table)}")
        else:
            writer.save()


def write_tables(spark: SparkSession, journals: Journals, plan: Plan, sink: Sink) -> Tally:
    """Write all tables; return what the tasks counted."""
    if is_local(spark):
        return _write_here(spark, journals, plan, sink)
    return _write_with_spark(spark, journals.packs(spark, plan), plan, sink)


def _typed_tables(plan: Plan) -> list[int]:
    """Return the tables that are written as columns."""
    return [index for index, table in enumerate(plan.tables) if table.columns]


def _write_with_spark(spark: SparkSession, packs: DataFrame, plan: Plan, sink: Sink) -> Tally:
    from pyspark import AccumulatorParam, StorageLevel

    class TallyParam(AccumulatorParam[Tally]):
        """Addition of tallies."""

        def zero(self, value: Tally) -> Tally:  # noqa: ARG002
            return Tally()

        def addInPlace(self, value1: Tally, value2: Tally) -> Tally:
            value1.add(value2)
            return value1

    total = spark.sparkContext.accumulator(Tally(), TallyParam())
    changes = packs.repartitionById(plan.buckets, F.col("bucket"))
    if sink.format == "json":
        by_table = changes.sortWithinPartitions("table")
        lines = map_in_arrow(by_table, rows_as(plan, total.add, None), TEXT_SCHEMA)
        lines.write.mode("errorifexists").partitionBy("database", "table").text(
            f"{sink.output}/rows"
        )
        return total.value
    there = _typed_tables(plan)
    kept = changes
    if len(there) > 1:
        # Each table is a job of its own, as it has columns of its own.
        kept = changes.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        for number, index in enumerate(there):
            table = plan.tables[index]
            wanted = F.col("table") == index
            if number == 0:
                wanted |= F.col("table") == CONTROL
            rows = map_in_arrow(
                kept.where(wanted),
                rows_as(plan, total.add, index),
                spark_schema(table.columns),
            )
            sink.write(rows, table.database, table.name)
        if not there:
            map_in_arrow(changes, rows_as(plan, total.add, None), TEXT_SCHEMA).count()
    finally:
        if kept is not changes:
            kept.unpersist()
    return total.value


# Without Spark.


class _Pack(NamedTuple):
    """Place of a pack in a file of packs."""

    table: int
    bucket: int
    file: str
    start: int
    size: int


def _write_here(session: Any, journals: Journals, plan: Plan, sink: Sink) -> Tally:
    folder = session.new_folder("packs")
    packs: dict[int, list[_Pack]] = {bucket: [] for bucket in range(plan.buckets)}
    spill = partial(_spill, options=journals.options, plan=plan)
    tasks = [(task, folder / str(number)) for number, task in enumerate(journals.split)]
    for found in session.workers.run(spill, tasks):
        for pack in found:
            packs[pack.bucket].append(pack)
    total = Tally()
    fold = partial(_fold, plan=plan, sink=sink)
    # Those of a table one behind the other.
    for tally in session.workers.run(fold, [(b, sorted(of)) for b, of in packs.items()]):
        total.add(tally)
    return total


def _spill(task: JournalPartition, path: Path, options: JournalOptions, plan: Plan) -> list[_Pack]:
    """Write the packs of a task to a file; return where they are."""
    packs = []
    start = 0
    with rare_collections(), path.open("wb") as file:
        for batch in read_packs(task, options, plan):
            tables, buckets, contents = batch.columns
            places = zip(tables.to_pylist(), buckets.to_pylist(), contents, strict=True)
            for table, bucket, content in places:
                size = file.write(content.as_buffer())
                packs.append(_Pack(table, bucket, str(path), start, size))
                start += size
    return packs


def _fold(bucket: int, packs: list[_Pack], plan: Plan, sink: Sink) -> Tally:
    """Write what is left of the packs of a bucket."""
    total = Tally()
    with rare_collections():
        if sink.format == "json":
            _write_texts(bucket, rows_as(plan, total.add, None)(_read(packs)), sink)
            return total
        there = _typed_tables(plan)
        for number, index in enumerate(there):
            table = plan.tables[index]
            wanted = {index, CONTROL} if number == 0 else {index}
            some = [pack for pack in packs if pack.table in wanted]
            rows = rows_as(plan, total.add, index)(_read(some))
            folder = local_path(f"{sink.output}/{sink.folder(table.database, table.name)}")
            with new_folder(folder):
                path = folder / part_name(bucket, "parquet")
                schema = typed_schema(table.columns)
                if not write_parquet(rows, path, schema) and bucket:
                    path.unlink()  # the first one tells the columns
        if not there:
            for _ in rows_as(plan, total.add, None)(_read(packs)):
                pass
    return total


def _read(packs: list[_Pack]) -> Iterator[pa.RecordBatch]:
    """Yield packs as `images.PACK_COLUMNS`, one at a time."""
    schema = arrow_schema(PACK_COLUMNS)
    for name, some in groupby(packs, attrgetter("file")):
        with Path(name).open("rb") as file:
            for pack in some:
                file.seek(pack.start)
                content = file.read(pack.size)
                yield record_batch([(pack.table, pack.bucket, content)], schema)


def _write_texts(bucket: int, batches: Iterator[pa.RecordBatch], sink: Sink) -> None:
    """Write rows as text, those of a table one behind the other, a line for each."""
    for batch in batches:
        (database,), (table,) = (set(batch.column(n).to_pylist()) for n in range(2))
        folder = local_path(f"{sink.output}/{sink.folder(database, table)}")
        with new_folder(folder), (folder / part_name(bucket, "txt")).open("ab") as file:
            file.writelines(f"{line}\n".encode() for line in batch.column(2).to_pylist())
