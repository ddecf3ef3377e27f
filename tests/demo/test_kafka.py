"""The broker that the demo and the tests run: its data survive stop, crash and start."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firebird_cdc.demo.events import ends_of
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.errors import SetupError

pytestmark = pytest.mark.kafka


def _produce(broker: KafkaBroker, topic: str, value: str, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush(60)
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def _read(broker: KafkaBroker, topic: str) -> list[str]:
    # A commit is confirmed before it is seen, so the end is that of all that was written.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    end = ends_of(admin, [TopicPartition(topic, 0)])[topic, 0]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = []
        while consumer.position([TopicPartition(topic, 0)])[0].offset < end:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                values.append(message.value().decode())
        return values
    finally:
        consumer.close()


def test_committed_messages_outlive_a_stop_and_a_crash(
    own_broker: KafkaBroker, topic_prefix: str
) -> None:
    address = own_broker.bootstrap
    _produce(own_broker, topic_prefix, "before")
    own_broker.stop()
    own_broker.start()
    _produce(own_broker, topic_prefix, "aborted", commit=False)
    _produce(own_broker, topic_prefix, "between")
    own_broker.kill()
    own_broker.start()
    _produce(own_broker, topic_prefix, "after")
    assert own_broker.bootstrap == address
    assert _read(own_broker, topic_prefix) == ["before", "between", "after"]


def test_a_port_in_use_is_named_with_the_servers_own_words(
    tmp_path: Path, kafka_jars: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = KafkaBroker(tmp_path / "kafka", kafka_jars, port=taken.getsockname()[1])
        with pytest.raises(SetupError, match=r"(?s)ended with exit code.*kafka\.log.*in use"):
            broker.start()


def test_topics_that_were_made_just_now_have_an_end(broker: KafkaBroker, topic_prefix: str) -> None:
    def make(maker: int) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for number in range(5):
            topic = f"{topic_prefix}.{maker}-{number}"
            places = [TopicPartition(topic, part) for part in range(20)]
            admin.create_topics([NewTopic(topic, len(places), 1)])[topic].result(60)
            assert ends_of(admin, places) == {(topic, place.partition): 0 for place in places}

    # Several at once: else the leaders are chosen by the time that the client asks for them.
    with ThreadPoolExecutor(4) as makers:
        list(makers.map(make, range(4)))
