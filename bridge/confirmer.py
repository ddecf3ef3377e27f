"""Turns journals of transactions whose commit was called into committed journals.

The plugin's ``commit()`` runs before the engine's own commit mark is on disk, and a server
killed in between rolls the transaction back. So a journal becomes ``<uuid>.log`` only after
the database file says that its transaction is committed, durably (inventory); then in ticket
order, which respects every row's history, and never past one that is not decided yet.

Several server processes may write into one folder (Classic). One of them confirms for all: it
holds ``confirmer.lock`` while there is something to confirm, and finds the others' journals by
the mark that ``commit()`` left in them. What a process leaves that ends at any point is decided
by whoever looks next: each bridge does so every second, and so does the shipper (recovery).

What becomes of a journal whose process is gone:

    state of its transaction      sealed               not sealed
    committed                     published            a gap: the engine has what we don't
    active, rolled back or dead   removed              removed
    in limbo                      kept                 kept
    unknown to the database       quarantined          removed

Guarantees: a number of the sequence is on disk before the journal that bears it is visible,
and is never given twice. No attachment of ours is opened but for what the file can't tell.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Protocol
from uuid import UUID, uuid4

import logbook

from firebird_cdc.bridge.counters import ConfirmTimes
from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import (
    CommittedJournal,
    CountedGap,
    DatabaseIdentity,
    DatabaseSeen,
    DeadTransactions,
    Event,
    GapsCounted,
    JournalAbandoned,
    LastSessionLeft,
    Verdict,
    Witness,
)
from firebird_cdc.bridge.inventory import (
    DatabaseReplaced,
    InventoryUnreadable,
    TransactionInventory,
)
from firebird_cdc.bridge.sequence import SequenceLedger, database_key
from firebird_cdc.bridge.structures import (
    Job,
    JournalStatements,
    KeyIndexFile,
    StructureReader,
    Structures,
)
from firebird_cdc.errors import CaptureError, JournalEmpty, JournalError, JournalTorn
from firebird_cdc.journal.ddl_text import parse, text_of
from firebird_cdc.journal.format import (
    DATA_OFFSET,
    CommitMark,
    Header,
    JournalReader,
    JournalWriter,
    Stamp,
    TableChange,
    append_catalogue,
    read_envelope,
    write_commit_mark,
    write_stamp,
)
from firebird_cdc.journal.lock import try_lock

_log = logbook.Logger("firebird_cdc.bridge.confirmer")

# Between two questions: a busy server's commits are decided in groups, as each group costs some
# syncs. Up to _SOME_PER_S the pause is as long as a group took, for each journal in it: single
# commits wait for no others, and what has piled up is worked off in ever smaller groups. Beyond
# that it is _GATHER_S, which leaves the server a tenth more commits (one connection, on two cores).
_SOME_PER_S = 800
_GATHER_S = 0.010
_GATHER_MORE_S = 0.080  # after a group of _MANY and more then
_MANY = 32
_COUNTING_S = 0.5
_AGAIN_S = 0.0002  # first pause after "still active"; grows up to _AGAIN_MOST_S
_AGAIN_MOST_S = 0.050
_TROUBLE_S = 1.0  # pause when a database can't be asked
_PAUSE_S = 0.5  # when nothing works: who leaves takes a second of silence for our end (host.c)
_STRUCTURES_MOMENT_S = 0.1  # to read what DDL made of tables takes some milliseconds
_UNREAD_S = 0.002  # to look for somebody who waits for that
_QUIET_S = 0.3  # after a commit of this process; DDL waits longer (session.c)
_STRUCTURES_PATIENCE_S = 30.0  # after the commit, while nobody can be asked
_WAIT_MS = 1000  # with nothing to do, how often to look for what dead processes left
_LOOK_AGAIN_MOST_S = 15.0  # the same while what they left can't be decided
_LAST_TICKET = 2**64 - 1
_LIMBO_TICKET = 0
_MOST_OPEN = 256  # journals held open, and published with one ledger record
_MOST_DEFINITIONS = 4096
_NOBODY = UUID(int=0)  # unknown: an owner, a database


@dataclass(slots=True)
class _Pending:
    """A journal that waits for its verdict."""

    uuid: UUID
    database: str
    transaction: int
    ticket: int
    commit_us: int
    length: int
    events: int
    fd: int = -1  # -1: not open
    number: int = 0  # of the plugin's event; 0: of another process
    has_ddl: bool = True
    is_unresolved: bool = True
    is_stuck: bool = False  # nobody can say when it will be decided
    is_sealed: bool = True
    is_unsynced: bool = False  # a sync of it failed; what comes after may say that it worked
    guid: UUID = _NOBODY  # of the database that it was written for
    header: Header | None = None  # of a journal that was found, not handed over
    is_orphan: bool = False  # its process is gone
    catalogue_offset: int = 0  # where its completed definitions are; 0: it has none
    statements: JournalStatements | None = None  # those that may change tables, once read
    is_described: bool = False  # what they did to tables is in it, or can't be had
    is_unread: bool = False  # it is yet to be read, and will be soon
    met_at: float = field(default_factory=time.monotonic)  # clocks can be set back

    @property
    def has_ticket(self) -> bool:
        return self.ticket != _LAST_TICKET


def _in_order(journals: list[_Pending]) -> list[_Pending]:
    """Return the journals of one database in an order that respects every row's history.

    That is the order of their tickets. Where one lost its ticket in a power cut, or got none as
    it was committed from limbo, the time of the seal or commit does as well: a transaction that
    depends on another one was sealed after that had ended.
    """
    if all(each.has_ticket for each in journals):
        return sorted(journals, key=lambda each: each.ticket)
    return sorted(journals, key=lambda each: each.commit_us)


def _is_live_name(name: str) -> bool:
    uuid, ending = name[:36], name[36:]
    try:
        return ending == ".log.live" and str(UUID(uuid)) == uuid
    except ValueError:
        return False


class Surroundings(Protocol):
    """What the confirmer needs of the process that it works in; ``Host`` tells more."""

    def last_ticket(self) -> int: ...
    def take_events(self, timeout_ms: int) -> list[Event]: ...
    def settle(self, number: int) -> None: ...
    def database(self, database: int) -> DatabaseIdentity: ...
    def open_witness(self, database: str) -> Witness: ...
    def store_definition(
        self, database: int, generation: int, shown: bytes, complete: bytes
    ) -> None: ...
    def new_generation(self) -> None: ...
    def read_gap(self, database: int) -> CountedGap | None: ...
    def clear_gap(self, database: int, gap: CountedGap) -> None: ...
    def sync_file_system(self, fd: int) -> None: ...


class Confirmer:
    """The confirmer of this process, and of all that share its folder while it leads.

    Belongs to one thread; ``use`` may be called from any.
    """

    def __init__(self, host: Surroundings, folder: JournalFolder, fsync: bool) -> None:
        self._host = host
        self._next = (folder, fsync)
        self._folder = folder
        self._fsync = fsync
        self._pending: dict[UUID, _Pending] = {}
        self._lock_fd: int | None = None  # held while this process confirms for all
        self._known = 0  # every journal with a ticket up to this is pending or decided
        self._led_from = 0  # what it was when this process began to lead
        self._own_tickets: set[int] = set()  # above _known, handed over by this process
        self._scan_wanted = True  # once per process: a crash may have left something
        self._stamps_restored = False
        self._ended: list[UUID] = []  # processes whose journals were found
        self._let_go = False  # of database files, as soon as nothing is pending
        self._look_at = 0.0  # when to look again for what dead processes left, monotonic
        self._left_undecided = 0  # how often in a row
        self._last_number = 0
        self._inventories: dict[tuple[str, UUID], TransactionInventory] = {}
        self._witnesses: dict[str, Witness] = {}
        self._ledgers: dict[str, SequenceLedger] = {}
        self._troubled: dict[str, float] = {}  # databases that can't be asked, until when
        self._again = _AGAIN_S
        self._published = 0  # in this turn
        self._counted, self._counting_since = 0, time.monotonic()  # published, and since when
        self._is_busy = False  # so many were published lately that they go in groups
        self._published_ddl = False  # in this turn, too
        self._numbers: dict[str, list[int]] = {}  # the plugin's numbers of a database path
        # completed table definitions by database and shown form, with their generation
        self._definitions: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        self._structures = StructureReader(host.open_witness)
        self._jobs: dict[str, Job] = {}  # what is asked about DDL that is committed, by database
        self._abandoned: list[JournalAbandoned] = []
        self._mark_at = 0.0  # when to try again to mark what could not be, monotonic
        self._times = ConfirmTimes(folder.state)
        # databases whose counters of gaps are to be read, and which event first said so
        self._uncounted: dict[int, int] = {}

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Work in another folder as soon as nothing is pending in the present one."""
        self._next = (folder, fsync)

    def start(self) -> None:
        """Work on a thread of its own, to the end of the process."""
        threading.Thread(target=self._run, name="fbc-confirm", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.turn()

    def let_go(self) -> None:
        """Close all that is open; the journals stay for the next."""
        for pending in list(self._pending.values()):
            self._forget(pending)
        self._rest()
        self._close_inventories()
        while self._ledgers:
            self._ledgers.popitem()[1].close()

    def turn(self) -> bool:
        """Do what there is to do, or wait a second for it; return whether anything was done or
        waits to be. An error is logged, and what it concerned tried again."""
        try:
            return self._turn()
        except Exception:
            _log.exception("confirming journals in {folder} failed", folder=self._folder.path)
            self._scan_wanted = True  # what the ledger has already must be finished first
            self._rest()
            time.sleep(_PAUSE_S)
            return True

    def _turn(self) -> bool:
        """Take what happened, act on it, and pause as long as is good for everybody."""
        busy = bool(self._pending) or self._scan_wanted
        heard = self._receive(0 if busy or self._can_mark() else _WAIT_MS)
        if self._next[0] is not self._folder and (
            not self._pending or not self._folder.is_in_place()
        ):
            self._move()
        self._look_around()
        busy = bool(self._pending) or self._scan_wanted or self._can_mark()
        self._mark_what_can_be()
        pause = 0.0
        if self._pending and not self._folder.is_in_place():
            pause = _PAUSE_S  # another one at its path would tell us nothing of them
        elif self._pending or self._scan_wanted:
            pause = self._lead() if self._is_leader() else self._follow()
        if not self._pending:
            self._rest()
            if self._let_go:
                self._close_inventories()
                self._let_go = False
        self._settle()
        if pause:
            time.sleep(pause)
        return heard or busy

    def _can_mark(self) -> bool:
        """Return whether there is anything to mark, a place for it, and it did not just fail."""
        return (
            bool(self._uncounted or self._abandoned)
            and time.monotonic() >= self._mark_at
            and self._folder.is_in_place()
        )

    def _mark_what_can_be(self) -> None:
        """Mark gaps that were counted, and journals in limbo. What can't be now, as the disk is
        full or a database can't be asked, is tried again and holds up nothing else."""
        if not self._can_mark():
            return
        marks = [
            *(partial(self._mark_gap, database) for database in list(self._uncounted)),
            *(partial(self._settle_abandoned, event) for event in list(self._abandoned)),
        ]
        for mark in marks:
            try:
                mark()
            except (OSError, CaptureError) as error:
                _log.error("cannot mark a gap or limbo yet, will keep trying: {}", error)
                self._mark_at = time.monotonic() + _TROUBLE_S

    def _receive(self, timeout_ms: int) -> bool:
        """Take what the plugin has to tell; return whether there was anything."""
        events = self._host.take_events(timeout_ms)
        for event in events:
            self._last_number = event.number
            if isinstance(event, CommittedJournal):
                self._accept(event)
            elif isinstance(event, DatabaseSeen):
                self._meet(event.database)
                # a process that has ended may have counted
                self._uncounted.setdefault(event.database, event.number)
            elif isinstance(event, JournalAbandoned):
                self._abandoned.append(event)
            elif isinstance(event, GapsCounted):
                self._uncounted.setdefault(event.database, event.number)
            elif isinstance(event, DeadTransactions):
                self._scan_wanted = True
            elif isinstance(event, LastSessionLeft):
                self._let_go = True
                self._mark_at = 0.0  # the process may end: what was in the way may be gone
        return bool(events)

    def _meet(self, number: int) -> None:
        """Have the file open before the database may be dropped: what was committed in it can
        be read then all the same."""
        path, guid = self._host.database(number)
        numbers = self._numbers.setdefault(path, [])
        if number not in numbers:
            numbers.append(number)
        with contextlib.suppress(OSError, CaptureError):
            self._inventory(path, guid)

    def _accept(self, event: CommittedJournal) -> None:
        if event.is_gap:
            _log.error(
                "{database}: a gap: transaction {transaction} was committed, but could not be "
                "recorded: {reason}",
                database=self._host.database(event.database).path,
                transaction=event.transaction,
                reason=event.reason,
                journal=event.uuid,
            )
        self._own_tickets.add(event.ticket)
        self._let_go = False  # somebody is here again, and may drop the database
        database = self._host.database(event.database)
        self._pending[event.uuid] = _Pending(
            event.uuid,
            database.path,
            event.transaction,
            event.ticket,
            event.commit_us,
            event.length,
            event.events,
            event.fd,
            event.number,
            event.has_ddl,
            event.is_unresolved,
            is_unsynced=event.is_unsynced,
            guid=database.guid,
            catalogue_offset=event.catalogue_offset,
        )
        if len(self._pending) > _MOST_OPEN and event.fd >= 0:
            os.close(event.fd)  # a server's descriptors are not ours to use up
            self._pending[event.uuid].fd = -1

    def _settle_abandoned(self, event: JournalAbandoned) -> None:
        """Mark or remove the journal of a transaction that the engine let go."""
        self._mark_limbo(event)
        self._abandoned.remove(event)

    def _mark_limbo(self, event: JournalAbandoned) -> None:
        """Mark the journal of a transaction that is in limbo now, so that whoever leads keeps it
        until that is resolved. What is not goes: publication was switched off."""
        database = self._host.database(event.database)
        live = self._folder.live(event.uuid)
        try:
            with JournalReader(live) as reader:
                pending = self._found(reader, is_orphan=True)
        except (FileNotFoundError, JournalError):
            return  # found and decided already, by a scan of another process
        (verdict,) = self._ask(database.path, [pending])
        if verdict is Verdict.COMMITTED:  # undone, or resolved meanwhile: nobody can tell
            self._replace_by_gap(pending)
        elif verdict is Verdict.DEAD:
            _log.error(
                "the engine let transaction {transaction} of {database} go before its end, as "
                "publication was switched off: its changes are not captured",
                transaction=event.transaction,
                database=database.path,
                journal=event.uuid,
            )
            live.unlink(missing_ok=True)
            return
        mark = CommitMark(_LIMBO_TICKET, pending.commit_us, event.transaction)
        with self._written(live) as fd:
            write_commit_mark(fd, event.uuid, mark)
        self._scan_wanted = True

    def _mark_gap(self, number: int) -> None:
        """Leave a gap for transactions that could leave nothing themselves. Raises OSError;
        what is counted stays so until the gap is on disk."""
        gap = self._host.read_gap(number)
        if gap is None:
            del self._uncounted[number]
            return
        path, guid = self._host.database(number)
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
        self._pend_gap(path, guid, reason, gap.last_us, self._uncounted[number])
        # Read once more in the next turn: only the first one that is counted tells us.
        self._host.clear_gap(number, gap)

    def _pend_gap(
        self, database: str, guid: UUID, reason: str, commit_us: int, number: int
    ) -> None:
        """Add a gap of no transaction, of which event NUMBER told, to what waits, as a commit
        of now."""
        uuid = uuid4()
        temporary = self._folder.state / f"gap-{uuid}"
        try:
            with JournalWriter(
                temporary,
                uuid=uuid,
                database=database,
                database_guid=guid,
                owner=self._folder.owner,
            ) as writer:
                writer.gap(reason)
                writer.seal()
                length = writer.journal_length or 0
                with self._folder.locked_tickets():
                    ticket = self._folder.last_ticket + 1
                    writer.commit(ticket, commit_us)
                    temporary.rename(self._folder.live(uuid))
                    self._folder.tickets[:8] = ticket.to_bytes(8, "little")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if self._fsync:
            os.fsync(self._folder.journal_fd)  # the counters are cleared next
        self._own_tickets.add(ticket)
        self._pending[uuid] = _Pending(
            uuid,
            database,
            0,
            ticket,
            commit_us,
            length,
            1,
            number=number,
            has_ddl=False,
            is_unresolved=False,
            guid=guid,
        )

    def _settle(self) -> None:
        """Tell sessions that wait to leave how far their commits are decided."""
        pending = self._pending.values()
        waiting = [each.number for each in pending if each.number and not each.is_stuck]
        if self._can_mark():
            waiting += [*self._uncounted.values(), *(event.number for event in self._abandoned)]
        self._host.settle(min(waiting) - 1 if waiting else self._last_number)

    def _move(self) -> None:
        """Go on in another folder. Journals that waited in one that was taken away are lost to
        us, and become gaps; those of the new one that were handed over already go with us."""
        self._rest()
        before, self._folder = self._folder, self._next[0]
        try:
            for pending in list(self._pending.values()):
                if not self._live_exists(pending):
                    why = "its journal went with its folder before it could be confirmed"
                    self._replace_by_gap(pending, why)
                    pending.ticket = _LAST_TICKET  # what it had was of the other folder
        except BaseException:
            self._folder = before
            raise
        self._fsync = self._next[1]
        self._times = ConfirmTimes(self._folder.state)
        while self._ledgers:
            self._ledgers.popitem()[1].close()
        self._stamps_restored = False
        self._own_tickets = {each.ticket for each in self._pending.values() if each.number}
        self._scan_wanted = True

    # -- who confirms ---------------------------------------------------------------------------

    def _is_leader(self) -> bool:
        if self._lock_fd is not None:
            return True
        self._lock_fd = try_lock(self._folder.state / "confirmer.lock", fcntl.LOCK_EX)
        if self._lock_fd is None:
            return False
        accounted = self._folder.accounted
        self._known = accounted if accounted <= self._host.last_ticket() else 0
        self._led_from = self._known
        for pending in list(self._pending.values()):
            if pending.ticket <= self._led_from and not self._live_exists(pending):
                self._forget(pending)  # the leader before us has decided it
        if self._folder.undecided or self._folder.is_publishing:
            self._scan_wanted = True
        return True

    def _rest(self) -> None:
        """Nothing is left to do: stand in nobody's way."""
        while self._witnesses:
            self._witnesses.popitem()[1].close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        self._close_inventories(only_replaced=True)

    def _close_inventories(self, only_replaced: bool = False) -> None:
        """Close the files in which nothing waits: all, or those of databases that were dropped
        or replaced."""
        waiting = {(pending.database, pending.guid) for pending in self._pending.values()}
        for key, inventory in list(self._inventories.items()):
            if key not in waiting and not (only_replaced and inventory.is_in_place):
                del self._inventories[key]
                inventory.close()

    def _look_around(self) -> None:
        """Have a process that died looked after, soon and without anybody's help."""
        if not self._pending and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _WAIT_MS / 1000
            self._scan_wanted = (
                self._scan_wanted or self._folder.undecided > 0 or self._folder.has_dead_owner()
            )

    def _follow(self) -> float:
        """Another process confirms: watch what becomes of our journals."""
        self._forget_renamed()
        accounted = self._folder.accounted
        self._own_tickets = {ticket for ticket in self._own_tickets if ticket > accounted}
        if not self._pending:
            self._scan_wanted = False  # it looks around as well
            return 0.0
        return _GATHER_S

    def _forget_renamed(self) -> None:
        for pending in list(self._pending.values()):
            if not self._live_exists(pending):
                self._forget(pending)

    def _live_exists(self, pending: _Pending) -> bool:
        try:
            os.stat(f"{pending.uuid}.log.live", dir_fd=self._folder.journal_fd)
        except FileNotFoundError:
            return False
        return True

    def _lead(self) -> float:
        """Find all that is marked, ask about it, act on the answers; return how long to pause."""
        began = time.monotonic()
        last = self._host.last_ticket()
        while self._receive(0):
            pass
        own = sum(self._known < ticket <= last for ticket in self._own_tickets)
        if self._scan_wanted or own < last - self._known:
            self._scan(last)
        self._known = max(self._known, last)
        self._own_tickets = {ticket for ticket in self._own_tickets if ticket > self._known}

        self._published, self._published_ddl = 0, False
        decided, active = self._decide(last)
        self._folder.accounted = min(
            [self._known, *(pending.ticket - 1 for pending in self._pending.values())]
        )
        self._folder.described = min(
            [
                self._known,
                *(
                    pending.ticket - 1
                    for pending in self._pending.values()
                    if pending.has_ddl and (pending.is_unread or not pending.is_stuck)
                ),
            ]
        )
        self._forget_ended()
        self._leave_undecided()
        if decided:
            self._again = _AGAIN_S
            if self._published_ddl:
                return 0.0  # the next one waits for this one to be described: no group forms
            return self._gathering_time(time.monotonic() - began)
        if not self._pending:
            return 0.0
        if any(each.is_unread for each in self._pending.values()):
            return _UNREAD_S
        pause, self._again = self._again, min(1.5 * self._again, _AGAIN_MOST_S)
        return pause if active else _AGAIN_MOST_S

    def _gathering_time(self, taken_s: float) -> float:
        """How long to pause after a group that took TAKEN_S, for others to join the next one."""
        now = time.monotonic()
        self._counted += self._published
        if (counted_s := now - self._counting_since) >= _COUNTING_S:
            self._is_busy = self._counted > _SOME_PER_S * counted_s
            self._counted, self._counting_since = 0, now
        if not self._is_busy:  # a long pause now would make the next group as large again
            return min(taken_s * self._published, _GATHER_S)
        return _GATHER_MORE_S if self._published >= _MANY else _GATHER_S

    def _leave_undecided(self) -> None:
        """What a dead process left and nobody can decide now, as it is in limbo, must not keep
        others from leading once it is all that is left: whoever leads next finds it again."""
        left = list(self._pending.values())
        if not all(each.is_stuck and not each.number for each in left):
            return
        for pending in left:
            self._forget(pending)
        self._folder.undecided = len(left)
        self._left_undecided = self._left_undecided + 1 if left else 0
        if left:
            pause = min(2.0**self._left_undecided, _LOOK_AGAIN_MOST_S)
            self._look_at = time.monotonic() + pause

    # -- questions and answers ------------------------------------------------------------------

    def _decide(self, last: int) -> tuple[bool, bool]:
        """Decide what was committed up to ticket ``last``: later ones may have predecessors in
        other processes that were not looked for yet.

        Returns whether anything was decided, and whether anything is still active.
        """
        decided = active = False
        now = time.monotonic()
        ready = [
            each for each in self._pending.values() if each.ticket <= last or not each.has_ticket
        ]
        ready.sort(key=lambda each: each.database)
        for database, group in groupby(ready, key=lambda each: each.database):
            waiting = _in_order(list(group))
            if self._troubled.get(database, 0.0) > now:
                for pending in waiting:
                    pending.is_stuck = True
                continue
            try:
                verdicts = self._ask(database, waiting)
            except (CaptureError, OSError) as error:
                self._tell_trouble(database, waiting, error)
                continue
            self._troubled.pop(database, None)
            committed: list[_Pending] = []
            blocked = False
            for pending, verdict in zip(waiting, verdicts, strict=True):
                pending.is_stuck = verdict is Verdict.LIMBO
                if verdict is Verdict.COMMITTED and not blocked:
                    committed.append(pending)
                elif verdict is Verdict.ACTIVE or verdict is Verdict.COMMITTED:
                    blocked = True  # strictly in ticket order
                elif verdict is Verdict.DEAD:
                    self._delete(pending)
                    decided = True
                elif verdict is Verdict.UNKNOWN:
                    self._set_aside(pending)
                    decided = True
            for start in range(0, len(committed), _MOST_OPEN):
                end = min(start + _MOST_OPEN, len(committed))
                decided = self._publish(database, committed[start:end]) or decided
                if committed[end - 1].uuid in self._pending:
                    break  # one of them waits, and nothing passes it
            active = active or blocked
        return decided, active

    def _tell_trouble(self, database: str, waiting: list[_Pending], error: Exception) -> None:
        if database not in self._troubled:
            _log.warning(
                "cannot learn from {database} what became of {count} transactions, will keep "
                "trying: {cause}",
                database=database,
                count=len(waiting),
                cause=str(error).replace("\n", " "),
            )
        self._troubled[database] = time.monotonic() + _TROUBLE_S
        if witness := self._witnesses.pop(database, None):
            witness.close()  # it may be the attachment that ended, and is in the way if not
        for pending in waiting:
            pending.is_stuck, pending.is_unread = True, False

    def _ask(self, database: str, journals: list[_Pending]) -> list[Verdict]:
        """Return the verdict on each, from the file, or from the engine if that can't tell."""
        # A gap of ours is of no transaction, and perhaps of a database that can't be opened.
        asked = [pending for pending in journals if pending.transaction]
        found = dict.fromkeys((pending.uuid for pending in journals), Verdict.COMMITTED)
        for guid in {pending.guid for pending in asked}:
            group = [pending for pending in asked if pending.guid == guid]
            verdicts = self._ask_incarnation(database, guid, group)
            if Verdict.LIMBO in verdicts and Verdict.COMMITTED in verdicts:
                # One that waited for another's limbo to end may have been committed meanwhile.
                for index, again in enumerate(self._ask_incarnation(database, guid, group)):
                    if verdicts[index] is Verdict.LIMBO:
                        verdicts[index] = again
            found.update(zip((pending.uuid for pending in group), verdicts, strict=True))
        found |= {each.uuid: self._final_verdict(each, found[each.uuid]) for each in asked}
        return [found[pending.uuid] for pending in journals]

    def _ask_incarnation(
        self, database: str, guid: UUID, journals: list[_Pending]
    ) -> list[Verdict]:
        transactions = [pending.transaction for pending in journals]
        try:
            inventory = self._inventory(database, guid)
            verdicts = inventory.verdicts(transactions, self._fsync)
        except DatabaseReplaced:
            return [Verdict.UNKNOWN] * len(journals)
        except InventoryUnreadable:
            return self._witness_for(database).ask(transactions)
        inode = inventory.incarnation.inode
        for index, pending in enumerate(journals):
            if pending.header is not None and pending.header.database_inode not in (0, inode):
                verdicts[index] = Verdict.UNKNOWN
        return verdicts

    def _final_verdict(self, pending: _Pending, verdict: Verdict) -> Verdict:
        """What the state means, now that we know who asks."""
        if verdict not in (Verdict.ACTIVE, Verdict.UNKNOWN):
            return verdict
        if not pending.is_orphan:
            # Its process may have ended since it was found, but also have committed before that
            # and since we asked: what the state means then, the next answer tells.
            if pending.header is not None:
                pending.is_orphan = self._folder.owner_is_gone(pending.header.owner)
            return Verdict.ACTIVE if pending.is_orphan else verdict
        if verdict is Verdict.ACTIVE:
            # Nobody works in it any more, unless it was written while no bridge ran.
            is_ownerless = pending.header is not None and pending.header.owner == _NOBODY
            return Verdict.LIMBO if is_ownerless else Verdict.DEAD
        return Verdict.UNKNOWN if pending.is_sealed else Verdict.DEAD

    def _inventory(self, database: str, guid: UUID) -> TransactionInventory:
        inventory = self._inventories.get((database, guid))
        if inventory is None:
            inventory = TransactionInventory(Path(database), guid)
            self._inventories[database, guid] = inventory
        return inventory

    def _witness_for(self, database: str) -> Witness:
        witness = self._witnesses.get(database)
        if witness is None:
            witness = self._witnesses[database] = self._host.open_witness(database)
        return witness

    # -- what becomes of a journal --------------------------------------------------------------

    def _publish(self, database: str, committed: list[_Pending]) -> bool:
        """Give COMMITTED their numbers and names; return whether any got one."""
        ledger = self._ledger(database)
        with ledger.exclusive():
            if removed := [each for each in committed if not self._live_exists(each)]:
                given = {uuid for uuid, _ in ledger.entries()}
                for pending in removed:
                    if pending.ticket <= self._led_from or pending.uuid in given:
                        committed.remove(pending)  # by the leader before us
                        self._forget(pending)
                    else:
                        self._replace_by_gap(pending, "its journal was removed")
            for pending in committed:
                if not pending.is_sealed:
                    self._replace_by_gap(pending)
                if pending.is_unsynced:
                    self._copy_anew(pending)
            committed = self._with_definitions(database, committed)
            committed = self._with_structures(database, committed)
            if not committed:
                return False
            self._begin_epoch_if_replaced(database, committed[0].guid, ledger)
            self._folder.is_publishing = True
            self._stamp(committed, ledger)
            for pending in committed:
                os.rename(
                    f"{pending.uuid}.log.live",
                    f"{pending.uuid}.log",
                    src_dir_fd=self._folder.journal_fd,
                    dst_dir_fd=self._folder.journal_fd,
                )
                if pending.has_ddl:
                    self._host.new_generation()  # the engine shows the change only now
                    self._published_ddl = True
                self._forget(pending)
            self._folder.is_publishing = False
        self._published += len(committed)
        now_us = time.time_ns() // 1000
        self._times.add(database, ((now_us - each.commit_us) / 1e6 for each in committed))
        return True

    def _replace_by_gap(self, pending: _Pending, why: str = "") -> None:
        """The engine committed what was not recorded to its end, or is gone: say so in its
        place."""
        reason = (
            f"transaction {pending.transaction} was committed, but {why}"
            if why
            else f"transaction {pending.transaction} was committed, from limbo or after a power "
            "cut, but its changes were not on disk"
        )
        _log.error(
            "{database}: a gap: {reason}",
            database=pending.database,
            reason=reason,
            journal=pending.uuid,
            transaction=pending.transaction,
        )
        self._write_gap(pending, reason)

    def _copy_anew(self, pending: _Pending) -> None:
        """The sync of a committed journal failed: after that the system may take its bytes for
        written that are not. Put a copy in its place, whole on disk."""
        live, copy = self._folder.live(pending.uuid), self._folder.state / f"copy-{pending.uuid}"
        try:
            copy.touch(0o600)  # as all journals are
            shutil.copyfile(live, copy)
            self._folder.sync_file(copy)
            copy.rename(live)
            if self._fsync:
                os.fsync(self._folder.journal_fd)  # or the one that failed could come back
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        if pending.fd >= 0:
            os.close(pending.fd)
            pending.fd = -1
        pending.is_unsynced = False
        _log.warning(
            "journal {journal} could not be synced at first and was copied",
            journal=pending.uuid,
            database=pending.database,
        )

    def _write_gap(self, pending: _Pending, reason: str) -> None:
        """Make PENDING's journal one gap, whole on disk before it takes its place."""
        temporary = self._folder.state / f"gap-{pending.uuid}"
        temporary.unlink(missing_ok=True)
        header = pending.header
        with JournalWriter(
            temporary,
            uuid=pending.uuid,
            transaction=pending.transaction,
            database=pending.database,
            user="",
            database_guid=header.database_guid if header else pending.guid,
            owner=header.owner if header else self._folder.owner,
            database_inode=header.database_inode if header else 0,
        ) as writer:
            writer.gap(reason)
            writer.seal()
            pending.length = writer.journal_length or 0
        self._folder.sync_file(temporary)
        temporary.rename(self._folder.live(pending.uuid))
        if self._fsync:
            os.fsync(self._folder.journal_fd)  # where the journal was removed there is no other
        if pending.fd >= 0:
            os.close(pending.fd)
            pending.fd = -1
        pending.events, pending.is_sealed, pending.is_unresolved = 1, True, False
        pending.catalogue_offset, pending.is_unsynced = 0, False
        pending.is_described = True

    def _with_definitions(self, database: str, committed: list[_Pending]) -> list[_Pending]:
        """Complete what the records could not show of their tables, where the plugin did not
        learn it in time. Return the journals up to the first for which nobody can be asked."""
        for index, pending in enumerate(committed):
            if pending.fd < 0:
                pending.fd = os.open(self._folder.live(pending.uuid), os.O_RDWR | os.O_CLOEXEC)
            if not pending.is_unresolved:
                if pending.header and pending.catalogue_offset and self._fsync:
                    os.fdatasync(pending.fd)  # found: who wrote that may have died before its sync
                continue
            try:
                self._complete_definitions(database, pending)
            except CaptureError as error:
                self._tell_trouble(database, committed[index:], error)
                return committed[:index]
        return committed

    def _complete_definitions(self, database: str, pending: _Pending) -> None:
        with JournalReader(self._folder.live(pending.uuid)) as reader:
            unresolved, seal = reader.unresolved_tables(), reader.seal
        if not unresolved or seal is None:
            return
        generation = self._folder.generation
        completed = {}
        for number, shown in unresolved.items():
            if complete := self._described(database, generation, shown):
                completed[number] = complete
            else:
                _log.warning(
                    "journal {journal}: a table that it changes was dropped before its key was "
                    "asked for; its events have no key",
                    journal=pending.uuid,
                    database=pending.database,
                )
        if not completed:
            return
        pending.catalogue_offset = seal.end
        pending.length = append_catalogue(pending.fd, pending.uuid, seal, completed)
        if self._fsync:
            os.fdatasync(pending.fd)

    # -- what DDL did to tables ------------------------------------------------------------------

    def _with_structures(self, database: str, committed: list[_Pending]) -> list[_Pending]:
        """Add to journals what their DDL made of tables. Return those up to the first for which
        that is still being read, or nobody can be asked yet."""
        for pending in committed:
            self._read_statements(pending)
        wanted = [each for each in committed if not each.is_described]
        if not wanted:
            return committed
        try:
            job = self._jobs.get(database) or self._begin_job(database, wanted)
            for pending in wanted:
                pending.is_unread = True
            if job is None:
                for pending in wanted:
                    pending.is_stuck = True  # nobody is to wait for it to be quiet
            elif job.done.wait(_STRUCTURES_MOMENT_S):
                del self._jobs[database]
                self._add_structures(database, wanted, job.result())
            else:
                self._give_up(database, wanted, "the engine does not answer")
        except OSError:
            raise  # half of it may be where definitions were; the disk has to work for all else too
        except Exception as error:  # of any kind: the journals wait for it so long and no longer
            if not isinstance(error, CaptureError):
                _log.exception(
                    "adding what DDL made of tables in {database} failed", database=database
                )
            if not self._give_up(database, wanted, str(error)):
                self._tell_trouble(database, wanted, error)
        waiting = [index for index, each in enumerate(committed) if not each.is_described]
        return committed[: waiting[0]] if waiting else committed

    def _begin_job(self, database: str, wanted: list[_Pending]) -> Job | None:
        """Have read what those journals' DDL made of tables. None where it is too early to
        attach: a DROP DATABASE of this process may be on its way (structures)."""
        quiet_since = time.monotonic() - _QUIET_S
        own = [each for each in wanted if each.number]
        is_awaited = any(self._folder.awaited == each.ticket for each in wanted)
        is_quiet = all(each.met_at <= quiet_since for each in own)
        if not (is_awaited or is_quiet or self._let_go):
            return None
        if self._is_gone(database, wanted[0].guid):
            raise CaptureError("it was dropped or replaced")
        journals = [each.statements for each in wanted if each.statements is not None]
        before = self._key_indexes(database, wanted[0].guid).read()
        job = self._structures.start(Job(database, journals, before))
        self._jobs[database] = job
        return job

    def _read_statements(self, pending: _Pending) -> None:
        """Find out whether a journal has DDL of tables, once."""
        if not pending.has_ddl:
            pending.is_described = True
        if pending.is_described or pending.statements is not None:
            return
        try:
            with JournalReader(self._folder.live(pending.uuid)) as reader:
                parsed = {pos: parse(text_of(sql)) for pos, sql in reader.statements().items()}
                seal, catalogue = reader.seal, reader.unstamped_catalogue()
        except JournalError as error:  # the shipper sets it aside
            _log.error(
                "journal {journal}: {cause}",
                journal=pending.uuid,
                cause=error,
                database=pending.database,
            )
            pending.is_described = True
            return
        statements = {pos: each for pos, each in parsed.items() if each is not None}
        pending.statements = JournalStatements(pending.uuid, statements)
        pending.is_described = not statements
        if seal is not None and catalogue is not None and catalogue.tells_of_ddl:
            # By a leader before us, which did not come to the stamp, perhaps not to a sync.
            pending.catalogue_offset, pending.length = seal.end, catalogue.end
            pending.is_described = True
            self._key_indexes(pending.database, pending.guid).remove()
            if self._fsync:
                os.fdatasync(pending.fd)

    def _add_structures(self, database: str, wanted: list[_Pending], found: Structures) -> None:
        """Write what was found into the journals that it was asked for."""
        if self._is_gone(database, wanted[0].guid):
            raise CaptureError("it was dropped or replaced")
        for pending in wanted:
            if pending.uuid in found.changes:
                self._append_changes(pending, found.changes[pending.uuid])
                pending.is_described = True
        try:
            self._key_indexes(database, wanted[0].guid).write(found.indexes)
        except OSError as error:
            _log.warning(
                "cannot keep which indexes are keys in {database}: {cause}",
                database=database,
                cause=error,
            )

    def _append_changes(
        self, pending: _Pending, changes: dict[int, tuple[TableChange, ...]]
    ) -> None:
        with JournalReader(self._folder.live(pending.uuid)) as reader:
            seal, catalogue = reader.seal, reader.unstamped_catalogue()
        if seal is None:
            return
        bodies = catalogue.bodies if catalogue is not None else {}
        try:
            end = append_catalogue(pending.fd, pending.uuid, seal, bodies, changes)
        except ValueError as error:
            _log.warning("{}: it gets no structure of the tables that its DDL changed", error)
            return
        pending.catalogue_offset, pending.length = seal.end, end
        if self._fsync:
            os.fdatasync(pending.fd)

    def _give_up(self, database: str, wanted: list[_Pending], why: str) -> bool:
        """Let those journals go whose tables could not be read for long, or never will be; tell
        whether these are all."""
        is_gone = self._is_gone(database, wanted[0].guid)
        latest_us = time.time_ns() // 1000 - int(_STRUCTURES_PATIENCE_S * 1_000_000)
        latest = time.monotonic() - _STRUCTURES_PATIENCE_S
        for pending in wanted:
            if is_gone or pending.commit_us < latest_us or pending.met_at < latest:
                _log.warning(
                    "journal {journal}: its schema change events have no structure of the tables, "
                    "which could not be read from {database}: {cause}",
                    journal=pending.uuid,
                    database=database,
                    cause=why.replace("\n", " "),
                )
                pending.is_described = True
                self._jobs.pop(database, None)
                self._key_indexes(database, pending.guid).remove()  # it may have changed them
        return all(each.is_described for each in wanted)

    def _is_gone(self, database: str, guid: UUID) -> bool:
        """Whether the file at the path is not the database any more that a journal is of."""
        try:
            inventory = self._inventory(database, guid)
            return inventory.is_being_dropped or not inventory.is_in_place
        except (DatabaseReplaced, FileNotFoundError):
            return True
        except (InventoryUnreadable, OSError):
            return False

    def _key_indexes(self, database: str, guid: UUID) -> KeyIndexFile:
        return KeyIndexFile(self._folder.databases, database, guid)

    def _described(self, database: str, generation: int, shown: bytes) -> bytes:
        """Return the complete form of a definition, and let later transactions know it."""
        known = self._definitions.get((database, shown))
        if known is not None and known[0] == generation:
            return known[1]
        complete = self._witness_for(database).describe(shown)
        if not complete:
            return complete
        self._definitions[database, shown] = (generation, complete)
        if len(self._definitions) > _MOST_DEFINITIONS:
            self._definitions.pop(next(iter(self._definitions)))
        for number in self._numbers.get(database, ()):
            self._host.store_definition(number, generation, shown, complete)
        return complete

    def _begin_epoch_if_replaced(self, database: str, guid: UUID, ledger: SequenceLedger) -> None:
        try:
            inventory = self._inventory(database, guid)
            incarnation, last = inventory.incarnation, inventory.last_transaction
        except (InventoryUnreadable, OSError):
            return  # the next time that it can be read
        if ledger.incarnation is None:
            ledger.incarnation = incarnation
        elif ledger.incarnation != incarnation or last < ledger.highest_transaction:
            _log.warning(
                "{database} was copied, restored or replaced: its journals are numbered from 1 "
                "again, in epoch {epoch}",
                database=database,
                epoch=ledger.epoch + 1,
            )
            ledger.begin_epoch(incarnation)

    def _stamp(self, committed: list[_Pending], ledger: SequenceLedger) -> None:
        """Give each its number, on disk before any of them is visible."""
        stamped_us = time.time_ns() // 1000
        group = [
            (
                pending.uuid,
                Stamp(
                    epoch=ledger.epoch,
                    sequence=number,
                    commit_us=pending.commit_us,
                    stamped_us=stamped_us,
                    journal_length=pending.length,
                    event_count=pending.events,
                    transaction=pending.transaction,
                    catalogue_offset=pending.catalogue_offset,
                ),
            )
            for number, pending in enumerate(committed, ledger.last + 1)
        ]
        for pending, (uuid, stamp) in zip(committed, group, strict=True):
            write_stamp(pending.fd, uuid, stamp)
        ledger.record(group, group[-1][1].sequence)

    def _delete(self, pending: _Pending) -> None:
        """A dead transaction's journal goes: the server died before its commit mark was set."""
        _log.info(
            "transaction {transaction} of {database} did not commit; its journal {journal} is "
            "removed",
            transaction=pending.transaction,
            database=pending.database,
            journal=pending.uuid,
        )
        self._folder.live(pending.uuid).unlink(missing_ok=True)
        self._forget(pending)

    def _set_aside(self, pending: _Pending) -> None:
        reason = (
            f"transaction {pending.transaction} is not one of {pending.database} as it is now: the "
            "journal belongs to what was there before it was restored or replaced"
        )
        _log.error(
            "journal {journal} is set aside: {reason}",
            journal=pending.uuid,
            reason=reason,
            database=pending.database,
            transaction=pending.transaction,
        )
        self._folder.set_aside(pending.uuid, reason)
        self._forget(pending)

    def _forget(self, pending: _Pending) -> None:
        del self._pending[pending.uuid]
        if pending.fd >= 0:
            os.close(pending.fd)

    # -- state on disk ----------------------------------------------------------------------------

    def _ledger(self, database: str) -> SequenceLedger:
        ledger = self._ledgers.get(database)
        if ledger is None:
            ledger = SequenceLedger(
                self._folder.databases, database_key(database), self._fsync, self._sync_stamps
            )
            try:
                with ledger.exclusive():
                    if ledger.is_new:
                        ledger.record([], self._highest_stamp(database))
            except BaseException:
                ledger.close()  # it is tried again, and the server needs its descriptors
                raise
            self._ledgers[database] = ledger
        return ledger

    def _sync_stamps(self) -> None:
        self._host.sync_file_system(self._folder.journal_fd)

    def _highest_stamp(self, database: str) -> int:
        """The ledger is new: go on after what lies in the folder, if anything does."""
        highest = 0
        for entry in os.scandir(self._folder.path):
            if entry.name.endswith(".log"):
                with contextlib.suppress(JournalError, OSError):
                    _, stamp, its_database = read_envelope(self._folder.path / entry.name)
                    if stamp is not None and its_database == database:
                        highest = max(highest, stamp.sequence)
        return highest

    def _scan(self, last: int) -> None:
        """Take up every journal marked up to ticket ``last``, whoever wrote it, and what dead
        processes left; remove what they never prepared."""
        dead = self._folder.dead_owners()
        self._folder.rescue(dead)
        with os.scandir(self._folder.path) as entries:
            # All else is nobody's: a copy, or something that was put here; or it waits to be
            # shipped, and of these there may be a million.
            live = [entry for entry in entries if _is_live_name(entry.name)]
        for entry in live:
            owner = None
            try:
                with JournalReader(entry.path) as reader:
                    if f"{reader.header.uuid}.log.live" != entry.name:
                        continue
                    owner = reader.header.owner
                    self._take_up(reader, last)
            except FileNotFoundError:
                continue
            except JournalError as error:
                self._remove_if_abandoned(Path(entry.path), owner, error)
        if self._scan_wanted:
            self._complete()
            self._restore_stamps()
        self._ended = dead
        self._scan_wanted = False

    def _forget_ended(self) -> None:
        """Tidy up after the processes whose journals are all decided; while one is left,
        somebody has to look again."""
        busy = {each.header.owner for each in self._pending.values() if each.header}
        done = [each for each in self._ended if each not in busy]
        if done and self._fsync:
            # Until then a power cut may take a journal back into its pool, to which only the mark
            # leads.
            os.fsync(self._folder.journal_fd)
        for owner in done:
            self._folder.forget(owner)
        self._ended = [each for each in self._ended if each in busy]

    def _take_up(self, reader: JournalReader, last: int) -> None:
        header, mark = reader.header, reader.commit_mark
        if header.uuid in self._pending:
            return
        is_limbo = mark is not None and mark.ticket == _LIMBO_TICKET
        is_orphan = is_limbo or self._folder.owner_is_gone(header.owner)
        if not is_orphan and (mark is None or mark.ticket > last):
            return  # still being written, or marked since we looked: the next turn's
        pending = self._pending[header.uuid] = self._found(reader, is_orphan)
        if pending.is_described:  # whoever did that may have died before it kept the key indexes
            self._key_indexes(pending.database, pending.guid).remove()

    @staticmethod
    def _found(reader: JournalReader, is_orphan: bool) -> _Pending:
        header, mark, seal = reader.header, reader.commit_mark, reader.seal
        has_ticket = mark is not None and mark.ticket != _LIMBO_TICKET
        pending = _Pending(
            header.uuid,
            reader.database,
            header.transaction,
            mark.ticket if mark and has_ticket else _LAST_TICKET,
            mark.commit_us if mark else seal.sealed_us if seal else header.started_us,
            seal.end if seal else 0,
            seal.event_count if seal else 0,
            is_sealed=seal is not None,
            guid=header.database_guid,
            header=header,
            is_orphan=is_orphan,
        )
        catalogue = reader.unstamped_catalogue()
        if seal is not None and catalogue is not None:
            # Definitions are completed before changes of tables are added: what is missing then
            # can't be had.
            missing = reader.unresolved_tables().keys() - catalogue.bodies.keys()
            if catalogue.tells_of_ddl or not missing:
                pending.catalogue_offset, pending.length = seal.end, catalogue.end
                pending.is_unresolved = False
                pending.is_described = catalogue.tells_of_ddl
        return pending

    def _remove_if_abandoned(self, path: Path, owner: UUID | None, error: JournalError) -> None:
        """What was never filled goes once nobody can be at work on it; damage is kept, but for
        what a power cut does to a journal that was never sealed."""
        with contextlib.suppress(FileNotFoundError):
            if not self._is_abandoned(path, owner):
                return
            is_short = isinstance(error, JournalTorn) and error.offset <= DATA_OFFSET
            if isinstance(error, JournalEmpty) or (is_short and self._fsync):
                _log.info("removing {}: nothing was written to it", path.name)
                path.unlink()
                return
            uuid = UUID(path.name.partition(".")[0])
            _log.error("journal {journal} is set aside: {reason}", journal=uuid, reason=error)
            self._folder.set_aside(uuid, str(error))

    def _is_abandoned(self, path: Path, owner: UUID | None) -> bool:
        """Tell whether the process that made a journal has ended; where the header doesn't name
        it, whether all have that may have made it."""
        if owner is not None:
            return self._folder.owner_is_gone(owner)
        is_older = path.stat().st_ctime_ns < self._folder.began_ns
        return is_older and not self._folder.has_other_owner()

    def _complete(self) -> None:
        """Finish what a crash cut off after a ledger had it: stamps and names."""
        for database in {pending.database for pending in self._pending.values()}:
            ledger = self._ledger(database)
            with ledger.exclusive():
                given = dict(ledger.entries())
            for uuid in [each for each in self._pending if each in given]:
                pending, stamp = self._pending[uuid], given[uuid]
                if not self._live_exists(pending):  # it has its name already
                    self._forget(pending)
                    continue
                if not pending.is_sealed:  # never synced, and a power cut took it
                    self._replace_by_gap(pending)
                    stamp = stamp._replace(
                        journal_length=pending.length, event_count=1, catalogue_offset=0
                    )
                self._write_stamp(self._folder.live(uuid), uuid, stamp)
                self._folder.live(uuid).rename(self._folder.committed(uuid))
                self._forget(pending)
        self._folder.is_publishing = False

    def _restore_stamps(self) -> None:
        """Write again what a power cut took from journals that had their names already. Only
        where no other process is at work: a machine that stays up loses none."""
        if self._stamps_restored or self._folder.has_other_owner():
            return
        for path in self._folder.databases.glob("*.ledger"):
            ledger = SequenceLedger(
                self._folder.databases, path.stem, self._fsync, self._sync_stamps
            )
            with contextlib.closing(ledger), ledger.exclusive():
                for uuid, stamp in dict(ledger.entries()).items():
                    with contextlib.suppress(FileNotFoundError):  # nearly all are shipped
                        self._restore_stamp(self._folder.committed(uuid), uuid, stamp)
        self._stamps_restored = True

    def _restore_stamp(self, journal: Path, uuid: UUID, stamp: Stamp) -> None:
        with contextlib.suppress(JournalError), JournalReader(journal) as reader:
            left, given = reader.stamp, (stamp.epoch, stamp.sequence, stamp.stamped_us)
            # One that is left may be of a process that died before the ledger had it.
            if left is not None and (left.epoch, left.sequence, left.stamped_us) == given:
                return
        _log.info(
            "{journal} lost its stamp: written again, number {sequence}",
            journal=journal.name,
            sequence=stamp.sequence,
        )
        self._write_stamp(journal, uuid, stamp)

    def _write_stamp(self, journal: Path, uuid: UUID, stamp: Stamp) -> None:
        with self._written(journal) as fd:
            write_stamp(fd, uuid, stamp)

    @contextlib.contextmanager
    def _written(self, journal: Path) -> Iterator[int]:
        """Open a journal to be written to, and have that on disk at the end."""
        fd = os.open(journal, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield fd
            if self._fsync:
                os.fdatasync(fd)
        finally:
            os.close(fd)
