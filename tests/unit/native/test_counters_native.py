"""The page of counters as the plugin's C code uses it, outside an engine."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from test_c_writer import compile_program

from firebird_cdc.journal.folder.counters import ConfirmerCounts, is_damaged, read_counters


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("counters")
    parts = ("access.c", "counters.c", "journal.c", "crc32c.c", "threads.c")
    return compile_program(directory, "count_in_page.c", *parts)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / ".firebird-cdc"
    state.mkdir()
    return state


def _count(program: Path, state: Path, path: str, times: int = 1) -> None:
    subprocess.run([program, state.parent, path, str(times)], check=True, timeout=240)


def _captured(state: Path) -> dict[str, int]:
    databases = read_counters(state.parent).databases
    return {path: counted.captured for path, counted in databases.items()}


def test_a_database_takes_one_slot_however_long_its_path_is(program: Path, state: Path) -> None:
    path = "/" + "x" * 400 + ".fdb"
    _count(program, state, path, 40)
    _count(program, state, "/data/shop.fdb")
    assert _captured(state) == {path[:255]: 40, "/data/shop.fdb": 1}
    ConfirmerCounts(state).add(path, [0.1])
    assert read_counters(state.parent).databases[path[:255]].timings["confirm"].count == 1


def test_undecodable_bytes_of_a_database_path_are_escaped(program: Path, state: Path) -> None:
    _count(program, state, os.fsdecode(b"/data/caf\xe9.fdb"))
    assert _captured(state) == {r"/data/caf\xe9.fdb": 1}


def test_a_process_that_stopped_with_the_lock_stops_no_other(program: Path, state: Path) -> None:
    _count(program, state, "/data/shop.fdb")
    with (state / "counters").open("rb") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        _count(program, state, "/data/shop.fdb")
        _count(program, state, "/data/depot.fdb", 2)
    assert _captured(state) == {"/data/shop.fdb": 2, "": 2}


def test_a_copy_with_holes_has_its_room_before_it_is_mapped(program: Path, state: Path) -> None:
    """A fault that finds no room would end the server."""
    page = state / "counters"
    _count(program, state, "/data/shop.fdb")
    content = page.read_bytes()
    page.unlink()
    with page.open("wb") as file:
        file.write(content[:4096])
        file.truncate(len(content))
    assert page.stat().st_blocks * 512 < len(content)
    _count(program, state, "/data/shop.fdb", 0)
    assert page.stat().st_blocks * 512 >= len(content)


def test_a_damaged_page_of_a_journal_folder_is_kept_beside_the_next_one(
    program: Path, state: Path
) -> None:
    _count(program, state, "/data/shop.fdb", 5)
    page = state / "counters"
    page.write_bytes(b"no page")
    assert is_damaged(page)
    _count(program, state, "/data/shop.fdb")
    assert _captured(state) == {"/data/shop.fdb": 1}
    assert not is_damaged(page)
    assert (state / "counters.damaged").read_bytes() == b"no page"
    assert sorted(path.name for path in state.iterdir()) == ["counters", "counters.damaged"]
