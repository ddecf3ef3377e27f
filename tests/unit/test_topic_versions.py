"""Journals beside messages of versions before: each is compared with what its version made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from earlier_messages import NAMES, PRICES
from topic_scene import CONFIGURATIONS, DATABASE, Registered, Scene, fill_five, kinds

from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.format import JournalReader, JournalWriter, RowChange
from firebird_cdc.journal.replay.audit.kafka.avro_form import AvroReader
from firebird_cdc.journal.replay.audit.kafka.rendered import END_AT
from firebird_cdc.journal.replay.repair import topics as repair_topics
from firebird_cdc.journal.replay.repair.topics import TopicLook

OLD = "0.1.0"
MOST = 2**127 - 1  # 39 digits: a version before could send that


def _prices(scene: Scene, at: int, n38: int = 7, epoch: int = 0) -> None:
    """A journal with changes of rows with decimals in key and value, a key change, a delete."""

    def fill(writer: JournalWriter) -> None:
        prices, names = writer.table("PRICES", PRICES), writer.table("NAMES", NAMES)
        writer.insert(names, (at, "n"))
        writer.insert(prices, (at, 32767, -(2**63), n38, 12.34))
        writer.update(prices, (at, 32767, -(2**63), n38, 12.34), (at + 1, 0, 1, 2, None))
        writer.update(prices, (at + 1, 0, 1, 2, None), (at + 1, 0, 1, 3, None))
        writer.delete(prices, (at + 1, 0, 1, 3, None))
        writer.update(names, (at, "n"), (at, "m"))
        writer.delete(names, (at, "m"))
        writer.ddl("alter table PRICES add X integer")

    scene.journal(fill, epoch=epoch)


def _history(folder: Path, **options: str) -> Scene:
    scene = Scene(folder, **{"include.schema.changes": "true", **options})
    fill_five(scene)
    for number, epoch in ((10, 0), (10, 0), (20, 1), (10, 1)):
        _prices(scene, number, epoch=epoch)
    scene.probe()
    return scene


def _split(old: list[Message], new: list[Message], at: int) -> list[Message]:
    return [*old[:at], *new[at:]]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_messages_of_the_previous_version_do_not_differ(name: str, tmp_path: Path) -> None:
    """Wherever the upgrade was: between two journals, or in the middle of one."""
    scene = _history(tmp_path, **CONFIGURATIONS[name])
    old, new = scene.shipped(version=OLD), scene.shipped()
    assert len(old) == len(new)
    assert old != new
    for at in (0, 3, len(old) // 2, len(old) // 2 + 1, len(old) // 2 + 2, len(old) - 1, len(old)):
        assert scene.compare(_split(old, new, at)) == []


@pytest.mark.parametrize("name", ["plain", "headers with types", "unwrapped, with headers"])
def test_a_table_without_a_key_does_not_differ_after_an_upgrade(name: str, tmp_path: Path) -> None:
    """Such messages belong together by what is in them, whatever their schemas and headers are."""
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    notes = [replace(column, key_position=0) for column in PRICES]

    def fill(writer: JournalWriter) -> None:
        table = writer.table("NOTES", notes)
        writer.insert(table, (1, 32767, 5, 7, None))
        writer.update(table, (1, 32767, 5, 7, None), (2, 0, 1, 2, None))
        writer.delete(table, (2, 0, 1, 2, None))
        writer.insert(table, (1, 32767, 5, 7, None))

    for _ in range(2):
        scene.journal(fill)
    scene.probe()
    old, new = scene.shipped(version=OLD), scene.shipped()
    assert all(each.key is None for each in old)
    for at in (0, 3, len(old)):
        assert scene.compare(_split(old, new, at)) == []
    found = scene.compare([*old[:-1], old[0]])
    assert sorted(row["kind"] for row in found) == ["doubled", "missing"]


@pytest.mark.parametrize("name", ["plain", "counted", "masked"])
def test_avro_of_the_previous_version_does_not_differ(name: str, tmp_path: Path) -> None:
    options = {
        f"{part}.converter{name}": text
        for part in ("key", "value")
        for name, text in (("", "avro"), (".schema.registry.url", "http://localhost:1"))
    }
    scene = _history(tmp_path, **CONFIGURATIONS[name], **options)
    both = Registered(), Registered()
    old, new = scene.shipped(converters=both, version=OLD), scene.shipped(converters=both)
    scene.form = replace(
        scene.form,
        decode_key=AvroReader(both[0].schemas),
        decode_value=AvroReader(both[1].schemas),
    )
    assert old != new
    for at in (0, len(old) // 2, len(old)):
        assert scene.compare(_split(old, new, at)) == []


@pytest.mark.parametrize("name", ["plain", "no schemas", "counted"])
def test_each_fault_in_messages_of_the_previous_version_is_one_difference(
    name: str, tmp_path: Path
) -> None:
    scene = _history(tmp_path, **CONFIGURATIONS[name])
    old, new = scene.shipped(version=OLD), scene.shipped()
    middle = len(old) // 2
    sent = _split(old, new, middle)
    (at, *_) = [
        index
        for index, each in enumerate(sent)
        if b'"N4":"f/8="' in (each.value or b"") and b'"op":"c"' in (each.value or b"")
    ]
    assert at < middle
    assert [row["kind"] for row in scene.compare([*sent[:at], *sent[at + 1 :]])] == ["missing"]
    assert [row["kind"] for row in scene.compare([*sent, sent[at]])] == ["doubled"]
    # A copy in today's form is one too many as well.
    assert [row["kind"] for row in scene.compare([*sent, new[at]])] == ["doubled"]
    value = sent[at].value or b""
    altered = sent[at]._replace(value=value.replace(b'"N4":"f/8="', b'"N4":"f/4="'))
    found = scene.compare([*sent[:at], altered, *sent[at + 1 :]])
    assert [row["kind"] for row in found] == ["altered"]


@pytest.mark.parametrize(("told", "written"), [("0.2.0", OLD), (OLD, "0.2.0")])
def test_a_message_in_another_form_than_its_version_s_is_altered(
    told: str, written: str, tmp_path: Path
) -> None:
    scene = _history(tmp_path)
    sent = scene.shipped(version=written)
    at = next(index for index, each in enumerate(sent) if each.value)

    def named(message: Message, version: str) -> Message:
        value = (message.value or b"").replace(f'"{written}"'.encode(), f'"{version}"'.encode())
        return message._replace(value=value)

    found = scene.compare([*sent[:at], named(sent[at], told), *sent[at + 1 :]])
    assert [row["kind"] for row in found] == ["altered"]


def test_a_version_after_this_one_is_named_where_its_messages_differ(tmp_path: Path) -> None:
    """Accept messages that are written as today; for the rest, name the version that has to be
    asked."""
    scene = _history(tmp_path)
    sent = scene.shipped(version="99.0")
    assert scene.compare(sent) == []
    at = next(index for index, each in enumerate(sent) if each.value)
    value = (sent[at].value or b"").replace(b'"version":2', b'"version":3')
    found = scene.compare([*sent[:at], sent[at]._replace(value=value), *sent[at + 1 :]])
    assert [(row["kind"], row["note"]) for row in found] == [("altered", "later")]


def test_events_only_the_previous_version_could_send_do_not_differ(tmp_path: Path) -> None:
    """A value of 39 digits; where it is not in the topic, it is told that it can't be sent."""
    scene = Scene(tmp_path)
    _prices(scene, 10, MOST)
    sent = scene.shipped(version=OLD)
    # An insert; and an update of the key, which is a delete, a tombstone and an insert.
    assert kinds(scene.compare(sent)) == [("once sent", 1, 2), *[("once sent", 1, 3)] * 3]
    (at,) = [
        index
        for index, each in enumerate(sent)
        if b'"N38":"f/////' in (each.value or b"") and b'"op":"c"' in (each.value or b"")
    ]
    found = scene.compare([*sent[:at], *sent[at + 1 :]])
    assert kinds(found) == [*[("once sent", 1, 3)] * 3, ("quarantined", 1, 2)]
    assert "39 digits" in next(row["note"] for row in found if row["kind"] == "quarantined")


