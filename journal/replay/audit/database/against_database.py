"""The audit of journals against the live database, which may be in use all the time.

The database is read in one snapshot (`journal.snapshot`), and the journals are folded up to the
same point: a journal belongs to it if the snapshot sees its transaction. What both know must agree.

==================== ==========================================================================
``row differs``      the row is not what the journals' last change of its key left
``row missing``      the journals have the row, the database doesn't
``row unknown``      the database has a row that no journal tells of, written by a transaction of
                     the time that the journals cover
``not committed``    a journal whose transaction the engine says has failed
``row unproven``     a note: one of the first three where the journals have a hole
==================== ==========================================================================

The engine doesn't report an update that changes nothing, though the row then has that
transaction's number; so what a row holds is compared, and its number is only told. Only a row
that no journal knows is told apart by its number: an old row that was updated so can't be told from
one that was slipped in.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.format.model import ROW_OPERATIONS
from firebird_cdc.journal.replay.audit.chains import states
from firebird_cdc.journal.replay.audit.database.comparison_plan import (
    ComparisonPlan,
    Shape,
    plan_comparison,
)
from firebird_cdc.journal.replay.audit.database.following import Following
from firebird_cdc.journal.replay.audit.database.row_differences import (
    DIFFERS,
    KINDS,
    MISSING,
    NOT_COMMITTED,
    UNKNOWN,
    UNPROVEN,
    differing_columns,
    finding_sentence,
    reduce_rows,
)
from firebird_cdc.journal.replay.audit.database.rows import ROW_COLUMNS, RowBatches
from firebird_cdc.journal.replay.audit.database.seen_journals import (
    find_history,
    unconfirmed_journals,
)
from firebird_cdc.journal.replay.audit.findings import Comparison, findings_of
from firebird_cdc.journal.replay.cluster.progress import doing
from firebird_cdc.journal.replay.source import history
from firebird_cdc.journal.replay.source.arrow import in_tasks, schema_text
from firebird_cdc.journal.replay.source.planning import JournalOptions
from firebird_cdc.journal.replay.state.images import Journals
from firebird_cdc.journal.replay.state.outline import Outline
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.catalogue import plan_ranges, read_tables, read_temporary
from firebird_cdc.journal.snapshot.publication import read_publication
from firebird_cdc.journal.snapshot.window import Flaws, Window, open_window

if TYPE_CHECKING:
    from firebird_cdc.config import ConnectorConfig
    from firebird_cdc.journal.replay.audit.input import AuditInput

PATIENCE_S = 30.0
"""Seconds to wait for transactions that were begun before, and for journals to be confirmed."""

_POLL_S = 0.1
_RANGE_BYTES = 16 * 1024 * 1024
_SHOWN = 10  # names in a note
_MARGIN = 1000  # journals at the beginning of a history beside which others may have run

_PLACE = ("sequence", "position")
_NO_SEQUENCE = -1


@dataclass
class _Survey:
    """Facts that the journals that the snapshot sees tell of themselves.

    ``hole``: the last number that is missing, can't be read, or marks a gap; before it nothing is
    proven that was not written after it. ``covered_from``: rows by transactions from that number on
    must be in journals, of tables in ``published_later`` from the number there on.
    """

    first: int
    last: int
    whole_up_to: int
    hole: int
    why: list[str]
    following: Following
    shapes: list[Shape]
    covered_from: int
    published_later: dict[str, int]


def compare(
    spark: SparkSession,
    changes: AuditInput,
    config: ConnectorConfig | None,
    connection: DatabaseConnection,
    *,
    parallel: int = 0,
    patience_s: float = PATIENCE_S,
) -> Comparison:
    """Compare the tables of the database at CONNECTION with the journals, as of now.

    The folders of CHANGES are listed anew, once the snapshot is taken. parallel: attachments that
    read at a time; 0: as many as Spark has cores. ``findings`` is kept by Spark until the caller
    unpersists it. Raises ReplayError if the database can't be read or is not the journals'.
    """
    folders = list(changes.folders)
    if config is not None:
        live = config.journal_directory
        if str(live) not in folders and live.is_dir():
            folders.insert(0, str(live))
    changes = replace(changes, folders=tuple(folders), until=None)
    with ExitStack() as held:
        snapshot = held.enter_context(open_window(connection, patience_s=patience_s))
        database, epoch = find_history(changes, snapshot)
        comparison = _Comparison(
            spark, changes, connection, snapshot, database, epoch, parallel, held
        )
        comparison.await_confirmer(patience_s)
        return comparison.run()


class _Comparison:
    """One comparison, while its snapshot is open."""

    def __init__(
        self,
        spark: SparkSession,
        changes: AuditInput,
        how: DatabaseConnection,
        snapshot: Window,
        database: str,
        epoch: int,
        parallel: int,
        held: ExitStack,
    ) -> None:
        self._spark = spark
        self._input = changes
        self._how = how
        self._snapshot = snapshot
        self._database = database
        self._epoch = epoch
        self._parallel = parallel or spark.sparkContext.defaultParallelism
        self._held = held
        self._unconfirmed: frozenset[int] = frozenset()
        self._notes: list[str] = []
        self._tables = read_tables(snapshot.connection, snapshot.holder.page_size)
        self._temporary = read_temporary(snapshot.connection)
        self._publication = read_publication(snapshot.connection)

    # The journals that belong to the snapshot.

    def await_confirmer(self, patience_s: float) -> None:
        """Wait until the journals that the snapshot sees are confirmed: no ``.log.live`` is left.

        Those that aren't in time are remembered: nothing that their transactions wrote is proven.
        """
        deadline = time.monotonic() + patience_s
        of = (self._input.folders, self._database, self._snapshot)
        waiting = set(unconfirmed_journals(*of))
        while waiting and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            waiting &= set(unconfirmed_journals(*of))
        self._unconfirmed = frozenset(transaction for _, transaction in waiting)
        if waiting:
            names = _shown(sorted(name for name, _ in waiting))
            self._notes.append(
                f"{self._database}: {len(waiting)} journals of committed transactions are still not"
                f" confirmed, so what they changed is not proven: {names}; is the server running?"
            )

    def _seen(self, table: DataFrame) -> DataFrame:
        """Add ``seen``: whether the snapshot sees the ``transaction`` of a row of TABLE."""
        snapshot = self._snapshot
        visible = snapshot.visible
        exceptions = [(each, True) for each in visible.inside] + [
            (each, False) for each in visible.outside | visible.dead
        ]
        own = F.coalesce(F.col("transaction") <= snapshot.transaction, F.lit(False))
        if not exceptions:
            return table.withColumn("seen", own)
        listed = self._spark.createDataFrame(exceptions, "`transaction` bigint, `seen` boolean")
        joined = table.join(F.broadcast(listed), "transaction", "left")
        return joined.withColumn("seen", F.coalesce("seen", own))

    def _keep(self, table: DataFrame) -> DataFrame:
        table = table.persist(StorageLevel.MEMORY_AND_DISK)
        self._held.callback(table.unpersist)
        return table

    def _read_changes(self) -> DataFrame:
        """Read the changes that the snapshot sees, and rows for what can't be read."""
        mine = (F.col("database") == self._database) & (F.col("epoch") == self._epoch)
        # Whose they are can't always be told.
        unread = F.col("operation").isin("damaged", "missing")
        changes = self._seen(self._input.load("text").where(unread | mine))
        return self._keep(changes.where((mine & F.col("seen")) | unread).drop("seen"))

    def _survey(self, changes: DataFrame) -> _Survey:
        """Say what was read, and list the files after that: what vanished meanwhile is missing."""
        shapes: list[Shape] = []
        marks = {"could not be read": _NO_SEQUENCE, "mark a gap": _NO_SEQUENCE}
        journals, has_statements = 0, False
        for row in self._groups(changes).toLocalIterator():
            operation, last = row["operation"], (row["last"]["sequence"], row["last"]["position"])
            journals += row["journals"]
            if operation == "gap":
                marks["mark a gap"] = max(marks["mark a gap"], last[0])
            elif operation in ("damaged", "missing"):
                marks["could not be read"] = max(marks["could not be read"], last[0] or 0)
            elif operation == "change":
                shapes.append(
                    Shape(
                        row["table"],
                        row["shape"],
                        tuple(row["columns"]),
                        tuple(row["key"]),
                        (row["first"]["sequence"], row["first"]["position"]),
                        last,
                    )
                )
            else:
                has_statements = True
        files = self._seen(
            self._input.within(
                history.stamped(
                    self._spark.read.format("firebird_journal_files")
                    .option("database", self._database)
                    .load(list(self._input.folders))
                )
            ).where(F.col("epoch") == self._epoch)
        )
        self._files = files = self._keep(files)
        totals = files.agg(
            F.min(F.when(F.col("seen"), F.col("sequence"))).alias("first"),
            F.max(F.when(F.col("seen"), F.col("sequence"))).alias("last"),
            F.min(F.when(~F.col("seen"), F.col("sequence"))).alias("unseen"),
            F.count_if("seen").alias("seen"),
            F.count_if(F.col("seen") & (F.col("events") > 0)).alias("with_events"),
            F.max("transaction").alias("highest"),
        ).first()
        assert totals is not None
        self._refuse_older_copy(totals["highest"])
        if totals["first"] is None:
            raise ReplayError(
                f"{self._database}: the snapshot sees none of the transactions whose journals are"
                " there; run the audit once more"
            )
        first, last = totals["first"], totals["last"]
        numbers = F.col("sequence").between(first, last)
        if last - first + 1 != files.where(numbers).count() or journals != totals["with_events"]:
            marks |= self._holes(changes, files.where(numbers))
        margin = max(1, min(_MARGIN, totals["seen"] // 10))
        covered_from = self._highest_from(first, margin)
        unseen = totals["unseen"]
        following = self._following() if has_statements else Following(self._epoch, {}, {}, {})
        shapes = [each for each in shapes if not following.is_of_before(each.table, each.last)]
        return _Survey(
            first,
            last,
            last if unseen is None else min(unseen - 1, last),
            max(marks.values()),
            sorted(f"numbers up to {mark} {why}" for why, mark in marks.items() if mark >= 0),
            following,
            shapes,
            covered_from,
            self._published_later(shapes, covered_from),
        )

    def _groups(self, changes: DataFrame) -> DataFrame:
        """Return the subjects of the changes: shapes of tables, statements, gaps and what can't be
        read."""
        is_row = F.col("operation").isin(*ROW_OPERATIONS)
        return (
            changes.groupBy(
                F.when(is_row, "change").otherwise(F.col("operation")).alias("operation"),
                "table",
                "shape",
            )
            .agg(
                F.first(F.json_object_keys(F.coalesce("after", "before"))).alias("columns"),
                F.first(F.coalesce(F.json_object_keys("key"), F.array())).alias("key"),
                F.min(F.struct(*_PLACE)).alias("first"),
                F.max(F.struct(*_PLACE)).alias("last"),
                F.count_if(F.col("position") == 1).alias("journals"),
            )
            .orderBy("last")
        )

    def _refuse_older_copy(self, highest: int | None) -> None:
        from firebird.driver import DbInfoCode

        given = self._snapshot.connection.info.get_info(DbInfoCode.NEXT_TRANSACTION)
        if highest is not None and highest > given:
            raise ReplayError(
                f"the journals of {self._database} go on to transaction {highest}, the database"
                f" only to {given}: it was restored from a copy that is older than they are"
            )

    def _holes(self, changes: DataFrame, files: DataFrame) -> dict[str, int]:
        """Return the last numbers at which the journals don't tell all, by what is wrong."""
        read = changes.where("operation not in ('damaged', 'missing')")
        unread = files.where(F.col("seen") & (F.col("events") > 0)).join(
            read.select("sequence").distinct(), "sequence", "left_anti"
        )
        found = {
            "are missing": history.missing_ranges(files).select(F.col("last").alias("sequence")),
            "could not be read": unread.select("sequence"),
            "were given twice": history.duplicate_sequences(files).select("sequence"),
        }
        table = reduce(
            DataFrame.unionByName,
            [rows.withColumn("why", F.lit(why)) for why, rows in found.items()],
        )
        rows = table.groupBy("why").agg(F.max("sequence").alias("last")).collect()
        return {row["why"]: row["last"] for row in rows}

    def _highest_from(self, sequence: int, margin: int) -> int:
        """The highest transaction among MARGIN journals from SEQUENCE on.

        Others ran beside the first ones, committed before them, and are in no journal.
        """
        among = F.col("sequence").between(sequence, sequence + margin - 1)
        row = self._files.where(F.col("seen") & among).agg(F.max("transaction")).first()
        assert row is not None
        return int(row[0] or 0)

    def _published_later(self, shapes: Sequence[Shape], covered_from: int) -> dict[str, int]:
        """From which transaction on the rows of tables that were published after COVERED_FROM are
        covered: from the one that published it, or the first one that changed it in a journal."""
        later = {name: at for name, at in self._publication.tables.items() if at > covered_from}
        first: dict[str, int] = {}
        for shape in shapes:
            if shape.table in later:
                first[shape.table] = min(shape.first[0], first.get(shape.table, shape.first[0]))
        if not first:
            return later
        wanted = F.col("seen") & F.col("sequence").isin(*set(first.values()))
        rows = self._files.where(wanted).select("sequence", "transaction").collect()
        transactions = {row["sequence"]: int(row["transaction"]) for row in rows}
        return {
            name: max(covered_from, min(at, transactions.get(first.get(name, _NO_SEQUENCE), at)))
            for name, at in later.items()
        }

    # How tables are compared.

    def _plans(self, survey: _Survey) -> list[ComparisonPlan]:
        tables = self._tables
        shapes: defaultdict[str, list[Shape]] = defaultdict(list)
        for shape in survey.shapes:
            shapes[shape.table].append(shape)
        left_out, plans = [], []
        for name in sorted(tables.keys() | shapes.keys()):
            stored = tables.get(name)
            if stored is not None and name not in self._publication.tables:
                left_out.append(name)
                continue
            if stored is None and name in self._temporary:
                continue
            covered = survey.published_later.get(name, survey.covered_from)
            plans.append(plan_comparison(name, stored, shapes[name], survey.following, covered))
        if left_out:
            self._notes.append(
                f"{self._database}: {len(left_out)} tables are not in the publication and were left"
                f" out: {_shown(left_out)}"
            )
        return plans

    def _following(self) -> Following:
        """Find out what the statements that the snapshot sees made of the tables' columns."""
        reading = {
            "paths": json.dumps(list(self._input.folders)),
            "database": self._database,
            "noneCharset": self._input.none_charset,
            "onEmpty": "accept",
        }
        journals = Journals.list(JournalOptions.parse(reading))
        found = Outline.of(journals.survey(self._spark, None, outlines=True))
        shapes = [each for each in found.shapes if each.last[0] == self._epoch]
        statements = [each for each in found.statements if each.point[0] == self._epoch]
        told = {each.point[1] for each in statements}
        rows = self._files.where(F.col("seen") & F.col("sequence").isin(*told))
        seen = {row["sequence"] for row in rows.select("sequence").collect()}
        return Following.of(
            self._epoch,
            shapes,
            [each for each in statements if each.point[1] in seen],
            {name: each.table for name, each in self._tables.items()},
        )

    def _observed(self, plans: Sequence[ComparisonPlan]) -> DataFrame:
        """The rows of the database, columns `ROW_COLUMNS`."""
        tables = tuple(plan.stored for plan in plans if plan.stored is not None)
        ranges = plan_ranges(tables, self._snapshot.holder.page_size, _RANGE_BYTES)
        parts = min(self._parallel, len(ranges))
        read = RowBatches(self._how, self._snapshot.number, tables, self._input.none_charset)
        tasks = [ranges[part::parts] for part in range(parts)]
        return in_tasks(self._spark, tasks, read, schema_text(ROW_COLUMNS))

    # The comparison.

    def run(self) -> Comparison:
        """Read both sides and compare them."""
        with doing(self._spark, "reading the journals of the snapshot"):
            changes = self._read_changes()
            survey = self._survey(changes)
        plans = self._plans(survey)
        by_key = [plan for plan in plans if plan.by_key]
        by_row = [plan for plan in plans if not plan.by_key]
        rows = survey.following.rows(changes.where(F.col("operation").isin(*ROW_OPERATIONS)))
        figures = [Observation()]
        parts = [self._compare_by_key(rows, by_key, figures[0])]
        if by_row:
            figures.append(Observation())
            parts.append(self._compare_by_row(rows, by_row, figures[1]))
        found = reduce(DataFrame.unionByName, parts)
        # Cut off from what it was made of: the snapshot is gone when the caller looks at it.
        with doing(self._spark, "reading the database, comparing rows"):
            found = found.localCheckpoint(eager=True)
        flaws = self._snapshot.find_flaws()
        findings = self._as_findings(found, survey, flaws).persist(StorageLevel.MEMORY_AND_DISK)
        findings.count()  # while what it is made of is at hand
        counts = self._counts(each.get for each in figures)
        return self._result(findings, survey, plans, counts, flaws)

    def _of(self, rows: DataFrame, plans: Sequence[ComparisonPlan]) -> DataFrame:
        """The rows of the tables of PLANS, with ``covered_from``."""
        listed = self._spark.createDataFrame(
            [(plan.name, plan.covered_from) for plan in plans],
            "`table` string, `covered_from` bigint",
        )
        return rows.join(F.broadcast(listed), "table")

    def _compare_by_key(
        self, rows: DataFrame, plans: Sequence[ComparisonPlan], figures: Observation
    ) -> DataFrame:
        expected = (
            self._of(rows, plans)
            .select("table", *_PLACE, "transaction", "file", F.inline(states()))
            .groupBy("table", "key")
            .agg(
                F.max_by(
                    F.struct(F.col("after").alias("row"), *_PLACE, "transaction", "file"),
                    F.struct(*_PLACE),
                ).alias("journal")
            )
        )
        stored = self._observed(plans).select(
            "table", "key", F.struct("row", "version").alias("base")
        )
        kept = F.col("journal.row").isNotNull()
        there = F.col("base").isNotNull()
        joined = self._of(expected.join(stored, ["table", "key"], "full"), plans)
        before = F.col("journal").isNull() & (F.col("base.version") < F.col("covered_from"))
        equal = kept & there & (F.col("journal.row") == F.col("base.row"))
        gone = ~kept & ~there & F.col("journal").isNotNull()
        compared = joined.select(
            "table",
            "key",
            "journal",
            "base",
            F.when(before, "before")
            .when(equal, "equal")
            .when(gone, "gone")
            .when(kept & there, DIFFERS)
            .when(kept, MISSING)
            .otherwise(UNKNOWN)
            .alias("kind"),
        ).observe(
            figures,
            F.count_if(F.col("base").isNotNull()).alias("rows"),
            F.count_if(F.col("kind") == "before").alias("before"),
            F.collect_set(F.when(F.col("kind") == "before", F.col("table"))).alias("old"),
        )
        suspects = compared.where(~F.col("kind").isin("before", "equal", "gone"))
        columns = differing_columns()
        return (
            suspects.withColumn("columns", columns)
            .where((F.col("kind") != DIFFERS) | (F.size("columns") > 0))
            .select(
                "kind",
                "table",
                "key",
                F.col("journal.sequence").alias("sequence"),
                F.col("journal.position").alias("position"),
                F.col("journal.transaction").alias("last_transaction"),
                F.col("journal.file").alias("file"),
                F.col("base.version").alias("version"),
                "columns",
                F.lit(1).cast("bigint").alias("copies"),
                F.lit(None).cast("string").alias("row"),
            )
        )

    def _compare_by_row(
        self, rows: DataFrame, plans: Sequence[ComparisonPlan], figures: Observation
    ) -> DataFrame:
        """Compare tables without a lasting key: how often each row is there, in common columns."""
        reduced = {plan.name: plan.common for plan in plans if plan.common}
        nothing = F.lit(None).cast("bigint")
        began = rows.where("after is not null").select(
            "table",
            F.col("after").alias("row"),
            F.lit(1).alias("sign"),
            F.struct("sequence", "position", "transaction", "file").alias("journal"),
        )
        ended = rows.where("before is not null").select(
            "table",
            F.col("before").alias("row"),
            F.lit(-1).alias("sign"),
            F.struct("sequence", "position", nothing.alias("transaction"), "file").alias("journal"),
        )
        expected = (
            reduce_rows(self._of(began.unionByName(ended), plans), reduced)
            .groupBy("table", "row")
            .agg(
                F.sum("sign").alias("net"),
                F.max("journal").alias("journal"),
                F.collect_set("journal.transaction").alias("writers"),
            )
        )
        stored = (
            reduce_rows(self._observed(plans), reduced)
            .groupBy("table", "row")
            .agg(F.count("*").alias("there"), F.collect_set("version").alias("versions"))
        )
        joined = self._of(expected.join(stored, ["table", "row"], "full"), plans)
        zero = F.lit(0).cast("bigint")
        none = F.array().cast("array<bigint>")
        surplus = F.coalesce("there", zero) - F.coalesce("net", zero)
        strangers = F.filter(
            F.array_except(F.coalesce("versions", none), F.coalesce("writers", none)),
            lambda version: version >= F.col("covered_from"),
        )
        counted = (
            joined.withColumn("surplus", surplus)
            .withColumn("strangers", strangers)
            .withColumn(
                "kind",
                F.when(F.col("surplus") < 0, MISSING)
                .when((F.col("surplus") > 0) & (F.size("strangers") > 0), UNKNOWN)
                .when(F.col("surplus") > 0, "before")
                .otherwise("equal"),
            )
            .observe(
                figures,
                F.sum(F.coalesce("there", zero)).alias("rows"),
                F.sum(F.when(F.col("kind") == "before", F.col("surplus"))).alias("before"),
                F.collect_set(F.when(F.col("kind") == "before", F.col("table"))).alias("old"),
            )
        )
        return counted.where(F.col("kind").isin(MISSING, UNKNOWN)).select(
            "kind",
            "table",
            F.lit(None).cast("string").alias("key"),
            F.col("journal.sequence").alias("sequence"),
            F.col("journal.position").alias("position"),
            F.array_max("writers").alias("last_transaction"),
            F.col("journal.file").alias("file"),
            F.when(F.size("strangers") > 0, F.array_max("strangers")).alias("version"),
            F.lit(None).cast("array<string>").alias("columns"),
            F.abs("surplus").alias("copies"),
            "row",
        )

    def _loose(self, flaws: Flaws) -> frozenset[int]:
        """Return the transactions that were committed beside the snapshot and seen in parts of it,
        and note why nothing that they changed is proven."""
        states = self._snapshot.holder.states
        passed = frozenset(each for each in flaws.passed if (states.of(each) or 0) > 0)
        if passed:
            self._notes.append(
                f"{self._database}: {len(passed)} transactions that were begun long before the"
                " audit were committed while it read; what they changed is not proven"
            )
        if flaws.torn:
            self._notes.append(
                f"{self._database}: {len(flaws.torn)} transactions were just being committed when"
                " the snapshot began, and are seen in a part of it; what they changed is not proven"
            )
        return passed | flaws.torn

    def _as_findings(self, found: DataFrame, survey: _Survey, flaws: Flaws) -> DataFrame:
        """Give what was found the columns of findings; where there is a hole, it is no fault."""
        unproven = (F.col("kind") == UNKNOWN) & F.lit(survey.hole > _NO_SEQUENCE)
        unproven |= F.col("sequence") < survey.hole
        doubtful = sorted(self._loose(flaws) | self._unconfirmed)
        if doubtful:
            written = F.col("version").isin(doubtful)
            unproven |= written | F.col("version").isNull()
        unproven |= F.lit(bool(flaws.damaged))
        journals = self._files.select(
            F.col("transaction").alias("version"), F.col("sequence").alias("its_sequence")
        )
        named = found.join(journals.dropDuplicates(["version"]), "version", "left")
        what = finding_sentence()
        marked = named.withColumn("what", what).withColumn(
            "kind", F.when(unproven, UNPROVEN).otherwise(F.col("kind"))
        )
        rows = findings_of(
            marked,
            database=F.lit(self._database),
            epoch=F.lit(self._epoch),
            transaction=F.coalesce("version", "last_transaction"),
        )
        dead = self._snapshot.visible.dead
        if not dead or flaws.damaged:  # who has failed is asked of that same memory
            return rows
        listed = self._spark.createDataFrame([(each,) for each in dead], "`transaction` bigint")
        failed = self._files.join(F.broadcast(listed), "transaction")
        return rows.unionByName(
            findings_of(
                failed,
                kind=F.lit(NOT_COMMITTED),
                what=F.format_string(
                    "%s: transaction %d of sequence %d has failed, says the database",
                    "file",
                    "transaction",
                    "sequence",
                ),
            )
        )

    @staticmethod
    def _counts(figures: Iterable[dict[str, Any]]) -> dict[str, Any]:
        counts: dict[str, Any] = {"rows": 0, "rows from before the history": 0}
        old: set[str] = set()
        for figure in figures:
            counts["rows"] += figure["rows"] or 0
            counts["rows from before the history"] += figure["before"] or 0
            old |= set(figure["old"])
        counts["tables with rows from before the history"] = sorted(old)
        return counts

    def _result(
        self,
        findings: DataFrame,
        survey: _Survey,
        plans: Sequence[ComparisonPlan],
        counts: dict[str, Any],
        flaws: Flaws,
    ) -> Comparison:
        snapshot = self._snapshot
        counts |= {
            "tables": len(plans),
            "snapshot": snapshot.number,
            "transaction": snapshot.transaction,
            "epoch": self._epoch,
            "first sequence": survey.first,
            "whole up to sequence": survey.whole_up_to,
            "last sequence": survey.last,
        }
        upto = f"{survey.first:,} to {survey.last:,}"
        if survey.whole_up_to < survey.last:
            beside = survey.last - survey.whole_up_to
            upto += f" (without those among the last {beside:,} that were committed later)"
        proven = [
            f"{self._database}: {counts['rows']:,} rows of {len(plans)} tables in snapshot"
            f" {snapshot.number} (transaction {snapshot.transaction:,}) were compared with epoch"
            f" {self._epoch}, sequence {upto}"
        ]
        notes = list(self._notes)
        if flaws.damaged:
            proven = []
            notes.append(
                f"{self._database}: nothing of snapshot {snapshot.number} is proven:"
                f" {'; '.join(flaws.sentences())}"
            )
        if snapshot.unchecked is not None:
            notes.append(
                f"{self._database}: the engine's answers on which transactions are committed were"
                f" not checked by the database file: {snapshot.unchecked}"
            )
        if self._publication.switched_on is None:
            notes.append(
                f"{self._database}: its publication is switched off, so nothing is captured now:"
                " ALTER DATABASE ENABLE PUBLICATION"
            )
        if counts["rows from before the history"]:
            names = _shown(counts["tables with rows from before the history"])
            notes.append(
                f"{self._database}: {counts['rows from before the history']:,} rows were written"
                f" before what the journals cover and are not proven, in {names}"
            )
        if survey.why:
            notes.append(
                f"{self._database}: of what was changed before, only rows that were written again"
                f" after sequence {survey.hole:,} are proven: {'; '.join(survey.why)}"
            )
        reduced = [plan.name for plan in plans if plan.common]
        if reduced:
            notes.append(
                f"{self._database}: the columns of {_shown(reduced)} changed in the"
                " course of the history; their rows are compared in the columns that both have"
            )
        return Comparison(findings, KINDS, proven, notes, counts)


def _shown(names: Sequence[str]) -> str:
    """NAMES for people, the first of many."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
