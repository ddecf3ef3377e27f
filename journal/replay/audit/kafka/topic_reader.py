"""Content of the topics: read by Spark's Kafka source up to an end that is fixed at the start.

Metadata (topics, offsets, policies) come from the admin client of the same Java library, so the
driver needs nothing else. Properties of the client may hold passwords: they go to Spark as options,
which it redacts by their names, and into no message of ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.events.headers import told_by
from firebird_cdc.journal.events.oversized import OVERSIZED_HEADER
from firebird_cdc.journal.replay.audit.kafka.earlier import form_number
from firebird_cdc.journal.replay.audit.kafka.message_form import NO_IMAGES, OURS, Form
from firebird_cdc.journal.replay.audit.kafka.rendered import ARROW, BATCH_ROWS, COLUMNS, SEEN
from firebird_cdc.journal.replay.source.arrow import map_in_arrow, record_batch, schema_text

PACKAGES = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
)
"""Jars of Spark's Kafka source, by their Maven names: each alone, without its dependencies."""

HOW_TO_GET = (
    "Spark's Kafka source is not there. Fetch its jars once, each alone: for a in"
    f" {' '.join(PACKAGES)}; do mvn -q dependency:copy -Dartifact=$a -DoutputDirectory=jars;"
    " done. Then add --jars jars to the command; with spark-submit: --jars and the files,"
    " with commas between them"
)

FOREIGN = "server:"
"""Stands before the name of another server in a message's ``note``."""

_SOURCE_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_ADMIN_TIMEOUT_MS = 30_000
_LSO_WAIT_S = 30.0
_LSO_LOOK_S = 0.1
_ROWS_PER_TASK = 1_000_000
_MOST_TASKS = 2000

# librdkafka's name -> the Java client's, where the value is the same.
_SAME = {
    "bootstrap.servers": "bootstrap.servers",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "client.dns.lookup": "client.dns.lookup",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.password": "ssl.key.password",
    "sasl.oauthbearer.token.endpoint.url": "sasl.oauthbearer.token.endpoint.url",
}


