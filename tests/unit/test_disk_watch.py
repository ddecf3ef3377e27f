"""Messages about the journals' disk use, and those of the shipper."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from time import monotonic

import logbook
import pytest

from firebird_cdc.config import load_config
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.disk_usage import (
    LOCK,
    Alarm,
    DiskLimits,
    DiskState,
    measure_folder,
)
from firebird_cdc.journal.folder.locks import try_lock
from firebird_cdc.journal.folder.subjects import DISK
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.disk import DiskWatch

_WARN, _MAX, _FREE = "warn", "max", "min.free"


def _wrong(alarm: Alarm, taken: int = 0, free: int = 10_000, is_full: bool = False) -> list[str]:
    found = alarm.problems(DiskState(Path("/j"), taken, free, is_full))
    assert all(name in text for name, text in found.items())
    return [name.removeprefix("connector.journal.").removesuffix(".bytes") for name in found]


def test_alarms_end_well_behind_their_bounds_and_the_worst_comes_first() -> None:
    alarm = Alarm(DiskLimits(1000, 2000, 500))
    assert _wrong(alarm, 1000, 500) == []
    assert _wrong(alarm, 1001, 499) == [_FREE, _WARN]
    assert _wrong(alarm, 901, 555) == [_FREE, _WARN]
    assert _wrong(alarm, 900, 556) == []
    assert _wrong(alarm, 901, 555) == []
    assert _wrong(alarm, 2001, 100, is_full=True) == [_MAX, _FREE, _WARN]
    assert _wrong(Alarm(DiskLimits()), 10**12, 0, is_full=True) == []
    gap = Alarm(DiskLimits(max_bytes=2000, mode="gap"))
    [text] = gap.problems(DiskState(Path("/j"), 2000, 1, True)).values()
    assert "leave a marked gap until usage falls below 1800 bytes" in text


def test_each_change_is_logged_once() -> None:
    alarm = Alarm(DiskLimits(warn_bytes=1000))
    with logbook.TestHandler() as told:
        for taken in (0, 1001, 1002, 950, 800, 700):
            alarm.tell(DiskState(Path("/j"), taken, 0, False))
    assert [record.level_name for record in told.records] == ["WARNING", "NOTICE"]
    assert "take 1001 bytes, more than connector.journal.warn.bytes" in told.records[0].message
    assert "connector.journal.warn.bytes is kept again" in told.records[1].message


def _put(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def test_folder_size_counts_only_live_and_committed_journals(tmp_path: Path) -> None:
    _put(tmp_path / "a.log", 4097)
    _put(tmp_path / "b.log.live", 1)
    _put(tmp_path / "c.other", 10_000)
    _put(tmp_path / ".firebird-cdc" / "quarantine" / "d.log", 10_000)
    _put(tmp_path / ".firebird-cdc" / "pool" / "1" / "e", 4096)
    assert measure_folder(tmp_path) == 3 * 4096


def test_shipper_reports_disk_use_unless_a_server_does(tmp_path: Path) -> None:
    statistics = Statistics()
    watch = DiskWatch(tmp_path, DiskLimits(warn_bytes=8000), statistics)
    journal = _put(tmp_path / "a.log", 9000)
    (tmp_path / ".firebird-cdc").mkdir()

    def look() -> str:
        watch.turn(monotonic())
        return statistics.troubles[DISK].text if DISK in statistics.troubles else ""

    with logbook.TestHandler() as told:
        await_condition("the warning", look, 60.0, 0.01)
        assert len(told.records) == 1
        held = try_lock(tmp_path / ".firebird-cdc" / LOCK, fcntl.LOCK_EX)
        journal.unlink()
        await_condition("the end of it", lambda: not look(), 60.0, 0.01)
        assert len(told.records) == 1, "a server says so"
    assert held is not None
    os.close(held)
    watch.close()


def test_a_limit_that_no_transaction_would_fit_into_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "connector.yaml"
    required = (
        "connector.name: a\nconnector.journal.directory: /j\nkafka.topic.prefix: a\n"
        "kafka.producer.bootstrap.servers: a:1\nconnector.journal.max.bytes: "
    )
    path.write_text(required + "16777215\n")
    with pytest.raises(ConfigError, match="allowed: 0 or at least 16777216"):
        load_config(path)
    path.write_text(required + "16777216\n")
    assert DiskLimits.of(load_config(path)) == DiskLimits(1 << 30, 1 << 24, 1 << 28)
