"""Child processes that end when their stack does, however it ends.

A process can leave its parent: a server's plugin starts a shipper in a session of its own, a
shell starts Java, which starts Python. So membership of a stack is not a matter of parents and
process groups: every process started here carries a mark in its environment, which all its
descendants inherit, and a stack has ended when no process with its mark is left. A small warden
process sees its pipe to the stack's owner close, by whatever cause, and ends the rest.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from firebird_cdc.errors import SetupError

MARK = "FIREBIRD_CDC_STACK"
_SEPARATOR = "|"  # a stack inside a stack carries both marks
_POLL_S = 0.05
_PATIENCE_S = 10.0  # between asking a process to end and killing it
_PATIENCE_AT_INTERRUPT_S = 3.0  # nobody waits longer after a Ctrl-C
_RELEASE = b"r"  # what a warden is told to leave the stack up

_T = TypeVar("_T")


def members(mark: str) -> list[int]:
    """Return the ids of the living processes that carry ``mark``, without this one.

    Source: proc(5), /proc/PID/environ: the environment a process was started with; it is
    empty once the process is a zombie.
    """
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # A process can end, or be another user's, between listing and reading.
        with contextlib.suppress(OSError):
            for line in Path(entry.path, "environ").read_bytes().split(b"\0"):
                name, _, value = os.fsdecode(line).partition("=")
                if name == MARK and mark in value.split(_SEPARATOR):
                    found.append(int(entry.name))
    return sorted(found)


def end_members(mark: str, patience_s: float = _PATIENCE_S) -> list[int]:
    """End every process with ``mark``: SIGTERM first, SIGKILL after ``patience_s`` seconds.

    Returns the ids that had to be killed.
    """
    asked: set[int] = set()
    killed: set[int] = set()
    deadline = time.monotonic() + patience_s
    while left := members(mark):
        late = time.monotonic() >= deadline
        for pid in left:
            if not late and pid in asked:
                continue
            asked.add(pid)
            killed.update([pid] if late else [])
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(_POLL_S)
    return sorted(killed)


def stand_still(pid: int) -> None:
    """Stop a process with SIGSTOP, and return once no thread of it runs any more.

    Source: signal(7): the signal is taken by one thread, and until that one gets a processor the
    others go on. Raises ProcessLookupError if there is no such process, and SetupError if it goes
    on for a minute.
    """
    os.kill(pid, signal.SIGSTOP)
    await_condition(f"process {pid} to stand still", lambda: _stands_still(pid), 60, 0.001)


def _stands_still(pid: int) -> bool:
    """Tell whether each thread is stopped or has ended; proc(5), /proc/PID/stat."""
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it ends meanwhile
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX":
                    return False
    except OSError:  # the process has ended
        pass
    return True


def has_input(stream: IO[Any] | int, timeout_s: float) -> bool:
    """Tell whether there is something to read, or the end of it, within timeout_s. Any descriptor
    will do, other than for select(2)."""
    poller = select.poll()
    poller.register(stream, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def await_condition(
    what: str, condition: Callable[[], _T], timeout_s: float, interval_s: float = _POLL_S
) -> _T:
    """Return the first true value of ``condition``; SetupError naming ``what`` after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise SetupError(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(interval_s)
    return value


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a log, or a sentence saying that there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:])


class Stack:
    """The processes of one run; leaving the context ends all of them, and what they started.

    directory: the run's own folder, made if missing; logs of processes go to <name>.log in it.
    One stack per folder: the folder's path is the mark of its processes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.mark = str(self.directory)
        self._children: list[subprocess.Popen[bytes]] = []
        self._warden: subprocess.Popen[bytes] | None = None
        self._released = False

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        in_a_hurry = kind is not None and not issubclass(kind, Exception)
        self.stop(_PATIENCE_AT_INTERRUPT_S if in_a_hurry else _PATIENCE_S)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return ``base`` (default: this process's environment) with this stack's mark."""
        environment = dict(os.environ if base is None else base)
        outer = os.environ.get(MARK)
        environment[MARK] = f"{outer}{_SEPARATOR}{self.mark}" if outer else self.mark
        return environment

    def log_path(self, name: str) -> Path:
        """Return the log of the process started as ``name``."""
        return self.directory / f"{name}.log"

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process; its output is appended to <directory>/<name>.log.

        It gets a session of its own, so that a Ctrl-C at the terminal reaches the owner alone,
        who ends things in order.
        """
        self._post_warden()
        with self.log_path(name).open("ab") as log:
            child = subprocess.Popen(
                [str(word) for word in argv],
                env=self.environment(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def run(
        self,
        name: str,
        argv: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 300,
    ) -> None:
        """Run a process to its end. SetupError with the tail of its log if it fails."""
        child = self.start(name, argv, environment, cwd)
        await_condition(
            f"{name} to end (log: {self.log_path(name)})",
            lambda: child.poll() is not None,
            timeout_s,
        )
        if child.returncode != 0:
            raise SetupError(
                f"{name} ended with exit code {child.returncode}; the end of its log, "
                f"{self.log_path(name)}:\n{tail(self.log_path(name))}"
            )

    def stop(self, patience_s: float = _PATIENCE_S) -> None:
        """End all processes of the stack, unless it was released; wait until none is left."""
        if self._released:
            return
        deadline = time.monotonic() + patience_s
        end_members(self.mark, patience_s)
        for child in self._children:
            # One that had just been started showed no environment yet: look for it again.
            while child.poll() is None:
                if time.monotonic() >= deadline:
                    child.kill()
                end_members(self.mark, patience_s)
                time.sleep(_POLL_S)
        self._children.clear()
        if self._warden is not None:
            self._warden.communicate()  # closing its pipe; it finds nothing left to end
            self._warden = None

    def release(self) -> None:
        """Leave the processes up for good; ``end_members(mark)`` ends them."""
        self._released = True
        if self._warden is not None:
            self._warden.communicate(_RELEASE)
            self._warden = None
        for child in self._children:
            child.poll()
            # Not ours to wait for any more; Popen would warn of a child left behind.
            child.returncode = child.returncode if child.returncode is not None else 0
        self._children.clear()

    def _post_warden(self) -> None:
        if self._warden is not None and self._warden.poll() is None:
            return
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._warden = subprocess.Popen(
            [sys.executable, "-P", "-m", "firebird_cdc.demo.processes", self.mark],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _keep_watch(mark: str) -> None:
    """Be the warden: wait for the owner to go or to release the stack, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read(1):
        end_members(mark, patience_s=5)


if __name__ == "__main__":
    _keep_watch(sys.argv[1])
