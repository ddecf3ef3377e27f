"""The ledgers of a folder as the shipper follows them: what was committed in shared journals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import logbook

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.ledger_lock import database_key, read_database
from firebird_cdc.journal.folder.ledger_tail import LedgerTail, ledgers_of
from firebird_cdc.journal.folder.subjects import LEDGER
from firebird_cdc.journal.format import database_of
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import is_shared
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_log = logbook.Logger("firebird_cdc.journal.shipper.inbox.ledgers")

_LOOK_S = 1.0  # at all of them: a notification may be missed, and one may be new

_AHEAD = 20_000
"""Waiting transactions of a database from which on the ledger is read no further than to what comes
next."""


class Ledgers:
    """Hands to BACKLOG what the ledgers of the folder DIRECTORY have given. IS_SYNCED: numbers
    count once they are on disk. ``sharing``: keys of the databases that share journals."""

    def __init__(
        self, directory: Path, backlog: Backlog, statistics: Statistics, *, is_synced: bool
    ) -> None:
        self._directory = directory
        self._folder = ledgers_of(directory)
        self._backlog = backlog
        self._statistics = statistics
        self._is_synced = is_synced
        self._tails: dict[str, tuple[str, LedgerTail]] = {}
        self._waiting: set[str] = set()  # of which not all was read
        self.sharing: set[str] = set()
        self._next_look = 0.0

    def turn(self, changed: Iterable[str]) -> None:
        """Read on in those whose keys have CHANGED, in those that can't have been read as far as
        the journals that were found, and now and then in all."""
        keys = {*changed, *self._waiting, *self._passed()}
        if (now := monotonic()) >= self._next_look:
            self._next_look = now + _LOOK_S
            keys |= {path.stem for path in self._folder.glob("*.ledger")}
            for key in self._tails.keys() - keys:
                self._forget(key)
        for key in keys:
            self._follow(key)

    def _passed(self) -> Iterator[str]:
        """Yield the keys of databases whose next journal has a higher number than was read. Numbers
        are in the ledger before journals have their names, so what comes before that one can be
        read now; without, nobody would know of it who sends the first journal of a database."""
        for database, queue in self._backlog.queues.items():
            if queue:
                key = database_key(database)
                followed = self._tails.get(key)
                if followed is None or queue.first()[:2] > followed[1].last:
                    yield key

    @property
    def is_behind(self) -> bool:
        """Tell whether something is known to be left to be read."""
        return bool(self._waiting)

    def close(self) -> None:
        """Close them, to begin anew: the folder may be another one."""
        for key in list(self._tails):
            self._forget(key)
        self._waiting.clear()
        self._next_look = 0.0

    def _forget(self, key: str) -> None:
        database, tail = self._tails.pop(key)
        tail.close()
        self.sharing.discard(key)
        self._backlog.behind.pop(database, None)
        self._backlog.unread.discard(database)
        self._statistics.clear(LEDGER + database)

    def _follow(self, key: str) -> None:
        database = ""
        try:
            if key not in self._tails:
                database = read_database(self._folder / f"{key}.lock").path
                if not database:
                    return  # an earlier version's, which shares no journals
                tail = LedgerTail(self._folder, key, is_synced=self._is_synced)
                self._tails[key] = database, tail
            database, tail = self._tails[key]
            if self._read(key, database, tail):
                self._waiting.discard(key)
            else:
                self._waiting.add(key)
        except FileNotFoundError:
            return
        except OSError as error:
            if database:
                self._tell(key, database, error)
            return
        self._backlog.unread.discard(database)
        self._backlog.behind[database] = tail.behind
        self._statistics.clear(LEDGER + database)

    def _read(self, key: str, database: str, tail: LedgerTail) -> bool:
        """Read on; False: there is more, but enough in memory. Raises OSError."""
        while True:
            queue = self._backlog.queues.get(database)
            if queue and len(queue) >= _AHEAD and queue.first()[:2] <= tail.last:
                return False
            given = tail.read()
            if given is None:
                return True
            if tail.is_shared:
                self.sharing.add(key)
            self._backlog.take_given(database, given)

    def _has_open_journal(self, database: str) -> bool:
        """Tell whether a shared journal of DATABASE is not closed: what is committed in it only the
        ledger says, and it would be taken for missing."""
        for path in self._directory.glob("*.log.live"):
            with suppress(OSError, JournalError), path.open("rb") as file:
                if is_shared(file.read(FILE_BLOCK)) and database_of(path) == database:
                    return True
        return False

    def _tell(self, key: str, database: str, error: OSError) -> None:
        subject = LEDGER + database
        if key in self.sharing or self._has_open_journal(database):
            self._backlog.unread.add(database)
        if subject not in self._statistics.troubles:
            _log.error("{}: its ledger can't be read, and is tried again: {}", database, error)
        self._statistics.trouble(subject, "halted", f"its ledger can't be read: {error}")
