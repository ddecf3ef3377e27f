"""For whom files are made in a journal folder: its own mode decides, and no mask of the process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from firebird_cdc import access
from firebird_cdc.journal.folder.disposal import copy_file
from firebird_cdc.journal.folder.durable import make_folder, replace_file
from firebird_cdc.journal.folder.journal_folder import JournalFolder

_FLAGS = os.O_RDWR | os.O_CREAT


@pytest.fixture(params=[0o022, 0o077, 0o007], autouse=True)
def mask(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process whose files would be for others than the folder is for."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(
    ("mode", "of_files", "of_folders"),
    [
        (0o2770, 0o660, 0o2770),
        (0o700, 0o600, 0o700),
        (0o770, 0o600, 0o700),  # whose group files would have is by chance
        (0o2750, 0o600, 0o2700),  # the bit comes from above
    ],
)
def test_new_files_have_the_group_and_rights_of_their_folder(
    tmp_path: Path, mode: int, of_files: int, of_folders: int
) -> None:
    tmp_path.chmod(mode)
    os.close(access.open_file(tmp_path / "file", _FLAGS))
    access.write_file(tmp_path / "written", b"x")
    replace_file(tmp_path / "replaced", b"x")
    copy_file(tmp_path / "written", tmp_path / "copy")
    assert access.make_directory(tmp_path / "folder")
    assert not access.make_directory(tmp_path / "folder")
    make_folder(tmp_path / "durable")
    names = ("file", "written", "replaced", "copy")
    assert {_mode(tmp_path / name) for name in names} == {of_files}
    assert {_mode(tmp_path / name) for name in ("folder", "durable")} == {of_folders}


def test_journal_folder_is_for_its_group_in_all_its_depth(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    folder = JournalFolder(tmp_path)
    try:
        made = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {_mode(path) for path in made} == {0o660}
        assert {_mode(path) for path in tmp_path.rglob("*") if path.is_dir()} == {0o2770}
        assert len(made) > 3
    finally:
        folder.close()


def test_own_file_from_before_the_folder_was_shared_is_opened_to_the_group(tmp_path: Path) -> None:
    os.close(access.open_file(tmp_path / "lock", _FLAGS))
    tmp_path.chmod(0o2770)
    os.close(access.open_file(tmp_path / "lock", _FLAGS))
    assert _mode(tmp_path / "lock") == 0o660
