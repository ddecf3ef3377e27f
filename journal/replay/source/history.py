"""Extent of the history, and what is missing in it, by the envelopes of the journals.

All functions take and give tables, distributed ones with Spark (`relational`); ``files`` is what
the data source ``firebird_journal_files`` reads.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.relational import F, Window, union
from firebird_cdc.journal.replay.source.storage import describe_empty, no_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from firebird_cdc.journal.replay.audit.folder_facts import Expected

# One task looks at this many numbers in a row for missing ones; the borders are compared after.
_BUCKET = 65_536

HOLES = (
    "database string, epoch bigint, first bigint, last bigint, before_us bigint, after_us bigint"
)
"""Columns of `holes`."""


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
    reader = spark.read.format("firebird_journal_files").option("onEmpty", "accept")
    if database is not None:
        reader = reader.option("database", database)
    files: DataFrame = reader.load(list(folders)).persist()
    if files.isEmpty():
        raise ReplayError(nothing_there(folders, database))
    return files


def nothing_there(folders: Sequence[str], database: str | None) -> str:
    """Return what to tell if FOLDERS hold no journal (of DATABASE)."""
    if database is None:
        return no_history(describe_empty(folders))
    return no_history(f"{', '.join(folders)} holds no journal (*.log) of the database {database}")


def stamped(files: DataFrame) -> DataFrame:
    """Return the journals that have a place in the history, damaged ones included."""
    return files.where(F.col("sequence").isNotNull() & F.col("database").isNotNull())


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of one look at all journals. ``spans``: of those that have a place. ``is_dense``: no
    number between others is missing; ``is_unique``: none has two journals, and no journal is there
    twice, under one number or several. ``wrong``: files with a problem; ``unplaced``: journals that
    are too damaged to have a place; ``journals``: files that are journals at all."""

    spans: tuple[Span, ...] = ()
    is_dense: bool = True
    is_unique: bool = True
    wrong: int = 0
    unplaced: int = 0
    journals: int = 0


def survey(files: DataFrame) -> Survey:
    """Look at FILES: one row per database and epoch reaches the driver, so a short list."""
    found = _survey(files)
    if not found.is_unique:
        return found
    # One that was given a second number has none in common with itself.
    copies = (
        files.where(F.col("journal").isNotNull())
        .groupBy("journal")
        .agg(F.count("*").alias("copies"))
    )
    return replace(found, is_unique=copies.where("copies > 1").isEmpty())


def _survey(files: DataFrame) -> Survey:
    """Return the same, with ``is_unique`` by the numbers alone."""
    rows = files.groupBy("database", "epoch").agg(
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.count("sequence").alias("journals"),
        F.sum("events").alias("events"),
        F.unix_micros(F.min("commit_time")).alias("first_commit_us"),
        F.unix_micros(F.max("commit_time")).alias("last_commit_us"),
        F.count_distinct("sequence").alias("numbers"),
        F.count("problem").alias("wrong"),
        F.count_if(F.col("sequence").isNull() & (F.col("problem") != "missing")).alias("without"),
        F.count_if(F.col("journal").isNotNull() | F.col("file").endswith(".zip")).alias("known"),
        F.count("*").alias("files"),
    )
    found = [row.asDict() for row in rows.collect()]
    placed = [row for row in found if row["database"] is not None and row["first"] is not None]
    others = sum(row["without"] for row in placed) + sum(
        row["files"] for row in found if row not in placed
    )
    names = [each.name for each in fields(Span)]
    spans = [Span(**{name: row[name] for name in names}) for row in placed]
    return Survey(
        spans=tuple(sorted(spans, key=lambda span: (span.database, span.epoch))),
        is_dense=all(row["numbers"] == row["last"] - row["first"] + 1 for row in placed),
        is_unique=not others and all(row["numbers"] == row["journals"] for row in placed),
        wrong=sum(row["wrong"] for row in found),
        unplaced=others,
        journals=sum(row["known"] for row in found),
    )


def spans(files: DataFrame) -> list[Span]:
    """Return the spans of all databases: one row per database and epoch, so a short list."""
    return list(_survey(files).spans)


