"""Journals against Kafka: is every event in its topic once, in order, and nothing else?

`rendered` renders the journals as the shipper does, `topic_reader` reads the topics, and here both
are brought together by topic and key and compared (`topic_diff`). Each difference is classified
(`classify`): what retention, compaction, filters, the end of what is shipped, or missing journals
explain is no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.families import AVRO
from firebird_cdc.errors import RegistryTrouble, ReplayError, SetupError
from firebird_cdc.journal.events.topics import TopicNames
from firebird_cdc.journal.replay.audit.findings import JOURNAL_KINDS, SCHEMA, Comparison, Kind
from firebird_cdc.journal.replay.audit.gap_attribution import CLOCKS_DIFFER_US
from firebird_cdc.journal.replay.audit.input import AuditInput
from firebird_cdc.journal.replay.audit.kafka import topic_reader
from firebird_cdc.journal.replay.audit.kafka.classify import CLASSIFIED, Classifier, Facts
from firebird_cdc.journal.replay.audit.kafka.message_form import Form
from firebird_cdc.journal.replay.audit.kafka.read_diff import OF_READS, READ
from firebird_cdc.journal.replay.audit.kafka.rendered import (
    END_AT,
    UNREAD,
    WANTED,
    Rendering,
    find_volatile,
    is_reshaped,
    read_expected,
    rendering_of,
)
from firebird_cdc.journal.replay.audit.kafka.snapshot_reads import (
    KnownSnapshots,
    ReadAudit,
    StoredRows,
    kinds_of,
)
from firebird_cdc.journal.replay.audit.kafka.topic_diff import (
    COUNTED,
    DIFFERENCE,
    MATCHED,
    ONCE_SENT,
    PLACED,
    SEEN_COUNT,
    STANDS,
    WANTED_COUNT,
    TopicDiff,
)
from firebird_cdc.journal.replay.audit.kafka.topic_reader import Shipped, Topics
from firebird_cdc.journal.replay.cluster.progress import doing
from firebird_cdc.journal.replay.source.arrow import map_in_arrow, schema_text
from firebird_cdc.journal.replay.source.bounds import Bound, HistoryPoint

_KINDS = {
    "missing event": Kind(
        "publish it again: firebird-cdc replay repair; a consumer that has read the topic lacks it"
    ),
    "doubled event": Kind("tell consumers to leave out a pair of journal and pos that they know"),
    "altered event": Kind(
        "compare the message with the journal: the configuration was another one when it was sent,"
        " or somebody else wrote it"
    ),
    "unknown event": Kind(
        "find out who writes to the topic: no journal has this event. Topics should be writable by"
        " the shipper alone"
    ),
    "order": Kind(
        "bring consumers of the key to its state by the journals; look for a second producer, or"
        " for partitions that were added"
    ),
    "quarantined": JOURNAL_KINDS["quarantined"],
    "placeholder": Kind(
        "these values are not in Kafka: a consumer that needs them has to read the database; raise"
        " kafka.producer.max.request.size and the topic's max.message.bytes",
        is_fault=False,
    ),
    "late": Kind(
        "consumers that apply events as they come have to compare commitSeq", is_fault=False
    ),
}


def compare(
    spark: SparkSession,
    changes: AuditInput,
    config: ConnectorConfig,
    *,
    consumer_properties: Mapping[str, str],
) -> Comparison:
    """Compare the journals of CHANGES with the topics of CONFIG's brokers.

    CONSUMER_PROPERTIES: of the Java client, in priority over what CONFIG says; may hold passwords.
    ``findings`` is kept by Spark until the caller unpersists it. Raises ReplayError if Spark's
    Kafka source is not there, Kafka does not answer, or a class of the user's can't be loaded.
    """
    topic_reader.check_source(spark)
    options = topic_reader.consumer_options(config, consumer_properties)
    with doing(spark, "looking at the topics"):
        shipped, known = _told(spark, config, options)
        # What was shipped is in the topics by now, and of what is in them now the journals are
        # in the folders, or were when these were listed.
        existing = set(topic_reader.list_topics(spark, options))
        names = {name for name in existing if _is_ours(name, config, changes)}
        asked = existing if config.transforms else names  # any topic may be theirs
        written = topic_reader.written_by_now(spark, options, sorted(asked))
        reached, told_later = _told(spark, config, options)
        known = known.followed_by(told_later)
    form = known.form(config, Form(blocks=config.provide_transaction_metadata))
    left_out = known.left_out
    if AVRO in (config.key_converter, config.value_converter):
        form = _form_of_avro(config, form, existing)
    rendering = rendering_of(changes, config, form, left_out)
    if is_reshaped(config):
        with doing(spark, "looking at what transforms make of events"):
            volatile = find_volatile(changes, rendering)
        form = replace(form, volatile=volatile)
        rendering = replace(rendering, form=form)
    with ExitStack() as held:
        wanted = read_expected(changes, rendering)
        if config.transforms:
            wanted = _kept(wanted, held, StorageLevel.DISK_ONLY)
            with doing(spark, "rendering the journals"):
                rows = wanted.where(F.col("side") == WANTED).select("topic").distinct().collect()
            names |= {row["topic"] for row in rows} & existing
        with doing(spark, "looking at the topics"):
            topics = topic_reader.look_at(spark, options, sorted(names), written)
        both = wanted
        if topics.spans:
            seen = topic_reader.read_observed(spark, options, topics, form, config.topic_prefix)
            both = wanted.unionByName(seen)
        ordered = both.repartition("topic", "grp").sortWithinPartitions(
            "topic", "grp", "side", "a", "b", "c", "d"
        )
        diff = TopicDiff(topics.compacted, StoredRows(config, known))
        differences = map_in_arrow(ordered, diff, schema_text(DIFFERENCE))
        found = _kept(differences, held)
        with doing(spark, "comparing journals with topics"):
            counted = _count(found)
        facts = _facts(changes, config, topics, shipped, reached, counted)
        later = None
        lacking = F.col("topic").isin(*topics.compacted) & F.col("kind").isin("missing", "altered")
        if topics.compacted and (counted.of("missing") or counted.of("altered")):
            with doing(spark, "looking for what compaction may have removed"):
                reached, _ = _told(spark, config, options)
            later = _later(changes, rendering, found.where(lacking), reached)
            later = _kept(later, held)
        classified = _kept(_classified(spark, changes, found, facts, counted, later), held)
        with doing(spark, "naming what differs"):
            excused = _take_excused(classified)
            told, proven = list[str](), list[str]()
            findings = classified.where("kind not like '-%'").select(*SCHEMA)
            if counted.of(READ) or known.are_any:
                reads = ReadAudit(changes, config, known, facts, found)
                reads.laid = _kept(reads.laid, held)
                findings = findings.unionByName(reads.findings())
                told, proven = reads.notes, reads.proven
            findings = findings.persist()
            findings.count()  # while what it is made of is kept
    kinds = {**_KINDS, **kinds_of(config)}
    if not config.transactional:
        kinds["doubled event"] = Kind(
            "without kafka.producer.transactional.id a crash may repeat events; consumers tell them"
            " by journal and pos",
            is_fault=False,
        )
    notes = [*topics.notes, *_notes(facts, excused), *told]
    if any(counted.of(kind) for kind in (PLACED, "altered", "quarantined")):
        notes += _placeholders(findings)
    return Comparison(
        findings,
        kinds,
        proven=[*_proven(facts), *proven],
        notes=notes,
        counts={
            "messages expected": counted.of(WANTED_COUNT),
            "messages in the topics": counted.of(SEEN_COUNT),
            "messages matched": counted.of(MATCHED),
            "rows of snapshots": counted.of(READ),
            "offsets": {
                topic: {str(part): span.end for part, span in sorted(parts.items())}
                for topic, parts in sorted(topics.spans.items())
            },
        },
    )


def _kept(
    table: DataFrame, held: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK
) -> DataFrame:
    """TABLE, which Spark keeps until HELD is closed."""
    table = table.persist(level)
    held.callback(table.unpersist)
    return table


def _told(
    spark: SparkSession, config: ConnectorConfig, options: Mapping[str, str]
) -> tuple[dict[str, Shipped], KnownSnapshots]:
    """Return up to where each database is in Kafka by now, and how far its snapshots have come."""
    topic = config.position_topic
    if topic not in topic_reader.list_topics(spark, options):
        return {}, KnownSnapshots.of(config, ())
    here = topic_reader.look_at(spark, options, [topic])
    positions, records = topic_reader.read_offset_topic(spark, options, here)
    return positions, KnownSnapshots.of(config, records)


def _form_of_avro(config: ConnectorConfig, form: Form, topics: set[str]) -> Form:
    from firebird_cdc.journal.events.avro import registered_schemas
    from firebird_cdc.journal.replay.audit.kafka.avro_form import AvroReader

    def reader(converter: str, options: Mapping[str, str], *, is_key: bool) -> AvroReader | None:
        if converter != AVRO:
            return None
        try:
            return AvroReader(registered_schemas(options, topics, is_key=is_key))
        except (RegistryTrouble, SetupError) as error:
            raise ReplayError(str(error)) from error

    return replace(
        form,
        decode_key=reader(config.key_converter, config.key_converter_options, is_key=True),
        decode_value=reader(config.value_converter, config.value_converter_options, is_key=False),
    )


def _is_ours(topic: str, config: ConnectorConfig, changes: AuditInput) -> bool:
    """Tell whether a topic is one that events without transforms go to."""
    names = TopicNames(config)
    if topic in (config.position_topic, names.heartbeats):
        return False
    if topic == names.transactions:
        return config.provide_transaction_metadata
    if topic == names.schema_changes:
        return config.include_schema_changes
    return any(names.may_be_of(topic, span.database) for span in changes.spans)


# What the driver makes of it


class _Matched(NamedTuple):
    """From where to where messages of a database and epoch in a partition were matched; ``sure``:
    first and last offset of those for which no other message can be meant."""

    offset: int
    first: HistoryPoint
    last: HistoryPoint
    sure: tuple[int, int] | None


@dataclass(frozen=True)
class _Counted:
    """Sums of what tasks have found: as many rows as there are topics, partitions and kinds."""

    matched: dict[tuple[str, int, str, int], _Matched]
    numbers: Counter[tuple[str, str]]

    def of(self, kind: str) -> int:
        """Return the number that was counted for a kind, over all topics."""
        return sum(number for (which, _), number in self.numbers.items() if which == kind)

    @property
    def differences(self) -> int:
        """Number of differences, before anything is excused."""
        uncounted = (*COUNTED, *OF_READS)
        return sum(number for (kind, _), number in self.numbers.items() if kind not in uncounted)


def _count(found: DataFrame) -> _Counted:
    place = F.struct("epoch", "sequence", "position")
    end = F.struct("other_epoch", "other_sequence", "other_position")
    is_counted, is_matched = F.col("kind").isin(*COUNTED), F.col("kind") == MATCHED
    rows = (
        found.groupBy(
            "kind",
            "topic",
            F.when(is_matched, F.col("partition")).alias("part"),
            F.when(is_matched, F.col("database")).alias("of"),
            F.when(is_matched, F.col("epoch")).alias("in"),
        )
        .agg(
            F.sum(F.when(is_counted, F.col("item")).otherwise(1)).alias("number"),
            F.min("offset").alias("offset"),
            F.min_by(place, "offset").alias("first"),
            F.max(end).alias("last"),
            F.min("first_offset").alias("sure_first"),
            F.max("last_offset").alias("sure_last"),
        )
        .collect()
    )
    matched = {}
    numbers: Counter[tuple[str, str]] = Counter()
    for row in rows:
        numbers[row["kind"], row["topic"] or ""] += row["number"]
        if row["kind"] == MATCHED:
            sure = row["sure_first"], row["sure_last"]
            matched[row["topic"], row["part"], row["of"], row["in"]] = _Matched(
                row["offset"],
                tuple(row["first"]),
                tuple(row["last"]),
                None if None in sure else sure,
            )
    return _Counted(matched, numbers)


def _facts(
    changes: AuditInput,
    config: ConnectorConfig,
    topics: Topics,
    shipped: Mapping[str, Shipped],
    reached: Mapping[str, Shipped],
    counted: _Counted,
) -> Facts:
    """SHIPPED: what is in Kafka at least; REACHED: at most."""
    read: dict[str, dict[int, tuple[int, int]]] = {}
    for span in changes.spans:
        read.setdefault(span.database, {})[span.epoch] = span.first, span.last
    newest = {span.database: span for span in changes.spans}  # in the order of epochs
    ends: dict[str, tuple[HistoryPoint, bool]] = {}
    for database in read:
        position = shipped.get(database)
        if position is not None:
            pos = END_AT if position.complete else position.pos
            ends[database] = (position.epoch, position.sequence, pos), True
            continue
        lasts = [each.last for (_, _, of, _), each in counted.matched.items() if of == database]
        if lasts:
            ends[database] = max(lasts), False
    highest = {database: place[:2] for database, (place, _) in ends.items()}
    highest |= {database: (each.epoch, each.sequence) for database, each in reached.items()}
    offsets: dict[tuple[str, int], int] = {}
    begins: dict[tuple[str, int, str], dict[int, int]] = {}
    horizons: dict[tuple[str, int, str], HistoryPoint] = {}
    for (topic, partition, of, epoch), each in sorted(
        counted.matched.items(), key=lambda item: item[1].offset
    ):
        offsets.setdefault((topic, partition), each.offset)
        begins.setdefault((topic, partition, of), {})[epoch] = each.offset
        horizons.setdefault((topic, partition, of), each.first)
    return Facts(
        ends=ends,
        read=read,
        last_epochs={
            database: max(
                changes.last_epochs.get(database, 0), highest.get(database, (0, 0))[0], *epochs
            )
            for database, epochs in read.items()
        },
        trimmed={
            topic: found
            for topic, parts in topics.spans.items()
            if (found := tuple(part for part, span in parts.items() if span.start > 0))
        },
        topics=frozenset(topics.spans),
        compacted=topics.compacted,
        horizons=horizons,
        offsets=offsets,
        begins=begins,
        expected=frozenset(
            topic
            for (kind, topic), number in counted.numbers.items()
            if kind == WANTED_COUNT and number
        ),
        is_dense=all(span.journals == span.last - span.first + 1 for span in newest.values()),
        has_begin=changes.since is None
        and all((span.epoch, span.first) == (0, 1) for span in changes.spans),
        has_end=changes.until is None
        and all(
            highest.get(database, (0, 0)) <= (span.epoch, span.last)
            for database, span in newest.items()
        ),
        sure=_sure(counted, {database: span.epoch for database, span in newest.items()}),
        is_routed=bool(config.transforms),
    )


def _sure(counted: _Counted, epochs: Mapping[str, int]) -> dict[tuple[str, int], tuple[int, int]]:
    """By topic and partition, from where to where all is of events in the range, in the last one of
    its EPOCHS: whether an older epoch ended with what is there of it can't be told."""
    of_databases: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
    for (topic, partition, database, epoch), each in counted.matched.items():
        if each.sure is not None and epoch == epochs.get(database):
            known = of_databases.setdefault((topic, partition), {})
            low, high = known.get(database, each.sure)
            known[database] = min(low, each.sure[0]), max(high, each.sure[1])
    return {
        where: (max(low for low, _ in known.values()), min(high for _, high in known.values()))
        for where, known in of_databases.items()
    }


