"""Turns journals of transactions whose commit was called into committed journals.

The plugin's ``commit()`` runs before the engine's own commit mark is on disk, and a server
killed in between rolls the transaction back. So a journal becomes ``<uuid>.log`` only after
the engine said that its transaction is committed, durably; then in ticket order, which
respects every row's history, and never past one that is not decided yet.

Several server processes may write into one folder (Classic). One of them confirms for all: it
holds ``confirmer.lock`` while there is something to confirm, and finds the others' journals by
the mark that ``commit()`` left in them. A process that ends at any point leaves its part to
the next.

Guarantees: a number of the sequence is on disk before the journal that bears it is visible,
and is never given twice. No attachment of ours stays open on an idle database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from uuid import UUID

import logbook

from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import (
    CommittedJournal,
    DatabaseSeen,
    DeadTransactions,
    Host,
    LastSessionLeft,
    Verdict,
    Witness,
)
from firebird_cdc.bridge.sequence import SequenceLedger
from firebird_cdc.errors import CaptureError, JournalEmpty, JournalError, JournalTorn
from firebird_cdc.journal.format import (
    DATA_OFFSET,
    JournalReader,
    Stamp,
    append_catalogue,
    read_envelope,
    write_stamp,
)
from firebird_cdc.journal.lock import try_lock

_log = logbook.Logger("firebird_cdc.bridge.confirmer")

_GATHER_S = 0.008  # between two questions: a busy server's commits are asked for in groups
_AGAIN_S = 0.001  # first pause after "still active"; doubles up to _AGAIN_MOST_S
_AGAIN_MOST_S = 0.050
_TROUBLE_S = 1.0  # pause when a database can't be asked
_IDLE_MS = 50  # with nothing to ask for that long, attachments are closed
_WAIT_MS = 1000
_LAST_TICKET = 2**64 - 1
_MOST_OPEN = 256  # journals held open, and published with one ledger record
_MOST_DEFINITIONS = 4096


@dataclass(slots=True)
class _Pending:
    """A sealed journal that waits for its verdict."""

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
    catalogue_offset: int = 0  # where its completed definitions are; 0: it has none

    @property
    def order(self) -> tuple[int, int]:
        """Commits by ticket. Those that never drew one, sealed by a process that died, come by
        the time of their seal, which respects every row's history as well."""
        return (self.ticket, self.commit_us)


