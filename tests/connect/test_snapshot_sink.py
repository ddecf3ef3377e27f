"""An initial snapshot under load, through Debezium's JDBC sink into PostgreSQL."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from capture import until
from into_postgres import sink_options
from postgres import Postgres
from worker import Worker

sys.path.insert(1, str(Path(__file__).parents[1] / "snapshots"))

from snapshot_scene import SnapshotScene

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import Stack

pytestmark = [pytest.mark.engine, pytest.mark.kafka]

_PATIENCE_S = 60.0
_TABLES = {"ITEM": ("ID", "NAME"), "PAIR": ("A", "B", "C")}


def _shown(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name.lower()] for name in columns) for row in rows)


def test_initial_snapshot_under_load_fills_postgresql(
    tmp_path: Path,
    stack: Stack,
    broker: KafkaBroker,
    topic_prefix: str,
    worker: Worker,
    postgres: Postgres,
) -> None:
    scene = SnapshotScene(tmp_path, stack, broker, topic_prefix, is_transactional=True)
    try:
        scene.configure(
            snapshot_mode="initial",
            key_converter_schemas_enable="true",
            value_converter_schemas_enable="true",
        )
        scene.write()
        until("some changes", lambda: scene.written > 20, _PATIENCE_S)
        scene.start()
        (ended,) = scene.ended()
        written = scene.written
        until("changes behind the snapshot", lambda: scene.written > written + 30, _PATIENCE_S)
        scene.rest()
        until("all journals to be shipped", scene.shipped, _PATIENCE_S)
        topics = [f"{topic_prefix}.{scene.database.replace('/', '_')}.{name}" for name in _TABLES]
        postgres.create_database(topic_prefix)
        options = {**sink_options(postgres, topic_prefix), "topics": ",".join(topics)}
        worker.create(topic_prefix, options)
        worker.await_caught_up(topic_prefix, topics)
        assert sum(table.rows for table in ended.tables or ()) > scene.rows
        for table, columns in _TABLES.items():
            wanted = scene.attachment.execute(f"SELECT {', '.join(columns)} FROM {table}")
            scene.attachment.commit()
            there = _shown(postgres.rows(topic_prefix, table.lower()), columns)
            here = Counter(tuple(row[name] for name in columns) for row in wanted)
            assert there == here, f"{table}: {(there - here).total()} stale rows"
        scene.stop()
    finally:
        worker.delete(topic_prefix)
        scene.end()