def _later(
    changes: AuditInput,
    rendering: Rendering,
    keys: DataFrame,
    reached: Mapping[str, Shipped],
) -> DataFrame:
    """Return (topic, grp, database, latest): the places of the last events of KEYS (topic, grp) in
    the journals behind the range and those that came since.

    What is not in Kafka by REACHED is left out: it has removed nothing.
    """
    since = changes.until
    if since is None:
        began_us = min(span.last_commit_us for span in changes.spans)
        since = Bound(None, None, began_us - CLOCKS_DIFFER_US)
    behind = replace(changes, since=since, until=None)
    keys = keys.select("topic", "grp").distinct()
    ends = changes.spark.createDataFrame(
        [
            (database, (each.epoch, each.sequence, END_AT if each.complete else each.pos))
            for database, each in reached.items()
        ],
        "database string, end struct<a: bigint, b: bigint, c: bigint>",
    )
    place = F.struct("a", "b", "c")
    return (
        read_expected(
            behind, rendering_of(behind, rendering.config, rendering.form, rendering.left_out)
        )
        .where((F.col("side") == WANTED) & F.col("note").isNull())
        .join(F.broadcast(keys), ["topic", "grp"], "left_semi")
        .join(F.broadcast(ends), "database", "left")
        .where(F.col("end").isNull() | (place <= F.col("end")))
        .groupBy("topic", "grp", "database")
        .agg(F.max(place).alias("latest"))
    )


