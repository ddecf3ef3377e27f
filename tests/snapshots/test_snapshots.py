"""Snapshots beside writers: what consumers have is the database, row by row."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable
from threading import Thread

import pytest
from capture import until
from documented import ROOT, command_lines
from snapshot_scene import DELIVERIES, SnapshotScene
from soaked import few_of, in_turn

from firebird_cdc.journal.shipper.snapshots.state import Kind, Status

pytestmark = [pytest.mark.engine, pytest.mark.kafka]

_ALL = "{}[.].*"
_SLOW_S = 0.05  # for a part, of which a snapshot has more than a thousand then


def _begin(scene: SnapshotScene) -> None:
    scene.start()
    scene.write()
    scene.await_meeting()


@in_turn("delivery", DELIVERIES, indirect=True)
def test_incremental_snapshot_beside_writers_gives_each_row_once(scene: SnapshotScene) -> None:
    scene.hold_readers()
    _begin(scene)
    releaser = Thread(target=_let_read_behind_changes, args=(scene,))
    releaser.start()
    scene.snapshot("execute", "--follow", _ALL.format(scene.database))
    releaser.join()
    scene.rest()
    topics = scene.check()
    (ended,) = scene.ended()
    assert (ended.kind, ended.status) == (Kind.INCREMENTAL, Status.COMPLETED)
    assert ended.windows > 1
    for topic in topics.values():
        assert topic.twice == 0
        assert set(topic.marks) <= {"false", "incremental"}
    rows = {table.name: table.rows for table in ended.tables or ()}
    assert rows == {table: topic.ops["r"] for table, topic in topics.items()}
    assert rows["NOTHING"] == 0
    scene.stop()


def _let_read_behind_changes(scene: SnapshotScene) -> None:
    """Have the snapshot go on once there were changes behind its first rows: it makes room for
    these, and a writer that waits for the disk may have made none."""
    until("rows", lambda: _rows(scene) > 0, 60)
    _until_written(scene, scene.written + 30)
    scene.let_read()


@pytest.mark.parametrize("delivery", few_of(DELIVERIES, ["plain"]), indirect=True)
def test_blocking_snapshot_reads_all_tables_at_one_moment(scene: SnapshotScene) -> None:
    scene.attachment.script("CREATE TABLE ZERO (ID INTEGER)")  # the last one, without a row
    _begin(scene)
    scene.snapshot("execute", "--blocking", "--follow", _ALL.format(scene.database))
    scene.rest()
    topics = scene.check()
    (ended,) = scene.ended()
    assert (ended.kind, ended.status) == (Kind.BLOCKING, Status.COMPLETED)
    # A window in which a transaction was just ending is found to be of no use, and sends nothing.
    assert len({window for topic in topics.values() for window, _ in topic.reads}) == 1
    marks: Counter[str] = Counter()
    for topic in topics.values():
        marks += topic.marks
    rows = sum(topic.ops["r"] for topic in topics.values())
    assert marks["first"] == marks["last"] == 1
    assert marks["first_in_data_collection"] == marks["last_in_data_collection"] == 2
    assert marks["true"] == rows - 6
    scene.stop()


@in_turn("delivery", DELIVERIES, indirect=True)
def test_initial_snapshot_comes_first_and_leaves_nothing_twice(scene: SnapshotScene) -> None:
    scene.configure(snapshot_mode="initial")
    scene.write()
    _until_written(scene, 30)
    scene.start()
    (ended,) = scene.ended()
    _until_written(scene, scene.written + 30)
    scene.rest()
    topics = scene.check()
    assert (ended.kind, ended.status) == (Kind.INITIAL, Status.COMPLETED)
    wanted = scene.tables()["KEYLESS"]
    assert +topics["KEYLESS"].bag == wanted
    # The changes of before are not sent: the rows have them.
    assert topics["ITEM"].ops["r"] > scene.rows / 2
    assert sum(topics["ITEM"].ops.values()) < scene.rows + scene.written
    scene.stop()
    scene.start()
    scene.write()
    _until_written(scene, scene.written + 10)
    scene.rest()
    assert scene.check()["ITEM"].ops["r"] == topics["ITEM"].ops["r"]
    assert len(scene.ended()) == 1
    scene.stop()


def _until_written(scene: SnapshotScene, count: int) -> None:
    until(f"{count} transactions", lambda: scene.written >= count)


def test_kills_of_the_shipper_cost_no_row(scene: SnapshotScene, delivery: str) -> None:
    _begin(scene)
    scene.snapshot("execute", _ALL.format(scene.database))
    for _ in range(3):
        before = _rows(scene)
        _until(scene, lambda before=before: _rows(scene) > before or _has_ended(scene))
        scene.kill()
        scene.start()
    (ended,) = scene.ended()
    scene.rest()
    topics = scene.check()
    assert ended.status is Status.COMPLETED
    if delivery == "transactional":
        for table, topic in topics.items():
            if table != "KEYLESS":
                assert topic.twice == 0
                assert topic.ops["r"] == next(
                    each.rows for each in ended.tables or () if each.name == table
                )
    scene.stop()


@pytest.mark.parametrize("delivery", few_of(DELIVERIES, ["transactional"]), indirect=True)
def test_blocking_snapshot_gives_way_before_commits_are_refused(scene: SnapshotScene) -> None:
    limit = 64 * 1024 * 1024
    scene.configure(
        connector_journal_max_bytes=str(limit),
        connector_journal_warn_bytes=str(limit // 8),
        snapshot_fetch_size="2",
    )
    scene.hold_readers(most_s=_SLOW_S)
    _begin(scene)
    scene.snapshot("execute", "--blocking", f"{scene.database}.ITEM")
    _until(scene, lambda: _rows(scene) > 0)
    text = "x" * 600_000
    for number in range(60):  # more than half of the limit
        # Rows that the writer leaves alone: with the row before and after, an event of one is too
        # large for Kafka.
        scene.execute("INSERT INTO ITEM (ID, NOTE) VALUES (?, ?)", str(5_000_000 + number), text)
    _until(scene, lambda: (state := scene.state) and state.waiting and state.waiting[0].why)
    scene.let_read()
    (ended,) = scene.ended()
    scene.rest()
    scene.check("ITEM")
    assert ended.status is Status.COMPLETED
    assert ended.windows > 1
    assert "too many changes waited" in ended.why
    scene.stop()


@pytest.mark.parametrize("delivery", few_of(DELIVERIES, ["plain"]), indirect=True)
def test_initial_snapshot_that_begins_anew_leaves_no_row_that_is_gone(scene: SnapshotScene) -> None:
    scene.configure(snapshot_mode="initial", snapshot_fetch_size="10")
    scene.attachment.execute("UPDATE ITEM SET NAME = 'first' WHERE ID = 1")
    scene.attachment.commit()
    scene.hold_readers()
    scene.start()
    _until(scene, lambda: _rows(scene) > 0)
    scene.kill()
    scene.let_read()
    assert not _has_ended(scene)
    scene.attachment.immediate("DELETE FROM ITEM WHERE ID < 1000")
    scene.attachment.commit()
    scene.start()
    (ended,) = scene.ended()
    assert (ended.kind, ended.windows) == (Kind.INITIAL, 2)
    scene.check()
    scene.stop()


@pytest.mark.parametrize("delivery", ["plain"], indirect=True)
def test_rows_say_their_place_also_where_it_was_not_kept_before_a_kill(
    scene: SnapshotScene,
) -> None:
    for number in range(3):
        scene.start()
        scene.execute(f"UPDATE ITEM SET NAME = 'change {number}' WHERE ID = 1")
        _until(scene, scene.shipped)
        scene.kill()
        scene.start()
        scene.snapshot("execute", "--database", scene.database, f"{scene.database}[.]ITEM")
        scene.ended(number + 1)
        scene.stop()
    scene.check("ITEM")


@pytest.mark.parametrize("delivery", ["plain"], indirect=True)
def test_stop_is_heard_between_batches_that_follow_at_once(scene: SnapshotScene) -> None:
    scene.configure(snapshot_fetch_size="2")
    scene.hold_readers(most_s=_SLOW_S)
    scene.start()
    scene.execute("UPDATE ITEM SET NAME = 'first' WHERE ID = 1")
    scene.await_meeting()
    scene.snapshot("execute", "--blocking", f"{scene.database}.ITEM")
    _until(scene, lambda: _rows(scene) > 0)
    scene.snapshot("stop")
    (ended,) = scene.ended()
    assert ended.status is Status.STOPPED
    assert ended.rows < scene.rows
    scene.stop()


@pytest.mark.parametrize("delivery", ["plain"], indirect=True)
def test_initial_snapshot_needs_no_change_once_the_shipper_knows_the_database(
    scene: SnapshotScene,
) -> None:
    scene.configure(snapshot_mode="initial")
    scene.start()
    scene.run("disable", scene.database)
    told = scene.run("enable", scene.database)
    assert "is taken by the shipper" in told
    (warned,) = (line for line in told.splitlines() if "drawn a number from a sequence" in line)
    assert warned.count("attachment ") == 1  # that of the scene
    (ended,) = scene.ended()
    assert (ended.kind, ended.status) == (Kind.INITIAL, Status.COMPLETED)
    scene.write()
    _until(scene, lambda: scene.written > 50)
    scene.rest()
    topics = scene.check()
    assert topics["ITEM"].ops["r"] == scene.rows
    scene.run("enable", scene.database)
    scene.stop()
    assert len(scene.ended()) == 1


_SHORT_HOLD = """from firebird_cdc.journal.shipper.snapshots import attempts
attempts._HELD_S = 15.0
"""


@pytest.mark.parametrize("delivery", ["transactional"], indirect=True)
def test_initial_snapshot_comes_first_also_after_a_long_delay(
    scene: SnapshotScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scene.directory / "sitecustomize.py").write_text(_SHORT_HOLD)
    monkeypatch.setenv("PYTHONPATH", str(scene.directory))
    scene.configure(snapshot_mode="initial", snapshot_delay_ms="16000")
    scene.execute("INSERT INTO KEYLESS VALUES (777, 'new')")
    scene.start()
    (ended,) = scene.ended()
    topics = scene.check()
    assert (ended.kind, topics["KEYLESS"].ops["c"]) == (Kind.INITIAL, 0)
    assert topics["KEYLESS"].bag == scene.tables()["KEYLESS"]
    scene.stop()


@pytest.mark.parametrize("delivery", ["transactional"], indirect=True)
def test_mode_always_takes_a_snapshot_at_a_start_without_a_change(scene: SnapshotScene) -> None:
    scene.configure(snapshot_mode="always")
    scene.start()
    scene.execute("UPDATE ITEM SET NAME = 'first' WHERE ID = 1")
    scene.ended(1)
    scene.stop()
    scene.start()
    assert [each.kind for each in scene.ended(2)] == [Kind.INITIAL, Kind.BLOCKING]
    scene.check()
    scene.stop()


@pytest.mark.parametrize("delivery", ["plain"], indirect=True)
def test_when_needed_reads_rows_again_behind_a_gap_and_after_a_restore(
    scene: SnapshotScene,
) -> None:
    scene.configure(
        snapshot_mode="when_needed",
        connector_capture_failure_mode="gap",
        connector_journal_max_bytes=str(16 * 1024 * 1024),
    )
    scene.start()
    scene.execute("UPDATE ITEM SET NAME = 'first' WHERE ID = 1")
    scene.ended(1)
    scene.stop()
    text = "x" * 600_000
    for number in range(36):  # more than there is room for
        scene.execute("INSERT INTO ITEM (ID, NOTE) VALUES (?, ?)", str(5_000_000 + number), text)
    scene.start()
    _until(scene, scene.shipped)
    scene.execute("UPDATE ITEM SET NAME = 'behind the gap' WHERE ID = 2")
    assert scene.ended(2)[-1].kind is Kind.BLOCKING
    scene.check()
    scene.restore("DELETE FROM ITEM WHERE ID > 100")
    scene.execute("UPDATE ITEM SET NAME = 'restored' WHERE ID = 3")
    assert scene.ended(3)[-1].kind is Kind.BLOCKING
    scene.stop()
    assert len(scene.ended(3)) == 3
    named = {row["ID"]: row["NAME"] for row in scene.topics()["ITEM"].rows.values()}
    assert named[3] == "restored"
    assert named[2] == "item 2"


def _until(scene: SnapshotScene, condition: Callable[[], object]) -> None:
    until("the snapshot to go on", condition, 60)


def _rows(scene: SnapshotScene) -> int:
    state = scene.state
    return 0 if state is None else sum(each.rows for each in (*state.waiting, *state.past))


def _has_ended(scene: SnapshotScene) -> bool:
    state = scene.state
    return state is not None and bool(state.past)


@pytest.mark.parametrize("delivery", ["transactional"], indirect=True)
def test_commands_of_the_page_work_as_they_stand(scene: SnapshotScene) -> None:
    _begin(scene)
    lines = [
        line
        for line in command_lines(ROOT / "docs/snapshots.md")
        if line.startswith("firebird-cdc snapshot ")
    ]
    assert len(lines) > 5
    for line in lines:
        words = _words(line, scene)
        scene.run("snapshot", *words)
    scene.rest()
    scene.ended(3)
    scene.check()
    scene.snapshot("execute", f"{scene.database}.MISSING")
    *_, last = scene.ended(4)
    assert (last.status, last.why) == (
        Status.SKIPPED,
        "no captured table of the database is meant",
    )
    scene.stop()


def _words(line: str, scene: SnapshotScene) -> list[str]:
    words = shlex.split(line)[2:]
    named = {
        "/srv/firebird/shop.fdb.CUSTOMER": f"{scene.database}.ITEM",
        "/srv/firebird/shop.fdb.ORDERS": f"{scene.database}.PAIR",
        "/srv/firebird/shop[.]fdb[.].*": f"{re.escape(scene.database)}[.].*",
        "PLACED >= DATE '2026-01-01'": "C >= 10",
    }
    return [named.get(word, word) for word in words]
