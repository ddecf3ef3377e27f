"""The audit: is every journal sound, is none missing, does each change fit the one before, and do
Kafka and the database hold what the journals say?

Everything is computed by Spark, or by DuckDB and worker processes (`relational`); what reaches the
driver is a summary: one line per database and epoch, one count per table and operation, a bounded
number of findings and histograms of a bounded number of bars. `run_audit` is the library's way in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from time import time
from typing import TYPE_CHECKING, Any

from firebird_cdc.journal.replay.audit import chains
from firebird_cdc.journal.replay.audit.findings import (
    JOURNAL_KINDS,
    OPERATIONS,
    SCHEMA,
    Comparison,
    Finding,
    Kind,
    findings_of,
)
from firebird_cdc.journal.replay.audit.folders import AuditFolders
from firebird_cdc.journal.replay.audit.gap_attribution import claims, unplaced
from firebird_cdc.journal.replay.audit.histograms import read_figures
from firebird_cdc.journal.replay.audit.input import AuditInput, open_input
from firebird_cdc.journal.replay.audit.quarantined import lies_in, with_notes
from firebird_cdc.journal.replay.audit.report import AuditReport, write_report
from firebird_cdc.journal.replay.cluster.progress import doing
from firebird_cdc.journal.replay.output import refuse_existing
from firebird_cdc.journal.replay.relational import F, Window, union
from firebird_cdc.journal.replay.source import ddl, history
from firebird_cdc.journal.replay.source.bounds import Bound
from firebird_cdc.journal.replay.source.history import Span

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from firebird_cdc.journal.replay.audit.folder_facts import FolderFacts

SHOWN_PER_KIND = 20
"""Findings of a kind that are printed and shown on the page; all are in the output folder."""
SHOWN_COUNTS = 500
"""Lines of counts per table and operation that are printed."""

Against = Callable[[AuditInput], Comparison]
"""Compares the journals with something else, e.g. `against_kafka.compare` with all but its second
argument."""


def run_audit(
    spark: SparkSession,
    folders: Sequence[str] | AuditFolders,
    *,
    database: str | None = None,
    none_charset: str = "UTF-8",
    since: Bound | None = None,
    until: Bound | None = None,
    against: Mapping[str, Against] | None = None,
    configuration: dict[str, Any] | None = None,
    output: str | None = None,
    output_format: str = "json",
    html: str | None = None,
    partition_bytes: int | None = None,
) -> AuditReport:
    """Audit the journals in FOLDERS, and AGAINST what else is asked for, by names for the report.

    configuration: facts for the report. OUTPUT: a folder to be made, with ``report.json``,
    ``report.html``, all ``findings/`` and all ``counts/`` in OUTPUT_FORMAT (a format of Spark's);
    HTML: a file for the page alone. Raises ReplayError if there is no journal, a folder can't be
    read or OUTPUT holds anything. Whoever gets the report closes it.
    """
    began = time()
    if output is not None:
        refuse_existing(spark, output)
    if not isinstance(folders, AuditFolders):
        folders = AuditFolders(tuple(folders))
    with ExitStack() as undo:
        with doing(spark, "listing journals"):
            facts = folders.facts()
            changes = open_input(
                spark,
                folders.read,
                database=database,
                none_charset=none_charset,
                since=since,
                until=until,
                quarantine=folders.quarantine,
                partition_bytes=partition_bytes,
            )
            undo.callback(changes.close)
        journals = _Journals(changes, folders, facts, undo)
        with doing(spark, "checking journals"):
            parts = {"journals": journals.compare()}
        for name, compare in (against or {}).items():
            with doing(spark, f"comparing with {name}"):
                parts[name] = compare(journals.changes)
            undo.callback(parts[name].findings.unpersist)
        with doing(spark, "gathering findings"):
            report = _join(journals, parts, folders.read, configuration, began, undo)
        if output is not None or html is not None:
            with doing(spark, "writing the report"):
                write_report(spark, report, output, output_format, html)
        return replace(report, _keep=undo.pop_all())


class _Journals:
    """The part of the audit that needs nothing but journals and what their folder knows."""

    def __init__(
        self,
        changes: AuditInput,
        folders: AuditFolders,
        facts: FolderFacts | None,
        undo: ExitStack,
    ) -> None:
        self._folders = folders
        self._facts = facts if facts is not None and facts.trouble is None else None
        self._undo = undo
        self.notes: list[str] = []
        if facts is not None and facts.trouble is not None:
            self.notes.append(f"{facts.trouble}; what it knows of the last numbers is not used")
        self.changes = self._placed(changes)
        rows = self.changes.load("digest").persist()
        undo.callback(rows.unpersist)
        self.rows = rows

    @property
    def files(self) -> DataFrame:
        return self.changes.files

    def _placed(self, changes: AuditInput) -> AuditInput:
        """Find the place of damaged journals in what the folder and the quarantine know."""
        if not changes.survey.unplaced:
            return changes
        spark, files = changes.spark, changes.files
        known = []
        if self._facts is not None:
            given = list(self._facts.given(span.database for span in changes.spans))
            schema = "journal string, d string, e bigint, s bigint, at bigint"
            known.append(spark.createDataFrame(given, schema).drop("at"))
        if changes.quarantine:
            noted = with_notes(files, changes.quarantine).where("noted_sequence is not null")
            known.append(
                noted.select(
                    "journal",
                    F.col("noted_database").alias("d"),
                    F.col("noted_epoch").alias("e"),
                    F.col("noted_sequence").alias("s"),
                )
            )
        if not known:
            return changes
        places = union(known).dropDuplicates(["journal"])
        columns = files.columns
        placed = (
            files.join(F.broadcast(places), "journal", "left")
            .withColumns(
                {
                    "database": F.coalesce("database", "d"),
                    "epoch": F.when(F.col("sequence").isNull(), F.col("e")).otherwise(
                        F.col("epoch")
                    ),
                    "sequence": F.coalesce("sequence", "s"),
                }
            )
            .withColumn("epoch", F.coalesce("epoch", "e"))
            .select(*columns)
            .persist()
        )
        self._undo.callback(placed.unpersist)
        return replace(changes, files=placed, survey=history.survey(placed))

    def compare(self) -> Comparison:
        """Return what is wrong with the journals."""
        survey, spans = self.changes.survey, self.changes.spans
        expected = self._expected()
        known = {(span.database, span.epoch): span for span in spans}
        reaches = all(
            each[:2] in known
            and known[each[:2]].first <= each.first
            and each.last <= known[each[:2]].last
            for each in expected
        )
        proven_from: dict[tuple[str, int], int] = {}
        holes, claimed, parts = None, None, []
        if not (survey.is_dense and reaches):
            holes = history.holes(self.files, spans, expected).persist()
            self._undo.callback(holes.unpersist)
            missing = self._without_what_came_late(self._without_removed(holes, proven_from))
            if survey.unplaced:
                databases = sorted({span.database for span in spans})
                lost = unplaced(self.files)
                is_whole = self.changes.since is None and self.changes.until is None
                claimed = claims(missing, lost, self.files, databases, is_whole=is_whole).persist()
                self._undo.callback(claimed.unpersist)
            parts.append(_missing(missing, claimed))
        parts += [*self._passed_over(), *self._of_files(claimed)]
        parts += self._of_rows(holes)
        self.notes += [*history.remarks(spans), *self._folders.notes]
        return Comparison(
            union(parts),
            JOURNAL_KINDS,
            [_proven(span, proven_from.get((span.database, span.epoch))) for span in spans],
            self.notes,
        )

    def _expected(self) -> list[Any]:
        """Return the numbers that must be there; none where a range is asked for or a folder is
        unknown."""
        facts, changes = self._facts, self.changes
        if facts is None or changes.until is not None:
            return []
        spans = [(span.database, span.epoch, span.first, span.last) for span in changes.spans]
        found = facts.expected(spans, self._waiting)
        if changes.database is not None:
            found = [each for each in found if each.database == changes.database]
        if changes.since is not None:
            firsts = {(span.database, span.epoch): span.first for span in changes.spans}
            found = [
                each._replace(first=max(each.first, firsts[each[:2]]))
                for each in found
                if each[:2] in firsts
            ]
        return found

    @cached_property
    def _waiting(self) -> dict[tuple[str, int], int]:
        """The first number in the live folder, by database and epoch."""
        assert self._facts is not None
        is_aside = lies_in(self.changes.quarantine)  # a folder in that one
        there = self.files.where(lies_in((str(self._facts.directory),)) & ~is_aside)
        return {(span.database, span.epoch): span.first for span in history.spans(there)}

    def _without_removed(
        self, holes: DataFrame, proven_from: dict[tuple[str, int], int]
    ) -> DataFrame:
        """Leave out what retention or the lack of an archive has rightly removed; PROVEN_FROM gets
        the first number behind that."""
        deleted = {} if self._facts is None else self._facts.deleted_up_to(self._waiting)
        rightly = self._retained()
        if rightly is None and not deleted:
            return holes
        marked = holes.withColumn(
            "is_removed", F.lit(False) if rightly is None else F.coalesce(rightly, F.lit(False))
        )
        if deleted:
            # A table and no condition for each database: that would grow with their number.
            rows = [(name, *(number or (None, None))) for name, number in deleted.items()]
            gone = holes.sparkSession.createDataFrame(
                rows, "database string, gone_epoch bigint, gone_number bigint"
            )
            known = F.broadcast(gone.withColumn("is_deleted", F.lit(True)))
            epoch, number = F.col("gone_epoch"), F.col("gone_number")
            same = F.col("epoch") == epoch
            is_gone = F.col("is_deleted") & (
                epoch.isNull() | (F.col("epoch") < epoch) | (same & (F.col("last") <= number))
            )
            is_partly = same & F.col("first").between(F.lit(0), number) & (F.col("last") > number)
            marked = (
                marked.join(known, "database", "left")
                .withColumn("is_removed", F.col("is_removed") | F.coalesce(is_gone, F.lit(False)))
                .withColumn("first", F.when(is_partly, number + 1).otherwise(F.col("first")))
                .drop("gone_epoch", "gone_number", "is_deleted")
            )
        marked = marked.persist()
        self._undo.callback(marked.unpersist)
        removed = marked.where("is_removed").groupBy("database", "epoch").agg(F.max("last"))
        for database, last_epoch, last in removed.collect():
            proven_from[database, last_epoch] = last + 1
        return marked.where("not is_removed").drop("is_removed")

    def _retained(self) -> Column | None:
        """The condition under which retention may have removed the journals of a hole, None: it
        has removed none."""
        archive = self._folders.archive
        if archive is None or not self._folders.retains:
            return None
        oldest = self._oldest_kept(archive)
        if oldest is None:
            return None
        before = F.col("before_us")
        possible = before <= oldest
        if not self._folders.retention_bytes:
            limit = int((time() - self._folders.retention_ms / 1000) * 1e6)
            possible = possible & (before < limit)
        return before.isNull() | possible

    def _oldest_kept(self, archive: str) -> int | None:
        """Return the last commit time in the archive's oldest file, in microseconds since 1970."""
        container = F.regexp_replace("file", r"(\.zip)/[^/]*$", "$1")
        kept = self.files.where(lies_in((archive,)) & F.col("commit_time").isNotNull())
        newest = kept.groupBy(container.alias("c")).agg(F.max("commit_time").alias("at"))
        row = newest.agg(F.unix_micros(F.min("at")).alias("at")).first()
        return None if row is None else row["at"]

    def _without_what_came_late(self, holes: DataFrame) -> DataFrame:
        """Leave out the last numbers whose journals are there, though not among those listed."""
        if self._facts is None:
            return holes
        given = self._facts.given({span.database for span in self.changes.spans})
        last = {(span.database, span.epoch): span.last for span in self.changes.spans}
        behind: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for uuid, database, epoch, number, _ in given:
            if number > last.get((database, epoch), 0):
                behind.setdefault((database, epoch), []).append((uuid, number))
        late = {}
        for place, journals in behind.items():
            seen = self._facts.unseen(journals)
            self.notes += [f"{place[0]}: {sentence}" for sentence in seen.values()]
            if seen:
                late[place] = sorted(seen)
        if not late:
            return holes
        schema = "database string, epoch bigint, listed bigint"
        rows = [(*place, last.get(place, 0)) for place in late]
        ends = holes.sparkSession.createDataFrame(rows, schema)
        marked = holes.join(F.broadcast(ends), ["database", "epoch"], "left")
        is_end = F.coalesce(F.col("first") > F.col("listed"), F.lit(False))
        others = marked.where(~is_end).drop("listed")
        names = ("database", "epoch", "first", "last", "before_us", "after_us")
        left = [
            (database, epoch, *numbers, *times)
            # One for each database and epoch.
            for database, epoch, first, end, *times in marked.where(is_end).select(*names).collect()
            for numbers in history.ranges_between(first, end, late[database, epoch])
        ]
        if not left:
            return others
        return others.unionByName(holes.sparkSession.createDataFrame(left, history.HOLES))

    def _passed_over(self) -> list[DataFrame]:
        """Return the findings on what the shipper says that it lacked, and is not there now."""
        changes = self.changes
        if self._facts is None or changes.since is not None or changes.until is not None:
            return []
        there = history.stamped(self.files).select("database", "epoch", "sequence")
        lost = []
        for database, epoch, first, last in self._facts.passed_over():
            whose = (F.col("database") == F.lit(database)) & (F.col("epoch") == epoch)
            found = there.where(whose & F.col("sequence").between(first, last)).collect()
            for left in history.ranges_between(first, last, sorted({each[2] for each in found})):
                if changes.database in (None, database):
                    lost.append((database, epoch, *left, None, None))
        if not lost:
            return []
        return [_missing(changes.spark.createDataFrame(lost, history.HOLES), None)]

    def _of_files(self, claimed: DataFrame | None) -> list[DataFrame]:
        """Return what is wrong with single files."""
        files, survey = self.files, self.changes.survey
        quarantine = self.changes.quarantine
        is_aside = lies_in(quarantine)
        doubled = history.duplicate_journals(files)
        wrong = files.where(F.col("problem").isin("damaged", "torn"))
        is_foreign = F.col("journal").isNull() & (
            (F.col("problem") == "torn") | F.col("what").contains("not a journal of firebird-cdc")
        )
        in_segment = F.col("file").rlike(r"\.zip$")
        broken = wrong.where(~is_foreign | in_segment)
        if quarantine:
            # Without a stamp and a note: nobody knows whether its transaction was committed.
            broken = broken.where(~(is_aside & F.col("sequence").isNull()))
        parts = []
        if survey.wrong:
            parts += [
                findings_of(
                    wrong.where(is_foreign & ~in_segment),
                    kind=F.lit("foreign"),
                    what=F.col("what"),
                ),
                findings_of(
                    files.where("problem = 'misnamed'").join(doubled, "journal", "left_anti"),
                    kind=F.lit("misnamed"),
                    what=F.col("what"),
                ),
                findings_of(broken, kind=F.col("problem"), what=F.col("what"))
                if claimed is None
                else _with_places(broken, claimed),
            ]
        if not survey.is_unique:
            parts += _doubled(files)
        if quarantine:
            parts.append(_quarantined(files, quarantine))
        return parts

    def _of_rows(self, holes: DataFrame | None) -> list[DataFrame]:
        """Return what the changes show: journals that can't be read on, marked gaps, and rows that
        don't fit. HOLES: None if there is none."""
        rows, survey = self.rows, self.changes.survey
        special = F.when(F.col("operation") == "ddl", F.col("reason")).alias("special")
        marks = {
            (row["operation"], row["special"])
            for row in rows.where("operation not in ('c', 'u', 'd')")
            .select("operation", special)
            .distinct()
            .collect()
        }
        operations = {operation for operation, _ in marks}
        parts = []
        breaks = [] if holes is None else [chains.across(holes)]
        if survey.wrong or not operations.isdisjoint(("damaged", "missing")):
            unread = _unread(self.files, rows)
            wrong = history.stamped(self.files).where("problem in ('damaged', 'torn')")
            parts.append(findings_of(unread, kind=F.col("kind"), what=F.col("reason")))
            breaks += [chains.at(unread.where("sequence is not null")), chains.at(wrong)]
        if not survey.is_unique:
            copied = history.duplicate_journals(self.files).where("sequence is not null")
            breaks += [chains.at(history.duplicate_sequences(self.files)), chains.at(copied)]
        if "gap" in operations:
            gaps = rows.where("operation = 'gap'")
            what = F.format_string("%s: event %d marks a gap: %s", "file", "position", "reason")
            parts.append(findings_of(gaps, kind=F.lit("gap"), what=what))
            breaks.append(chains.at(gaps))
        ddl_rows = rows.where("operation = 'ddl'")
        if ("ddl", ddl.PUBLICATION) in marks:
            altered = ddl_rows.where(F.col("reason") == ddl.PUBLICATION)
            breaks.append(chains.at(altered, F.col("table")))
        if any(("ddl", drop) in marks for drop in ddl.DROPS):
            dropped = ddl_rows.where(F.col("reason").isin(*ddl.DROPS))
            breaks.append(chains.at(dropped, F.col("table")))
        if ("ddl", ddl.ALTER) in marks:
            # A column that is dropped and added again, or two that swap names, leave the shape.
            moved = F.coalesce(F.col("ddl").rlike(ddl.MOVES_COLUMNS), F.lit(True))
            altered = ddl_rows.where((F.col("reason") == ddl.ALTER) & moved)
            breaks.append(chains.at(altered, F.col("table")))
        parts.append(chains.broken(rows, breaks))
        return parts


def _doubled(files: DataFrame) -> list[DataFrame]:
    """Return the findings on what is there twice."""
    return [
        findings_of(
            history.duplicate_journals(files),
            kind=F.lit("duplicate journal"),
            what=F.format_string(
                "journal %s is there %d times: %s and %s", "journal", "copies", "file", "other"
            ),
        ),
        findings_of(
            history.duplicate_sequences(files),
            kind=F.lit("duplicate sequence"),
            what=F.format_string(
                "%s: %d journals have the sequence number %d of epoch %d: %s and %s",
                "database",
                "copies",
                "sequence",
                "epoch",
                "file",
                "other",
            ),
        ),
    ]


def _with_places(broken: DataFrame, claimed: DataFrame) -> DataFrame:
    """Return the findings on BROKEN files; those that explain a hole say which."""
    holes = claimed.groupBy("file").agg(
        F.min(F.struct("database", "epoch", "first", "last", "numbers")).alias("hole")
    )
    hole = F.col("hole")
    is_known = hole.isNotNull()
    numbers = F.when(
        hole["first"] == hole["last"], F.format_string("number %d", hole["first"])
    ).otherwise(F.format_string("one of the numbers %d to %d", hole["first"], hole["last"]))
    packed = F.format_string("the numbers %d to %d", hole["first"], hole["last"])
    which = F.when(hole["numbers"] > 1, packed).otherwise(numbers)
    what = F.when(
        is_known,
        F.format_string(
            "%s; no other journal has %s of epoch %d of %s, so it is probably that",
            "what",
            which,
            hole["epoch"],
            hole["database"],
        ),
    ).otherwise(F.col("what"))
    is_range = is_known & (hole["first"] != hole["last"])
    return findings_of(
        broken.join(holes, "file", "left"),
        kind=F.col("problem"),
        database=F.coalesce("database", hole["database"]),
        epoch=F.coalesce(hole["epoch"], F.col("epoch")),
        sequence=F.coalesce("sequence", hole["first"]),
        last_sequence=F.when(is_range, hole["last"]),
        what=what,
    )


def _quarantined(files: DataFrame, quarantine: tuple[str, ...]) -> DataFrame:
    """Return the notes on journals that lie in quarantine."""
    given = F.col("reason")
    reason = F.when(given == "", "no reason is given").otherwise(given)
    noted = with_notes(files, quarantine).where(
        "problem is null or problem = 'misnamed' or sequence is null"
    )
    return findings_of(
        noted,
        kind=F.lit("quarantined"),
        what=F.concat(
            F.format_string("%s is in the quarantine: %s", "file", reason),
            F.coalesce(F.concat(F.lit("; not sent: "), F.col("not_sent")), F.lit("")),
        ),
    )


def _missing(missing: DataFrame, claimed: DataFrame | None) -> DataFrame:
    """Return the findings on numbers that no journal has, and no damaged one explains."""
    count = F.col("last") - F.col("first") + 1
    explained = F.lit(0)
    if claimed is not None:
        place = ["database", "epoch", "first", "last"]
        taken = claimed.groupBy(*place).agg(F.sum("numbers").alias("taken"))
        missing = missing.join(taken, place, "left")
        explained = F.coalesce("taken", F.lit(0))
        missing = missing.where(explained < count)
    partly = F.when(explained > 0, F.format_string("; %d of them are damaged", explained))
    return findings_of(
        missing,
        kind=F.lit("missing"),
        sequence=F.col("first"),
        last_sequence=F.col("last"),
        what=F.concat(
            F.format_string(
                "%s: no journal has the sequence numbers %d to %d (%d journals) of epoch %d",
                "database",
                "first",
                "last",
                count,
                "epoch",
            ),
            F.coalesce(partly, F.lit("")),
        ),
    )


def _proven(span: Span, begins: int | None) -> str:
    """Return the sentence on what was proven of SPAN; BEGINS: the first number that must be there,
    where the ones before were rightly removed."""
    first = span.first if begins is None else max(begins, span.first)
    removed = (
        f"; of the {begins - 1:,} numbers before, journals were rightly removed"
        if begins is not None and begins > 1
        else ""
    )
    return (
        f"{span.database}: epoch {span.epoch}, sequence {first:,} to {span.last:,}, committed"
        f" {_when(span.first_commit_us)} to {_when(span.last_commit_us)}{removed}"
    )


def _when(us: int | None) -> str:
    if us is None:
        return "at an unknown time"
    return datetime.fromtimestamp(us // 1_000_000, UTC).isoformat().replace("+00:00", "Z")


def _join(
    journals: _Journals,
    parts: Mapping[str, Comparison],
    folders: tuple[str, ...],
    configuration: dict[str, Any] | None,
    began: float,
    undo: ExitStack,
) -> AuditReport:
    found = union([part.findings for part in parts.values()])
    found = found.select(*SCHEMA).persist()
    undo.callback(found.unpersist)
    meanings: dict[str, Kind] = {}
    facts: dict[str, Any] = {}
    for name, part in parts.items():
        meanings |= part.kinds
        if part.counts:
            facts[name] = part.counts
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    changes = journals.rows.where(F.col("operation").isin(*OPERATIONS))
    if not journals.changes.survey.is_unique:
        changes = changes.dropDuplicates(["journal", "position"])
    counts = (
        changes.groupBy("database", "table", "operation")
        .agg(F.count("*").alias("changes"))
        .persist()
    )
    undo.callback(counts.unpersist)
    ordered = counts.orderBy("database", "table", "operation").limit(SHOWN_COUNTS + 1)
    lines = [tuple(row) for row in ordered.collect()]
    left = counts.count() - SHOWN_COUNTS if len(lines) > SHOWN_COUNTS else 0
    if configuration is not None:
        facts["configuration"] = configuration
    spans = list(journals.changes.spans)
    return AuditReport(
        findings=found,
        tables=counts,
        spans=spans,
        kinds=dict(sorted(kinds.items())),
        meanings=meanings,
        shown=_first_of_each(found) if kinds else [],
        counts=lines[:SHOWN_COUNTS],
        counts_left=left,
        proven=[sentence for part in parts.values() for sentence in part.proven],
        remarks=[sentence for part in parts.values() for sentence in part.notes],
        folders=folders,
        facts=facts,
        figures=read_figures(journals.files, found, spans, sum(kinds.values())),
        began_s=began,
        took_s=time() - began,
        _keep=undo,
    )


def _first_of_each(found: DataFrame) -> list[Finding]:
    order = ("database", "epoch", "sequence", "position", "file", "topic", "partition", "offset")
    # Those of one change differ in these, so that each run shows the same ones.
    details = ("table", "key", "what")
    place = Window.partitionBy("kind").orderBy(*order, *details)
    shown = (
        found.withColumn("place", F.row_number().over(place))
        .where(F.col("place") <= SHOWN_PER_KIND)
        .orderBy("kind", "place")
        .drop("place")
    )
    return [Finding(*row) for row in shown.collect()]


def _unread(files: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the journals whose changes could not all be read, the cause and their place.

    What is wrong with sectors and first block stands in FILES already.
    """
    broken = (
        changes.where("operation in ('damaged', 'missing')")
        .groupBy("file")
        .agg(F.min("operation").alias("operation"), F.min("reason").alias("reason"))
    )
    columns = ("database", "epoch", "sequence", "transaction", "file")
    known = files.select(*columns, "problem")
    return (
        broken.join(known, "file")
        .where("problem is null or problem not in ('damaged', 'torn', 'missing')")
        .select(
            F.when(F.col("operation") == "missing", "vanished").otherwise("damaged").alias("kind"),
            *columns,
            "reason",
        )
        .unionByName(
            files.where("problem = 'missing'").select(
                F.lit("vanished").alias("kind"), *columns, F.col("what").alias("reason")
            )
        )
    )
