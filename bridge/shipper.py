"""Starts the embedded shipper, and starts it again when it has ended; lets any shipper know that a
server process lives.

One shipper works on a journal folder, whoever started it: it holds ``shipper.lock``. So under
Classic, where every connection has a server process, and beside a `firebird-cdc ship` that
somebody started by hand, the lock alone decides.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import threading
import time
from pathlib import Path

import logbook

from firebird_cdc.bridge.host import Host
from firebird_cdc.bridge.replacing import end_earlier_version, why_replace
from firebird_cdc.bridge.restarts import MOST_PAUSE_S, Restarts
from firebird_cdc.config import Reading
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder import exit_status, processes
from firebird_cdc.journal.folder.exit_status import LastWords
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import (
    BRIDGE_LOCK,
    SHIPPER_LOCK,
    bridge_present,
    is_held,
    try_lock,
)

_log = logbook.Logger("firebird_cdc.bridge.shipper")

_LOOK_S = 1.0
_START_S = 30.0  # most that Python needs until the shipper holds its lock, on a busy machine
_START_LOOK_S = 0.1
_END_S = 120.0  # most that a shipper is given to finish what is under way

# What the server's environment may hold that is not for a process of its own: credentials of
# Firebird's tools, and what systemd tells its one main process.
_NOT_INHERITED = [
    "ISC_USER",
    "ISC_PASSWORD",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
]

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop(1).split(':'); "
    "from firebird_cdc.cli import main; sys.exit(main())"
)


def python_program() -> Path:
    """Return the Python program of this interpreter, for a process of our own.

    Inside a server ``sys.executable`` is whatever was found on its PATH, as the Python of the
    system, which may be of another version than ours and can't load what is compiled for it.
    Raises CaptureError if there is none.
    """
    name = f"python3.{sys.version_info.minor}"
    candidates = [
        Path(sys.base_exec_prefix) / "bin" / name,
        *([Path(sys.executable)] if sys.executable else []),
        Path("/usr/bin") / name,
    ]
    for candidate in candidates:
        if candidate.resolve().name == name and os.access(candidate, os.X_OK):
            return candidate
    raise CaptureError(
        f"no {name} found to run the shipper (looked at {', '.join(map(str, candidates))}); "
        "install it, or set connector.shipper: external and run `firebird-cdc ship`"
    )


class ShipperSupervisor(threading.Thread):
    """Holds the folder's ``bridge.lock`` (shared) while this process lives, so that a shipper
    knows when the last server process has gone; where it STARTS one, sees to it that it runs."""

    def __init__(
        self,
        host: Host,
        folder: JournalFolder,
        reading: Reading,
        logging: Path | None,
        *,
        starts: bool = True,
    ) -> None:
        super().__init__(name="fbc-shipper", daemon=True)
        self._host = host
        self._folder = folder
        self._reading = reading
        self._config = Path(reading.path)
        self._logging = logging
        self._starts = starts
        self._bridge_lock: int | None = None
        self._retired = threading.Event()
        self._told_to_wait = 0.0  # about which last words, by their time
        self._spawned_at = 0.0  # monotonic; 0: never by us
        self._adopted: set[int] = set()  # see _bury
        self._restarts = Restarts()
        self._asked: set[str] = set()  # shippers that were to end, each asked once by us

    def retire(self) -> None:
        """End: the folder or the configuration changed, another supervisor takes over."""
        self._retired.set()

    def run(self) -> None:
        pause = 0.0
        try:
            while not self._retired.wait(pause):
                try:
                    pause = self._turn()
                except Exception as error:
                    self._tell_failure(f"it can't be started: {error}")
                    pause = MOST_PAUSE_S
        finally:
            if self._bridge_lock is not None:
                os.close(self._bridge_lock)

    def _tell_failure(self, why: str) -> None:
        """Say why there is no shipper, in the log and where ``status`` looks."""
        _log.error("the shipper does not run: {}", why)
        changed = exit_status.changed_ns(self._config)
        words = LastWords(1, why, changed, time.time(), str(self._config))
        exit_status.leave(self._last_words, words)

    def _turn(self) -> float:
        """Start a shipper if none runs; return how long to wait before the next look."""
        self._bury()
        state = self._folder.state
        if self._bridge_lock is None:
            is_first = not bridge_present(self._folder.path)
            self._bridge_lock = try_lock(state / BRIDGE_LOCK, fcntl.LOCK_SH)
            if self._bridge_lock is None:
                return _LOOK_S  # a shipper is just making sure that nobody is left
            if is_first and self._starts:
                self._last_words.unlink(missing_ok=True)  # a server's start is a new attempt
        if not self._starts:
            return _LOOK_S
        # One process at a time looks and starts, until its shipper holds the lock itself.
        starting = try_lock(state / "starting.lock", fcntl.LOCK_EX)
        if starting is None:
            return _LOOK_S
        try:
            if is_held(state / SHIPPER_LOCK):
                if not self._replaces():
                    return _LOOK_S
                self._spawned_at = 0.0
            if self._must_wait():
                return _LOOK_S
            if self._spawned_at and self._pauses(time.monotonic() - self._spawned_at):
                return 0.0
            process = self._start()
            self._spawned_at = time.monotonic()
            self._await_lock(process)
        finally:
            os.close(starting)
        return _LOOK_S

    def _pauses(self, lived_s: float) -> bool:
        """Pause if the last shipper, which lived for LIVED_S, gives reason; return whether this
        supervisor was retired meanwhile."""
        pause_s = self._restarts.pause_after(lived_s)
        if not pause_s:
            return False
        _log.warning(
            "the shipper ended after {:.0f} s (see above); next start in {:.0f} s", lived_s, pause_s
        )
        return self._retired.wait(pause_s)

    def _replaces(self) -> bool:
        """Have the shipper at work end if it is to be replaced; return whether it has ended."""
        shipper = processes.read_shipper(self._folder.path)
        if shipper is None or shipper.name in self._asked:
            return False
        try:
            why = self._ask_to_end(shipper)
        except OSError as error:
            _log.error("the shipper, process {}, can't be replaced: {}", shipper.process, error)
            return False
        if not why:
            return False
        _log.notice("the shipper, process {}, is replaced: {}", shipper.process, why)
        return self._await_end(shipper)

    def _ask_to_end(self, shipper: processes.Shipper) -> str:
        """Ask SHIPPER to end if it is to be replaced, and only once; return why, or nothing."""
        directory, record = self._folder.path, shipper.record
        if record is not None:
            why = why_replace(directory, record, self._reading)
            if why:
                self._asked.add(shipper.name)
                processes.ask_to_end(directory, record)
            return why
        self._asked.add(shipper.name)
        was_told = end_earlier_version(directory, shipper.process)
        return "it is of an earlier version" if was_told else ""

    def _await_end(self, shipper: processes.Shipper) -> bool:
        """Return whether SHIPPER gives the lock free in time, and no other has taken it."""
        end = time.monotonic() + _END_S
        while is_held(self._folder.state / SHIPPER_LOCK):
            holder = processes.read_shipper(self._folder.path)
            if holder is not None and holder.name != shipper.name:
                return False
            if time.monotonic() > end:
                _log.error(
                    "the shipper, process {}, was to end and has not within {:.0f} s; end it",
                    shipper.process,
                    _END_S,
                )
                return False
            if self._retired.wait(_START_LOOK_S):
                return False
        return True

    @property
    def _last_words(self) -> Path:
        return exit_status.words_path(self._folder.path)

    def _must_wait(self) -> bool:
        """Tell whether the last shipper ended for a cause that would end the next one as well."""
        words = exit_status.read(self._last_words)
        hold_s = words.hold_s(self._config) if words else 0.0
        if words and hold_s and words.at != self._told_to_wait:
            self._told_to_wait = words.at
            _log.error(
                "the shipper ended (exit code {}): {}. It is started again when {} is changed or"
                " the server is started, or else in {:.0f} min",
                words.code,
                words.text.replace("\n", " "),
                self._config,
                hold_s / 60,
            )
        return hold_s > 0

    def _await_lock(self, process: int) -> None:
        """Wait until the shipper holds its lock, or has ended."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end and not self._retired.wait(_START_LOOK_S):
            self._bury()
            if is_held(self._folder.state / SHIPPER_LOCK) or not is_alive(process):
                return

    def _start(self) -> int:
        """Start a shipper; return its process number. Raises CaptureError without a Python."""
        python = python_program()
        path = ":".join(str(Path(entry).absolute()) for entry in sys.path if entry)
        # -I: the server's path is its path, and the environment tells it nothing of Python.
        arguments = [str(python), "-I", "-c", _PROGRAM, path]
        arguments += ["ship", "--embedded", "--config", str(self._config.absolute())]
        arguments += ["--last-words", str(self._last_words)]
        if self._logging is not None:
            arguments += ["--logging", str(self._logging.absolute())]
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
        process = self._host.spawn(python, arguments, environment)
        _log.info("started the shipper, process {}", process)
        if os.getpid() == 1:
            self._adopted.add(process)
        return process

    def _bury(self) -> None:
        """Take leave of shippers that have ended, where this process is the first one of a
        container: to that one the kernel gives all whose parents are gone."""
        for process in list(self._adopted):
            try:
                ended, _ = os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                ended = process  # another one adopts them here
            if ended:
                self._adopted.discard(process)


def is_alive(process: int) -> bool:
    """Tell whether PROCESS is alive; a zombie, for which nobody has waited, is not.

    Asks the kernel, as /proc may be absent or show the numbers of another namespace. Source:
    pidfd_open(2).
    """
    try:
        os.kill(process, 0)
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3: one that has ended counts until it is buried
        return True
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return not ended.poll(0)
    finally:
        os.close(descriptor)
