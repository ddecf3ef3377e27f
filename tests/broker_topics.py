"""Queries that tests make to a broker about topics, and commands that they give it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from firebird_cdc.demo.events import ends_of
from firebird_cdc.demo.processes import await_condition

_PATIENCE_S = 60.0


def last_readable(bootstrap: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Return the offset of the last message of each partition that has one, once all that is
    there by now is committed.

    A partition's end is no help: it may be behind the mark of a transaction, which no reader gets.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    known = admin.list_topics(timeout=_PATIENCE_S).topics
    places = [
        TopicPartition(name, number, OFFSET_BEGINNING)
        for name in topics
        for number in known[name].partitions
    ]
    ends = ends_of(admin, places)
    last: dict[tuple[str, int], int] = {}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"test-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the broker holds back that a partition has no more
        }
    )
    try:
        consumer.assign(places)
        while ends:
            message = consumer.poll(_PATIENCE_S)
            assert message is not None, f"{ends} are not reached"
            place = message.topic() or "", message.partition() or 0
            offset, error = message.offset() or 0, message.error()
            if error is None:
                last[place] = offset
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                if offset >= ends[place]:
                    del ends[place]
    finally:
        consumer.close()
    return last


def limit_messages(bootstrap: str, topic: str, limit: int) -> None:
    """Have TOPIC take messages of LIMIT bytes; the broker knows that when this returns."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(
        "max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(_PATIENCE_S)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def is_known() -> bool:
        told = admin.describe_configs([asked])[asked].result(_PATIENCE_S)
        return str(told["max.message.bytes"].value) == str(limit)

    # The controller confirms it before the broker acts on it.
    await_condition(f"{topic} to take messages of {limit} bytes", is_known, _PATIENCE_S)


def delete_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Delete topics; no message reaches the old ones any more when this returns."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.result(_PATIENCE_S)
    # The controller confirms a deletion before the broker acts on it.
    await_condition(
        f"{', '.join(topics)} to be gone",
        lambda: not set(topics) & set(admin.list_topics(timeout=_PATIENCE_S).topics),
        _PATIENCE_S,
    )
