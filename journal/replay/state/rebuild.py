"""The state rebuild: the rows that each table has at a point of its history.

Three passes over the journals, each in tasks. The first reads sectors: which journals there
are, and which of them lie before the point. The second reads the few blocks that hold definitions
and DDL: what each table is like at the point, and what became of its columns (`evolution`). The
third reads the rows as they stand there (`images`), brings them together by key in one shuffle and
decodes what is left (`folding`, `writing`).

A table whose key never changed is folded by it: the last change of each key, by (epoch, sequence,
event), says what row there is. Any other is folded as a multiset of rows: what was inserted less
what was deleted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.folder.segments import database_digest
from firebird_cdc.journal.replay.cluster.progress import doing
from firebird_cdc.journal.replay.cluster.session import plain_errors
from firebird_cdc.journal.replay.output import refuse_existing, take_back, write_last
from firebird_cdc.journal.replay.relational import F, is_local
from firebird_cdc.journal.replay.source import history, points
from firebird_cdc.journal.replay.source.history import Span
from firebird_cdc.journal.replay.source.planning import JournalOptions
from firebird_cdc.journal.replay.source.points import Point
from firebird_cdc.journal.replay.state.evolution import plan_tables
from firebird_cdc.journal.replay.state.folding import Tally
from firebird_cdc.journal.replay.state.images import Journals, Plan, damage_sentence
from firebird_cdc.journal.replay.state.outline import Damaged, Number, Outline
from firebird_cdc.journal.replay.state.typed import CAUSES
from firebird_cdc.journal.replay.state.writing import Sink, write_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_HOLES = 20
"""Sentences about an incomplete history that are printed and kept in the summary."""


@dataclass(frozen=True, slots=True)
class RebuiltTable:
    """One table: ``rows`` it has, and ``folder`` in the output, None if nothing is there.

    ``by_key``: folded by key, else as a multiset; ``unmatched``: deletes of rows that no insert
    in the history explains (multisets only); ``dropped``: a DROP TABLE was its end. ``missing``:
    by column, how often its content is not known, by cause (`typed.CAUSES`). ``row_by_row``: how
    many rows were decoded one by one where columns at once were to be expected, by cause.
    """

    database: str
    table: str
    rows: int
    by_key: bool
    unmatched: int
    dropped: bool
    folder: str | None
    missing: dict[str, dict[str, int]] = field(default_factory=dict)
    row_by_row: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateReport:
    """``holes``: sentences on why the state may not be that of the database; empty: none.

    ``point``: what was asked for, None: the end of the history. ``places``: by database, epoch and
    sequence of the last journal that was taken in.
    """

    spans: list[Span]
    tables: list[RebuiltTable]
    holes: list[str]
    notes: list[str]
    point: str | None
    places: dict[str, tuple[int, int]]

    @property
    def whole(self) -> bool:
        """True if the history that was read has no hole, and no content is missing."""
        return not self.holes and not any(table.missing for table in self.tables)

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
    output_format: str = "parquet",
    options: Mapping[str, str] | None = None,
    point: Point | None = None,
    partition_bytes: int | None = None,
) -> StateReport:
    """Write the tables in FOLDERS as of POINT to OUTPUT, and ``summary.json`` beside them.

    output: a folder that does not exist yet. output_format: ``json``: one row per line, as
    `firebird_cdc.journal.types.canonical` writes it; else a format of Spark, which gets each
    table's rows as typed columns (`typed`). options: of that format; ``{database}`` and ``{table}``
    in a value stand for the names; ``path`` set and empty: the sink takes none, as jdbc. point:
    None: the end. Raises ReplayError if there is no journal up to POINT, no TABLE in them, one is
    damaged, or a number was given twice.
    """
    output = output.rstrip("/")
    refuse_existing(spark, output)
    reading: dict[str, str] = {"paths": json.dumps(list(folders)), "noneCharset": none_charset}
    reading["onEmpty"] = "accept"
    if database is not None:
        reading["database"] = database
    if partition_bytes is not None:
        reading["partitionBytes"] = str(partition_bytes)
    journals = Journals.list(JournalOptions.parse(reading))
    if not journals.whole:
        raise ReplayError(history.nothing_there(folders, database))
    with nullcontext() if is_local(spark) else plain_errors():
        asked = _Limits(None, {}, [], [])
        if point is not None:
            files = _files(journals.survey(spark, None, False), damaged_too=True).persist()
            try:
                asked = _limits(files, point)
            finally:
                files.unpersist()
        limits, notes, holes = asked.places, asked.notes, asked.holes
        with doing(spark, "looking at the journals"):
            survey = Outline.of(journals.survey(spark, limits, True))
        for found in survey.damaged:
            if not _is_behind(found, asked.cuts, survey.spans):
                raise ReplayError(damage_sentence(found.sentence))
        if survey.damaged:
            first, *more = (found.file for found in survey.damaged)
            notes.append(
                f"behind {point}, and so not needed, is what can't be read: {first}"
                + (f" and {len(more)} more" if more else "")
            )
        if not survey.spans:
            raise ReplayError(history.nothing_there(folders, database))
        if survey.is_doubled:
            _refuse_duplicates(_files(journals.survey(spark, limits, False)))
        if survey.lacks_numbers:
            holes += _missing_ranges(_files(journals.survey(spark, limits, False)))
        limits = {span.database: (span.epoch, span.last) for span in survey.spans}
        tables = plan_tables(survey.shapes, survey.statements)
        chosen = [of for of in tables if table is None or of.name == table]
        if table is not None and not chosen:
            raise ReplayError(_no_such_table(table, {of.name for of in tables}))
        plan = Plan.of(
            chosen,
            [shape.table for shape in survey.shapes],
            limits,
            none_charset,
            journals.buckets(survey.bytes),
            frozenset(found.file.rpartition("/")[2] for found in survey.damaged),
        )
        sink = Sink(output, output_format, dict(options or {}))
        try:
            with doing(spark, "rebuilding tables"):
                tally = write_tables(spark, journals, plan, sink)
        except BaseException:
            take_back(spark, output)  # half of a state is none
            raise
        vanished = tally.sentences.get("missing", set()) | survey.vanished
        for sentences in (tally.sentences.get("gap", set()), vanished):
            holes += sorted(sentences)[:SHOWN_HOLES]
        report = StateReport(
            spans=survey.spans,
            tables=list(_table_states(plan, tally, sink)),
            holes=holes,
            notes=[
                *history.remarks(survey.spans),
                *notes,
                *(f"in tasks {slow}" for slow in sorted(tally.sentences.get("slow", ()))),
            ],
            point=None if point is None else str(point),
            places=limits,
        )
        write_last(spark, output, "summary.json", report.as_json() + "\n")
        return report


def _no_such_table(table: str, there: Set[str]) -> str:
    shown = sorted(there, key=lambda name: (name.upper() != table.upper(), name))[:SHOWN_HOLES]
    more = f" and {len(there) - len(shown)} more" if len(there) > len(shown) else ""
    names = ", ".join(shown) + more if there else "none"
    return (
        f"no change of a table {table} lies in the history that was read; it has those of: {names}."
        " --table takes a name as the engine keeps it, in capitals unless it was quoted"
    )


def _files(survey: DataFrame, *, damaged_too: bool = False) -> DataFrame:
    """Return the journals as the functions of `history` and `points` want them; a file stands for
    the journal in it. DAMAGED_TOO: also those that can't be read, if their place is known."""
    kinds = ["file", "damaged"] if damaged_too else ["file"]
    return history.stamped(survey.where(F.col("kind").isin(*kinds))).withColumns(
        {"commit_time": F.timestamp_micros("commit_us"), "journal": F.col("file")}
    )


