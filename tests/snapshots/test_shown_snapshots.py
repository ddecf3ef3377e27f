"""Figures of snapshots beside writers, as an operator sees them."""

from __future__ import annotations

import urllib.request

import pytest
from capture import until
from prometheus_client.parser import text_string_to_metric_families
from snapshot_scene import PATIENCE_S, SnapshotScene

from firebird_cdc.demo.service import free_port
from firebird_cdc.journal.shipper.snapshots.state import Status

pytestmark = [pytest.mark.engine, pytest.mark.kafka]


@pytest.fixture
def delivery() -> str:
    """Return the way of sending, on which nothing here depends."""
    return "transactional"


def _samples(port: int) -> dict[tuple[str, str], float]:
    """Return the metrics of snapshots, by name and table."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("firebird_cdc_"), sample.labels.get("table", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_operator_sees_a_snapshot_rest_go_on_and_end(scene: SnapshotScene) -> None:
    port = free_port()
    scene.configure(metrics_port=str(port))
    scene.start()
    scene.write()
    scene.await_meeting()
    scene.snapshot("pause")
    scene.snapshot("execute", "--id", "x", f"{scene.database}[.](ITEM|PAIR)")
    until("the figures", lambda: (scene.report()["snapshot"] or {}).get("status") == "paused")
    assert "  snapshot incremental x: PAUSED, 0 rows" in scene.run("status")
    with scene.following() as command:
        scene.snapshot("resume")
        told, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, told
    assert "x: completed, 2 of 2 tables" in told.replace(scene.capture.database.name, "x")
    scene.rest()
    (ended,) = scene.ended()
    rows = {table.name: table.rows for table in ended.tables or ()}

    def completed() -> object:
        snapshot = scene.report()["snapshot"]
        return snapshot if snapshot["status"] == "completed" else None

    shown = until("the end in the figures", completed)
    assert (shown["rows"], shown["windows"]) == (sum(rows.values()), ended.windows)
    assert shown["window_longest_s"] >= shown["window_last_s"] > 0
    assert shown["window_open_s"] == 0
    assert shown["chunk"]["table"] == "PAIR"
    found = _samples(port)
    for table, count in rows.items():
        assert found["snapshot_rows_scanned_total", table] == count
        assert found["incremental_chunks_total", table] > 0
    assert found["snapshot_completed", ""] == 1
    assert found["snapshot_paused_duration_seconds", ""] > 0
    assert found["snapshot_events_seen_total", ""] == sum(rows.values())
    topic = scene.check()["PAIR"]
    place = f'pos="{shown["chunk"]["pos"]}"'
    assert topic.ops["r"] == rows["PAIR"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        told = answer.read().decode()
    assert any(
        place in line and shown["chunk"]["journal"] in line
        for line in told.splitlines()
        if line.startswith("firebird_cdc_snapshot_last_event_info")
    )
    scene.stop()


def test_table_that_could_not_be_read_is_told_until_it_is_acknowledged(
    scene: SnapshotScene,
) -> None:
    scene.start()
    scene.write()
    scene.await_meeting()
    scene.snapshot("execute", "--id", "y", "--where", "NOWHERE = 1", f"{scene.database}.PAIR")
    (ended,) = scene.ended()
    assert [table.status for table in ended.tables or ()] == [Status.SKIPPED]
    scene.rest()
    lack = "snapshot y: all of PAIR ("
    assert "ACTION REQUIRED" in scene.status_with(lack)
    scene.kill()
    assert lack in scene.run("status", code=1)
    scene.start()
    assert lack in scene.run("journal", "acknowledge")
    scene.await_status_without(lack)
    scene.stop()
