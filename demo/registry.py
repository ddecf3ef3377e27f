"""A real schema registry on loopback: Apicurio Registry, which speaks Confluent's protocol too."""

from __future__ import annotations

import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from firebird_cdc.demo.maven import Progress, fetch_jars
from firebird_cdc.demo.paths import made_once
from firebird_cdc.demo.processes import Stack
from firebird_cdc.demo.service import QUICK_JAVA, Service, find_java, free_port

# The last release whose whole program is in the Maven repository.
_VERSION = "2.6.13.Final"
_COORDINATES = (f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all",)
_START_TIMEOUT_S = 60.0
_JAVA_OPTIONS = ("-Xmx256m", *QUICK_JAVA)


def fetch_registry(cache: Path, progress: Progress | None = None) -> Path:
    """Fetch the registry from the Maven repository, once; return the folder of its program."""
    archive = next(fetch_jars(cache, "registry", _COORDINATES, progress).glob("*.tar.gz"))

    def unpack(part: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(part, filter="data")

    return made_once(archive.parent / "program", unpack)


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
        """Address at which it speaks Confluent's protocol: the value of ``schema.registry.url``."""
        return f"{self.address}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it, for the first time or again, and wait until it answers."""
        self._launch_on_a_port(self._launch)

    def _launch(self) -> None:
        options = (
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.log.level=WARN",
        )
        jar = next(self._program.glob("*-runner.jar"))
        log = self.directory / "registry.log"
        argv = [find_java(), *_JAVA_OPTIONS, *options, "-jar", str(jar)]
        self._process = self._stack.start(self._log_name(log), argv)

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=2):  # noqa: S310
                    return True
            except (urllib.error.URLError, OSError):
                return False

        self._await_start(f"the schema registry at {self.url}", answers, _START_TIMEOUT_S, log)
