"""The state rebuild: the rows that each table has after the last journal.

A table with a key is folded by key: the last change of each key, by (epoch, sequence, event),
says what row there is. A table without one, or one whose key columns changed in the course of
its history, is folded as a multiset of rows: what was inserted less what was deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from urllib.parse import unquote

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay import ddl, history
from firebird_cdc.journal.replay.audit import states
from firebird_cdc.journal.replay.history import Span
from firebird_cdc.journal.replay.output import refuse_existing, write_text

SHOWN_HOLES = 20
"""Sentences about an incomplete history that are printed and kept in the summary."""

_ORDER = ("epoch", "sequence", "pos")


@dataclass(frozen=True, slots=True)
class TableState:
    """One table: ``rows`` it has, and ``folder`` in the output, None if it has none.

    ``by_key``: folded by key, else as a multiset; ``unmatched``: deletes of rows that no insert
    in the history explains (multisets only); ``dropped``: a DROP TABLE was its end.
    """

    database: str
    table: str
    rows: int
    by_key: bool
    unmatched: int
    dropped: bool
    folder: str | None


@dataclass(frozen=True, slots=True)
class StateReport:
    """``holes``: sentences on why the state may not be that of the database; empty: none."""

    spans: list[Span]
    tables: list[TableState]
    holes: list[str]
    notes: list[str]
    until: str | None

    @property
    def whole(self) -> bool:
        """True if the history that was read has no hole."""
        return not self.holes

    def as_json(self) -> str:
        """Return the text of ``summary.json``."""
        return json.dumps({"whole": self.whole, **asdict(self)}, indent=2, ensure_ascii=False)


def rebuild_state(
    spark: SparkSession,
    folders: Sequence[str],
    output: str,
    *,
    database: str | None = None,
    table: str | None = None,
    none_charset: str = "UTF-8",
    output_format: str = "json",
    until: tuple[int | None, int] | None = None,
    partition_bytes: int | None = None,
) -> StateReport:
    """Write the last state of the tables in FOLDERS to OUTPUT, and ``summary.json`` beside it.

    output: a folder that does not exist yet. output_format: ``json``: one row per line, as
    `firebird_cdc.journal.canonical` writes it; ``parquet``: columns key, row, epoch, sequence,
    pos. until: (epoch, None: the last one; sequence): leave out what comes after.
    Raises ReplayError if there is no journal, one is damaged, or a number was given twice.
    """
    output = output.rstrip("/")
    refuse_existing(spark, output)
    all_files = history.read_files(spark, folders, database)
    files = all_files
    reader = (
        spark.read.format("firebird_journal")
        .option("noneCharset", none_charset)
        .option("onDamage", "report")
    )
    for option, value in (
        ("database", database),
        ("table", table),
        ("partitionBytes", partition_bytes),
    ):
        if value is not None:
            reader = reader.option(option, value)
    changes = reader.load(list(folders))
    if until is not None:
        changes = history.until(changes, all_files, *until)
        files = history.until(all_files, all_files, *until)
        if history.stamped(files).isEmpty():
            raise ReplayError(f"no journal lies at or before sequence {until[1]}")
    _refuse_duplicates(files)
    changes = changes.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        _refuse_damage(changes)
        plans = _plans(changes, table)
        rows = _fold(changes, plans)
        _write(rows, f"{output}/rows", output_format)
        spans = history.spans(files)
        report = StateReport(
            spans=spans,
            tables=_table_states(spark, output, output_format, changes, plans),
            holes=_hole_sentences(files, changes),
            notes=history.remarks(spans),
            until=None if until is None else ":".join(str(p) for p in until if p is not None),
        )
        write_text(spark, f"{output}/summary.json", report.as_json() + "\n")
        return report
    finally:
        changes.unpersist()
        all_files.unpersist()


def _refuse_duplicates(files: DataFrame) -> None:
    """Two journals with one number would be folded in an order of chance."""
    double = history.duplicate_sequences(files).first()
    if double is not None:
        raise ReplayError(
            f"{double['database']}: {double['copies']} journals have the sequence number"
            f" {double['sequence']} of epoch {double['epoch']}: {double['path']} and"
            f" {double['other']}; remove the copy (`firebird-cdc replay audit` lists all)"
        )


def _refuse_damage(changes: DataFrame) -> None:
    damage = changes.where("op = 'damaged'").first()
    if damage is not None:
        raise ReplayError(
            f"{damage['reason']}; a state can't be built across a damaged journal: take the file"
            " from a backup (`firebird-cdc replay audit` lists all that is damaged), or stop"
            " before it with --until"
        )


# Which way each table is folded.


def _plans(changes: DataFrame, only: str | None) -> DataFrame:
    """Return one row per table: (database, table, by_key, common, dropped_at, is_dropped).

    ``common``: sorted names of the columns that all shapes of the table have. ``dropped_at``:
    place (epoch, sequence, pos) of the last DROP TABLE or null; ``is_dropped``: nothing came
    after it.
    """
    place = F.struct(*_ORDER)
    statements = changes.where((F.col("op") == "ddl") & F.col("table").isNotNull())
    if only is not None:
        statements = statements.where(F.col("table") == only)
    drops = (
        statements.where(F.col("reason").isin(*ddl.DROPS))
        .groupBy("database", "table")
        .agg(F.max(place).alias("dropped_at"), F.max_by("reason", place).alias("last_drop"))
    )
    shapes = (
        changes.where("op in ('c', 'u', 'd')")
        .join(F.broadcast(drops), ["database", "table"], "left")
        .where(F.col("dropped_at").isNull() | (place > F.col("dropped_at")))
        .groupBy("database", "table", "table_shape")
        .agg(
            F.first(F.json_object_keys(F.coalesce("after", "before"))).alias("columns"),
            F.first(F.coalesce(F.json_object_keys("key"), F.array())).alias("key_columns"),
        )
        .groupBy("database", "table")
        .agg(
            F.collect_list("columns").alias("shapes"),
            F.collect_set("key_columns").alias("keys"),
        )
    )
    common = F.array_sort(
        F.aggregate(
            "shapes", F.element_at("shapes", 1), lambda left, right: F.array_intersect(left, right)
        )
    )
    by_key = (F.size("keys") == 1) & (F.size(F.element_at("keys", 1)) > 0)
    return (
        shapes.join(drops, ["database", "table"], "full")
        .select(
            "database",
            "table",
            F.coalesce(by_key, F.lit(True)).alias("by_key"),
            common.alias("common"),
            "dropped_at",
            (F.col("shapes").isNull() & (F.col("last_drop") == "drop table")).alias("is_dropped"),
        )
        .persist()
    )


def _planned(changes: DataFrame, plans: DataFrame) -> DataFrame:
    """Return the changes of rows after the last drop of their table, with the table's plan."""
    return (
        changes.where("op in ('c', 'u', 'd')")
        .join(F.broadcast(plans), ["database", "table"])
        .where(F.col("dropped_at").isNull() | (F.struct(*_ORDER) > F.col("dropped_at")))
    )