class _Limits(NamedTuple):
    """Numbers at a point in each database. ``places``: the last journal up to it, None: of all;
    ``cuts``: the first number behind it, absent where none is known to be. ``notes``, and
    ``holes``: sentences on a point that lies behind the history's end."""

    places: dict[str, Number] | None
    cuts: dict[str, Number]
    notes: list[str]
    holes: list[str]


def _limits(files: DataFrame, point: Point) -> _Limits:
    """Look where POINT lies: one row per database."""
    number = F.struct("epoch", "sequence")
    is_later = F.unix_micros("commit_time") > point.value
    ends: dict[str, tuple[Number, Number]] = {}
    cuts: dict[str, Number] = {}
    for row in (
        files.groupBy("database")
        .agg(
            F.min(number).alias("first"),
            F.max(number).alias("last"),
            F.min(F.when(is_later, number)).alias("later"),
        )
        .collect()
    ):
        ends[row["database"]] = tuple(row["first"]), tuple(row["last"])
        if point.kind == "transaction":
            cuts[row["database"]] = 0, 0  # unless it is of this database, none is asked for
        elif point.kind == "time" and row["later"] is not None:
            cuts[row["database"]] = tuple(row["later"])
    limits: dict[str, Number] = {}
    notes, holes = [], []
    for row in points.last_numbers(files, point).collect():
        name, limit = row["database"], (row["last_epoch"], row["last_sequence"])
        if point.kind != "time":
            cuts[name] = limit[0], limit[1] + 1
        first, last = ends[name]
        if limit < first:
            continue
        limits[name] = limit
        here = f"{name}: the history that was read ends at sequence {last[1]} of epoch {last[0]}"
        if limit > last:
            holes.append(f"{here}, before {point}; the state is that of its end")
        elif point.kind == "time" and name not in cuts:
            notes.append(f"{here}, before {point}; the state is that of its end")
    if not limits:
        (name, (first, _)), *_ = sorted(ends.items())
        raise ReplayError(
            f"no journal lies at or before {point}: the history of {name} begins at sequence"
            f" {first[1]} of epoch {first[0]}"
        )
    why = "it has no" if point.kind == "transaction" else "its history begins after"
    for name in sorted(ends.keys() - limits.keys()):
        notes.append(f"{name}: {why} {point}; none of it is written")
    return _Limits(limits, cuts, notes, holes)


