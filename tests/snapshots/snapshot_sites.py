"""Places of the databases of a round of snapshots, and the processes that have them open.

Under Classic each writer has the engine in a process of its own; under Super one process has a
database, and all that write into it; a Firebird 4 server is reached over TCP, and the shipper runs
beside it, as its user. ``kill`` ends what a crash of the server would end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from capture import Attachment, Capture, Client, SqlError, engine_finding, until, users_of
from rounds import Nursery

from firebird_cdc.demo import trixie
from firebird_cdc.demo.debian import inner_environment
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.paths import cache_directory, clone_root
from firebird_cdc.demo.processes import Stack

BROKEN = (AssertionError, BrokenPipeError, SqlError, ValueError)
"""Errors of whoever uses a process that was killed, or whose server was; ValueError: others have
met the same before."""

_STEPS = "snapshot_steps"
_PATIENCE_S = 60.0
_TESTS = Path("opt/firebird-cdc-tests")  # where the shipper's points are found inside the chroot
_OCCUPIED = "already opened with engine instance"
_installing = threading.Lock()  # as it has the process's output for itself


class Site:
    """Processes that share a database (Classic). ``kills``: how often one was ended;
    ``occupied``: who had a database open that another process was to have for itself.

    waits: a transaction that meets another one's lock waits for it.
    """

    mode = "Classic"
    waits = True

    def __init__(self, directory: Path, stack: Stack) -> None:
        self.directory = directory
        self.kills = 0
        self.occupied: list[str] = []
        self.capture = self._make_capture(stack)

    def _make_capture(self, stack: Stack) -> Capture:
        return Capture(self.directory, stack, {"ServerMode": self.mode})

    # The shipper

    def open(self, options: Mapping[str, str]) -> None:
        """Install the plugin with OPTIONS, and have databases be made."""
        self.capture.write_config(**options)
        with _installing:
            self.capture.install()

    def nursery(self, usual: Nursery) -> Nursery:
        """Return what brings the shippers up: by default the USUAL one."""
        return usual

    def inner(self, path: Path) -> str:
        """Return how PATH is called where the shipper runs."""
        return str(path)

    def environment(self) -> dict[str, str]:
        """Return what a shipper needs in its environment."""
        return self.capture.environment()

    # Who writes

    def database(self, name: str) -> Path:
        """Return how the server calls a database."""
        return self.directory / name

    def client(self, database: Path) -> Client:
        """Return a process that has DATABASE open, or can open it."""
        return self.capture.client()

    def attach(self, client: Client, database: Path, *, create: bool = False) -> Attachment:
        """Attach by a process that ``client`` gave."""
        return client.attach(database, create=create)

    def engine_processes(self) -> list[int]:
        """Return the processes in which the engine works for clients."""
        return [client.pid for client in self.capture.clients]

    def kill(self, client: Client) -> None:
        """End what CLIENT works in, as a crash would."""
        with suppress(ProcessLookupError):
            os.kill(client.pid, signal.SIGKILL)
            self.kills += 1

    def lost(self, client: Client) -> None:
        """Forget CLIENT, which has just failed; raise what it met again if nobody killed it."""
        self._require_killed(client)
        self._forget(client)

    @staticmethod
    def _require_killed(client: Client) -> None:
        if client.process.wait(_PATIENCE_S) != -signal.SIGKILL:
            raise

    def finding(self) -> str:
        """Return the damage that the engine found in a database, "" if none. Its log has it also
        where whoever met it hangs, or was told only that the engine can't go on."""
        return engine_finding("\n".join(each.read_text(errors="replace") for each in self._logs()))

    def _logs(self) -> list[Path]:
        """Return the engine's own logs."""
        log = self.capture.root.path / "firebird.log"
        return [log] if log.exists() else []

    def _forget(self, client: Client) -> None:
        self.capture.clients.remove(client)
        for pipe in (client.process.stdin, client.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def end_clients(self) -> None:
        """End what has databases open."""
        self.capture.end_clients()

    def close(self, *, keep: bool) -> None:
        """Leave nothing of the round, or, to KEEP, its files."""
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)


class OneProcess(Site):
    """A process for each database, which nobody else can open (Super), and which reads for the
    shipper. It does one thing at a time: nobody in it may wait for another one."""

    mode = "Super"
    waits = False

    def __init__(self, directory: Path, stack: Stack) -> None:
        super().__init__(directory, stack)
        self._lock = threading.Lock()
        self._clients: dict[Path, Client] = {}

    def open(self, options: Mapping[str, str]) -> None:
        super().open({**options, "connector_snapshot_by_server": "true"})

    def client(self, database: Path) -> Client:
        with self._lock:
            client = self._clients.get(database)
            if client is None or client.process.poll() is not None:
                client = self._clients[database] = self.capture.client()
            return client

    def attach(self, client: Client, database: Path, *, create: bool = False) -> Attachment:
        def attached() -> Attachment | None:
            try:
                return super(OneProcess, self).attach(client, database, create=create)
            except SqlError as error:
                if _OCCUPIED not in str(error):
                    raise
                # Whatever a killed server shared its open files with may outlive it for a moment.
                self.occupied.append(f"{database.name} for {client.pid} by {users_of(database)}")
                return None

        return until(f"{database} to be free", attached)

    def lost(self, client: Client) -> None:
        self._require_killed(client)
        with self._lock:
            if client in self.capture.clients:  # others that it has served come, too
                self._forget(client)


