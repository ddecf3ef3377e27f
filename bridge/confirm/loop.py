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
    rolled back or dead           removed              removed
    active, nobody else there     removed              removed
    active, others have it open   kept (orphans)       kept
    in limbo                      kept                 kept
    unknown to the database       quarantined          removed

Guarantees: a number of the sequence is on disk before the journal that bears it is visible,
and is never given twice. No attachment of ours is opened but for what the file can't tell.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.completion import Completion
from firebird_cdc.bridge.confirm.gaps import GapMarker
from firebird_cdc.bridge.confirm.history import History
from firebird_cdc.bridge.confirm.pacing import AGAIN_MOST_S, GATHER_S, Pacing
from firebird_cdc.bridge.confirm.pending import (
    LAST_TICKET,
    LIMBO_TICKET,
    Pending,
    found,
    groups,
    in_order,
)
from firebird_cdc.bridge.confirm.rewriting import Rewriting
from firebird_cdc.bridge.confirm.transaction_states import TransactionStates
from firebird_cdc.bridge.confirm.troubles import DatabaseTroubles, UnreadableFiles
from firebird_cdc.bridge.host import (
    CommittedJournal,
    CountedGap,
    DatabaseIdentity,
    DatabaseLeft,
    DatabaseSeen,
    DeadTransactions,
    Event,
    LastSessionLeft,
    Witness,
)
from firebird_cdc.errors import CaptureError, JournalError
from firebird_cdc.journal.folder.counters import ConfirmerCounts
from firebird_cdc.journal.folder.inventory import TransactionState
from firebird_cdc.journal.folder.journal_folder import (
    JournalFolder,
    check_name,
    is_live_name,
    is_unfilled,
)
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.locks import try_lock
from firebird_cdc.journal.folder.shared_page import LOCK
from firebird_cdc.journal.folder.shortage import is_shortage, kept
from firebird_cdc.journal.format import (
    JournalReader,
    Stamp,
    write_stamp,
)

_log = logbook.Logger("firebird_cdc.bridge.confirm.loop")

_TROUBLE_S = 1.0  # pause when a database can't be asked
_LEDGER_TROUBLE_S = 5.0  # the same when its numbers can't be given
_PAUSE_S = 0.5  # when nothing works: who leaves takes a second of silence for our end (host.c)
_FOLLOWED_S = 0.2  # in which a leader that works has published what it can
_UNREAD_S = 0.002  # to look for somebody who waits for that
_WAIT_MS = 1000  # with nothing to do, how often to look for what dead processes left
_LOOK_AGAIN_MOST_S = 15.0  # the same while what they left can't be decided
_MOST_OPEN = 256  # journals held open, and published with one ledger record


class Surroundings(Protocol):
    """Functions that the confirmer needs of the process that it works in; ``Host`` tells more."""

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
    def count_prepared(self) -> int: ...


