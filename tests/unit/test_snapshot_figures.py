"""Figures of snapshots: how they follow a runner, and what shows them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from observed import DEPOT, make_config
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.subjects import INCOMPLETE, SNAPSHOT
from firebird_cdc.journal.shipper.local_offsets import Shipped, notices, remembered
from firebird_cdc.journal.shipper.monitoring import metrics
from firebird_cdc.journal.shipper.monitoring.report import Reporter
from firebird_cdc.journal.shipper.monitoring.snapshot_figures import (
    Lasting,
    SnapshotFigures,
    WindowFigures,
)
from firebird_cdc.journal.shipper.monitoring.statistics import DatabaseBacklog, Statistics
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker
from firebird_cdc.journal.shipper.snapshots.course import Course
from firebird_cdc.journal.shipper.snapshots.figures import figures_of, missing_in, shown_in
from firebird_cdc.journal.shipper.snapshots.progress import OLD_TRANSACTIONS
from firebird_cdc.journal.shipper.snapshots.rows import Batch
from firebird_cdc.journal.shipper.snapshots.runner import SnapshotRunner
from firebird_cdc.journal.shipper.snapshots.state import (
    GONE,
    Kind,
    Snapshot,
    SnapshotState,
    Status,
    TableProgress,
)
from firebird_cdc.journal.shipper.snapshots.windows import Phase

WINDOW = UUID(int=9)


class Scene:
    """A runner whose steps are those of the test, and who follows it."""

    def __init__(self, statistics: Statistics, kind: Kind = Kind.INCREMENTAL) -> None:
        surroundings: Any = None  # nothing is asked of it here
        self.snapshot = Snapshot("s1", kind, "command")
        self.state = SnapshotState(DEPOT, waiting=[self.snapshot])
        self.runner = SnapshotRunner(self.state, surroundings)
        self.statistics = statistics.database(DEPOT)
        self.course = Course(self.runner, self.statistics)
        self.at = time.monotonic() - 100

    @property
    def figures(self) -> SnapshotFigures:
        assert self.statistics.snapshot is not None
        return self.statistics.snapshot

    def go(self, phase: Phase, seconds: float = 0.0, waits_for: str = "") -> SnapshotFigures:
        self.at += seconds
        self.runner.work.phase, self.runner.work.since = phase, self.at
        self.runner.work.waits_for = waits_for
        self.course.look("")
        return self.figures

    def send(self, table: str, rows: int, last: bytes, *left_out: str) -> None:
        after = self.course.after(table)
        batch = Batch(uuid4(), DEPOT, table, WINDOW, (0, 7), rows, [], last, False, left_out, (), 0)
        self.course.sent(batch, after)
        found = next(each for each in self.snapshot.tables or () if each.name == table)
        found.rows += rows - len(left_out)
        found.left_out += len(left_out)
        found.after = last.hex()
        self.state.serial += 1
        self.course.look("")


@pytest.fixture
def scene() -> Scene:
    return Scene(Statistics())


def _run(scene: Scene) -> None:
    scene.snapshot.tables = [TableProgress("GOODS"), TableProgress("STOCK")]
    scene.snapshot.status, scene.snapshot.started_us = Status.RUNNING, now_us() - 5_000_000
    scene.snapshot.windows = 1


def test_figures_tell_how_long_a_window_held_up_changes(scene: Scene) -> None:
    scene.go(Phase.ATTACHING)
    assert scene.figures.windows == WindowFigures()
    scene.go(Phase.OPENING)
    _run(scene)
    scene.go(Phase.READING, 4)
    assert scene.figures.windows.open_s(scene.at) == pytest.approx(4)
    windows = scene.go(Phase.CLOSING, 2).windows
    assert (windows.count, windows.opened_at) == (1, None)
    assert windows.last_s == windows.longest_s == pytest.approx(6)
    scene.go(Phase.OPENING, 1)
    scene.go(Phase.FOLLOWING, 1)
    # It ended, and the next one has begun, between two looks.
    windows = scene.go(Phase.OPENING, 2).windows
    assert windows.last_s == pytest.approx(3)
    assert windows.longest_s == pytest.approx(6)
    assert windows.open_s(scene.at + 1) == pytest.approx(1)


def test_figures_tell_rows_chunks_and_places(scene: Scene) -> None:
    scene.go(Phase.OPENING)
    _run(scene)
    scene.go(Phase.READING)
    scene.send("GOODS", 500, b"\x01")
    scene.send("GOODS", 300, b"\x02", "a value is too long")
    figures, counts = scene.figures, scene.statistics.snapshot_counts
    assert (figures.rows, figures.left_out, figures.chunks, figures.open_tables) == (799, 1, 2, 2)
    chunk = figures.chunk
    assert chunk is not None
    assert (chunk.table, chunk.after, chunk.last) == ("GOODS", "01", "02")
    assert (chunk.journal, chunk.sequence, chunk.pos) == (WINDOW, 7, 800)
    assert (counts.rows, counts.chunks, counts.erroneous) == ({"GOODS": 799}, {"GOODS": 2}, 1)


def test_rate_is_that_of_the_last_minute() -> None:
    figures = SnapshotFigures("s", "incremental", "running", 1)
    recent = ((0.0, 0), (100.0, 50), (130.0, 3050), (160.0, 6050))
    assert replace(figures, recent=recent).rate(160.0) == pytest.approx(100)
    assert replace(figures, recent=recent).rate(300.0) == 0
    assert replace(figures, recent=recent, status="completed").rate(160.0) == 0
    assert figures.rate(160.0) == 0


def test_waiting_is_told_until_it_goes_on_and_that_for_older_transactions_is_summed_up(
    scene: Scene,
) -> None:
    first = scene.go(Phase.IDLE, waits_for=f"{OLD_TRANSACTIONS}: transaction 7")
    second = scene.go(Phase.ATTACHING, 1, waits_for=f"{OLD_TRANSACTIONS}: transaction 7")
    assert second.waits_since_us == first.waits_since_us > 0
    assert second.old_transactions.since == first.old_transactions.since is not None
    third = scene.go(Phase.OPENING, 1)
    assert (third.waits_for, third.waits_since_us) == ("", 0)
    assert third.old_transactions.since is None
    scene.state.is_paused = True
    paused = scene.go(Phase.IDLE)
    assert (paused.status, paused.waits_since_us) == ("paused", 0)
    assert paused.paused.since is not None
    assert Lasting(3.0, 10.0).until(12.0) == 5.0


def test_obstacle_of_the_delivery_is_what_a_snapshot_waits_for(scene: Scene) -> None:
    scene.course.look("Kafka does not answer")
    assert scene.figures.waits_for == "Kafka does not answer"
    assert scene.figures.waited_s(now_us() + 5_000_000) >= 5
    scene.course.look("")
    assert scene.figures.waits_for == ""


def test_nothing_new_makes_no_new_figures(scene: Scene) -> None:
    before = scene.go(Phase.IDLE)
    scene.course.look("")
    assert scene.figures is before


def test_state_alone_tells_the_last_snapshot_that_ended(scene: Scene) -> None:
    assert shown_in(SnapshotState(DEPOT)) is None
    _run(scene)
    scene.state.end(scene.snapshot, Status.STOPPED)
    assert shown_in(scene.state) is scene.snapshot
    figures = figures_of(scene.state, scene.snapshot)
    assert (figures.status, figures.is_on, figures.ended_us > 0) == ("stopped", False, True)
    assert [each.id for each in scene.course.newly_ended()] == ["s1"]
    assert scene.course.newly_ended() == []


def test_rows_and_tables_that_a_snapshot_lacks_are_named() -> None:
    skipped = {"status": Status.SKIPPED}
    tables = [
        TableProgress("GOODS", left_out=3, unread=2),
        TableProgress("STOCK", why="no right to read it", **skipped),
        TableProgress("OLD", why=GONE, **skipped),
        TableProgress("TAKEN_OUT", status=Status.STOPPED),
    ]
    snapshot = Snapshot("s", Kind.INITIAL, "command", tables=tables)
    assert missing_in(snapshot) == (
        "3 rows of GOODS, values of 2 rows of GOODS, all of STOCK (no right to read it)"
    )
    many = [TableProgress(f"T{number}", left_out=1) for number in range(13)]
    assert missing_in(replace(snapshot, tables=many)).endswith(" and 3 tables more")
    assert missing_in(replace(snapshot, tables=None)) == ""


def test_rows_that_a_snapshot_lacks_are_told_until_somebody_acknowledges(tmp_path: Path) -> None:
    link: Any = None  # nothing is read from Kafka here
    (tmp_path / ".firebird-cdc").mkdir()
    statistics = Statistics()
    offsets = OffsetTracker(tmp_path, "positions", link, statistics)
    offsets.lack(DEPOT, "s1", now_us(), "3 rows of GOODS")
    assert list(statistics.troubles) == [INCOMPLETE + DEPOT]
    (notice,) = notices(tmp_path)
    assert "snapshot s1: 3 rows of GOODS" in notice.what
    (memory,) = remembered(tmp_path)
    assert memory.unknown == ["snapshot s1: 3 rows of GOODS"]
    # A shipper that starts tells it again.
    again = Statistics()
    OffsetTracker(tmp_path, "positions", link, again)
    assert list(again.troubles) == [INCOMPLETE + DEPOT]
    shipped = Shipped(tmp_path, "positions")
    shipped.databases[DEPOT].acknowledge(now_us())
    assert list(shipped.databases[DEPOT].notices()) == []


def _sample(reporter: Reporter, name: str, **labels: str) -> float:
    text = generate_latest(metrics.make_registry(reporter)).decode()
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"firebird_cdc_{name}" and labels.items() <= sample.labels.items()
    )


def test_metrics_tell_of_the_snapshot(tmp_path: Path) -> None:
    statistics = Statistics()
    scene, reporter = Scene(statistics), Reporter(make_config(tmp_path), statistics)
    scene.go(Phase.OPENING)
    _run(scene)
    scene.go(Phase.READING)
    scene.send("GOODS", 500, b"\x0a")
    for name, value in (
        ("snapshot_running", 1),
        ("snapshot_tables", 2),
        ("snapshot_tables_remaining", 2),
        ("snapshot_events_seen_total", 500),
        ("snapshot_paused", 0),
        ("snapshot_skipped", 0),
        ("snapshot_windows", 1),
    ):
        assert _sample(reporter, name, database=DEPOT) == value, name
    assert _sample(reporter, "snapshot_window_open_seconds", database=DEPOT) > 90
    assert _sample(reporter, "snapshot_rows_scanned_total", table="GOODS") == 500
    assert _sample(reporter, "incremental_chunks_total", table="GOODS") == 1
    assert _sample(reporter, "incremental_chunk_info", table="GOODS", chunk_to="0a") == 1
    assert _sample(reporter, "snapshot_last_event_info", table="GOODS", pos="500") == 1
    assert _sample(reporter, "snapshot_last_event_age_milliseconds", database=DEPOT) >= 0
    scene.state.end(scene.snapshot, Status.COMPLETED)
    scene.go(Phase.IDLE)
    assert _sample(reporter, "snapshot_completed", database=DEPOT) == 1
    assert _sample(reporter, "snapshot_running", database=DEPOT) == 0


def test_owed_snapshot_is_not_well(tmp_path: Path) -> None:
    statistics = Statistics()
    statistics.kafka_at = time.monotonic()
    scene, reporter = Scene(statistics, Kind.INITIAL), Reporter(make_config(tmp_path), statistics)
    scene.go(Phase.IDLE)
    assert reporter.state(DEPOT, DatabaseBacklog(0)) == "well"
    scene.snapshot.status = Status.OWED
    scene.go(Phase.IDLE, waits_for="the initial snapshot is owed: nobody can attach")
    statistics.trouble(SNAPSHOT + DEPOT, "waiting", "the snapshot waits")
    assert reporter.state(DEPOT, DatabaseBacklog(0)) == "waiting"
    assert _sample(reporter, "snapshot_owed", database=DEPOT) == 1
    (database,) = reporter.report()["databases"]
    assert database["snapshot"]["status"] == "owed"
