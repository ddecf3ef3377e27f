"""Programs of ours as forks of a process that has imported them.

The start of a program with all that a shipper imports costs half a second of CPU time, which is
more than most tests take for all else. So one process for each of pytest's imports that once, and
forks for each start. What begins so is the same program with the arguments, environment, folder and
streams that it was given; only the interpreter does not start anew.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_SAFE_PATH = "-P"
_READ_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "ASAN_", "UBSAN_", "TZ")
# Nobody has a folder put in front that has modules of our names; our client libraries go by path.
_OF_NO_ACCOUNT = ("PYTHONSAFEPATH", "LD_LIBRARY_PATH")
_OURS = dict(os.environ)  # a test may change it later
_PR_SET_PDEATHSIG = 1
_LARGEST = 1 << 18  # of an order, most of it the environment
_PACKAGES = [
    f"firebird_cdc.{name}"
    for name in ("bridge", "config", "packaging", "journal.shipper", "journal.snapshot")
]


class Popen(subprocess.Popen[Any]):
    """A Python program, ``[sys.executable, "-P", "-m", MODULE or FILE, *words]``, that is forked.

    It starts as any other if it is no such program, or if its environment tells an interpreter
    something else than ours. proc(5) shows the command line and environment of the process that
    forks.
    """

    _end: socket.socket | None = None

    def _execute_child(self, args: Sequence[Any], *given: Any) -> None:
        executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *descriptors = given[:15]
        *_, new_session, group = given
        words = [os.fspath(word) for word in args]
        environment = dict(os.environ if env is None else env)
        is_plain = not (executable or preexec_fn or pass_fds or shell) and group == -1
        if not (is_plain and _is_program(words) and _starts_alike(environment)):
            super()._execute_child(args, *given)  # type: ignore[misc]
            return
        order = {
            "words": words[1:],
            "environment": environment,
            "folder": os.fspath(Path.cwd() if cwd is None else cwd),
            "new_session": bool(new_session),
        }
        ours = (descriptors[0], descriptors[3], descriptors[5])
        streams = [usual if each == -1 else each for usual, each in enumerate(ours)]
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                message = [json.dumps(order).encode()]
                socket.send_fds(_nursery(), message, [*streams, theirs.fileno()])
            self.pid = int(self._end.recv(_LARGEST))
        finally:
            self._close_pipe_fds(*descriptors)  # type: ignore[attr-defined]
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._end is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        with suppress(BlockingIOError):
            flags = socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0
            status = int(self._end.recv(_LARGEST, flags) or signal.SIGKILL)
            self._end.close()
            return self.pid, status
        return 0, 0

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc, no-any-return]
        with suppress(subprocess.TimeoutExpired):
            self._wait(timeout=0)  # type: ignore[attr-defined]
        return self.returncode


def _is_program(words: Sequence[str]) -> bool:
    """Tell whether WORDS run a module or a file by our interpreter."""
    interpreter, *further = words
    what = next((word for word in further if word != _SAFE_PATH), "-")
    return interpreter == sys.executable and (what == "-m" or not what.startswith("-"))


def _starts_alike(environment: Mapping[str, str]) -> bool:
    """Tell whether an interpreter takes from ENVIRONMENT what it took from ours."""

    def taken(of: Mapping[str, str]) -> dict[str, str]:
        return {
            name: value
            for name, value in of.items()
            if name.startswith(_READ_AT_THE_START) and name not in _OF_NO_ACCOUNT
        }

    return taken(environment) == taken(_OURS)


def _nursery() -> socket.socket:
    """Return the way to the process that forks, which ends with this one."""
    with _starting:
        if not _started:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                argv = [sys.executable, _SAFE_PATH, __file__, str(theirs.fileno())]
                process = subprocess.Popen(argv, env=_OURS, pass_fds=[theirs.fileno()])
            _started.append((ours, process))
            atexit.register(_end)
        return _started[0][0]


def _end() -> None:
    ((way, process),) = _started
    way.close()
    process.kill()  # a fork of ours may have the other end, too
    process.wait()


_starting = threading.Lock()
_started: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []


def run(
    argv: Sequence[Any], *, timeout: float | None = None, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program as `subprocess.run` does, as a fork."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(argv, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv, output, errors)
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


class _Nursery:
    """The process that forks, for orders that come by a socket."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._ends: dict[int, socket.socket] = {}
        self._wakes, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> dict[str, Any]:
        """Fork for each order until nobody can give one; return the order in the child."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._wakes, select.POLLIN)
        poller.register(self._orders, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._wakes in ready:
                with suppress(BlockingIOError):
                    os.read(self._wakes, select.PIPE_BUF)
                self._tell_ends()
            if self._orders.fileno() in ready:
                message, descriptors, *_ = socket.recv_fds(self._orders, _LARGEST, 4)
                if not message:
                    sys.exit()
                *streams, end = descriptors
                self._ends[0] = socket.socket(fileno=end)
                child = os.fork()
                if child == 0:
                    self._leave(streams)
                    order: dict[str, Any] = json.loads(message)
                    return order
                for each in streams:
                    os.close(each)
                self._ends[child] = self._ends.pop(0)
                self._ends[child].send(str(child).encode())

    def _tell_ends(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                child, status = ended
                with self._ends.pop(child) as end, suppress(BrokenPipeError):
                    end.send(str(status).encode())

    def _leave(self, streams: Sequence[int]) -> None:
        """Have nothing of this process any more, and STREAMS in place of its own. Who still runs
        when there are no tests any more ends."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for own in (self._orders, *self._ends.values()):
            own.close()
        for descriptor in (self._wakes, self._woken):
            os.close(descriptor)
        for number, each in enumerate(streams):
            os.dup2(each, number)
            os.close(each)


def _import_all() -> None:
    for package in _PACKAGES:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            importlib.import_module(module.name)
    gc.freeze()


def _become(order: Mapping[str, Any]) -> None:
    """Be the program of ORDER."""
    if order["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    is_safe = order["words"][0] == _SAFE_PATH
    what, *words = order["words"][is_safe:]
    if what == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [what, *words]
        if not is_safe:
            sys.path.insert(0, str(Path(what).parent))
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    _import_all()
    _become(_Nursery(socket.socket(fileno=int(sys.argv[1]))).serve())
