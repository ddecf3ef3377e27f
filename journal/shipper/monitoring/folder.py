"""Backlog of the journal folder, counted now and then so that it costs next to nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from time import monotonic, perf_counter
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, bridge_present, shipper_present
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.shipper.local_offsets import remembered
from firebird_cdc.journal.shipper.monitoring.statistics import BacklogFigures, DatabaseBacklog
from firebird_cdc.journal.shipper.monitoring.transactions import (
    READ_AT_ONCE,
    ClosedJournals,
    LiveJournals,
    Pending,
    committed_us,
)
from firebird_cdc.journal.shipper.quarantine import in_order, read_reason
from firebird_cdc.journal.shipper.shared_offsets import EVERYTHING, NOTHING, Number

FRESH_S = 1.0
"""Figures younger than this are given again."""

_SHARE = 50
"""Of the time, counting takes one part in so many: a folder of a million is counted less often."""

_SIZED = 20_000
"""Journals whose sizes are looked at; with more of them the sum is an estimate."""

_NAMED = 10_000
"""Journals whose names are kept that the shipper doesn't know; it may begin with a million."""

_ALONE = 20_000
"""The same where no shipper tells of the folder, so it is counted once; all of these are opened."""

_LOOKS = 3  # at what the shipper knows, until that is the same before and after


class Waiting(NamedTuple):
    """The transactions of one database that the shipper knows. ``first``: the name of the journal
    with the next one; ``commit_us``: when that was committed (microseconds since 1970), None: the
    file says so."""

    pending: int
    first: str | None
    commit_us: int | None = None


class Listing(NamedTuple):
    """Result of one look at the folder. ``unsorted``: closed journals that the shipper doesn't
    know yet, of ``committed`` in all; ``further``: how many more of them there are."""

    committed: int
    unsorted: tuple[str, ...]
    further: int
    live: tuple[str, ...]
    quarantined: tuple[str, ...]
    bytes: int


def list_folder(
    directory: Path, is_known: Callable[[str], bool] = lambda _: True, *, is_alone: bool = False
) -> Listing:
    """Look at DIRECTORY; one that is not there is empty. IS_KNOWN: tells of a closed journal
    whether the shipper has sorted it in. IS_ALONE: of many that are not known the oldest are named.
    Raises OSError if the folder can't be read."""
    committed = sized = size = further = 0
    live: list[str] = []
    unsorted: list[tuple[int, str]] = []
    most = _ALONE if is_alone else _NAMED
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if not name.endswith((".log", ".log.live")):
                continue
            written_ns = 0
            if is_alone or sized < _SIZED:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    written_ns = status.st_mtime_ns
                    size += status.st_size
                    sized += 1
            if name.endswith(".live"):
                live.append(name)
                continue
            committed += 1
            if is_known(name):
                continue
            if is_alone or len(unsorted) < most:
                unsorted.append((written_ns, name))
                if len(unsorted) > 2 * most:
                    further += _keep_oldest(unsorted, most)
            else:
                further += 1
    if sized:
        size = size * (committed + len(live)) // sized
    further += _keep_oldest(unsorted, most)
    quarantined: list[str] = []
    folder = directory / STATE_DIRECTORY / QUARANTINE
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        quarantined = [entry.name for entry in entries if entry.name.endswith(".log")]
    names = tuple(name for _, name in unsorted)
    return Listing(committed, names, further, tuple(live), tuple(quarantined), size)


def _keep_oldest(found: list[tuple[int, str]], most: int) -> int:
    """Leave the MOST oldest of FOUND; return how many go."""
    count = max(len(found) - most, 0)
    if count:
        found.sort()
        del found[most:]
    return count


