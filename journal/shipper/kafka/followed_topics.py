"""Follows topics for whoever only looks: reads what is committed, and joins no group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any
from uuid import uuid4

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.shipper.kafka.client import librdkafka_logger
from firebird_cdc.journal.shipper.kafka.offset_topic import reader_settings

BEGINNING, END = OFFSET_BEGINNING, OFFSET_END
"""Places to begin at; any other one is a time in milliseconds since 1970."""

_PATIENCE_S = 10.0
_ANSWER_S = 2.0
_LOOK_S = 0.1
_TOPICS_S = 2.0  # between two looks for new topics
_BATCH = 500

# Of a topic that has gone, or a group that is not joined.
_OF_NO_MATTER = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
)


class TopicFollower:
    """Reads the topics that IS_WANTED says yes to, at the brokers of CONFIG, from BEGIN on: of
    those that come later, all. TELL: is given sentences about what is in the way."""

    def __init__(
        self,
        config: ConnectorConfig,
        is_wanted: Callable[[str], bool],
        begin: int,
        tell: Callable[[str], None],
    ) -> None:
        self._servers = config.producer.get("bootstrap.servers", "")
        self._is_wanted, self._begin, self._tell = is_wanted, begin, tell
        self._error = ""
        self._told = ""
        self._is_down = False  # no broker could be reached, at least once
        self._unread: set[tuple[str, int]] = set()  # partitions whose end was not met yet
        self._known: set[tuple[str, int]] = set()
        self._next_look = 0.0
        settings: dict[str, Any] = {
            "client.id": f"firebird-cdc-{config.topic_prefix}-tail",
            **reader_settings(config.producer),
            "group.id": f"firebird-cdc-tail-{uuid4()}",  # it is joined by nobody
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": "100",
            "error_cb": self._note_error,
        }
        try:
            self._consumer = Consumer(settings, logger=librdkafka_logger())
        except KafkaException as error:
            raise ShipError(f"{config.path}: kafka.producer.*: {error.args[0].str()}") from None

    def close(self) -> None:
        """End the client and its threads."""
        self._consumer.close()

    def start(self) -> list[str]:
        """Begin; return the topics that are there. Raises ShipError if nobody answers."""
        until = monotonic() + _PATIENCE_S
        while True:
            try:
                return self._look(self._begin)
            except KafkaException as error:
                self._consumer.poll(0)  # which tells what is wrong
                if not self._is_down and monotonic() < until:
                    continue
                raise ShipError(
                    f"no answer from Kafka ({self._servers}): {self._error or error.args[0].str()};"
                    " start it or correct kafka.producer.bootstrap.servers. What is captured shows"
                    " without it: --journals"
                ) from None

    def messages(self) -> Iterator[Message | None]:
        """Yield messages, without an end; None where there is nothing more for the moment. Raises
        ShipError if they can't be read."""
        while True:
            try:
                found = self._consumer.consume(_BATCH, _LOOK_S)
            except KafkaException as refusal:
                raise ShipError(f"topics can't be read: {refusal.args[0].str()}") from None
            for message in found:
                if (error := message.error()) is None:
                    self._told = ""
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._unread.discard((str(message.topic()), message.partition() or 0))
                elif error.code() not in _OF_NO_MATTER:
                    raise ShipError(f"topic {message.topic()} can't be read: {error.str()}")
            if len(found) < _BATCH:
                yield None
            if monotonic() >= self._next_look:
                self._look_again()

    @property
    def is_at_end(self) -> bool:
        """Tell whether the ends of all partitions were met."""
        return not self._unread

    def _look_again(self) -> None:
        try:
            self._look(BEGINNING)
        except KafkaException as error:
            why = self._error or error.args[0].str()
            if why != self._told:
                self._told = why
                self._tell(f"no answer from Kafka ({self._servers}): {why}; it is tried again")

    def _look(self, begin: int) -> list[str]:
        """Read partitions that are new from BEGIN on, too. Raises KafkaException."""
        self._next_look = monotonic() + _TOPICS_S
        topics = self._consumer.list_topics(timeout=_ANSWER_S).topics
        wanted = [name for name in topics if self._is_wanted(name)]
        new = [
            TopicPartition(name, number)
            for name in wanted
            for number in topics[name].partitions
            if (name, number) not in self._known
        ]
        for partition in new:
            partition.offset = begin
        if new and begin not in (BEGINNING, END):
            new = self._consumer.offsets_for_times(new, timeout=_ANSWER_S)
        if begin == END:  # as it is now, not when the first fetch comes
            for partition in new:
                _, partition.offset = self._consumer.get_watermark_offsets(partition, _ANSWER_S)
        if new:
            self._consumer.incremental_assign(new)
        places = {(each.topic, each.partition) for each in new}
        self._known |= places
        self._unread |= places
        return wanted

    def _note_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
        else:
            self._error = error.str()