def _with_later(different: DataFrame, later: DataFrame | None) -> DataFrame:
    """Add ``has_later``: whether LATER has an event of the same key."""
    name = "has_later"
    if later is None:
        return different.withColumn(name, F.lit(None).cast("boolean"))
    place = F.struct(
        F.col("epoch").alias("a"), F.col("sequence").alias("b"), F.col("position").alias("c")
    )
    return (
        different.join(later, ["topic", "grp", "database"], "left")
        .withColumn(name, F.col("latest") > place)
        .drop("latest")
    )


def _classified(
    spark: SparkSession,
    changes: AuditInput,
    found: DataFrame,
    facts: Facts,
    counted: _Counted,
    later: DataFrame | None,
) -> DataFrame:
    """Return the findings, and what was excused: its kind begins with a minus."""
    if not counted.differences:
        return spark.createDataFrame([], schema_text(CLASSIFIED))
    different = found.where(~F.col("kind").isin(*COUNTED, *OF_READS, STANDS, UNREAD, ONCE_SENT))
    place = ("database", "epoch", "sequence", "position")
    if counted.of(STANDS):
        stands = found.where(F.col("kind") == STANDS).select(*place).distinct()
        different = different.join(
            stands.withColumn("is_repaired", F.lit(True)), list(place), "left"
        ).where("not (kind = 'missing' and coalesce(is_repaired, false))")
        different = different.drop("is_repaired")
    if counted.of("missing") and counted.of("extra"):
        different = _with_moved(different)
    if counted.of("quarantined") and counted.of("extra"):
        different = _with_falsified(different)
    different = _with_later(different, later)
    different = _marked(
        different,
        found.where(F.col("kind").isin("quarantined", "loose", ONCE_SENT)),
        ("database", "epoch", "sequence"),
        "is_counted_otherwise",
        is_any=any(counted.of(kind) for kind in ("quarantined", "loose", ONCE_SENT)),
    )
    different = _marked(
        different,
        found.where(F.col("kind") == UNREAD),
        ("journal",),
        "is_unread",
        is_any=bool(counted.of(UNREAD)),
    )
    inside = changes.files.select("file", F.lit(True).alias("is_inside"))
    files = (
        changes.whole.join(inside, "file", "left")
        .groupBy(F.unhex(F.regexp_replace("journal", "-", "")).alias("journal"))
        .agg(
            F.min("file").alias("file"),
            F.min("epoch").alias("file_epoch"),
            F.max("is_inside").alias("is_in_range"),
        )
    )
    classified = different.join(files, "journal", "left")
    classified = _with_epochs_of_number(classified, changes, is_any=bool(counted.of("extra")))
    classified = map_in_arrow(classified, Classifier(facts), schema_text(CLASSIFIED))
    same = ("kind", "reason", "database", "epoch", "sequence", "position", "file")
    alone = F.when(F.col("position").isNull(), F.concat_ws(":", "topic", "partition", "offset"))
    first = F.struct("offset", *(name for name in SCHEMA if name not in (*same, "offset")))
    return (
        classified.groupBy(*same, alone.alias("alone"))
        .agg(F.min(first).alias("m"))
        .select(
            *(name if name in same else F.col(f"m.{name}").alias(name) for name in SCHEMA),
            "reason",
        )
    )


