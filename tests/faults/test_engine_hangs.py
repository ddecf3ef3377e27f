"""A mutex that nobody gives back is told from other waits; see engine_hangs.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import engine_hangs
import pytest
from engine_hangs import EngineHangs, await_unless_engine_hangs

from firebird_cdc.demo.processes import await_condition, has_input
from firebird_cdc.errors import SetupError

_PROGRAM = """
import ctypes, sys, threading
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
is_kept = threading.Event()
def keep():
    libc.pthread_mutex_lock(mutex)
    is_kept.set()
    threading.Event().wait()
threading.Thread(target=keep, daemon=True).start()
is_kept.wait()
print("kept", flush=True)
if sys.argv[1] == "mutex":
    libc.pthread_mutex_lock(mutex)
threading.Event().wait()
"""


def _is_in_futex(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().startswith(f"{engine_hangs._FUTEX} ")


@contextmanager
def _waiting_for(what: str) -> Iterator[int]:
    argv = [sys.executable, "-c", _PROGRAM, what]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert has_input(process.stdout, 60)
            await_condition("it to wait", lambda: _is_in_futex(process.pid), 60)
            yield process.pid
        finally:
            process.kill()


def test_a_mutex_whose_owner_waits_for_ever_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_hangs, "_LOOK_S", 0.02)
    with _waiting_for("mutex") as pid, pytest.raises(EngineHangs, match="nothing"):
        await_unless_engine_hangs("nothing", lambda: False, [pid], 30)


def test_other_waits_are_no_hang_and_their_threads_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_hangs, "_LOOK_S", 0.02)
    with (
        _waiting_for("event") as pid,
        pytest.raises(SetupError, match=f"{pid} {pid} python.*futex"),
    ):
        await_unless_engine_hangs("nothing", lambda: False, [pid], 2)