def test_event_counts_of_the_previous_version_are_excused_by_its_events(tmp_path: Path) -> None:
    """The numbers in that transaction are others than today's, which is excused by its events."""
    scene = Scene(tmp_path, **{"provide.transaction.metadata": "true"})
    _prices(scene, 10, MOST)
    found = scene.compare(scene.shipped(version=OLD))
    others = [row for row in found if row["kind"] != "once sent"]
    assert others
    assert all(row["kind"] == "block" or row["position"] == END_AT for row in others)


def test_redelivery_or_repair_after_an_upgrade_is_recognised(tmp_path: Path) -> None:
    """It is written in today's form, whichever version left it out."""
    scene = _history(tmp_path)
    old, new = scene.shipped(version=OLD), scene.shipped()
    at = next(i for i, each in enumerate(old) if b'"N4":"f/8="' in (each.value or b""))
    source = json.loads(new[at].value or b"")["payload"]["source"]
    events = [[source["epoch"], source["commitSeq"], source["pos"]]]
    told = {"kind": "event", "database": DATABASE, "events": events}
    for header, kinds_due in (
        (("__firebird_cdc.late", b'{"reason":"too large"}'), ["loose"]),
        (("__firebird_cdc.repair", json.dumps(told).encode()), ["loose", "stands"]),
    ):
        again = new[at]._replace(headers=[*new[at].headers, header])
        found = scene.compare([*old[:at], *old[at + 1 :], again])
        assert sorted(row["kind"] for row in found) == kinds_due


