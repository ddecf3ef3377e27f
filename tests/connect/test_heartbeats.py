"""Heartbeats, as Debezium's own schemas and Connect's converter read them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from decode import from_java
from reader import ConnectReader
from shipping import Folder, Ship, read_topics

from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = pytest.mark.kafka


@pytest.fixture
def ship(broker: KafkaBroker, tmp_path: Path, topic_prefix: str) -> Iterator[Ship]:
    made = Ship(Folder(tmp_path / "journals"), tmp_path, broker.bootstrap, topic_prefix)
    made.options["heartbeat.interval.ms"] = "1000"
    yield made
    made.close()


@pytest.mark.parametrize("transactional", [False, True])
def test_heartbeats_come_though_nothing_changes(
    ship: Ship, broker: KafkaBroker, connect: ConnectReader, topic_prefix: str, transactional: bool
) -> None:
    topic = f"__debezium-heartbeat.{topic_prefix}"
    if transactional:
        ship.options["kafka.producer.transactional.id"] = topic_prefix
    began_ms = time.time_ns() // 1_000_000
    shipper = ship.start()

    def beats() -> list[tuple[bytes, bytes]]:
        read = read_topics(broker.bootstrap, topic, decode=lambda content, _topic, _part: content)
        found = [(event.key, event.value) for event in read.get(topic, [])]
        return found if len(found) >= 2 else []

    first, second = shipper.await_that(beats, "two heartbeats")[:2]
    assert shipper.terminate() == 0
    times = []
    for key, value in (first, second):
        read = connect.read(topic, key, value)
        assert (read["key"]["schema"], read["value"]["schema"]) == connect.heartbeat_schemas()
        assert from_java(read["key"]["schema"], read["key"]["value"]) == {
            "serverName": topic_prefix
        }
        times.append(from_java(read["value"]["schema"], read["value"]["value"])["ts_ms"])
    assert began_ms <= times[0] < times[1] <= time.time_ns() // 1_000_000
