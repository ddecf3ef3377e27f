"""Programs that a server starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from test_c_writer import compile_program

from firebird_cdc.demo.processes import await_condition


def test_program_has_no_output_of_a_server_that_has_no_descriptor_left(tmp_path: Path) -> None:
    program = compile_program(tmp_path, "spawn.c", "spawn.c")
    done = tmp_path / "done"
    command = f"echo leaked; echo leaked >&2; : > {done}"
    ended = subprocess.run([program, command], check=True, capture_output=True)
    await_condition("the program to end", done.exists, 60.0)
    assert (ended.stdout, ended.stderr) == (b"", b"")
