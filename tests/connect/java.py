"""A Java program of the tests that answers requests, compiled when it or what it uses changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from firebird_cdc.demo.maven import fetch_jars
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import tail
from firebird_cdc.demo.service import QUICK_JAVA

_HERE = Path(__file__).parent
# Not javac: to run our tests, as to run Kafka, a Java without a compiler is enough.
_COMPILER = ("org.eclipse.jdt:ecj:3.38.0",)
_JAVA_OPTIONS = ("-Xmx200m", *QUICK_JAVA)
_KEPT = 4  # compiled programs of one name; older ones go


class Unreadable(Exception):
    """Java's words about what it can't read or write."""


class JavaProgram:
    """The running program NAME.java of this folder; it uses the Maven COORDINATES.

    ERRORS: the file for what it says besides its answers.
    """

    def __init__(self, name: str, coordinates: tuple[str, ...], errors: Path) -> None:
        self._errors = errors
        jars = fetch_jars(cache_directory(), name.lower(), coordinates)
        class_path = f"{_compiled(name, jars)}:{jars}/*"
        with errors.open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *_JAVA_OPTIONS, "-cp", class_path, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )

    def end(self) -> None:
        """End the process, which must have nothing against that."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0, tail(self._errors)

    def ask(self, request: Any) -> Any:
        """Return the answer to REQUEST; raises Unreadable."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the Java process ended: {tail(self._errors)}"
        answer = json.loads(line)
        if "error" in answer:
            raise Unreadable(answer["error"])
        return answer


def _compiled(name: str, jars: Path) -> Path:
    """Return the folder of the compiled program."""
    source = _HERE / f"{name}.java"
    used = f"{jars.name}{_COMPILER}".encode()
    digest = hashlib.sha256(used + source.read_bytes()).hexdigest()
    builds = cache_directory() / "builds" / name.lower()
    target = builds / digest[:16]
    if not target.exists():
        builds.mkdir(parents=True, exist_ok=True)
        # Made under another name and renamed when whole, as others may make the same.
        made = Path(tempfile.mkdtemp(dir=builds))
        [compiler] = fetch_jars(cache_directory(), "ecj", _COMPILER).glob("*.jar")
        # It doesn't know the asterisk of class paths.
        class_path = ":".join(map(str, sorted(jars.glob("*.jar"))))
        options = ["-17", "-proc:none", "-failOnWarning", "-cp", class_path, "-d", made]
        subprocess.run(["java", "-jar", compiler, *options, source], check=True)
        with contextlib.suppress(OSError):
            made.rename(target)
        # Not all others: another clone with the same cache may be running one of them.
        for old in sorted(builds.iterdir(), key=_made_at)[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return target


def _made_at(build: Path) -> float:
    """Return when BUILD was made; of one that somebody renames or removes just now: at once."""
    try:
        return build.stat().st_mtime
    except FileNotFoundError:
        return math.inf
