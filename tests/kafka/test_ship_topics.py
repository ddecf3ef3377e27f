"""Topics that the shipper makes, and what is in order in them."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from shipping import DATABASE, ITEM, Folder, Ship, ids, read_topics

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter

pytestmark = pytest.mark.kafka


def _partitions(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(timeout=30).topics[topic].partitions)


def _property(admin: AdminClient, topic: str, name: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    [future] = admin.describe_configs([resource]).values()
    return str(future.result(30)[name].value)


def test_missing_topics_are_made_as_their_group_says(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    def fill(writer: JournalWriter) -> None:
        for name in ("ITEM", "PRICE", "OLD"):
            table = writer.table(name, ITEM)
            writer.insert(table, (1, name))

    folder.write_changes(1, fill)
    stem = f"{topic_prefix}.{DATABASE.replace('/', '_')}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(f"{stem}.OLD", 2)])[f"{stem}.OLD"].result(30)
    ship.options |= {
        "provide.transaction.metadata": "true",
        "topic.creation.default.partitions": "3",
        "topic.creation.default.cleanup.policy": "compact",
        "topic.creation.groups": "prices",
        "topic.creation.prices.include": ".*[.]PRICE, .*[.]transaction",
        "topic.creation.prices.partitions": "5",
        "topic.creation.prices.retention.ms": "3600000",
    }
    assert ship.once().process.returncode == 0
    made = {
        name: _partitions(admin, name)
        for name in (f"{stem}.ITEM", f"{stem}.PRICE", f"{stem}.OLD", f"{topic_prefix}.transaction")
    }
    assert list(made.values()) == [3, 5, 2, 1]
    assert _property(admin, f"{stem}.ITEM", "cleanup.policy") == "compact"
    assert _property(admin, f"{stem}.PRICE", "cleanup.policy") == "delete"
    assert _property(admin, f"{topic_prefix}.transaction", "retention.ms") == "3600000"


def test_a_topic_that_cant_be_made_is_waited_for(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    folder.write(1, rows=3)
    ship.options["topic.creation.default.replication.factor"] = "3"
    shipper = ship.start()
    line = shipper.await_log("is missing and can't be made")
    assert "topic.creation.default.replication.factor" in line
    topic = f"{topic_prefix}.{DATABASE.replace('/', '_')}.ITEM"
    assert topic in line
    folder.write(2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    shipper.await_that(lambda: not folder.waiting, "the journals to be shipped")
    assert shipper.terminate() == 0
    [events] = read_topics(broker.bootstrap, topic_prefix).values()
    assert len(ids(events)) == 4
