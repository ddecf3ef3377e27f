"""Messages beside journals: heartbeats, which may be lost, and records of the offset topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import logbook
from confluent_kafka import KafkaError

from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.shipper.kafka.client import DeliveryCallback, KafkaLink, hand_over

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.out_of_band")

_MOST = 1000  # that may wait, and that may be without an answer; older ones are dropped then
_PAUSE_S = 60.0  # after a failure


class OutOfBand:
    """Messages that belong to no journal. Belongs to the shipping thread.

    ``unacked``: how many have no answer yet. ``on_failure``: hears of each heartbeat that Kafka did
    not take.
    """

    def __init__(
        self, link: KafkaLink, on_failure: Callable[[KafkaError], None] | None = None
    ) -> None:
        self.unacked = 0
        self._link = link
        self._on_failure = on_failure
        self._waiting: deque[Message] = deque(maxlen=_MOST)
        self._banned_until = 0.0
        self._told: set[str] = set()  # topics of which it was said that they take none

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: Message) -> None:
        """Have MESSAGE, a heartbeat, sent: once at most, and lost if that fails.

        In transactions it goes out with the next one, for which it is reason enough.
        """
        if self._banned_until <= monotonic():
            self._waiting.append(message)

    def send(self) -> int:
        """Hand over what waits; return how many messages. Raises KafkaException."""
        batch = list(self._waiting)[: max(_MOST - self.unacked, 0)]
        taken, refusal = hand_over(self._link.producer, batch, self._take_answer)
        self.unacked += taken
        for _ in range(taken + (refusal is not None)):
            self._waiting.popleft()
        if refusal is not None:
            raise refusal
        return taken

    def _take_answer(self, error: KafkaError | None, message: Any) -> None:
        self.unacked -= 1
        topic = message.topic()
        if error is None:
            self._link.note_progress()
            self._told.discard(topic)
            return
        if self._on_failure is not None:
            self._on_failure(error)
        self._banned_until = monotonic() + _PAUSE_S
        if topic not in self._told:
            self._told.add(topic)
            _log.error("topic {}: a heartbeat was not delivered: {}", topic, error.str())

    def send_record(
        self, topic: str, key: bytes, value: bytes | None, on_answer: DeliveryCallback
    ) -> None:
        """Hand over a record of TOPIC, the offset topic, which ON_ANSWER hears of. Raises
        BufferError if the producer is full, KafkaException."""

        def answered(error: KafkaError | None, message: Any) -> None:
            self.unacked -= 1
            on_answer(error, message)

        self._link.producer.produce(topic, value, key, partition=0, on_delivery=answered)
        self.unacked += 1

    def forget_answers(self) -> None:
        """Expect no more answers: the producer is a new one."""
        self.unacked = 0
