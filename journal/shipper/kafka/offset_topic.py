"""Offset topic: the records of ``kafka.position.topic``, the progress of each database in Kafka.

One record per database and Kafka transaction, written inside it, so that it becomes visible with
the events or not at all. Read back after ``init_transactions`` has fenced whoever used the
transactional id before, it says which journals Kafka has, whatever was lost of answers and of
local files. It names the journals of its transaction, because a number alone doesn't tell whose
journal it is: two folders may count alike.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

import logbook
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from firebird_cdc.clock import now_us
from firebird_cdc.config import librdkafka
from firebird_cdc.config.topic_creation import BROKERS_OWN, TopicSettings
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.shared_offsets import Number, as_json, from_json

_log = logbook.Logger("firebird_cdc.journal.shipper.kafka.offset_topic")

UNUSABLE = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.MSG_SIZE_TOO_LARGE,
    }
)
"""Errors with which the offset topic can't be used, and waiting won't help."""

NAMED_JOURNALS = 65_536
"""Journals of one database whose uuids are kept from what was read: what a power cut may bring
back of deleted files (all that was deleted within some seconds)."""

_JOINED = 64 * 16  # bytes of uuids in one run, from when on no further journal joins it

NAME_BYTES = 32
"""Bytes that the name of one journal adds to a record."""

FRAME_BYTES = 2048
"""Most bytes that the rest of a record takes, for paths of usual length."""

TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "min.compaction.lag.ms": "60000",
    "delete.retention.ms": "86400000",
}
"""Small segments keep reading back short; the lag keeps the records of the last minute, which
name the journals whose deletion a power cut may undo."""

_VERSION = 1


def reader_settings(producer: Mapping[str, str]) -> dict[str, str]:
    """The properties of PRODUCER that a client which reads takes, too."""
    return {name: text for name, text in producer.items() if name not in librdkafka.PRODUCER_ONLY}


class Run(NamedTuple):
    """Journals with consecutive numbers: 16 bytes of uuid for each, from FIRST on."""

    epoch: int
    first: int
    uuids: bytes


@dataclass(frozen=True, slots=True)
class Offset:
    """Up to where a database is in Kafka.

    All journals up to (``epoch``, ``sequence``) are; of the last one, ``uuid``, all events if
    ``complete``, else those up to ``pos``. ``runs`` name the complete journals of the Kafka
    transaction that wrote this, and ``shared`` says of those that transactions share, be they of
    this one or before, how far they are delivered (``journal.shipper.shared_offsets``).
    ``folder``: which journal folder they came from; ``place``: where that was, for people.
    """

    database: str
    epoch: int
    sequence: int
    uuid: UUID
    pos: int
    complete: bool
    shipped_us: int
    runs: tuple[Run, ...] = ()
    folder: str = ""
    place: str = ""
    shared: Mapping[UUID, Number] = field(default_factory=dict)

    @property
    def number(self) -> tuple[int, int]:
        """Place of the last journal in the history."""
        return self.epoch, self.sequence

    @property
    def whole(self) -> tuple[int, int]:
        """Epoch and sequence of the last journal that Kafka has as a whole."""
        return self.epoch, self.sequence if self.complete else self.sequence - 1

    @property
    def journals(self) -> Iterator[tuple[int, int, UUID]]:
        """Epoch, sequence and uuid of the complete journals of the Kafka transaction."""
        for run in self.runs:
            for number, start in enumerate(range(0, len(run.uuids), 16), run.first):
                yield run.epoch, number, UUID(bytes=run.uuids[start : start + 16])

    def record(self) -> tuple[bytes, bytes]:
        """Key and value of the record."""
        value: dict[str, Any] = {
            "version": _VERSION,
            "database": self.database,
            "epoch": self.epoch,
            "sequence": self.sequence,
            "uuid": str(self.uuid),
            "pos": self.pos,
            "complete": self.complete,
            "shipped_us": self.shipped_us,
            "folder": self.folder,
            "place": self.place,
            "journals": [
                {"epoch": run.epoch, "first": run.first, "uuids": run.uuids.hex()}
                for run in self.runs
            ],
        }
        if self.shared:
            value["shared"] = as_json(self.shared)
        return record_key(self.database), json.dumps(value).encode()

    @classmethod
    def parse(cls, value: bytes) -> Offset:
        """Return the position of a record's VALUE; raises ValueError, KeyError or TypeError."""
        content = json.loads(value)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']} of a newer firebird-cdc")
        return cls(
            database=str(content["database"]),
            epoch=int(content["epoch"]),
            sequence=int(content["sequence"]),
            uuid=UUID(content["uuid"]),
            pos=int(content["pos"]),
            complete=bool(content["complete"]),
            shipped_us=int(content["shipped_us"]),
            runs=tuple(
                Run(int(run["epoch"]), int(run["first"]), bytes.fromhex(run["uuids"]))
                for run in content["journals"]
            ),
            folder=str(content["folder"]),
            place=str(content["place"]),
            shared=from_json(content.get("shared", {})),
        )


