"""A restore as consumers see it: announced once, before the first event of the new epoch."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import SerializationContext
from shipping import DATABASE, Folder, Ship, ids, read_topics

from firebird_cdc.cli import main
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.registry import SchemaRegistry
from firebird_cdc.journal.shipper.delivery import transactional

pytestmark = pytest.mark.kafka

OTHER = "/srv/fb/other.fdb"


@pytest.fixture
def ship(ship: Ship, topic_prefix: str) -> Ship:
    """Shippers with one transactional id, and small messages."""
    ship.options |= {
        "kafka.producer.transactional.id": f"{topic_prefix}-id",
        "value.converter.schemas.enable": "false",
        "key.converter.schemas.enable": "false",
    }
    return ship


class Topics:
    """Messages of one test, as a consumer sees them."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix

    def announced(self) -> list[tuple[str, int]]:
        """Database and epoch of all announcements."""
        everything = read_topics(self._bootstrap, self._prefix)
        found = []
        for event in everything.get(self._prefix, []):
            value = event.value
            assert event.key == {"databaseName": value["databaseName"]}
            assert (value["ddl"], value["tableChanges"]) == (None, [])
            source = value["source"]
            assert (source["db"], source["table"], source["pos"]) == (
                value["databaseName"],
                "",
                0,
            )
            found.append((source["db"], source["epoch"]))
        return found

    def identities(self) -> list[tuple[int, int, int]]:
        """Epoch, commitSeq and pos of the events of the one table."""
        everything = read_topics(self._bootstrap, self._prefix)
        sources = [
            event.value["source"]
            for event in everything[f"{self._prefix}._srv_fb_warehouse.fdb.ITEM"]
        ]
        for source in sources:
            numbers = (source["epoch"], source["commitSeq"], source["pos"])
            assert source["sequence"] == "[{}]".format(",".join(f'"{n}"' for n in numbers))
        return [(each["epoch"], each["commitSeq"], each["pos"]) for each in sources]


@pytest.fixture
def topics(broker: KafkaBroker, topic_prefix: str) -> Topics:
    return Topics(broker.bootstrap, topic_prefix)


def test_a_restore_is_announced_once_and_its_events_have_names_of_their_own(
    ship: Ship, folder: Folder, topics: Topics
) -> None:
    folder.write(1)
    folder.write(2)
    folder.write(1, database=OTHER)
    assert ship.once_here() == 0
    assert topics.announced() == []
    folder.write(1, epoch=1, first_id=11)
    assert ship.once_here() == 0
    assert topics.announced() == [(DATABASE, 1)]
    folder.write(2, epoch=1, first_id=12)
    folder.write(2, database=OTHER)
    assert ship.once_here() == 0
    assert topics.announced() == [(DATABASE, 1)]
    assert topics.identities() == [(0, 1, 1), (0, 2, 1), (1, 1, 1), (1, 2, 1)]
    folder.write(1, epoch=3, first_id=31)
    folder.write(1, epoch=1, database=OTHER)
    assert ship.once_here() == 0
    assert sorted(topics.announced()) == [(OTHER, 1), (DATABASE, 1), (DATABASE, 3)]


def test_a_shipper_that_starts_after_the_restore_announces_it_too(
    ship: Ship, folder: Folder, topics: Topics
) -> None:
    folder.write(1, epoch=4)
    assert ship.once_here() == 0
    assert topics.announced() == [(DATABASE, 4)]


