"""Journals with all that versions write differently, and what a version made of them.

``python tests/unit/earlier_messages.py`` with an earlier version on PYTHONPATH wrote
``data/messages-<version>.json``; it takes nothing but what that version had, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

from firebird_cdc import __version__
from firebird_cdc.config import load_config
from firebird_cdc.journal.events import render, schema_changes, table_shape
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
)

DATABASE = "/data/shop.fdb"
PREFIX = "p"


def _decimal(name: str, storage: Storage, precision: int, key: int = 0) -> Column:
    return Column(name, 0, 1, -2, 8, 0, 0, precision, not key, False, key, storage)


PRICES = (
    _decimal("ID", Storage.INTEGER, 9, key=1),
    _decimal("N4", Storage.SMALLINT, 4),
    _decimal("N18", Storage.BIGINT, 18),
    _decimal("N38", Storage.INT128, 38),
    Column("AT", 0, 0, -2, 8, 0, 0, 15, True, False, 0, Storage.DOUBLE),
)
NAMES = (
    Column("ID", 496, 0, 0, 4, 0, 0, 0, False, False, 1, Storage.INTEGER),
    Column("NAME", 448, 0, 0, 40, 4, 40, 0, True, False, 0, Storage.TEXT),
)
_WIDE = (1, 32767, -(2**63), 2**127 - 1, 12.34)
_OTHER = (2, -32768, 2**63 - 1, -5, None)

OPTIONS: dict[str, dict[str, str]] = {
    "plain": {"include.schema.changes": "true"},
    "bare": {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"},
    "told": {"column.propagate.source.type": ".*", "decimal.handling.mode": "string"},
    "counted": {"provide.transaction.metadata": "true", "extended.headers.enabled": "false"},
    "flat": {
        "transforms": "u",
        "transforms.u.type": "io.debezium.transforms.ExtractNewRecordState",
    },
}
"""Configurations by name: what the converters write, and what stands in headers."""


def write_journals(folder: Path) -> list[Path]:
    """Write the journals into FOLDER: two, the second of which begins an epoch."""
    paths = []
    for number, epoch in ((1, 0), (2, 1)):
        uuid = UUID(int=number, version=4)
        path = folder / f"{uuid}.log"
        with JournalWriter(
            path, uuid=uuid, transaction=100 + number, database=DATABASE, user="X", epoch=epoch
        ) as writer:
            prices, names = writer.table("PRICES", PRICES), writer.table("NAMES", NAMES)
            writer.insert(prices, _WIDE)
            writer.update(prices, _WIDE, _OTHER)  # of the key, too
            writer.delete(prices, _OTHER)
            writer.insert(names, (7, "Łódź"))
            writer.update(names, (7, "Łódź"), (7, None))
            writer.update(names, (7, None), (8, "x"))
            writer.ddl("alter table PRICES add X integer")
            writer.seal()
            writer.commit(number, 1_700_000_000_000_000 + number)
            writer.stamp(1)
        paths.append(path)
    return paths


def configuration(folder: Path, options: dict[str, str]) -> Any:
    """Return the configuration with OPTIONS; its file lies in FOLDER."""
    settings = {
        "connector.name": "x",
        "connector.journal.directory": str(folder / "live"),
        "kafka.topic.prefix": PREFIX,
        "kafka.producer.bootstrap.servers": "localhost:9092",
        **options,
    }
    file = folder / "connector.yaml"
    file.write_text("".join(f"{key}: {json.dumps(text)}\n" for key, text in settings.items()))
    return load_config(file)


def messages_of(renderer: Renderer, paths: list[Path]) -> list[Any]:
    """Return what RENDERER makes of journals, at one time."""
    messages: list[Any] = []
    with (
        mock.patch.object(render, "time_ns", lambda: 1_800_000_000_000_000_000),
        mock.patch.object(table_shape, "time_ns", lambda: 1_800_000_000_000_000_000),
        mock.patch.object(schema_changes, "time_ns", lambda: 1_800_000_000_000_000_000),
    ):
        for path in paths:
            with JournalReader(path) as reader:
                assert reader.stamp is not None
                journal = renderer.journal(reader.header, reader.stamp, reader.database)
                if reader.stamp.epoch:
                    messages += journal.new_epoch()
                for change in reader.changes():
                    if isinstance(change, RowChange | DdlChange):
                        made = journal.messages(change)
                        if journal.awaits_begin:
                            messages += journal.begin()
                        messages += made
                messages += journal.finish()
    return messages


def told(messages: list[Any], schemas: list[str]) -> list[Any]:
    """Return MESSAGES as JSON holds them: schemas by their numbers in SCHEMAS, which grows."""

    def text(raw: bytes | str | None) -> Any:
        content = raw.decode() if isinstance(raw, bytes) else raw
        if content is None or not content.startswith('{"schema"'):
            return content
        head, mark, payload = content.partition(',"payload":')
        if head not in schemas:
            schemas.append(head)
        return [schemas.index(head), mark + payload]

    return [
        [topic, text(key), text(value), [[name, text(content)] for name, content in headers]]
        for topic, key, value, headers in messages
    ]


def main() -> None:
    """Write what this version makes of the journals."""
    found: dict[str, Any] = {}
    schemas: list[str] = []
    for name, options in OPTIONS.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            renderer = Renderer(configuration(folder, options), 1_000_000)
            found[name] = told(messages_of(renderer, write_journals(folder)), schemas)
    written = {"version": __version__, "schemas": schemas, "messages": found}
    json.dump(written, sys.stdout, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()
