"""The compiled functions of shipper and reader process under the sanitizers.

`make sanitize` has the plugin under them; what reads journals and renders events is another one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from builds import SOURCES, built
from instruments import SANITIZE, runtime

_MODULE = "firebird_cdc.native._journal_files"
_TESTS = [
    f"tests/unit/{name}.py"
    for name in ("test_row_json", "test_small_transactions", "test_snapshot_rows_in_c")
]
_PLUGIN = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location({_MODULE!r}, os.environ["INSTRUMENTED"])
sys.modules[{_MODULE!r}] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import firebird_cdc.native
firebird_cdc.native._journal_files = module
"""


def _run(folder: Path, library: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "instrumented.py").write_text(_PLUGIN, "utf-8")
    words = ["-q", "-p", "instrumented", "-p", "no:cacheprovider", f"--basetemp={folder / 'inner'}"]
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *words, *tests],
        cwd=SOURCES,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            "PYTHONPATH": str(folder),
            "PYTHONMALLOC": "malloc",  # or a write behind an object of Python's stays in its arena
            "INSTRUMENTED": str(library),
            "LD_PRELOAD": f"{runtime('libasan.so')}:{runtime('libubsan.so')}",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_functions_for_journals_and_rows_are_sound(tmp_path: Path) -> None:
    [library] = built("-".join(("native", *SANITIZE.values())), SANITIZE).glob("_journal_files*")
    assert b"__asan_init" in library.read_bytes()  # else nothing would look
    done = _run(tmp_path, library, *_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