class Confirmer:
    """The confirmer of this process, and of all that share its folder while it leads.

    Belongs to one thread; ``use`` may be called from any.
    """

    def __init__(self, host: Surroundings, folder: JournalFolder, fsync: bool) -> None:
        self._host = host
        self._next = (folder, fsync)
        self._folder = folder
        self._fsync = fsync
        self._pending: dict[UUID, Pending] = {}
        self._lock_fd: int | None = None  # held while this process confirms for all
        self._known = 0  # every journal with a ticket up to this is pending or decided
        self._led_from = 0  # what it was when this process began to lead
        self._own_tickets: set[int] = set()  # above _known, handed over by this process
        self._scan_wanted = True  # once per process: a crash may have left something
        self._ended: list[UUID] = []  # processes whose journals were found
        self._let_go = False  # of database files, as soon as nothing is pending
        self._look_at = 0.0  # when to look again for what dead processes left, monotonic
        self._scanned_at = 0.0  # when all journals were last looked through, monotonic
        self._left_undecided = 0  # how often in a row
        self._accounted = -1  # by whoever leads, when it was last looked around
        self._last_number = 0
        self._states = TransactionStates(folder, fsync, host.open_witness)
        self._rewriting = Rewriting(folder, fsync)
        self._history = History(folder, fsync, self._states, host.sync_file_system)
        self._troubles = DatabaseTroubles()
        self._unreadable = UnreadableFiles()
        self._follow_until = 0.0  # another process may be able to do what failed here, monotonic
        self._unfinished: set[str] = set()  # databases whose ledger may be ahead of their journals
        self._pacing = Pacing()
        self._published = 0  # in this turn
        self._published_ddl = False  # in this turn, too
        self._completion = Completion(host, folder, fsync, self._states, self._tell_trouble)
        self._times = ConfirmerCounts(folder.state)
        self._gaps = GapMarker(host, self._states, self._rewriting)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Work in another folder as soon as nothing is pending in the present one."""
        self._next = (folder, fsync)

    def take_over(self, former: Confirmer) -> None:
        """Go on with what one whose thread has ended had heard of, and no scan finds."""
        self._gaps.take_over(former._gaps)

    def start(self, at_end: Callable[[], None]) -> None:
        """Work on a thread of its own, to the end of the process. AT_END is called, on that
        thread, if it ends before: all that was held is given back then, for others to go on."""
        work = partial(self._run, at_end)
        threading.Thread(target=work, name="fbc-confirm", daemon=True).start()

    def _run(self, at_end: Callable[[], None]) -> None:
        try:
            while True:
                self.turn()
        except BaseException:  # no Exception, or one from where those are dealt with
            with contextlib.suppress(BaseException):
                _log.exception("the thread that confirms journals ends")
        finally:
            with contextlib.suppress(BaseException):
                self._release()
            with contextlib.suppress(BaseException):
                self.let_go()
            at_end()

    def let_go(self) -> None:
        """Close all that is open; the journals stay for the next."""
        for pending in list(self._pending.values()):
            self._forget(pending)
        self._rest()
        self._states.close_inventories(self._waiting())
        self._history.close()

    def is_restore_due(self) -> bool:
        """Tell whether stamps that a power cut took are still to be written again."""
        return self._history.is_restore_due()

    def turn(self) -> bool:
        """Do what there is to do, or wait a second for it; return whether anything was done or
        waits to be. An error is logged, and what it concerned tried again."""
        try:
            return self._turn()
        except Exception as error:
            _log.error(
                "confirming journals in {folder} failed, and is tried again: {cause}",
                folder=self._folder.path,
                cause=error,
                exc_info=not isinstance(error, OSError),
            )
            self._folder.undecided = max(1, len(self._pending))  # until a turn succeeds
            self._scan_wanted = True  # what the ledger has already must be finished first
            self._rest()
            time.sleep(_PAUSE_S)
            return True

    def _turn(self) -> bool:
        """Take what happened, act on it, and pause as long as is good for everybody."""
        busy = bool(self._pending) or self._scan_wanted
        heard = self._receive(0 if busy or self._can_mark() else _WAIT_MS)
        # Others find another one at its path; so do we, once this process is started anew.
        self._next[0].let_tickets_go(self._host.count_prepared)
        if self._next[0] is not self._folder and (
            not self._pending or not self._folder.is_in_place()
        ):
            self._move()
        self._look_around()
        busy = bool(self._pending) or self._scan_wanted or self._can_mark()
        if self._can_mark():
            self._gaps.mark(self._folder, self._take_up_marked)
        pause = 0.0
        if self._pending and not self._folder.is_in_place():
            self._release()
            pause = _PAUSE_S  # another one at its path would tell us nothing of them
        elif self._pending or self._scan_wanted:
            pause = self._lead() if self._is_leader() else self._follow()
        if not self._pending:
            self._rest()
            if self._let_go:
                self._states.close_inventories(self._waiting())
                self._let_go = False
        self._settle()
        self._tidy()
        if pause:
            time.sleep(pause)
        return heard or busy

    def _tidy(self) -> None:
        """Close what is open of databases in which nothing happens, and remove what was kept of
        those that are gone."""
        self._states.close_idle(self._waiting)
        self._history.close_idle()
        is_idle = not self._pending and not self._scan_wanted
        if is_idle and self._history.is_look_for_gone_due() and self._is_leader():
            self._history.retire_gone()
            self._rest()

    def _can_mark(self) -> bool:
        return self._gaps.is_due() and self._folder.is_in_place()

    def _take_up_marked(self, marked: Pending | None) -> None:
        if marked is None:
            self._scan_wanted = True
            return
        self._own_tickets.add(marked.ticket)
        self._pending[marked.uuid] = marked

    def _receive(self, timeout_ms: int) -> bool:
        """Take what the plugin has to tell; return whether there was anything."""
        events = self._host.take_events(timeout_ms)
        for event in events:
            self._last_number = event.number
            self._gaps.hear(event)
            if isinstance(event, CommittedJournal):
                self._accept(event)
            elif isinstance(event, DatabaseSeen):
                self._meet(event.database)
            elif isinstance(event, DatabaseLeft):
                self._states.leave(*self._host.database(event.database))
            elif isinstance(event, DeadTransactions):
                self._scan_wanted = True
            elif isinstance(event, LastSessionLeft):
                self._let_go = True
                self._troubles.try_again()  # the process may end, what was in the way be gone
        return bool(events)

    def _meet(self, number: int) -> None:
        """Have the file open before the database may be dropped: what was committed in it can
        be read then all the same."""
        path, guid = self._host.database(number)
        self._completion.meet(path, number)
        with contextlib.suppress(OSError, CaptureError):
            self._states.enter(path, guid)

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
        self._pending[event.uuid] = Pending(
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
            floor=event.ticket - 1,
        )
        if len(self._pending) > _MOST_OPEN:
            self._pending[event.uuid].close()  # a server's descriptors are not ours to use up

    def _settle(self) -> None:
        """Tell sessions that wait to leave how far their commits are decided."""
        pending = self._pending.values()
        waiting = [each.number for each in pending if each.number and not each.is_stuck]
        if self._can_mark():
            waiting += self._gaps.numbers()
        self._host.settle(min(waiting) - 1 if waiting else self._last_number)

    def _move(self) -> None:
        """Go on in another folder. Journals that waited in one that was taken away are lost to
        us, and become gaps; those of the new one that were handed over already go with us."""
        self._rest()
        before = self._folder, self._fsync
        self._work_in(*self._next)
        try:
            if self._folder.is_same_place(before[0]):
                self._forget_renamed()  # others have confirmed meanwhile
            for pending in list(self._pending.values()):
                if not self._live_exists(pending):
                    why = "its journal went with its folder before it could be confirmed"
                    pending.floor = None  # what it had was of the other folder,
                    self._rewriting.replace_by_gap(pending, why)
                    pending.ticket = LAST_TICKET  # and so was this
        except BaseException:
            self._work_in(*before)
            raise
        self._own_tickets = {each.ticket for each in self._pending.values() if each.number}
        self._scan_wanted = True

    def _work_in(self, folder: JournalFolder, fsync: bool) -> None:
        self._folder, self._fsync = folder, fsync
        self._times = ConfirmerCounts(folder.state)
        for part in (self._states, self._completion, self._rewriting, self._history):
            part.use(folder, fsync)

    # -- who confirms ---------------------------------------------------------------------------

    def _is_leader(self) -> bool:
        if self._lock_fd is not None:
            self._folder.tell_heartbeat(os.getpid())
            return True
        if time.monotonic() < self._follow_until and self._folder.has_other_owner():
            return False
        self._lock_fd = try_lock(self._folder.state / LOCK, fcntl.LOCK_EX)
        if self._lock_fd is None:
            return False
        self._folder.tell_heartbeat(os.getpid())
        accounted = self._folder.accounted
        self._known = accounted if accounted <= self._host.last_ticket() else 0
        self._led_from = self._known
        for pending in list(self._pending.values()):
            if pending.ticket <= self._led_from and not self._live_exists(pending):
                self._forget(pending)  # the leader before us has decided it
        if self._folder.undecided or self._folder.is_publishing or self._history.is_restore_due():
            self._scan_wanted = True
        return True

    def _rest(self) -> None:
        """Nothing is left to do: stand in nobody's way."""
        self._states.close_witnesses()
        self._release()
        self._states.close_inventories(self._waiting(), only_replaced=True)

    def _release(self) -> None:
        """Let others confirm."""
        if self._lock_fd is not None:
            self._folder.tell_heartbeat(0)
            fd, self._lock_fd = self._lock_fd, None
            os.close(fd)

    def _waiting(self) -> set[tuple[str, UUID]]:
        """Return path and GUID of the databases in which journals wait."""
        return {(pending.database, pending.guid) for pending in self._pending.values()}

    def _look_around(self) -> None:
        """Have a process that died looked after, soon and without anybody's help. What waits for
        a database in trouble keeps nobody from that."""
        now = time.monotonic()
        if now < self._look_at or not all(each.is_stuck for each in self._pending.values()):
            return
        self._look_at = now + _WAIT_MS / 1000
        ended = set(self._folder.dead_owners())
        if self._pending or self._unreadable:  # a scan changes little, unless a process has ended
            is_wanted = not ended <= set(self._ended) or now > self._scanned_at + _LOOK_AGAIN_MOST_S
        else:
            is_wanted = self._folder.undecided > 0 or bool(ended) or self._is_left_lying()
        self._scan_wanted = self._scan_wanted or is_wanted

    def _is_left_lying(self) -> bool:
        """Tell whether there are commits, and nobody has decided any since the last look: the
        thread of a process that lives may have ended, or its interpreter."""
        before, self._accounted = self._accounted, self._folder.accounted
        return self._accounted == before and self._folder.last_ticket > before

    def _follow(self) -> float:
        """Another process confirms: watch what becomes of our journals."""
        self._forget_renamed()
        accounted = self._folder.accounted
        self._own_tickets = {ticket for ticket in self._own_tickets if ticket > accounted}
        if not self._pending:
            self._scan_wanted = False  # it looks around as well
            return 0.0
        # The leader knows of older ones by now, and who leaves need not wait for them.
        is_stuck = self._folder.undecided > 0
        for pending in self._pending.values():
            pending.is_stuck = is_stuck and pending.met_at < time.monotonic() - _FOLLOWED_S
        return AGAIN_MOST_S if is_stuck else GATHER_S

    def _forget_renamed(self) -> None:
        for pending in list(self._pending.values()):
            if not self._live_exists(pending):
                self._forget(pending)

    def _live_exists(self, pending: Pending) -> bool:
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
        decided, active, has_failed = self._decide(last)
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
        if has_failed:
            self._rest()
            return 2 * GATHER_S
        if decided:
            pause = self._pacing.after_group(self._published, time.monotonic() - began)
            # The next one waits for DDL before it to be described: no group forms.
            return 0.0 if self._published_ddl else pause
        if not self._pending:
            return 0.0
        if any(each.is_unread for each in self._pending.values()):
            return _UNREAD_S
        return self._pacing.after_nothing() if active else AGAIN_MOST_S

    def _leave_undecided(self) -> None:
        """Tell how many journals nobody can decide or publish now, and forget those of dead
        processes once they are all that is left, so that others may lead: whoever leads next finds
        them again."""
        stuck = [each for each in self._pending.values() if each.is_stuck]
        self._folder.undecided = len(stuck) + len(self._unreadable)
        left = [each for each in stuck if not each.number]
        if len(left) < len(self._pending):
            return
        for pending in left:
            self._forget(pending)
        self._left_undecided = self._left_undecided + 1 if left else 0
        if left:
            pause = min(2.0**self._left_undecided, _LOOK_AGAIN_MOST_S)
            if self._states.is_counting_looks():
                pause = _WAIT_MS / 1000  # some more, and one of them is decided
            self._look_at = time.monotonic() + pause

    # -- questions and answers ------------------------------------------------------------------

    def _decide(self, last: int) -> tuple[bool, bool, bool]:
        """Decide what was committed up to ticket ``last``: later ones may have predecessors in
        other processes that were not looked for yet. Returns whether anything was decided, whether
        anything is still active, and whether something failed that another process may be able to
        do."""
        decided = active = has_failed = False
        ready: defaultdict[str, list[Pending]] = defaultdict(list)
        for each in self._pending.values():
            if each.ticket <= last or not each.has_ticket:
                ready[each.database].append(each)
                each.is_stuck = each.is_stuck or self._troubles.is_waiting(each.database)
        for database, journals in ready.items():
            if self._troubles.is_waiting(database):
                continue
            try:
                is_decided, is_active = self._decide_in(database, in_order(journals, last))
            except Exception as error:  # of whatever kind: no other database waits for this one
                self._tell_trouble(database, journals, error)
                for each in journals:
                    each.close()  # there may be many such databases
                if is_shortage(error):
                    has_failed, self._follow_until = True, time.monotonic() + 2 * _WAIT_MS / 1000
                has_failed = has_failed or isinstance(error, PermissionError)
                continue
            if not self._troubles.is_waiting(database):
                self._troubles.end(database)
            decided, active = decided or is_decided, active or is_active
        self._troubles.keep_only({each.database for each in self._pending.values()})
        self._folder.is_publishing = bool(self._unfinished)
        return decided, active, has_failed

    def _decide_in(self, database: str, waiting: list[Pending]) -> tuple[bool, bool]:
        """Decide what is WAITING in one database, in its order; return whether anything was
        decided, and is still active. Raises CaptureError, JournalError, OSError."""
        decided = database in self._unfinished and self._complete(database)
        waiting = [each for each in waiting if each.uuid in self._pending]
        states = self._states.ask(database, waiting)
        committed: list[Pending] = []
        blocked = False
        for pending, state in zip(waiting, states, strict=True):
            pending.is_stuck = state is TransactionState.LIMBO
            if state is TransactionState.COMMITTED and not blocked:
                committed.append(pending)
            elif state is TransactionState.ACTIVE or state is TransactionState.COMMITTED:
                blocked = True  # strictly in ticket order
            elif state in (TransactionState.DEAD, TransactionState.UNKNOWN):
                (self._delete if state is TransactionState.DEAD else self._set_aside)(pending)
                decided = True
        for together in groups(committed, _MOST_OPEN):
            last_uuid = together[-1].uuid
            decided = self._publish(database, together) or decided
            if last_uuid in self._pending:
                break  # one of them waits, and nothing passes it
        return decided, blocked

    def _tell_trouble(self, database: str, waiting: Sequence[Pending], error: Exception) -> None:
        pause = _LEDGER_TROUBLE_S if database in self._unfinished else _TROUBLE_S
        self._troubles.tell(database, len(waiting), error, pause)
        self._states.close_witness(database)  # it may have ended, and is in the way if not
        for pending in waiting:
            pending.is_stuck, pending.is_unread = True, False

    # -- what becomes of a journal --------------------------------------------------------------

    def _publish(self, database: str, committed: list[Pending]) -> bool:
        """Give COMMITTED, all of one incarnation, numbers and names; return whether any got one."""
        self._folder.tell_progress()
        self._unfinished.add(database)
        ledger = self._history.ledger(database)
        with ledger.exclusive():
            self._unfinished.discard(database)  # nothing is cut off that is not in the ledger yet
            if removed := [each for each in committed if not self._live_exists(each)]:
                given = {uuid for uuid, _ in ledger.entries()}
                for pending in removed:
                    if pending.ticket <= self._led_from or pending.uuid in given:
                        committed.remove(pending)  # by the leader before us
                        self._forget(pending)
                    else:
                        self._rewriting.replace_by_gap(pending, "its journal was removed")
            for pending in committed:
                if not pending.is_sealed:
                    self._rewriting.replace_by_gap(pending)
                if pending.is_unsynced:
                    self._rewriting.copy_anew(pending)
            committed = self._completion.complete(database, committed, self._let_go)
            if not committed:
                return False
            self._unfinished.add(database)
            self._history.begin_epoch_if_replaced(database, committed[0].guid, ledger)
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
            self._unfinished.discard(database)
        self._published += len(committed)
        now_us = time.time_ns() // 1000
        self._times.add(database, ((now_us - each.commit_us) / 1e6 for each in committed))
        return True

    def _stamp(self, committed: list[Pending], ledger: SequenceLedger) -> None:
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

    def _delete(self, pending: Pending) -> None:
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

    def _set_aside(self, pending: Pending) -> None:
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
        try:
            self._folder.set_aside(pending.uuid, reason)
        except FileNotFoundError:
            _log.error("journal {journal} was removed by somebody", journal=pending.uuid)
        self._forget(pending)

    def _forget(self, pending: Pending) -> None:
        del self._pending[pending.uuid]
        pending.close()

    # -- what is found in the folder --------------------------------------------------------------

    def _scan(self, last: int) -> None:
        """Take up every journal marked up to ticket ``last``, whoever wrote it, and what dead
        processes left; remove what they never prepared. Raises OSError of a file that can't be read
        and that others wait for, when all have been looked at."""
        seen: list[Path] = []
        failed: list[OSError] = []
        # Before the first scan since the machine started it is a moment of the time before.
        goes_on = not self._unreadable and self._folder.is_restored
        self._unreadable.go_on(self._folder.unread_since if goes_on else 0.0)
        ended = self._folder.dead_owners()
        for owner in ended:
            left = [self._folder.pools / str(owner)]
            with kept(failed), self._unreadable.passing_over(left[0]):
                left += self._folder.left_in_pool(owner)
            for path in left[1:]:
                with (
                    kept(failed),
                    contextlib.suppress(FileNotFoundError),
                    self._unreadable.passing_over(path),
                ):
                    self._folder.rescue(path, self._fsync)
            seen += left
        with os.scandir(self._folder.path) as entries:
            # All else is nobody's: a copy, or something that was put here; or it waits to be
            # shipped, and of these there may be a million.
            live = [entry for entry in entries if is_live_name(entry.name)]
        for entry in live:
            self._folder.tell_progress()
            seen.append(Path(entry.path))
            with (
                kept(failed),
                contextlib.suppress(FileNotFoundError),
                self._unreadable.passing_over(seen[-1]),
            ):
                self._look_at_journal(entry, last)
        self._unreadable.keep_only(seen)
        self._folder.unread_since = self._unreadable.since
        if failed:
            raise failed[0]
        if self._scan_wanted:
            self._unfinished = {each.database for each in self._pending.values()}
            self._history.restore_stamps()
        self._ended = ended
        self._scan_wanted = False
        self._scanned_at = time.monotonic()

    def _look_at_journal(self, entry: os.DirEntry[str], last: int) -> None:
        """Take up a journal if it is marked up to ticket ``last`` or its process has ended."""
        uuid, owner = UUID(entry.name.partition(".")[0]), None
        if uuid in self._pending:
            return
        try:
            with JournalReader(entry.path) as reader:
                owner = reader.header.owner
                check_name(reader, uuid)
                self._take_up(reader, last)
        except JournalError as error:
            self._remove_if_abandoned(Path(entry.path), owner, error)

    def _forget_ended(self) -> None:
        """Tidy up after the processes whose journals are all decided; while one is left,
        somebody has to look again."""
        busy = {each.header.owner for each in self._pending.values() if each.header}
        busy |= {
            each
            for each in self._ended
            if self._unreadable.has_some_of(self._folder.pools / str(each))
        }
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
        is_limbo = mark is not None and mark.ticket == LIMBO_TICKET
        is_orphan = is_limbo or self._folder.owner_is_gone(header.owner)
        if not is_orphan and (mark is None or mark.ticket > last):
            return  # still being written, or marked since we looked: the next turn's
        pending = found(reader, is_orphan)
        if is_orphan:
            self._unfinished.add(pending.database)  # it may be one whose name a power cut took back
        if pending.is_described:  # whoever did that may have died before it kept the key indexes
            self._completion.key_indexes(pending.database, pending.guid).remove()
        self._pending[header.uuid] = pending

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
            _log.error("journal {journal} is set aside: {reason}", journal=uuid, reason=error)
            self._folder.set_aside(uuid, str(error))

    def _is_abandoned(self, path: Path, owner: UUID | None) -> bool:
        """Tell whether the process that made a journal has ended; where the header doesn't name
        it, whether all have that may have made it."""
        if owner is not None:
            return self._folder.owner_is_gone(owner)
        is_older = path.stat().st_ctime_ns < self._folder.began_ns
        return is_older and not self._folder.has_other_owner()

    def _complete(self, database: str) -> bool:
        """Finish what was cut off after the ledger of a database had it: stamps and names; return
        whether there was any. Raises OSError."""
        ledger = self._history.ledger(database)
        with ledger.exclusive():
            given = dict(ledger.entries())
        found = [uuid for uuid in self._pending if uuid in given]
        for uuid in found:
            pending, stamp = self._pending[uuid], given[uuid]
            if not self._live_exists(pending):  # it has its name already
                self._forget(pending)
                continue
            if not pending.is_sealed:  # never synced, and a power cut took it
                self._rewriting.replace_by_gap(pending)
                length = pending.length
                stamp = stamp._replace(journal_length=length, event_count=1, catalogue_offset=0)
            self._history.write_stamp(self._folder.live(uuid), uuid, stamp)
            self._folder.live(uuid).rename(self._folder.committed(uuid))
            self._forget(pending)
        self._unfinished.discard(database)
        return bool(found)
