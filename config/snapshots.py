"""The options of snapshots, signals and notifications, checked and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from firebird_cdc.config import librdkafka
from firebird_cdc.config.attachment import parse_identifiers
from firebird_cdc.config.families import Patterns, Report, text_of
from firebird_cdc.config.producer import CONSUMED, MAPPED, ProducerSettings, choice_of, narrowed
from firebird_cdc.config.producer import PREFIX as PRODUCER
from firebird_cdc.config.service_topics import signal_topic
from firebird_cdc.config.values import (
    MAX_TOPIC_LENGTH,
    Entry,
    ValueProblem,
    parse_boolean,
    parse_integer,
)

CONSUMER: Final = "signal.consumer."
_OVERRIDES: Final = "snapshot.select.statement.overrides"

CUSTOM: Final = "custom"
CONFIGURED: Final = "configuration_based"
_WITH_ROWS: Final = ("initial", "initial_only", "always", "when_needed")

# Modes that are another name of one.
_SAME_MODE: Final = {"exported": "initial", "schema_only": "no_data"}

# Properties that only consumers have; names of the Java client and of librdkafka.
_CONSUMERS_OWN: Final = {
    "check.crcs": "check.crcs",
    "fetch.error.backoff.ms": "fetch.error.backoff.ms",
    "fetch.max.bytes": "fetch.max.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.min.bytes": "fetch.min.bytes",
    "fetch.wait.max.ms": "fetch.wait.max.ms",
    "isolation.level": "isolation.level",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "queued.max.messages.kbytes": "queued.max.messages.kbytes",
    "queued.min.messages": "queued.min.messages",
}

_FETCH_BYTES: Final = 52_428_800
"""librdkafka's default of fetch.max.bytes."""

_FETCH_HEAD: Final = 512
"""So many bytes more it wants in receive.message.max.bytes."""

_NO_GROUP: Final = "no consumer group is joined"
_OWN_OFFSETS: Final = "the shipper keeps the offset itself"
WITHOUT_EFFECT: Final = {
    "auto.commit.interval.ms": _OWN_OFFSETS,
    "auto.offset.reset": "a topic is read from its beginning where no offset is known",
    "enable.auto.commit": _OWN_OFFSETS,
    "group.id": "the option for it is signal.kafka.groupId",
    "group.instance.id": _NO_GROUP,
    "group.protocol": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "key.deserializer": "a signal is JSON, and its key a text",
    "max.poll.interval.ms": _NO_GROUP,
    "max.poll.records": "it belongs to the Java client",
    "partition.assignment.strategy": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "value.deserializer": "a signal is JSON, and its key a text",
}
"""Properties of consumers that do nothing here, and why; a warning says so."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The answers of ``snapshot.mode: configuration_based``."""

    data: bool
    stream: bool
    on_data_error: bool


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """The choice of existing rows to send, and how they are read. Times are in milliseconds.

    ``mode``: never a second name of another mode. ``policy``: the dotted path of the user's own
    class. ``statements``: by identifier of a table, ``<database path>.<table>``. ``include``: empty
    for all. ``readers``: processes that read one window.
    """

    mode: str
    configured: Configured
    policy: str | None
    include: Patterns
    statements: Mapping[str, str]
    has_custom_queries: bool
    delay_ms: int
    fetch_size: int
    readers: int
    chunk_size: int

    @property
    def wants_rows(self) -> bool:
        """Tell whether rows are sent of a database of which Kafka has nothing, where no class of
        the user's decides."""
        return self.configured.data if self.mode == CONFIGURED else self.mode in _WITH_ROWS

    @property
    def may_want_rows(self) -> bool:
        """Tell whether they are, or a class of the user's decides."""
        return self.wants_rows or self.mode == CUSTOM


@dataclass(frozen=True, slots=True)
class SignalOptions:
    """The places where signals are read. ``channels``: source, kafka, file.

    ``tables``: identifiers. ``consumer``: the reader's own librdkafka properties, which may hold
    passwords: never log them.
    ``as_producer``: those of the producer count too, as it is the same cluster. ``origins``: for
    each of the reader's own ``path:line: option``.
    """

    channels: tuple[str, ...]
    tables: tuple[str, ...]
    poll_interval_ms: int
    file: Path | None
    topic: str
    group_id: str
    as_producer: bool
    consumer: dict[str, str] = field(repr=False)
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotificationOptions:
    """The places where the course of snapshots is told. ``channels``: sink, log; ``topic``: of
    sink."""

    channels: tuple[str, ...]
    topic: str | None