def _is_behind(found: Damaged, cuts: dict[str, Number], spans: Sequence[Span]) -> bool:
    """Tell whether FOUND surely lies behind the point of CUTS; SPANS: of what lies before it.

    Its stamp says so, or its segment's name; or all numbers that it could have before the point
    are other journals'.
    """
    packed = found.packed
    database, lowest = found.database, found.number
    if packed is not None:
        database = database or next((n for n in cuts if database_digest(n) == packed[1]), None)
        lowest = lowest or (int(packed[2]), int(packed[3]))
    if database not in cuts:
        return False
    cut, (epoch, first) = cuts[database], lowest or (0, 1)
    if found.number is not None or (epoch, first) >= cut:
        return (epoch, first) >= cut
    return any(
        (span.database, span.epoch, span.last) == (database, epoch, cut[1] - 1)
        and span.first <= first
        and span.journals == span.last - span.first + 1
        for span in spans
        if epoch == cut[0]
    )


def _refuse_duplicates(files: DataFrame) -> None:
    """Two journals with one number would be folded in an order of chance."""
    double = history.duplicate_sequences(files).first()
    if double is not None:
        raise ReplayError(
            f"{double['database']}: {double['copies']} journals have the sequence number"
            f" {double['sequence']} of epoch {double['epoch']}: {double['file']} and"
            f" {double['other']}; remove the copy (`firebird-cdc replay audit` lists all)"
        )


# The summary.


def _table_states(plan: Plan, tally: Tally, sink: Sink) -> Iterator[RebuiltTable]:
    for index, table in enumerate(plan.tables):
        missing = {
            column: dict(causes)
            for (of, column), causes in sorted(tally.missing.items(), key=lambda item: item[0])
            if of == index
        }
        rows = tally.rows[index]
        is_there = rows > 0 if sink.format == "json" else bool(table.columns)
        folder = sink.folder(table.database, table.name)
        yield RebuiltTable(
            database=table.database,
            table=table.name,
            rows=rows,
            by_key=bool(table.key) or not table.columns,
            unmatched=tally.unmatched[index],
            dropped=table.is_dropped,
            folder=folder if is_there and sink.has_path else None,
            missing=missing,
            row_by_row=dict(tally.slowed.get(index, {})),
        )


def _missing_ranges(files: DataFrame) -> list[str]:
    ranges = history.missing_ranges(files).select(
        F.format_string(
            "%s: sequence %d to %d of epoch %d is missing", "database", "first", "last", "epoch"
        ).alias("text")
    )
    return [row["text"] for row in ranges.limit(SHOWN_HOLES).collect()]


def describe(report: StateReport, output: str) -> Iterator[str]:
    """Yield the lines of a readable summary."""
    for name, (epoch, sequence) in sorted(report.places.items()):
        yield f"{name} as of sequence {sequence} of epoch {epoch}"
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
    for table in report.tables:
        for cause, count in table.row_by_row.items():
            yield (
                f"note: {table.database}  {table.table}: {count:,} rows were decoded one by one,"
                f" which is slower: {cause}"
            )
    for hole in report.holes:
        yield f"HOLE: {hole}"
    causes: Counter[str] = Counter()
    for table in report.tables:
        for column, missing in table.missing.items():
            for cause, count in missing.items():
                causes[cause] += count
                yield f"MISSING: {table.database}  {table.table}.{column}: {count:,} {cause}"
    yield f"written to {output}: rows/ by database and table, summary.json"
    if report.holes:
        yield (
            "the history has holes, so this need not be what the database holds;"
            " `firebird-cdc replay audit` tells more"
        )
    for cause, count in causes.items():
        yield f"{count:,} values are null in what was written: {CAUSES[cause]}"
