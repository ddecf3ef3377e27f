"""Rows that snapshots read, ``r`` events, in topics: which are lost, doubled, altered or at another
place than theirs.

`read_diff` compares each with the changes of its key. Here windows are looked at as a whole: the
rows of one are numbered from 1 without a hole, over all of its tables, and what the shipper knows
of its snapshots (`journal.shipper.snapshots.state`) says how many rows of a table there are.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.events.snapshot_rows import READ as OPERATION
from firebird_cdc.journal.events.topics import BadName, TopicNames
from firebird_cdc.journal.events.values import placeholder_bytes
from firebird_cdc.journal.replay.audit.findings import Kind, findings_of
from firebird_cdc.journal.replay.audit.input import AuditInput
from firebird_cdc.journal.replay.audit.kafka.classify import Facts
from firebird_cdc.journal.replay.audit.kafka.message_form import Form
from firebird_cdc.journal.replay.audit.kafka.read_diff import (
    ALTERED,
    CONTENT,
    DOUBLED,
    MISPLACED,
    READ,
)
from firebird_cdc.journal.replay.audit.kafka.rendered import UNREAD, is_reshaped
from firebird_cdc.journal.replay.audit.kafka.topic_diff import ONCE_SENT
from firebird_cdc.journal.replay.source.snapshot_states import (
    LeftOut,
    newest_states,
    states_in_folder,
)
from firebird_cdc.journal.shipper.snapshots.state import PAST_KEPT, Snapshot, SnapshotState
from firebird_cdc.journal.snapshot.signals import is_statement

MISSING = "missing read"

_AGAIN = "take a snapshot of the table again (firebird-cdc snapshot execute)"

_KINDS = {
    MISSING: Kind(f"{_AGAIN}: consumers lack the rows"),
    DOUBLED: Kind("tell consumers to leave out a pair of journal and pos that they know"),
    MISPLACED: Kind(
        f"{_AGAIN}, as consumers of the key may have an older row than the database; look for a"
        " second producer"
    ),
    ALTERED: Kind(
        f"compare the row with the database, and {_AGAIN}: the configuration was another one when"
        " it was read, or somebody else wrote it"
    ),
}

_UNEXPLAINED = ("ddl", "gap", "damaged", "missing")
"""Operations of journals that may explain a row that its key's changes don't: of changes of a table
or its publication, and of what is not known."""


@dataclass(frozen=True)
class KnownSnapshots:
    """Snapshots as the shipper has told of them, by database, before the topics were looked at.

    ``moved``: the databases of which more was told behind that.
    """

    states: Mapping[str, SnapshotState] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: ConnectorConfig, records: Iterable[bytes]) -> KnownSnapshots:
        """Return what the journal folder has, and the RECORDS of the offset topic: the newer one of
        a database holds. Raises ReplayError."""
        states = states_in_folder(config.journal_directory)
        try:
            states += map(SnapshotState.from_json, records)
        except ValueError as error:
            raise ReplayError(
                f"what the offset topic {config.position_topic} says of snapshots can't be read:"
                f" {error}"
            ) from None
        return cls(newest_states(states))

    def followed_by(self, later: KnownSnapshots) -> KnownSnapshots:
        """Return this, with what LATER says, which was read once it was fixed what is looked at."""
        told = {name: state.serial for name, state in self.states.items()}
        after = {name: state.serial for name, state in later.states.items()}
        moved = {name for name in after if after[name] != told.get(name)}
        return replace(self, moved=frozenset(moved))

    @property
    def left_out(self) -> LeftOut:
        """Changes that initial snapshots have in their rows."""
        return LeftOut(self.states.values())

    @property
    def are_any(self) -> bool:
        """Tell whether rows were read by then."""
        return any(each.windows for state in self.states.values() for each in _all_of(state))

    @property
    def open(self) -> list[str]:
        """The databases of which rows may have come while the topics were looked at."""
        taken = {
            name
            for name, state in self.states.items()
            if any(each.tables is None or each.open_tables for each in state.waiting)
        }
        return sorted(taken | self.moved)

    def bad_rows(self, database: str) -> int | None:
        """Return how many rows of DATABASE could not be sent; None: that is not known."""
        state = self.states.get(database)
        if state is None or len(state.past) >= PAST_KEPT:
            return None
        return sum(table.left_out for each in _all_of(state) for table in each.tables or ())

    def rows(self) -> Counter[tuple[str, str]]:
        """Return how many rows were sent at least, by database and table."""
        found: Counter[tuple[str, str]] = Counter()
        for database, state in self.states.items():
            for each in _all_of(state):
                for table in each.tables or ():
                    found[database, table.name] += table.rows
        return found

    def form(self, config: ConnectorConfig, form: Form) -> Form:
        """Return FORM with digests of rows, where there may be rows to be compared with them."""
        is_unknown = not config.transactional and not self.states
        may_be = self.are_any or (is_unknown and config.snapshots.mode != "never")
        # Classes of the user's may make anything of a row, and each change of it has to be told.
        if not may_be or is_reshaped(config) or config.skipped_operations & {"c", "u", "d"}:
            return form
        raw = placeholder_bytes(config.unavailable_value_placeholder) or b""
        texts = raw.decode("utf-8", "replace"), raw.hex()
        coded = b64encode(raw).decode(), urlsafe_b64encode(raw).decode()
        return replace(form, images=True, unavailable=frozenset((*texts, *coded)))


def _all_of(state: SnapshotState) -> list[Snapshot]:
    return [*state.waiting, *state.past]


class StoredRows:
    """Tells whether rows of a table that were read are those that it has, under its own key: not by
    ``message.key.columns``, nor by a SELECT of the user's. Goes to tasks."""

    def __init__(self, config: ConnectorConfig, known: KnownSnapshots) -> None:
        self._patterns = [part.table for part in config.message_key_columns]
        self._selected = {
            (database, table.name)
            for database, state in known.states.items()
            for each in _all_of(state)
            for table in each.tables or ()
            if table.condition is not None and is_statement(table.condition)
        }
        self._statements = frozenset(config.snapshots.statements)

    def __call__(self, database: str, table: str) -> bool:
        identifier = f"{database}.{table}"
        return (
            identifier not in self._statements
            and (database, table) not in self._selected
            and not any(each.fullmatch(identifier) for each in self._patterns)
        )