def record_key(database: str) -> bytes:
    """The key of DATABASE's records."""
    return json.dumps(database).encode()


def redelivery_record(database: str, uuid: UUID) -> tuple[bytes, bytes]:
    """Key and value of the record that all left out of journal UUID was redelivered.

    It is of use until the journal is removed from the quarantine; a tombstone follows then.
    """
    value = {
        "version": _VERSION,
        "database": database,
        "late": str(uuid),
        "shipped_us": now_us(),
    }
    key = {"database": database, "late": str(uuid)}
    return json.dumps(key).encode(), json.dumps(value).encode()


def snapshot_record(database: str, state: bytes) -> tuple[bytes, bytes]:
    """Key and value of the record of how far the snapshots of DATABASE have come."""
    return json.dumps({"database": database, "snapshots": True}).encode(), state


def runs_of(entries: Sequence[Entry]) -> tuple[Run, ...]:
    """Name those of ENTRIES that are journals of their own, as briefly as possible: all are in the
    order of their numbers."""
    if not all(entry.is_alone for entry in entries):
        entries = [entry for entry in entries if entry.is_alone]
    if not entries:
        return ()
    first, last = entries[0], entries[-1]
    uuids = b"".join([entry.uuid.bytes for entry in entries])
    if first.epoch == last.epoch and last.sequence - first.sequence == len(entries) - 1:
        return (Run(first.epoch, first.sequence, uuids),)
    runs = []
    begin = 0
    for index in range(1, len(entries) + 1):
        before = entries[index - 1]
        if index == len(entries) or entries[index][:2] != (before.epoch, before.sequence + 1):
            start = entries[begin]
            runs.append(Run(start.epoch, start.sequence, uuids[begin * 16 : index * 16]))
            begin = index
    return tuple(runs)


