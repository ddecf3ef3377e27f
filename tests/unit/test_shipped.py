"""What identifies a journal folder is on disk before Kafka is told of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from losing_disk import LosingDisk, once

from firebird_cdc.errors import ShipError
from firebird_cdc.journal.lock import STATE_DIRECTORY
from firebird_cdc.journal.shipped import Shipped


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
        with pytest.raises(ShipError, match="identity of the journal folder can't be kept"):
            Shipped(folder, "positions")
        assert disk.failed == [folder / STATE_DIRECTORY / "shipped"]
        shown = Shipped(folder, "positions").identity
        disk.cut()
    assert Shipped(folder, "positions").identity == shown


def test_an_identity_whose_process_died_before_its_sync_is_synced_by_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shipped(folder, "positions").identity
    synced = []

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    assert Shipped(folder, "positions").identity == shown
    assert folder / STATE_DIRECTORY / "shipped" in synced
