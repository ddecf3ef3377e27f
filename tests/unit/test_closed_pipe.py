"""Whoever reads a command's output may leave before its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_reader_that_leaves_ends_a_command_without_a_word(tmp_path: Path) -> None:
    (tmp_path / ".firebird-cdc").mkdir()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "firebird_cdc", "status", "--directory", "."],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
