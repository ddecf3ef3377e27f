"""Notes on the live journals of a folder, of each until it is closed."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.live_content import Content
from firebird_cdc.journal.format.shared import FileHeader

_log = logbook.Logger("firebird_cdc.bridge.confirm.known_journals")


class KnownJournals:
    """Knowledge of live journals, for those who look for what is undecided in them, and who close
    them. Belongs to one thread, and to whoever leads."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: the journals are to be those of another folder."""
        self.headers: dict[UUID, FileHeader] = {}
        self.gone_through: dict[UUID, Content] = {}  # only heads of what is undecided
        self.undone: defaultdict[UUID, set[int]] = defaultdict(set)  # offsets of dead ones
        self._doubted: set[UUID] = set()  # that have something whose number was lost
        self.unread = 0
        """Number of journals that could not be gone through; what is in them waits."""

    def forget(self, journal: UUID) -> None:
        """Forget JOURNAL, which is closed."""
        for known in (self.headers, self.undone, self.gone_through):
            known.pop(journal, None)
        self._doubted.discard(journal)

    def tell_unread(self, journal: UUID, error: Exception) -> None:
        """Tell that ERROR keeps JOURNAL from being gone through."""
        self.unread += 1
        _log.error("{journal}.log.live can't be read: {cause}", journal=journal, cause=error)

    @property
    def doubted(self) -> int:
        """Number of journals that can't be closed, as numbers of what is in them were lost."""
        return len(self._doubted)

    def doubt(self, journal: UUID) -> None:
        """Leave what is in JOURNAL to somebody who can see what was sent."""
        if journal not in self._doubted:
            self._doubted.add(journal)
            _log.error(
                "{journal}.log.live stays: it has transactions that were published before the "
                "ledger of their database was lost, and would be published again",
                journal=journal,
            )
