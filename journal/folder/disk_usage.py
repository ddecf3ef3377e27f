"""Disk usage of journals that wait: when to warn of it, and a watch over it in the shipper.

A server measures by itself (bridge/disk.py) and heeds ``connector.journal.max.bytes``. The shipper
takes over its figures while they are fresh, and measures where no server runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import logbook

from firebird_cdc.config import CaptureConfig, ConnectorConfig

_log = logbook.Logger("firebird_cdc.journal.folder.disk_usage")

LOCK: Final = "disk.lock"
"""Held by the server process that measures and warns."""

SHARE: Final = 20
"""Least pause before measuring again, as a multiple of the time that measuring took."""

_BLOCK = 4096
_SETTLED = 0.9  # a warning ends when that much of the bound is left: it must not flap


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Options on disk usage, in bytes; 0: off. ``mode``: connector.capture.failure.mode."""

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
    """Disk usage as it was measured. ``is_full``: the limit was reached, and not left since."""

    folder: Path
    bytes: int
    free: int
    is_full: bool


class Alarm:
    """Alarms about the disk, kept over time: one that began ends only when the figure is well
    clear of its bound."""

    def __init__(self, limits: DiskLimits) -> None:
        self._limits = limits
        self._on: dict[str, str] = {}  # sentences by option

    def problems(self, state: DiskState) -> dict[str, str]:
        """Return a sentence for each bound that is passed, the worst one first; by option."""
        self._on = {name: text for name, is_passed, text in self._bounds(state) if is_passed}
        return dict(self._on)

    def tell(self, state: DiskState) -> None:
        """Log what began and what ended since the last time."""
        before = dict(self._on)
        for name, text in self.problems(state).items():
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
            f" usage falls below {limits.max_bytes - limits.max_bytes // 10} bytes",
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
            f"the journals in {folder} take {taken} bytes, more than {name} ({most}): what is in"
            " them waits to be sent, or a server still writes to them",
        )


def measure_folder(folder: Path) -> int:
    """Return the disk usage of the journals that wait in FOLDER, in bytes.

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