def _with_epochs_of_number(
    classified: DataFrame, changes: AuditInput, *, is_any: bool
) -> DataFrame:
    """Add ``epochs_of_number``: those in which a journal has the sequence number that a message
    tells, in the range or not."""
    name = "epochs_of_number"
    if not is_any:
        return classified.withColumn(name, F.lit(None).cast("array<bigint>"))
    columns = ("journal", "database", "epoch", "sequence")
    numbers = (
        changes.whole.select(*columns)
        .unionByName(changes.files.select(*columns))  # may know the places of damaged journals
        .where("sequence is not null and journal is not null")
        .groupBy(F.col("database").alias("of"), F.col("sequence").alias("number"))
        .agg(F.collect_set("epoch").alias(name))
    )
    same = (F.col("database") == F.col("of")) & (F.col("sequence") == F.col("number"))
    return classified.join(numbers, same, "left").drop("of", "number")


def _marked(
    different: DataFrame, marks: DataFrame, columns: tuple[str, ...], name: str, *, is_any: bool
) -> DataFrame:
    """Add the column NAME: whether COLUMNS are those of a row of MARKS."""
    if not is_any:
        return different.withColumn(name, F.lit(None).cast("boolean"))
    marked = marks.select(*columns).distinct().withColumn(name, F.lit(True))
    return different.join(marked, list(columns), "left")