def kinds_of(config: ConnectorConfig) -> dict[str, Kind]:
    """Return what the kinds of findings on rows mean with CONFIG."""
    if config.transactional:
        return _KINDS
    told = f"without kafka.producer.transactional.id rows may come twice; {_KINDS[DOUBLED].advice}"
    return {**_KINDS, DOUBLED: Kind(told, is_fault=False)}


class ReadAudit:
    """Looks for what is wrong with the rows among FOUND, differences as `topic_diff` has them.

    ``proven``, ``notes``: sentences, as `Comparison` has them, once `findings` was asked for.
    """

    def __init__(
        self,
        changes: AuditInput,
        config: ConnectorConfig,
        known: KnownSnapshots,
        facts: Facts,
        found: DataFrame,
    ) -> None:
        self.proven: list[str] = []
        self.notes: list[str] = []
        self._changes = changes
        self._config = config
        self._known = known
        self._facts = facts
        self._found = found
        self._spark: SparkSession = changes.spark
        of_ours = (F.col("kind") == READ) & F.col("database").isin(*facts.read)
        self.laid = _laid(found.where(of_ours))
        """The rows, each beside the one before it in its window: to be kept by who asks."""

    def findings(self) -> DataFrame:
        """Return what is wrong, columns `SCHEMA`; not persisted."""
        self._survey()
        parts = [self._doubled(), self._out_of_place()]
        if not self._is_thinned:
            parts += [self._holes_found(), self._lacking()]
        return reduce(DataFrame.unionByName, parts)

    @property
    def _is_thinned(self) -> bool:
        """Tell whether the configuration lets rows get lost on their way."""
        return bool(self._config.transforms) or OPERATION in self._config.skipped_operations

    @cached_property
    def _worn(self) -> list[str]:
        """The topics from which Kafka removes messages."""
        return sorted({*self._facts.compacted, *self._facts.trimmed})

    def _survey(self) -> None:
        rows = (
            self.laid.groupBy("database")
            .agg(F.count("*").alias("rows"), F.count_distinct("journal").alias("windows"))
            .orderBy("database")
            .collect()
        )
        for row in rows:
            database = row["database"]
            windows = "1 window" if row["windows"] == 1 else f"{row['windows']:,} windows"
            self.proven.append(
                f"{database}: {row['rows']:,} rows that snapshots read, in {windows}, compared with"
                " the changes of their keys"
            )
            if database not in self._known.states:
                self.notes.append(
                    f"{database}: neither {self._config.journal_directory} nor the offset topic"
                    " tells of its snapshots: what an initial one left out is called missing, and"
                    " lost rows at the end of a window can't be told"
                )
        if rows and self._is_thinned:
            self.notes.append(
                "transforms or skipped.operations may have dropped rows that snapshots read:"
                " whether some are lost was not looked at"
            )

    # By their windows

    def _doubled(self) -> DataFrame:
        twice = self.laid.where("position = before_position")
        what = F.concat(
            _name(), F.lit(" is more than once there; another one is in topic "),
            "before_topic", _at("before_partition", "before_offset"),
        )  # fmt: skip
        return findings_of(twice, kind=F.lit(DOUBLED), what=what)

    @cached_property
    def _holes(self) -> DataFrame:
        """The holes in windows of which all is there: ``first``, ``size``; and of the rows around
        them."""
        newest = self.laid.groupBy("database").agg(F.max("item").alias("newest_us"))
        first = F.coalesce(F.col("before_position"), F.lit(0)) + 1
        holes = (
            self.laid.where(F.col("position") > first)
            .withColumn("first", first)
            .withColumn("size", F.col("position") - first)
            .join(F.broadcast(newest), "database")
        )
        is_newest = F.col("item") == F.col("newest_us")
        may_be_open = F.col("database").isin(*self._known.open)
        if not self._config.transactional:
            # What is begun of a batch stays, and its rows are read again in another window.
            may_be_open |= ~F.col("database").isin(*self._known.states)
            holes = holes.where(is_newest)
        around = F.col("topic").isin(*self._worn) | F.coalesce(
            F.col("before_topic").isin(*self._worn), F.lit(False)
        )
        holes = holes.where(~(is_newest & may_be_open) & ~around)
        return holes.where(~F.col("database").isin(*self._with_bad_rows(holes)))

    def _with_bad_rows(self, holes: DataFrame) -> list[str]:
        """The databases of whose HOLES all may be rows that could not be sent."""
        excused = []
        for row in holes.groupBy("database").agg(F.sum("size").alias("size")).collect():
            bad = self._known.bad_rows(row["database"])
            if bad is None:
                bad = 0 if self._config.failure_handling_mode == "fail" else row["size"]
            if row["size"] <= bad:
                excused.append(row["database"])
                self.notes.append(
                    f"{row['database']}: {row['size']:,} rows that snapshots read are not there,"
                    " as they could not be sent"
                )
        return excused

    def _holes_found(self) -> DataFrame:
        is_one = F.col("size") == 1
        last = (F.col("first") + F.col("size") - 1).cast("string")
        which = F.when(is_one, F.concat(F.lit("row "), F.col("first").cast("string"))).otherwise(
            F.concat(F.lit("rows "), F.col("first").cast("string"), F.lit(" to "), last)
        )
        verb = F.when(is_one, " is in no topic").otherwise(" are in no topic")
        what = F.concat(
            which, F.lit(" of window "), _uuid(), verb, F.lit("; the next one is in topic "),
            "topic", _at("partition", "offset"),
        )  # fmt: skip
        table = F.when(F.coalesce("before_table", "table") == F.col("table"), F.col("table"))
        return findings_of(
            self._holes,
            kind=F.lit(MISSING),
            table=table,
            key=F.lit(None),
            position=F.col("first"),
            what=what,
        )

    def _lacking(self) -> DataFrame:
        """Return tables of which fewer rows are there than were sent, and no hole says so."""
        rows = list(self._lacking_rows())
        schema = "database string, table string, topic string, what string"
        return findings_of(self._spark.createDataFrame(rows, schema), kind=F.lit(MISSING))

    def _lacking_rows(self) -> Iterator[tuple[str, str, str, str]]:
        facts, sent = self._facts, self._known.rows()
        if self._changes.since is not None or self._changes.until is not None:
            return
        found = Counter(
            {
                (row["database"], row["table"]): row["rows"]
                for row in self.laid.where("before_position is null or before_position <> position")
                .groupBy("database", "table")
                .agg(F.count("*").alias("rows"))
                .collect()
            }
        )
        tables = F.explode(F.array_distinct(F.array("table", F.coalesce("before_table", "table"))))
        holes = self._holes.select("database", tables.alias("of"), "size")
        for row in holes.groupBy("database", "of").agg(F.sum("size").alias("size")).collect():
            found[row["database"], row["of"]] += row["size"]
        names = TopicNames(self._config)
        for (database, table), number in sorted(sent.items()):
            if database not in facts.read or found[database, table] >= number:
                continue
            try:
                topic = names.of_table(database, table)
            except BadName:
                continue
            if topic not in self._worn:
                yield (
                    database,
                    table,
                    topic,
                    f"{table}: snapshots have sent {number:,} rows, and topic {topic} has"
                    f" {found[database, table]:,} of them",
                )

    # By their keys

    def _out_of_place(self) -> DataFrame:
        kinds = F.col("kind").isin(MISPLACED, ALTERED, DOUBLED)
        different = self._found.where(kinds & F.col("database").isin(*self._facts.read))
        by_content = F.col("note") == CONTENT
        surely = different.where(F.coalesce(~by_content, F.lit(True)))
        if different.where(by_content).isEmpty():
            return findings_of(surely)
        return findings_of(surely.unionByName(self._unexplained(different.where(by_content))))

    def _unexplained(self, different: DataFrame) -> DataFrame:
        """Return those of DIFFERENT, by their content, that no journal explains: of a range in
        which all are there, and without a change of tables between the two places."""
        ranges = [
            (database, epoch, first, last)
            for database, epochs in self._facts.read.items()
            for epoch, (first, last) in epochs.items()
            if self._facts.is_dense
        ]
        schema = "`of` string, `in` bigint, `first` bigint, `last` bigint"
        known = self._spark.createDataFrame(ranges, schema)
        cut, other = _place("epoch", "sequence"), _place("other_epoch", "other_sequence")
        inside = (
            (F.col("database") == F.col("of"))
            & (F.col("epoch") == F.col("in"))
            & F.col("sequence").between(F.col("first") - 1, F.col("last"))
        )
        place = _place("e", "s")
        between = (
            (F.col("database") == F.col("d"))
            & (place >= F.least(cut, other))
            & (place <= F.greatest(cut, other))
        )
        missing = self._found.where(F.col("kind").isin("quarantined", UNREAD, ONCE_SENT))
        events = self._changes.load("digest").where(F.col("operation").isin(*_UNEXPLAINED))
        columns = [F.col("database").alias("d"), F.col("epoch").alias("e")]
        columns.append(F.col("sequence").alias("s"))
        places = missing.select(*columns).unionByName(events.select(*columns)).distinct()
        compared = different.join(F.broadcast(known), inside, "left_semi").join(
            F.broadcast(places), between, "left_anti"
        )
        compared = compared.persist()
        left = different.count() - compared.count()
        if left:
            self.notes.append(
                f"{left:,} rows that snapshots read are not what the changes of their keys make of"
                " them, but journals are missing there, or a table was changed: they were not"
                " compared"
            )
        return compared


def _laid(reads: DataFrame) -> DataFrame:
    """READS with what stands before each in its window: ``before_...``."""
    in_order = Window.partitionBy("journal").orderBy("position", "offset", "topic", "partition")
    names = ("position", "topic", "partition", "offset", "table")
    before = [F.lag(name).over(in_order).alias(f"before_{name}") for name in names]
    columns = ("journal", "database", "epoch", "sequence", "key", "item", *names)
    return reads.select(*columns, *before)


def _place(epoch: str, sequence: str) -> Column:
    return F.struct(F.col(epoch).alias("a"), F.col(sequence).alias("b"))


def _uuid() -> Column:
    parts = "(.{8})(.{4})(.{4})(.{4})(.{12})"
    return F.regexp_replace(F.lower(F.hex("journal")), parts, "$1-$2-$3-$4-$5")


def _at(partition: str, offset: str) -> Column:
    return F.concat(F.lit(", partition "), partition, F.lit(", offset "), offset)


def _name() -> Column:
    return F.concat("table", F.lit(": row "), "position", F.lit(" of window "), _uuid())
