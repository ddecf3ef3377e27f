"""A real Firebird 4 server: Debian trixie's, started by chroot on a free port of loopback."""

from __future__ import annotations

import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trixie as debian

from firebird_cdc.demo.paths import cache_directory, clone_root
from firebird_cdc.demo.processes import Stack, await_condition, tail

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

_BINARY = "/usr/lib/firebird/4.0/bin/firebird"
_SETTINGS = """\
Providers = Remote,Engine13,Loopback
SecurityDatabase = /var/lib/firebird/4.0/system/security4.fdb
RemoteBindAddress = 127.0.0.1
RemoteServicePort = {port}
"""


@pytest.fixture(scope="session")
def trixie(request: pytest.FixtureRequest) -> Iterator[debian.Trixie]:
    """The system with the server and our package in it; the first time takes a minute or two."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    writer = request.config.get_terminal_writer()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            writer.line(f"\n[trixie] {text}", flush=True)

    clone = clone_root()
    assert clone is not None, "the server tests run from a clone"
    with debian.prepared(cache_directory(), clone, say) as system:
        yield system


class Firebird4:
    """The server of one test, with a folder of its own for databases and journals.

    ``folder`` is seen from outside, ``inner(folder / ...)`` is its name inside.
    """

    def __init__(self, system: debian.Trixie, folder: Path, stack: Stack) -> None:
        self.system = system
        self.folder = folder
        self.inner = system.inner
        self.stack = stack
        self.port = _free_port()
        self.server_directory = system.path / debian.SERVER_DIRECTORY
        self.configuration = system.path / debian.CONFIGURATION
        self._process: Any = None
        secret = (self.configuration / "SYSDBA.password").read_text()
        self.password = re.search(r'^ISC_PASSWORD="?([^"\n]+)', secret, re.M)[1]  # type: ignore[index]
        (self.configuration / "firebird.conf").write_text(_SETTINGS.format(port=self.port))

    def own_directory(self, name: str) -> Path:
        """Return a new folder that belongs to the server's user."""
        path = self.folder / name
        path.mkdir(mode=0o700)
        shutil.copystat(self.folder, path)
        self.give_to_server(path)
        return path

    def give_to_server(self, path: Path) -> None:
        """Make a file or folder the server's."""
        self.system.run("chown", "firebird:firebird", str(self.inner(path)))

    def command(self, *argv: str, check: bool = True) -> str:
        """Run firebird-cdc inside; return what it printed."""
        program = f"/{debian.VENV}/bin/firebird-cdc"
        environment = {"ISC_USER": "SYSDBA", "ISC_PASSWORD": self.password}
        return self.system.run(program, *argv, check=check, environment=environment).stdout

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        argv = self.system.command([_BINARY], user="firebird:firebird")
        environment = debian.inner_environment({"HOME": "/tmp"})
        self._process = self.stack.start("firebird", argv, environment)

        def listening() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"firebird ended: {tail(self.stack.log_path('firebird'))}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return True
            except OSError:
                return False

        await_condition(f"Firebird 4 on port {self.port}", listening, 30)

    def stop(self) -> None:
        """Stop the server in order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def kill(self) -> None:
        """Kill the server at once."""
        self._process.kill()
        self._process.wait()
        self._process = None

    def dsn(self, database: Path) -> str:
        """Return how a client outside calls a database."""
        return f"127.0.0.1/{self.port}:{self.inner(database)}"

    def log(self, name: str) -> str:
        """Return a log of the server's, such as replication.log."""
        paths = [self.system.path / "var/log/firebird" / name, self.server_directory / name]
        return "\n".join(path.read_text("utf-8", "replace") for path in paths if path.is_file())


@pytest.fixture
def firebird4(trixie: debian.Trixie, tmp_path: Path) -> Iterator[Firebird4]:
    """A Firebird 4 server as it was packaged, not started yet, without our plugin."""
    trixie.reset()
    for log in (trixie.path / "var/log/firebird").iterdir():
        log.unlink()
    folder = trixie.path / "var/lib/firebird/4.0/data" / f"t{secrets.token_hex(4)}"
    folder.mkdir(mode=0o770)
    with Stack(tmp_path / "firebird4") as stack:
        server = Firebird4(trixie, folder, stack)
        server.give_to_server(folder)
        try:
            yield server
        finally:
            server.stop()
            stack.stop()
            trixie.reset()
            shutil.rmtree(folder)


Connect = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def client(engine_root: EmbeddedRoot, firebird4: Firebird4) -> Any:
    """firebird.driver with a client library that reaches the server over TCP."""
    from firebird import driver

    if not driver.driver_config.fb_client_library.value:
        driver.driver_config.fb_client_library.value = str(engine_root.client_library)
    driver.driver_config.server_defaults.user.value = "SYSDBA"
    driver.driver_config.server_defaults.password.value = firebird4.password
    return driver


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
