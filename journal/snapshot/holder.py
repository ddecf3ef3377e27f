"""Holder of a snapshot: what a window asks of the engine, and an attachment that answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from firebird_cdc.errors import DatabaseUnreadable
from firebird_cdc.journal.snapshot.attachment import (
    DatabaseConnection,
    attach,
    fetch_all,
    one_line,
    text_of,
)
from firebird_cdc.journal.snapshot.claims import Claims, read_claims
from firebird_cdc.journal.snapshot.publication import (
    Monitored,
    Publication,
    read_monitored,
    read_publication,
)
from firebird_cdc.journal.snapshot.statements import read_only_snapshot
from firebird_cdc.journal.snapshot.visibility import EngineStates, StateSource

if TYPE_CHECKING:
    from firebird.driver import Connection


class SnapshotBegun(NamedTuple):
    """A snapshot that has begun: its number, and that of the transaction that holds it."""

    number: int
    transaction: int


class Holder(Protocol):
    """Holder of a guard and a snapshot.

    ``guid``: the database's, nil: it has none; ``path``: as the server names it; ``page_size``:
    bytes. ``connection``: the attachment, whose main transaction is in the snapshot.
    """

    states: StateSource
    connection: Any
    guid: UUID
    path: str
    page_size: int

    def begin_guard(self) -> int:
        """Begin the guard and return its number; `states` are asked in it."""

    def oldest(self) -> int:
        """Return the oldest interesting transaction as of now."""

    def following(self) -> int:
        """Return the highest number that a transaction has been given, or a higher one."""

    def undecided(self, first: int, end: int) -> list[int]:
        """Return the transactions from FIRST up to END that are active or in limbo."""

    def claims(self, first: int) -> Claims:
        """Return what the database file says now of transactions from FIRST on."""

    def monitored(self, before: int) -> Monitored:
        """Return the transactions that run now, those below BEFORE."""

    def publication(self) -> Publication:
        """Return the publication as the snapshot sees it; before it has begun, as of now."""

    def begin_snapshot(self) -> SnapshotBegun:
        """Begin the snapshot."""

    def join_snapshot(self, number: int) -> int:
        """Join the snapshot NUMBER of another holder, in place of one of its own; return the oldest
        interesting transaction then."""

    def end(self) -> None:
        """End snapshot and guard, so that others can be begun."""


class AttachedHolder:
    """A `Holder` by an attachment: the guard in a transaction of its own, the snapshot in the
    attachment's main one. Not for several threads."""

    def __init__(self, connection: Connection, is_of_this_machine: bool) -> None:
        from firebird.driver import DbInfoCode

        self._codes = DbInfoCode
        self.connection: Any = connection
        self._guard = connection.transaction_manager(read_only_snapshot())
        self._brief = connection.transaction_manager(read_only_snapshot())
        self.states: StateSource = EngineStates(self._guard)
        self._is_of_this_machine = is_of_this_machine
        [(guid, path)] = self._briefly(
            lambda each: fetch_all(
                each,
                "SELECT RDB$GET_CONTEXT('SYSTEM', 'DB_GUID'), RDB$GET_CONTEXT('SYSTEM', 'DB_NAME')"
                " FROM RDB$DATABASE",
            )
        )
        self.guid = UUID(text_of(guid).strip("{}")) if guid else UUID(int=0)
        self.path = text_of(path)
        self.page_size = int(connection.info.get_info(DbInfoCode.PAGE_SIZE))

    def begin_guard(self) -> int:
        """Begin the guard."""
        self._guard.begin()
        return int(self._guard.info.id)

    def oldest(self) -> int:
        """Return the oldest interesting transaction, as the header page has it by now."""
        return int(self.connection.info.get_info(self._codes.OLDEST_TRANSACTION))

    def following(self) -> int:
        """Return the last number given, as the header page has it by now."""
        return int(self.connection.info.get_info(self._codes.NEXT_TRANSACTION))

    def undecided(self, first: int, end: int) -> list[int]:
        """Return the transactions from FIRST up to END that are active or in limbo."""
        found: list[int] = self._briefly(lambda each: EngineStates(each).undecided(first, end))
        return found

    def claims(self, first: int) -> Claims:
        """Return what the database file says now, if that can be read here."""
        file = Path(self.path) if self._is_of_this_machine else None
        return read_claims(file, self.guid, first)

    def monitored(self, before: int) -> Monitored:
        """Return the transactions that run now, those below BEFORE."""
        found: Monitored = self._briefly(lambda each: read_monitored(each, before))
        return found

    def publication(self) -> Publication:
        """Return the publication as the snapshot sees it; before it has begun, as of now."""
        if self.connection.main_transaction.is_active():
            return read_publication(self.connection)
        found: Publication = self._briefly(read_publication)
        return found

    def begin_snapshot(self) -> SnapshotBegun:
        """Begin the snapshot."""
        self.connection.begin(read_only_snapshot())
        [(number,)] = fetch_all(
            self.connection,
            "SELECT RDB$GET_CONTEXT('SYSTEM', 'SNAPSHOT_NUMBER') FROM RDB$DATABASE",
        )
        return SnapshotBegun(int(number), int(self.connection.main_transaction.info.id))

    def join_snapshot(self, number: int) -> int:
        """Join the snapshot NUMBER of another holder."""
        self.connection.begin(read_only_snapshot(number))
        return int(self.connection.main_transaction.info.oit)

    def end(self) -> None:
        """End snapshot and guard, so that others can be begun."""
        for each in (self.connection.main_transaction, self._guard):
            if each.is_active():
                each.rollback()

    def _briefly(self, ask: Callable[[Any], Any]) -> Any:
        """Return what ASK does in a transaction that is begun for it, and so has what is now."""
        self._brief.begin()
        try:
            return ask(self._brief)
        finally:
            self._brief.rollback()


@contextlib.contextmanager
def attached_holder(how: DatabaseConnection) -> Iterator[AttachedHolder]:
    """Attach, and hold what is begun while the context lasts. Raises DatabaseUnreadable."""
    connection = attach(how)
    from firebird.driver import Error

    try:
        yield AttachedHolder(connection, how.is_of_this_machine)
    except Error as error:
        raise DatabaseUnreadable(f"{how.dsn}: {one_line(error)}") from error
    finally:
        with contextlib.suppress(Error):
            connection.close()