# The fold.


def _fold(changes: DataFrame, plans: DataFrame) -> DataFrame:
    """Return the rows of all tables: (database, table, key, row, epoch, sequence, pos)."""
    planned = _planned(changes, plans)
    keyed = planned.where("by_key").select("database", "table", *_ORDER, F.inline(states()))
    last = (
        keyed.groupBy("database", "table", "key")
        .agg(F.max_by(F.struct(F.col("after").alias("row"), *_ORDER), F.struct(*_ORDER)).alias("s"))
        .select("database", "table", "key", "s.*")
        .where("row is not null")
    )
    bag = (
        _multisets(planned)
        .where("net > 0 and kept > 0")
        .withColumn("copy", F.explode(F.sequence(F.lit(1), F.col("kept"))))
        .select(
            "database",
            "table",
            F.lit(None).cast("string").alias("key"),
            "row",
            "last.epoch",
            "last.sequence",
            "last.pos",
        )
    )
    return last.unionByName(bag)


def _multisets(planned: DataFrame) -> DataFrame:
    """Return (database, table, same, row, last, net, kept) of the tables without a lasting key.

    Two rows are the ``same`` if they agree in the columns that all shapes of the table have:
    a row inserted before a column was added, and deleted after, has two texts. ``net``: how
    many of the same rows there are; ``kept``: how many of them have the text ``row``, those
    that were written last.
    """
    bags = planned.where("not by_key")
    names = F.col("common")
    deltas = bags.select(
        "database",
        "table",
        "common",
        F.struct(*_ORDER).alias("place"),
        F.inline(
            F.array(
                F.struct(F.lit(-1).alias("delta"), F.col("before").alias("row")),
                F.struct(F.lit(1).alias("delta"), F.col("after").alias("row")),
            )
        ),
    ).where("row is not null")
    fields = F.from_json("row", "map<string,string>")
    same = F.to_json(F.transform(names, lambda name: F.element_at(fields, name)))
    texts = (
        deltas.withColumn("same", same)
        .groupBy("database", "table", "same", "row")
        .agg(F.sum("delta").alias("number"), F.max("place").alias("last"))
    )
    group = Window.partitionBy("database", "table", "same")
    latest_first = group.orderBy(F.col("last").desc(), "row")
    above = F.greatest("number", F.lit(0))
    return (
        texts.withColumn("net", F.sum("number").over(group))
        .withColumn("newer", F.sum(above).over(latest_first) - above)
        .withColumn("kept", F.least(above, F.col("net") - F.col("newer")).cast("int"))
    )


