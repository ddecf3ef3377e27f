"""A real schema registry on loopback: Apicurio Registry, which speaks Confluent's protocol too."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from firebird_cdc.demo.kafka import free_port
from firebird_cdc.demo.maven import Progress, fetch_jars
from firebird_cdc.demo.processes import Stack, await_condition, tail
from firebird_cdc.errors import SetupError

# The last release whose whole program is in the Maven repository.
_VERSION = "2.6.13.Final"
_COORDINATES = (f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all",)
_START_TIMEOUT_S = 60.0
_START_ATTEMPTS = 3
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


class SchemaRegistry:
    """A running registry; leaving the context stops it. It forgets everything when it stops.

    directory: made if missing; holds registry.log. program: what fetch_registry returned.
    port: 0 takes a free one, and keeps it. stack: as of ``KafkaBroker``.
    Raises SetupError with the end of its log if it doesn't come up.
    """

    def __init__(
        self, directory: Path, program: Path, port: int = 0, stack: Stack | None = None
    ) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self._fixed_port = port != 0
        self._program = program
        self._owns_stack = stack is None
        self._stack = Stack(self.directory) if stack is None else stack
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The registry itself, "http://127.0.0.1:PORT"."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where it speaks Confluent's protocol: the value of ``schema.registry.url``."""
        return f"{self.address}/apis/ccompat/v7"

    def __enter__(self) -> SchemaRegistry:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, for the first time or again, and wait until it answers."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._launch()
                return
            except SetupError:
                # Between our look and the registry's bind somebody else may take a port.
                if self._fixed_port or attempt == _START_ATTEMPTS:
                    raise
                self.port = free_port()

    def stop(self) -> None:
        """Stop it; after 10 s without effect, kill it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._owns_stack:
            self._stack.stop()

    def _launch(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise SetupError(
                "Java is missing (no java on the PATH); "
                "get it: apt-get install openjdk-17-jre-headless"
            )
        options = (
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.log.level=WARN",
        )
        jar = next(self._program.glob("*-runner.jar"))
        log = self.directory / "registry.log"
        name = str(log.relative_to(self._stack.directory).with_suffix(""))
        argv = [java, *_JAVA_OPTIONS, *options, "-jar", str(jar)]
        self._process = process = self._stack.start(name, argv)

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
