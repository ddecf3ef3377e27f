"""A stack's processes end with it, however it ends, and wherever they have gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firebird_cdc.demo.processes import (
    Stack,
    await_condition,
    end_members,
    members,
    stand_still,
)
from firebird_cdc.errors import SetupError

# A shell that starts a process in a session of its own and lets go of it, as the plugin does
# with the shipper.
_ESCAPING = "setsid sleep 600 </dev/null >/dev/null 2>&1 & sleep 600"

_OWNER = """
import sys, time
from pathlib import Path
from firebird_cdc.demo.processes import Stack
stack = Stack(Path(sys.argv[1]))
stack.start("child", ["sh", "-c", sys.argv[2]])
{then}
"""


def _start_owner(directory: Path, then: str) -> subprocess.Popen[bytes]:
    script = _OWNER.format(then=then)
    return subprocess.Popen([sys.executable, "-c", script, str(directory), _ESCAPING])


def _await_members(directory: Path, count: int) -> None:
    mark = str(directory.resolve())
    await_condition(f"{count} processes", lambda: len(members(mark)) == count, 60)


def test_stopping_a_stack_ends_processes_that_left_their_session(stack: Stack) -> None:
    stack.start("child", ["sh", "-c", _ESCAPING])
    _await_members(stack.directory, 3)
    stack.stop()
    assert members(stack.mark) == []


def test_killing_the_owner_ends_its_stack(tmp_path: Path) -> None:
    with _start_owner(tmp_path, "time.sleep(600)") as owner:
        _await_members(tmp_path, 3)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    _await_members(tmp_path, 0)


def test_a_released_stack_outlives_its_owner(tmp_path: Path) -> None:
    mark = str(tmp_path.resolve())
    try:
        with _start_owner(tmp_path, "stack.release(); stack.stop()") as owner:
            assert owner.wait(60) == 0
        _await_members(tmp_path, 3)
    finally:
        end_members(mark)
    assert members(mark) == []


def test_a_process_that_ignores_the_request_is_killed(stack: Stack) -> None:
    ignoring = stack.start("deaf", ["sh", "-c", "trap '' TERM; echo ready; while :; do :; done"])
    log = stack.log_path("deaf")
    await_condition("the trap to be set", lambda: log.read_text() == "ready\n", 60)
    stack.stop(patience_s=0.5)
    assert ignoring.returncode == -signal.SIGKILL


def test_a_stack_inside_a_stack_ends_with_the_outer_one(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stack.environment({}).items():
        monkeypatch.setenv(name, value)
    with Stack(tmp_path / "inner") as inner:
        child = inner.start("child", ["sleep", "600"])
        await_condition("the child", lambda: child.pid in members(stack.mark), 60)
        end_members(stack.mark)
        assert child.wait(60) == -signal.SIGTERM


def test_a_failing_program_is_named_with_the_end_of_its_log(stack: Stack) -> None:
    with pytest.raises(SetupError, match=r"(?s)broken ended with exit code 3;.*broken\.log.*no!"):
        stack.run("broken", ["sh", "-c", "echo no!; exit 3"])


def test_a_stack_spares_processes_of_others(stack: Stack) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            stack.start("child", ["sleep", "600"])
            stack.stop()
            os.kill(other.pid, 0)
            assert other.poll() is None
        finally:
            other.kill()


_COUNTING = """
import os, sys, threading
file = os.open(sys.argv[1], os.O_RDWR)
def count(place):
    number = 0
    while True:
        number += 1
        os.pwrite(file, number.to_bytes(8, "little"), place * 8)
for place in range(8):
    threading.Thread(target=count, args=(place,)).start()
"""


def test_no_thread_of_a_process_goes_on_once_it_stands_still(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(64))
    process = subprocess.Popen([sys.executable, "-c", _COUNTING, str(counts)])
    try:
        for _ in range(50):
            before = counts.read_bytes()
            await_condition("work", lambda: counts.read_bytes() != before, 60)  # noqa: B023
            stand_still(process.pid)
            stopped_at = counts.read_bytes()
            time.sleep(0.005)  # for who goes on, to be seen
            assert counts.read_bytes() == stopped_at
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        stand_still(process.pid)
