"""Turns journals of transactions whose commit was called into committed journals.

A journal becomes ``<uuid>.log`` only after the database file says that its transaction is
committed, durably (decisions); then in ticket order, which respects every row's history, and never
past one that is not decided yet.

Several server processes may write into one folder (Classic). One of them confirms for all: it
holds ``confirmer.lock`` while there is something to confirm (leadership), and finds the others'
journals by the mark that ``commit()`` left in them (scan). What a process leaves that ends at any
point is decided by whoever looks next: each bridge does so every second, and so does the shipper
(recovery). No attachment of ours is opened but for what the file can't tell.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.closing import Closing
from firebird_cdc.bridge.confirm.completion import Completion
from firebird_cdc.bridge.confirm.deciding import Deciding
from firebird_cdc.bridge.confirm.gaps import GapMarker
from firebird_cdc.bridge.confirm.history import History
from firebird_cdc.bridge.confirm.leadership import Leadership
from firebird_cdc.bridge.confirm.pacing import AGAIN_MOST_S, GATHER_S, Pacing
from firebird_cdc.bridge.confirm.pending import (
    Definitions,
    Pending,
    PendingJournals,
)
from firebird_cdc.bridge.confirm.publisher import Publisher
from firebird_cdc.bridge.confirm.rewriting import Rewriting
from firebird_cdc.bridge.confirm.scan import FolderScan
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
    JournalLeft,
    LastSessionLeft,
    OthersCommitted,
    OwnAttachment,
)
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.commit_entries import LAST_TICKET
from firebird_cdc.journal.folder.journal_folder import JournalFolder

_log = logbook.Logger("firebird_cdc.bridge.confirm.loop")

_PAUSE_S = 0.5  # when nothing works: who leaves takes a second of silence for our end (host.c)
_FOLLOWED_S = 0.2  # in which a leader that works has published what it can
_UNREAD_S = 0.002  # to look for somebody who waits for that
_WAIT_S = 1.0  # with nothing to do, how often to look for what dead processes left
_LOOK_AGAIN_MOST_S = 15.0  # the same while what they left can't be decided


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class Server(Protocol):
    """The plugin of this process, as far as the confirmer needs it; ``Host`` tells more."""

    def last_ticket(self) -> int: ...
    def take_events(self, timeout_ms: int) -> list[Event]: ...
    def settle(self, serial: int) -> None: ...
    def database(self, database: int) -> DatabaseIdentity: ...
    def open_attachment(self, database: str) -> OwnAttachment: ...
    def store_definition(
        self, database: int, generation: int, shown: bytes, complete: bytes
    ) -> None: ...
    def new_generation(self) -> None: ...
    def read_gap(self, database: int) -> CountedGap | None: ...
    def clear_gap(self, database: int, gap: CountedGap) -> None: ...
    def sync_file_system(self, fd: int) -> None: ...
    def count_prepared(self) -> int: ...


class _Looks:
    """Times, monotonic, at which to look for what other processes have committed or left."""

    def __init__(self) -> None:
        self.at = 0.0  # for what dead processes left
        self._left_undecided = 0  # how often in a row
        self._called_until = 0.0  # for commits

    def call(self) -> None:
        """Look for what others have committed: soon, as whoever leads now may not have heard."""
        self._called_until = time.monotonic() + _FOLLOWED_S

    def answer(self) -> None:
        """All that others have committed was taken up."""
        self._called_until = 0.0

    def are_called_for(self, folder: JournalFolder) -> bool:
        """Tell whether another process has committed in FOLDER, and nobody has taken that up."""
        if not self._called_until:
            return False
        is_done = folder.accounted >= folder.last_ticket
        if is_done or time.monotonic() > self._called_until:
            self.answer()
        return self._called_until > 0

    def put_off(self, *, is_left: bool, is_soon: Callable[[], bool]) -> None:
        """Look again later for what IS LEFT undecided, the later the more often that was so, unless
        it IS SOON."""
        self._left_undecided = self._left_undecided + 1 if is_left else 0
        if is_left:
            pause = min(2.0**self._left_undecided, _LOOK_AGAIN_MOST_S)
            self.at = time.monotonic() + (_WAIT_S if is_soon() else pause)


class Confirmer:
    """The confirmer of this process, and of all that share its folder while it leads.

    Belongs to one thread; ``use`` may be called from any.
    """

    def __init__(
        self,
        server: Server | None,
        folder: JournalFolder,
        fsync: bool,
        pause: Callable[[float], bool] = _sleep,
    ) -> None:
        """``server``: None in a process without the engine, which hears of nothing and can ask
        nobody. ``pause``: waits for so many seconds there, or less, and returns whether a process
        without a bridge has committed meanwhile."""
        self._server = server
        self._pause = pause
        self._next = (folder, fsync)
        self._folder = folder
        self._fsync = fsync
        self._pending = PendingJournals()
        self._let_go = False  # of database files, as soon as nothing is pending
        self._looks = _Looks()
        self._last_serial = 0
        open_attachment = server.open_attachment if server else _only_a_server_can
        sync_file_system = server.sync_file_system if server else _sync_file_system
        self._states = TransactionStates(folder, fsync, open_attachment)
        self._rewriting = Rewriting(folder, fsync)
        self._history = History(folder, fsync, self._states, sync_file_system)
        troubles = DatabaseTroubles(self._states.close_attachment)
        self._pacing = Pacing()
        self._completion = Completion(
            open_attachment, server, folder, fsync, self._states, troubles.tell
        )
        self._gaps = GapMarker(server, self._states, self._rewriting) if server else None
        self._leadership = Leadership(folder)
        unreadable = UnreadableFiles()
        self._closing = Closing(folder, fsync, self._pending)
        self._publisher = Publisher(
            folder,
            self._pending,
            self._history,
            self._rewriting,
            self._completion,
            self._closing,
            troubles,
            server.new_generation if server else self._new_generation,
        )
        self._deciding = Deciding(
            self._pending, self._states, self._publisher, self._leadership, troubles
        )
        self._scan = FolderScan(
            folder, fsync, self._pending, self._closing, unreadable, self._take_found
        )

    def _new_generation(self) -> None:
        """Have servers that live read their system tables anew."""
        self._folder.new_generation()

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Work in another folder as soon as nothing is pending in the present one."""
        self._next = (folder, fsync)

    def take_over(self, former: Confirmer) -> None:
        """Go on with what one whose thread has ended had heard of, and no scan finds."""
        if self._gaps is not None and former._gaps is not None:
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
                self._leadership.release()
            with contextlib.suppress(BaseException):
                self.let_go()
            at_end()

    def let_go(self) -> None:
        """Close all that is open; the journals stay for the next."""
        self._pending.forget_all(lambda _: True)
        self._rest()
        self._states.close_inventories(self._pending.databases())
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
            self._deciding.troubles.tell_of_turn(self._folder.path, error)
            self._folder.undecided = max(1, len(self._pending))  # until a turn succeeds
            self._scan.is_wanted = True  # what the ledger has already must be finished first
            self._rest()
            time.sleep(_PAUSE_S)
            return True

    def _turn(self) -> bool:
        """Take what happened, act on it, and pause as long as is good for everybody."""
        heard = self._receive(0 if self._is_busy() else _WAIT_S)
        # Others find another one at its path; so do we, once this process is started anew.
        self._next[0].let_tickets_go(self._server.count_prepared if self._server else lambda: 0)
        if self._next[0] is not self._folder and (
            not self._pending or not self._folder.is_in_place()
        ):
            self._move()
        self._look_around()
        busy = self._is_busy()
        if self._gaps is not None and self._can_mark():
            self._gaps.mark(self._folder, self._take_up_marked)
        pause = 0.0
        if self._pending and not self._folder.is_in_place():
            self._leadership.release()
            pause = _PAUSE_S  # another one at its path would tell us nothing of them
        elif self._pending or self._scan.is_wanted or self._is_called():
            pause = self._lead() if self._is_leader() else self._follow()
        if not self._pending:
            self._rest()
            if self._let_go:
                self._states.close_inventories(self._pending.databases())
                self._let_go = False
        self._settle()
        self._tidy()
        if pause:
            time.sleep(pause)
        return heard or busy

    def _is_busy(self) -> bool:
        has_some = bool(self._pending) or self._scan.is_wanted
        return has_some or self._is_called() or self._can_mark()

    def _is_called(self) -> bool:
        """Tell whether another process has committed, and nobody has taken that up since."""
        return self._looks.are_called_for(self._folder)

    def _close_journals(self) -> None:
        """Close shared journals that nobody appends to any more, while nothing else is to do."""
        if self._closing.is_any_left() and self._is_leader():
            self._closing.close_left(self._history.ledger)
            if (doubted := self._closing.known.doubted) > self._folder.undecided:
                self._folder.undecided = doubted
            self._rest()

    def _tidy(self) -> None:
        """Close what is open of databases in which nothing happens, and remove what was kept of
        those that are gone."""
        self._states.close_idle(self._pending.databases)
        self._history.close_idle()
        is_idle = not self._pending and not self._scan.is_wanted
        if is_idle:
            self._close_journals()
        if is_idle and self._history.is_look_for_gone_due() and self._is_leader():
            self._history.retire_gone()
            self._rest()

    def _can_mark(self) -> bool:
        return self._gaps is not None and self._gaps.is_due() and self._folder.is_in_place()

    def _take_up_marked(self, marked: Pending | None) -> None:
        if marked is None:
            self._scan.is_wanted = True
            return
        self._leadership.hand_over({marked.ticket})
        self._pending.add(marked)

    def _take_found(self, pending: Pending) -> None:
        if pending.definitions.is_described and pending.has_own_journal:
            # Whoever did that may have died before it kept the key indexes.
            self._completion.key_indexes(pending.database, pending.guid).remove()

    def _receive(self, timeout_s: float) -> bool:
        """Take what the plugin has to tell; return whether there was anything."""
        if self._server is None:
            if self._pause(timeout_s):
                self._looks.call()
            return False
        events = self._server.take_events(int(timeout_s * 1000))
        for event in events:
            self._last_serial = event.serial
            self._hear(self._server, event)
        return bool(events)

    def _hear(self, server: Server, event: Event) -> None:
        if isinstance(event, CommittedJournal):
            self._accept(event, server.database(event.database))
            return
        assert self._gaps is not None
        self._gaps.hear(event)
        if isinstance(event, DatabaseSeen):
            self._meet(event.database, *server.database(event.database))
        elif isinstance(event, JournalLeft):
            self._closing.left(event)
        elif isinstance(event, DatabaseLeft):
            self._states.leave(*server.database(event.database))
        elif isinstance(event, DeadTransactions):
            self._scan.is_wanted = True
        elif isinstance(event, OthersCommitted):
            self._looks.call()
        elif isinstance(event, LastSessionLeft):
            self._let_go = True
            self._deciding.troubles.try_again()  # the process may end, what was in the way be gone

    def _meet(self, database: int, path: str, guid: UUID) -> None:
        """Have the file open before the database may be dropped: what was committed in it can
        be read then all the same."""
        self._completion.meet(path, database)
        with contextlib.suppress(OSError, CaptureError):
            self._states.enter(path, guid)

    def _accept(self, event: CommittedJournal, database: DatabaseIdentity) -> None:
        if event.is_gap:
            _log.error(
                "{database}: a gap: transaction {transaction} was committed, but could not be "
                "recorded: {reason}",
                database=database.path,
                transaction=event.transaction,
                reason=event.reason,
                journal=event.uuid,
            )
        self._leadership.hand_over({event.ticket})
        self._let_go = False  # somebody is here again, and may drop the database
        pending = Pending(
            event.uuid,
            event.journal,
            event.offset,
            database.path,
            event.transaction,
            event.ticket,
            event.commit_us,
            event.length,
            event.seal_end,
            event.events,
            event.serial,
            is_unsynced=event.is_unsynced,
            guid=database.guid,
            definitions=Definitions(event.has_ddl, event.is_unresolved, event.catalogue_offset),
            floor=event.ticket - 1,
            is_unlisted=event.is_unlisted,
        )
        self._pending.add(pending)
        self._closing.watch(event.journal)

    def _settle(self) -> None:
        """Tell sessions that wait to leave how far their commits are decided."""
        if self._server is None:
            return
        waiting = [each.serial for each in self._pending if each.serial and not each.is_stuck]
        if self._gaps is not None and self._can_mark():
            waiting += self._gaps.serials()
        self._server.settle(min(waiting) - 1 if waiting else self._last_serial)

    def _move(self) -> None:
        """Go on in another folder. Journals that waited in one that was taken away are lost to
        us, and become gaps; those of the new one that were handed over already go with us."""
        self._rest()
        before = self._folder, self._fsync
        self._work_in(*self._next)
        try:
            if self._folder.is_same_place(before[0]):
                self._forget_renamed()  # others have confirmed meanwhile
            for pending in self._pending:
                if not self._folder.has_live(pending.journal):
                    why = "its journal went with its folder before it could be confirmed"
                    pending.floor = None  # what it had was of the other folder,
                    self._rewriting.replace_by_gap(pending, why)
                    pending.ticket = LAST_TICKET  # and so was this
        except BaseException:
            self._work_in(*before)
            raise
        self._leadership.begin_anew({each.ticket for each in self._pending if each.serial})
        self._scan.is_wanted = True

    def _work_in(self, folder: JournalFolder, fsync: bool) -> None:
        self._folder, self._fsync = folder, fsync
        for part in (
            self._states, self._completion, self._rewriting, self._history, self._closing,
            self._scan,
        ):  # fmt: skip
            part.use(folder, fsync)
        for other in (self._leadership, self._publisher):
            other.use(folder)

    # -- who confirms ---------------------------------------------------------------------------

    def _is_leader(self) -> bool:
        if self._leadership.is_held:
            self._leadership.beat()
            return True
        if not self._leadership.take(self._last_ticket):
            return False
        led_from = self._leadership.led_from  # the leader before us has decided what came before
        self._pending.forget_all(lambda each: each.ticket <= led_from and not each.is_unlisted)
        if self._folder.undecided or self._history.is_restore_due():
            self._scan.is_wanted = True
        return True

    def _last_ticket(self) -> int:
        """Return the last ticket drawn by any process. Every journal with one up to it is
        marked."""
        if self._server is not None:
            return self._server.last_ticket()
        with self._folder.locked_tickets():
            return self._folder.last_ticket

    def _rest(self) -> None:
        """Nothing is left to do: stand in nobody's way."""
        self._states.close_attachments()
        self._leadership.release()
        self._states.close_inventories(self._pending.databases(), only_replaced=True)

    def _look_around(self) -> None:
        """Have a process that died looked after, soon and without anybody's help. What waits for
        a database in trouble keeps nobody from that."""
        now = time.monotonic()
        if now < self._looks.at or not all(each.is_stuck for each in self._pending):
            return
        self._looks.at = now + _WAIT_S
        scan, ended = self._scan, set(self._folder.owners.ended())
        if self._pending or scan.unreadable:  # a scan changes little, unless a process has ended
            is_wanted = not ended <= set(scan.ended) or now > scan.scanned_at + _LOOK_AGAIN_MOST_S
        else:
            is_wanted = self._folder.undecided > 0 or bool(ended) or self._leadership.is_missing()
        scan.is_wanted = scan.is_wanted or is_wanted

    def _follow(self) -> float:
        """Another process confirms: watch what becomes of our journals."""
        self._forget_renamed()
        self._leadership.follow()
        if not self._pending:
            self._scan.is_wanted = False  # it looks around as well
            return GATHER_S if self._is_called() else 0.0
        # The leader knows of older ones by now, and who leaves need not wait for them.
        is_stuck = self._folder.undecided > 0
        for pending in self._pending:
            pending.is_stuck = is_stuck and pending.met_at < time.monotonic() - _FOLLOWED_S
        return AGAIN_MOST_S if is_stuck else GATHER_S

    def _forget_renamed(self) -> None:
        accounted, has_live = self._folder.accounted, functools.cache(self._folder.has_live)
        self._pending.forget_all(
            lambda each: (
                not has_live(each.journal)
                # Another process has decided it, if it knows of it.
                or (each.ticket <= accounted and not each.is_unlisted)
            )
        )

    def _lead(self) -> float:
        """Find all that is marked, ask about it, act on the answers; return how long to pause."""
        began = time.monotonic()
        last = self._last_ticket()
        while self._receive(0):
            pass
        if not self._leadership.knows_all(last):
            first = self._leadership.known + 1
            self._leadership.hand_over(self._scan.entries.take(first, last))
        if self._scan.is_wanted or not self._leadership.knows_all(last):
            self._find(last)
        self._leadership.advance(last)
        if last >= self._folder.last_ticket:
            self._looks.answer()  # all that others have committed waits now
        self._publisher.begin_turn()
        decided, active, has_failed = self._deciding.decide(last, is_left=self._let_go)
        self._tell_progress()
        self._closing.close_left(self._history.ledger)
        self._scan.forget_ended()
        self._leave_undecided()
        if has_failed:
            self._rest()
            return 2 * GATHER_S
        if decided:
            pause = self._pacing.after_group(self._publisher.published, time.monotonic() - began)
            # The next one waits for DDL before it to be described: no group forms.
            return 0.0 if self._publisher.has_published_ddl else pause
        if not self._pending:
            return 0.0
        if any(each.definitions.is_unread for each in self._pending):
            return _UNREAD_S
        return self._pacing.after_nothing() if active else AGAIN_MOST_S

    def _find(self, last: int) -> None:
        """Take up what nobody handed over, up to ticket LAST."""
        ended = self._scan.scan(last, self._history.ledger)
        if self._scan.is_wanted:
            self._history.restore_stamps()
        self._scan.done(ended)

    def _tell_progress(self) -> None:
        """Tell all processes up to which ticket everything is decided, and DDL described."""
        known = self._leadership.known
        before = [each.ticket - 1 for each in self._pending]
        undescribed = [
            each.ticket - 1
            for each in self._pending
            if each.definitions.has_ddl and (each.definitions.is_unread or not each.is_stuck)
        ]
        self._folder.accounted = min([known, *before])
        self._folder.described = min([known, *undescribed])

    def _leave_undecided(self) -> None:
        """Tell how many journals nobody can decide or publish now, and forget those of dead
        processes once they are all that is left, so that others may lead: whoever leads next finds
        them again."""
        stuck = [each for each in self._pending if each.is_stuck]
        known = self._closing.known
        unread = len(self._scan.unreadable) + known.unread + known.doubted
        self._folder.undecided = len(stuck) + unread
        left = [each for each in stuck if not each.serial]
        if len(left) < len(self._pending):
            return
        for pending in left:
            self._pending.forget(pending)
        # Some looks more, and one of those that are counted is decided.
        self._looks.put_off(is_left=bool(left), is_soon=self._states.is_counting_looks)


def _only_a_server_can(database: str) -> OwnAttachment:
    raise CaptureError(
        f"only a server can read the table definitions of {database}; it does so at the next"
        " change there"
    )


def _sync_file_system(fd: int) -> None:
    # Built for the Python of the shipper: that of a server has the same call in its plugin.
    from firebird_cdc.native._journal_files import sync_file_system

    sync_file_system(fd)
