"""Snapshots that several processes read: the rows are those of one moment, whoever dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from capture import until
from snapshot_scene import DELIVERIES, SnapshotScene
from soaked import few_of, in_turn

from firebird_cdc.journal.shipper.snapshots.state import Kind, Status

sys.path.insert(1, str(Path(__file__).parents[1] / "faults"))
sys.path.insert(1, str(Path(__file__).parents[1] / "delivery"))

from snapshot_steps import readers_of

pytestmark = [pytest.mark.engine, pytest.mark.kafka]

_READERS = 3
_MORE = " || LPAD('', 8000, 'm')"


def _begin(scene: SnapshotScene, **options: str) -> None:
    """Start a shipper whose snapshots several read, beside a writer."""
    scene.configure(snapshot_max_threads=str(_READERS), **{"snapshot_fetch_size": "100", **options})
    scene.start()
    scene.write()
    scene.await_meeting()


def _readers(scene: SnapshotScene) -> list[int]:
    assert scene.shipper is not None
    pid = scene.shipper.pid

    def found() -> list[int]:
        readers = readers_of(pid)
        return sorted(readers) if len(readers) == _READERS else []

    return until(f"{_READERS} readers", found, 60)


def _rows(scene: SnapshotScene) -> int:
    state = scene.state
    return 0 if state is None else sum(each.rows for each in (*state.waiting, *state.past))


@pytest.mark.parametrize("delivery", few_of(DELIVERIES, ["transactional"]), indirect=True)
def test_rows_that_several_read_are_those_of_one_moment(scene: SnapshotScene) -> None:
    scene.hold_readers(0)
    _begin(scene)
    before = scene.written
    until("changes", lambda: scene.written > before + 20)
    scene.snapshot("execute", "--blocking", f"{scene.database}[.].*")
    _readers(scene)
    scene.let_read()
    (ended,) = scene.ended()
    scene.rest()
    topics = scene.check()
    assert (ended.kind, ended.status) == (Kind.BLOCKING, Status.COMPLETED)
    rows = {table.name: table.rows for table in ended.tables or ()}
    assert rows["ITEM"] > scene.rows / 2
    if ended.windows == 1:
        assert rows == {table: topic.ops["r"] for table, topic in topics.items()}
        marks = sum((topic.marks for topic in topics.values()), start=type(topics["ITEM"].marks)())
        assert marks["first"] == marks["last"] == 1
        in_order = ("ITEM", "KEYLESS", "NOTHING", "PAIR")
        reads = [place for table in in_order for place in topics[table].reads]
        assert len({window for window, _ in reads}) == 1
        assert [pos for _, pos in reads] == list(range(1, len(reads) + 1))
        assert marks["first_in_data_collection"] == marks["last_in_data_collection"] == 2
    scene.stop()


@in_turn("victim", {"holder": 0, "joiner": 1})
@in_turn("delivery", DELIVERIES, indirect=True)
def test_kill_of_one_of_several_readers_costs_no_row(scene: SnapshotScene, victim: int) -> None:
    scene.hold_readers()
    _begin(scene, snapshot_fetch_size="10")
    scene.snapshot("execute", "--blocking", f"{scene.database}[.].*")
    until("rows", lambda: _rows(scene) > 0, 60)
    os.kill(_readers(scene)[victim], signal.SIGKILL)
    scene.let_read()
    (ended,) = scene.ended()
    scene.rest()
    scene.check()
    assert ended.status is Status.COMPLETED
    assert ended.windows > 1
    assert "the reader process has ended" in scene.capture.log.read_text("utf-8")
    scene.stop()


@pytest.mark.parametrize("delivery", ["plain"], indirect=True)
def test_several_readers_keep_to_conditions_and_selects_of_the_user(scene: SnapshotScene) -> None:
    table = f"{scene.database}.PAIR"
    scene.configure(
        snapshot_mode="initial",
        snapshot_max_threads=str(_READERS),
        snapshot_fetch_size="50",
        snapshot_select_statement_overrides=table,
    )
    with scene.capture.config.open("a") as file:
        file.write(
            f"snapshot.select.statement.overrides.{table}:"
            " SELECT * FROM PAIR WHERE MOD(A, 8) = 1 ORDER BY C DESC\n"
        )
    scene.attachment.execute("UPDATE ITEM SET NAME = 'first' WHERE ID = 1")
    scene.attachment.commit()
    scene.start()
    (first,) = scene.ended()
    rows = {table.name: table.rows for table in first.tables or ()}
    assert rows == {
        "ITEM": scene.rows,
        "KEYLESS": scene.rows // 4,
        "NOTHING": 0,
        "PAIR": scene.rows // 8,
    }
    scene.snapshot("execute", "--blocking", f"{scene.database}.ITEM", "--where", "MOD(ID, 10) = 3")
    _, second = scene.ended(2)
    assert second.rows == scene.rows // 10
    topics = scene.check("ITEM")
    assert topics["ITEM"].ops["r"] == scene.rows + scene.rows // 10
    assert all(topic.twice == 0 for topic in topics.values())
    scene.stop()


@pytest.mark.parametrize("delivery", ["plain"], indirect=True)
def test_rows_that_are_long_are_sent_in_pieces_by_several_readers(scene: SnapshotScene) -> None:
    scene.attachment.script(
        "ALTER DATABASE DISABLE PUBLICATION",
        "UPDATE ITEM SET NOTE = CAST(LPAD('', 8000, 'n') AS BLOB SUB_TYPE TEXT)"
        f"{_MORE * 3} WHERE MOD(ID, 3) = 0",  # 32,000 characters
        "ALTER DATABASE ENABLE PUBLICATION",
    )
    _begin(scene, snapshot_fetch_size="1000")
    scene.snapshot("execute", "--blocking", f"{scene.database}.ITEM")
    (ended,) = scene.ended()
    scene.rest()
    topics = scene.check("ITEM")
    if ended.windows == 1:
        assert [pos for _, pos in topics["ITEM"].reads] == list(range(1, ended.rows + 1))
    scene.stop()
