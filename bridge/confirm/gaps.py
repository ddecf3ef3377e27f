"""Transactions that could not tell their end: counted gaps, and journals that were let go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import logbook

from firebird_cdc.bridge.confirm.decisions import Action
from firebird_cdc.bridge.confirm.pending import Pending, found
from firebird_cdc.bridge.confirm.rewriting import Rewriting
from firebird_cdc.bridge.confirm.transaction_states import TransactionStates
from firebird_cdc.bridge.confirm.troubles import Told
from firebird_cdc.bridge.host import (
    CountedGap,
    DatabaseIdentity,
    DatabaseSeen,
    Event,
    GapsCounted,
    JournalAbandoned,
    LastSessionLeft,
)
from firebird_cdc.errors import CaptureError, JournalError
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import own_reader
from firebird_cdc.journal.format.layout import FILE_BLOCK

_log = logbook.Logger("firebird_cdc.bridge.confirm.gaps")

_TROUBLE_S = 1.0  # pause when nothing can be marked: the disk is full, a database can't be asked


class Server(Protocol):
    """The plugin of this process, as far as it is needed; ``Host`` tells more."""

    def database(self, database: int) -> DatabaseIdentity: ...
    def read_gap(self, database: int) -> CountedGap | None: ...
    def clear_gap(self, database: int, gap: CountedGap) -> None: ...


class GapMarker:
    """Leaves journals for what was committed unrecorded, and gives up those that are in limbo.

    Belongs to the confirmer's thread.
    """

    def __init__(self, server: Server, states: TransactionStates, rewriting: Rewriting) -> None:
        self._server = server
        self._states = states
        self._rewriting = rewriting
        self._again_at = 0.0  # when to try again what could not be marked, monotonic
        # databases whose counters of gaps are to be read, and which event first said so
        self._uncounted: dict[int, int] = {}
        self._abandoned: list[JournalAbandoned] = []
        self._told = Told()

    def hear(self, event: Event) -> None:
        """Take what the plugin has to tell, if it is of gaps or limbo."""
        if isinstance(event, DatabaseSeen | GapsCounted):
            # Also one that is just seen: a process that has ended may have counted.
            self._uncounted.setdefault(event.database, event.serial)
        elif isinstance(event, JournalAbandoned):
            self._abandoned.append(event)
        elif isinstance(event, LastSessionLeft):
            self._again_at = 0.0  # the process may end, and what was in the way may be gone

    def take_over(self, former: GapMarker) -> None:
        """Go on with what one whose thread has ended had heard of, and no scan finds."""
        self._uncounted = dict(former._uncounted)
        self._abandoned = list(former._abandoned)

    def is_due(self) -> bool:
        """Tell whether there is anything to mark, and it did not just fail."""
        return bool(self._uncounted or self._abandoned) and time.monotonic() >= self._again_at

    def serials(self) -> list[int]:
        """Return the serials of the plugin's events of which something is still to be marked."""
        return [*self._uncounted.values(), *(event.serial for event in self._abandoned)]

    def mark(self, folder: JournalFolder, take_up: Callable[[Pending | None], None]) -> None:
        """Mark in FOLDER what can be. What can't be now, as the disk is full or a database can't
        be asked, is tried again and holds up nothing else.

        ``take_up``: gets each journal that was made; None for one that a scan has to find.
        """
        marks = [
            *(partial(self._mark_gap, database, take_up) for database in list(self._uncounted)),
            *(partial(self._let_go, folder, event, take_up) for event in list(self._abandoned)),
        ]
        for mark in marks:
            try:
                mark()
            except (OSError, CaptureError) as error:
                # Not by its path, of which each try has another one.
                if self._told.is_news(str(error.errno if isinstance(error, OSError) else error)):
                    _log.error("cannot mark a gap or limbo yet, will keep trying: {}", error)
                self._again_at = time.monotonic() + _TROUBLE_S

    def _let_go(
        self,
        folder: JournalFolder,
        event: JournalAbandoned,
        take_up: Callable[[Pending | None], None],
    ) -> None:
        """Give up or remove the journal of a transaction that the engine let go. As long as it is
        open here it has its lock, and nobody takes it up."""
        if self.is_to_be_kept(folder, event):
            take_up(None)
        if event.fd >= 0:
            os.close(event.fd)
        self._abandoned.remove(event)

    def is_to_be_kept(self, folder: JournalFolder, event: JournalAbandoned) -> bool:
        """Tell whether a transaction that was let go is in limbo, or was: whoever leads keeps its
        journal until that is resolved. What is not goes: publication was switched off."""
        database = self._server.database(event.database)
        live = folder.live(event.uuid)
        try:
            with own_reader(live, event.uuid) as reader:
                pending = found(reader, database.path, event.uuid, FILE_BLOCK, is_orphan=False)
        except (FileNotFoundError, JournalError):
            return False  # found and decided already, by a scan of another process
        (action,) = self._states.decide(database.path, [pending])
        if action in (Action.PUBLISH, Action.MARK_GAP):  # undone, or resolved meanwhile: which?
            self._rewriting.replace_by_gap(pending)
        elif action in (Action.REMOVE, Action.WAIT):
            _log.error(
                "the engine ended replication of transaction {transaction} of {database} before"
                " its end, as publication was switched off: its changes are not captured",
                transaction=event.transaction,
                database=database.path,
                journal=event.uuid,
            )
            live.unlink(missing_ok=True)
            return False
        elif event.is_unsynced:
            self._rewriting.copy_anew(pending)
        return True

    def _mark_gap(self, database: int, take_up: Callable[[Pending | None], None]) -> None:
        """Leave a gap for transactions that could leave nothing themselves. Raises OSError;
        what is counted stays so until the gap is on disk."""
        gap = self._server.read_gap(database)
        if gap is None:
            del self._uncounted[database]
            return
        path, guid = self._server.database(database)
        first, last = (
            datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="milliseconds")
            for us in (gap.first_us, gap.last_us)
        )
        reason = (
            f"{gap.transactions} transactions were committed from {first} to {last}, but "
            "their changes could not be recorded: "
            + (gap.reason or "their process has ended, see the server's log")
        )
        _log.error("{database}: a gap: {reason}", database=path, reason=reason)
        take_up(self._rewriting.new_gap(path, guid, reason, gap.last_us, self._uncounted[database]))
        # Read once more in the next turn: only the first one that is counted tells us.
        self._server.clear_gap(database, gap)
