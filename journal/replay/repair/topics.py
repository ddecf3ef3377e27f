"""Events that Kafka itself has of keys, where the journals that could tell are missing.

Read are the partitions of the keys from the time of their first missing event on, as committed
messages, and of those the places (``source``) of the ones with these keys. So values have to be
JSON with Debezium's envelope; of others nothing is said.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.events.headers import told_by
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.source import CHANGES
from firebird_cdc.journal.events.topics import SHARED_TOPICS, read_owners
from firebird_cdc.journal.events.versions import EARLIER, TODAY
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import Concerned
from firebird_cdc.journal.format import DdlChange, JournalReader, RowChange
from firebird_cdc.journal.shipper.kafka.client import librdkafka_logger
from firebird_cdc.journal.shipper.kafka.offset_topic import reader_settings
from firebird_cdc.journal.shipper.repairs import REPAIR_HEADER, STATE, WHOLE

_PATIENCE_S = 30.0
"""Without any answer of Kafka for so long, it is taken as away."""

_BATCH = 1000
_LOOK_S = 0.05

_Newest = tuple[int, int, int]
"""Epoch, commitSeq and pos of an event."""

_CLOSED = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)


class TopicsClosed(ShipError):
    """The shipper's account may write topics and not read them."""


class TopicLook:
    """One look at the topics of DATABASE for the newest events of some keys.

    ``why``: why the messages of some keys could not be read.
    """

    def __init__(self, config: ConnectorConfig, database: str) -> None:
        self.why = ""
        self._config = config
        self._database = database
        self._renderer, *self._earlier = (
            Renderer(config, max_message_bytes(config.producer), message_form=form)
            for form in (TODAY, *EARLIER)
        )
        owners = read_owners(config.journal_directory / STATE_DIRECTORY / SHARED_TOPICS)
        for renderer in (self._renderer, *self._earlier):
            renderer.settle(owners)
        self._wanted: dict[tuple[str, bytes | None], set[bytes]] = defaultdict(set)
        self._since_ms: dict[str, int] = {}
        self._met: set[str | None] = set()
        self._digests: set[bytes] = set()
        self._unreadable: set[bytes] = set()

    def add(self, reader: JournalReader, change: RowChange, digests: Sequence[bytes]) -> None:
        """Look for the keys of CHANGE, a missing event; DIGESTS: what stands for them."""
        concerned = self._concerned(self._renderer, reader, change)
        self._digests.update(digests)
        if concerned is None or isinstance(concerned, str):
            self.why = "its messages can't be made"
            self._unreadable.update(digests)
            return
        # What a version before has sent may have the same keys in other bytes.
        earlier = [self._concerned(each, reader, change) for each in self._earlier]
        for found in (concerned, *earlier):
            if found is None or isinstance(found, str):
                continue
            places = list(dict.fromkeys(found))  # a tombstone has the key of its delete
            for index, (topic, key) in enumerate(places):
                own = [digests[index]] if len(places) == len(digests) else digests
                self._wanted[topic, key].update(own)

    def meet(self, reader: JournalReader, change: RowChange | DdlChange) -> None:
        """Note the topics of CHANGE, a missing event."""
        table = change.table.name if isinstance(change, RowChange) else None
        if table in self._met and not self._renderer.writer.transforms:
            return
        self._met.add(table)
        self._concerned(self._renderer, reader, change)

    def _concerned(
        self, renderer: Renderer, reader: JournalReader, change: RowChange | DdlChange
    ) -> Concerned:
        stamp = reader.stamp
        assert stamp is not None
        journal = renderer.journal(reader.header, stamp, self._database, alone=True)
        concerned = journal.concerned(change)
        topics = (
            [] if concerned is None
            else [concerned] if isinstance(concerned, str)
            else [topic for topic, _ in concerned]
        )  # fmt: skip
        since = stamp.commit_us // 1000
        for topic in topics:
            self._since_ms[topic] = min(self._since_ms.get(topic, since), since)
        return concerned

    def topics(self) -> dict[str, int]:
        """The topics of what was added, and the time (ms since 1970) of the first commit there."""
        return self._since_ms

    def unreadable(self) -> set[bytes]:
        """The keys of which nothing can be said."""
        return self._unreadable

    def newest(self, epoch: int) -> Iterator[tuple[bytes, _Newest | None]]:
        """Yield each key with the place of its newest event in Kafka, None if it has none. EPOCH:
        of events that tell none, as those of earlier versions.

        Raises ShipError if Kafka can't be read.
        """
        found: dict[bytes, _Newest] = {}
        for message in _messages(self._config, self._since_ms, {}):
            self._take(message, found, epoch)
        for digest in self._digests - self._unreadable:
            yield digest, found.get(digest)

    def _take(self, message: Any, found: dict[bytes, _Newest], epoch: int) -> None:
        digests = self._wanted.get((message.topic(), message.key()))
        value = message.value()
        if digests is None or value is None:  # a tombstone says no more than what it follows
            return
        if any(name == REPAIR_HEADER for name, _ in message.headers() or ()):
            return
        source = _source(value)
        if source is None:
            self.why = f"topic {message.topic()} has messages without a source in JSON"
            self._unreadable.update(digests)
            return
        place = (epoch if source.epoch is None else source.epoch), source.sequence, source.pos
        for digest in digests:
            found[digest] = max(found.get(digest, place), place)


