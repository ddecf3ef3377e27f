"""Starts the embedded shipper, and starts it again when it has ended.

One shipper works on a journal folder, whoever started it: it holds ``shipper.lock``. So under
Classic, where every connection has a server process, and beside a `firebird-cdc ship` that
somebody started by hand, the lock alone decides.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from pathlib import Path

import logbook

from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import Host
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.lock import try_lock

_log = logbook.Logger("firebird_cdc.bridge.shipper")

_LOOK_S = 1.0
_SHORT_LIFE_S = 10.0  # a shipper that ends sooner has a fault that a new one will have too
_BACKOFF_MOST_S = 60.0
_START_S = 3.0  # what Python needs until the shipper holds its lock

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop(1).split(':'); "
    "from firebird_cdc.cli import main; sys.exit(main())"
)


def python_program() -> Path:
    """Return the Python program of this interpreter, for a process of our own.

    Inside a server ``sys.executable`` is whatever was found on its PATH, or nothing.
    Raises CaptureError if there is none.
    """
    name = f"python3.{sys.version_info.minor}"
    own = Path(sys.executable) if sys.executable else None
    candidates = [
        *([own] if own and own.name.startswith("python") else []),
        Path(sys.base_exec_prefix) / "bin" / name,
        Path("/usr/bin") / name,
    ]
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    raise CaptureError(
        f"no {name} found to run the shipper (looked at {', '.join(map(str, candidates))}); "
        "install it, or set connector.shipper: external and run `firebird-cdc ship`"
    )


class ShipperSupervisor(threading.Thread):
    """Holds the folder's ``bridge.lock`` (shared) while this process lives, so that a shipper
    knows when the last server process has gone, and sees to it that a shipper runs."""

    def __init__(
        self, host: Host, folder: JournalFolder, config: Path, logging: Path | None, python: Path
    ) -> None:
        super().__init__(name="fbc-shipper", daemon=True)
        self._host = host
        self._folder = folder
        self._config = config
        self._logging = logging
        self._python = python
        self._bridge_lock: int | None = None
        self._retired = threading.Event()
        self._spawned_at = 0.0  # monotonic; 0: never by us
        self._adopted: set[int] = set()  # see _bury
        self._backoff = _LOOK_S

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
                    _log.error("cannot start the shipper: {}", error)
                    pause = _BACKOFF_MOST_S
        finally:
            if self._bridge_lock is not None:
                os.close(self._bridge_lock)

    def _turn(self) -> float:
        """Start a shipper if none runs; return how long to wait before the next look."""
        self._bury()
        state = self._folder.state
        if self._bridge_lock is None:
            self._bridge_lock = try_lock(state / "bridge.lock", fcntl.LOCK_SH)
            if self._bridge_lock is None:
                return _LOOK_S  # a shipper is just making sure that nobody is left
        # One process at a time looks and starts, until its shipper holds the lock itself.
        starting = try_lock(state / "starting.lock", fcntl.LOCK_EX)
        if starting is None:
            return _LOOK_S
        try:
            free = try_lock(state / "shipper.lock", fcntl.LOCK_SH)
            if free is None:
                return _LOOK_S
            os.close(free)
            lived = time.monotonic() - self._spawned_at
            if self._spawned_at and lived < _SHORT_LIFE_S + self._backoff:
                self._backoff = min(2 * self._backoff, _BACKOFF_MOST_S)
                _log.warning(
                    "the shipper ended after {:.0f} s (see above); next start in {:.0f} s",
                    lived,
                    self._backoff,
                )
                if self._retired.wait(self._backoff):
                    return 0.0
            else:
                self._backoff = _LOOK_S
            self._start()
            self._spawned_at = time.monotonic()
            self._retired.wait(_START_S)
        finally:
            os.close(starting)
        return _LOOK_S

    def _start(self) -> None:
        arguments = [str(self._python), "-c", _PROGRAM, ":".join(filter(None, sys.path))]
        arguments += ["ship", "--embedded", "--config", str(self._config)]
        if self._logging is not None:
            arguments += ["--logging", str(self._logging)]
        process = self._host.spawn(self._python, arguments, dict(os.environ))
        _log.info("started the shipper, process {}", process)
        if os.getpid() == 1:
            self._adopted.add(process)

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
