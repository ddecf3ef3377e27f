"""Sessions of which the engine tells nothing at first."""

from __future__ import annotations

import subprocess
from pathlib import Path

from test_c_writer import compile_program


def test_session_is_captured_once_the_engine_tells_its_database(tmp_path: Path) -> None:
    parts = ("transaction.c", "identify.c", "cancels.c", "engine_version.c")
    program = compile_program(tmp_path, "identify.c", *parts, lacks=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == [
        "[] the engine does not tell the database's path",
        "[/db.fdb] captured",
        "[/db.fdb] captured",
        "1",
    ]
