"""Watches: periodic tasks that have the statistics tell what somebody else has noticed.

Each takes the time of its turn and returns that of the next one (monotonic, in seconds).
"""

from __future__ import annotations

import os
from pathlib import Path

import logbook

from firebird_cdc.config.logging import log_trouble, servers_log_trouble
from firebird_cdc.journal.folder.failed_syncs import ENDING, Doubt
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.processes import disagreements
from firebird_cdc.journal.folder.shared_page import read_confirmer
from firebird_cdc.journal.folder.subjects import CONFIRMER, OPTIONS, UNDECIDED
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_log = logbook.Logger("firebird_cdc.journal.shipper.tasks.watches")

_LOOK_S = 10.0
_CONFIRMER_LOOK_S = 2.0


class ConfirmerWatch:
    """A periodic task of the shipper: has the statistics tell of what ``ConfirmerState`` finds
    wrong."""

    def __init__(self, folder: Path, statistics: Statistics) -> None:
        self._folder = folder
        self._statistics = statistics

    def turn(self, now: float) -> float:
        """Look at the page."""
        found = read_confirmer(self._folder).troubles(self._folder)
        for subject in (CONFIRMER, UNDECIDED):
            if subject not in found:
                self._statistics.clear(subject)
                continue
            kind, text = found[subject]
            if subject not in self._statistics.troubles:
                _log.warning("{}", text)
            self._statistics.trouble(subject, kind, text)
        return now + _CONFIRMER_LOOK_S

    def close(self) -> None:
        """There is nothing to give back."""


class ProcessWatch:
    """A periodic task of the shipper: has the statistics tell of ``disagreements``."""

    def __init__(self, directory: Path, statistics: Statistics) -> None:
        self._directory = directory
        self._statistics = statistics

    def turn(self, now: float) -> float:
        """Look at who is at work."""
        found = "; ".join(map(str, disagreements(self._directory)))
        if not found:
            self._statistics.clear(OPTIONS)
        else:
            if OPTIONS not in self._statistics.troubles:
                _log.warning("{}", found)
            self._statistics.trouble(OPTIONS, "warning", found)
        return now + _LOOK_S

    def close(self) -> None:
        """There is nothing to give back."""


class DoubtWatch:
    """A periodic task of the shipper: has the statistics tell of such databases."""

    def __init__(self, folder: Path, statistics: Statistics) -> None:
        self._databases = folder / STATE_DIRECTORY / "databases"
        self._statistics = statistics

    def turn(self, now: float) -> float:
        """Look for them."""
        for path in self._databases.glob(f"*{ENDING}"):
            if (database := Doubt(path).database()) is not None:
                self._statistics.trouble(
                    f"disk of {database}",
                    "warning",
                    f"a sync of {database} failed: journals of what is not on its disk wait. Check "
                    "the disk, then the database (gfix -validate), and restart the machine",
                )
        return now + _LOOK_S

    def close(self) -> None:
        """Nothing is open."""


_WHOSE = {"log of the shipper": log_trouble, "log of the server": servers_log_trouble}


_REMEDY = "let this user write there, or set another file in the logging configuration"


class LogWatch:
    """A periodic task of the shipper: has the statistics tell what keeps logs from being written.

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
