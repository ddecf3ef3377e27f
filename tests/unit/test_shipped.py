"""Identity of a journal folder: on disk before Kafka is told of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from losing_disk import LosingDisk, once

from firebird_cdc.clock import now_us
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.shipper.local_offsets import Memory, Shipped, acknowledge, notices

DATABASE = "/srv/a.fdb"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "journals"
    (folder / STATE_DIRECTORY).mkdir(parents=True)
    return folder


def test_an_identity_outlasts_a_failed_sync_of_its_name_and_a_power_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        disk = LosingDisk(folder, patch)
        disk.folder_fails = once("shipped")
        with pytest.raises(ShipError, match="identity of the journal folder can't be saved"):
            Shipped(folder, "positions")
        assert disk.failed == [folder / STATE_DIRECTORY / "shipped"]
        shown = Shipped(folder, "positions").identity
        disk.cut()
    assert Shipped(folder, "positions").identity == shown


def test_identity_of_a_process_killed_before_its_sync_is_synced_by_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shipped(folder, "positions").identity
    synced = []

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    assert Shipped(folder, "positions").identity == shown
    assert folder / STATE_DIRECTORY / "shipped" in synced


def test_missing_journals_are_reported_until_acknowledged(folder: Path) -> None:
    shipped = Shipped(folder, "positions")
    shipped.miss(DATABASE, (0, 3), (0, 4))
    shipped.miss(DATABASE, (0, 5), (0, 5))
    shipped.miss(DATABASE, (1, 1), (1, 1))
    shipped.write()
    [notice] = notices(folder)
    assert notice.subject == f"missing:{DATABASE}"
    assert f"journals 3 to 5 (epoch 0), journal 1 (epoch 1) of {DATABASE}" in notice.what
    acknowledge(folder, DATABASE)
    assert notices(folder) == []
    shipped = Shipped(folder, "positions")
    assert shipped.acknowledgements(0.0) == [DATABASE]
    assert shipped.databases[DATABASE].passed == (1, 1)


def test_lost_journals_are_not_reported_as_missing_too(folder: Path) -> None:
    shipped = Shipped(folder, "positions")
    memory = shipped.databases[DATABASE] = Memory(DATABASE, "positions", (0, 9))
    shipped.lose(memory, (0, 6))
    shipped.write()
    assert Shipped(folder, "positions").databases[DATABASE].passed == (0, 9)


def test_gap_noticed_before_the_clock_was_set_back_can_be_acknowledged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Shipped(folder, "positions")
    with monkeypatch.context() as patch:
        patch.setattr(
            "firebird_cdc.journal.shipper.local_offsets.now_us", lambda: now_us() + 7_200_000_000
        )
        shipped.miss(DATABASE, (0, 3), (0, 3))
    shipped.write()
    acknowledge(folder, DATABASE)
    assert notices(folder) == []


def test_gap_noticed_after_an_acknowledgement_is_still_reported(folder: Path) -> None:
    shipped = Shipped(folder, "positions")
    shipped.miss(DATABASE, (0, 3), (0, 3))
    acknowledge(folder, DATABASE)
    [request] = (folder / STATE_DIRECTORY / "shipped").glob("*.acknowledged")
    before_it = request.stat().st_mtime_ns - 60_000_000_000
    os.utime(request, ns=(before_it, before_it))
    assert shipped.acknowledgements(0.0) == [DATABASE]
    shipped.write()
    assert [notice.subject for notice in notices(folder)] == [f"missing:{DATABASE}"]


def test_report_of_missing_journals_survives_a_power_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Shipped(folder, "positions")
    with monkeypatch.context() as patch:
        disk = LosingDisk(folder, patch)
        shipped.miss(DATABASE, (0, 3), (0, 3))
        shipped.write()
        disk.cut()
    assert [notice.subject for notice in notices(folder)] == [f"missing:{DATABASE}"]
