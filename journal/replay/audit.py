"""The audit: is every journal sound, is none missing, and does each change fit the one before?

Everything is computed in Spark's tasks; what reaches the driver is a summary: one line per
database and epoch, one count per table and operation, and a bounded number of findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from firebird_cdc.journal.replay import ddl, history
from firebird_cdc.journal.replay.history import Span
from firebird_cdc.journal.replay.output import refuse_existing

SHOWN_PER_KIND = 20
"""Findings of a kind that are printed; all of them are in the output folder."""
SHOWN_COUNTS = 500
"""Lines of counts per table and operation that are printed."""

NOTES = frozenset({"vanished"})
"""Kinds of findings that are worth knowing but are no faults."""

ADVICE = {
    "damaged": "take the file from a backup of the archive; its transaction can't be replayed",
    "misnamed": "rename it to its uuid, or remove it if it is a copy",
    "duplicate journal": "remove the copy",
    "duplicate sequence": "keep the journal that was shipped, and report this with both files:"
    " a number is never given twice",
    "missing": "look for the journals in the live folder and in quarantine, and in backups of"
    " the archive; what cannot be found is lost to a replay",
    "gap": "the marked changes were not captured: compare the tables concerned with the database",
    "chain": "changes between the two were not captured: compare the row with the database",
    "vanished": "read a folder that nobody empties, or run the audit again",
}
"""What to do about each kind of finding."""

_FINDING = ("kind", "database", "epoch", "sequence", "last_sequence", "table", "path", "what")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or note; ``what`` tells it in a sentence, `ADVICE` what to do."""

    kind: str
    database: str | None
    epoch: int | None
    sequence: int | None
    last_sequence: int | None
    table: str | None
    path: str | None
    what: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """``kinds``: how many findings of each kind; ``shown``: the first of each.

    ``counts``: (database, table or None, op, number); ``counts_left``: how many more there are.
    ``remarks``: sentences on the history that are no faults.
    """

    spans: list[Span]
    kinds: dict[str, int]
    shown: list[Finding]
    counts: list[tuple[str, str | None, str, int]]
    counts_left: int
    remarks: list[str]

    @property
    def sound(self) -> bool:
        """True if there is no fault."""
        return not self.kinds.keys() - NOTES


def run_audit(
    spark: SparkSession,
    folders: Sequence[str],
    *,
    database: str | None = None,
    none_charset: str = "UTF-8",
    output: str | None = None,
    output_format: str = "json",
    partition_bytes: int | None = None,
) -> AuditReport:
    """Audit the journals in FOLDERS; write all findings and counts to the folder OUTPUT.

    Raises ReplayError if there is no journal or a folder can't be read.
    """
    if output is not None:
        refuse_existing(spark, output)
    files = history.read_files(spark, folders, database)
    reader = (
        spark.read.format("firebird_journal")
        .option("rows", "digest")
        .option("onDamage", "report")
        .option("noneCharset", none_charset)
    )
    if database is not None:
        reader = reader.option("database", database)
    if partition_bytes is not None:
        reader = reader.option("partitionBytes", partition_bytes)
    changes = reader.load(list(folders)).persist(StorageLevel.MEMORY_AND_DISK)
    found = _findings(files, changes).persist(StorageLevel.MEMORY_AND_DISK)
    counts = (
        changes.where(F.col("op").isin("c", "u", "d", "ddl", "gap"))
        .groupBy("database", "table", "op")
        .agg(F.count("*").alias("changes"))
    )
    try:
        report = _report(files, found, counts)
        if output is not None:
            for name, table in (("findings", found), ("counts", counts)):
                writer = table.write.mode("errorifexists").format(output_format)
                writer.save(f"{output.rstrip('/')}/{name}")
        return report
    finally:
        for table in (found, changes, files):
            table.unpersist()


def _report(files: DataFrame, found: DataFrame, counts: DataFrame) -> AuditReport:
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().toLocalIterator()}
    place = Window.partitionBy("kind").orderBy("database", "epoch", "sequence", "path")
    shown = (
        found.withColumn("place", F.row_number().over(place))
        .where(F.col("place") <= SHOWN_PER_KIND)
        .orderBy("kind", "place")
        .drop("place")
    )
    ordered = counts.orderBy("database", "table", "op").limit(SHOWN_COUNTS + 1)
    lines = [tuple(row) for row in ordered.toLocalIterator()]
    left = counts.count() - SHOWN_COUNTS if len(lines) > SHOWN_COUNTS else 0
    spans = history.spans(files)
    return AuditReport(
        spans=spans,
        kinds=dict(sorted(kinds.items())),
        shown=[Finding(*row) for row in shown.toLocalIterator()],
        counts=lines[:SHOWN_COUNTS],
        counts_left=left,
        remarks=history.remarks(spans),
    )


