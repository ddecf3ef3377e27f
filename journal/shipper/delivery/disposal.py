"""The end of journals that Kafka has: they are deleted, or moved to the archive.

A power cut brings back what was deleted just before. Of journals of one transaction very many are
recognised then; of shared ones those that were delivered last (``journal.shipper.shared_offsets``).
So no more of these go before the folder is synced, which is rare where each of them is long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from time import monotonic

import logbook

from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.durable import sync_directory
from firebird_cdc.journal.folder.subjects import DISPOSAL
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.shared_offsets import GONE

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.disposal")

_RETRY_S = 5.0
_CLOSING_S = 0.1
_MOST_UNSYNCED = GONE // 2  # shared journals, of all databases together


class Disposal:
    """Delivered journals that are still in the folder. Belongs to the shipping thread.

    ``shipped``: how many were disposed of. ``is_failing``: the last attempt failed; shipping waits
    until ``retry_at`` (monotonic), and until one works.
    """

    def __init__(
        self,
        plan: SendContext,
        backlog: Backlog,
        archive: Path | None,
        on_missing: Callable[[str, tuple[tuple[int, int], tuple[int, int]]], None],
        before_removal: Callable[[], None],
        *,
        in_order: bool,
    ) -> None:
        """``on_missing``: hears of the range of a database that nobody can send any more.
        ``before_removal``: is called before files go.
        ``in_order``: a crash must leave no journal behind one that it has removed, as one that is
        left over is not recognised."""
        self.shipped = 0
        self.is_failing = False
        self.retry_at = 0.0
        self._plan = plan
        self._backlog = backlog
        self._archive = archive
        self._on_missing = on_missing
        self._before_removal = before_removal
        self._in_order = in_order
        self._waiting: list[Entry] = []
        # Shared journals that were removed since the folder was synced; the shipper before may have
        # left some.
        self._unsynced = _MOST_UNSYNCED

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, *entries: Entry) -> None:
        """Have journals disposed of: Kafka has all of them."""
        self._waiting += entries

    def run(self) -> bool:
        """Dispose of what waits; return whether that was done."""
        if not (self._waiting or self._backlog.finished) or monotonic() < self.retry_at:
            return False
        try:
            missing = self._dispose()
        except BlockingIOError:  # one that goes to the quarantine is just being closed
            self.retry_at = monotonic() + _CLOSING_S
            return False
        except OSError as error:
            self._tell_failure(error)
            return False
        if self.is_failing:
            self._plan.statistics.clear(DISPOSAL)
            _log.notice("delivered journals can be disposed of again, shipping goes on")
        self.is_failing = False
        for path in missing:
            _log.warning("{}: delivered, but gone before it could be archived", path)
        self._backlog.forget(*self._waiting)
        self._backlog.forget_finished()
        self.shipped += len(self._waiting)
        self._waiting.clear()
        return True

    def _dispose(self) -> list[Path]:
        """Dispose of the files, and return those that were gone. Raises OSError."""
        quarantine, whole = self._plan.quarantine, self._waiting
        if quarantine.is_busy:
            whole = quarantine.keep(whole)
            for database, entry in quarantine.take_gone():
                self._on_missing(database, (entry[:2], entry[:2]))
        files = self._backlog.files_without(whole)
        folder = self._plan.folder
        finished = self._backlog.finished
        if empty := [folder + name for name, has_any in finished.items() if not has_any]:
            dispose_shipped(empty, None)
        late = [name for name, has_any in finished.items() if has_any]
        files += late
        if not files:
            return []
        self._before_removal()
        missing = self._remove(files, {*_shared(whole), *late})
        if late:  # which may have been delivered long ago, and so are forgotten first
            self._settle_removals()
        return missing

    def _remove(self, files: Sequence[str], shared: Collection[str]) -> list[Path]:
        """Dispose of FILES in parts, and sync the folder before more of those go that are SHARED
        than are recognised; return those that were gone. Raises OSError."""
        missing, begin = list[Path](), 0
        for at, name in enumerate(files if shared else ()):
            if name not in shared:
                continue
            if self._unsynced >= _MOST_UNSYNCED:
                if begin < at:
                    missing += self._dispose_of(files[begin:at])
                    begin = at
                self._settle_removals()
            self._unsynced += 1
        return missing + self._dispose_of(files[begin:])

    def _dispose_of(self, files: Sequence[str]) -> list[Path]:
        folder = self._plan.folder
        paths = [folder + name for name in files]
        return dispose_shipped(paths, self._archive, in_order=self._in_order)

    def _settle_removals(self) -> None:
        """Have it on disk what was removed. Raises OSError."""
        if self._plan.syncs:
            sync_directory(self._plan.directory)
        self._unsynced = 0

    def _tell_failure(self, error: OSError) -> None:
        how = "deleted" if self._archive is None else f"put into {self._archive}"
        self._plan.statistics.trouble(
            DISPOSAL, "halted", f"delivered journals can't be {how}: {error}; shipping waits"
        )
        if not self.is_failing:
            _log.error(
                "delivered journals can't be {}: {}; shipping waits until that works, nothing is"
                " lost",
                how,
                error,
            )
        self.is_failing = True
        self.retry_at = monotonic() + _RETRY_S


def _shared(entries: Sequence[Entry]) -> set[str]:
    """Return the names of the files that ENTRIES share with others."""
    firsts = (next(of_one) for home, of_one in groupby(entries, attrgetter("home")) if home)
    return {entry.file for entry in firsts if not entry.is_alone}