# Output and summary.


def _write(rows: DataFrame, folder: str, output_format: str) -> None:
    if output_format == "json":
        lines = rows.select("database", "table", F.col("row").alias("value"))
        lines.write.mode("errorifexists").partitionBy("database", "table").text(folder)
    else:
        writer = rows.write.mode("errorifexists").partitionBy("database", "table")
        writer.format(output_format).save(folder)


def _table_states(
    spark: SparkSession, output: str, output_format: str, changes: DataFrame, plans: DataFrame
) -> list[TableState]:
    """Count what was written, table by table: one line each, so a short list."""
    content = "value" if output_format == "json" else "row"
    written = (
        spark.read.schema(f"{content} string, database string, `table` string")
        .format("text" if output_format == "json" else output_format)
        .load(f"{output}/rows")
        .withColumn("path", F.input_file_name())
        .groupBy("database", "table")
        .agg(F.count("*").alias("rows"), F.min("path").alias("path"))
    )
    unmatched = (
        _multisets(_planned(changes, plans))
        .where("net < 0")
        .select("database", "table", "same", "net")
        .distinct()
        .groupBy("database", "table")
        .agg((-F.sum("net")).alias("unmatched"))
    )
    tables = ["database", "table"]
    joined = (
        plans.join(written, tables, "left")
        .join(unmatched, tables, "left")
        .orderBy("database", "table")
    )
    return [
        TableState(
            database=row["database"],
            table=row["table"],
            rows=row["rows"] or 0,
            by_key=row["by_key"],
            unmatched=row["unmatched"] or 0,
            dropped=bool(row["is_dropped"]),
            folder="/".join(["rows", *unquote(row["path"]).split("/")[-3:-1]])
            if row["path"]
            else None,
        )
        for row in joined.toLocalIterator()
    ]


def _hole_sentences(files: DataFrame, changes: DataFrame) -> list[str]:
    """Return up to `SHOWN_HOLES` sentences of each kind on what the history lacks."""
    kinds = (
        history.missing_ranges(files).select(
            F.format_string(
                "%s: sequence %d to %d of epoch %d is missing", "database", "first", "last", "epoch"
            ).alias("text")
        ),
        changes.where("op = 'gap'").select(
            F.format_string("%s: sequence %d marks a gap: %s", "path", "sequence", "reason")
        ),
        changes.where("op = 'missing'").select(F.format_string("%s: %s", "path", "reason")),
    )
    first_of_each = [kind.limit(SHOWN_HOLES) for kind in kinds]
    return [row["text"] for row in reduce(DataFrame.union, first_of_each).toLocalIterator()]


def describe(report: StateReport, output: str) -> Iterator[str]:
    """Yield the lines of a readable summary."""
    for table in report.tables:
        text = f"{table.database}  {table.table}: {table.rows:,} rows"
        if table.dropped:
            text += " (dropped)"
        if not table.by_key:
            text += " (no lasting key: as a multiset)"
        if table.unmatched:
            text += f", {table.unmatched:,} deletes of rows that the history does not know"
        yield text
    yield ""
    for note in report.notes:
        yield f"note: {note}"
    for hole in report.holes:
        yield f"HOLE: {hole}"
    yield f"written to {output}: rows/ by database and table, summary.json"
    if report.holes:
        yield (
            "the history has holes, so this need not be what the database holds;"
            " `firebird-cdc replay audit` tells more"
        )
