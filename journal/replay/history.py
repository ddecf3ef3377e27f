"""What the envelopes of the journals say about the history: how far it goes, what is missing.

All functions take and give distributed tables (DataFrames of Spark); ``files`` is what the
data source ``firebird_journal_files`` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.advice import no_history

if TYPE_CHECKING:
    from collections.abc import Sequence

# One task looks at this many numbers in a row for missing ones; the borders are compared after.
_BUCKET = 65_536


@dataclass(frozen=True, slots=True)
class Span:
    """One database's history in one epoch; ``first``, ``last``: sequence numbers."""

    database: str
    epoch: int
    first: int
    last: int
    journals: int
    events: int
    first_commit_us: int
    last_commit_us: int


def read_files(
    spark: SparkSession, folders: Sequence[str], database: str | None = None
) -> DataFrame:
    """Return one row per journal. Raises ReplayError if the folders hold none."""
    reader = spark.read.format("firebird_journal_files")
    if database is not None:
        reader = reader.option("database", database)
    files: DataFrame = reader.load(list(folders)).persist()
    if files.isEmpty():
        whose = f" of the database {database}" if database else ""
        raise ReplayError(no_history(f"{', '.join(folders)} holds no journal (*.log){whose}"))
    return files


def stamped(files: DataFrame) -> DataFrame:
    """Return the journals that have a place in the history, damaged ones included."""
    return files.where(F.col("sequence").isNotNull() & F.col("database").isNotNull())


def until(table: DataFrame, files: DataFrame, epoch: int | None, sequence: int) -> DataFrame:
    """Keep the rows of TABLE up to SEQUENCE of EPOCH, None: of each database's last one.

    Rows that have no place in the history stay: nobody knows whether they belong.
    """
    if epoch is not None:
        limited = table.withColumn("last_epoch", F.lit(epoch))
    else:
        epochs = stamped(files).groupBy("database").agg(F.max("epoch").alias("last_epoch"))
        limited = table.join(F.broadcast(epochs), "database", "left")
    last = F.col("last_epoch")
    inside = (F.col("epoch") < last) | ((F.col("epoch") == last) & (F.col("sequence") <= sequence))
    return limited.where(F.col("sequence").isNull() | inside).drop("last_epoch")


def spans(files: DataFrame) -> list[Span]:
    """Return the spans of all databases: one row per database and epoch, so a short list."""
    rows = (
        stamped(files)
        .groupBy("database", "epoch")
        .agg(
            F.min("sequence"),
            F.max("sequence"),
            F.count("*"),
            F.sum("events"),
            F.min("commit_us"),
            F.max("commit_us"),
        )
        .orderBy("database", "epoch")
        .toLocalIterator()
    )
    return [Span(*row) for row in rows]


def missing_ranges(files: DataFrame) -> DataFrame:
    """Return (database, epoch, first, last): numbers between others that no journal has."""
    numbers = (
        stamped(files)
        .select("database", "epoch", "sequence")
        .distinct()
        .withColumn("bucket", F.floor(F.col("sequence") / _BUCKET))
    )
    inside = Window.partitionBy("database", "epoch", "bucket").orderBy("sequence")
    border = Window.partitionBy("database", "epoch").orderBy("bucket")
    pairs = numbers.withColumn("previous", F.lag("sequence").over(inside))
    borders = (
        numbers.groupBy("database", "epoch", "bucket")
        .agg(F.min("sequence").alias("sequence"), F.max("sequence").alias("highest"))
        .withColumn("previous", F.lag("highest").over(border))
    )
    columns = (
        "database",
        "epoch",
        (F.col("previous") + 1).alias("first"),
        (F.col("sequence") - 1).alias("last"),
    )
    holes = [
        table.where(F.col("sequence") - F.col("previous") > 1).select(*columns)
        for table in (pairs, borders)
    ]
    return reduce(DataFrame.unionByName, holes)


def duplicate_sequences(files: DataFrame) -> DataFrame:
    """Return (database, epoch, sequence, path, copies): numbers that several journals have."""
    return (
        stamped(files)
        .groupBy("database", "epoch", "sequence")
        .agg(
            F.count("*").alias("copies"), F.min("path").alias("path"), F.max("path").alias("other")
        )
        .where("copies > 1")
    )


def duplicate_journals(files: DataFrame) -> DataFrame:
    """Return (journal, path, other, copies): uuids that several files hold."""
    return (
        files.where(F.col("journal").isNotNull())
        .groupBy("journal")
        .agg(
            F.count("*").alias("copies"), F.min("path").alias("path"), F.max("path").alias("other")
        )
        .where("copies > 1")
    )


def remarks(spans_of_all: Sequence[Span]) -> list[str]:
    """Return what is worth knowing about the spans and is no fault, a sentence each."""
    sentences = []
    before: Span | None = None
    for span in spans_of_all:
        if before is None or before.database != span.database:
            if span.first > 1:
                sentences.append(
                    f"{span.database}: the history begins at sequence {span.first} of epoch"
                    f" {span.epoch}; rows of before are known only from where they are changed"
                )
        else:
            sentences.append(
                f"{span.database}: epoch {span.epoch} begins at sequence {span.first}, epoch"
                f" {before.epoch} ended at {before.last}; the database was restored or replaced"
                " there, and what that undid is in no journal"
            )
        before = span
    return sentences