def test_epoch_announcement_precedes_the_first_event(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    """In one topic, to which a transform routes all, so that the order can be seen."""
    ship.options |= {
        "transforms": "one",
        "transforms.one.type": "route",
        "transforms.one.regex": ".*",
        "transforms.one.replacement": topic_prefix,
    }
    folder.write(1)
    folder.write(1, epoch=1, rows=2, first_id=11)
    folder.write(1, epoch=1, database=OTHER)
    assert ship.once_here() == 0
    found = [
        (source["epoch"], source["commitSeq"], source["pos"])
        for event in read_topics(broker.bootstrap, topic_prefix)[topic_prefix]
        if (source := event.value["source"])["db"] == DATABASE
    ]
    assert found == [(0, 1, 1), (1, 1, 0), (1, 1, 1), (1, 1, 2)]


def test_an_epoch_whose_tables_are_all_filtered_out_is_announced(
    ship: Ship, folder: Folder, topics: Topics
) -> None:
    ship.options["table.exclude.list"] = "ITEM"
    folder.write(1, epoch=1)
    assert ship.once_here() == 0
    assert topics.announced() == [(DATABASE, 1)]


def test_no_epoch_is_announced_without_schema_change_messages(
    ship: Ship, folder: Folder, topics: Topics
) -> None:
    ship.options["include.schema.changes"] = "false"
    folder.write(1, epoch=1)
    assert ship.once_here() == 0
    assert topics.announced() == []
    assert topics.identities() == [(1, 1, 1)]


@pytest.mark.parametrize("mode", ["skip", "fail"])
def test_epoch_is_announced_even_if_its_first_journal_is_lost(
    ship: Ship, folder: Folder, topics: Topics, mode: str
) -> None:
    ship.options["event.processing.failure.handling.mode"] = mode
    folder.write(1)
    assert ship.once_here() == 0
    damaged = folder.write(1, epoch=1, first_id=11, rows=3)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    folder.write(2, epoch=1, first_id=21)
    folder.write(3, epoch=1, first_id=31)
    if mode == "fail":
        assert ship.once_here() == 1
        assert topics.announced() == []
        damaged.unlink()
    assert ship.once_here() == 0
    assert topics.announced() == [(DATABASE, 1)]
    assert topics.identities() == [(0, 1, 1), (1, 2, 1), (1, 3, 1)]
    folder.write(4, epoch=1, first_id=41)
    assert ship.once_here() == 0
    assert topics.announced() == [(DATABASE, 1)]


def test_a_journal_that_is_sent_in_parts_announces_its_epoch_once(
    ship: Ship, folder: Folder, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional, "SPLIT_MESSAGES", 5)
    monkeypatch.setattr(transactional, "EVENTS_PER_TURN", 5)
    folder.write(1, epoch=1, rows=23)
    assert ship.once_here() == 0
    assert topics.announced() == [(DATABASE, 1)]
    assert topics.identities() == [(1, 1, pos) for pos in range(1, 24)]


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "in-parts"])
def test_refused_epoch_announcement_is_reported_until_acknowledged(
    ship: Ship,
    folder: Folder,
    broker: KafkaBroker,
    topic_prefix: str,
    topics: Topics,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_split: bool,
) -> None:
    if is_split:
        monkeypatch.setattr(transactional, "SPLIT_MESSAGES", 5)
        monkeypatch.setattr(transactional, "EVENTS_PER_TURN", 5)
    ship.options["event.processing.failure.handling.mode"] = "skip"
    limited = NewTopic(topic_prefix, 1, 1, config={"max.message.bytes": "200"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([limited]).values():
        future.result(30)
    folder.write(1, epoch=1, rows=13)
    folder.write(2, epoch=1, first_id=14)
    assert ship.once_here() == 0
    assert len(topics.identities()) == 14
    assert topics.announced() == []
    status = ["status", "--directory", str(folder.directory)]
    assert main(status) == 1
    assert f"goes with events of {DATABASE} could not be sent" in (told := capsys.readouterr().out)
    assert "the announcement of a new epoch (1)" in told
    assert ship.journal("acknowledge", DATABASE) == 0
    assert main(status) == 0, "no shipper has to take note first"
    assert ship.once_here() == 0
    assert main(status) == 0


_EARLIER = """
import sys
from firebird_cdc.cli import main
from firebird_cdc.journal.events import source
source._FIELDS = tuple(each for each in source._FIELDS if each[0] != "epoch")
sys.exit(main(sys.argv[1:]))
"""
"""Runs the shipper with the schemas of earlier versions."""


@pytest.mark.registry
@pytest.mark.parametrize("rule", ["BACKWARD", "FULL"])
def test_a_registry_takes_the_epoch_into_schemas_of_earlier_versions(
    ship: Ship,
    folder: Folder,
    registry: SchemaRegistry,
    broker: KafkaBroker,
    topic_prefix: str,
    rule: str,
) -> None:
    for part in ("key", "value"):
        ship.options[f"{part}.converter"] = "avro"
        ship.options[f"{part}.converter.schema.registry.url"] = registry.url
        del ship.options[f"{part}.converter.schemas.enable"]
    topic = f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"
    folder.write(1)
    assert ship.start("--once", program=("-c", _EARLIER)).wait() == 0
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.set_compatibility(f"{topic}-value", rule)
        folder.write(1, epoch=1, first_id=7)
        assert ship.once().process.returncode == 0
        deserialize = AvroDeserializer(client)

        def decode(content: bytes, of: str, part: str) -> Any:
            return deserialize(content, SerializationContext(of, part))

        found = read_topics(broker.bootstrap, topic_prefix, decode=decode)
    assert ids(found[topic]) == [1_000_000, 7]
    assert "epoch" not in found[topic][0].value["source"]
    assert found[topic][1].value["source"]["epoch"] == 1
    (announced,) = found[topic_prefix]
    assert (announced.value["source"]["epoch"], announced.value["databaseName"]) == (1, DATABASE)
