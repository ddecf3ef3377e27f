"""Folders that several processes fetch at a time: fetched once, and never found half done."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from firebird_cdc.demo.paths import made_once

_PROGRAM = """
import os, re, sys, time
from pathlib import Path
from firebird_cdc.demo.paths import made_once

def make(part):
    with Path(tries).open("a") as file:
        file.write("made\\n")
    (part / "first").touch()
    lock = os.stat(folder + ".lock").st_ino
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:  # until the other waits
        if re.search(rf"-> FLOCK .*:{lock} ", Path("/proc/locks").read_text()):
            break
        time.sleep(0.01)
    (part / "second").touch()

folder, tries = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
print(*sorted(it.name for it in made_once(Path(folder), make).iterdir()))
"""


def test_two_processes_make_a_folder_once(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    # Not multiprocessing: it hands on sys.path, on which Spark has put an archive with a part of
    # our package if it ran in this process before.
    command = [sys.executable, "-P", "-c", _PROGRAM, str(tmp_path / "made" / "folder"), str(tries)]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)
    ]
    for each in processes:
        assert each.stdout is not None
        each.stdout.readline()  # "ready", or nothing from one that has ended
    for each in processes:
        assert each.stdin is not None
        with suppress(BrokenPipeError):
            print("go", file=each.stdin, flush=True)
    said = [each.communicate() for each in processes]
    found = [(each.returncode, out) for each, (out, _) in zip(processes, said, strict=True)]
    assert found == [(0, "first second\n")] * 2, "\n".join(errors for _, errors in said)
    assert tries.read_text() == "made\n"


def test_failed_folder_creation_leaves_nothing_and_is_retried(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def fail(part: Path) -> None:
        (part / "half").touch()
        raise OSError("the network is away")

    with pytest.raises(OSError, match="away"):
        made_once(folder, fail)
    (tmp_path / "folder.part").mkdir()  # as a process that was killed leaves it
    (tmp_path / "folder.part" / "half").touch()
    made_once(folder, lambda part: (part / "whole").touch())
    assert [it.name for it in folder.iterdir()] == ["whole"]