def _with_moved(different: DataFrame) -> DataFrame:
    """Make one difference of a message that is missing and one that stands for it under another
    key or in another topic."""
    place = ("journal", "position", "op")
    lost = different.where("kind = 'missing'").select(*place).distinct()
    strange = (
        different.where("kind = 'extra' and journal is not null and op <> 't'")
        .select(*place, F.col("topic").alias("moved_to"))
        .dropDuplicates(list(place))
    )
    both = lost.join(strange, list(place))
    marked = different.join(both, list(place), "left")
    kind = F.when(
        (F.col("kind") == "missing") & F.col("moved_to").isNotNull(), "altered"
    ).otherwise(F.col("kind"))
    return (
        marked.where("not (kind = 'extra' and moved_to is not null)")
        .withColumn("kind", kind)
        .drop("moved_to")
    )


def _with_falsified(different: DataFrame) -> DataFrame:
    """Make one difference of an event that can't be sent and of messages that say they are this
    event: its value was replaced when they were made."""
    place = ("journal", "position")
    columns = ("topic", "partition", "offset", "placed")
    unsent = different.where("kind = 'quarantined'").select(*place).distinct()
    sent = (
        different.where("kind = 'extra' and journal is not null and note is null")
        .groupBy(*place)
        .agg(F.min(F.struct("offset", "topic", "partition", "placed")).alias("sent"))
    )
    marked = different.join(unsent.join(sent, list(place)), list(place), "left")
    is_falsified = (F.col("kind") == "quarantined") & F.col("sent").isNotNull()
    for name in columns:
        column = F.when(is_falsified, F.col(f"sent.{name}")).otherwise(F.col(name))
        marked = marked.withColumn(name, column)
    return (
        marked.where("not (kind = 'extra' and note is null and sent is not null)")
        .withColumn("kind", F.when(is_falsified, "falsified").otherwise(F.col("kind")))
        .drop("sent")
    )


