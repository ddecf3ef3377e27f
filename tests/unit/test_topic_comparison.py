"""Rendered journals laid beside messages, in this process: what the configuration does to events
is no difference, and each fault is one. Spark's part of it is tests/spark/test_audit_kafka.py."""

from __future__ import annotations

import json
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from firebird_cdc.config import load_config
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.journal.avro import avro_schema
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
)
from firebird_cdc.journal.quarantine_note import Note
from firebird_cdc.journal.records import Message
from firebird_cdc.journal.render import Renderer
from firebird_cdc.journal.replay.avro_form import AvroReader
from firebird_cdc.journal.replay.expected import ARROW, Probe, Range, Rendering, Task
from firebird_cdc.journal.replay.laying import COUNTED, Laying
from firebird_cdc.journal.replay.message_form import Form
from firebird_cdc.journal.replay.observed import Reader
from firebird_cdc.journal.replay.planning import JournalOptions, JournalPartition
from firebird_cdc.journal.schema import Schema

DATABASE = "/data/shop.fdb"
Fill = Callable[[JournalWriter], None]
Row = dict[str, Any]
Change = tuple[str, tuple | None, tuple | None]


def _column(name: str, storage: Storage, key: int = 0) -> Column:
    return Column(name, 0, 0, 0, 8, 4, 40, 0, not key, False, key, storage)


T = (_column("ID", Storage.INTEGER, 1), _column("NAME", Storage.TEXT))


class Scene:
    """Journals in a folder, a configuration, and what the shipper makes of both."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        self.paths: list[Path] = []
        self.epochs: list[int] = []
        file = folder / "connector.yaml"
        settings = {
            "connector.name": "x",
            "connector.journal.directory": str(folder / "live"),
            "kafka.topic.prefix": "p",
            "kafka.producer.bootstrap.servers": "localhost:9092",
            **options,
        }
        file.write_text("".join(f"{key}: {json.dumps(text)}\n" for key, text in settings.items()))
        self.config = load_config(file)
        self.form = Form(blocks=self.config.provide_transaction_metadata)

    def journal(self, fill: Fill, database: str = DATABASE, epoch: int = 0) -> UUID:
        """Add a journal with what FILL writes, under the next number of its database."""
        number = len(self.paths) + 1
        self.epochs.append(epoch)
        sequence = self.epochs.count(epoch) if epoch else number
        uuid = UUID(int=number, version=4)
        path = self.folder / f"{uuid}.log"
        with JournalWriter(
            path, uuid=uuid, transaction=100 + number, database=database, user="X", epoch=epoch
        ) as writer:
            fill(writer)
            writer.seal()
            writer.commit(number, 1_700_000_000_000_000 + number)
            writer.stamp(sequence)
        self.paths.append(path)
        return uuid

    def rows(
        self,
        *changes: tuple[str, tuple | None, tuple | None],
        database: str = DATABASE,
        epoch: int = 0,
    ) -> UUID:
        """Add a journal with changes of T: operation, before, after."""

        def fill(writer: JournalWriter) -> None:
            table = writer.table("T", T)
            for op, before, after in changes:
                if op == "c":
                    writer.insert(table, after)
                elif op == "u":
                    writer.update(table, before, after)
                else:
                    writer.delete(table, before)

        return self.journal(fill, database, epoch)

    @property
    def rendering(self) -> Rendering:
        """As for Spark's tasks; it goes there as bytes."""
        made = Rendering(
            self.config,
            max_message_bytes(self.config),
            self.form,
            Range(None, None, None, {}),
            (str(self.folder / "quarantine"),),
            JournalOptions.parse({"path": str(self.folder)}),
        )
        copied: Rendering = pickle.loads(pickle.dumps(made))
        return copied

    def _part(self) -> JournalPartition:
        return JournalPartition.of_journals((0, path.name) for path in self.paths)

    def probe(self) -> None:
        """Find out what depends on the time."""
        batches = Probe(self.rendering)(self._part())
        found = [row["path"] for batch in batches for row in batch.to_pylist()]
        self.form = replace(self.form, volatile=frozenset(tuple(json.loads(p)) for p in found))

    def shipped(
        self, left_out: dict[UUID, set[int]] | None = None, converters: Any = None
    ) -> list[Message]:
        """The messages that the shipper sends, but for events that are LEFT_OUT."""
        renderer = Renderer(self.config, 1_000_000, converters)
        messages: list[Message] = []
        for path in self.paths:
            with JournalReader(path) as reader:
                assert reader.stamp is not None
                journal = renderer.journal(reader.header, reader.stamp, reader.database)
                if reader.stamp.epoch and reader.stamp.sequence == 1:
                    messages += journal.new_epoch()
                for change in reader.changes():
                    if not isinstance(change, RowChange | DdlChange):
                        continue
                    if change.pos in (left_out or {}).get(reader.header.uuid, ()):
                        continue
                    made = journal.messages(change)
                    if journal.awaits_begin:
                        messages += journal.begin()
                    messages += made
                messages += journal.finish()
        return messages

    def compare(
        self,
        messages: list[Message],
        partition_of: Callable[[Message], int] = lambda _: 0,
        compacted: frozenset[str] = frozenset(),
    ) -> list[Row]:
        """Lay the journals beside MESSAGES: the differences."""
        headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        schema = pa.schema(
            [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
             ("key", pa.binary()), ("value", pa.binary()), ("headers", headers)]
        )  # fmt: skip
        rows = [
            {
                "topic": each.topic,
                "partition": partition_of(each),
                "offset": offset,
                "key": each.key,
                "value": each.value,
                "headers": [
                    {"key": name, "value": text.encode() if isinstance(text, str) else text}
                    for name, text in each.headers
                ],
            }
            for offset, each in enumerate(messages)
        ]
        seen = Reader(self.form, "p")([pa.RecordBatch.from_pylist(rows, schema=schema)])
        wanted = Task(self.rendering)(self._part())
        table = pa.Table.from_batches([*wanted, *seen], schema=ARROW)
        order = [(name, "ascending") for name in ("topic", "grp", "side", "a", "b", "c", "d")]
        found = [
            row
            for batch in Laying(compacted)(table.sort_by(order).to_batches(max_chunksize=3))
            for row in batch.to_pylist()
        ]
        return [row for row in found if row["kind"] not in COUNTED]


