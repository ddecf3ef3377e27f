"""Partition and order of keys: as the Java client has them, in several partitions."""

from __future__ import annotations

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from columns import column
from confluent_kafka import Consumer, Message, TopicPartition
from reader import ConnectReader
from shipping import DATABASE, PATIENCE_S, Folder, Ship

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter, Storage

pytestmark = pytest.mark.kafka

_PARTITIONS = 5
_KEYS = 40
_SEED = 20261121


@pytest.fixture
def ship(broker: KafkaBroker, tmp_path: Path, topic_prefix: str) -> Iterator[Ship]:
    made = Ship(Folder(tmp_path / "journals"), tmp_path, broker.bootstrap, topic_prefix)
    made.options["topic.creation.default.partitions"] = str(_PARTITIONS)
    yield made
    made.close()


def _consume(bootstrap: str, topic: str, count: int) -> list[Message]:
    """The COUNT messages of TOPIC, each partition's in its order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"test-{uuid.uuid4()}"})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(_PARTITIONS)])
        messages = consumer.consume(count, PATIENCE_S)
        assert len(messages) == count
        assert not consumer.consume(1, 0.1)
        return messages
    finally:
        consumer.close()


def test_a_keys_events_are_in_one_partition_in_order_and_it_is_javas(
    ship: Ship, broker: KafkaBroker, connect: ConnectReader, topic_prefix: str
) -> None:
    chance = random.Random(_SEED)
    columns = (
        column("REGION", Storage.TEXT, 1),
        column("ID", Storage.BIGINT, 2),
        column("N", Storage.BIGINT, nullable=False),
    )
    rows = [("Süd", -7, 0), *((f"r{number % 7}", number, 0) for number in range(_KEYS - 1))]
    written: dict[tuple[str, int], list[int]] = defaultdict(list)
    number = 0

    def change(writer: JournalWriter) -> None:
        nonlocal number
        table = writer.table("PLACE", columns)
        for _ in range(chance.randint(1, 12)):
            region, key, before = row = chance.choice(rows)
            number += 1
            writer.update(table, (region, key, before), (region, key, number))
            rows[rows.index(row)] = (region, key, number)
            written[region, key].append(number)

    for sequence in range(1, 61):
        ship.folder.write_changes(sequence, change)
    assert ship.once().process.returncode == 0
    topic = f"{topic_prefix}.{DATABASE.replace('/', '_')}.PLACE"
    read: dict[tuple[str, int], list[int]] = defaultdict(list)
    partitions: dict[bytes, set[int]] = defaultdict(set)
    for message in _consume(broker.bootstrap, topic, number):
        row: dict[str, Any] = json.loads(message.value() or b"")["payload"]["after"]
        read[row["REGION"], row["ID"]].append(row["N"])
        partitions[message.key() or b""].add(message.partition() or 0)
    assert read == written
    assert len(partitions) == len(written) > _PARTITIONS
    assert partitions == {key: {connect.partition(key, _PARTITIONS)} for key in partitions}
    assert set.union(*partitions.values()) == set(range(_PARTITIONS))