class Confirmer(threading.Thread):
    """The confirmer of this process, and of all that share its folder while it leads.

    Runs on its own thread; ``use`` may be called from any.
    """

    def __init__(self, host: Host, folder: JournalFolder, fsync: bool) -> None:
        super().__init__(name="fbc-confirm", daemon=True)
        self._host = host
        self._next = (folder, fsync)
        self._folder = folder
        self._fsync = fsync
        self._pending: dict[UUID, _Pending] = {}
        self._lock_fd: int | None = None  # held while this process confirms for all
        self._known = 0  # every journal with a ticket up to this is pending or decided
        self._own_tickets: set[int] = set()  # above _known, handed over by this process
        self._scan_wanted = True  # once per process: a crash may have left something
        self._let_go = False  # as soon as nothing is pending
        self._last_number = 0
        self._witnesses: dict[str, Witness] = {}
        self._ledgers: dict[str, SequenceLedger] = {}
        self._troubled: dict[str, float] = {}  # databases that can't be asked, until when
        self._again = _AGAIN_S
        self._numbers: dict[str, list[int]] = {}  # the plugin's numbers of a database path
        # completed table definitions by database and shown form, with their generation
        self._definitions: dict[tuple[str, bytes], tuple[int, bytes]] = {}

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Work in another folder as soon as nothing is pending in the present one."""
        self._next = (folder, fsync)

    def run(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:
                _log.exception("confirming journals in {} failed", self._folder.path)
                self._scan_wanted = True  # what the ledger has already must be finished first
                self._rest()
                time.sleep(_TROUBLE_S)

    def _turn(self) -> None:
        """Take what happened, act on it, and pause as long as is good for everybody."""
        busy = bool(self._pending) or self._scan_wanted
        heard = self._receive(0 if busy else _IDLE_MS if self._witnesses else _WAIT_MS)
        if self._next[0] is not self._folder and (
            not self._pending or not self._folder.is_in_place()
        ):
            self._move()
        pause = 0.0
        if self._pending or self._scan_wanted:
            pause = self._lead() if self._is_leader() else self._follow()
        if not self._pending and (self._let_go or not (heard or busy)):
            self._rest()
            self._let_go = False
        self._settle()
        if pause:
            time.sleep(pause)

    def _receive(self, timeout_ms: int) -> bool:
        """Take what the plugin has to tell; return whether there was anything."""
        events = self._host.take_events(timeout_ms)
        for event in events:
            self._last_number = event.number
            if isinstance(event, CommittedJournal):
                self._accept(event)
            elif isinstance(event, DatabaseSeen):
                path = self._host.database(event.database).path
                self._numbers.setdefault(path, []).append(event.database)
            elif isinstance(event, DeadTransactions):
                self._scan_wanted = True
            elif isinstance(event, LastSessionLeft):
                self._let_go = True
        return bool(events)

    def _accept(self, event: CommittedJournal) -> None:
        self._own_tickets.add(event.ticket)
        self._pending[event.uuid] = _Pending(
            event.uuid,
            self._host.database(event.database).path,
            event.transaction,
            event.ticket,
            event.commit_us,
            event.length,
            event.events,
            event.fd,
            event.number,
            event.has_ddl,
            event.is_unresolved,
            catalogue_offset=event.catalogue_offset,
        )
        if len(self._pending) > _MOST_OPEN and event.fd >= 0:
            os.close(event.fd)  # a server's descriptors are not ours to use up
            self._pending[event.uuid].fd = -1

    def _settle(self) -> None:
        """Tell sessions that wait to leave how far their commits are decided."""
        waiting = (each for each in self._pending.values() if each.number and not each.is_stuck)
        oldest = min((each.number for each in waiting), default=None)
        self._host.settle(self._last_number if oldest is None else oldest - 1)

    def _move(self) -> None:
        """Go on in another folder. Journals that waited in one that was taken away are lost to
        us; those of the new one that were handed over already go with us."""
        self._rest()
        self._folder, self._fsync = self._next
        while self._ledgers:
            self._ledgers.popitem()[1].close()
        for pending in list(self._pending.values()):
            if not self._live_exists(pending):
                _log.error(
                    "journal {} of transaction {} in {} went with its folder before it could be "
                    "confirmed: its changes are missing from now on",
                    pending.uuid,
                    pending.transaction,
                    pending.database,
                )
                self._forget(pending)
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
        self._forget_renamed()  # the leader before us may have decided some
        return True

    def _rest(self) -> None:
        """Nothing is left to do: stand in nobody's way."""
        self._dismiss_witnesses()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _follow(self) -> float:
        """Another process confirms: watch what becomes of our journals."""
        self._forget_renamed()
        return _GATHER_S

    def _forget_renamed(self) -> None:
        for pending in list(self._pending.values()):
            if not self._live_exists(pending):
                self._forget(pending)

    def _live_exists(self, pending: _Pending) -> bool:
        return self._folder.live(pending.uuid).exists()

    def _lead(self) -> float:
        """Find all that is marked, ask about it, act on the answers; return how long to pause."""
        last = self._host.last_ticket()
        while self._receive(0):
            pass
        own = sum(self._known < ticket <= last for ticket in self._own_tickets)
        if self._scan_wanted or own < last - self._known:
            self._scan(last)
        self._known = max(self._known, last)
        self._own_tickets = {ticket for ticket in self._own_tickets if ticket > self._known}

        decided, active = self._decide(last)
        self._folder.accounted = min(
            [self._known, *(pending.ticket - 1 for pending in self._pending.values())]
        )
        if decided:
            self._again = _AGAIN_S
            return _GATHER_S
        if not self._pending:
            return 0.0
        self._again = min(2 * self._again, _AGAIN_MOST_S)
        return self._again if active else _AGAIN_MOST_S

    # -- questions and answers ------------------------------------------------------------------

    def _decide(self, last: int) -> tuple[bool, bool]:
        """Decide what was committed up to ticket ``last``: later ones may have predecessors in
        other processes that were not looked for yet.

        Returns whether anything was decided, and whether anything is still active.
        """
        decided = active = False
        now = time.monotonic()
        ready = [
            each
            for each in self._pending.values()
            if each.ticket <= last or each.ticket == _LAST_TICKET
        ]
        ordered = sorted(ready, key=lambda each: (each.database, *each.order))
        for database, group in groupby(ordered, key=lambda each: each.database):
            if self._troubled.get(database, 0.0) > now:
                continue
            waiting = list(group)
            try:
                verdicts = self._ask(database, [each.transaction for each in waiting])
            except CaptureError as error:
                if database not in self._troubled:
                    _log.warning(
                        "cannot ask {} for the fate of {} transactions, will keep trying: {}",
                        database,
                        len(waiting),
                        str(error).replace("\n", " "),
                    )
                self._troubled[database] = now + _TROUBLE_S
                for pending in waiting:
                    pending.is_stuck = True
                continue
            self._troubled.pop(database, None)
            committed: list[_Pending] = []
            blocked = False
            for pending, verdict in zip(waiting, verdicts, strict=True):
                if verdict is Verdict.COMMITTED and not blocked:
                    committed.append(pending)
                elif verdict is Verdict.ACTIVE or verdict is Verdict.COMMITTED:
                    blocked = True  # strictly in ticket order
                    pending.is_stuck = False
                elif verdict is Verdict.LIMBO:
                    pending.is_stuck = True
                elif verdict is Verdict.DEAD:
                    self._delete(pending)
                    decided = True
                elif verdict is Verdict.UNKNOWN:
                    self._set_aside(pending)
                    decided = True
            for start in range(0, len(committed), _MOST_OPEN):
                self._publish(database, committed[start : start + _MOST_OPEN])
            decided = decided or bool(committed)
            active = active or blocked
        return decided, active

    def _ask(self, database: str, transactions: list[int]) -> list[Verdict]:
        witness = self._witnesses.get(database)
        if witness is None:
            witness = self._witnesses[database] = self._host.open_witness(database)
        try:
            return witness.ask(transactions)
        except CaptureError:
            del self._witnesses[database]
            witness.close()
            raise

    def _dismiss_witnesses(self) -> None:
        while self._witnesses:
            self._witnesses.popitem()[1].close()

    # -- what becomes of a journal --------------------------------------------------------------

    def _publish(self, database: str, committed: list[_Pending]) -> None:
        ledger = self._ledger(database)
        with ledger.exclusive():
            for pending in [each for each in committed if not self._live_exists(each)]:
                _log.error("journal {} was removed by somebody else", pending.uuid)
                committed.remove(pending)
                self._forget(pending)
            if not committed:
                return
            self._complete_definitions(database, committed)
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
                self._forget(pending)

    def _complete_definitions(self, database: str, committed: list[_Pending]) -> None:
        """Add to journals what their records could not show of their tables."""
        for pending in committed:
            if pending.fd < 0:
                pending.fd = os.open(self._folder.live(pending.uuid), os.O_RDWR | os.O_CLOEXEC)
            if not pending.is_unresolved:
                continue
            with JournalReader(self._folder.live(pending.uuid)) as reader:
                unresolved, seal = reader.unresolved_tables(), reader.seal
            if not unresolved or seal is None:
                continue
            generation = self._folder.generation
            completed = {}
            for number, shown in unresolved.items():
                if complete := self._described(database, generation, shown):
                    completed[number] = complete
                else:
                    _log.warning(
                        "journal {}: a table that it changes was dropped before its key was asked "
                        "for; its events have no key",
                        pending.uuid,
                    )
            if not completed:
                continue
            pending.catalogue_offset = seal.end
            pending.length = append_catalogue(pending.fd, pending.uuid, seal, completed)
            if self._fsync:
                os.fdatasync(pending.fd)

    def _described(self, database: str, generation: int, shown: bytes) -> bytes:
        """Return the complete form of a definition, and let later transactions know it."""
        known = self._definitions.get((database, shown))
        if known is not None and known[0] == generation:
            return known[1]
        complete = self._witnesses[database].describe(shown)
        if not complete:
            return complete
        self._definitions[database, shown] = (generation, complete)
        if len(self._definitions) > _MOST_DEFINITIONS:
            self._definitions.pop(next(iter(self._definitions)))
        for number in self._numbers.get(database, ()):
            self._host.store_definition(number, generation, shown, complete)
        return complete

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
            "transaction {} of {} did not commit; its journal {} is removed",
            pending.transaction,
            pending.database,
            pending.uuid,
        )
        self._remove(self._folder.live(pending.uuid))
        self._forget(pending)

    def _set_aside(self, pending: _Pending) -> None:
        reason = (
            f"transaction {pending.transaction} is unknown to {pending.database}: the journal "
            "belongs to an earlier state of the database (a restored copy?)"
        )
        _log.error("journal {} is set aside: {}", pending.uuid, reason)
        self._folder.set_aside(pending.uuid, reason)
        self._forget(pending)

    def _forget(self, pending: _Pending) -> None:
        del self._pending[pending.uuid]
        if pending.fd >= 0:
            os.close(pending.fd)

    @staticmethod
    def _remove(path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    # -- state on disk ----------------------------------------------------------------------------

    def _ledger(self, database: str) -> SequenceLedger:
        ledger = self._ledgers.get(database)
        if ledger is None:
            ledger = SequenceLedger(
                self._folder.databases, database, self._fsync, self._sync_stamps
            )
            with ledger.exclusive():
                if ledger.is_new:
                    ledger.record([], self._highest_stamp(database))
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
        for entry in list(os.scandir(self._folder.path)):
            if not entry.name.endswith(".log.live"):
                continue
            try:
                with JournalReader(entry.path) as reader:
                    self._take_up(reader, Path(entry.path), last)
            except FileNotFoundError:
                continue
            except JournalError as error:
                self._remove_if_abandoned(Path(entry.path), error)
        for owner in dead:  # only now: until here their journals had to be recognised
            self._folder.forget(owner)
        if self._scan_wanted:
            self._complete()
        self._scan_wanted = False

    def _take_up(self, reader: JournalReader, path: Path, last: int) -> None:
        header, mark = reader.header, reader.commit_mark
        if header.uuid in self._pending:
            return
        if self._folder.owner_is_gone(header.owner):
            pass
        elif mark is None or mark.ticket > last:
            return  # still being written, or marked since we looked: the next turn's
        seal = reader.seal
        if seal is None and mark is not None:
            reason = "its commit was called, but its seal is damaged: changes may be missing"
            _log.error("journal {} is set aside: {}", header.uuid, reason)
            self._folder.set_aside(header.uuid, reason)
            return
        if seal is None:
            _log.info("removing {}: its transaction was never prepared", path.name)
            self._remove(path)
            return
        catalogue_end = reader.finished_catalogue()
        self._pending[header.uuid] = _Pending(
            header.uuid,
            reader.database,
            header.transaction,
            mark.ticket if mark else _LAST_TICKET,
            mark.commit_us if mark else seal.sealed_us,
            catalogue_end or seal.end,
            seal.event_count,
            is_unresolved=not catalogue_end,
            catalogue_offset=seal.end if catalogue_end else 0,
        )

    def _remove_if_abandoned(self, path: Path, error: JournalError) -> None:
        """A file without a readable beginning has no owner to ask for. What was never filled
        goes once only this process is at work and did not make it; damage is kept."""
        living = len(list(os.scandir(self._folder.owners))) - len(self._folder.dead_owners())
        with contextlib.suppress(FileNotFoundError):
            began = (self._folder.owners / str(self._folder.owner)).stat().st_ctime_ns
            if living > 1 or path.stat().st_ctime_ns >= began:
                return
            if isinstance(error, JournalEmpty) or (
                isinstance(error, JournalTorn) and error.offset <= DATA_OFFSET
            ):
                _log.info("removing {}: nothing was written to it", path.name)
                path.unlink()
                return
            uuid = UUID(path.name.partition(".")[0])
            _log.error("journal {} is set aside: {}", uuid, error)
            self._folder.set_aside(uuid, str(error))

    def _complete(self) -> None:
        """Finish what a crash cut off after a ledger had it: stamps and names."""
        for database in {pending.database for pending in self._pending.values()}:
            ledger = self._ledger(database)
            with ledger.exclusive():
                given = dict(ledger.entries())
            for uuid in [each for each in self._pending if each in given]:
                pending = self._pending[uuid]
                live = self._folder.live(uuid)
                with contextlib.closing(open(live, "r+b", buffering=0)) as file:  # noqa: PTH123
                    write_stamp(file.fileno(), uuid, given[uuid])
                live.rename(self._folder.committed(uuid))
                self._forget(pending)