class Names:
    """The journals of one database that records name, NAMED_JOURNALS of the newest at least."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self._bytes = 0
        self._sorted: list[tuple[int, int, int, Run]] = []

    def add(self, runs: Iterable[Run]) -> None:
        """Note what a further record names."""
        self._sorted = []
        for run in runs:
            self._bytes += len(run.uuids)
            self._runs.append(self._joined(run))
        while self._runs and self._bytes - len(self._runs[0].uuids) >= NAMED_JOURNALS * 16:
            self._bytes -= len(self._runs.popleft().uuids)

    def _joined(self, run: Run) -> Run:
        """RUN, together with the one before if that is short and RUN continues it."""
        if self._runs:
            last = self._runs[-1]
            held = len(last.uuids)
            if (run.epoch, run.first) == (last.epoch, last.first + held // 16) and held < _JOINED:
                self._runs.pop()
                return Run(last.epoch, last.first, last.uuids + run.uuids)
        return run

    def find(self, epoch: int, sequence: int) -> set[bytes]:
        """The uuids that have this number."""
        if not self._sorted:
            self._sorted = sorted(
                (run.epoch, run.first + len(run.uuids) // 16 - 1, order, run)
                for order, run in enumerate(self._runs)
            )
        found = set()
        # By their last numbers; they overlap only where journals were sent again.
        for place in range(bisect_left(self._sorted, (epoch, sequence)), len(self._sorted)):
            run = self._sorted[place][3]
            if run.epoch != epoch:
                break
            if run.first > sequence:
                continue
            start = (sequence - run.first) * 16
            found.add(run.uuids[start : start + 16])
        return found


@dataclass(slots=True)
class Known:
    """Content of the topic for one database."""

    position: Offset
    names: Names = field(default_factory=Names)


class OffsetReader:
    """Reads the offset topic to its end, in steps; makes the topic if it is missing.

    Its end is what there is when reading begins: records behind it are of nobody who matters
    here. ``known``: by database, complete once ``advance`` has said so; ``redelivered``: journals
    of which Kafka has what was left out, with the keys of their records; ``snapshots``: by
    database, what `snapshot_record` was given.
    SETTINGS: what the options say of the topic, where what it needs itself leaves a choice.
    """

    def __init__(
        self,
        producer: Mapping[str, str],
        topic: str,
        logger: Any,
        settings: TopicSettings | None = None,
    ) -> None:
        self.known: dict[str, Known] = {}
        self.redelivered: dict[UUID, bytes] = {}
        self.snapshots: dict[str, bytes] = {}
        self._settings = settings
        self._partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        common: dict[str, Any] = dict(reader_settings(producer))
        self._admin = AdminClient(common, logger=logger)
        self._consumer = Consumer(
            {
                **common,
                "group.id": common.get("client.id", "firebird-cdc"),
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": "20",
                "queued.max.messages.kbytes": "8192",  # a record may name 2000 journals
            },
            logger=logger,
        )
        self._end: int | None = None

    @property
    def end(self) -> int:
        """The offset behind the last record, once all is read."""
        return self._end or 0

    def close(self) -> None:
        """Give back what reading holds."""
        self._consumer.close()
        del self._admin

    def advance(self, seconds: float) -> bool:
        """Go on for about SECONDS; whether all is read. Raises KafkaException; may be repeated."""
        if self._end is None:
            self._end = self._find_end(seconds)
            self.known.clear()
            self.redelivered.clear()
            self.snapshots.clear()
            self._consumer.assign([self._partition])
        until = monotonic() + seconds
        while monotonic() < until:
            # It waits for so many, unless the time is over.
            for message in self._consumer.consume(200, 0.02):
                error = message.error()
                if error is None:
                    self._take(message.key(), message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= self._end:
                        return True
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # none is joined
                    self._end = None
                    raise KafkaException(error)
        return False

    def _find_end(self, seconds: float) -> int:
        """Learn where the topic ends now, open transactions included."""
        topic = self._partition.topic
        metadata = self._consumer.list_topics(topic, timeout=seconds).topics[topic]
        if metadata.error is not None:
            if metadata.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(metadata.error)
            self._create(seconds)
        else:
            self._mend(seconds)
        # Unless it asks anew, the client refuses for good a partition that it once saw leaderless.
        self._admin.list_topics(topic, timeout=seconds)
        latest = {TopicPartition(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        (found,) = self._admin.list_offsets(
            latest, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=seconds
        ).values()
        return int(found.result().offset)

    def _create(self, seconds: float) -> None:
        topic = self._partition.topic
        wanted = self._settings
        new = NewTopic(
            topic,
            1,
            replication_factor=BROKERS_OWN if wanted is None else wanted.replication_factor,
            config={**(wanted.properties if wanted is not None else {}), **TOPIC_SETTINGS},
        )
        try:
            self._admin.create_topics([new], request_timeout=seconds)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            _log.info("created the offset topic {}", topic)

    def _mend(self, seconds: float) -> None:
        """Have the topic compacted, if Kafka made it by itself while it was emptied."""
        topic = self._partition.topic
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            (asked,) = self._admin.describe_configs([resource], request_timeout=seconds).values()
            if "compact" in asked.result()["cleanup.policy"].value:
                return
            resource.incremental_configs = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in TOPIC_SETTINGS.items()
            ]
            (altered,) = self._admin.incremental_alter_configs(
                [resource], request_timeout=seconds
            ).values()
            altered.result()
            _log.notice("topic {} is compacted from now on", topic)
        except (KafkaException, KeyError) as error:
            _log.warning(
                "could not make sure that offset topic {} has cleanup.policy=compact ({}):"
                " without that, Kafka deletes the offsets of databases after a time",
                topic,
                error,
            )

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        try:
            of_what = json.loads(key or b"")
            if isinstance(of_what, dict):
                self._take_other(key or b"", of_what, value)
                return
            if value is None:
                self.known.pop(of_what, None)
                return
            position = Offset.parse(value)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning(
                "offset topic {} holds a record that is no valid offset ({}); it is ignored",
                self._partition.topic,
                error,
            )
            return
        known = self.known.get(position.database)
        if known is None:
            known = self.known[position.database] = Known(position)
        known.position = position
        known.names.add(position.runs)

    def _take_other(self, key: bytes, of_what: Mapping[str, Any], value: bytes | None) -> None:
        """Take a record that is no offset. Raises ValueError, KeyError or TypeError."""
        if "snapshots" in of_what:
            if value is None:
                self.snapshots.pop(of_what["database"], None)
            else:
                self.snapshots[of_what["database"]] = value
            return
        uuid = UUID(of_what["late"])
        if value is None:
            self.redelivered.pop(uuid, None)
        else:
            self.redelivered[uuid] = key
