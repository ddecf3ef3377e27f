"""Snapshots that are not taken as they were asked for, and what is told of them."""

from __future__ import annotations

import json

import pytest
from capture import until
from snapshot_scene import SnapshotScene
from test_snapshot_signals import _notifications as notifications

from firebird_cdc.journal.shipper.requests import take_answer, write_request
from firebird_cdc.journal.shipper.snapshots.state import SNAPSHOTS, Status

pytestmark = [
    pytest.mark.engine,
    pytest.mark.kafka,
    pytest.mark.parametrize("delivery", ["transactional"], indirect=True),
]


def _ask(scene: SnapshotScene, kind: str, id: str, /, **data: object) -> None:
    """Send a signal as ``firebird-cdc snapshot`` does, and wait until it is followed."""
    content = {"id": id, "type": kind, "data": json.dumps(data), "database": None}
    request = write_request(scene.capture.journal_directory, content, SNAPSHOTS)
    until(f"{id} to be followed", lambda: take_answer(request), 60)


def _execute(scene: SnapshotScene, id: str, *tables: str, filter: str = "", of: str = "") -> None:
    conditions = [{"data-collection": of, "filter": filter}] if filter else []
    names = [f"{scene.database}.{table}" for table in tables]
    data = {"data-collections": names, "additional-conditions": conditions}
    _ask(scene, "execute-snapshot", id, **data)


def _begin(scene: SnapshotScene) -> str:
    """Start the shipper, and return the topic in which it tells of snapshots."""
    topic = f"{scene.prefix}-notifications"
    scene.configure(notification_enabled_channels="sink,log", notification_sink_topic_name=topic)
    scene.execute("UPDATE ITEM SET NAME = 'x' WHERE ID = 1")
    scene.start()
    scene.await_meeting()
    return topic


def _told(scene: SnapshotScene, topic: str, id: str) -> list[tuple[str, dict[str, str]]]:
    """Return types and facts of what TOPIC has of the snapshot or signal ID, but for progress."""
    found = [each for each in notifications(scene, topic) if each["id"] == id]
    return [(each["type"], each["additional_data"]) for each in found]  # type: ignore[misc]


def test_condition_that_names_no_table_sends_no_row_and_is_told_of(scene: SnapshotScene) -> None:
    topic = _begin(scene)
    _execute(scene, "bare", "ITEM", filter="ID < 10", of="ITEM")
    _execute(scene, "elsewhere", "ITEM", filter="ID < 10", of=f"{scene.database}.PAIR")
    _execute(scene, "right", "ITEM", filter="ID < 10", of=f"{scene.database}.ITEM")
    bare, elsewhere, right = scene.ended(3)
    assert [each.status for each in (bare, elsewhere)] == [Status.SKIPPED] * 2
    assert f"ITEM matches no table: write the whole name, {scene.database}.ITEM" in bare.why
    assert "PAIR is for none of the tables in data-collections" in elsewhere.why
    assert (right.status, right.rows) == (Status.COMPLETED, 10)
    assert bare.why in scene.capture.log.read_text()
    scene.stop()
    assert scene.topic("ITEM").ops["r"] == 10
    told = _told(scene, topic, "bare")
    assert ("REFUSED", bare.why) in [(type, data.get("reason")) for type, data in told]
    assert told[-1] == ("SKIPPED", {**told[-1][1], "reason": bare.why})


def _stop(scene: SnapshotScene, *tables: str) -> None:
    names = [f"{scene.database}.{table}" for table in tables]
    _ask(scene, "stop-snapshot", "stop", **{"type": "incremental", "data-collections": names})


def test_snapshot_of_which_all_tables_are_stopped_is_aborted_and_not_complete(
    scene: SnapshotScene,
) -> None:
    scene.attachment.script(
        "CREATE FUNCTION SLOWLY (N INTEGER) RETURNS INTEGER AS DECLARE I INTEGER = 0;"
        " BEGIN WHILE (I < 400000) DO I = I + 1; RETURN N; END"
    )
    scene.configure(incremental_snapshot_chunk_size="10")
    topic = _begin(scene)
    both = [f"{scene.database}.{table}" for table in ("ITEM", "PAIR")]
    _execute(scene, "running", "ITEM", "PAIR", filter="SLOWLY(1) = 1", of=".*")
    until("rows", lambda: scene.state and scene.state.waiting and scene.state.waiting[0].rows, 60)
    _stop(scene, "PAIR")
    _stop(scene, "ITEM")
    (running,) = scene.ended(1)
    _ask(scene, "pause-snapshot", "pause")
    _execute(scene, "waiting", "ITEM", "PAIR")
    _stop(scene, "(ITEM|PAIR)")
    _ask(scene, "resume-snapshot", "resume")
    waiting = scene.ended(2)[1]
    until("it to be told", lambda: len(_told(scene, topic, "waiting")) == 3, 60)
    scene.stop()
    assert [each.status for each in (running, waiting)] == [Status.STOPPED] * 2
    told = [each for each in _told(scene, topic, "running") if each[0] != "IN_PROGRESS"]
    assert [type for type, _ in told] == ["STARTED", *["ABORTED"] * 3]
    assert [each.get("data_collections") for _, each in told[1:]] == [both[1], both[0], None]
    told = _told(scene, topic, "waiting")
    assert [type for type, _ in told] == ["STARTED", "ABORTED", "ABORTED"]
    assert told[-2][1]["data_collections"] == ",".join(both)


def test_table_that_is_not_there_and_sql_that_is_wrong_are_named(scene: SnapshotScene) -> None:
    topic = _begin(scene)
    _execute(scene, "gone", "PAIR", "GONE")
    pair = f"{scene.database}.PAIR"
    told = scene.snapshot("execute", "--follow", "--id", "wrong", "--where", "ID <", pair, code=1)
    assert "incremental wrong was taken without all of PAIR (" in told
    scene.snapshot("execute", "--follow", "--id", "right", pair)
    gone, wrong, _ = scene.ended(3)
    scene.stop()
    assert gone.status is Status.COMPLETED
    (refused,) = [each for type, each in _told(scene, topic, "gone") if type == "REFUSED"]
    assert f"{scene.database}.GONE matches no captured table" in refused["reason"]
    (table,) = wrong.tables or ()
    scans = [each for kind, each in _told(scene, topic, "wrong") if kind == "TABLE_SCAN_COMPLETED"]
    assert [(each["status"], each["reason"]) for each in scans] == [("SQL_EXCEPTION", table.why)]
