"""Transactions that nobody handed over, found in the folder: of dead processes mostly."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.closing import Closing, Ledgers
from firebird_cdc.bridge.confirm.entries import Entries
from firebird_cdc.bridge.confirm.former_version import FormerVersion
from firebird_cdc.bridge.confirm.pending import Pending, PendingJournals
from firebird_cdc.bridge.confirm.troubles import UnreadableFiles
from firebird_cdc.bridge.confirm.undecided import Undecided
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.journal_folder import (
    JournalFolder,
    is_live_name,
    is_unfilled,
)
from firebird_cdc.journal.folder.shortage import kept

_log = logbook.Logger("firebird_cdc.bridge.confirm.scan")


class FolderScan:
    """Takes up pending transactions from one folder. Belongs to one thread, and its calls to
    whoever leads."""

    def __init__(
        self,
        folder: JournalFolder,
        fsync: bool,
        pending: PendingJournals,
        closing: Closing,
        unreadable: UnreadableFiles,
        on_found: Callable[[Pending], None],
    ) -> None:
        """``on_found``: hears of each transaction that is taken up."""
        self.is_wanted = True
        """True if a crash may have left something: once per process, and after each failure."""
        self.unreadable = unreadable
        self.ended: list[UUID] = []
        """Processes that have ended, whose journals were found."""
        self.scanned_at = 0.0
        """The moment of the last scan, monotonic."""
        self._pending = pending
        self._known = closing.known
        self._on_found = on_found
        self.entries = Entries(folder, pending, closing, unreadable)
        self._undecided = Undecided(folder, fsync, pending, closing, self.entries)
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._fsync = fsync
        self._former = FormerVersion(folder, fsync)
        self.entries.use(folder)
        self._undecided.use(folder, fsync)

    def scan(self, last: int, ledger: Ledgers) -> list[UUID]:
        """Take up what dead processes left, and what was let go; remove what was never prepared.
        LAST: the ticket up to which entries were taken up. Return those processes, for ``done``.
        Raises OSError of a file that can't be read and that others wait for, when all have been
        looked at. LEDGER: returns that of a database."""
        seen: list[Path] = []
        failed: list[OSError] = []
        # Before the first scan since the machine started it is a moment of the time before.
        goes_on = not self.unreadable and self._folder.is_restored
        self.unreadable.go_on(self._folder.unread_since if goes_on else 0.0)
        ended = self._folder.owners.ended()
        for owner in ended:
            seen += self._take_from_pool(owner, failed)
        with os.scandir(self._folder.path) as entries:
            # All else is nobody's: a copy, or something that was put here; or it waits to be
            # shipped, and of these there may be a million.
            live = [entry for entry in entries if is_live_name(entry.name)]
        paths = []
        for entry in live:
            self._folder.tell_progress()
            path = Path(entry.path)
            seen.append(path)
            if self._former.has_written(path):
                with self._reading(path, failed):
                    self._take_over(path, last, ledger)
                if self._former.has_written(path):
                    continue  # it could not be
            paths.append(path)
        with kept(failed):
            for pending in self._undecided.found_in(
                paths,
                ended,
                last,
                ledger,
                partial(self._reading, failed=failed),
                self._remove_if_abandoned,
            ):
                self._on_found(pending)
                self._pending.add(pending)
        self.unreadable.keep_only(seen)
        self._folder.unread_since = self.unreadable.since
        if failed:
            raise failed[0]
        return ended

    def done(self, ended: list[UUID]) -> None:
        """Say that what a scan found is dealt with; ENDED: what that returned."""
        self.ended = ended
        self.is_wanted = False
        self.scanned_at = time.monotonic()

    def _take_from_pool(self, owner: UUID, failed: list[OSError]) -> list[Path]:
        """Bring journals to their place that a power cut took back into the pool of OWNER; return
        what was looked at."""
        seen = [self._folder.pools / str(owner)]
        with self._reading(seen[0], failed):
            seen += self._folder.left_in_pool(owner)
        for path in seen[1:]:
            with self._reading(path, failed):
                self._folder.rescue(path, self._fsync)
        return seen

    def _take_over(self, path: Path, last: int, ledger: Ledgers) -> None:
        """Make a journal of version 1 of the format one of ours."""
        try:
            self._former.take_over(path, last, ledger)
        except JournalError as error:
            self._remove_if_abandoned(path, None, error)

    @contextlib.contextmanager
    def _reading(self, path: Path, failed: list[OSError]) -> Iterator[None]:
        """Do what reads PATH. An OSError is kept in FAILED until others have waited long enough for
        that journal; one that is gone is no matter."""
        with (
            kept(failed),
            contextlib.suppress(FileNotFoundError),
            self.unreadable.passing_over(path),
        ):
            yield

    def _remove_if_abandoned(self, path: Path, owner: UUID | None, error: JournalError) -> None:
        """Remove a journal that was never filled, or torn by a power cut before it was sealed,
        once nobody can be at work on it; quarantine one with any other damage."""
        with contextlib.suppress(FileNotFoundError):
            if not self._is_abandoned(path, owner):
                return
            if is_unfilled(error, self._fsync):
                _log.info("removing {}: nothing was written to it", path.name)
                path.unlink()
                return
            uuid = UUID(path.name.partition(".")[0])
            _log.error(
                "journal {journal} is moved to the quarantine: {reason}", journal=uuid, reason=error
            )
            self._folder.set_aside(uuid, str(error))

    def _is_abandoned(self, path: Path, owner: UUID | None) -> bool:
        """Tell whether the process that made a journal has ended; where the header doesn't name
        it, whether all have that may have made it."""
        if owner is not None:
            return self._folder.owners.is_gone(owner)
        is_older = path.stat().st_ctime_ns < self._folder.began_ns
        return is_older and not self._folder.owners.has_other()

    def forget_ended(self) -> None:
        """Tidy up after the processes whose journals are all decided; while one is left,
        somebody has to look again."""
        if self._known.unread:
            return  # what they had in memory was not looked at, either
        busy = {each.header.owner for each in self._pending if each.header}
        busy |= {
            each
            for each in self.ended
            if self.unreadable.has_some_of(self._folder.pools / str(each))
        }
        done = [each for each in self.ended if each not in busy]
        if done and self._fsync:
            # Until then a power cut may take a journal back into its pool, to which only the mark
            # leads.
            os.fsync(self._folder.journal_fd)
        for owner in done:
            self._folder.forget(owner)
        self.ended = [each for each in self.ended if each in busy]
