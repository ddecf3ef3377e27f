"""SQL from journals that brings a restored backup forward to a point: scripts for isql, in parts.

The journals of the range are put in the order of their numbers and cut into parts of about even
size; a task writes a part (`sql_script.PartWriter`). Only names, places and sizes of journals are
shuffled, and each journal is read where its part is written. The driver keeps a line per part.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from firebird_cdc.errors import JournalError, ReplayError
from firebird_cdc.journal.format import Gap, raw_texts
from firebird_cdc.journal.replay.cluster.progress import doing
from firebird_cdc.journal.replay.cluster.session import plain_errors
from firebird_cdc.journal.replay.output import refuse_existing, write_last, write_text
from firebird_cdc.journal.replay.source import history, points
from firebird_cdc.journal.replay.source.finder import JournalFinder
from firebird_cdc.journal.replay.source.points import Point
from firebird_cdc.journal.replay.source.storage import folder_at
from firebird_cdc.journal.replay.sql import script

if TYPE_CHECKING:
    from firebird_cdc.journal.replay.sql.restored import Held

SHOWN = 20
"""Holes, and sentences on what is left out, that are told of each kind and part."""

PART_BYTES = 32 * 1024 * 1024
"""Bytes of journals for one part; a guess. The SQL of a part is two to four times as large."""

_BUCKET = 65_536  # numbers that one task sums up
_OVERHEAD = 512  # what a journal costs beside its bytes
_CHUNK = 1024 * 1024  # characters of SQL that go to Spark at once


class _Piece(NamedTuple):
    """Part of a journal that a task reads; ``start``, ``end``: bytes, as in `JournalPartition`."""

    file: str
    epoch: int
    sequence: int
    transaction: int
    commit_us: int
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class ForwardReport:
    """Summary of what was written. ``since``, ``until``: epoch and sequence of the last journal
    that the backup has, and of the last one of the script; ``journals``: how many it applies.

    ``tables``: numbers of inserts, updates and deletes by table. ``left_out``: sentences on what
    the script can't do; ``holes``: on what the journals lack; ``notes``: what is no fault.
    """

    database: str
    run: str
    since: tuple[int, int]
    until: tuple[int, int]
    journals: int
    parts: int
    tables: dict[str, dict[str, int]]
    left_out: list[str]
    holes: list[str]
    notes: list[str]

    @property
    def whole(self) -> bool:
        """Tell whether the script makes all that happened."""
        return not self.holes and not self.left_out


def write_forward(
    spark: SparkSession,
    folders: Sequence[str],
    output: str,
    *,
    since: Point | None = None,
    until: Point | None = None,
    held: Held | None = None,
    database: str | None = None,
    none_charset: str = "UTF-8",
    tolerant: bool = False,
    despite_holes: bool = False,
    published: bool = False,
    per_commit: int = 1,
    part_bytes: int = PART_BYTES,
) -> ForwardReport:
    """Write the scripts to OUTPUT, a folder that does not exist yet, and ``summary.json``.

    since: the last journal that the backup holds, or held: what the restored copy itself says of
    that. until: the last journal to apply, None: the last there is. tolerant: rows that are not as
    the journals say are made so, and statements that fail are noted. published: leave the
    publication on. per_commit: transactions that share a COMMIT.
    Raises ReplayError if nothing lies in the range, the journals are of several databases, or
    something is missing, marked as a gap, damaged or doubled there and not DESPITE_HOLES.
    """
    output = output.rstrip("/")
    refuse_existing(spark, output)
    files = history.read_files(spark, folders, database)
    try:
        with doing(spark, "looking for holes in the history"):
            name = _one_database(files)
            chosen = _range(spark, files, since, until, held)
            journals = chosen.files.count()
            if not journals:
                raise ReplayError(
                    f"no journal of {name} lies behind {chosen.since_text}"
                    f" and {'before the end' if until is None else f'up to {until}'}:"
                    " there is nothing to apply"
                )
            holes = _holes(files, chosen, until)
        if holes and not despite_holes:
            raise ReplayError(
                f"{holes[0]}{f' (and {len(holes) - 1} more)' if len(holes) > 1 else ''}; SQL across"
                " that would not make what the database held: bring the journals back,"
                " stop before it with --until, or accept it with --despite-holes"
            )
        run = str(uuid.uuid4())
        task = _Task(
            tuple(folders), none_charset, run, tolerant, despite_holes, published, per_commit
        )
        with doing(spark, "writing SQL"), plain_errors():
            texts = _pieces(chosen.files, part_bytes).rdd.mapPartitions(task)
            lines = spark.createDataFrame(texts, "value string", verifySchema=False)
            lines.write.text(f"{output}/parts")
        last = _only(chosen.files, F.max(F.struct("epoch", "sequence")))
        with doing(spark, "listing the parts"):
            return _finish(
                spark,
                output,
                _Run(name, run, chosen.since, (last[0], last[1]), journals, tolerant, published),
                holes,
                chosen.notes,
            )
    finally:
        files.unpersist()


def _only(table: DataFrame, what: Column) -> Any:
    """Return the value of an aggregate over all of TABLE."""
    row = table.agg(what).first()
    assert row is not None
    return row[0]


def _one_database(files: DataFrame) -> str:
    names = [
        row["database"] for row in history.stamped(files).select("database").distinct().take(2)
    ]
    if not names:
        raise ReplayError(
            "none of the journals has a place in a history: there is nothing to apply"
        )
    if len(names) > 1:
        raise ReplayError(
            f"the journals are of several databases, {' and '.join(sorted(names))} among them:"
            " say which by --database"
        )
    return str(names[0])


class _Range(NamedTuple):
    """The journals to apply; ``window``: those and the ones between them that the copy holds."""

    files: DataFrame
    window: DataFrame
    since: tuple[int, int]
    since_text: str
    notes: list[str]


def _range(
    spark: SparkSession,
    files: DataFrame,
    since: Point | None,
    until: Point | None,
    held: Held | None,
) -> _Range:
    known = history.stamped(files)
    if until is not None:
        known = points.up_to(known, points.last_numbers(files, until))
    if held is not None:
        return _not_held(spark, known, held)
    assert since is not None
    last = points.last_numbers(files, since).first()
    if last is None:  # a time before the first journal
        first = _only(known, F.min(F.struct("epoch", "sequence")))
        begin = (0, 0) if first is None else (first[0], first[1] - 1)
    else:
        begin = (last["last_epoch"], last["last_sequence"])
    chosen = known.where(
        (F.col("epoch") > begin[0])
        | ((F.col("epoch") == begin[0]) & (F.col("sequence") > begin[1]))
    )
    return _Range(chosen, chosen, begin, f"journal {begin[0]}:{begin[1]}", [])


def _not_held(spark: SparkSession, known: DataFrame, held: Held) -> _Range:
    """Keep the journals of the last epoch whose transactions the copy does not hold."""
    epoch = _only(known, F.max("epoch"))
    known = known.where(F.col("epoch") == F.lit(epoch))
    first = _only(known, F.unix_micros(F.min("commit_time")))
    if first is not None and first < held.created_us:
        raise ReplayError(
            f"{held.dsn} was made after the first of these journals was committed, so it is no"
            " physical copy of their database: gbak begins new numbers of transactions, and such a"
            " copy can't say which ones it holds. Give the place by --since"
        )
    absent = spark.createDataFrame([*held.absent, (held.next, 2**63 - 1)], "a bigint, z bigint")
    number = F.col("transaction")
    missing = known.join(
        F.broadcast(absent), (number >= F.col("a")) & (number <= F.col("z")), "left_semi"
    )
    lowest = _only(missing, F.min("sequence"))
    if lowest is None:
        raise ReplayError(
            f"{held.dsn} holds all the journals' transactions: there is nothing to apply"
        )
    window = known.where((F.col("sequence") >= lowest) | (number >= held.oldest))
    inside = known.where(F.col("sequence") > lowest).count() - (missing.count() - 1)
    notes = [f"{held.dsn} holds the journals before {epoch}:{lowest}"]
    if inside:
        notes.append(f"and {inside} behind it, which are left out")
    return _Range(missing, window, (epoch, lowest - 1), f"what {held.dsn} holds", notes)


def _holes(files: DataFrame, chosen: _Range, until: Point | None) -> list[str]:
    """Return sentences on what the range lacks, at most `SHOWN` of a kind."""
    window = chosen.window
    holes = []
    spans = history.spans(window)
    ends = [chosen.since, *((span.epoch, span.last) for span in spans)]
    holes += [
        f"epoch {span.epoch} begins behind journal {_shown(end)}: the database"
        " was restored or replaced there, and what that undid is in no journal"
        for end, span in zip(ends, spans, strict=False)
        if span.epoch > end[0]
    ]
    first = spans[0]
    begin = chosen.since[1] if first.epoch == chosen.since[0] else 0
    if first.first > begin + 1:
        holes.append(_missing(first.epoch, begin + 1, first.first - 1))
    if until is not None and until.kind == "sequence":
        *_, last = spans
        epoch = last.epoch if until.epoch is None else until.epoch
        if (last.epoch, last.last) < (epoch, until.value):
            after = last.last if last.epoch == epoch else 0
            holes.append(_missing(epoch, after + 1, until.value))
    ranges = history.missing_ranges(window).orderBy("epoch", "first").limit(SHOWN)
    holes += [_missing(row["epoch"], row["first"], row["last"]) for row in ranges.collect()]
    holes += [
        f"{row['copies']} journals have the number {row['epoch']}:{row['sequence']}:"
        f" {row['file']} and {row['other']}"
        for row in history.duplicate_sequences(window).limit(SHOWN).collect()
    ]
    nowhere = files.where("sequence is null or database is null")
    faulty = window.select("file", "problem", "what").unionByName(
        nowhere.select("file", "problem", "what")
    )
    holes += [
        row["what"]
        for row in faulty.where("problem is not null and problem <> 'misnamed'")
        .limit(SHOWN)
        .collect()
    ]
    return holes


def _missing(epoch: int, first: int, last: int) -> str:
    if first == last:
        return f"journal {epoch}:{first} is missing"
    return f"journals {epoch}:{first} to {epoch}:{last} are missing"


# The parts.


def _pieces(files: DataFrame, part_bytes: int) -> DataFrame:
    """Return columns `_Piece`, a partition for each part, sorted."""
    in_segment = F.col("file").contains(".zip/")
    number = F.when(in_segment, F.lit(1)).otherwise(
        F.greatest(F.ceil(F.col("size") / part_bytes), F.lit(1))
    )
    cut = (
        files.withColumn("number", number.cast("int"))
        .withColumn("at", F.explode(F.sequence(F.lit(0), F.col("number") - 1)))
        .select(
            "file",
            "epoch",
            "sequence",
            "transaction",
            F.unix_micros("commit_time").alias("commit_us"),
            (F.col("at") * F.lit(part_bytes)).cast("bigint").alias("start"),
            F.when(F.col("at") < F.col("number") - 1, (F.col("at") + 1) * F.lit(part_bytes))
            .cast("bigint")
            .alias("end"),
            F.least(F.col("size") + _OVERHEAD, F.lit(part_bytes)).alias("weight"),
            F.floor(F.col("sequence") / _BUCKET).alias("bucket"),
        )
    )
    order = Window.orderBy("epoch", "bucket").rowsBetween(Window.unboundedPreceding, -1)
    offsets = (
        cut.groupBy("epoch", "bucket")
        .agg(F.sum("weight").alias("sum"))
        .select("epoch", "bucket", F.coalesce(F.sum("sum").over(order), F.lit(0)).alias("offset"))
    )
    inside = (
        Window.partitionBy("epoch", "bucket")
        .orderBy("sequence", "start")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    placed = cut.join(F.broadcast(offsets), ["epoch", "bucket"]).withColumn(
        "part",
        F.floor(
            (F.col("offset") + F.coalesce(F.sum("weight").over(inside), F.lit(0))) / part_bytes
        ).cast("int"),
    )
    parts = _only(placed, F.max("part")) + 1
    return (
        placed.repartitionById(parts, F.col("part"))
        .sortWithinPartitions("epoch", "sequence", "start")
        .select(*_Piece._fields)
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """Writes one part in a task: takes columns `_Piece`, and gives some lines at a time."""

    folders: tuple[str, ...]
    none_charset: str
    run: str
    tolerant: bool
    despite_holes: bool
    published: bool
    per_commit: int

    def __call__(self, rows: Iterable[Row]) -> Iterator[tuple[str]]:
        writer = script.PartWriter(
            self.run,
            tolerant=self.tolerant,
            published=self.published,
            per_commit=self.per_commit,
        )
        first = last = None
        for row in rows:
            piece = _Piece(*row)
            last = (piece.epoch, piece.sequence)
            first = first or last
            for _ in self._write(writer, piece):
                if text := writer.take(_CHUNK):
                    yield (text,)
        if last is None:
            return
        rest = writer.finish()
        told = {
            "first": first,
            "last": last,
            "tables": writer.counts,
            "keyless": sorted(writer.keyless),
            "values": writer.left_out(),
            "left_out": writer.notes[:SHOWN],
            "more": len(writer.notes[SHOWN:]),
        }
        yield (rest,)
        yield (f"-- {self.run} {json.dumps(told)}",)

    def _write(self, writer: script.PartWriter, piece: _Piece) -> Iterator[None]:
        """Write one piece, with a stop now and then for whoever takes the text."""
        what = f"journal {piece.epoch}:{piece.sequence}, transaction {piece.transaction}"
        split = piece.start > 0 or piece.end is not None
        writer.begin(piece.epoch, piece.sequence, what, split=split)
        try:
            folders = [folder_at(url) for url in self.folders]
            finder = JournalFinder(folders)
            with finder.open_file(piece.file, self.none_charset)[2] as reader:
                start: int | None = 0
                if piece.start > reader.data_offset:
                    start = reader.first_block(piece.start)
                if start is not None and (piece.end is None or start < piece.end):
                    for change in reader.changes(start, piece.end, raw_texts):
                        if isinstance(change, Gap) and not self.despite_holes:
                            raise ReplayError(
                                f"{what} marks a gap: {change.reason}; stop before it with --until,"
                                " or accept it with --despite-holes"
                            )
                        writer.change(change)
                        yield
        except (JournalError, FileNotFoundError) as error:
            if not self.despite_holes:
                raise ReplayError(
                    f"{what} can't be read: {error}; stop before it with --until, or accept it"
                    " with --despite-holes"
                ) from error
            writer.note(f"not all of it can be read: {error}")
        writer.end(whole=piece.end is None)
        yield


# What stands around the parts.


class _Run(NamedTuple):
    database: str
    run: str
    since: tuple[int, int]
    until: tuple[int, int]
    journals: int
    tolerant: bool
    published: bool


def _finish(
    spark: SparkSession, output: str, run: _Run, holes: list[str], notes: list[str]
) -> ForwardReport:
    """Read back what the tasks told at the end of their parts, and write the other scripts."""
    marker = f"-- {run.run} "
    told = (
        spark.read.text(f"{output}/parts")
        .where(F.col("value").startswith(marker))
        .select(F.input_file_name().alias("file"), F.col("value").substr(len(marker) + 1, 2**30))
        .toDF("file", "told")
        .orderBy("file")
    )
    tables: dict[str, dict[str, int]] = {}
    keyless: set[str] = set()
    values: Counter[str] = Counter()
    left_out: list[str] = []
    more = parts = 0
    apply = [
        f"-- brings a copy of {run.database} from journal {run.since[0]}:{run.since[1]}"
        f" to {run.until[0]}:{run.until[1]};",
        "-- in this folder: isql -q -b -nod -ch UTF8 -u SYSDBA COPY.fdb -i apply.sql",
        "SET BAIL ON;",
        "INPUT 'before.sql';",
    ]
    for row in told.toLocalIterator():
        parts += 1
        part = json.loads(row["told"])
        name = unquote(row["file"]).rpartition("/")[2]
        apply.append(f"INPUT 'parts/{name}'; -- {_shown(part['first'])} to {_shown(part['last'])}")
        for table, counts in part["tables"].items():
            sums = tables.setdefault(table, {"inserts": 0, "updates": 0, "deletes": 0})
            for letter, operation in zip("cud", sums, strict=True):
                sums[operation] += counts[letter]
        keyless.update(part["keyless"])
        values.update(part["values"])
        free = SHOWN * 5 - len(left_out)
        left_out += part["left_out"][:free]
        more += len(part["left_out"][free:]) + part["more"]
    apply.append("INPUT 'after.sql';")
    left_out += [f"{count:,} times {what}" for what, count in sorted(values.items())]
    if more:
        left_out.append(f"{more:,} more; the parts tell them")
    if run.tolerant:
        notes = notes + [
            f"{table} has no key: rows that the copy has already come twice"
            for table in sorted(keyless)
        ]
    report = ForwardReport(
        run.database,
        run.run,
        run.since,
        run.until,
        run.journals,
        parts,
        dict(sorted(tables.items())),
        left_out,
        holes,
        notes,
    )
    before = script.before(run.run, run.since, sorted(tables), published=run.published)
    write_text(spark, f"{output}/before.sql", _text(before))
    write_text(spark, f"{output}/after.sql", _text(script.after(run.until)))
    write_text(spark, f"{output}/apply.sql", _text(apply))
    summary = json.dumps({"whole": report.whole, **asdict(report)}, indent=2, ensure_ascii=False)
    write_last(spark, output, "summary.json", summary + "\n")
    return report


def _shown(number: Sequence[int]) -> str:
    return f"{number[0]}:{number[1]}"


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def describe(report: ForwardReport, output: str) -> Iterator[str]:
    """Yield the lines of a readable summary."""
    yield (
        f"{report.database}: {report.journals:,} transactions from behind journal"
        f" {_shown(report.since)} to {_shown(report.until)}"
    )
    for table, counts in report.tables.items():
        yield "  " + table + ": " + ", ".join(f"{n:,} {what}" for what, n in counts.items())
    for note in report.notes:
        yield f"note: {note}"
    for hole in report.holes:
        yield f"HOLE: {hole}"
    for what in report.left_out:
        yield f"LEFT OUT: {what}"
    yield f"written to {output}: apply.sql runs before.sql, {report.parts:,} parts and after.sql"
    yield f"  cd {output} && isql -q -b -nod -ch UTF8 -u SYSDBA COPY.fdb -i apply.sql"
