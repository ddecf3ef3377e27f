"""Rendered journals laid beside messages, in this process: what the configuration does to events
is no difference, and each fault is one. Spark's part of it is tests/spark/test_audit_kafka.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from topic_scene import CONFIGURATIONS, DATABASE, Registered, Scene, fill_five, kinds

from firebird_cdc.journal.events.headers import JsonHeaders, SimpleHeaders
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.topics import BadName
from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.format import (
    JournalReader,
)
from firebird_cdc.journal.replay.audit.kafka.avro_form import AvroReader
from firebird_cdc.journal.replay.audit.kafka.rendered import make_renderer


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_shipped_messages_do_not_differ(name: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    fill_five(scene)
    scene.journal(lambda writer: writer.ddl("create table U (ID integer)"))
    scene.probe()
    assert scene.compare(scene.shipped()) == []


@pytest.mark.parametrize("name", ["plain", "no schemas", "counted", "unwrapped", "bare"])
def test_each_fault_is_one_difference(name: str, tmp_path: Path) -> None:
    """Also where messages don't tell where they are from, and are the same several times."""
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    fill_five(scene)
    scene.probe()
    sent = scene.shipped()
    of_row = [index for index, each in enumerate(sent) if b'"ID":1' in (each.key or b"")]
    insert, *updates, delete, tombstone = of_row
    if name == "bare":
        updates = [*updates, delete]
        delete = tombstone

    def without(*dropped: int) -> list[Message]:
        return [each for index, each in enumerate(sent) if index not in dropped]

    for index, sequence in zip(updates, (2, 3, 4), strict=False):
        assert kinds(scene.compare(without(index))) == [("missing", sequence, 1)]
    assert kinds(scene.compare(without(insert))) == [("missing", 1, 1)]
    doubled = [*sent[: updates[1]], sent[updates[1]], *sent[updates[1] :]]
    assert [row["kind"] for row in scene.compare(doubled)] == ["doubled"]
    one, other = updates[0], updates[1]
    swapped = list(sent)
    swapped[one], swapped[other] = swapped[other], swapped[one]
    assert [row["kind"] for row in scene.compare(swapped)] == ["order"]
    value = sent[one].value
    assert value is not None
    altered = list(sent)
    altered[one] = sent[one]._replace(value=value.replace(b'"NAME":"b"', b'"NAME":"q"'))
    assert kinds(scene.compare(altered)) == [("altered", 2, 1)]
    stranger = sent[one]._replace(value=b'{"hello":1}')
    (extra,) = scene.compare([*sent, stranger])
    assert (extra["kind"], extra["offset"]) == ("extra", len(sent))


_SCHEMA_OF_EPOCH = b'{"type":"int64","optional":true,"field":"epoch"},'


def _older(message: Message) -> Message:
    """MESSAGE as earlier versions made it, which told no epoch."""
    value = message.value
    if value is None:
        return message
    value = re.sub(rb'"epoch":\d+,', b"", value.replace(_SCHEMA_OF_EPOCH, b""))
    value = re.sub(rb'(sequence":"\[)\\"\d+\\",(\\"\d+\\",\\"\d+\\"\]")', rb"\1\2", value)
    return message._replace(value=value)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_messages_of_an_earlier_version_do_not_differ(name: str, tmp_path: Path) -> None:
    """Also where it announced no epoch, and where this version has gone on after it."""
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    fill_five(scene)
    scene.journal(lambda writer: writer.ddl("create table U (ID integer)"))
    scene.rows(("u", (1, "a"), (1, "b")), epoch=1)
    scene.probe()
    sent = scene.shipped()
    older = [_older(each) for each in sent]
    if name not in ("excluded", "bare"):
        assert older != sent
    silent = [each for each in older if b'"ddl":null' not in (each.value or b"")]
    assert len(silent) == len(sent) - 1
    assert scene.compare(sent) == []
    assert scene.compare(older) == []
    assert scene.compare(silent) == []
    assert scene.compare([*silent[:4], *sent[4:]]) == []


