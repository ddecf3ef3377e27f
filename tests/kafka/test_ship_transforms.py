"""Transforms and custom converters in a running shipper: a user's classes, found on its path."""

from __future__ import annotations

from pathlib import Path

import pytest
from shipping import ITEM, Event, Folder, Ship, read_topics

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.format import JournalWriter

pytestmark = pytest.mark.kafka

OWN = '''
from dataclasses import replace
from firebird_cdc.journal.events.schema import Schema

class Loud:
    """Sends names in capitals."""
    def configure(self, parameters):
        self.schema = Schema("string", name=parameters["schema.name"])
    def converter_for(self, column):
        return (self.schema, self.convert) if column.name == "NAME" else None
    def convert(self, value):
        return "NOBODY" if value is None else value.upper()

class Stamp:
    """Puts a header on what has a value, and trips over one name."""
    def configure(self, parameters):
        self.trip = parameters["trip"]
    def apply(self, record):
        if record.value is None:
            return record
        if record.value["NAME"] == self.trip:
            return record.value["ABSENT"]
        return replace(record, headers=[*record.headers, ("stamp", "seen")])
'''


@pytest.fixture
def own_classes(ship: Ship, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shipper unwrap, stamp and route, with classes from a folder on its path."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "my_events.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    ship.options |= {
        "converters": "loud",
        "loud.type": "my_events.Loud",
        "loud.schema.name": "example.Loud",
        "transforms": "unwrap,stamp,route",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.add.fields": "op",
        "transforms.unwrap.delete.tombstone.handling.mode": "delete-to-tombstone",
        "transforms.stamp.type": "my_events.Stamp",
        "transforms.stamp.trip": "TRIP",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": r"(.*)\._srv_fb_(.*)\.fdb\.(.*)",
        "transforms.route.replacement": "$1.$2.$3",
    }


def write_names(folder: Folder, *names: str | None) -> Path:
    def fill(writer: JournalWriter) -> None:
        table = writer.table("ITEM", ITEM)
        for number, name in enumerate(names):
            writer.insert(table, (number, name))
        writer.delete(table, (0, names[0]))

    return folder.write_changes(1, fill)


def rows(broker: KafkaBroker, prefix: str) -> list[tuple[int, str | None]]:
    """Id and name of each message, the name None for a tombstone; there is one topic only."""

    def row(event: Event) -> tuple[int, str | None]:
        name = None if event.value is None else event.payload["NAME"]
        return event.key["payload"]["ID"], name

    topics = read_topics(broker.bootstrap, prefix)
    assert list(topics) == [f"{prefix}.warehouse.ITEM"]
    return [row(event) for event in topics[f"{prefix}.warehouse.ITEM"]]


@pytest.mark.usefixtures("own_classes")
def test_records_pass_transforms_and_converters_of_the_users(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    write_names(folder, "cup", None)
    assert ship.once().process.returncode == 0
    assert folder.waiting == []
    assert rows(broker, topic_prefix) == [(0, "CUP"), (1, "NOBODY"), (0, None)]
    first, _, last = read_topics(broker.bootstrap, topic_prefix)[f"{topic_prefix}.warehouse.ITEM"]
    assert first.payload == {"ID": 0, "NAME": "CUP", "__op": "c"}
    fields = {field["field"]: field for field in first.value["schema"]["fields"]}
    assert list(fields) == ["ID", "NAME", "__op"]
    assert (fields["NAME"]["name"], fields["NAME"]["optional"]) == ("example.Loud", True)
    assert first.headers["stamp"] == "seen"
    assert "stamp" not in last.headers


@pytest.mark.usefixtures("own_classes")
def test_raising_transform_is_handled_by_the_failure_mode(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    path = write_names(folder, "cup", "trip", "pot")
    shipper = ship.once()
    assert shipper.process.returncode == 1
    assert folder.waiting == [path]
    told = shipper.log_lines("shipping paused")[0]
    for part in (path.name, "event 2", "transform stamp (my_events.Stamp) failed: KeyError"):
        assert part in told
    ship.options["event.processing.failure.handling.mode"] = "warn"
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert folder.waiting == []
    told = shipper.log_lines("is left out")[0]
    for part in (path.name, "event 2", "transform stamp (my_events.Stamp) failed: KeyError"):
        assert part in told
    # What was sent before the shipper stood still comes again with its transaction.
    assert rows(broker, topic_prefix)[-3:] == [(0, "CUP"), (2, "POT"), (0, None)]


@pytest.mark.usefixtures("own_classes")
def test_a_class_that_is_not_there_stops_the_shipper_before_it_sends(
    ship: Ship, folder: Folder, broker: KafkaBroker, topic_prefix: str
) -> None:
    path = write_names(folder, "cup")
    ship.options["transforms.stamp.type"] = "my_events.Stump"
    shipper = ship.once()
    assert shipper.process.returncode == 2
    assert folder.waiting == [path]
    told = ship.output(shipper)
    assert "transforms.stamp.type is my_events.Stump; " in told
    assert "did you mean Stamp?" in told
    assert read_topics(broker.bootstrap, topic_prefix) == {}