class FolderFigures:
    """Makes the figures of one folder; callable from several threads.

    ``waiting``: asked for what the shipper knows of each database; ``sorted_to``: up to which
    number it has sorted in what is in a closed journal of that name, or will be. While it waits for
    Kafka it takes in none, and those wait as well. IS_ALONE: no shipper tells anything.
    """

    def __init__(
        self,
        directory: Path,
        waiting: Callable[[], Mapping[str, Waiting]],
        sorted_to: Callable[[str], Number],
        *,
        is_alone: bool = False,
    ) -> None:
        self._directory = directory
        self._waiting = waiting
        self._sorted_to = sorted_to
        self._is_alone = is_alone
        self._identity = self._identify()
        self._begin()
        self._figures = BacklogFigures({}, 0, 0, 0.0, 0)
        self._again_at = 0.0
        self._counting = Lock()

    def _identify(self) -> tuple[int, int] | None:
        """Return what differs once the folder is another one."""
        with contextlib.suppress(OSError):
            status = self._directory.stat()
            return status.st_dev, status.st_ino
        return None

    def _begin(self) -> None:
        """Know nothing of the folder but what it remembers."""
        at_once = _ALONE if self._is_alone else READ_AT_ONCE
        self._closed, self._quarantined = ClosedJournals(at_once), ClosedJournals(at_once)
        self._live = LiveJournals(self._directory, at_once)
        self._delivered = {
            _file(home): number
            for memory in remembered(self._directory)
            for home, number in memory.shared.items()
        }

    def close(self) -> None:
        """Close what is open."""
        self._live.close()

    def __call__(self) -> BacklogFigures:
        """The figures: a second old at most, older only where counting takes long."""
        # Others get what there is meanwhile.
        if monotonic() >= self._again_at and self._counting.acquire(blocking=False):
            try:
                begun = perf_counter()
                with contextlib.suppress(OSError):
                    self._figures = self.count()
                cost = perf_counter() - begun
                self._again_at = monotonic() + max(FRESH_S, cost * _SHARE)
            finally:
                self._counting.release()
        return self._figures

    def count(self) -> BacklogFigures:
        """Count now; by one thread at a time. Raises OSError if the folder can't be read."""
        directory = self._directory
        if (identity := self._identify()) != self._identity:
            self.close()
            self._identity = identity
            self._begin()
        listing = list_folder(directory, self._is_known, is_alone=self._is_alone)
        # What is undecided in a journal is what is left of it without all that was given.
        self._live.look(listing.live, lambda home: self._kept_from(_file(home)))
        is_left = self._is_alone and not (bridge_present(directory) or shipper_present(directory))
        live = self._live.open(is_left=is_left)
        last, waiting = self._sorted_and_waiting(listing)
        unsorted = {name: last[name] for name in listing.unsorted if name in last}
        further = listing.further
        if any(number == EVERYTHING for number in unsorted.values()):
            further = 0  # it takes in all at once
            unsorted = {name: last for name, last in unsorted.items() if last != EVERYTHING}
        closed = self._closed.count(directory, unsorted)
        opened = self._live.pending(lambda home: last.get(_file(home), NOTHING))
        quarantined = self._quarantined.count(
            directory / STATE_DIRECTORY / QUARANTINE, dict.fromkeys(listing.quarantined, NOTHING)
        )
        none = Pending()
        databases = {}
        rest = [""] if further else []
        for path in sorted({*waiting, *closed, *opened, *live, *quarantined, *rest}):
            known = waiting.get(path, Waiting(0, None))
            found = closed.get(path, none).plus(opened.get(path, none))
            found = found.plus(Pending(known.pending, self._committed_us(known)))
            databases[path] = DatabaseBacklog(
                found.transactions + (0 if path else further),
                live[path],
                quarantined.get(path, none).transactions,
                found.oldest_us,
            )
        now = now_us()
        oldest = min((each.oldest_us for each in databases.values() if each.oldest_us), default=now)
        space = os.statvfs(directory)
        return BacklogFigures(
            databases,
            listing.bytes,
            space.f_bavail * space.f_frsize,
            max(now - oldest, 0) / 1e6,
            now,
        )

    def _is_known(self, name: str) -> bool:
        return self._sorted_to(name) == EVERYTHING

    def _last(self, name: str) -> Number:
        """Return up to which number what is in a journal is sorted in or delivered."""
        return max(self._sorted_to(name), self._delivered.get(name, NOTHING))

    def _kept_from(self, name: str) -> Number:
        return NOTHING if self._is_alone else self._last(name)

    def _sorted_and_waiting(
        self, listing: Listing
    ) -> tuple[Mapping[str, Number], Mapping[str, Waiting]]:
        """Return up to which numbers the shipper has sorted in what is in each journal, and what it
        has: each transaction is in one of them, also while it sorts in; if it does all the time,
        some may be in both."""
        # What was shipped since the look is no longer there.
        names = [name for name in listing.unsorted if (self._directory / name).exists()]
        names += map(_file, self._live.homes)
        for _ in range(_LOOKS):
            last = {name: self._last(name) for name in names}
            waiting = self._waiting()
            if all(self._last(name) == number for name, number in last.items()):
                break
        return last, waiting

    def _committed_us(self, known: Waiting) -> int | None:
        if known.commit_us or known.first is None:
            return known.commit_us
        return committed_us(self._directory / known.first)


def _file(home: UUID) -> str:
    """Return the name that a journal has once it is closed."""
    return f"{home}.log"


def count_alone(directory: Path) -> BacklogFigures:
    """Return the figures of the folder DIRECTORY where no shipper tells them.

    What is delivered of a shared journal the folder remembers (``journal.shipper.local_offsets``):
    exactly when a shipper has ended in order, some second behind when it was killed. Then Kafka
    alone knows, and too many count rather than too few. A journal with one transaction waits until
    it is gone. Beyond 20,000 closed journals each of the newest counts as one transaction. Raises
    OSError if the folder can't be read.
    """
    with contextlib.closing(
        FolderFigures(directory, dict, lambda _: NOTHING, is_alone=True)
    ) as figures:
        return figures.count()


def reasons(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the quarantined journals of the folder DIRECTORY, each with why it is there."""
    folder = directory / STATE_DIRECTORY / QUARANTINE
    for uuid in in_order(folder):
        yield f"{uuid}.log", read_reason(folder, uuid)
