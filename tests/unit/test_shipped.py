"""What identifies a journal folder is on disk before Kafka is told of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from losing_disk import LosingDisk, once

from firebird_cdc.errors import ShipError
from firebird_cdc.journal.lock import STATE_DIRECTORY
from firebird_cdc.journal.shipped import Memory, Shipped, acknowledge, notices


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


def test_what_was_missing_is_told_once_until_it_is_acknowledged(folder: Path) -> None:
    shipped = Shipped(folder, "positions")
    shipped.miss("/srv/a.fdb", (0, 3), (0, 4))
    shipped.write()
    shipped = Shipped(folder, "positions")  # one that was killed before it got past the hole
    shipped.miss("/srv/a.fdb", (0, 3), (0, 4))
    shipped.miss("/srv/a.fdb", (1, 1), (1, 1))
    shipped.write()
    [notice] = notices(folder)
    assert notice.subject == "missing:/srv/a.fdb"
    assert notice.what.startswith(
        "journals 3 to 4 (epoch 0), journal 1 (epoch 1) of /srv/a.fdb were not there"
    )
    acknowledge(folder, "/srv/a.fdb")
    assert notices(folder) == []
    assert Shipped(folder, "positions").acknowledgements(0.0) == ["/srv/a.fdb"]


def test_what_kafka_has_lost_is_not_told_as_missing_too(folder: Path) -> None:
    shipped = Shipped(folder, "positions")
    memory = shipped.databases["/srv/a.fdb"] = Memory("/srv/a.fdb", "positions", (0, 9))
    shipped.lose(memory, (0, 6))
    shipped.miss("/srv/a.fdb", (0, 7), (0, 9))
    shipped.write()
    [notice] = notices(folder)
    assert notice.subject == "lost:/srv/a.fdb"
