"""Transactions that wait to be decided, and their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from firebird_cdc.bridge.confirm.decisions import Writer
from firebird_cdc.bridge.structures import JournalStatements
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.commit_entries import LAST_TICKET
from firebird_cdc.journal.folder.inventory import TransactionState
from firebird_cdc.journal.folder.journal_folder import nearest_ticket
from firebird_cdc.journal.format import Header, JournalReader

NOBODY = UUID(int=0)  # unknown: an owner, a database


@dataclass(slots=True)
class Definitions:
    """The definitions of tables in a journal, and what its DDL did to tables: as far as they are
    there, in its catalogue."""

    has_ddl: bool = True
    is_unresolved: bool = True  # definitions have to be completed
    catalogue_offset: int = 0  # 0: it has no catalogue
    statements: JournalStatements | None = None  # those that may change tables, once read
    is_described: bool = False  # what they did to tables is in it, or can't be had
    is_unread: bool = False  # it is yet to be read, and will be soon


@dataclass(slots=True)
class FoundProcess:
    """The process of a transaction that was found, not handed over by it."""

    header: Header  # that it wrote
    is_orphan: bool = True  # it is gone
    is_alone: bool = False  # and since then there was a moment at which no other was left
    is_asked: bool = False  # the engine was asked about it, so that it writes what it finds


@dataclass(slots=True)
class Pending:
    """A transaction that waits to be decided. ``journal``, ``offset``: where it lies; ``length``,
    ``seal_end`` and the catalogue's offset count from there."""

    uuid: UUID
    journal: UUID
    offset: int
    database: str
    transaction: int
    ticket: int
    commit_us: int
    length: int
    seal_end: int
    events: int
    serial: int = 0  # of the plugin's event; 0: of another process
    is_stuck: bool = False  # nobody can say when it will be decided
    is_sealed: bool = True
    is_unsynced: bool = False  # a sync of it failed; what comes after may say that it worked
    guid: UUID = NOBODY  # of the database that it was written for
    process: FoundProcess | None = None  # None: it was handed over
    definitions: Definitions = field(default_factory=Definitions)
    floor: int | None = None  # a ticket before its own, after all that it builds on; lower 32 bits
    is_unlisted: bool = False  # no other process knows of it
    met_at: float = field(default_factory=time.monotonic)  # clocks can be set back

    def writer(self, state: TransactionState) -> Writer:
        """Return the state of its process when that of its transaction was last read: STATE."""
        if self.process is None or not self.process.is_orphan:
            return Writer.UNCHECKED
        is_nobody = self.process.header.owner == NOBODY
        if is_nobody and state is TransactionState.ACTIVE:
            return Writer.NOBODY  # somebody may work in it yet, whoever was there before
        if self.process.is_alone:
            return Writer.ALONE
        return Writer.NOBODY if is_nobody else Writer.GONE

    @property
    def header(self) -> Header | None:
        """The header of one that was found."""
        return None if self.process is None else self.process.header

    @property
    def is_orphan(self) -> bool:
        """True if it was found, and its process is gone."""
        return self.process is not None and self.process.is_orphan

    @property
    def has_own_journal(self) -> bool:
        """True if no other transaction lies in its journal."""
        return self.journal == self.uuid

    @property
    def has_ticket(self) -> bool:
        """True if its place among the commits is known."""
        return self.ticket != LAST_TICKET


class PendingJournals:
    """Transactions of one folder that wait to be decided. Belongs to one thread."""

    def __init__(self) -> None:
        self._by_uuid: dict[UUID, Pending] = {}

    def __len__(self) -> int:
        return len(self._by_uuid)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._by_uuid.values())

    def __contains__(self, uuid: UUID) -> bool:
        return uuid in self._by_uuid

    def get(self, uuid: UUID) -> Pending | None:
        """Return the transaction of that UUID; None: it does not wait."""
        return self._by_uuid.get(uuid)

    def add(self, pending: Pending) -> None:
        """Have PENDING wait."""
        self._by_uuid[pending.uuid] = pending

    def journals(self) -> set[UUID]:
        """Return the journals in which some lie."""
        return {each.journal for each in self}

    def forget(self, pending: Pending) -> None:
        """Forget PENDING, which waits no longer; its journal stays as it is."""
        del self._by_uuid[pending.uuid]

    def forget_all(self, is_meant: Callable[[Pending], bool]) -> None:
        """Forget those that IS_MEANT tells of."""
        for pending in [each for each in self if is_meant(each)]:
            self.forget(pending)

    def databases(self) -> set[tuple[str, UUID]]:
        """Return path and GUID of the databases of which some wait."""
        return {(pending.database, pending.guid) for pending in self}


def found(
    reader: JournalReader, database: str, journal: UUID, offset: int, is_orphan: bool = True
) -> Pending:
    """Return the transaction of DATABASE at OFFSET of JOURNAL, which READER has open, as whoever
    finds it in the folder sees it."""
    header, seal = reader.header, reader.seal
    pending = Pending(
        header.uuid,
        journal,
        offset,
        database,
        header.transaction,
        LAST_TICKET,
        seal.sealed_us if seal else header.started_us,
        seal.end if seal else 0,
        seal.end if seal else 0,
        seal.event_count if seal else 0,
        is_sealed=seal is not None,
        guid=header.database_guid,
        process=FoundProcess(header, is_orphan),
        floor=seal.floor if seal else None,
    )
    with suppress(JournalError):  # damage, which the shipper meets
        catalogue = reader.unstamped_catalogue()
        # Definitions are completed before changes of tables are added: what is missing then
        # can't be had.
        if catalogue is not None and (
            catalogue.tells_of_ddl
            or not reader.unresolved_tables().keys() - catalogue.bodies.keys()
        ):
            pending.length = catalogue.end
            pending.definitions = Definitions(
                is_unresolved=False,
                catalogue_offset=catalogue.start,
                is_described=catalogue.tells_of_ddl,
            )
    return pending


def in_order(journals: list[Pending], last: int) -> list[Pending]:
    """Return the transactions of one database in an order that respects every row's history.

    A transaction that builds on another one was sealed after that had drawn its ticket, so the
    floor in its seal is not below that: floors, and tickets less 1, are in the order of tickets.
    They count where a power cut took a ticket, or a transaction got none as it was committed from
    limbo. LAST: a ticket near all of them.

    Where no bridge ran a journal has no floor, nor have those of the first versions. If one has no
    ticket either, the times of seals and commits have to do. What is not sealed becomes a gap or
    goes: it comes first.
    """
    if any(each.is_sealed and each.floor is None for each in journals):
        return sorted(journals, key=lambda each: each.commit_us)

    def rank(each: Pending) -> tuple[int, bool, int]:
        at = -1 if each.floor is None else nearest_ticket(each.floor, last)
        return at, each.has_ticket, each.commit_us  # one from limbo may have its successor's floor

    return sorted(journals, key=rank)


def groups(journals: Sequence[Pending], most: int) -> Iterator[list[Pending]]:
    """Split transactions of one path, in their order, into groups of MOST that are of one database:
    one that is made anew there has an epoch of its own, from its first journal on."""
    for _, same in groupby(journals, key=lambda each: each.guid):
        rest = list(same)
        for start in range(0, len(rest), most):
            yield rest[start : start + most]
