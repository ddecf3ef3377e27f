"""Turns journals of transactions whose commit was called into committed journals.

The plugin's ``commit()`` runs before the engine's own commit mark is on disk, and a server
killed in between rolls the transaction back. So a journal becomes ``<uuid>.log`` only after
the engine said that its transaction is committed, durably; then in ticket order, which
respects every row's history, and never past one that is not decided yet.

Guarantees: a number of the sequence is on disk before the journal that bears it is visible,
and is never given twice. Assumes: one confirmer per database and journal folder.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from dataclasses import dataclass
from uuid import UUID

import logbook

from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import CommittedJournal, DatabaseIdentity, Host, Verdict, Witness
from firebird_cdc.bridge.sequence import SequenceLedger
from firebird_cdc.errors import CaptureError, JournalError
from firebird_cdc.journal.format import JournalReader, Stamp, read_envelope, write_stamp

_log = logbook.Logger("firebird_cdc.bridge.confirmer")

_ROUND_S = 0.010  # at most one question in that time: a busy server asks for many at once
_AGAIN_S = 0.001  # first pause after "still active"; doubles up to _AGAIN_MOST_S
_AGAIN_MOST_S = 0.050
_TROUBLE_S = 1.0  # pause when the database can't be asked
_IDLE_S = 0.250  # an attachment with nothing to ask is closed after that time
_LAST_TICKET = 2**64 - 1


@dataclass(slots=True)
class _Pending:
    """A sealed journal that waits for its verdict."""

    uuid: UUID
    transaction: int
    ticket: int
    commit_us: int
    length: int
    events: int
    fd: int  # -1: not open
    orphan: bool  # left by a process that ended


class Confirmer(threading.Thread):
    """The confirmer of one database. Runs on its own thread; ``submit`` may be called from any."""

    def __init__(
        self, host: Host, folder: JournalFolder, database: DatabaseIdentity, fsync: bool
    ) -> None:
        super().__init__(name=f"fbc-confirm {database.path}", daemon=True)
        self._host = host
        self._folder = folder
        self._database = database
        self._fsync = fsync
        self._inbox: queue.SimpleQueue[CommittedJournal | None] = queue.SimpleQueue()
        self._pending: dict[UUID, _Pending] = {}
        self._decided = threading.Condition()
        self._numbers: dict[UUID, int] = {}
        self._witness: Witness | None = None
        self._sequence: SequenceLedger | None = None
        self._in_trouble = False

    def submit(self, journal: CommittedJournal | None) -> None:
        """Take over a committed journal; None: look for journals that ended processes left."""
        self._inbox.put(journal)

    def undecided(self) -> int | None:
        """Return the oldest event number that is not decided, or None."""
        with self._decided:
            return min(self._numbers.values(), default=None)

    def announce(self, journal: CommittedJournal) -> None:
        """Count a journal as undecided from now on; call it before ``submit``."""
        with self._decided:
            self._numbers[journal.uuid] = journal.number

    # -- the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        pause = 0.0
        while True:
            try:
                self._receive(pause)
                pause = self._round() if self._pending else 0.0
            except Exception:
                _log.exception("confirming journals of {} failed", self._database.path)
                self._dismiss()
                pause = _TROUBLE_S

    def _receive(self, pause: float) -> None:
        """Take what was submitted; with nothing pending wait for it, and let go when idle."""
        if pause:
            time.sleep(pause)
        elif not self._pending:
            try:
                self._take(self._inbox.get(timeout=_IDLE_S))
            except queue.Empty:
                self._dismiss()
                self._take(self._inbox.get())
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._inbox.get_nowait())

    def _take(self, journal: CommittedJournal | None) -> None:
        if journal is None:
            self._adopt_orphans()
            return
        self._pending[journal.uuid] = _Pending(
            journal.uuid,
            journal.transaction,
            journal.ticket,
            journal.commit_us,
            journal.length,
            journal.events,
            journal.fd,
            orphan=False,
        )

    def _round(self) -> float:
        """Ask about all that is pending, act on the answers, and return how long to pause."""
        started = time.monotonic()
        waiting = sorted(self._pending.values(), key=lambda each: each.ticket)
        try:
            verdicts = self._ask([each.transaction for each in waiting])
        except CaptureError as error:
            if not self._in_trouble:
                _log.warning(
                    "cannot ask {} for the fate of {} transactions, will keep trying: {}",
                    self._database.path,
                    len(waiting),
                    str(error).replace("\n", " "),
                )
            self._in_trouble = True
            return _TROUBLE_S
        self._in_trouble = False
        committed: list[_Pending] = []
        may_commit = True
        for pending, verdict in zip(waiting, verdicts, strict=True):
            if verdict is Verdict.COMMITTED and may_commit:
                committed.append(pending)
            elif verdict is Verdict.ACTIVE or verdict is Verdict.COMMITTED:
                may_commit = False  # strictly in ticket order
            elif verdict is Verdict.DEAD:
                self._delete(pending)
            elif verdict is Verdict.UNKNOWN:
                self._set_aside(pending)
        if committed:
            self._publish(committed)
            self._again = _AGAIN_S
        if not self._pending:
            return 0.0
        if not committed:
            self._again = min(2 * self._again, _AGAIN_MOST_S)
            return self._again
        return max(0.0, _ROUND_S - (time.monotonic() - started))

    _again = _AGAIN_S

    def _ask(self, transactions: list[int]) -> list[Verdict]:
        if self._witness is None:
            self._witness = self._host.open_witness(self._database.path)
        try:
            return self._witness.ask(transactions)
        except CaptureError:
            self._dismiss()
            raise

    def _dismiss(self) -> None:
        """Let go of the database: an attachment of ours must not stand in anybody's way."""
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.close()

    # -- what becomes of a journal --------------------------------------------------------------

    def _publish(self, committed: list[_Pending]) -> None:
        sequence = self._open_sequence()
        with sequence.exclusive():
            self._stamp(committed, sequence)
            for pending in committed:
                os.rename(
                    f"{pending.uuid}.log.live",
                    f"{pending.uuid}.log",
                    src_dir_fd=self._folder.journal_fd,
                    dst_dir_fd=self._folder.journal_fd,
                )
                self._forget(pending)

    def _stamp(self, committed: list[_Pending], sequence: SequenceLedger) -> None:
        """Give each its number, on disk before any of them is visible."""
        stamped_us = time.time_ns() // 1000
        group = [
            (
                pending.uuid,
                Stamp(
                    epoch=sequence.epoch,
                    sequence=number,
                    commit_us=pending.commit_us,
                    stamped_us=stamped_us,
                    journal_length=pending.length,
                    event_count=pending.events,
                    transaction=pending.transaction,
                ),
            )
            for number, pending in enumerate(committed, sequence.last + 1)
        ]
        for pending, (uuid, stamp) in zip(committed, group, strict=True):
            if pending.fd < 0:
                pending.fd = os.open(self._folder.live(uuid), os.O_RDWR | os.O_CLOEXEC)
            write_stamp(pending.fd, uuid, stamp)
        sequence.record(group, group[-1][1].sequence)

    def _delete(self, pending: _Pending) -> None:
        """A dead transaction's journal goes: the server died before its commit mark was set."""
        _log.info(
            "transaction {} of {} did not commit; its journal {} is removed",
            pending.transaction,
            self._database.path,
            pending.uuid,
        )
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{pending.uuid}.log.live", dir_fd=self._folder.journal_fd)
        self._forget(pending)

    def _set_aside(self, pending: _Pending) -> None:
        reason = (
            f"transaction {pending.transaction} is unknown to {self._database.path}: the journal "
            "belongs to an earlier state of the database (a restored copy?)"
        )
        _log.error("journal {} is set aside: {}", pending.uuid, reason)
        self._folder.set_aside(pending.uuid, reason)
        self._forget(pending)

    def _forget(self, pending: _Pending) -> None:
        del self._pending[pending.uuid]
        if pending.fd >= 0:
            os.close(pending.fd)
        with self._decided:
            self._numbers.pop(pending.uuid, None)
            self._decided.notify_all()

    # -- state on disk ----------------------------------------------------------------------------

    def _open_sequence(self) -> SequenceLedger:
        if self._sequence is None:
            ledger = SequenceLedger(self._folder.databases, self._database.path, self._fsync)
            with ledger.exclusive():
                if ledger.is_new:
                    ledger.record([], self._highest_stamp())
                self._complete(ledger)
            self._sequence = ledger
        return self._sequence

    def _complete(self, ledger: SequenceLedger) -> None:
        """Finish what a crash cut off after the ledger had it: stamps and names."""
        names = {entry.name for entry in os.scandir(self._folder.path)}
        for uuid, stamp in ledger.entries():
            for path in (self._folder.live(uuid), self._folder.committed(uuid)):
                if path.name not in names:
                    continue
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    write_stamp(fd, uuid, stamp)
                finally:
                    os.close(fd)
                if path == self._folder.live(uuid):
                    path.rename(self._folder.committed(uuid))
                    if uuid in self._pending:
                        self._forget(self._pending[uuid])

    def _highest_stamp(self) -> int:
        """The state file is new: go on after what lies in the folder, if anything does."""
        highest = 0
        for entry in os.scandir(self._folder.path):
            if entry.name.endswith(".log"):
                with contextlib.suppress(JournalError, OSError):
                    _, stamp, database = read_envelope(self._folder.path / entry.name)
                    if stamp is not None and database == self._database.path:
                        highest = max(highest, stamp.sequence)
        return highest

    def _adopt_orphans(self) -> None:
        """Take up sealed journals that ended processes left; remove those without a seal."""
        for entry in list(os.scandir(self._folder.path)):
            if not entry.name.endswith(".log.live"):
                continue
            try:
                with JournalReader(self._folder.path / entry.name) as reader:
                    header, mark, seal = reader.header, reader.commit_mark, reader.seal
                    mine = reader.database == self._database.path
            except FileNotFoundError:
                continue
            except JournalError:
                self._remove_if_dead(entry.name)
                continue
            if not mine or header.uuid in self._pending:
                continue
            if not self._folder.owner_is_gone(header.owner):
                continue
            if seal is None:
                _log.info("removing {}: its transaction was never prepared", entry.name)
                with contextlib.suppress(FileNotFoundError):
                    (self._folder.path / entry.name).unlink()
                continue
            self._pending[header.uuid] = _Pending(
                header.uuid,
                header.transaction,
                mark.ticket if mark else _LAST_TICKET,
                mark.commit_us if mark else seal.sealed_us,
                seal.end,
                seal.event_count,
                -1,
                orphan=True,
            )

    def _remove_if_dead(self, name: str) -> None:
        """A journal without a readable header: nothing of it was ever prepared. It is removed
        once no other process can be at work on it."""
        others = [
            entry.name
            for entry in os.scandir(self._folder.owners)
            if not self._folder.owner_is_gone(UUID(entry.name))
        ]
        if others == [str(self._folder.owner)] and not self._is_ours(name):
            _log.info("removing {}: nothing was written to it", name)
            with contextlib.suppress(FileNotFoundError):
                (self._folder.path / name).unlink()

    def _is_ours(self, name: str) -> bool:
        """Tell whether a transaction of this process may have the file open."""
        try:
            status = (self._folder.path / name).stat()
            began = (self._folder.owners / str(self._folder.owner)).stat().st_ctime
        except FileNotFoundError:
            return True
        return status.st_ctime >= began
