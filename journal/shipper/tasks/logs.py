"""Tells of log files that can't be written, where people look at the shipper."""

from __future__ import annotations

import os
from pathlib import Path

from firebird_cdc.config.logging import log_trouble, servers_log_trouble
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_LOOK_S = 10.0
_WHOSE = {"log of the shipper": log_trouble, "log of the server": servers_log_trouble}
_REMEDY = "let this user write there, or set another file in the logging configuration"


class LogWatch:
    """A chore of the shipper: has the statistics tell what keeps logs from being written.

    Of the server's it can tell as the server's user only, who owns the journal folder.
    """

    def __init__(self, folder: Path, statistics: Statistics) -> None:
        self._folder = folder
        self._statistics = statistics

    def turn(self, now: float) -> float:
        """Look at both."""
        is_servers = self._folder.stat().st_uid == os.geteuid()
        for subject, look in _WHOSE.items():
            trouble = look() if is_servers or look is log_trouble else None
            if trouble is None:
                self._statistics.clear(subject)
            else:
                self._statistics.trouble(subject, "warning", f"{trouble}: {_REMEDY}")
        return now + _LOOK_S

    def close(self) -> None:
        """Nothing is open."""
