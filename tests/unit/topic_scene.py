"""Journals in a folder, messages made of them, and both laid beside each other in this process."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import fastavro
import pyarrow as pa

from firebird_cdc import __version__
from firebird_cdc.config import load_config
from firebird_cdc.config.producer import max_message_bytes
from firebird_cdc.journal.events import source
from firebird_cdc.journal.events.avro import avro_schema
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.snapshot_rows import SnapshotFacts, SnapshotRenderer
from firebird_cdc.journal.events.versions import form_of
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
)
from firebird_cdc.journal.replay.audit.kafka.message_form import Form
from firebird_cdc.journal.replay.audit.kafka.rendered import ARROW, Probe, Range, Rendering, Task
from firebird_cdc.journal.replay.audit.kafka.topic_diff import COUNTED, TopicDiff
from firebird_cdc.journal.replay.audit.kafka.topic_reader import Reader
from firebird_cdc.journal.replay.source.planning import JournalOptions, JournalPartition

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
            max_message_bytes(self.config.producer),
            self.form,
            Range(None, None, None, {}),
            (str(self.folder / "quarantine"),),
            JournalOptions.parse({"path": str(self.folder)}),
            ((DATABASE, "Заказы"),),
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
        self,
        left_out: dict[UUID, set[int]] | None = None,
        converters: Any = None,
        version: str = __version__,
    ) -> list[Message]:
        """The messages that the shipper of VERSION sends, but for events that are LEFT_OUT."""
        with mock.patch.object(source, "__version__", version):
            return self._shipped(
                left_out or {},
                Renderer(self.config, 1_000_000, converters, message_form=form_of(version)),
            )

    def _shipped(self, left_out: dict[UUID, set[int]], renderer: Renderer) -> list[Message]:
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
                    if change.pos in left_out.get(reader.header.uuid, ()):
                        continue
                    made = journal.messages(change)
                    if journal.awaits_begin:
                        messages += journal.begin()
                    messages += made
                messages += journal.finish()
        return messages

    def reads(self, cut: int, *rows: tuple, converters: Any = None) -> list[Message]:
        """The messages of ROWS of T that a snapshot reads behind journal CUT."""
        with JournalReader(self.paths[0]) as reader:
            table = next(each.table for each in reader.changes() if isinstance(each, RowChange))
        facts = SnapshotFacts(UUID(int=99, version=4), 7, 0, cut, 1_700_000_100_000_000)
        renderer = SnapshotRenderer(Renderer(self.config, 1_000_000, converters), DATABASE, facts)
        return [
            message
            for pos, row in enumerate(rows, 1)
            for message in renderer.messages(table, row, pos, "incremental")
        ]

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
            for batch in TopicDiff(compacted)(table.sort_by(order).to_batches(max_chunksize=3))
            for row in batch.to_pylist()
        ]
        return [row for row in found if row["kind"] not in COUNTED]


class Registered:
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


def kinds(rows: list[Row]) -> list[tuple[str, int, int]]:
    return sorted((row["kind"], row["sequence"], row["position"]) for row in rows)


def fill_five(scene: Scene) -> None:
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
    "no updates": {"skipped.operations": "u"},
    "no creates": {"skipped.operations": "c", "provide.transaction.metadata": "true"},
    "excluded": {"table.exclude.list": ".*[.]T"},
    "counted": {"provide.transaction.metadata": "true"},
    "unwrapped": {
        "transforms": "u",
        "transforms.u.type": "unwrap",
        "transforms.u.add.fields": "op,ts_ms,source.version,source.sequence,source.pos",
        "transforms.u.add.headers": "ts_ns",
        "transforms.u.delete.tombstone.handling.mode": "rewrite-with-tombstone",
    },
    "headers with types": {"header.converter": "json"},
    "unwrapped, with headers": {
        "header.converter": "json",
        "transforms": "u",
        "transforms.u.type": "unwrap",
        "transforms.u.add.headers": "op,source.pos,transaction",
    },
    "bare": {
        "transforms": "u,r",
        "transforms.u.type": "unwrap",
        "transforms.r.type": "route",
        "transforms.r.regex": ".*",
        "transforms.r.replacement": "all",
    },
}