class _RemoteCapture(Capture):
    """Clients without an engine, and what a server outside of them has in its folders."""

    def __init__(self, directory: Path, stack: Stack, server: Firebird4) -> None:
        super().__init__(directory, stack, {"Providers": "Remote"})
        self._server = server
        self.journal_directory = server.own_directory("journals")
        self.config = server.folder / "connector.yaml"
        self.options["connector.journal.directory"] = str(server.inner(self.journal_directory))

    def install(self) -> None:
        self._server.give_to_server(self.config)
        inner = str(self._server.inner(self.config))
        self._server.command("install", "--server", "/", "--config", inner)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "ISC_PASSWORD": self._server.password}


class RemoteServer(Site):
    """A Firebird 4 server in a chroot; its kill takes all connections with it."""

    def __init__(self, directory: Path, stack: Stack, server: Firebird4, nursery: Nursery) -> None:
        self._server = server
        self._nursery = nursery
        self._place = directory  # of clients
        self._lock = threading.Lock()
        super().__init__(server.folder, stack)

    def _make_capture(self, stack: Stack) -> Capture:
        return _RemoteCapture(self._place, stack, self._server)

    def open(self, options: Mapping[str, str]) -> None:
        server = self._server
        secret = server.folder / "password"
        secret.write_text(f"{server.password}\n", "utf-8")
        server.give_to_server(secret)
        own = {
            "database_hostname": "localhost",
            "database_port": str(server.port),
            "database_user": "SYSDBA",
            "database_password_file": str(server.inner(secret)),
        }
        super().open({**options, **own})
        server.start()

    def nursery(self, usual: Nursery) -> Nursery:
        return self._nursery

    def inner(self, path: Path) -> str:
        return str(self._server.inner(path))

    def environment(self) -> dict[str, str]:
        return {}

    def database(self, name: str) -> Path:
        return Path(self._server.inner(self._server.folder / name))

    def attach(self, client: Client, database: Path, *, create: bool = False) -> Attachment:
        name = Path(f"127.0.0.1/{self._server.port}:{database}")

        def attached() -> Attachment | None:
            try:
                return client.attach(name, create=create)
            except SqlError:  # it is being started again
                if create:
                    raise
                return None

        return until(f"{name} to be attached to", attached, _PATIENCE_S)

    def engine_processes(self) -> list[int]:
        return self._server.processes()

    def kill(self, client: Client) -> None:
        with self._lock:
            self.kills += 1  # before anybody meets it
            self._server.kill()
            self._server.start()

    def lost(self, client: Client) -> None:
        if not self.kills:
            raise AssertionError(
                f"nobody has killed the server, whose processes are {self._server.processes()}:"
                f" {self._server.evidence()}"
            )
        client.process.kill()
        client.process.wait()
        self._forget(client)

    def _logs(self) -> list[Path]:
        return self._server.logs

    def end_clients(self) -> None:
        super().end_clients()
        self._server.stop()

    def close(self, *, keep: bool) -> None:
        if keep:
            shutil.copytree(self._server.folder, self._place / "server", dirs_exist_ok=True)
            (self._place / "evidence.txt").write_text(self._server.evidence())
        else:
            shutil.rmtree(self._place, ignore_errors=True)


KINDS = ("classic", "super", "tcp", "tcp-classic")
"""Kinds of sites."""


class Sites:
    """Makes sites. The chroot is made ready where one is first asked for, and has one at a time."""

    def __init__(self, stack: Stack, say: Callable[[str], None] = lambda text: None) -> None:
        self._stack = stack
        self._say = say
        self._kept = ExitStack()
        self._lock = threading.Lock()
        self._system: trixie.Trixie | None = None
        self._remote_nursery: Nursery | None = None

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *error: Any) -> None:
        self._kept.close()

    @contextmanager
    def site(self, kind: str, directory: Path) -> Iterator[Site]:
        """Yield one of KIND, which has DIRECTORY for itself."""
        directory.mkdir(parents=True)
        if kind in ("classic", "super"):
            yield (OneProcess if kind == "super" else Site)(directory, self._stack)
            return
        with self._lock, Stack(directory / "firebird4") as stack:
            server, nursery = self._server(stack, kind)
            try:
                yield RemoteServer(directory, self._stack, server, nursery)
            finally:
                server.stop()
                stack.stop()
                server.system.reset()
                shutil.rmtree(server.folder)

    def _server(self, stack: Stack, kind: str) -> tuple[Firebird4, Nursery]:
        clone = clone_root()
        assert clone is not None, "these tests run from a clone"
        if self._system is None or self._remote_nursery is None:
            ready = trixie.prepared(cache_directory(), clone, self._say)
            system = self._system = self._kept.enter_context(ready)
            (system.path / _TESTS).mkdir(exist_ok=True)
            with_tests = trixie.Trixie(system.path, {_TESTS: clone / "tests"})
            python = f"/{trixie.VENV}/bin/python"
            nursery = self._remote_nursery = Nursery(
                _STEPS,
                lambda script: with_tests.command(
                    [python, f"/{_TESTS / script.relative_to(clone / 'tests')}"],
                    user="firebird:firebird",
                ),
                inner_environment({"HOME": "/tmp"}),
            )
            self._kept.callback(nursery.close)
        self._system.reset()
        folder = self._system.path / trixie.DATA / f"t{secrets.token_hex(4)}"
        folder.mkdir(mode=0o770)
        mode = "Classic" if kind == "tcp-classic" else "Super"
        server = Firebird4(self._system, folder, stack, mode)
        server.give_to_server(folder)
        return server, self._remote_nursery
