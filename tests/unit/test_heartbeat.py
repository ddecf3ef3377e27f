"""Heartbeats: when they are sent, and what is in them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import logbook
import pytest

from firebird_cdc.config import load_config
from firebird_cdc.errors import TopicUnavailable
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.shipper.tasks.heartbeat import Heartbeat

Make = Callable[..., tuple[Heartbeat, Any]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A heartbeat each 5 s, and a stand-in for the delivery that keeps what it is given."""

    def make(*lines: str) -> tuple[Heartbeat, Any]:
        path = tmp_path / "reddatabase.connector.yaml"
        path.write_text(
            "connector.name: depot\nconnector.journal.directory: /var/lib/journal\n"
            "kafka.producer.bootstrap.servers: localhost:9092\nkafka.topic.prefix: depot\n"
            "heartbeat.interval.ms: 5000\n" + "".join(f"{line}\n" for line in lines)
        )
        config = load_config(path)
        sent: list[Message] = []
        delivery = SimpleNamespace(
            plan=SimpleNamespace(renderer=Renderer(config, 1_000_000)),
            link=SimpleNamespace(away=False),
            stopping=False,
            unacked=0,
            sent=sent,
            out_of_band=SimpleNamespace(add=sent.append),
        )
        return Heartbeat(config, delivery), delivery  # type: ignore[arg-type]

    return make


def test_heartbeat_is_sent_each_interval(make: Make) -> None:
    heartbeat, delivery = make("value.converter.schemas.enable: false")
    began_ms = time.time_ns() // 1_000_000
    assert heartbeat.turn(100.0) == 105.0
    [message] = delivery.sent
    assert message.topic == "__debezium-heartbeat.depot"
    assert json.loads(message.key)["payload"] == {"serverName": "depot"}
    value = json.loads(message.value)
    assert list(value) == ["ts_ms"]
    assert began_ms <= value["ts_ms"] <= time.time_ns() // 1_000_000
    assert ("__debezium.context.connectorName", b"depot") in message.headers


def test_heartbeat_topic_is_named_by_the_options(make: Make) -> None:
    heartbeat, delivery = make("topic.heartbeat.prefix: beat", "topic.delimiter: '-'")
    heartbeat.turn(0.0)
    assert [message.topic for message in delivery.sent] == ["beat-depot"]


def test_no_heartbeat_is_sent_during_an_outage_or_shutdown(make: Make) -> None:
    heartbeat, delivery = make()
    delivery.link.away, delivery.unacked = True, 1
    assert heartbeat.turn(0.0) == 1.0
    delivery.link.away, delivery.stopping = False, True
    heartbeat.turn(1.0)
    assert not delivery.sent
    delivery.stopping = False
    heartbeat.turn(2.0)
    assert len(delivery.sent) == 1


def test_heartbeat_probes_an_absent_kafka_without_other_messages(make: Make) -> None:
    heartbeat, delivery = make()
    delivery.link.away = True
    heartbeat.turn(0.0)
    assert len(delivery.sent) == 1


def test_row_transforms_let_heartbeats_through(make: Make) -> None:
    heartbeat, delivery = make(
        "transforms: unwrap, hide",
        "transforms.unwrap.type: io.debezium.transforms.ExtractNewRecordState",
        "transforms.hide.type: io.debezium.connector.vitess.transforms.RemoveField",
        "transforms.hide.field_names: transaction.id",
    )
    heartbeat.turn(0.0)
    [message] = delivery.sent
    assert list(json.loads(message.value)["payload"]) == ["ts_ms"]


def test_unavailable_heartbeat_topic_is_logged_once_per_outage(make: Make) -> None:
    heartbeat, delivery = make()

    def refuse(topic: str) -> None:
        raise TopicUnavailable(f"no {topic}")

    delivery.plan.renderer.writer.require_topic = refuse
    with logbook.TestHandler() as log:
        for turn in range(3):
            heartbeat.turn(turn * 5.0)
        assert len(log.records) == 1
        assert log.has_warning()
        delivery.plan.renderer.writer.require_topic = lambda _: None
        heartbeat.turn(20.0)
        delivery.plan.renderer.writer.require_topic = refuse
        heartbeat.turn(25.0)
        assert len(log.records) == 2
    assert len(delivery.sent) == 1