def _findings(files: DataFrame, changes: DataFrame) -> DataFrame:
    """Return all findings with the columns of `Finding`."""
    missing = history.missing_ranges(files)
    doubled = history.duplicate_sequences(files)
    unread = _unread(files, changes)
    chain = _broken_chains(changes, _holes(missing, doubled, unread, changes))
    parts = [
        _of_kind(
            files.where("problem in ('damaged', 'misnamed')"),
            kind=F.col("problem"),
            what=F.col("what"),
        ),
        _of_kind(unread, kind=F.col("kind"), what=F.col("reason")),
        _of_kind(
            missing,
            kind=F.lit("missing"),
            sequence=F.col("first"),
            last_sequence=F.col("last"),
            what=F.format_string(
                "%s: no journal has the sequence numbers %d to %d (%d journals) of epoch %d",
                "database",
                "first",
                "last",
                F.col("last") - F.col("first") + 1,
                "epoch",
            ),
        ),
        _of_kind(
            doubled,
            kind=F.lit("duplicate sequence"),
            what=F.format_string(
                "%s: %d journals have the sequence number %d of epoch %d: %s and %s",
                "database",
                "copies",
                "sequence",
                "epoch",
                "path",
                "other",
            ),
        ),
        _of_kind(
            history.duplicate_journals(files),
            kind=F.lit("duplicate journal"),
            what=F.format_string(
                "journal %s is there %d times: %s and %s", "journal", "copies", "path", "other"
            ),
        ),
        _of_kind(
            changes.where("op = 'gap'"),
            kind=F.lit("gap"),
            what=F.format_string("%s: event %d marks a gap: %s", "path", "pos", "reason"),
        ),
        _of_kind(
            chain,
            kind=F.lit("chain"),
            what=F.format_string(
                "%s: event %d of sequence %d (%s) does not fit the row's last known state of"
                " sequence %d; key %s",
                "table",
                "pos",
                "sequence",
                "op",
                "previous_sequence",
                "key",
            ),
        ),
    ]
    return reduce(DataFrame.unionByName, parts)


def _of_kind(table: DataFrame, **columns: Column) -> DataFrame:
    """Give TABLE the columns of `Finding`: COLUMNS, else its own, else null."""
    types = {"epoch": "bigint", "sequence": "bigint", "last_sequence": "bigint"}
    return table.select(
        *(
            (
                columns[name]
                if name in columns
                else F.col(name)
                if name in table.columns
                else F.lit(None)
            )
            .cast(types.get(name, "string"))
            .alias(name)
            for name in _FINDING
        )
    )


