"""Plugins with a fault in them, and the engine suite over such a plugin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_TEST = "tests/engine/test_arrays.py::test_arrays_are_sent_by_their_definition_also_if_null"
"""A short one that is marked ``leaks``."""
_ROW_WRITE = "int fbc_row_write("


def assert_noticed(folder: Path, instrument: str, code: str, complaint: str) -> None:
    """Run a test over a plugin with CODE in the function that writes a row.

    Asserts that the test fails with COMPLAINT, naming the function. FOLDER: for the sources.
    """
    sources = folder / "sources"
    for name in ("native", "firebird_cdc"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(_ROOT / name, sources / name, symlinks=True, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_ROOT / name, sources)
    rows = sources / "native/rows.c"
    head, found, rest = rows.read_text("utf-8").partition(_ROW_WRITE)
    assert found
    rows.write_text(f"{head}{found}{rest.replace('{', '{ ' + code, 1)}", encoding="utf-8")
    environment = {
        **os.environ,
        "FIREBIRD_CDC_INSTRUMENT": instrument,
        "FIREBIRD_CDC_TEST_SOURCES": str(sources),
    }
    run = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'inner'}"]
    done = subprocess.run(
        [sys.executable, "-P", *run, str(_ROOT / _TEST)],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert complaint in done.stdout, done.stdout
    assert "fbc_row_write" in done.stdout, done.stdout
