"""States of the model of shared journals, and the rules that it may lack."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Rule(Enum):
    """Rule of the protocol."""

    BELOW_OIT = "ACTIVE bits and a number below the header's OIT mean committed"
    FROM_FILE = "while an engine process has the database open, only the file decides an orphan"
    ALONE = "once no engine process has the database open, an orphan is decided"
    NOT_ON_WORD = "the engine's word alone publishes nothing"
    LOOK_FIRST = "whether a process lives is looked at before the file is read"
    STATE_DURABLE = "a state is on disk before anybody acts on it"
    VOID_FIRST = "rollback() is called before the engine marks the end"
    TICKET_ORDER = "numbers are given in the order of tickets"
    NEVER_PAST = "no number passes a transaction that a living process may still commit"
    LIMBO_TICKET = "a transaction that is let go in limbo uses up a ticket"
    COUNTER_ABOVE = "after a power cut the counter is above all tickets and floors in the folder"
    SYNC_COVERS = "commit() waits until a sync covers its transaction"
    FRESH_BLOCK = "behind a sync, the next transaction begins in a new block"
    VOID_DURABLE = "a void is on disk before anything but commit() follows a prepare()"
    VOID_STAYS = "a journal stays locked until all voids for it can be seen with it"
    VOID_KEPT = "a journal with a void for a place in another one is closed after that one"
    REWRITE_FROM_MEMORY = "what a sync failed for is written from memory into another journal"
    VOID_FORMER = "where it lay before is void under the same sync"
    KNOWN_BY_UUID = "what the entries of tickets have is looked for in the ledger"
    LEDGER_DURABLE = "a number is on disk in the ledger before the shipper acts on it"
    WALK_FIRST = "journals are gone through before the first number is given"
    FLOORS = "where a ticket is missing, the floors in the heads are the order"
    LOCKED = "a journal is closed only by who has its lock"
    CLOSE_DECIDED = "a journal is closed only when each transaction in it is decided"
    INDEX_DURABLE = "an index is on disk before the ledger drops the records of its journal"
    GAP_FOR_SLOT = "a slot whose transaction is committed and not recorded becomes a gap"


class Setting(NamedTuple):
    """The size of what is explored."""

    processes: int  # 1: Super, 2: Classic
    transactions: int
    crashes: int
    has_limbo: bool = False  # two-phase commits, and transactions that go on after prepare
    failed_syncs: int = 0


# A transaction's phase: SEALED is behind prepare(), MARKED behind commit(), SHOWN committed in the
# engine's memory; LEFT: no process works in it any more.
IDLE, OPEN, SEALED, MARKED, SHOWN, LIMBO, LEFT = range(7)
ACTIVE, IN_LIMBO, DEAD, COMMITTED = "active", "in limbo", "dead", "committed"
UNDECIDED = "undecided"
NOTHING, WHOLE, STALE, TORN, GAP = "nothing", "whole", "stale", "torn", "gap"
LIVE, LOG, GONE = ".log.live", ".log", "gone"


class Txn(NamedTuple):
    """A transaction, where it lies, and what readers have seen of it."""

    phase: int = IDLE
    home: int = 0  # the process that it runs in
    base: int = -1  # the transaction whose version of a row it changed
    is_wanted: bool = False  # the engine has committed it, whether or not that will last
    is_torn: bool = False  # its process died between showing and writing that, and others live
    was_limbo: bool = False
    was_active: bool = False  # as was read; used without LOOK_FIRST only
    memory: str = ACTIVE  # its state in the memory that the engine's processes share
    bits: str = ACTIVE
    bits_d: str = ACTIVE
    floor: int = 0  # the counter of tickets when it was sealed
    journal: int = -1
    at: int = 0  # its place among those of the journal
    unit: str = NOTHING
    unit_d: str = NOTHING
    is_claimed: bool = False  # a sync that wrote nothing has said that it is on disk
    former: int = -1  # the journal in which it is whole, too
    void_in: int = -1  # the journal that has a void for its place in this one:
    void_of: int = -1
    void_d: bool = False
    has_slot: bool = False
    lost_slot: bool = False  # by a power cut
    ticket: int = 0
    number: int = 0  # under which readers saw it; -1: they saw two


class Journal(NamedTuple):
    """A journal."""

    home: int
    state: str = LIVE
    is_open: bool = True  # its process may append
    is_indexed_d: bool = False
    length: int = 0  # transactions and voids in it
    is_poisoned: bool = False  # a sync of it has failed
    covers: tuple[int, ...] = ()  # the transactions that a sync under way is sure to write


class State(NamedTuple):
    """All there is at a moment."""

    txns: tuple[Txn, ...]
    up: tuple[int, ...]  # the engine's processes that have the database open
    journals: tuple[Journal, ...] = ()
    header: int = 0
    header_d: int = 0
    counter: int = 0  # of tickets
    ledger: tuple[int, ...] = ()
    ledger_d: int = 0  # how many of its entries are on disk
    dropped: int = 0  # how many of them only an index has
    crashes: int = 0
    failed_syncs: int = 0

    def put(self, index: int, **changed: Any) -> State:
        """Return the state with one transaction changed."""
        return self.having(index, self.txns[index]._replace(**changed))

    def having(self, index: int, txn: Txn) -> State:
        """Return the state with one transaction replaced."""
        return self._replace(txns=(*self.txns[:index], txn, *self.txns[index + 1 :]))

    def journal(self, index: int, **changed: Any) -> State:
        """Return the state with one journal changed."""
        journal = self.journals[index]._replace(**changed)
        return self._replace(
            journals=(*self.journals[:index], journal, *self.journals[index + 1 :])
        )

    def is_committed(self, index: int) -> bool:
        """Tell whether the file shows a transaction as committed."""
        bits = self.txns[index].bits
        return bits == COMMITTED or (bits == ACTIVE and index < self.header)

    def is_committed_for_good(self, index: int) -> bool:
        """Tell whether it does so after any power cut."""
        bits = self.txns[index].bits_d
        return bits == COMMITTED or (bits == ACTIVE and index < self.header_d)

    def has_number(self, index: int) -> bool:
        """Tell whether ledger or index name a transaction."""
        if index in self.ledger[self.dropped :]:
            return True
        journal = self.txns[index].journal
        is_indexed = journal < 0 or self.journals[journal].state in (LOG, GONE)
        return index in self.ledger and is_indexed

    def is_readable(self, journal: int) -> bool:
        """Tell whether who confirms may go through a journal: nobody appends to it any more."""
        if journal < 0:
            return False
        return self.journals[journal].state == LIVE and not self.journals[journal].is_open
