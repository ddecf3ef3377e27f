"""A machine of somebody who follows docs/consuming.md: the page's files, and its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from documented import ROOT, command_lines, named_files

from firebird_cdc.demo.maven import repository_of
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack, tail
from firebird_cdc.errors import SetupError

PAGE = ROOT / "docs/consuming.md"
_PATIENCE_S = 400

# What a try needs less of than a lake has.
_SPARK_DEFAULTS = """\
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.driver.memory 500m
"""


class ConsumerMachine:
    """A folder with the page's files, in which its commands run.

    places: what stands in the page for an address, a topic or a name, and what it is here.
    """

    def __init__(self, directory: Path, places: Mapping[str, str]) -> None:
        self.directory = directory
        self._places = places
        directory.mkdir()
        for name, text in named_files(PAGE).items():
            (directory / name).write_text(self._here(text), encoding="utf-8")
        spark = directory / "spark-conf"
        spark.mkdir()
        (spark / "spark-defaults.conf").write_text(_SPARK_DEFAULTS)
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPARK_CONF_DIR": str(spark),
            "MAVEN_OPTS": f"-Dmaven.repo.local={repository_of(cache_directory())}",
        }
        self._environment.pop("PYTHONPATH", None)

    def add_program(self, name: str, text: str) -> None:
        """Have commands find a program of Python called NAME before all others."""
        folder = self.directory / "programs"
        folder.mkdir(exist_ok=True)
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        program.chmod(0o755)
        self._environment["PATH"] = f"{folder}:{self._environment['PATH']}"

    def run(self, begin: str) -> str:
        """Run the page's command that begins with BEGIN; return what it printed."""
        [line] = [line for line in command_lines(PAGE) if line.startswith(begin)]
        # A stack, which leaves no process of theirs behind, however the test ends.
        with Stack(self.directory / "command") as stack:
            said = stack.log_path("output")
            said.unlink(missing_ok=True)
            shell = ["sh", "-c", self._here(line)]
            try:
                stack.run("output", shell, self._environment, self.directory, _PATIENCE_S)
            except SetupError:
                raise AssertionError(f"{line}:\n{tail(said, 80)}") from None
            return said.read_text("utf-8")

    def _here(self, text: str) -> str:
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text
