"""Measures what the journals of a folder take on disk, and warns; see journal/folder/disk_usage.py.

The plugin adds up what journals grow by (native/counters.c) and heeds the limit; only deletions by
a shipper have to be found by measuring. One process of the folder does so about once a second, the
one that holds ``disk.lock``; less often where there are so many journals that it takes long.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time

import logbook

from firebird_cdc.bridge.host import Host
from firebird_cdc.journal.folder.disk_usage import LOCK, SHARE, Alarm, DiskLimits, DiskState
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import try_lock

_log = logbook.Logger("firebird_cdc.bridge.disk")

_LOOK_S = 1.0
_FRESH_MS = 1000  # another process has measured


class DiskMeter:
    """The thread fbc-disk. ``use`` may be called from any, again with another folder."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._folder: JournalFolder | None = None
        self._limits = DiskLimits()
        self._alarm = Alarm(self._limits)
        self._measuring: int | None = None  # the lock of the folder, while it is ours

    def use(self, folder: JournalFolder, limits: DiskLimits) -> None:
        """Work with this folder, which is measured at once: what was known of it may be old."""
        self._host.limit_disk(limits.max_bytes)
        self._host.measure_disk(_FRESH_MS)
        with self._lock:
            is_first = self._folder is None
            if folder is not self._folder and self._measuring is not None:
                os.close(self._measuring)
                self._measuring = None
            self._folder = folder
            if limits != self._limits:
                self._limits, self._alarm = limits, Alarm(limits)
        if is_first:
            threading.Thread(target=self._run, name="fbc-disk", daemon=True).start()

    def _run(self) -> None:
        pause = _LOOK_S
        while True:
            time.sleep(pause)
            try:
                with self._lock:
                    pause = self._turn()
            except Exception as error:
                _log.error("cannot measure the journals: {}", error)
                pause = 60 * _LOOK_S

    def _turn(self) -> float:
        """Measure and warn, if that is ours to do; return how long to wait."""
        folder = self._folder
        assert folder is not None
        if not folder.is_in_place():
            return _LOOK_S
        if self._measuring is None:
            self._measuring = try_lock(folder.state / LOCK, fcntl.LOCK_EX)
            if self._measuring is None:
                return _LOOK_S
        found = self._host.measure_disk(0)
        file_system = os.fstatvfs(folder.journal_fd)
        free = file_system.f_bavail * file_system.f_frsize
        self._alarm.tell(DiskState(folder.path, found.bytes, free, found.is_full))
        return max(_LOOK_S, SHARE * found.cost_ms / 1000)
