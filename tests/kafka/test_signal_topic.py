"""Signals by a topic of a real broker: which ones a shipper hears, before and after restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import logbook
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from firebird_cdc.config import load_config
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.shipper.snapshots import channels
from firebird_cdc.journal.shipper.snapshots.channels import KafkaChannel, RawSignal

pytestmark = pytest.mark.kafka


class Topic:
    """The signal topic of a connector, and what is sent to it."""

    def __init__(self, broker: KafkaBroker, prefix: str, directory: Path) -> None:
        self.name = f"{prefix}-signal"
        self.prefix = prefix
        self._servers = broker.bootstrap
        path = directory / "connector.yaml"
        path.write_text(
            f"connector.name: depot\nconnector.journal.directory: {directory}\n"
            f"kafka.producer.bootstrap.servers: {broker.bootstrap}\nkafka.topic.prefix: {prefix}\n"
            "signal.enabled.channels: kafka\n"
        )
        self.config = load_config(path)

    def make(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.create_topics([NewTopic(self.name, 1, 1)])[self.name].result(30)

    def send(self, *values: str, key: str = "") -> None:
        producer = Producer({"bootstrap.servers": self._servers})
        for value in values:
            producer.produce(self.name, value, key or self.prefix)
        assert producer.flush(30) == 0


@pytest.fixture
def topic(broker: KafkaBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Topic]:
    return Topic(broker, topic_prefix, tmp_path)


def signal(id: str) -> str:
    return json.dumps({"id": id, "type": "log", "data": {"message": id}})


def take(channel: KafkaChannel, number: int) -> list[RawSignal]:
    """Return the next signals of CHANNEL, at least NUMBER."""
    taken: list[RawSignal] = []

    def are_there() -> bool:
        taken.extend(channel.take())
        return len(taken) >= number

    await_condition("signals are there", are_there, 60)
    return taken


def test_signals_of_this_connector_come_once_whatever_is_between_them(topic: Topic) -> None:
    topic.make()
    topic.send(signal("before the first start"), "{", "")
    topic.send(signal("of another"), key="other")
    topic.send('{"type": "pause-snapshot"}', signal("last"))
    with closing(KafkaChannel(topic.config)) as channel:
        first, wrong, unnamed, last = take(channel, 4)
    assert first == RawSignal(
        "before the first start", "log", '{"message": "before the first start"}', "kafka", 0
    )
    assert "it is not JSON" in wrong.problem
    assert (unnamed.id, unnamed.type, unnamed.data) == (f"{topic.name}:4", "pause-snapshot", None)
    assert (last.id, last.place) == ("last", 5)
    topic.send(signal("after a restart"))
    with closing(KafkaChannel(topic.config, wrong.place)) as channel:
        assert [each.id for each in take(channel, 3)] == [unnamed.id, "last", "after a restart"]


def test_topic_that_is_missing_is_told_of_once_and_read_when_it_is_there(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "SILENCE_S", 1.0)
    with closing(KafkaChannel(topic.config)) as channel, logbook.TestHandler() as log:

        def is_told() -> bool:
            assert channel.take() == []
            return log.has_warnings

        await_condition("a warning is logged", is_told, 60)
        topic.make()
        topic.send(signal("a"))
        assert [each.id for each in take(channel, 1)] == ["a"]
    (warning,) = [each for each in log.records if each.level == logbook.WARNING]
    assert topic.name in warning.message
