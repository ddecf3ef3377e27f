"""Finds committed journals: the system's notifications, and scans that make good what they miss.

On Linux the thread that waits reads them itself (``inotify``). Elsewhere watchdog's own thread
puts names into a queue. Everything else belongs to the thread that made the watcher; ``wake``
alone may be called from anywhere, a signal handler included. Only names travel; nothing is
opened here.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

import logbook
from watchdog.events import (
    FileCreatedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

from firebird_cdc.journal.folder.ledger_tail import ledgers_of
from firebird_cdc.journal.shipper.inbox import inotify

_log = logbook.Logger("firebird_cdc.journal.shipper.inbox.watcher")

SAFETY_SCAN_S = 30.0
"""Longest time until a journal is found whose notification was lost (also at interval 0)."""

FOLDER_CHECK_S = 1.0
"""Seconds between two checks that the folder is still the one that is watched."""

QUEUE_LIMIT = 100_000
"""Names that may wait; beyond them the next scan finds the journals (about 10 MB)."""

_MOST_READS = 100  # of some hundred names, before the caller has its turn again
_OF_LEDGERS = (".ledger", ".lock")
_JOURNAL_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.log")


def is_journal_name(name: str) -> bool:
    """Tell whether NAME is that of a committed journal, ``<uuid>.log``; never ``.log.live``."""
    return _JOURNAL_NAME.fullmatch(name) is not None


def list_journals(directory: Path) -> Iterator[str]:
    """Yield the names of all committed journals in DIRECTORY, in no order. Raises OSError."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_journal_name(entry.name):
                yield entry.name


class Folder(Enum):
    """State of the watched folder, compared with the last check."""

    SAME = "same"
    LOST = "lost"
    AWAY = "away"
    BACK = "back"


class _Source(Protocol):
    """Source of notifications, for as long as one folder is watched."""

    fd: int  # readable when there are some

    def read(self) -> list[str]:
        """Return some of the names that have come; none if that are all. Raises Overflow."""
        ...

    def close(self) -> None: ...


class _Watchdog(FileSystemEventHandler):
    """Notifications by way of watchdog, where the system has no inotify."""

    def __init__(self, directory: Path) -> None:
        self._names: SimpleQueue[str] = SimpleQueue()
        self._dropped = False
        self._observer = Observer()
        self._observer.schedule(
            self, str(directory), event_filter=[FileMovedEvent, FileCreatedEvent]
        )
        ledgers = ledgers_of(directory)
        if ledgers.is_dir():
            self._observer.schedule(self, str(ledgers), event_filter=[FileModifiedEvent])
        self._observer.start()
        self.fd, self._signal = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._signal, False)

    def dispatch(self, event: FileSystemEvent) -> None:
        path = event.dest_path if isinstance(event, FileMovedEvent) else event.src_path
        if self._names.qsize() < QUEUE_LIMIT:
            self._names.put(os.path.basename(os.fsdecode(path)))  # noqa: PTH119 - cheap
        else:
            self._dropped = True
        _write(self._signal)

    def read(self) -> list[str]:
        _drain(self.fd)
        if self._dropped:
            self._dropped = False
            raise inotify.Overflow
        names = []
        with contextlib.suppress(Empty):
            while True:
                names.append(self._names.get_nowait())
        return names

    def close(self) -> None:
        self._observer.stop()
        self._observer.join()
        os.close(self.fd)
        os.close(self._signal)


def _write(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):  # full: its reader wakes up anyway
        os.write(pipe, b"\0")