@pytest.mark.parametrize("name", ["plain", "no schemas", "counted"])
def test_an_epoch_or_sequence_that_is_not_the_journal_s_is_an_altered_event(
    name: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    scene.rows(("c", None, (1, "a")))
    scene.rows(("u", (1, "a"), (1, "b")), epoch=5)
    sent = scene.shipped()
    (at,) = [
        index
        for index, each in enumerate(sent)
        if b'"epoch":5,"commitSeq":1,"j' in (each.value or b"")
        and b'"op":"u"' in (each.value or b"")
    ]
    value = sent[at].value or b""
    for old, new in (
        (b'"epoch":5,', b'"epoch":4,'),
        (rb"[\"5\",", rb"[\"4\","),
        (rb"[\"5\",", b"["),
        (rb",\"1\"]", rb",\"2\"]"),
    ):
        assert value.count(old) == 1
        altered = sent[at]._replace(value=value.replace(old, new))
        assert kinds(scene.compare([*sent[:at], altered, *sent[at + 1 :]])) == [("altered", 1, 1)]
    # Both, so that the message is consistent with itself.
    both = value.replace(b'"epoch":5,', b'"epoch":4,').replace(rb"[\"5\",", rb"[\"4\",")
    altered = sent[at]._replace(value=both)
    assert kinds(scene.compare([*sent[:at], altered, *sent[at + 1 :]])) == [("altered", 1, 1)]


def test_lost_or_doubled_epoch_announcement_is_reported(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.journal(lambda writer: writer.ddl("create table T (ID integer)"))
    scene.rows(("c", None, (1, "b")), epoch=1)
    scene.rows(("c", None, (2, "b")), epoch=1)
    sent = scene.shipped()
    (at,) = [index for index, each in enumerate(sent) if b'"ddl":null' in (each.value or b"")]
    assert scene.compare(sent) == []
    (lost,) = scene.compare([*sent[:at], *sent[at + 1 :]])
    assert (lost["kind"], lost["epoch"], lost["sequence"]) == ("missing", 1, 1)
    (doubled,) = scene.compare([*sent, sent[at]])
    assert doubled["kind"] == "doubled"


_AVRO = {
    f"{part}.converter{name}": text
    for part in ("key", "value")
    for name, text in (("", "avro"), (".schema.registry.url", "http://localhost:1"))
}


def test_avro_messages_are_compared_by_decoded_content(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **_AVRO)
    fill_five(scene)
    key, value = Registered(), Registered()
    sent = scene.shipped(converters=(key, value))
    assert {each.key[0] for each in sent} == {0}
    scene.form = replace(
        scene.form, decode_key=AvroReader(key.schemas), decode_value=AvroReader(value.schemas)
    )
    assert scene.compare(sent) == []
    (at, *_) = [
        index for index, each in enumerate(sent) if each.value and each.value.endswith(b"\0")
    ][3:]
    assert kinds(scene.compare([*sent[:at], *sent[at + 1 :]])) == [("missing", 3, 1)]
    altered = sent[at]._replace(value=(sent[at].value or b"").replace(b"\2b", b"\2q"))
    assert kinds(scene.compare([*sent[:at], altered, *sent[at + 1 :]])) == [("altered", 3, 1)]
    foreign = Message(sent[at].topic, b"no", b"avro", [])
    assert [row["kind"] for row in scene.compare([*sent, foreign])] == ["extra"]


_HASHED = {"column.mask.hash.SHA-256.with.salt.CzQMA0cB5K": ".*T[.]NAME"}


@pytest.mark.parametrize(
    "options",
    [CONFIGURATIONS["plain"], CONFIGURATIONS["no schemas"], CONFIGURATIONS["counted"], _HASHED],
    ids=["plain", "no schemas", "counted", "hashed"],
)
def test_rows_of_a_snapshot_are_compared_as_they_are_sent(
    options: dict[str, str], tmp_path: Path
) -> None:
    scene = Scene(tmp_path, **options)
    fill_five(scene)
    scene.form = replace(scene.form, images=True)
    sent = scene.shipped()
    found = scene.compare([*sent, *scene.reads(5, (3, "x"), (4, "old"))])
    assert [(row["kind"], row["transaction"]) for row in found] == [("read", None)] * 2
    wrong = scene.compare([*sent, *scene.reads(5, (3, "y"))])
    assert sorted(row["kind"] for row in wrong) == ["altered read", "read"]
    gone = scene.compare([*sent, *scene.reads(5, (1, "b"))])
    assert sorted(row["kind"] for row in gone) == ["misplaced read", "read"]


def test_avro_rows_of_a_snapshot_are_compared_by_decoded_content(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **_AVRO)
    fill_five(scene)
    key, value = Registered(), Registered()
    sent = scene.shipped(converters=(key, value))
    right, wrong = (scene.reads(5, (3, name), converters=(key, value)) for name in "xy")
    scene.form = replace(
        scene.form,
        images=True,
        decode_key=AvroReader(key.schemas),
        decode_value=AvroReader(value.schemas),
    )
    assert [row["kind"] for row in scene.compare([*sent, *right])] == ["read"]
    found = [row["kind"] for row in scene.compare([*sent, *wrong])]
    assert sorted(found) == ["altered read", "read"]


def test_left_out_event_is_reported_and_may_be_redelivered(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **CONFIGURATIONS["counted"])
    uuid = scene.rows(("c", None, (1, "a")), ("c", None, (2, "b")), ("c", None, (3, "c")))
    sent = scene.shipped({uuid: {2}})
    quarantine = tmp_path / "quarantine"
    quarantine.mkdir()
    note = Note(uuid, DATABASE, 0, 1, at_us=0)
    assert note.add(2, "too large")
    file = quarantine / f"{uuid}.json"
    file.write_bytes(note.to_json())
    (told,) = scene.compare(sent)
    assert (told["kind"], told["position"], told["note"]) == ("quarantined", 2, "too large")
    # The note goes when it is sent, late: without a number in its transaction.
    file.unlink()
    alone = Renderer(scene.config, 1_000_000)
    with JournalReader(scene.paths[0]) as reader:
        assert reader.stamp is not None
        journal = alone.journal(reader.header, reader.stamp, reader.database, alone=True)
        (_, second, _) = [journal.messages(change)[0] for change in reader.changes()]
    header = ("__firebird_cdc.late", b'{"reason":"too large"}')
    late = second._replace(headers=[*second.headers, header])
    found = kinds(scene.compare([*sent, late]))
    assert ("loose", 1, 2) in found
    assert {kind for kind, _, _ in found} == {
        "loose",
        "block",
        "altered",
    }  # told apart by `classify`


def test_the_order_is_that_of_a_database_and_partition(tmp_path: Path) -> None:
    options = {
        "transforms": "r",
        "transforms.r.type": "route",
        "transforms.r.regex": ".*[.]T",
        "transforms.r.replacement": "all",
    }
    scene = Scene(tmp_path, **options)
    for number in range(3):
        for database in (DATABASE, "/data/other.fdb"):
            scene.rows(("u", (1, str(number)), (1, str(number + 1))), database=database)
    sent = scene.shipped()
    mixed = [*sent[1::2], *sent[::2]]
    assert scene.compare(mixed) == []
    # Partitions were added: the last event of the row lies in one with a lower number.
    assert scene.compare(sent, lambda each: 0 if each in sent[4:] else 1) == []
    assert kinds(scene.compare([*sent[2:], *sent[:2]])) == [("order", 1, 1), ("order", 2, 1)]


def test_event_that_cannot_be_rendered_is_reported(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **{"kafka.producer.max.request.size": "2000"})
    scene.rows(("c", None, (1, "a" * 1000)))
    (told,) = scene.compare([])
    assert told["kind"] == "quarantined"
    assert "kafka.producer.max.request.size" in told["note"]
    assert (told["table"], told["key"]) == ("T", '{"ID":1}')


Written = Callable[[dict[str, Any]], bytes]

EACH_HEADER = pytest.mark.parametrize(
    "written",
    [
        pytest.param(lambda told: json.dumps(told).encode(), id="version 0.1"),
        pytest.param(SimpleHeaders().told, id="simple"),
        pytest.param(JsonHeaders().told, id="json"),
    ],
)


@EACH_HEADER
def test_repair_stands_for_the_events_it_names(tmp_path: Path, written: Written) -> None:
    scene = Scene(tmp_path)
    fill_five(scene)
    sent = scene.shipped()
    told = {"kind": "original event", "database": DATABASE, "events": [[0, 2, 1]]}
    lost = next(i for i, each in enumerate(sent) if b'"commitSeq":2,' in (each.value or b""))
    again = sent[lost]._replace(
        headers=[*sent[lost].headers, ("__firebird_cdc.repair", written(told))]
    )
    found = kinds(scene.compare([*sent[:lost], *sent[lost + 1 :], again]))
    assert found == [("loose", 2, 1), ("stands", 2, 1)]


@EACH_HEADER
def test_the_state_of_a_repair_stands_for_all_before_it_in_a_compacted_topic(
    tmp_path: Path, written: Written
) -> None:
    """The broker has removed what the state came behind; an event behind the state is lost."""
    scene = Scene(tmp_path)
    for number in range(3):
        scene.rows(("u", (1, str(number)), (1, str(number + 1))))
    sent = scene.shipped()
    topics = frozenset({sent[0].topic})

    def told(sequence: int) -> list[Message]:
        content = {
            "kind": "current state",
            "database": DATABASE,
            "events": [[0, 1, 1]],
            "as_of": [0, sequence],
        }
        header = ("__firebird_cdc.repair", written(content))
        return [sent[0]._replace(headers=[*sent[0].headers, header])]

    assert kinds(scene.compare(told(3), compacted=topics)) == [("stands", 1, 1)]
    found = kinds(scene.compare(told(2), compacted=topics))
    assert found == [("missing", 3, 1), ("stands", 1, 1)]


def test_compacted_topic_has_the_last_message_before_one_that_was_not_sent(tmp_path: Path) -> None:
    """An event in the quarantine has removed nothing, unless it was sent all the same."""
    scene = Scene(tmp_path)
    scene.rows(("c", None, (1, "a")))
    scene.rows(("u", (1, "a"), (1, "b")))
    aside = scene.rows(("d", (1, "b"), None))
    note = Note(aside, DATABASE, 0, 3, 1)
    note.add(1, "too large")
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / f"{aside}.json").write_bytes(note.to_json())
    create, update, delete, tombstone = scene.shipped()
    topics = frozenset({create.topic})
    unsent = [("quarantined", 3, 1)] * 2
    for there in ([create, update], [update]):
        assert kinds(scene.compare(there, compacted=topics)) == unsent
    for there in ([create], []):
        found = kinds(scene.compare(there, compacted=topics))
        assert found == [("missing", 2, 1), *unsent]
    for there in ([delete, tombstone], [tombstone]):
        assert not [
            row for row in scene.compare(there, compacted=topics) if row["kind"] == "missing"
        ]


def test_task_knows_the_owner_of_a_shared_topic(tmp_path: Path) -> None:
    """Whatever journals it gets: the other ones may hold the first event of that table."""
    topics = make_renderer(Scene(tmp_path).rendering).topics
    with pytest.raises(BadName, match=r"table Товары in .* and table Заказы in"):
        topics.of_table(DATABASE, "Товары")
    assert topics.of_table(DATABASE, "Заказы").endswith(".______")