def _take_excused(classified: DataFrame) -> dict[tuple[str, str], int]:
    """Return the number of excused differences, by kind and reason."""
    rows = classified.groupBy("kind", "reason").count().collect()
    return {
        (row["kind"], row["reason"]): row["count"] for row in rows if row["kind"].startswith("-")
    }


def _placeholders(findings: DataFrame) -> list[str]:
    """A sentence on the values that were not delivered, none if there are none."""
    rows = findings.where("kind = 'placeholder'").groupBy("table").count().collect()
    if not rows:
        return []
    shown = sorted(rows, key=lambda row: (-row["count"], row["table"] or ""))[:_MOST_TABLES]
    tables = ", ".join(f"{row['table']} ({row['count']:,})" for row in shown)
    more = f" and {len(rows) - len(shown)} more tables" if len(rows) > len(shown) else ""
    number = sum(row["count"] for row in rows)
    return [
        f"{number:,} events have placeholders for values that were too large, of {tables}{more}:"
        " these values were not delivered"
    ]


_MOST_TABLES = 20

_EXCUSES = {
    ("-missing", "not shipped"): "{n} events are behind what the shipper has in Kafka by its"
    " offset topic: they wait, and were not looked for",
    ("-missing", "retention"): "{n} events are older than what retention has left in their"
    " topics: nothing can be said of them",
    (
        "-missing",
        "compaction",
    ): "{n} events are not in their compacted topics, which may be as later"
    " events of their keys were sent: nothing can be said of them",
    ("-unknown", "before"): "{n} messages are from before the first journal that was read",
    ("-unknown", "after"): "{n} messages are from behind the last journal that was read",
    ("-unknown", "outside"): "{n} messages are of journals that are not in the range",
    ("-unknown", "missing journal"): "{n} messages are of journals that are missing here",
    ("-unknown", "unread"): "{n} messages are of journals that can't be read",
    ("-unknown", "other database"): "{n} messages are of databases of which no journal was read",
    ("-unknown", "other server"): "{n} messages are of other servers that share the topics",
    ("-unknown", "not sent now"): "{n} messages are of events that the configuration in force"
    " does not send, in topics to which it sends nothing",
    ("-unknown", "no place"): "{n} messages don't tell where they are from, and the history is"
    " not whole: they were not compared",
    ("-doubled", "no place"): "{n} messages are equal to others of their keys and don't tell where"
    " they are from, so they may be of events outside the range: they were not compared",
    ("-altered", "counts"): "{n} events have another number in their transaction, of which events"
    " were left out at that time",
}