class _Registered:
    """A converter to Avro whose registry is a dictionary."""

    carries_non_finite = True

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}

    def from_connect(self, _: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        described, prepare = avro_schema(schema)
        text = json.dumps(described)
        known = {held: number for number, held in self.schemas.items()}
        number = known.get(text, 100 + len(known))
        self.schemas[number] = text
        content = BytesIO()
        fastavro.schemaless_writer(content, described, prepare(value) if prepare else value)
        return struct.pack(">BI", 0, number) + content.getvalue()


def _kinds(rows: list[Row]) -> list[tuple[str, int, int]]:
    return sorted((row["kind"], row["sequence"], row["position"]) for row in rows)


def _five(scene: Scene) -> None:
    """A row that goes to and fro, a key that changes, a delete."""
    scene.rows(("c", None, (1, "a")), ("c", None, (2, "x")))
    for before, after in ("ab", "ba", "ab"):
        scene.rows(("u", (1, before), (1, after)))
    scene.rows(("u", (2, "x"), (3, "x")), ("d", (1, "b"), None))


CONFIGURATIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "no schemas": {
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    },
    "masked": {
        "column.mask.hash.SHA-256.with.salt.CzQMA0cB5K": ".*T[.]NAME",
        "message.key.columns": ".*[.]T:NAME",
    },
    "skipped": {"skipped.operations": "d", "tombstones.on.delete": "false"},
    "excluded": {"table.exclude.list": ".*[.]T"},
    "counted": {"provide.transaction.metadata": "true"},
    "unwrapped": {
        "transforms": "u",
        "transforms.u.type": "unwrap",
        "transforms.u.add.fields": "op,ts_ms,source.version,source.sequence,source.pos",
        "transforms.u.add.headers": "ts_ns",
        "transforms.u.delete.tombstone.handling.mode": "rewrite-with-tombstone",
    },
    "bare": {
        "transforms": "u,r",
        "transforms.u.type": "unwrap",
        "transforms.r.type": "route",
        "transforms.r.regex": ".*",
        "transforms.r.replacement": "all",
    },
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_was_shipped_does_not_differ(name: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    _five(scene)
    scene.journal(lambda writer: writer.ddl("create table U (ID integer)"))
    scene.probe()
    assert scene.compare(scene.shipped()) == []


@pytest.mark.parametrize("name", ["plain", "no schemas", "counted", "unwrapped", "bare"])
def test_each_fault_is_one_difference(name: str, tmp_path: Path) -> None:
    """Also where messages don't tell where they are from, and are the same several times."""
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    _five(scene)
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
        assert _kinds(scene.compare(without(index))) == [("missing", sequence, 1)]
    assert _kinds(scene.compare(without(insert))) == [("missing", 1, 1)]
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
    assert _kinds(scene.compare(altered)) == [("altered", 2, 1)]
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
def test_what_an_earlier_version_has_shipped_does_not_differ(name: str, tmp_path: Path) -> None:
    """Also where it announced no epoch, and where this version has gone on after it."""
    scene = Scene(tmp_path, **CONFIGURATIONS[name])
    _five(scene)
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
        assert _kinds(scene.compare([*sent[:at], altered, *sent[at + 1 :]])) == [("altered", 1, 1)]
    # Both, so that the message is consistent with itself.
    both = value.replace(b'"epoch":5,', b'"epoch":4,').replace(rb"[\"5\",", rb"[\"4\",")
    altered = sent[at]._replace(value=both)
    assert _kinds(scene.compare([*sent[:at], altered, *sent[at + 1 :]])) == [("altered", 1, 1)]


def test_an_announcement_that_is_lost_or_doubled_is_told(tmp_path: Path) -> None:
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


def test_avro_is_compared_by_what_it_says(tmp_path: Path) -> None:
    options = {
        f"{part}.converter{name}": text
        for part in ("key", "value")
        for name, text in (("", "avro"), (".schema.registry.url", "http://localhost:1"))
    }
    scene = Scene(tmp_path, **options)
    _five(scene)
    key, value = _Registered(), _Registered()
    sent = scene.shipped(converters=(key, value))
    assert {each.key[0] for each in sent} == {0}
    scene.form = replace(
        scene.form, decode_key=AvroReader(key.schemas), decode_value=AvroReader(value.schemas)
    )
    assert scene.compare(sent) == []
    (at, *_) = [
        index for index, each in enumerate(sent) if each.value and each.value.endswith(b"\0")
    ][3:]
    assert _kinds(scene.compare([*sent[:at], *sent[at + 1 :]])) == [("missing", 3, 1)]
    altered = sent[at]._replace(value=(sent[at].value or b"").replace(b"\2b", b"\2q"))
    assert _kinds(scene.compare([*sent[:at], altered, *sent[at + 1 :]])) == [("altered", 3, 1)]
    foreign = Message(sent[at].topic, b"no", b"avro", [])
    assert [row["kind"] for row in scene.compare([*sent, foreign])] == ["extra"]


def test_what_was_left_out_is_told_and_may_come_late(tmp_path: Path) -> None:
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
    kinds = _kinds(scene.compare([*sent, late]))
    assert ("loose", 1, 2) in kinds
    assert {kind for kind, _, _ in kinds} == {"loose", "block", "altered"}  # judged by `judging`


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
    assert _kinds(scene.compare([*sent[2:], *sent[:2]])) == [("order", 1, 1), ("order", 2, 1)]


def test_an_event_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **{"kafka.producer.max.request.size": "2000"})
    scene.rows(("c", None, (1, "a" * 1000)))
    (told,) = scene.compare([])
    assert told["kind"] == "quarantined"
    assert "kafka.producer.max.request.size" in told["note"]
    assert (told["table"], told["key"]) == ("T", '{"ID":1}')


def test_a_repair_stands_for_what_it_names(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _five(scene)
    sent = scene.shipped()
    told = {"kind": "original event", "database": DATABASE, "events": [[0, 2, 1]]}
    lost = next(i for i, each in enumerate(sent) if b'"commitSeq":2,' in (each.value or b""))
    again = sent[lost]._replace(
        headers=[*sent[lost].headers, ("__firebird_cdc.repair", json.dumps(told).encode())]
    )
    kinds = _kinds(scene.compare([*sent[:lost], *sent[lost + 1 :], again]))
    assert kinds == [("loose", 2, 1), ("stands", 2, 1)]


def test_the_state_of_a_repair_stands_for_all_before_it_in_a_compacted_topic(
    tmp_path: Path,
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
        header = ("__firebird_cdc.repair", json.dumps(content).encode())
        return [sent[0]._replace(headers=[*sent[0].headers, header])]

    assert _kinds(scene.compare(told(3), compacted=topics)) == [("stands", 1, 1)]
    kinds = _kinds(scene.compare(told(2), compacted=topics))
    assert kinds == [("missing", 3, 1), ("stands", 1, 1)]
