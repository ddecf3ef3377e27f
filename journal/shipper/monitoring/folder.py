"""Backlog of the journal folder, counted now and then so that it costs next to nothing."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from time import monotonic, perf_counter
from typing import NamedTuple

from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.format import SharedJournal, database_of, open_any
from firebird_cdc.journal.shipper.monitoring.statistics import BacklogFigures, DatabaseBacklog
from firebird_cdc.journal.shipper.quarantine import in_order, read_reason

FRESH_S = 1.0
"""Figures younger than this are given again."""

_SHARE = 50
"""Of the time, counting takes one part in so many: a folder of a million is counted less often."""

_SIZED = 20_000
"""Journals whose sizes are looked at; with more of them the sum is an estimate."""

_NAMED = 10_000
"""Journals whose names are kept that the shipper doesn't know; it may begin with a million."""

_READ_AT_ONCE = 500
"""Journals that are opened in one count to learn whose they are; the others' turn comes later."""


class Waiting(NamedTuple):
    """The journals of one database that the shipper knows. ``first``: the name of the next one;
    ``commit_us``: when that was committed (microseconds since 1970), None: the file says so."""

    pending: int
    first: str | None
    commit_us: int | None = None


class Listing(NamedTuple):
    """Result of one look at the folder. ``unsorted``: committed journals that the shipper
    doesn't know yet, of ``committed`` in all; ``further``: how many more of them there are."""

    committed: int
    unsorted: tuple[str, ...]
    further: int
    live: tuple[str, ...]
    quarantined: tuple[str, ...]
    bytes: int


def list_folder(directory: Path, is_known: Callable[[str], bool] = lambda _: True) -> Listing:
    """Look at DIRECTORY; one that is not there is empty. IS_KNOWN: tells of a committed journal
    whether the shipper has sorted it in. Raises OSError if the folder can't be read."""
    committed = sized = size = further = 0
    live: list[str] = []
    unsorted: list[str] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".log"):
                committed += 1
                if not is_known(name):
                    if len(unsorted) < _NAMED:
                        unsorted.append(name)
                    else:
                        further += 1
            elif name.endswith(".log.live"):
                live.append(name)
            else:
                continue
            if sized < _SIZED:
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_size
                    sized += 1
    if sized:
        size = size * (committed + len(live)) // sized
    quarantined: list[str] = []
    folder = directory / STATE_DIRECTORY / QUARANTINE
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        quarantined = [entry.name for entry in entries if entry.name.endswith(".log")]
    return Listing(committed, tuple(unsorted), further, tuple(live), tuple(quarantined), size)


class Owners:
    """Databases of journals, by the journal's name; each journal is opened once."""

    def __init__(self, at_once: int = _READ_AT_ONCE) -> None:
        self._at_once = at_once
        self._known: dict[str, str] = {}

    def count(self, folder: Path, names: Iterable[str]) -> Counter[str]:
        """Count the journals NAMES in FOLDER by their databases; "" for those unknown yet."""
        known, counted, left = self._known, Counter[str](), self._at_once
        kept: dict[str, str] = {}
        for name in names:
            database = known.get(name)
            if database is None and left:
                left -= 1
                database = _database_of(folder / name)
            if database is not None:
                kept[name] = database
            counted[database or ""] += 1
        self._known = kept
        return counted

    def database(self, name: str) -> str:
        """Return the database of a journal that was counted last; "" if it is unknown yet."""
        return self._known.get(name, "")


def _database_of(path: Path) -> str | None:
    """The database of a journal; None if it doesn't say so, or not yet."""
    try:
        return database_of(path)
    except (JournalError, OSError):
        return None


class FolderFigures:
    """Makes the figures of one folder; callable from several threads.

    ``waiting``: asked for what the shipper knows of each database; ``is_known``: whether it has
    sorted in a journal. While it waits for Kafka it takes in none, and those wait as well.
    """

    def __init__(
        self,
        directory: Path,
        waiting: Callable[[], Mapping[str, Waiting]],
        is_known: Callable[[str], bool],
    ) -> None:
        self._directory = directory
        self._waiting = waiting
        self._is_known = is_known
        self._unsorted, self._live, self._quarantined = Owners(), Owners(), Owners()
        self._figures = BacklogFigures({}, 0, 0, 0.0, 0)
        self._again_at = 0.0

    def __call__(self) -> BacklogFigures:
        """The figures: a second old at most, older only where counting takes long."""
        if monotonic() >= self._again_at:
            # Others get what there is meanwhile.
            self._again_at = monotonic() + FRESH_S
            begun = perf_counter()
            with contextlib.suppress(OSError):
                self._figures = self._count()
            cost = perf_counter() - begun
            self._again_at = monotonic() + max(FRESH_S, cost * _SHARE)
        return self._figures

    def _count(self) -> BacklogFigures:
        directory = self._directory
        listing = list_folder(directory, self._is_known)
        names, further, waiting = self._unsorted_and_waiting(listing)
        unsorted = self._unsorted.count(directory, names)
        if further:
            unsorted[""] += further
        first = {self._unsorted.database(name): name for name in reversed(names)}
        live = self._live.count(directory, listing.live)
        aside = self._quarantined.count(
            directory / STATE_DIRECTORY / QUARANTINE, listing.quarantined
        )
        now = now_us()
        databases = {
            path: DatabaseBacklog(
                known.pending + unsorted[path],
                live[path],
                aside[path],
                known.commit_us or self._committed_us(known.first or first.get(path)),
            )
            for path in sorted({*waiting, *unsorted, *live, *aside})
            for known in (waiting.get(path, Waiting(0, None)),)
        }
        oldest = min((each.oldest_us for each in databases.values() if each.oldest_us), default=now)
        space = os.statvfs(directory)
        return BacklogFigures(
            databases,
            listing.bytes,
            space.f_bavail * space.f_frsize,
            max(now - oldest, 0) / 1e6,
            now,
        )

    def _unsorted_and_waiting(
        self, listing: Listing
    ) -> tuple[list[str], int, Mapping[str, Waiting]]:
        """Return the names of journals that the shipper has not sorted in, how many more there are,
        and what it has: each journal is in one of them, also while it sorts in."""
        # What was shipped since the look is no longer there.
        names = [name for name in listing.unsorted if (self._directory / name).exists()]
        further = listing.further
        while True:
            waiting = self._waiting()
            unsorted = [name for name in names if not self._is_known(name)]
            if len(unsorted) == len(names):
                return names, further, waiting
            names, further = unsorted, 0  # it takes in all at once

    def _committed_us(self, name: str | None) -> int | None:
        return None if name is None else committed_us(self._directory / name)


def committed_us(path: Path) -> int | None:
    """Return when journal PATH was committed (microseconds since 1970), None if it is gone; if
    it does not say so, when it was last written."""
    with contextlib.suppress(OSError, JournalError), open_any(path) as opened:
        if isinstance(opened, SharedJournal):
            return opened.places[0].stamp.commit_us if opened.places else None
        if opened.stamp is not None:
            return opened.stamp.commit_us
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns // 1000
    return None


def reasons(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the quarantined journals of the folder DIRECTORY, each with why it is there."""
    folder = directory / STATE_DIRECTORY / QUARANTINE
    for uuid in in_order(folder):
        yield f"{uuid}.log", read_reason(folder, uuid)