def _proven(facts: Facts) -> list[str]:
    """A sentence for each database and each topic with a limit on what was checked."""
    sentences = []
    for database, epochs in sorted(facts.read.items()):
        end = facts.ends.get(database)
        if end is None:
            sentences.append(f"{database}: nothing of it is in Kafka, so nothing was compared")
            continue
        (epoch, sequence, position), by_position = end
        event = "" if position == END_AT or not by_position else f", event {position}"
        source = (
            "as far as it was shipped according to the offset topic"
            if by_position
            else "the last one found in its topics; it has no offset, so what may be lost"
            " behind it can't be told"
        )
        first, last = min(epochs), max(epochs)
        if (last, epochs[last][1]) < (epoch, sequence):
            epoch, sequence, event = last, epochs[last][1], ""
            source = "the last journal that was read; more was shipped"
        old = f" of epoch {first}" if first != epoch else ""
        sentences.append(
            f"{database}: compared with Kafka from sequence {epochs[first][0]:,}{old} to"
            f" {sequence:,}{event} of epoch {epoch}, {source}"
        )
    for topic, partitions in sorted(facts.trimmed.items()):
        places = [
            f"partition {part} from sequence {place[1]}"
            for part in partitions
            for (of, number, _), place in sorted(facts.horizons.items())
            if of == topic and number == part
        ]
        sentences.append(
            f"topic {topic}: retention has taken its beginning; proven is"
            f" {', '.join(places) if places else 'nothing of what it took'}"
        )
    for topic in sorted(facts.compacted & facts.expected):
        sentences.append(f"topic {topic}: compacted, so only the last message of each key is due")
    return sentences


def _notes(facts: Facts, excused: Mapping[tuple[str, str], int]) -> list[str]:
    sentences = [
        text.format(n=f"{excused[which]:,}") for which, text in _EXCUSES.items() if which in excused
    ]
    absent = sorted(facts.expected - facts.topics)
    if absent:
        shown = ", ".join(absent[:20]) + (", ..." if len(absent) > 20 else "")
        sentences.append(f"topics that do not exist: {shown}")
    return sentences
