"""Copies of topics with a fault in each: what was shipped is read, and written back changed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker_topics import delete_topics
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firebird_cdc.demo.events import ends_of
from firebird_cdc.demo.processes import await_condition

PATIENCE_S = 60.0


class Raw(NamedTuple):
    """A message as it lies in a topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]

    @property
    def op(self) -> str:
        """c, u, d, or t for a tombstone."""
        if self.value is None:
            return "t"
        return self.value[self.value.rfind(b',"op":"') + 7 :][:1].decode()


Change = Callable[[list[Raw]], list[Raw]]


def read_raw(bootstrap: str, topics: Sequence[str]) -> dict[str, list[Raw]]:
    """All committed messages of TOPICS, by topic in the order of partitions.

    A broker confirms a commit before it is seen in the partitions: each is read up to where it
    ends by now, with what is still to be decided, so no Kafka transaction may be left open.
    """
    found: dict[str, list[Raw]] = {topic: [] for topic in topics}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"raw-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        metadata = consumer.list_topics(timeout=30).topics
        parts = [TopicPartition(t, p, 0) for t in topics for p in metadata[t].partitions]
        ends = ends_of(admin, parts)
        consumer.assign(parts)
        while ends:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"no more comes of {ends}"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                part = message.topic(), message.partition()
                if message.offset() >= ends.get(part, 0):
                    ends.pop(part, None)
                continue
            found[message.topic()].append(
                Raw(message.partition(), message.key(), message.value(), message.headers() or [])
            )
    finally:
        consumer.close()
    return found


def rewrite(
    bootstrap: str, changes: dict[str, Change], settings: dict[str, dict[str, str]] | None = None
) -> None:
    """Replace each topic by one with the same name, whose messages CHANGES has changed."""
    settings = settings or {}
    before = read_raw(bootstrap, list(changes))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = {
        topic: len(admin.list_topics(timeout=30).topics[topic].partitions) for topic in changes
    }
    delete_topics(bootstrap, list(changes))
    left = set(changes)

    def made() -> bool:
        new = [NewTopic(t, partitions[t], 1, config=settings.get(t, {})) for t in sorted(left)]
        for topic, done in admin.create_topics(new).items():
            try:
                done.result(30)
                left.discard(topic)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return not left

    def known() -> bool:
        topics = admin.list_topics(timeout=30).topics
        return all(
            topic in topics and len(topics[topic].partitions) == count
            for topic, count in partitions.items()
        )

    await_condition("the topics made", made, PATIENCE_S)
    await_condition("the topics known", known, PATIENCE_S)
    write_raw(bootstrap, {topic: change(before[topic]) for topic, change in changes.items()})


def write_raw(bootstrap: str, messages: dict[str, list[Raw]]) -> None:
    """Append messages to topics."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    refused: list[Any] = []
    for topic, raws in messages.items():
        for raw in raws:
            producer.produce(
                topic,
                raw.value,
                raw.key,
                raw.partition,
                headers=raw.headers,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
    assert producer.flush(PATIENCE_S) == 0
    assert not refused