class _Source(NamedTuple):
    """Place that an event tells; ``epoch``: None if it tells none. A row that a snapshot read has
    all of the journals up to its cut, so it stands behind all of these."""

    journal: str
    epoch: int | None
    sequence: int
    pos: int


def _source(value: bytes) -> _Source | None:
    """Return the place of an event, None if it can't be told."""
    try:
        envelope = json.loads(value)
        source = envelope.get("payload", envelope)["source"]
        epoch = source.get("epoch")
        is_read = source.get("snapshot", CHANGES) != CHANGES
        return _Source(
            str(source["journal"]),
            None if epoch is None else int(epoch),
            int(source["commitSeq"]),
            WHOLE if is_read else int(source["pos"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def events_since(
    config: ConnectorConfig,
    topics: Mapping[str, int],
    ends: Mapping[str, Mapping[str, int]],
) -> Iterator[tuple[UUID, int]]:
    """Yield journal and pos of the events in TOPICS behind the offsets ENDS (by topic and number
    of the partition), or, where they say nothing, from a time on (ms since 1970).

    As far as values are JSON with a source. Raises ShipError if Kafka can't be read.
    """
    for message in _messages(config, topics, ends):
        value = message.value()
        if value is None or any(
            name == REPAIR_HEADER and f'"{STATE}"' in told_by(content)
            for name, content in message.headers() or ()
        ):
            continue
        source = _source(value)
        if source is not None:
            with suppress(ValueError):
                yield UUID(source.journal), source.pos


def _messages(
    config: ConnectorConfig,
    topics: Mapping[str, int],
    ends: Mapping[str, Mapping[str, int]],
) -> Iterator[Any]:
    """Yield the committed messages of TOPICS, behind ENDS or from a time on."""
    consumer = Consumer(
        {
            **reader_settings(config.producer),
            "group.id": f"firebird-cdc-repair-{uuid4()}",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": "20",  # after so long without a message the end is told
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        },
        logger=librdkafka_logger(),
    )
    try:
        for topic, since_ms in topics.items():
            for partition in _partitions(consumer, topic, since_ms, ends.get(topic, {})):
                yield from _of_partition(consumer, partition)
    except KafkaException as error:
        kind = TopicsClosed if error.args[0].code() in _CLOSED else ShipError
        raise kind(f"what Kafka has can't be read: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _partitions(
    consumer: Consumer, topic: str, since_ms: int, ends: Mapping[str, int]
) -> list[TopicPartition]:
    metadata = consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic]
    if metadata.error is not None:
        if metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return []
        raise KafkaException(metadata.error)
    known = [
        TopicPartition(topic, number, int(ends[str(number)]))
        for number in metadata.partitions
        if str(number) in ends
    ]
    asked = [
        TopicPartition(topic, number, since_ms)
        for number in metadata.partitions
        if str(number) not in ends
    ]
    return known + (consumer.offsets_for_times(asked, timeout=_PATIENCE_S) if asked else [])


def _of_partition(consumer: Consumer, partition: TopicPartition) -> Iterator[Any]:
    """Yield the messages of PARTITION up to its end as it is now."""
    if partition.offset < 0:  # nothing is so new
        return
    partition.offset = partition.offset or OFFSET_BEGINNING
    _, end = consumer.get_watermark_offsets(partition, _PATIENCE_S)
    consumer.assign([partition])
    until = monotonic() + _PATIENCE_S
    while True:
        messages = consumer.consume(_BATCH, _LOOK_S)  # it waits for so many, unless time is over
        if messages:
            until = monotonic() + _PATIENCE_S
        elif monotonic() > until:
            raise ShipError(f"Kafka gives nothing of topic {partition.topic}")
        for message in messages:
            error = message.error()
            if error is None:
                if (message.offset() or 0) >= end:
                    return
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # none is joined
                raise KafkaException(error)
