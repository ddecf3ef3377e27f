"""Asking for locks in the journal folder disturbs nobody."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firebird_cdc.journal.folder.locks import (
    SHIPPER_LOCK,
    STATE_DIRECTORY,
    bridge_present,
    is_held,
    try_lock,
)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    path = tmp_path / "mark"
    path.touch()
    return path


def test_two_simultaneous_lock_checks_do_not_take_each_other_for_the_holder(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    real = os.close

    def close(fd: int) -> None:
        monkeypatch.setattr(os, "close", real)
        answers.append(is_held(mark))  # before the first one lets go
        real(fd)

    monkeypatch.setattr(os, "close", close)
    assert not is_held(mark)
    assert answers == [False]


def test_a_lock_is_held_until_its_holder_lets_go(mark: Path) -> None:
    holder = try_lock(mark, fcntl.LOCK_EX)
    assert holder is not None
    assert is_held(mark)
    os.close(holder)
    assert not is_held(mark)


def test_a_bridge_that_shares_its_lock_is_present(tmp_path: Path) -> None:
    state = tmp_path / STATE_DIRECTORY
    state.mkdir()
    assert not bridge_present(tmp_path)
    bridges = [try_lock(state / "bridge.lock", fcntl.LOCK_SH) for _ in range(2)]
    for bridge in bridges:
        assert bridge_present(tmp_path)
        assert bridge is not None
        os.close(bridge)
    assert not bridge_present(tmp_path)


_READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" &&
exec "$2" -P -m firebird_cdc status --directory "$1"
"""


def test_status_works_on_a_folder_that_became_read_only(tmp_path: Path) -> None:
    (tmp_path / STATE_DIRECTORY).mkdir()
    (tmp_path / STATE_DIRECTORY / SHIPPER_LOCK).touch()
    argv = ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "not running" in done.stdout, done.stdout
