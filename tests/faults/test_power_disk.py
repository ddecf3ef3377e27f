"""The recorder sees all that happens in a folder, and a rebuilt disk forgets only what it may;
what our own steps leave on such disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from power_disk import POLICIES, SYNC_FAILED, WRITE, Disk, Record, read_records
from power_loss import compile_recorder

_DISKS = 200


class Recorded:
    """A folder, and what a Python program did in it under the recorder."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self._library = directory / "recorder.so"
        self._log = directory / "log"
        compile_recorder(self._library)

    def run(self, program: str) -> list[Record]:
        """Run a program in the folder; return the record of it."""
        self._log.write_bytes(b"")
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "POWER_ROOT": str(self.root),
            "POWER_LOG": str(self._log),
        }
        subprocess.run(
            [sys.executable, "-P", "-c", "import ctypes, mmap, os\n" + program],
            env=environment,
            cwd=self.root,
            check=True,
        )
        return list(read_records(self._log))

    def found(self, program: str, policy: str, until: Callable[[Record], bool]) -> set[str]:
        """Run a program; return what can be found after a cut: names and contents, as text."""
        disk = Disk(self.root, self.root / "db", 8192, policy)
        for record in self.run(program):
            disk.apply(record)
            if until(record):
                break
        found = set()
        for seed in range(_DISKS):
            disk.write_to(self.root, random.Random(seed))
            paths = sorted(path for path in self.root.rglob("*") if path.is_file())
            found.add(" ".join(f"{path.relative_to(self.root)}={_brief(path)}" for path in paths))
        return found


def _brief(path: Path) -> str:
    """Return the runs of bytes in a file, such as a4096 (zeros: 0)."""
    runs: list[tuple[int, int]] = []
    for byte in path.read_bytes():
        if runs and runs[-1][0] == byte:
            runs[-1] = (byte, runs[-1][1] + 1)
        else:
            runs.append((byte, 1))
    return "+".join(f"{chr(byte) if byte else '0'}{count}" for byte, count in runs)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def _at_end(_: Record) -> bool:
    return False


_WRITE = """
fd = os.open("f", os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b"a" * 100)
"""
_SYNC_NAME = 'os.fsync(os.open(".", os.O_RDONLY))\n'


@pytest.mark.parametrize("policy", POLICIES)
def test_unsynced_data_may_survive_a_power_cut_or_not(recorded: Recorded, policy: str) -> None:
    assert recorded.found(_WRITE, policy, _at_end) == {"", "f=", "f=a100", "f=0100"}


@pytest.mark.parametrize("policy", POLICIES)
def test_synced_data_survives_a_power_cut(recorded: Recorded, policy: str) -> None:
    assert recorded.found(_WRITE + "os.fsync(fd)\n" + _SYNC_NAME, policy, _at_end) == {"f=a100"}


def test_a_sync_of_the_file_keeps_its_name_only_under_ext4(recorded: Recorded) -> None:
    program = _WRITE + "os.fdatasync(fd)\n"
    assert recorded.found(program, "posix", _at_end) == {"", "f=a100"}
    recorded.root.joinpath("f").unlink(missing_ok=True)
    assert recorded.found(program, "ext4", _at_end) == {"f=a100"}


def test_a_sync_that_has_not_returned_promises_nothing(recorded: Recorded) -> None:
    from power_disk import SYNC_BEGIN

    program = _SYNC_NAME + _WRITE + _SYNC_NAME + "os.fsync(fd)\n"
    begun: list[Record] = []

    def second(record: Record) -> bool:
        begun.extend([record] if record.kind == SYNC_BEGIN else [])
        return len(begun) == 3

    assert recorded.found(program, "posix", second) == {"f=", "f=a100", "f=0100"}


@pytest.mark.parametrize("flag", ["O_SYNC", "O_DSYNC"])
def test_a_synchronous_write_is_there_when_it_has_returned(recorded: Recorded, flag: str) -> None:
    program = _WRITE + _SYNC_NAME + f'os.pwrite(os.open("f", os.O_RDWR | os.{flag}), b"b", 5)\n'
    assert recorded.found(program, "posix", _at_end) == {"f=a5+b1+a94"}


def test_only_the_block_of_a_synchronous_write_is_there(recorded: Recorded) -> None:
    program = _WRITE.replace("100", "4096") + _SYNC_NAME
    program += 'os.pwrite(os.open("f", os.O_RDWR | os.O_SYNC), b"b", 4096)\n'
    found = recorded.found(program, "posix", _at_end)
    assert {"f=04096+b1", "f=a4096+b1"} < found  # and torn ones
    assert all(each.endswith("b1") for each in found)


def test_a_rename_is_atomic_and_keeps_the_order_of_one_file(recorded: Recorded) -> None:
    (recorded.root / "f").write_text("a")
    program = 'os.rename("f", "g")\nos.rename("g", "h")\n'
    assert recorded.found(program, "posix", _at_end) == {"f=a1", "g=a1", "h=a1"}


def test_files_keep_an_order_among_them_only_under_ext4(recorded: Recorded) -> None:
    for name in "fg":
        (recorded.root / name).write_text("a")
    program = 'os.unlink("f")\nos.rename("g", "h")\n'
    both = {"f=a1 g=a1", "g=a1", "h=a1"}
    assert recorded.found(program, "posix", _at_end) == both | {"f=a1 h=a1"}
    for name, there in {"f": True, "g": True, "h": False}.items():
        (recorded.root / name).write_text("a") if there else (recorded.root / name).unlink(True)
    assert recorded.found(program, "ext4", _at_end) == both


