"""Makes topics that are missing, before their first message, as ``topic.creation`` says."""

from __future__ import annotations

from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from time import monotonic
from typing import Any

import logbook
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.topic_creation import TopicCreation
from firebird_cdc.errors import TopicUnavailable
from firebird_cdc.journal.events.topics import TopicNames
from firebird_cdc.journal.shipper.kafka.client import KafkaLink

_log = logbook.Logger("firebird_cdc.journal.shipper.kafka.topic_creation")

_WAIT_S = 1.0
"""Longest wait of the shipping thread for an answer; a broker that is there takes some 20 ms."""

_REST_S = 1.0
"""Seconds for which a refusal is believed: until then nobody asks again."""

_BROKER_S = 15.0
"""Longest time for a broker to make a topic; the shipping thread doesn't wait for that."""

HINTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "it needs the right Create on the topic or the cluster;"
    " grant it, or make the topic yourself",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "it needs the right Create on the topic or the"
    " cluster; grant it, or make the topic yourself",
    KafkaError.INVALID_REPLICATION_FACTOR: "set topic.creation.default.replication.factor, or that"
    " of its group, to no more than there are brokers",
    KafkaError.INVALID_PARTITIONS: "correct the partitions of topic.creation",
    KafkaError.INVALID_CONFIG: "correct the properties of topic.creation",
    KafkaError.POLICY_VIOLATION: "the cluster's policy forbids these settings of topic.creation",
    KafkaError.TOPIC_EXCEPTION: "another topic has this name but for . and _; choose another"
    " kafka.topic.prefix",
}


def new_topic(creation: TopicCreation, topic: str, *, single: bool) -> NewTopic:
    """TOPIC as CREATION wants it made; SINGLE: with one partition in any case."""
    settings = creation.settings(topic)
    return NewTopic(
        topic,
        1 if single else settings.partitions,
        settings.replication_factor,
        config=dict(settings.properties),
    )


class TopicMaker:
    """Sees to it that topics are there. Used by the shipping thread alone.

    An existing topic stays as it is. What it has seen, it believes until ``missing``.
    """

    def __init__(self, config: ConnectorConfig, names: TopicNames, link: KafkaLink) -> None:
        assert config.topic_creation is not None
        self._creation = config.topic_creation
        self._singles = names.singles
        self._link = link
        self._ready: set[str] = set()
        self._pending: dict[str, Future[None]] = {}
        self._refused: dict[str, tuple[float, str]] = {}

    def require(self, topic: str) -> None:
        """Return once TOPIC is there; it is made if it is missing.

        Waits a second at most. Raises TopicUnavailable, after which the next call goes on.
        """
        if topic in self._ready:
            return
        until, text = self._refused.get(topic, (0.0, ""))
        if monotonic() < until:
            raise TopicUnavailable(text)
        try:
            if not self._ready:
                self._look()
            if topic not in self._ready:
                self._make(topic)
        except KafkaException as error:
            self._refuse(topic, error.args[0])
        self._refused.pop(topic, None)

    def missing(self, topic: str) -> str:
        """A broker says that TOPIC is gone: the next ``require`` makes it again. Says so."""
        self._ready.discard(topic)
        return "the topic is missing, so it is made again"

    def _look(self) -> None:
        """Learn which topics there are. Raises KafkaException."""
        self._ready |= set(self._link.admin.list_topics(timeout=_WAIT_S).topics)

    def _make(self, topic: str) -> None:
        """Make TOPIC, or wait for what was begun. Raises KafkaException, TopicUnavailable."""
        future = self._pending.get(topic)
        if future is None:
            wanted = new_topic(self._creation, topic, single=topic in self._singles)
            future = self._link.admin.create_topics(
                [wanted], operation_timeout=_BROKER_S, request_timeout=_BROKER_S
            )[topic]
            self._pending[topic] = future
        try:
            future.result(_WAIT_S)
        except TimeoutError:
            self._link.note_away("it does not answer the request to make a topic")
            raise TopicUnavailable(f"topic {topic} is missing, and being made") from None
        except KafkaException as error:
            del self._pending[topic]
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            del self._pending[topic]
            _log.info("made the topic {}", topic)
        self._ready.add(topic)

    def _refuse(self, topic: str, error: Any) -> None:
        """Raise TopicUnavailable, unless somebody has made TOPIC meanwhile."""
        if error.code() < 0:  # the client's own: no broker has said anything
            self._link.note_away(error.str())
            text = f"whether topic {topic} is there can't be learnt: {error.str()}"
        else:
            with suppress(KafkaException):
                self._look()
            if topic in self._ready:
                return
            hint = HINTS.get(error.code())
            text = f"topic {topic} is missing and can't be made: {error.str()}"
            text += f"; {hint}" if hint else ""
        self._refused[topic] = (monotonic() + _REST_S, text)
        raise TopicUnavailable(text)
