"""Every type in keys and values, under every mode, through a registry, read as Avro by others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from avro_reader import AvroReader
from events import check
from kinds import KINDS, Kind, Modes
from pipeline import PREFIX, Sent, render, renderer
from reader import ConnectReader
from test_connect import MODES
from work import Column, Table, Work

from firebird_cdc.journal.events.avro import AvroConverter
from firebird_cdc.journal.events.names import adjust_schema_name
from firebird_cdc.journal.events.topic_encoding import REPLACE, path_part

if TYPE_CHECKING:
    from firebird_cdc.demo.registry import SchemaRegistry

pytestmark = [pytest.mark.engine, pytest.mark.registry]


class Readback:
    """Messages sent as Avro, as Connect's JSON of what Apicurio's converter has read."""

    def __init__(self, reader: AvroReader, registry: SchemaRegistry, work: Work) -> None:
        self._reader = reader
        self._registry = registry
        self._work = work

    def of(self, directory: Path, modes: Modes, tables: Sequence[Table], *more: str) -> list[Sent]:
        """The messages of all changes until now, under MODES and MORE options.

        Schemas have the names that they have in JSON.
        """
        lines = [
            *modes.lines(),
            *more,
            "key.converter: avro",
            f"key.converter.schema.registry.url: {self._registry.url}",
            "value.converter: io.confluent.connect.avro.AvroConverter",
            f"value.converter.schema.registry.url: {self._registry.url}",
        ]
        names = {}
        for table in tables:
            stem = f"{PREFIX}.{path_part(self._work.database, REPLACE)}.{table.name}"
            for part in ("Key", "Value", "Envelope"):
                names[adjust_schema_name(f"{stem}.{part}", "avro")] = f"{stem}.{part}"
        made = renderer(directory, lines)
        sent = render(made, self._work.journals())
        for converter in (made.writer.key_converter, made.writer.value_converter):
            assert isinstance(converter, AvroConverter)
            converter.close()
        return [
            message._replace(
                key=self._read(message.topic, message.key, names),
                value=self._read(message.topic, message.value, names),
                headers=message.headers
                | {
                    name: json.dumps(_renamed(json.loads(content), names)).encode()
                    for name, content in message.structs.items()
                },
            )
            for message in sent
        ]

    def _read(self, topic: str, content: bytes | None, names: Mapping[str, str]) -> bytes | None:
        if content is None:
            return None
        assert content[:1] == b"\0"  # the mark of Confluent's wire format
        connect = self._reader.read(self._registry.address, topic, content)
        return json.dumps(_renamed(connect, names)).encode()


def _renamed(connect: Any, names: Mapping[str, str]) -> Any:
    """Give the schemas of a message the names that they have where Avro doesn't forbid them."""
    if isinstance(connect, dict):
        return {
            key: names.get(item, item)
            if key == "name" and isinstance(item, str)
            else _renamed(item, names)
            for key, item in connect.items()
        }
    return [_renamed(item, names) for item in connect] if isinstance(connect, list) else connect


@pytest.fixture
def readback(avro_reader: AvroReader, registry: SchemaRegistry, work: Work) -> Readback:
    return Readback(avro_reader, registry, work)


def _extremes(kinds: Sequence[Kind], number: int) -> list[Any]:
    return [kind.extremes[number % len(kind.extremes)] for kind in kinds]


def test_values_of_every_type_arrive_under_every_mode(
    work: Work, connect: ConnectReader, readback: Readback, tmp_path: Path
) -> None:
    table = Table("AVRO_TYPES", tuple(Column(f"C{n}", kind) for n, kind in enumerate(KINDS)))
    work.create(table)
    for number in range(max(len(kind.extremes) for kind in KINDS)):
        assert work.insert(table, _extremes(KINDS, number))
    work.commit()
    first, *_ = work.rows(table)
    assert work.update(table, first, dict.fromkeys(range(len(KINDS))))
    work.delete(table, first)
    work.commit()
    for modes in MODES:
        messages = readback.of(tmp_path, modes, [table])
        check(connect, work.database, modes, work.committed, messages)


def test_keys_of_every_type_arrive_under_every_mode(
    work: Work, connect: ConnectReader, readback: Readback, tmp_path: Path
) -> None:
    kinds = tuple(kind for kind in KINDS if kind.in_keys)
    size = 6  # an index has no room for more
    tables = []
    for start in range(0, len(kinds), size):
        part = kinds[start : start + size]
        columns = tuple(Column(f"C{n}", kind, nullable=False) for n, kind in enumerate(part))
        table = Table(f"AVRO_KEY_{start}", columns, tuple(range(len(part))))
        tables.append(table)
        work.create(table)
        assert work.insert(table, _extremes(part, 0))
        [row] = work.rows(table)
        for place, kind in enumerate(part):
            assert work.update(table, row, {place: kind.extremes[-1]})
        work.delete(table, row)
        work.commit()
    for modes in MODES:
        messages = readback.of(tmp_path, modes, tables)
        assert len(messages) > 3 * len(kinds)
        check(connect, work.database, modes, work.committed, messages)


def test_avro_messages_of_every_kind_equal_their_json_form(
    work: Work, orders: Table, readback: Readback, tmp_path: Path
) -> None:
    """Those of transactions too, and the headers that hold keys."""
    lines = ("provide.transaction.metadata: true", "transaction.metadata.factory: ordered")
    read = readback.of(tmp_path, Modes(), [orders], *lines)
    in_json = render(renderer(tmp_path, lines), work.journals())
    assert len(read) == len(in_json) >= 15
    for avro, plain in zip(read, in_json, strict=True):
        assert avro.topic == plain.topic
        assert _content(avro.key) == _content(plain.key)
        assert _content(avro.value) == _content(plain.value)
        assert {name: _content(it) for name, it in avro.structs.items()} == {
            name: _content(it) for name, it in plain.structs.items()
        }


def _content(message: bytes | None) -> Any:
    """Return the content of a message without the times at which it was made."""
    if message is None:
        return None
    content = json.loads(message)
    if "op" in content["payload"]:
        for name in ("ts_ms", "ts_us", "ts_ns"):
            del content["payload"][name]
    return content