def test_a_name_in_a_folder_that_is_not_synced_goes_with_it(recorded: Recorded) -> None:
    program = 'os.mkdir("d")\nfd = os.open("d/f", os.O_CREAT)\nos.fsync(os.open("d", 0))\n'
    assert recorded.found(program, "posix", _at_end) == {"", "d/f="}


def test_blocks_are_torn_but_not_pages_of_the_database(recorded: Recorded) -> None:
    for name in ("f", "db"):
        (recorded.root / name).write_bytes(b"a" * 8192)
    program = "".join(
        f'os.pwrite(os.open("{name}", os.O_RDWR), b"b" * 8192, 0)\n' for name in ("f", "db")
    )
    found = recorded.found(program, "posix", _at_end)
    assert {each.partition(" ")[0] for each in found} == {"db=a8192", "db=b8192"}
    files = {each.partition(" ")[2] for each in found}
    assert "f=a4096+b4096" in files
    assert any(each.startswith("f=b512+a") for each in files)


def test_all_that_a_program_does_is_recorded(recorded: Recorded) -> None:
    disk = Disk(recorded.root, recorded.root / "db", 8192, "posix")
    records = recorded.run("""
top = os.open(".", os.O_RDONLY)
os.mkdir("d"); os.mkdir("e", dir_fd=top); os.rmdir("e")
fd = os.open("f", os.O_RDWR | os.O_CREAT, dir_fd=top)
os.write(fd, b"one"); os.writev(os.dup(fd), [b"two", b"three"]); os.pwrite(fd, b"four", 9000)
os.pwritev(fd, [b"five", b"six"], 20); os.ftruncate(fd, 9002); os.posix_fallocate(fd, 0, 10000)
other = os.open("g", os.O_WRONLY | os.O_CREAT | os.O_APPEND); os.write(other, b"seven")
os.dup2(other, 200); os.write(200, b"eight"); os.close(200)
again = os.open("g", os.O_WRONLY | os.O_APPEND); os.write(again, b"nine")
os.link("g", "d/h"); os.rename("f", "d/f", src_dir_fd=top)
os.open("x", os.O_CREAT); os.unlink("x"); os.open("y", os.O_CREAT); os.remove("y")
with open("z", "w") as file: file.write("ten")
with open("z", "w") as file: file.write("eleven")
page = os.open("page", os.O_RDWR | os.O_CREAT); os.ftruncate(page, 4096)
shared = mmap.mmap(page, 4096); shared[7:9] = b"xy"; shared.flush()
libc = ctypes.CDLL(None); printed = os.open("printed", os.O_WRONLY | os.O_CREAT)
libc.dprintf(printed, b"%s %d;", b"twelve", 13); libc.__dprintf_chk(printed, 1, b"%d", 14)
""")
    for record in records:
        disk.apply(record)
    assert disk.differences() == []
    assert disk.content(str(recorded.root / "page"))[7:9] == b"xy"
    assert disk.content(str(recorded.root / "printed")) == b"twelve 13;14"


@pytest.mark.parametrize(
    "call",
    [
        'fopen(b"f", b"w")',
        'fdopen(os.open("f", os.O_WRONLY | os.O_CREAT), b"w")',
        'mkstemp(ctypes.create_string_buffer(os.fsencode(os.getcwd()) + b"/XXXXXX"))',
        'splice(os.pipe()[0], None, os.open("f", os.O_WRONLY | os.O_CREAT), None, 1, 0)',
    ],
)
def test_write_by_an_unrecorded_function_fails_the_program(recorded: Recorded, call: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        recorded.run(f"ctypes.CDLL(None).{call}\n")
    assert failed.value.returncode == -signal.SIGABRT


def test_data_of_a_failed_sync_survives_only_if_written_again(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = """
recorder = ctypes.CDLL(None)
assert recorder.power_fails(b"it", fd, 0)
assert not recorder.power_fails(b"it", fd, 0)
os.fsync(fd)
"""
    failed = recorded.root.parent / "failed"
    monkeypatch.setenv("POWER_FAILS", "it")
    monkeypatch.setenv("POWER_FAILED", str(failed))
    assert recorded.found(_WRITE + _SYNC_NAME + fail, "posix", _at_end) == {"f=0100"}
    failed.unlink()
    recorded.root.joinpath("f").unlink()
    again = 'os.pwrite(fd, b"b", 50)\nos.fsync(fd)\n'
    program = _WRITE + _SYNC_NAME + fail + again
    assert recorded.found(program, "posix", _at_end) == {"f=a50+b1+a49"}


def test_failed_sync_beside_a_synchronous_write_does_not_take_what_that_writes(
    recorded: Recorded,
) -> None:
    """The write would tell that it could not be synced."""
    program = _WRITE + "os.fsync(fd)\n" + _SYNC_NAME
    program += 'os.pwrite(os.open("f", os.O_RDWR | os.O_SYNC), b"b", 5)\n'
    disk = Disk(recorded.root, recorded.root / "db", 8192, "posix")
    failures = 0
    for record in recorded.run(program):
        disk.apply(record)
        if record.kind == WRITE and record.pair:
            disk.apply(record._replace(kind=SYNC_FAILED))
            failures += 1
    assert failures == 1
    for seed in range(_DISKS):
        disk.write_to(recorded.root, random.Random(seed))
        assert _brief(recorded.root / "f") == "a5+b1+a94"
