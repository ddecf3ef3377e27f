"""Common part of the servers of a demo: a folder, a port, a process of a stack."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from firebird_cdc.demo.processes import Stack, await_condition, stand_still, tail
from firebird_cdc.errors import SetupError

START_ATTEMPTS = 3
"""Between our look at a port and the server's bind somebody else may take it."""

QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Options of a Java machine that is to start quickly and bears no load."""

TIMED_LOG = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)
"""Options of one that logs by slf4j-simple: its lines have the time in front."""

# Below the range from which the kernel takes ports of outgoing connections (32768 up), so that a
# stopped server finds its ports free when it starts again.
_PORTS = range(20000, 32000)

_MOST_HELD = 16
_held: deque[int] = deque()  # sockets of the ports that were given last


class Service(ABC):
    """A server of one process; leaving the context stops it.

    directory: made if missing. port: 0 leaves the choice to the server's class. stack: whose
    process it becomes; by default one of its own, so that it dies with its owner.
    """

    patience_s: float
    """Between asking the process to end and killing it."""

    def __init__(self, directory: Path, port: int, stack: Stack | None) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port
        self._fixed_port = port != 0
        self._owns_stack = stack is None
        self._stack = Stack(self.directory) if stack is None else stack
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start it, for the first time or again, and wait until it answers."""

    def stop(self) -> None:
        """Shut it down in order; after ``patience_s`` without effect, kill it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(self.patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._end()

    def kill(self) -> None:
        """Kill it at once, as a crash of its machine would."""
        if self._process is not None:
            self._process.kill()
        self._end()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Have the process do nothing meanwhile, and be there all the same."""
        if self._process is None:
            raise SetupError("nothing runs that could be paused")
        stand_still(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _launch_on_a_port(self, launch: Callable[[], None]) -> None:
        """Call LAUNCH, with another free port if it fails, until one is this server's own."""
        for attempt in range(1, START_ATTEMPTS + 1):
            self.port = self.port or free_port()
            try:
                launch()
            except SetupError:
                if self._fixed_port or attempt == START_ATTEMPTS:
                    raise
                self.port = 0
            else:
                self._fixed_port = True
                return

    def _await_start(
        self, name: str, answers: Callable[[], bool], timeout_s: float, log: Path
    ) -> None:
        """Wait until the process that was just started ANSWERS.

        Kills it, and raises SetupError with the end of LOG, if it ends or doesn't in TIMEOUT_S.
        """
        process = self._process
        assert process is not None

        def has_come_up() -> bool:
            if process.poll() is not None:
                raise SetupError(f"{name} ended with exit code {process.returncode} while starting")
            return answers()

        try:
            await_condition(name, has_come_up, timeout_s)
        except SetupError as error:
            self.kill()
            raise SetupError(f"{error}; from its log, {log}:\n{tail(log)}") from None

    def _end(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._owns_stack:
            self._stack.stop()

    def _log_name(self, log: Path) -> str:
        # The stack keeps logs in its own folder, which may be above ours.
        return str(log.relative_to(self._stack.directory).with_suffix(""))


def find_java() -> str:
    """Return the path of Java. Raises SetupError where there is none."""
    java = shutil.which("java")
    if java is None:
        raise SetupError(
            "Java is missing (no java on the PATH); get it: apt-get install openjdk-17-jre-headless"
        )
    return java


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens, and that nobody else is given now.

    It stays bound until some more were given: whoever binds it with SO_REUSEADDR, as servers do,
    can listen there, and who looks for a free one, in whatever process, passes by.
    """
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _held.append(probe.detach())
        while len(_held) > _MOST_HELD:
            os.close(_held.popleft())
        return port
    raise SetupError(f"no free port between {_PORTS.start} and {_PORTS.stop - 1} on 127.0.0.1")