class SnapshotFamilies:
    """Collects the options of a file that come as a family, and builds all.

    ``report`` and ``warn`` take the rest of a sentence that begins with the key of an entry.
    """

    def __init__(self, path: Path, report: Report, warn: Report) -> None:
        self._path = path
        self._report = report
        self._warn = warn
        self._statements: dict[str, Entry] = {}
        self._consumer: dict[str, Entry] = {}
        self._properties: dict[str, str] = {}
        self._origins: dict[str, str] = {}

    def add(self, entry: Entry) -> None:
        """Take ENTRY, a member of one of the families."""
        if entry.key.startswith(CONSUMER):
            self._consumer[entry.key.removeprefix(CONSUMER)] = entry
        else:
            self._statements[entry.key.removeprefix(f"{_OVERRIDES}.")] = entry

    def check(
        self,
        values: Mapping[str, Any],
        entries: Mapping[str, Entry],
        problems: list[str],
        warnings: list[str],
    ) -> None:
        """Check what the options say together; VALUES and ENTRIES by their names."""
        mode = values.get("snapshot.mode")
        queries = values.get("snapshot.query.mode")
        for name, value in (("snapshot.mode", mode), ("snapshot.query.mode", queries)):
            if value == CUSTOM and not values.get("snapshot.custom.class"):
                self._report(entries[name], "is custom, which needs snapshot.custom.class; set it")
        self._check_channels(values, entries)
        self._check_statements(values, entries)
        self._properties = self._consumer_properties(entries, problems, warnings)

    def _check_channels(self, values: Mapping[str, Any], entries: Mapping[str, Entry]) -> None:
        if "file" in values.get("signal.enabled.channels", ()) and not values.get("signal.file"):
            self._report(entries["signal.enabled.channels"], "has file, which needs signal.file")
        sink = "notification.sink.topic.name"
        channels = "notification.enabled.channels"
        if "sink" in values.get(channels, ()) and not values.get(sink):
            self._report(entries[channels], f"has sink, which needs {sink}; set it")
        seen: dict[str, str] = {}
        for table in values.get("signal.data.collection", ()):
            database = table.rpartition(".")[0]
            if database in seen:
                entry = entries["signal.data.collection"]
                self._report(entry, f"has both {seen[database]} and {table}; one is enough")
            seen[database] = table
        is_read = "kafka" in values.get("signal.enabled.channels", ())
        signals = signal_topic(values) if is_read else ""
        for name, topic in (("signal.kafka.topic", signals), (sink, values.get(sink, ""))):
            of = entries.get(name) or entries.get("kafka.topic.prefix")
            if len(topic) > MAX_TOPIC_LENGTH and of is not None:
                self._report(
                    of,
                    f"gives a topic name of {len(topic)} characters, {topic}; Kafka allows"
                    f" {MAX_TOPIC_LENGTH}",
                )

    def _check_statements(self, values: Mapping[str, Any], entries: Mapping[str, Entry]) -> None:
        wanted = values.get(_OVERRIDES, ())
        given = self._by_table()
        for table in wanted:
            if table not in given:
                self._report(entries[_OVERRIDES], f"has {table}; set {_OVERRIDES}.{table}")
        for table, entry in given.items():
            if table not in wanted:
                self._warn(entry, f"has no effect: {_OVERRIDES} does not name this table")

    def _by_table(self) -> dict[str, Entry]:
        """Return the statements by the identifiers of their tables."""
        given = {}
        for name, entry in self._statements.items():
            try:
                (table,) = parse_identifiers((name,))
            except ValueProblem as problem:
                self._report(entry, f"names no table: {problem}")
                continue
            given[table] = entry
        return given

    def _consumer_properties(
        self, entries: Mapping[str, Entry], problems: list[str], warnings: list[str]
    ) -> dict[str, str]:
        """Return what the file says of the signal reader, as properties of librdkafka."""
        own: dict[str, str] = {}
        shared: dict[str, Entry] = {}
        for name, entry in self._consumer.items():
            if name in WITHOUT_EFFECT:
                self._warn(entry, f"has no effect: {WITHOUT_EFFECT[name]}")
            elif _is_producers(name):
                self._warn(entry, "has no effect: the signal reader sends nothing")
            elif name in _CONSUMERS_OWN:
                self._take_own(_CONSUMERS_OWN[name], entry, own)
            else:
                shared[name] = entry
        if (servers := entries.get("signal.kafka.bootstrap.servers")) is not None:
            shared["bootstrap.servers"] = servers
        if not shared:
            return own
        # What all clients have in common is checked and renamed as for the producer.
        found: list[str] = []
        told: list[str] = []
        settings = ProducerSettings.from_entries(shared, self._path, found, told)
        for texts, into in ((found, problems), (told, warnings)):
            into.extend(
                text.replace(PRODUCER, CONSUMER).replace("producer property", "client property")
                for text in texts
            )
        self._origins |= settings.origins
        given = {name: settings.properties.get(name, "") for name in settings.origins}
        return given | own

    def _take_own(self, name: str, entry: Entry, own: dict[str, str]) -> None:
        """Check the value of ENTRY, librdkafka's property NAME that only consumers have."""
        value = text_of(entry)
        try:
            if name in librdkafka.CONSUMER_INTEGERS:
                low, high = librdkafka.CONSUMER_INTEGERS[name]
                if name in librdkafka.CONSUMERS_WIDER_IN_JAVA:
                    number = narrowed(value, low, high, partial(self._warn, entry))
                else:
                    number = parse_integer(value, low, high)
                value = str(number)
            elif name in librdkafka.CONSUMER_CHOICES:
                value = choice_of(value, librdkafka.CONSUMER_CHOICES[name])
            else:
                assert name in librdkafka.CONSUMER_BOOLEANS
                value = "true" if parse_boolean(value) else "false"
        except ValueProblem as problem:
            self._report(entry, f"is {value!r}; {problem}")
        own[name] = value
        self._origins[name] = f"{entry.place(self._path)}: {entry.key}"

    def snapshots(self, values: Mapping[str, Any]) -> SnapshotOptions:
        """Build the options of snapshots of VALUES, which ``check`` has found right."""
        based = "snapshot.mode.configuration.based."
        mode = values["snapshot.mode"]
        given = self._by_table()
        return SnapshotOptions(
            mode=_SAME_MODE.get(mode, mode),
            configured=Configured(
                data=values[f"{based}snapshot.data"],
                stream=values[f"{based}start.stream"],
                on_data_error=values[f"{based}snapshot.on.data.error"],
            ),
            policy=values.get("snapshot.custom.class"),
            include=values.get("snapshot.include.collection.list", ()),
            statements={table: text_of(given[table]) for table in values.get(_OVERRIDES, ())},
            has_custom_queries=values["snapshot.query.mode"] == CUSTOM,
            delay_ms=values["snapshot.delay.ms"],
            fetch_size=values["snapshot.fetch.size"],
            readers=values["snapshot.max.threads"],
            chunk_size=values["incremental.snapshot.chunk.size"],
        )

    def signals(self, values: Mapping[str, Any], producer: Mapping[str, str]) -> SignalOptions:
        """Build the options of signals; PRODUCER: properties of the producer's client."""
        known = producer["bootstrap.servers"]
        # Logins and certificates are for the cluster that they were given for.
        as_producer = self._properties.get("bootstrap.servers", known) == known
        consumer = dict(self._properties)
        given = {**producer, **consumer} if as_producer else consumer
        room = int(given.get("receive.message.max.bytes", _FETCH_BYTES + _FETCH_HEAD)) - _FETCH_HEAD
        if room < _FETCH_BYTES:  # the client would not fit its default in
            consumer.setdefault("fetch.max.bytes", str(room))
        return SignalOptions(
            channels=values["signal.enabled.channels"],
            tables=values.get("signal.data.collection", ()),
            poll_interval_ms=values["signal.poll.interval.ms"],
            file=values.get("signal.file"),
            topic=signal_topic(values),
            group_id=values["signal.kafka.groupId"],
            as_producer=as_producer,
            consumer=consumer,
            origins=self._origins,
        )

    @staticmethod
    def notifications(values: Mapping[str, Any]) -> NotificationOptions:
        """Build the options of notifications."""
        return NotificationOptions(
            channels=values.get("notification.enabled.channels", ()),
            topic=values.get("notification.sink.topic.name"),
        )


def _is_producers(name: str) -> bool:
    """Tell whether only producers have the property NAME, librdkafka's or the Java client's."""
    there = MAPPED[name][0] if name in MAPPED else name
    return name in CONSUMED or librdkafka.CANONICAL.get(there, there) in librdkafka.PRODUCER_ONLY
