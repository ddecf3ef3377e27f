"""Names of folders are on disk before anything in them counts, whoever has made the folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from firebird_cdc.errors import CaptureError, ShipError
from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, ShipperLock
from firebird_cdc.journal.shipper.repairs import RepairFolder


class Syncs:
    """Folders that were synced, and the names that they had then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names: dict[Path, set[str]] = {}
        self.before: Callable[[], None] = lambda: None
        real = os.fsync

        def fsync(fd: int) -> None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            self.before()
            real(fd)
            if path.is_dir():
                self._names.setdefault(path, set()).update(each.name for each in path.iterdir())

        monkeypatch.setattr(os, "fsync", fsync)

    def forget(self, folder: Path) -> None:
        """Know nothing of FOLDER."""
        self._names.pop(folder)

    def missing(self, root: Path, *paths: Path) -> list[Path]:
        """Return the names that lead from ROOT to one of PATHS and may not outlast a power cut."""
        wanted = {each for path in paths for each in (path, *path.parents) if root in each.parents}
        return sorted(
            each for each in wanted if each.name not in self._names.get(each.parent, set())
        )


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


def _names_in(folder: JournalFolder) -> list[Path]:
    return [folder.pools, folder.owners.mark(folder.owner), folder.databases, folder.quarantine]


def test_name_of_an_existing_folder_is_synced(tmp_path: Path, syncs: Syncs) -> None:
    path = tmp_path / "journals"
    (path / STATE_DIRECTORY).mkdir(parents=True)
    assert not syncs.missing(tmp_path, *_names_in(JournalFolder(path)))


def test_name_of_a_folder_of_a_bridge_killed_before_its_syncs_is_synced(
    tmp_path: Path, syncs: Syncs
) -> None:
    path = tmp_path / "journals"
    for name in ("owners", "pool", "databases", "quarantine"):
        (path / STATE_DIRECTORY / name).mkdir(parents=True)
    assert not syncs.missing(tmp_path, *_names_in(JournalFolder(path)))


def test_names_of_folders_above_the_bridges_are_synced(tmp_path: Path, syncs: Syncs) -> None:
    path = tmp_path / "some" / "where" / "journals"
    path.mkdir(parents=True)
    assert not syncs.missing(tmp_path, *_names_in(JournalFolder(path)))


def test_names_of_folders_made_by_the_shipper_are_synced(tmp_path: Path, syncs: Syncs) -> None:
    path = tmp_path / "some" / "where" / "journals"
    with ShipperLock(path):
        assert not syncs.missing(tmp_path, path / STATE_DIRECTORY)


@pytest.mark.parametrize("is_linked", [False, True])
def test_names_of_existing_folders_above_the_shippers_are_synced(
    tmp_path: Path, syncs: Syncs, is_linked: bool
) -> None:
    real = tmp_path / "some" / "where"
    real.mkdir(parents=True)
    if is_linked:
        (tmp_path / "link").symlink_to(real)
    with ShipperLock((tmp_path / "link" if is_linked else real) / "journals"):
        assert not syncs.missing(tmp_path, real / "journals" / STATE_DIRECTORY)


def test_name_in_a_folder_of_another_user_is_not_synced(
    tmp_path: Path, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tmp_path / "others"
    (others / "ours").mkdir(parents=True)
    real = Path.stat

    def stat(path: Path, **named: bool) -> os.stat_result:
        found = real(path, **named)
        if path == others:
            return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))
        return found

    monkeypatch.setattr(Path, "stat", stat)
    with ShipperLock(others / "ours" / "journals"):
        assert syncs.missing(tmp_path, others / "ours") == [others]


def test_names_of_folders_of_a_shipper_killed_before_its_syncs_are_synced(
    tmp_path: Path, syncs: Syncs
) -> None:
    path = tmp_path / "journals"
    (path / STATE_DIRECTORY).mkdir(parents=True)
    with ShipperLock(path):
        assert not syncs.missing(tmp_path, path / STATE_DIRECTORY)


def test_name_of_the_archive_is_synced_before_an_original_is_removed(
    tmp_path: Path, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, journal = tmp_path / "kept" / "archive", tmp_path / "j.log"
    journal.write_bytes(b"it")
    found: list[list[Path]] = []

    def remove(*_: object) -> None:
        found.append(syncs.missing(tmp_path, archive / "j.log"))

    monkeypatch.setattr("firebird_cdc.journal.folder.disposal.remove_files", remove)
    dispose_shipped([journal], archive)
    assert found == [[]]


def test_name_of_the_repair_folder_is_synced(tmp_path: Path, syncs: Syncs) -> None:
    with ShipperLock(tmp_path / "journals"):
        repairs = RepairFolder(tmp_path / "journals")
        repairs.folder.mkdir()  # by a process that died then
        repairs.make()
        assert not syncs.missing(tmp_path, repairs.folder / "sent")


def test_name_of_a_recreated_quarantine_is_synced_before_a_journal_moves_there(
    tmp_path: Path, syncs: Syncs
) -> None:
    folder = JournalFolder(tmp_path / "journals")
    uuid = uuid4()
    folder.live(uuid).write_bytes(b"it")
    folder.quarantine.rmdir()
    syncs.forget(folder.state)
    folder.set_aside(uuid, "it")
    assert not syncs.missing(tmp_path, folder.quarantine / f"{uuid}.log")


def test_failed_sync_of_folder_names_prevents_the_start(tmp_path: Path, syncs: Syncs) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    syncs.before = fail
    with pytest.raises(CaptureError, match="Input/output error"):
        JournalFolder(tmp_path / "journals")
    with pytest.raises(ShipError, match="Input/output error"):
        ShipperLock(tmp_path / "journals").take()
