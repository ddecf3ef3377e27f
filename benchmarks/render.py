"""Speed of one core at making Kafka messages of a journal: ten-column rows, from file to bytes.

Reads a real file with ``JournalReader`` and renders every change with ``Renderer``, as the
shipper does, JSON without and with schemas, keys included; the process is pinned to one core.
Decoding alone is timed beside it in the same run. Prints a line for each part, and as the last
line one JSON object; its rates are medians over all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from firebird_cdc.config import ConnectorConfig, load_config
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.registry import SchemaRegistry, fetch_registry
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
    Value,
)

ROWS = 100_000
TINY_ROWS = 2_000
UTF8 = 4


def _column(name: str, storage: Storage, **more: int) -> Column:
    return Column(
        name=name,
        sql_type=0,
        sub_type=more.get("sub_type", 0),
        scale=more.get("scale", 0),
        length=8,
        charset_id=UTF8,
        char_length=40,
        precision=more.get("precision", 0),
        nullable=name != "ID",
        identity=False,
        key_position=int(name == "ID"),
        storage=storage,
    )


COLUMNS = [
    _column("ID", Storage.BIGINT),
    _column("CUSTOMER", Storage.INTEGER),
    _column("AMOUNT", Storage.BIGINT, scale=-2, sub_type=1, precision=12),
    _column("NAME", Storage.TEXT),
    _column("CITY", Storage.TEXT),
    _column("NOTE", Storage.TEXT),
    _column("ORDERED", Storage.TIMESTAMP),
    _column("DELIVERED", Storage.DATE),
    _column("PAID", Storage.BOOLEAN),
    _column("WEIGHT", Storage.DOUBLE),
]
CITIES = ("Москва", "Berlin", "São Paulo", "Novosibirsk", "Санкт-Петербург")


def _row(number: int) -> list[Value]:
    return [
        number,
        number % 5000,
        number * 199,
        f"customer number {number}",
        CITIES[number % len(CITIES)],
        None if number % 4 == 0 else 'deliver to the "back door"',
        52_000_000_000_000 + number * 7919,
        60_000 + number % 1000,
        number % 3 == 0,
        number * 0.25,
    ]


def _write(path: Path, kind: str, rows: int) -> None:
    """Write a committed journal of ROWS inserts or updates."""
    with JournalWriter(path, transaction=1, database="/bench.fdb", user="SYSDBA") as writer:
        table = writer.table("ORDERS", COLUMNS)
        for number in range(rows):
            row = _row(number)
            if kind == "updates":
                writer.update(table, row, [*row[:8], True, row[9]])
            else:
                writer.insert(table, row)
        writer.seal()
        writer.commit(1, 1_772_442_848_250_000)
        writer.stamp(1)


def _config(folder: Path, name: str, *lines: str) -> ConnectorConfig:
    path = folder / f"{name}.yaml"
    required = (
        "connector.name: bench",
        f"connector.journal.directory: {folder}",
        "kafka.producer.bootstrap.servers: localhost:9092",
        "kafka.topic.prefix: bench",
    )
    path.write_text("\n".join((*required, *lines)) + "\n", "utf-8")
    return load_config(path)


def _decode(path: Path, rows: int) -> tuple[float, int]:
    """Read the journal alone; returns the rate, and 0 for the bytes of messages."""
    started = time.perf_counter()
    with JournalReader(path) as reader:
        seen = sum(1 for _ in reader.changes())
    seconds = time.perf_counter() - started
    if seen != rows:
        raise SystemExit(f"{path}: {seen} changes, not {rows}")
    return rows / seconds, 0


def _render(path: Path, rows: int, renderer: Renderer) -> tuple[float, int]:
    """Render the journal; returns events per second and the bytes of an event's messages."""
    written = events = 0
    started = time.perf_counter()
    with JournalReader(path) as reader:
        assert reader.stamp is not None
        journal = renderer.journal(reader.header, reader.stamp, reader.database)
        for change in reader.changes():
            if type(change) is RowChange:
                for message in journal.messages(change):
                    assert message.key is not None
                    assert message.value is not None
                    written += len(message.key) + len(message.value)
                    events += 1
    seconds = time.perf_counter() - started
    if events != rows:
        raise SystemExit(f"{path}: {events} messages, not {rows}")
    return rows / seconds, written // rows


def _avro_lines(folder: Path, stack: ExitStack) -> list[str]:
    """Options for Avro, with a schema registry that runs until STACK ends."""
    registry = SchemaRegistry(folder / "registry", fetch_registry(cache_directory()))
    url = stack.enter_context(registry).url
    lines = []
    for part in ("key", "value"):
        lines += [f"{part}.converter: avro", f"{part}.converter.schema.registry.url: {url}"]
    return lines


def main() -> None:
    """Write the journals, render them in turn, and print the figures."""
    parser = argparse.ArgumentParser(description="Render journals as messages, on one core.")
    parser.add_argument("--quick", action="store_true", help="7 runs of each part, not 25")
    parser.add_argument("--tiny", action="store_true", help="few rows: tells whether it works")
    parser.add_argument("--avro", action="store_true", help="Avro too, with a registry made for it")
    arguments = parser.parse_args()
    runs = 1 if arguments.tiny else 7 if arguments.quick else 25
    rows = TINY_ROWS if arguments.tiny else ROWS
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for kind in ("inserts", "updates"):
            _write(folder / kind, kind, rows)
        plain = ("key.converter.schemas.enable: false", "value.converter.schemas.enable: false")
        json_only = Renderer(_config(folder, "json", *plain), 1_000_000)
        schemas = Renderer(_config(folder, "schema"), 1_000_000)
        parts = {
            "decode": lambda: _decode(folder / "inserts", rows),
            "json": lambda: _render(folder / "inserts", rows, json_only),
            "json_schema": lambda: _render(folder / "inserts", rows, schemas),
            "json_updates": lambda: _render(folder / "updates", rows, json_only),
            "json_schema_updates": lambda: _render(folder / "updates", rows, schemas),
        }
        if arguments.avro:
            avro = Renderer(_config(folder, "avro", *_avro_lines(folder, stack)), 1_000_000)
            parts["avro"] = lambda: _render(folder / "inserts", rows, avro)
            parts["avro_updates"] = lambda: _render(folder / "updates", rows, avro)
        rates: dict[str, list[float]] = {part: [] for part in parts}
        sizes = {}
        for _ in range(runs):
            for part, run in parts.items():
                rate, sizes[part] = run()
                rates[part].append(rate)
    for part, seen in rates.items():
        print(
            f"{part:20} {statistics.median(seen):10,.0f} events/s (from {min(seen):,.0f} to"
            f" {max(seen):,.0f} in {runs} runs of {rows:,}), {sizes[part]} bytes each"
        )
    result = {
        f"{part}_events_per_s": round(statistics.median(seen)) for part, seen in rates.items()
    }
    print(json.dumps({**result, "events": rows * runs, "runs": runs}))


if __name__ == "__main__":
    main()