def holes(files: DataFrame, known: Sequence[Span], expected: Sequence[Expected]) -> DataFrame:
    """Return (database, epoch, first, last, before_us, after_us): numbers that no journal has.

    Those between others, and those that EXPECTED says must be there. ``before_us``, ``after_us``:
    times of the commits before and behind the hole, null where there is none.
    """
    commit = F.unix_micros("commit_time")
    numbers = (
        stamped(files)
        .groupBy("database", "epoch", "sequence")
        .agg(F.min(commit).alias("at"))
        .withColumn("bucket", F.floor(F.col("sequence") / _BUCKET))
    )
    inside = Window.partitionBy("database", "epoch", "bucket").orderBy("sequence")
    border = Window.partitionBy("database", "epoch").orderBy("bucket")
    pairs = numbers.withColumns(
        {"previous": F.lag("sequence").over(inside), "before_us": F.lag("at").over(inside)}
    )
    number_at = F.struct("sequence", "at")
    borders = (
        numbers.groupBy("database", "epoch", "bucket")
        .agg(F.min(number_at).alias("lowest"), F.max(number_at).alias("highest"))
        .withColumn("last_one", F.lag("highest").over(border))
        .select(
            "database",
            "epoch",
            "lowest.*",
            F.col("last_one.sequence").alias("previous"),
            F.col("last_one.at").alias("before_us"),
        )
    )
    columns = (
        "database",
        "epoch",
        (F.col("previous") + 1).alias("first"),
        (F.col("sequence") - 1).alias("last"),
        "before_us",
        F.col("at").alias("after_us"),
    )
    between = [
        table.where(F.col("sequence") - F.col("previous") > 1).select(*columns)
        for table in (pairs, borders)
    ]
    ends = list(_ends(known, expected))
    if ends:
        between.append(files.sparkSession.createDataFrame(ends, HOLES))
    return union(between)


def missing_ranges(files: DataFrame) -> DataFrame:
    """Return (database, epoch, first, last): numbers between others that no journal has."""
    return holes(files, (), ()).select("database", "epoch", "first", "last")


def _ends(
    known: Sequence[Span], expected: Sequence[Expected]
) -> Iterator[tuple[str, int, int, int, int | None, int | None]]:
    """Yield, as rows of `holes`, what of EXPECTED lies outside the spans that are KNOWN."""
    spans_of = {(span.database, span.epoch): span for span in known}
    for database, epoch, first, last in expected:
        span = spans_of.get((database, epoch))
        if span is None:
            yield database, epoch, first, last, None, None
            continue
        if first < span.first:
            yield database, epoch, first, span.first - 1, None, span.first_commit_us
        if last > span.last:
            yield database, epoch, span.last + 1, last, span.last_commit_us, None


def ranges_between(first: int, last: int, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that are left of FIRST to LAST without NUMBERS, which are sorted."""
    for number in (*numbers, last + 1):
        if first < number <= last + 1:
            yield first, number - 1
        first = max(first, number + 1)


def duplicate_sequences(files: DataFrame) -> DataFrame:
    """Return (database, epoch, sequence, file, other, copies): numbers of several journals.

    A file that is there twice is another fault, see `duplicate_journals`.
    """
    return (
        stamped(files)
        .groupBy("database", "epoch", "sequence")
        .agg(
            F.count_distinct("journal").alias("copies"),
            F.min("file").alias("file"),
            F.max("file").alias("other"),
        )
        .where("copies > 1")
    )


def duplicate_journals(files: DataFrame) -> DataFrame:
    """Return (journal, database, epoch, sequence, file, other, copies): uuids of several files."""
    return (
        files.where(F.col("journal").isNotNull())
        .groupBy("journal")
        .agg(
            F.max("database").alias("database"),
            F.max("epoch").alias("epoch"),
            F.max("sequence").alias("sequence"),
            F.count("*").alias("copies"),
            F.min("file").alias("file"),
            F.max("file").alias("other"),
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
                    f" {span.epoch}; rows written before that are known only from their first"
                    " change on"
                )
        else:
            sentences.append(
                f"{span.database}: epoch {span.epoch} begins at sequence {span.first}, epoch"
                f" {before.epoch} ended at {before.last}; the database was restored or replaced"
                " there, and what that undid is in no journal"
            )
        before = span
    return sentences
