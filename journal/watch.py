"""Finds committed journals: the system's notifications, and scans that make good what they miss.

Threads: watchdog's own thread only puts names into a queue; everything else belongs to the
thread that made the watcher. ``wake`` alone may be called from anywhere, a signal handler
included. Only names travel; nothing is opened here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic

import logbook
from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

_log = logbook.Logger("firebird_cdc.journal.watch")

SAFETY_SCAN_S = 30.0
"""Longest time until a journal is found whose notification was lost (also at interval 0)."""

FOLDER_CHECK_S = 1.0
"""How often the folder is asked whether it is still the one that is watched."""

QUEUE_LIMIT = 100_000
"""Names that may wait; beyond them the next scan finds the journals (about 10 MB)."""

_JOURNAL_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.log")


def is_journal_name(name: str) -> bool:
    """Whether NAME is that of a committed journal, ``<uuid>.log``; never ``.log.live``."""
    return _JOURNAL_NAME.fullmatch(name) is not None


def list_journals(directory: Path) -> Iterator[str]:
    """Yield the names of all committed journals in DIRECTORY, in no order. Raises OSError."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_journal_name(entry.name):
                yield entry.name


class Folder(Enum):
    """What has become of the watched folder since it was last asked."""

    SAME = "same"
    LOST = "lost"
    AWAY = "away"
    BACK = "back"


class _Handler(FileSystemEventHandler):
    def __init__(self, names: SimpleQueue[str]) -> None:
        self._names = names
        self.dropped = False

    def dispatch(self, event: FileSystemEvent) -> None:
        path = event.dest_path if isinstance(event, FileMovedEvent) else event.src_path
        name = os.path.basename(os.fsdecode(path))  # noqa: PTH119 - once per event, so cheaply
        if not is_journal_name(name):
            return
        if self._names.qsize() < QUEUE_LIMIT:
            self._names.put(name)
        else:
            self.dropped = True


class JournalWatcher:
    """Watches one journal folder.

    ``interval_s``: the user's own period for scans, 0 for none; ``idle_s``: period of scans
    while the system gives no notifications (its limit on watches may be reached).
    """

    def __init__(self, directory: Path, interval_s: float, idle_s: float) -> None:
        self.directory = directory
        self._interval_s = min(interval_s or SAFETY_SCAN_S, SAFETY_SCAN_S)
        self._idle_s = idle_s
        self._names: SimpleQueue[str] = SimpleQueue()
        self._taken: list[str] = []
        self._handler = _Handler(self._names)
        self._observer: BaseObserver | None = None
        self._identity: tuple[int, int] | None = None
        self._next_scan = 0.0
        self._next_check = 0.0
        self._told_unwatched = False

    def attach(self) -> None:
        """Begin to watch the folder as it is now; a scan is due at once. Raises OSError."""
        self.detach()
        status = self.directory.stat()
        self._identity = (status.st_dev, status.st_ino)
        self._next_scan = 0.0
        observer = Observer()
        try:
            observer.schedule(
                self._handler,
                str(self.directory),
                event_filter=[FileMovedEvent, FileCreatedEvent, FileClosedEvent],
            )
            observer.start()
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
        self._observer = observer

    def detach(self) -> None:
        """Stop watching; names that were already notified stay in the queue."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join()

    def wake(self) -> None:
        """End a ``wait`` at once. Safe in a signal handler: SimpleQueue.put is reentrant."""
        self._names.put("")

    def wait(self, timeout_s: float) -> None:
        """Return when a journal was notified, after ``wake``, or after TIMEOUT_S."""
        if not self._taken:
            try:
                self._taken.append(self._names.get(timeout=max(timeout_s, 0.001)))
            except Empty:
                return

    def take(self) -> list[str]:
        """Return the names notified since the last call; a name may come more than once."""
        names, self._taken = self._taken, []
        while True:
            try:
                names.append(self._names.get_nowait())
            except Empty:
                return [name for name in names if name]

    @property
    def scan_due(self) -> bool:
        """Whether it is time to look at the whole folder."""
        return self._handler.dropped or monotonic() >= self._next_scan

    def scan(self) -> Iterator[str]:
        """Yield the names of all journals that are there; the next scan is due an interval later.

        Raises OSError if the folder can't be read.
        """
        self._handler.dropped = False
        yield from list_journals(self.directory)
        pause = self._interval_s if self._observer is not None else self._idle_s
        self._next_scan = monotonic() + pause

    def request_scan(self) -> None:
        """Make a scan due now."""
        self._next_scan = 0.0

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
