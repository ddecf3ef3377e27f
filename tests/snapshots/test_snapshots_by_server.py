"""Snapshots of a database that one process has for itself, which reads it for the shipper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from snapshot_scene import SnapshotScene

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import Stack
from firebird_cdc.journal.shipper.snapshots.state import Kind, Status

pytestmark = [pytest.mark.engine, pytest.mark.kafka]


@pytest.fixture
def alone(
    tmp_path: Path, stack: Stack, broker: KafkaBroker, topic_prefix: str
) -> Iterator[SnapshotScene]:
    """A database that nobody else can open (Super)."""
    made = SnapshotScene(tmp_path, stack, broker, topic_prefix, True, mode="Super")
    yield made
    made.end()


def test_all_kinds_of_snapshots_complete_beside_a_writer(alone: SnapshotScene) -> None:
    alone.configure(snapshot_mode="initial", snapshot_max_threads="2")
    alone.start()
    alone.write()
    alone.ended(1)
    alone.snapshot("execute", "--follow", f"{alone.database}.ITEM")
    alone.snapshot("execute", "--follow", "--blocking", f"{alone.database}.(PAIR|KEYLESS)")
    alone.rest()
    alone.check()
    ended = alone.ended(3)
    assert [each.kind for each in ended] == [Kind.INITIAL, Kind.INCREMENTAL, Kind.BLOCKING]
    tables = [table for each in ended for table in each.tables or ()]
    assert len(tables) == 4 + 1 + 2
    assert {table.status for table in tables} == {Status.COMPLETED}
    alone.stop()


@pytest.mark.soak  # tests/engine/test_reading_inside.py has the same texts refused and taken
def test_conditions_and_selects_of_users_are_taken_or_refused_by_what_they_do(
    alone: SnapshotScene,
) -> None:
    alone.start()
    alone.write()
    alone.await_meeting()
    incremental = {
        "GEN_ID(RDB$PROCEDURES, 0) = A": False,
        "MISSING = 1": False,
        "A = 1) FOR UPDATE --": False,
        "A < 100 /* few */ OR A = (SELECT MAX(A) FROM PAIR)": True,
    }
    blocking = {
        "SELECT * FROM PAIR FOR UPDATE": False,
        "WITH P AS (SELECT * FROM PAIR) SELECT * FROM P WHERE A < 50": True,
    }
    for where in incremental:
        alone.snapshot("execute", "--where", where, f"{alone.database}.PAIR")
    for select in blocking:
        alone.snapshot("execute", "--blocking", "--where", select, f"{alone.database}.PAIR")
    ended = alone.ended(len(incremental) + len(blocking))
    alone.rest()
    of = {table.condition: table for each in ended for table in each.tables or ()}
    taken = {where: table.status is Status.COMPLETED for where, table in of.items()}
    assert taken == {**incremental, **blocking}
    rows = [table.rows for table in of.values() if table.status is Status.COMPLETED]
    assert max(rows) > min(rows) > 0
    for topic in alone.topics().values():
        assert topic.backward == 0
    alone.stop()