def _drain(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(pipe, 4096):
            pass


def _open_source(directory: Path) -> _Source:
    """Begin to watch DIRECTORY. Raises OSError."""
    if inotify.AVAILABLE:
        return inotify.Inotify(directory, ledgers_of(directory))
    return _Watchdog(directory)


class JournalWatcher:
    """Watches one journal folder.

    ``interval_s``: the user's own period for scans, 0 for none; ``idle_s``: period of scans
    while the system gives no notifications (its limit on watches may be reached). ``followed``:
    keys of the databases whose ledgers are of interest.
    """

    def __init__(self, directory: Path, interval_s: float, idle_s: float) -> None:
        self.directory = directory
        self._interval_s = min(interval_s or SAFETY_SCAN_S, SAFETY_SCAN_S)
        self._idle_s = idle_s
        self._names: list[str] = []
        self._ledgers: set[str] = set()
        self.followed: set[str] = set()
        self._dropped = False
        self._source: _Source | None = None
        self._identity: tuple[int, int] | None = None
        self._next_scan = 0.0
        self._next_check = 0.0
        self._told_unwatched = False
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    def attach(self) -> None:
        """Begin to watch the folder as it is now; a scan is due at once. Raises OSError."""
        self.detach()
        status = self.directory.stat()
        self._identity = (status.st_dev, status.st_ino)
        self._next_scan = 0.0
        try:
            self._source = _open_source(self.directory)
        except OSError as error:
            if not self._told_unwatched:
                _log.warning(
                    "{}: the system gives no notifications ({}), so the folder is scanned every"
                    " {} s; raise fs.inotify.max_user_watches and max_user_instances",
                    self.directory,
                    error,
                    self._idle_s,
                )
            self._told_unwatched = True
            return
        self._told_unwatched = False
        self._poll.register(self._source.fd, select.POLLIN)

    def detach(self) -> None:
        """Stop watching; names that were already read stay."""
        source, self._source = self._source, None
        if source is not None:
            self._poll.unregister(source.fd)
            source.close()

    def close(self) -> None:
        """Give everything back; ``wake`` does nothing any more."""
        self.detach()
        woken, waker = self._woken, self._waker
        self._woken = self._waker = -1
        if waker >= 0:
            os.close(waker)
            os.close(woken)

    def wake(self) -> None:
        """End a ``wait`` at once. Safe in a signal handler."""
        if self._waker >= 0:
            _write(self._waker)

    def wait(self, timeout_s: float) -> None:
        """Return when a journal or a change of a ledger was notified, after ``wake``, or after
        TIMEOUT_S."""
        end = monotonic() + timeout_s
        while not self._names and not self._ledgers and not self._dropped:
            left = end - monotonic()
            ready = self._poll.poll(max(left * 1000, 0))
            self._read()
            if left <= 0:
                return
            if any(fd == self._woken for fd, _ in ready):
                _drain(self._woken)
                return

    def take_ledgers(self) -> set[str]:
        """Return the keys of the databases whose ledgers have changed since the last call."""
        self._read()
        keys, self._ledgers = self._ledgers, set()
        return keys

    def take(self) -> list[str]:
        """Return the names notified since the last call; a name may come more than once."""
        self._read()
        names, self._names = self._names, []
        return names

    def _read(self) -> None:
        """Take what has come, but for what is too much."""
        if self._source is None:
            return
        for _ in range(_MOST_READS):
            try:
                names = self._source.read()
            except inotify.Overflow:
                self._dropped = True
                continue
            if not names:
                return
            for name in names:
                if is_journal_name(name):
                    self._names.append(name)
                elif name.endswith(_OF_LEDGERS):
                    self._ledgers |= {name.partition(".")[0]} & self.followed
            if len(self._names) > QUEUE_LIMIT:
                self._dropped = True
                del self._names[QUEUE_LIMIT:]

    @property
    def scan_due(self) -> bool:
        """Tell whether it is time to look at the whole folder."""
        return self._dropped or monotonic() >= self._next_scan

    def scan(self) -> Iterator[str]:
        """Yield the names of all journals that are there; the next scan is due an interval later.

        Raises OSError if the folder can't be read.
        """
        self._dropped = False
        try:
            yield from list_journals(self.directory)
        except OSError:
            self._next_scan = monotonic() + FOLDER_CHECK_S
            raise
        pause = self._interval_s if self._source is not None else self._idle_s
        self._next_scan = monotonic() + pause

    def request_scan(self) -> None:
        """Make a scan due now."""
        self._next_scan = 0.0

    @property
    def is_there(self) -> bool:
        """Tell whether the folder was there when it was last checked."""
        return self._identity is not None

    def check_folder(self) -> Folder:
        """Tell whether the folder is still the same; cheap enough for every turn of a loop.

        LOST and BACK are told once each; BACK goes on to be told until ``attach`` succeeds.
        """
        now = monotonic()
        if now < self._next_check:
            return Folder.SAME if self._identity is not None else Folder.AWAY
        self._next_check = now + FOLDER_CHECK_S
        try:
            status = self.directory.stat()
            identity = (status.st_dev, status.st_ino)
        except OSError:
            if self._identity is None:
                return Folder.AWAY
            self._identity = None
            return Folder.LOST
        return Folder.SAME if identity == self._identity else Folder.BACK
