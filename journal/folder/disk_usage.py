"""What journals that wait take on disk: when to warn of it, and a watch over it in the shipper.

A server measures by itself (bridge/disk.py) and heeds ``connector.journal.max.bytes``. The shipper
takes over its figures while they are fresh, and measures where no server runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Final, NamedTuple

import logbook

from firebird_cdc.config import CaptureConfig, ConnectorConfig
from firebird_cdc.journal.folder.counters import read_counters
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, is_held
from firebird_cdc.journal.shipper.monitoring.statistics import DISK, Statistics

_log = logbook.Logger("firebird_cdc.journal.folder.disk_usage")

LOCK: Final = "disk.lock"
"""Held by the server process that measures and warns."""

SHARE: Final = 20
"""Of the time that measuring takes passes, at least, before it is done again."""

_BLOCK = 4096
_LOOK_S = 2.0
_FRESH_S = 5.0
_SETTLED = 0.9  # a warning ends when that much of the bound is left: it must not flap


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """The options about it, in bytes; 0: off. ``mode``: connector.capture.failure.mode."""

    warn_bytes: int = 0
    max_bytes: int = 0
    min_free_bytes: int = 0
    mode: str = "refuse"

    @classmethod
    def of(cls, config: CaptureConfig | ConnectorConfig) -> DiskLimits:
        """The limits that CONFIG sets."""
        return cls(
            config.journal_warn_bytes,
            config.journal_max_bytes,
            config.journal_min_free_bytes,
            config.capture_failure_mode,
        )


class DiskState(NamedTuple):
    """What was measured. ``is_full``: the limit was reached, and not left since."""

    folder: Path
    bytes: int
    free: int
    is_full: bool


class Alarm:
    """What is wrong with the disk, kept over time: an alarm that began ends only when it is well
    past its bound."""

    def __init__(self, limits: DiskLimits) -> None:
        self._limits = limits
        self._on: dict[str, str] = {}  # sentences by option

    def judge(self, state: DiskState) -> dict[str, str]:
        """Return a sentence for each bound that is passed, the worst one first; by option."""
        self._on = {name: text for name, is_passed, text in self._bounds(state) if is_passed}
        return dict(self._on)

    def tell(self, state: DiskState) -> None:
        """Log what began and what ended since the last time."""
        before = dict(self._on)
        for name, text in self.judge(state).items():
            if name not in before:
                _log.warning("{text}", text=text, option=name)
        for name in before.keys() - self._on.keys():
            _log.notice(
                "{option} is kept again: the journals in {folder} take {bytes} bytes, {free} are"
                " free on its disk",
                option=name,
                folder=state.folder,
                bytes=state.bytes,
                free=state.free,
            )

    def _bounds(self, state: DiskState) -> Iterator[tuple[str, bool, str]]:
        folder, taken, free, is_full = state
        limits = self._limits
        name = "connector.journal.max.bytes"
        outcome = "are refused" if limits.mode == "refuse" else "leave a marked gap"
        yield (
            name,
            is_full and limits.max_bytes > 0,
            f"the journals in {folder} take {taken} bytes and have reached {name}"
            f" ({limits.max_bytes}): transactions on captured tables {outcome} until"
            f" {limits.max_bytes - limits.max_bytes // 10} are left",
        )
        name = "connector.journal.min.free.bytes"
        least = limits.min_free_bytes
        yield (
            name,
            free < (least / _SETTLED if name in self._on else least),
            f"the disk of {folder} has {free} bytes left, less than {name} ({least}); when it is"
            " full, capture fails",
        )
        name = "connector.journal.warn.bytes"
        most = limits.warn_bytes
        yield (
            name,
            most > 0 and taken > (most * _SETTLED if name in self._on else most),
            f"the journals in {folder} take {taken} bytes, more than {name} ({most}); they are"
            " waiting to be sent",
        )


def measure_folder(folder: Path) -> int:
    """Return what journals take that wait in FOLDER, in bytes.

    The same sum as native/counters.c makes. Raises OSError if there is no such folder.
    """
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".log", ".log.live")):
                with contextlib.suppress(OSError):  # renamed or shipped meanwhile
                    size = entry.stat(follow_symlinks=False).st_size
                    total += -(-size // _BLOCK) * _BLOCK
    return total


class DiskWatch:
    """A chore of the shipper: has the statistics tell when journals take too much of the disk.

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
        self._said = ""

    def turn(self, now: float) -> float:
        """Look at what is known, and have it measured again if that is due."""
        counted = read_counters(self._folder).disk
        if abs(time() - counted.measured_ms / 1000) < _FRESH_S:
            self._judge(counted.bytes, counted.is_full)
        elif self._measured is not None:
            taken = self._measured[0]
            self._judge(taken, 0 < self._limits.max_bytes < taken)
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

    def _judge(self, taken: int, is_full: bool) -> None:
        try:
            file_system = os.statvfs(self._folder)
        except OSError:
            return
        state = DiskState(self._folder, taken, file_system.f_bavail * file_system.f_frsize, is_full)
        if is_held(self._folder / STATE_DIRECTORY / LOCK):
            wrong = self._alarm.judge(state)  # a server says it in the log
        else:
            self._alarm.tell(state)
            wrong = self._alarm.judge(state)
        text = next(iter(wrong.values()), "")
        known = self._statistics.troubles.get(DISK)
        if known is not None and known.kind != "warning":
            return  # something worse
        if text:
            self._statistics.trouble(DISK, "warning", text)
        elif known is not None and self._said:
            self._statistics.clear(DISK)
        self._said = text
