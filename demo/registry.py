"""A real schema registry on loopback: Apicurio Registry, which speaks Confluent's protocol too."""

from __future__ import annotations

import os
import shutil
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from firebird_cdc.demo.maven import Progress, fetch_jars
from firebird_cdc.demo.processes import Stack, await_condition, tail
from firebird_cdc.demo.service import START_ATTEMPTS, Service, find_java, free_port
from firebird_cdc.errors import SetupError

# The last release whose whole program is in the Maven repository.
_VERSION = "2.6.13.Final"
_COORDINATES = (f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all",)
_START_TIMEOUT_S = 60.0
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def fetch_registry(cache: Path, progress: Progress | None = None) -> Path:
    """Fetch the registry from the Maven repository, once; return the folder of its program."""
    archive = next(fetch_jars(cache, "registry", _COORDINATES, progress).glob("*.tar.gz"))
    folder = archive.parent / "program"
    if not folder.is_dir():
        # Unpacked under a name of this process and renamed when whole: others may do the same.
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        with tarfile.open(archive) as packed:
            packed.extractall(work, filter="data")
        if not folder.is_dir():
            work.rename(folder)
        shutil.rmtree(work, ignore_errors=True)
    return folder


class SchemaRegistry(Service):
    """A running registry; leaving the context stops it. It forgets everything when it stops.

    directory: holds registry.log. program: what fetch_registry returned. port: 0 takes a free
    one, and keeps it. stack: as of ``Service``.
    Raises SetupError with the end of its log if it doesn't come up.
    """

    patience_s = 10

    def __init__(
        self, directory: Path, program: Path, port: int = 0, stack: Stack | None = None
    ) -> None:
        super().__init__(directory, port, stack)
        self.port = port or free_port()
        self._program = program

    @property
    def address(self) -> str:
        """The registry itself, "http://127.0.0.1:PORT"."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where it speaks Confluent's protocol: the value of ``schema.registry.url``."""
        return f"{self.address}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it, for the first time or again, and wait until it answers."""
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._launch()
                return
            except SetupError:
                if self._fixed_port or attempt == START_ATTEMPTS:
                    raise
                self.port = free_port()

    def _launch(self) -> None:
        options = (
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.log.level=WARN",
        )
        jar = next(self._program.glob("*-runner.jar"))
        log = self.directory / "registry.log"
        argv = [find_java(), *_JAVA_OPTIONS, *options, "-jar", str(jar)]
        self._process = process = self._stack.start(self._log_name(log), argv)

        def answers() -> bool:
            if process.poll() is not None:
                raise SetupError(
                    f"the schema registry ended with exit code {process.returncode} while starting"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=2):  # noqa: S310
                    return True
            except (urllib.error.URLError, OSError):
                return False

        try:
            await_condition(f"the schema registry at {self.url}", answers, _START_TIMEOUT_S)
        except SetupError as error:
            self.stop()
            raise SetupError(f"{error}; from its log, {log}:\n{tail(log, 20)}") from None
