"""Changes to files that happen together or not at all, with a real failure at each step."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.files import FileChanges


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plugin.so").write_bytes(b"old")
    (tmp_path / "plugin.so").chmod(0o640)
    (tmp_path / "obsolete").write_text("still here")
    return tmp_path


def picture(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every name below FOLDER with inode, mode and content."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_ino,
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def all_steps(changes: FileChanges, folder: Path) -> Iterator[str]:
    changes.make_directory(folder / "new/inner", 0o700)
    yield "make_directory"
    changes.write(folder / "new/inner/file", b"data", 0o600)
    yield "write a new file"
    changes.write(folder / "plugin.so", b"new")
    yield "replace a file"
    changes.link(folder / "link", folder / "plugin.so")
    yield "link"
    changes.remove(folder / "obsolete")
    yield "remove"
    changes.remove_directory(folder / "new/inner")
    yield "remove_directory"


STEPS = 6


def test_all_steps_take_effect_and_leave_no_temporary_file(folder: Path) -> None:
    inode = (folder / "plugin.so").stat().st_ino
    with FileChanges() as changes:
        assert len(list(all_steps(changes, folder))) == STEPS
    assert sorted(picture(folder)) == ["link", "new", "new/inner", "new/inner/file", "plugin.so"]
    assert (folder / "plugin.so").read_bytes() == b"new"
    assert (folder / "plugin.so").stat().st_ino != inode, "it was overwritten in place"
    assert (folder / "plugin.so").stat().st_mode & 0o777 == 0o640
    assert (folder / "new/inner/file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("done", range(STEPS + 1))
def test_a_failure_after_any_step_leaves_everything_as_it_was(folder: Path, done: int) -> None:
    before = picture(folder)
    blocked = folder / "blocked"
    with pytest.raises(SetupError, match=r"cannot write .*blocked/file"), FileChanges() as changes:
        steps = all_steps(changes, folder)
        for _ in range(done):
            next(steps)
        # A name that is a file cannot be a folder: the real error of a real system call.
        blocked.touch()
        changes.write(blocked / "file", b"x")
    blocked.unlink()
    assert picture(folder) == before


def test_a_write_that_ends_in_the_middle_leaves_the_old_file_alone(folder: Path) -> None:
    before = picture(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with (
            pytest.raises(SetupError, match=r"plugin\.so: File too large; all files are as"),
            FileChanges() as changes,
        ):
            changes.write(folder / "plugin.so", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert picture(folder) == before


def test_folders_above_are_open_to_others_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with FileChanges() as changes:
            changes.make_directory(folder / "lib/cdc/journal", 0o700)
    finally:
        os.umask(before)
    modes = [(folder / name).stat().st_mode & 0o777 for name in ("lib", "lib/cdc")]
    assert modes == [0o755, 0o755], "the server's user can't reach its journals"
    assert (folder / "lib/cdc/journal").stat().st_mode & 0o777 == 0o700
