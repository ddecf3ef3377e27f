"""The end of journals that Kafka has: they are deleted, or moved to the archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import logbook

from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.subjects import DISK
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.queue import Entry

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.disposal")

_RETRY_S = 5.0
_CLOSING_S = 0.1


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
            self._plan.statistics.clear(DISK)
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
        files += [name for name, has_any in finished.items() if has_any]
        if not files:
            return []
        self._before_removal()
        paths = [folder + name for name in files]
        return dispose_shipped(paths, self._archive, in_order=self._in_order)

    def _tell_failure(self, error: OSError) -> None:
        how = "deleted" if self._archive is None else f"put into {self._archive}"
        self._plan.statistics.trouble(
            DISK, "halted", f"delivered journals can't be {how}: {error}; shipping waits"
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
