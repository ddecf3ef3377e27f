"""One Firebird 4 server inside the trixie system, as tests and benchmarks see it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.debian import inner_environment
from firebird_cdc.demo.processes import Stack, await_condition, members, stand_still, tail
from firebird_cdc.demo.service import free_port

_BINARY = "/usr/lib/firebird/4.0/bin/firebird"
# DeadlockTimeout: how long, in seconds, a process waits under Classic before it looks whether the
# holder of a lock has died.
_SETTINGS = """\
Providers = Remote,Engine13,Loopback
SecurityDatabase = /var/lib/firebird/4.0/system/security4.fdb
RemoteBindAddress = 127.0.0.1
RemoteServicePort = {port}
ServerMode = {mode}
DeadlockTimeout = 1
"""


OPTIONS = """\
connector.name: firebird4
connector.journal.directory: {journals}
connector.journal.archive.directory: {archive}
kafka.producer.bootstrap.servers: {bootstrap}
kafka.producer.transactional.id: {prefix}
kafka.topic.prefix: {prefix}
snapshot.mode: never
decimal.handling.mode: string
"""


class Firebird4:
    """The server of one test, with a folder of its own for databases and journals.

    ``folder`` is seen from outside, ``inner(folder / ...)`` is its name inside. ``mode``: of the
    server, as firebird.conf calls it; under Classic each connection has a process of its own.
    """

    def __init__(
        self, system: debian.Trixie, folder: Path, stack: Stack, mode: str = "Super"
    ) -> None:
        self.system = system
        self.folder = folder
        self.inner = system.inner
        self.stack = stack
        self.port = free_port()
        self.server_directory = system.outer(debian.SERVER_DIRECTORY)
        self.configuration = system.outer(debian.CONFIGURATION)
        self._process: Any = None
        secret = (self.configuration / "SYSDBA.password").read_text()
        self.password = re.search(r'^ISC_PASSWORD="?([^"\n]+)', secret, re.M)[1]  # type: ignore[index]
        self.set_mode(mode)

    def set_mode(self, mode: str) -> None:
        """Have the server run as MODE from its next start on."""
        (self.configuration / "firebird.conf").write_text(
            _SETTINGS.format(port=self.port, mode=mode)
        )

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
        environment = inner_environment({"HOME": "/tmp"})  # noqa: S108 - inside
        self._process = self.stack.start("firebird", argv, environment)

        def listening() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"firebird ended: {tail(self.stack.log_path('firebird'))}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return True
            except OSError:
                return False

        await_condition(f"Firebird 4 on port {self.port}", listening, 120)

    @property
    def process_id(self) -> int:
        """The server's process, while it runs."""
        number: int = self._process.pid
        return number

    def stop(self) -> None:
        """Stop the server in order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(120)
            self._process = None

    def kill(self) -> None:
        """Kill the server at once. Under Classic it has several processes, and none sees another
        one die: it could go on for a moment with what that one left."""
        stopped: set[int] = set()
        while running := {self.process_id, *self.processes()} - stopped:
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    stand_still(process)
            stopped |= running
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while self.processes():
            self._process.poll()
        self._process.wait()
        self._process = None

    def processes(self) -> list[int]:
        """Return the server's living processes; more than one only under Classic."""
        found = []
        for process in members(self.stack.mark):
            with contextlib.suppress(OSError):  # ended meanwhile
                if Path(f"/proc/{process}/exe").readlink().name == Path(_BINARY).name:
                    found.append(process)
        return found

    def dsn(self, database: Path) -> str:
        """Return how a client outside calls a database."""
        return f"127.0.0.1/{self.port}:{self.inner(database)}"

    def install(self, bootstrap: str, prefix: str) -> tuple[Path, Path]:
        """Install the plugin with folders of the test's own; return journals and archive."""
        journals, archive = self.own_directory("journals"), self.own_directory("archive")
        options = self.folder / "connector.yaml"
        options.write_text(
            OPTIONS.format(
                journals=self.inner(journals),
                archive=self.inner(archive),
                bootstrap=bootstrap,
                prefix=prefix,
            )
        )
        self.give_to_server(options)
        self.command("install", "--server", "/", "--config", str(self.inner(options)))
        return journals, archive

    def create_database(self, client: Any) -> Path:
        """Create a database with a table ITEM in its publication; return it as seen outside."""
        database = self.folder / "shop.fdb"
        with client.create_database(self.dsn(database)) as connection:
            connection.execute_immediate(
                "CREATE TABLE ITEM (ID INTEGER PRIMARY KEY, NAME VARCHAR(40), PRICE NUMERIC(9,2))"
            )
            connection.commit()
            connection.execute_immediate("ALTER DATABASE INCLUDE ALL TO PUBLICATION")
            connection.execute_immediate("ALTER DATABASE ENABLE PUBLICATION")
            connection.commit()
        return database

    @property
    def logs(self) -> list[Path]:
        """The server's own logs."""
        return list(self.system.outer(debian.LOGS).iterdir())

    def evidence(self) -> str:
        """Return what the server and the bridge logged, for the message of a failed test."""
        ours = self.system.path / debian.OUR_LOGS
        logs = [*self.logs, *(ours.iterdir() if ours.is_dir() else ())]
        return "\n".join(f"{path}:\n{tail(path, 40)}" for path in logs)