def _unread(files: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the journals whose changes could not all be read, the cause and their place.

    What is wrong with sectors and first block stands in FILES already.
    """
    broken = (
        changes.where("op in ('damaged', 'missing')")
        .groupBy("path")
        .agg(F.min("op").alias("op"), F.min("reason").alias("reason"))
    )
    known = files.select("path", "database", "epoch", "sequence", "problem")
    return (
        broken.join(known, "path")
        .where("problem is null or problem not in ('damaged', 'missing')")
        .select(
            F.when(F.col("op") == "missing", "vanished").otherwise("damaged").alias("kind"),
            "database",
            "epoch",
            "sequence",
            "path",
            "reason",
        )
        .unionByName(
            files.where("problem = 'missing'").select(
                F.lit("vanished").alias("kind"),
                "database",
                "epoch",
                "sequence",
                "path",
                F.col("what").alias("reason"),
            )
        )
    )


def _holes(
    missing: DataFrame, doubled: DataFrame, unread: DataFrame, changes: DataFrame
) -> DataFrame:
    """Return (database, epoch, first, last, table): where the history is known not to be whole.

    Over such a place two changes of a row need not fit. ``table`` null: for all tables.
    """
    alone = ("database", "epoch", F.col("sequence").alias("first"), F.col("sequence").alias("last"))
    nothing = F.lit(None).cast("string").alias("table")
    marks = changes.where(
        (F.col("op") == "gap") | ((F.col("op") == "ddl") & (F.col("reason") == ddl.PUBLICATION))
    )
    drops = changes.where((F.col("op") == "ddl") & F.col("reason").isin(*ddl.DROPS))
    return reduce(
        DataFrame.unionByName,
        [
            missing.select("database", "epoch", "first", "last", nothing),
            doubled.select(*alone, nothing),
            unread.where("sequence is not null").select(*alone, nothing),
            marks.select(*alone, nothing),
            drops.select(*alone, "table"),
        ],
    )


def _broken_chains(changes: DataFrame, holes: DataFrame) -> DataFrame:
    """Return the changes whose row before does not equal the row as last written.

    Only where both have the same shape, and no hole lies between them.
    """
    row_key = ("database", "epoch", "table", "key")
    order = Window.partitionBy(*row_key).orderBy("sequence", "pos")
    former = "last_shape", "last_after", "previous_sequence"
    suspects = (
        changes.where("op in ('c', 'u', 'd') and key is not null")
        .select(
            "database",
            "epoch",
            "table",
            "table_shape",
            "sequence",
            "pos",
            "path",
            "op",
            F.inline(states()),
        )
        .withColumns(
            {
                name: F.lag(column).over(order)
                for name, column in zip(former, ("table_shape", "after", "sequence"), strict=True)
            }
        )
        .where(F.col("last_shape") == F.col("table_shape"))
        .where(~F.col("last_after").eqNullSafe(F.col("before")))
        .alias("suspect")
    )
    hole = holes.alias("hole")
    explained = (
        (F.col("hole.database") == F.col("suspect.database"))
        & (F.col("hole.epoch") == F.col("suspect.epoch"))
        & (F.col("hole.first") <= F.col("suspect.sequence"))
        & (F.col("hole.last") >= F.col("suspect.previous_sequence"))
        & (F.col("hole.table").isNull() | (F.col("hole.table") == F.col("suspect.table")))
    )
    return suspects.join(hole, explained, "left_anti")


def states() -> Column:
    """Return, for a change, what it makes of each key: an array of (key, before, after).

    An update that changes the key is the end of the row under the old key and the beginning
    of one under the new.
    """
    nothing = F.lit(None).cast("string")
    kept = F.struct(F.col("key").alias("key"), "before", "after")
    ended = F.struct(F.col("old_key").alias("key"), "before", nothing.alias("after"))
    begun = F.struct(F.col("key").alias("key"), nothing.alias("before"), "after")
    return F.when(F.col("old_key").isNull(), F.array(kept)).otherwise(F.array(ended, begun))


def describe(report: AuditReport) -> Iterator[str]:
    """Yield the lines of a readable summary."""
    for span in report.spans:
        yield (
            f"{span.database}: epoch {span.epoch}, sequence {span.first:,} to {span.last:,},"
            f" {span.journals:,} journals, {span.events:,} events"
        )
    if report.counts:
        yield ""
    last: tuple[str | None, str | None] | None = None
    line = ""
    for database, table, op, number in report.counts:
        if (database, table) != last:
            if line:
                yield line
            line = f"  {table or '(no table)'}:"
            last = (database, table)
        line += f"{',' if line[-1] != ':' else ''} {number:,} {_OPERATIONS[op]}"
    if line:
        yield line
    if report.counts_left:
        yield f"  ... and {report.counts_left:,} more counts; --output writes all"
    yield ""
    for remark in report.remarks:
        yield f"note: {remark}"
    shown = {kind: [f for f in report.shown if f.kind == kind] for kind in report.kinds}
    for kind, number in sorted(report.kinds.items(), key=lambda item: item[0] in NOTES):
        label = "note" if kind in NOTES else "FAULT"
        for finding in shown[kind]:
            yield f"{label} ({kind}): {finding.what}"
        if number > len(shown[kind]):
            yield f"  ... and {number - len(shown[kind]):,} more; --output writes all"
        yield f"  -> {ADVICE[kind]}"
    if report.sound:
        yield "sound: every journal is whole, none is missing, every change fits the one before"
    else:
        faults = sum(number for kind, number in report.kinds.items() if kind not in NOTES)
        yield f"not sound: {faults:,} faults"


_OPERATIONS = {"c": "inserts", "u": "updates", "d": "deletes", "ddl": "statements", "gap": "gaps"}
