"""The processes with the engine under an instrument that sees what C does wrong.

FIREBIRD_CDC_INSTRUMENT chooses it: ``sanitizers`` (a build of our libraries with the address
and the undefined-behaviour sanitizer), ``leaks`` (the same, and whenever a process ends it looks
for what we did not free, which takes five times as long; ``sanitizers`` does so in tests that are
marked ``leaks``) or ``valgrind``; without it they run as they are. What an instrument complains of
lands in files of the test's own and fails the test (conftest.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from builds import SOURCES, built

CHOSEN = os.environ.get("FIREBIRD_CDC_INSTRUMENT", "")
# How much longer something may take than without.
SLOWNESS = {"": 1, "sanitizers": 3, "leaks": 5, "valgrind": 15}[CHOSEN]
_HERE = Path(__file__).parent
SANITIZE = {"FIREBIRD_CDC_SANITIZE": "address,undefined"}
_REPORT = "instrument"
_UNDEFINED = "runtime error:"
_LEAK = re.compile(r"(Direct|Indirect) leak of|LeakSanitizer: detected|byte.*leaked in")
_ALLOCATED_BY_US = re.compile(r"#[0-2] \w+ in \w+ \S*native/\w+\.c:")
_VALGRIND = (
    "--quiet",
    "--num-callers=30",
    "--fullpath-after=",
    "--fair-sched=yes",
)


def place(root: Path) -> None:
    """Put the build of the instrument where the plugin was installed under ROOT."""
    if CHOSEN:
        options = {} if CHOSEN == "valgrind" else SANITIZE
        for library in built("-".join(("native", *options.values())), options).glob("*.so"):
            if library.name.startswith("_journal_files"):
                continue  # the shipper's
            [placed] = root.rglob(library.name)
            placed.unlink()
            shutil.copy(library, placed)


def environment(directory: Path, *, seeks_leaks: bool) -> Mapping[str, str]:
    """Return what a process needs in its environment to be under the instrument."""
    if CHOSEN in ("sanitizers", "leaks"):
        return {
            "LD_PRELOAD": preload(),
            # exitcode=0: that of a process which ends with leaks, as every Python does.
            # intercept_tls_get_addr=0: with its notes of threads' own variables LeakSanitizer's
            # tracer crashed at the end of such processes, and we have no such variables.
            "ASAN_OPTIONS": f"log_path={directory / _REPORT}:abort_on_error=1:exitcode=0"
            f":detect_leaks={int(seeks_leaks)}"
            ":detect_stack_use_after_return=1:strict_string_checks=1:quarantine_size_mb=16"
            ":intercept_tls_get_addr=0",
            "UBSAN_OPTIONS": "abort_on_error=1:halt_on_error=1:print_stacktrace=1",
        }
    if CHOSEN == "valgrind":
        return {"PYTHONMALLOC": "malloc"}
    return {}


def preload(*libraries: Path) -> str:
    """Return LD_PRELOAD for a process that needs libraries of the test's own in front of all but
    the instrument's: that one must come first."""
    runtimes = ["libasan.so", "libubsan.so"] if CHOSEN in ("sanitizers", "leaks") else []
    return ":".join([*map(runtime, runtimes), *map(str, libraries)])


def before(directory: Path) -> list[str]:
    """Return the words to put before the command line of a process."""
    if CHOSEN == "valgrind":
        return ["valgrind", *_VALGRIND, f"--log-file={directory / _REPORT}.%p"]
    return []


def complaints(directory: Path) -> str:
    """Return what the instrument found in the processes of a test."""
    found = []
    for path in sorted(directory.glob("*.log")):
        # Beside the other sanitizer this one has no file of its own, only standard error.
        _, error, stack = path.read_text("utf-8", "replace").partition(_UNDEFINED)
        if error:
            found.append(f"{path.name}: {error}{stack}")
    for path in sorted(directory.glob(f"{_REPORT}.*")):
        text = path.read_text("utf-8", "replace")
        for part in re.split(r"\n(?:==\d+==)?\s*\n", text):
            if CHOSEN == "valgrind":
                # Python and the engine have their own. Ours happen in our functions, or in
                # what these call, but not in the bridge's Python.
                inner, own, _ = part.partition(str(SOURCES / "native"))
                ours = own and "_PyEval" not in inner
            elif _LEAK.search(part):
                # Both also leave a lot behind when they end; we may not.
                ours = "Direct leak" in part and _ALLOCATED_BY_US.search(part)
            else:
                ours = part.strip("=\n")
            if ours:
                found.append(f"{path.name}: {part}")
    return "\n\n".join(found)


@cache
def runtime(name: str) -> str:
    """Return the path of the sanitizers' library NAME."""
    asked = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