def consumer_options(config: ConnectorConfig, given: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's properties for the brokers that CONFIG names; GIVEN has priority.

    Raises ReplayError for what has no counterpart there and is not GIVEN.
    """
    producer = config.producer
    found = {java: producer[name] for name, java in _SAME.items() if name in producer}
    protocol = producer.get("security.protocol")
    if protocol is not None:
        found["security.protocol"] = protocol.upper()
    if found.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    if "ssl.ca.location" in producer:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.location"] = producer["ssl.ca.location"]
    if "ssl.ca.pem" in producer:
        found["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.location" in producer:
        found["ssl.keystore.type"] = "PKCS12"
        found["ssl.keystore.location"] = producer["ssl.keystore.location"]
        if "ssl.keystore.password" in producer:
            found["ssl.keystore.password"] = producer["ssl.keystore.password"]
    elif "ssl.certificate.location" in producer and "ssl.keystore.location" not in given:
        found["ssl.keystore.type"] = "PEM"
        for name, java in (
            ("ssl.key.location", "ssl.keystore.key"),
            ("ssl.certificate.location", "ssl.keystore.certificate.chain"),
        ):
            found[java] = _read_pem(producer.get(name), name)
    elif "ssl.key.pem" in producer:
        found["ssl.keystore.type"] = "PEM"
    if found.get("security.protocol", "").startswith("SASL") and "sasl.jaas.config" not in given:
        found["sasl.jaas.config"] = _jaas(config)
    found.update(given)
    return found


def _read_pem(place: str | None, name: str) -> str:
    if place is None:
        raise ReplayError(
            f"kafka.producer.{name} is missing beside its counterpart; give the Java client's"
            " keystore by --kafka-option ssl.keystore.location=FILE"
        )
    try:
        return Path(place).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"kafka.producer.{name}: {place} can't be read: {error}") from None


def _jaas(config: ConnectorConfig) -> str:
    producer = config.producer
    mechanism = producer.get("sasl.mechanism", "GSSAPI").upper()
    module = {
        "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
        "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
        "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    }.get(mechanism)
    user, password = producer.get("sasl.username"), producer.get("sasl.password")
    if module is None or user is None or password is None:
        raise ReplayError(
            f"kafka.producer.sasl.mechanism is {mechanism}: what the Java client needs for it can't"
            " be made of the configuration; give --kafka-option sasl.jaas.config=... (and what goes"
            " with it)"
        )

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return f"{module} required username={quoted(user)} password={quoted(password)};"


class Span(NamedTuple):
    """Offsets of one partition: from ``start`` on it has messages, read is up to ``end``."""

    start: int
    end: int


@dataclass(frozen=True)
class Topics:
    """Partitions of the topics, by the topic's name, and the topics that are compacted."""

    spans: dict[str, dict[int, Span]]
    compacted: frozenset[str]
    notes: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """Offsets in all partitions."""
        return sum(
            span.end - span.start for parts in self.spans.values() for span in parts.values()
        )


def check_source(spark: SparkSession) -> None:
    """Raise ReplayError if Spark's Kafka source or Kafka's client is not on the class path."""
    jvm = _jvm(spark)
    loader = jvm.Thread.currentThread().getContextClassLoader()
    for name in (_SOURCE_CLASS, "org.apache.kafka.clients.admin.Admin"):
        try:
            jvm.java.lang.Class.forName(name, False, loader)
        except Py4JJavaError:
            raise ReplayError(HOW_TO_GET) from None


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


@contextmanager
def _admin(spark: SparkSession, options: Mapping[str, str]) -> Iterator[Any]:
    jvm = _jvm(spark)
    properties = jvm.java.util.Properties()
    for name, value in options.items():
        properties.setProperty(name, value)
    properties.setProperty("default.api.timeout.ms", str(_ADMIN_TIMEOUT_MS))
    properties.setProperty("request.timeout.ms", str(_ADMIN_TIMEOUT_MS // 2))
    admin = None
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        yield admin
    except Py4JJavaError as error:
        raise ReplayError(f"Kafka at {options.get('bootstrap.servers')}: {_cause(error)}") from None
    finally:
        if admin is not None:
            admin.close(jvm.java.time.Duration.ofSeconds(5))


def _cause(error: Any) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"


def list_topics(spark: SparkSession, options: Mapping[str, str]) -> list[str]:
    """Return the names of all topics."""
    with _admin(spark, options) as admin:
        return sorted(str(name) for name in admin.listTopics().names().get())


Written = dict[tuple[str, int], int]
"""Up to which offset a partition of a topic was written."""


# What Kafka says of a topic that is gone, or that is not to be seen by us.
_ABSENT = frozenset({"UnknownTopicOrPartitionException", "TopicAuthorizationException"})


@contextmanager
def _passing_over_absent() -> Iterator[None]:
    """Pass over a topic that is not there for us; any other error of Kafka's goes on."""
    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception.getCause()
        if cause is None or cause.getClass().getSimpleName() not in _ABSENT:
            raise


def written_by_now(
    spark: SparkSession, options: Mapping[str, str], names: Sequence[str]
) -> Written:
    """Return up to where the topics NAMES are written, without what is not there to be asked: some
    may be somebody else's, and be gone by now."""
    found: Written = {}
    jvm = _jvm(spark)
    with _admin(spark, options) as admin:
        described = admin.describeTopics(_java_list(jvm, names)).topicNameValues()
        partitions = []
        for name in names:
            with _passing_over_absent():
                partitions += _partitions(jvm, name, described[name].get())
        specs = jvm.org.apache.kafka.clients.admin.OffsetSpec
        level = jvm.org.apache.kafka.common.IsolationLevel
        for part, offset in _asked(jvm, admin, partitions, specs.latest(), level.READ_UNCOMMITTED):
            with _passing_over_absent():
                found[part] = int(offset.get().offset())
    return found


def look_at(
    spark: SparkSession,
    options: Mapping[str, str],
    names: Sequence[str],
    until: Written | None = None,
) -> Topics:
    """Fix what is read of the topics NAMES, which exist: all that was written UNTIL then, or else
    by now.

    Waits a while until what was begun by then is committed or aborted: only then it can be read.
    """
    if not names:
        return Topics({}, frozenset())
    jvm = _jvm(spark)
    with _admin(spark, options) as admin:
        described = admin.describeTopics(_java_list(jvm, names)).allTopicNames().get()
        partitions = [part for name in names for part in _partitions(jvm, name, described[name])]
        specs = jvm.org.apache.kafka.clients.admin.OffsetSpec
        level = jvm.org.apache.kafka.common.IsolationLevel
        starts = _offsets(jvm, admin, partitions, specs.earliest(), level.READ_UNCOMMITTED)
        written = _offsets(jvm, admin, partitions, specs.latest(), level.READ_UNCOMMITTED)
        written = {part: min((until or {}).get(part, now), now) for part, now in written.items()}
        ends = _offsets(jvm, admin, partitions, specs.latest(), level.READ_COMMITTED)
        deadline = monotonic() + _LSO_WAIT_S
        while any(ends[key] < written[key] for key in written) and monotonic() < deadline:
            sleep(_LSO_LOOK_S)
            ends = _offsets(jvm, admin, partitions, specs.latest(), level.READ_COMMITTED)
        policies = _policies(jvm, admin, names)
    notes = [
        f"{topic}, partition {partition}: an open Kafka transaction holds back what was written"
        f" from offset {ends[topic, partition]} on; it was not read"
        for topic, partition in sorted(written)
        if ends[topic, partition] < written[topic, partition]
    ]
    spans: dict[str, dict[int, Span]] = {}
    for (topic, partition), end in ends.items():
        spans.setdefault(topic, {})[partition] = Span(
            starts[topic, partition],
            max(min(end, written[topic, partition]), starts[topic, partition]),
        )
    compacted = frozenset(name for name in names if "compact" in policies.get(name, ""))
    return Topics(spans, compacted, tuple(notes))


def _partitions(jvm: Any, name: str, described: Any) -> list[Any]:
    kind = jvm.org.apache.kafka.common.TopicPartition
    return [kind(name, info.partition()) for info in described.partitions()]


def _java_list(jvm: Any, items: Iterable[Any]) -> Any:
    result = jvm.java.util.ArrayList()
    for item in items:
        result.add(item)
    return result


def _offsets(
    jvm: Any, admin: Any, partitions: Sequence[Any], spec: Any, level: Any
) -> dict[tuple[str, int], int]:
    found = _asked(jvm, admin, partitions, spec, level)
    return {part: int(offset.get().offset()) for part, offset in found}


def _asked(
    jvm: Any, admin: Any, partitions: Sequence[Any], spec: Any, level: Any
) -> list[tuple[tuple[str, int], Any]]:
    """Ask for an offset of each of PARTITIONS; the answers may fail one by one."""
    wanted = jvm.java.util.HashMap()
    for partition in partitions:
        wanted.put(partition, spec)
    asked = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
    found = admin.listOffsets(wanted, asked)
    return [
        ((str(part.topic()), int(part.partition())), found.partitionResult(part))
        for part in partitions
    ]


def _policies(jvm: Any, admin: Any, names: Sequence[str]) -> dict[str, str]:
    kind = jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC
    resources = {
        name: jvm.org.apache.kafka.common.config.ConfigResource(kind, name) for name in names
    }
    found = admin.describeConfigs(_java_list(jvm, resources.values())).all().get()
    return {
        name: str(found[resource].get("cleanup.policy").value())
        for name, resource in resources.items()
    }


class Shipped(NamedTuple):
    """Up to where a database is in Kafka: journal and, if that is not ``complete``, event."""

    epoch: int
    sequence: int
    pos: int
    complete: bool


def read_offset_topic(
    spark: SparkSession, options: Mapping[str, str], topics: Topics
) -> tuple[dict[str, Shipped], list[bytes]]:
    """Return how far each database was shipped, and the last record of the snapshots of each.

    topics: the offset topic alone.
    """
    key = F.from_json(F.col("key").cast("string"), "database string, snapshots boolean")
    value = F.from_json(
        F.col("value").cast("string"),
        "database string, epoch bigint, sequence bigint, pos bigint, complete boolean, late string",
    )
    of_snapshots = F.coalesce(F.col("k.snapshots"), F.lit(False))
    rows = (
        _load(spark, options, topics, includes_headers=False)
        .select(key.alias("k"), value.alias("v"), "value", "offset")
        .withColumn("of_snapshots", of_snapshots)
        .withColumn("database", F.expr("if(of_snapshots, k.database, v.database)"))
        .where("database is not null")
        .where("of_snapshots or (v.late is null and v.sequence is not null)")
        .groupBy("of_snapshots", "database")
        .agg(F.max_by("v", "offset").alias("shipped"), F.max_by("value", "offset").alias("record"))
        .collect()
    )
    positions = {
        row["database"]: Shipped(
            row["shipped"]["epoch"],
            row["shipped"]["sequence"],
            row["shipped"]["pos"],
            bool(row["shipped"]["complete"]),
        )
        for row in rows
        if not row["of_snapshots"]
    }
    records = [row["record"] for row in rows if row["of_snapshots"]]
    return positions, [bytes(record) for record in records if record is not None]


def _load(
    spark: SparkSession, options: Mapping[str, str], topics: Topics, *, includes_headers: bool
) -> DataFrame:
    def offsets(index: int) -> str:
        return json.dumps(
            {
                topic: {str(part): span[index] for part, span in parts.items()}
                for topic, parts in topics.spans.items()
            }
        )

    tasks = min(max(topics.messages // _ROWS_PER_TASK, 1), _MOST_TASKS)
    reader = (
        spark.read.format("kafka")
        .option(
            "assign",
            json.dumps({topic: list(parts) for topic, parts in topics.spans.items()}),
        )
        .option("startingOffsets", offsets(0))
        .option("endingOffsets", offsets(1))
        .option("includeHeaders", str(includes_headers).lower())
        .option("minPartitions", str(tasks))
        # What retention takes while it is read was too old to be proven anyway.
        .option("failOnDataLoss", "false")
    )
    # Each task waits this long for more behind the last message of its partition; 500 by default.
    properties = {"fetch.max.wait.ms": "20", **options, "isolation.level": "read_committed"}
    for name, text in properties.items():
        reader = reader.option(f"kafka.{name}", text)
    return reader.load()


def read_observed(
    spark: SparkSession, options: Mapping[str, str], topics: Topics, form: Form, prefix: str
) -> DataFrame:
    """Return one row per message of the topics, columns as of `rendered`.

    A message that says itself how it came has a ``note``: the header's name without `OURS`, a
    colon, its content; so has one of another server than PREFIX: `FOREIGN` and its name.
    """
    headers = F.filter(
        F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>")),
        lambda header: ~header["key"].startswith("__debezium.context."),
    )
    frame = _load(spark, options, topics, includes_headers=True).select(
        "topic", "partition", "offset", "key", "value", headers.alias("headers")
    )
    return map_in_arrow(frame, Reader(form, prefix), schema_text(COLUMNS))


_NOWHERE = (None, None, None, None)


class Reader:
    """Reads the messages of a task as they are compared."""

    def __init__(self, form: Form, prefix: str) -> None:
        self._form = form
        self._prefix = prefix

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield self._read(batch.slice(start, BATCH_ROWS))

    def _read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        read, key_text = self._form.read, self._form.key_text
        rows = []
        names = ("topic", "partition", "offset", "key", "value", "headers")
        columns = [batch.column(name).to_pylist() for name in names]
        for topic, partition, offset, key, value, headers in zip(*columns, strict=True):
            pairs = [(each["key"], each["value"]) for each in headers]
            note = placed = None
            for name, content in pairs:
                if name == OVERSIZED_HEADER:
                    placed = told_by(content)
                elif name.startswith(OURS):
                    note = f"{name.removeprefix(OURS)}:{told_by(content)}"
            digest, group, block, op, source, _, version, images = read(key, value, pairs)
            sequence = pos = epoch = snapshot = time_us = None
            where: tuple[Any, ...] = _NOWHERE
            if source is not None:
                sequence, pos, epoch = source.sequence, source.pos, source.epoch
                where = source.database, source.journal, source.transaction, source.table
                if source.name != self._prefix and note is None:
                    note = FOREIGN + source.name
                if source.is_read:
                    snapshot, time_us = source.snapshot, source.time_us
            at = topic, group, SEEN, partition, offset, sequence, pos
            told = *where, key_text(key), note, placed, epoch, form_number(version), None
            read_rows = images if placed is None else NO_IMAGES
            rows.append((*at, digest, block, op, *told, snapshot, time_us, *read_rows))
        return record_batch(rows, ARROW)
