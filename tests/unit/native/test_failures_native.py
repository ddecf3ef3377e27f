"""Counts of the plugin's C code in a state folder, outside an engine."""

from __future__ import annotations

import fcntl
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_c_writer import compile_program

from firebird_cdc.journal.folder.counters import read_page
from firebird_cdc.journal.folder.failures import (
    forget_damaged,
    page_name,
    unacknowledged,
    unreadable,
)

CONFIG = Path("/etc/firebird/caf\udce9/reddatabase.connector.yaml")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("failures")
    parts = ("access.c", "counters.c", "journal.c", "crc32c.c", "threads.c")
    return compile_program(directory, "count_failures.c", *parts)


def _count(program: Path, state: Path, path: str, kind: str, times: int = 1) -> str:
    """Count; return why that could not be done."""
    argv = [program, state, CONFIG, path, kind, str(times)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    assert done.returncode == bool(done.stdout)
    return done.stdout


def _told(page: Path) -> dict[tuple[str, str], int]:
    return {(each.database, each.kind): each.count for each in unacknowledged([page])}


def test_a_page_is_found_by_the_path_of_the_connectors_file(program: Path, tmp_path: Path) -> None:
    page = tmp_path / page_name(CONFIG)
    assert _count(program, tmp_path, "/data/shop.fdb", "refused", 2) == ""
    assert _count(program, tmp_path, "/data/shop.fdb", "lost", 3) == ""
    assert _count(program, tmp_path, "", "refused") == ""
    assert [path.name for path in tmp_path.iterdir()] == [page.name]
    assert _told(page) == {
        ("/data/shop.fdb", "lost"): 3,
        ("/data/shop.fdb", "refused"): 2,
        ("", "refused"): 1,
    }
    found = read_page(page)
    assert os.fsencode(found.config) == os.fsencode(CONFIG)
    counted = found.databases["/data/shop.fdb"]
    assert found.made_us <= counted.refused_first_us < counted.refused_last_us
    assert counted.refused_last_us < counted.gaps_first_us < counted.gaps_last_us


def test_more_databases_than_a_page_has_places_for_are_counted_together(
    program: Path, tmp_path: Path
) -> None:
    for number in range(33):
        assert _count(program, tmp_path, f"/data/{number}.fdb", "lost") == ""
    told = _told(tmp_path / page_name(CONFIG))
    assert len(told) == 31
    assert told["", "lost"] == 3


def test_processes_that_count_at_once_lose_nothing(program: Path, tmp_path: Path) -> None:
    for attempt in range(5):
        state = tmp_path / str(attempt)
        state.mkdir()

        def count(_: int, state: Path = state) -> str:
            return _count(program, state, "/a.fdb", "refused", 100)

        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(count, range(4)))
        if not any(done):
            break
        # None waits for long: one that a busy machine has stand still has had the lock.
        assert all("cannot count in StateDirectory" in each for each in done if each)
    assert done == [""] * 4
    assert _told(state / page_name(CONFIG)) == {("/a.fdb", "refused"): 400}


def test_a_process_that_stopped_with_the_lock_holds_up_no_commit(
    program: Path, tmp_path: Path
) -> None:
    _count(program, tmp_path, "/a.fdb", "lost")
    page = tmp_path / page_name(CONFIG)
    with page.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "cannot count in StateDirectory" in _count(program, tmp_path, "/a.fdb", "lost")
    assert _told(page) == {("/a.fdb", "lost"): 1}


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_failed_sync_of_a_count_is_reported(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Sync no count of refusals: the application knows of them."""
    source = Path(__file__).parents[2] / "engine/failing_sync.c"
    preload = tmp_path / "failing_sync.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", preload, source], check=True)
    flag = tmp_path / "failing"
    flag.write_text(call)
    monkeypatch.setenv("LD_PRELOAD", str(preload))
    monkeypatch.setenv("ASAN_OPTIONS", "verify_asan_link_order=0")
    monkeypatch.setenv("FAILING_SYNC", str(flag))
    state = tmp_path / "journals"  # where it fails
    state.mkdir()
    assert "Input/output error" in _count(program, state, "/a.fdb", "lost")
    assert _count(program, state, "/a.fdb", "refused") == ""
    flag.unlink()
    assert _count(program, state, "/a.fdb", "lost") == ""


def test_missing_folder_gives_a_reason_and_an_empty_page_is_replaced(
    program: Path, tmp_path: Path
) -> None:
    assert "No such file" in _count(program, tmp_path / "gone", "/a.fdb", "lost")
    page = tmp_path / page_name(CONFIG)
    page.write_bytes(b"")
    assert _count(program, tmp_path, "/a.fdb", "lost") == ""
    assert _told(page) == {("/a.fdb", "lost"): 1}
    assert [path.name for path in tmp_path.iterdir()] == [page.name]
    page.unlink()
    page.symlink_to("/etc/passwd")
    assert "cannot count" in _count(program, tmp_path, "/a.fdb", "lost")


@pytest.mark.parametrize("size", [100, 65536])
def test_damaged_page_is_kept_and_reported_until_acknowledged(
    program: Path, tmp_path: Path, size: int
) -> None:
    page = tmp_path / page_name(CONFIG)
    assert _count(program, tmp_path, "/a.fdb", "lost", 5) == ""
    page.write_bytes(bytes(size))
    [text] = unreadable([page])
    assert text.startswith(f"{page} is damaged")
    assert _count(program, tmp_path, "/a.fdb", "lost") == ""
    assert _told(page) == {("/a.fdb", "lost"): 1}
    [text] = unreadable([page])
    assert text.startswith(f"{page}.damaged is damaged") and "journal acknowledge" in text
    assert len(forget_damaged([page])) == 1
    assert unreadable([page]) == []
    assert [path.name for path in tmp_path.iterdir()] == [page.name]


def test_a_page_that_finds_no_room_is_no_damage(program: Path, tmp_path: Path) -> None:
    argv = [program, tmp_path, CONFIG, "/a.fdb", "lost", "1"]
    script = 'ulimit -f 8; trap "" XFSZ; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "-", *argv], capture_output=True, text=True, timeout=240
    )
    assert "cannot count in StateDirectory" in done.stdout
    page = tmp_path / page_name(CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == [page.name]
    assert unreadable([page]) == []
    assert _count(program, tmp_path, "/a.fdb", "lost") == ""
    assert _told(page) == {("/a.fdb", "lost"): 1}
