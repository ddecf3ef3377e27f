"""A program that is forked (tests/forked.py) is the one that a shell would start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest

_PROGRAM = """\
import atexit, json, os, signal, sys
atexit.register(print, "ended")
print(json.dumps([sys.argv, os.getcwd(), os.environ["WORD"], __name__, sys.stdin.readline()]))
print("it fails", file=sys.stderr)
if len(sys.argv) > 2:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""
_WAITS = "print('waits', flush=True)\nimport time\ntime.sleep(600)\n"


@pytest.mark.parametrize("words", [["0"], ["7"], ["7", "killed"]])
def test_program_gets_and_gives_what_a_start_would(tmp_path: Path, words: list[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)

    def outcome(popen: Callable[..., Any]) -> tuple[Any, ...]:
        with popen(
            [sys.executable, "-P", program, *words],
            cwd=tmp_path,
            env={**os.environ, "WORD": "ein Wört"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            return *process.communicate("a line\nanother\n", timeout=60), process.returncode

    assert outcome(forked.Popen) == outcome(subprocess.Popen)


def test_program_is_waited_for_and_gets_signals(tmp_path: Path) -> None:
    program = tmp_path / "waits.py"
    program.write_text(_WAITS)
    with forked.Popen([sys.executable, program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waits\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        assert process.poll() == -signal.SIGINT
