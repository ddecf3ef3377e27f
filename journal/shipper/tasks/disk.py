"""Measures what waiting journals take on disk, and has the statistics tell of it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from time import monotonic, time

from firebird_cdc.journal.folder.counters import read_counters
from firebird_cdc.journal.folder.disk_usage import (
    LOCK,
    SHARE,
    Alarm,
    DiskLimits,
    DiskState,
    measure_folder,
)
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, is_held
from firebird_cdc.journal.folder.subjects import DISK
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_LOOK_S = 2.0
_FRESH_S = 5.0


class DiskWatch:
    """A periodic task of the shipper: has the statistics tell when journals take too much of the
    disk.

    What takes longer than a moment runs on a thread of its own.
    """

    def __init__(self, folder: Path, limits: DiskLimits, statistics: Statistics) -> None:
        self._folder = folder
        self._limits = limits
        self._statistics = statistics
        self._alarm = Alarm(limits)
        self._measured: tuple[int, float] | None = None  # bytes, and how long it took
        self._measuring: threading.Thread | None = None
        self._again_at = 0.0  # monotonic

    def turn(self, now: float) -> float:
        """Look at what is known, and have it measured again if that is due."""
        counted = read_counters(self._folder).disk
        if abs(time() - counted.measured_ms / 1000) < _FRESH_S:
            self._report(counted.bytes, counted.is_full)
        elif self._measured is not None:
            taken = self._measured[0]
            self._report(taken, 0 < self._limits.max_bytes < taken)
            if now >= self._again_at:
                self._measure(now)
        else:
            self._measure(now)
        return now + _LOOK_S

    def close(self) -> None:
        """The thread ends by itself."""

    def _measure(self, now: float) -> None:
        if self._measuring is not None and self._measuring.is_alive():
            return
        cost = self._measured[1] if self._measured is not None else 0.0
        self._again_at = now + SHARE * cost
        self._measuring = threading.Thread(target=self._run, name="fbc-disk", daemon=True)
        self._measuring.start()

    def _run(self) -> None:
        since = monotonic()
        with contextlib.suppress(OSError):  # whoever ships from it tells more
            self._measured = (measure_folder(self._folder), monotonic() - since)

    def _report(self, taken: int, is_full: bool) -> None:
        try:
            file_system = os.statvfs(self._folder)
        except OSError:
            return
        state = DiskState(self._folder, taken, file_system.f_bavail * file_system.f_frsize, is_full)
        if is_held(self._folder / STATE_DIRECTORY / LOCK):
            wrong = self._alarm.problems(state)  # a server says it in the log
        else:
            self._alarm.tell(state)
            wrong = self._alarm.problems(state)
        text = next(iter(wrong.values()), "")
        if text:
            self._statistics.trouble(DISK, "warning", text)
        else:
            self._statistics.clear(DISK)