def test_compacted_topic_treats_the_keys_of_both_versions_as_one(
    tmp_path: Path,
) -> None:
    """A compacted topic keeps the last message of a row under the key of each form."""
    scene = Scene(tmp_path)
    for number in range(3):
        scene.journal(_inserted(number))
    old, new = scene.shipped(version=OLD), scene.shipped()
    assert old[0].key != new[0].key
    topics = frozenset(each.topic for each in new)
    assert scene.compare([old[1], new[2]], compacted=topics) == []
    assert scene.compare([new[2]], compacted=topics) == []
    assert [row["kind"] for row in scene.compare([old[1]], compacted=topics)] == ["missing"]


def test_a_repair_knows_the_newest_event_of_a_row_by_the_key_of_each_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would take a row for one that was never sent, and bring its old state."""
    scene = Scene(tmp_path)
    for number in range(3):
        scene.journal(_inserted(number))
    for sent, pos in ((scene.shipped(version=OLD), 2), (scene.shipped(), 3)):
        look = TopicLook(scene.config, DATABASE)
        with JournalReader(scene.paths[0]) as reader:
            (change,) = (each for each in reader.changes() if isinstance(each, RowChange))
            look.add(reader, change, [b"row"])
        topic = [_Read(message) for message in sent[:pos]]
        monkeypatch.setattr(repair_topics, "_messages", lambda *_, topic=topic: topic)
        assert list(look.newest(0)) == [(b"row", (0, pos, 1))]


class _Read:
    """A message as a consumer gets it."""

    def __init__(self, message: Message) -> None:
        self.topic, self.key, self.value, self.headers = (
            lambda part=part: part for part in message
        )


def _inserted(number: int) -> Any:
    def fill(writer: JournalWriter) -> None:
        prices = writer.table("PRICES", PRICES)
        if number == 0:
            writer.insert(prices, (5, 0, 0, 0, None))
        else:
            writer.update(prices, (5, number - 1, 0, 0, None), (5, number, 0, 0, None))

    return fill


def test_the_order_of_a_row_is_seen_across_forms(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for number in range(3):
        scene.journal(_inserted(number))
    old, new = scene.shipped(version=OLD), scene.shipped()
    assert kinds(scene.compare([old[0], new[2], old[1]])) == [("order", 2, 1)]
