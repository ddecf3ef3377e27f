"""Archives of the classes that Java programs load: a machine that shares one starts in half of the
CPU time (JEP 350). Worth its seconds only where many of them start."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from firebird_cdc.demo.paths import made_once

_NAME = "classes.jsa"


class ClassArchive:
    """The archive of programs that have the folder JARS as their class path; lies in DIRECTORY.

    Java takes an archive only for the path of the jars at which it was made, so its name tells it.
    """

    def __init__(self, directory: Path, jars: Path) -> None:
        place = hashlib.sha256(str(jars).encode()).hexdigest()[:12]
        self._folder = directory / f"{jars.name}-classes-{place}"

    @property
    def options(self) -> tuple[str, ...]:
        """Return Java's options for a program that is to share the archive; none without one."""
        archive = self._folder / _NAME
        return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()

    def make(self, run: Callable[[Path, str], object]) -> None:
        """Make the archive, once: RUN is called with an empty folder and a Java option, and runs a
        program with it to its orderly end."""
        made_once(self._folder, lambda part: run(part, f"-XX:ArchiveClassesAtExit={part / _NAME}"))
