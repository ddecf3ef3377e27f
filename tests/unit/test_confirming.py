"""Information in the page of the tickets about who confirms, and the places that show it."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from time import monotonic_ns

import logbook
import pytest
from observed import make_config
from prometheus_client import generate_latest

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import try_lock
from firebird_cdc.journal.folder.shared_page import (
    HUNG_S,
    LOCK,
    ConfirmerState,
    read_confirmer,
)
from firebird_cdc.journal.folder.subjects import CONFIRMER, UNDECIDED
from firebird_cdc.journal.shipper.monitoring import metrics
from firebird_cdc.journal.shipper.monitoring.report import Reporter, needs_somebody
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.watches import ConfirmerWatch


@pytest.fixture
def config(tmp_path: Path) -> ConnectorConfig:
    return make_config(tmp_path)


@pytest.fixture
def folder(config: ConnectorConfig) -> JournalFolder:
    return JournalFolder(config.journal_directory, writes=False)


def _beat(folder: JournalFolder, ago_s: float) -> None:
    """Have process 77 confirm, and have come round so long ago."""
    folder.tell_heartbeat(77)
    beat_ms = monotonic_ns() // 1_000_000 - int(ago_s * 1000)
    folder.page.fields.heartbeat_ms = beat_ms


def test_only_a_process_that_holds_the_lock_and_is_silent_hangs(folder: JournalFolder) -> None:
    def silence() -> float:
        return read_confirmer(folder.path).silent_s

    assert silence() == 0
    _beat(folder, HUNG_S + 1)
    assert silence() == 0  # it has ended
    held = try_lock(folder.state / LOCK, fcntl.LOCK_EX)
    assert held is not None
    assert silence() > HUNG_S
    _beat(folder, -3600)  # as the page is after a boot
    assert silence() == 0
    folder.tell_heartbeat(77)
    assert silence() == 0
    _beat(folder, HUNG_S + 1)
    os.close(held)
    assert silence() == 0
    assert read_confirmer(folder.path / "missing") == ConfirmerState()


def test_hanging_confirmer_is_a_trouble_of_the_shipper_and_in_its_metrics(
    folder: JournalFolder, config: ConnectorConfig
) -> None:
    statistics = Statistics()
    watch, reporter = ConfirmerWatch(folder.path, statistics), Reporter(config, statistics)
    registry = metrics.make_registry(reporter)

    def sample(name: str) -> float:
        found = re.search(
            rf"(?m)^firebird_cdc_{name}{{.*}} (.+)$", generate_latest(registry).decode()
        )
        assert found
        return float(found[1])

    watch.turn(0)
    assert not statistics.troubles
    assert sample("confirmer_silent_seconds") == sample("journals_undecided") == 0
    held = try_lock(folder.state / LOCK, fcntl.LOCK_EX)
    assert held is not None
    _beat(folder, HUNG_S + 1)
    folder.undecided = 3
    with logbook.TestHandler() as told:
        watch.turn(0)
        watch.turn(2)
    assert len(told.records) == 2
    assert {name: each.kind for name, each in statistics.troubles.items()} == {
        CONFIRMER: "halted",
        UNDECIDED: "waiting",
    }
    assert sample("confirmer_silent_seconds") > HUNG_S
    assert sample("journals_undecided") == 3
    report = reporter.report()
    [need] = needs_somebody(report)
    assert need.startswith("process 77, which confirms the journals in ")
    assert needs_somebody(report | {"written_us": report["written_us"] + 11 * 60 * 1_000_000})[1:]
    os.close(held)
    folder.undecided = 0
    watch.turn(4)
    assert not statistics.troubles


def test_only_the_confirming_process_reports_progress(folder: JournalFolder) -> None:
    def has_told() -> bool:
        folder.page.fields.heartbeat_ms = 0
        folder.tell_progress()
        return folder.page.fields.heartbeat_ms != 0

    folder.tell_heartbeat(77)
    assert not has_told()
    folder.tell_heartbeat(os.getpid())
    assert has_told()
