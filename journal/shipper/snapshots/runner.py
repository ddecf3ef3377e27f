"""Runs the snapshots of one database: windows, batches of rows, and where they stand in its topic.

==========  ======================================================================================
IDLE        nothing is open; the next window is begun when it is time
ATTACHING   the reader processes start and attach, which holds nobody up
OPENING     no journal is begun, so that none goes out which the snapshot may not see
FOLLOWING   journals go out that the snapshot sees, up to the first one that it does not see
READING     readers make batches; the database's place in Kafka stands still
SENDING     a batch goes to Kafka, with the record of how far the snapshot has come
CLOSING     the window ends; journals go out already
==========  ======================================================================================

So rows stand behind all changes that they have, and before all that they don't. A window that fails
at any step is dropped, and the next one goes on behind the last batch that Kafka has; a snapshot of
one moment begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import Any

import logbook

from firebird_cdc.clock import now_us
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.subjects import SNAPSHOT
from firebird_cdc.journal.shipper.delivery.backoff import Backoff
from firebird_cdc.journal.shipper.delivery.resend import Outcome, RedeliverySend
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.snapshots.ahead import VOID, ReadAhead
from firebird_cdc.journal.shipper.snapshots.attempts import FIRST_PAUSE_S, Attempts
from firebird_cdc.journal.shipper.snapshots.news import News
from firebird_cdc.journal.shipper.snapshots.notifications import SKIPPED, SQL_EXCEPTION
from firebird_cdc.journal.shipper.snapshots.progress import (
    CROWDED,
    OLD_TRANSACTIONS,
    WAS_STOPPED,
    apply_batch,
    end_initial,
    end_of,
    follow_database,
    give_way,
    is_of_one_moment,
    left_out_by,
    nothing_seen,
    put_last,
    renew_tables,
    seen_by,
    stop_tables,
    table_of,
    told_end,
)
from firebird_cdc.journal.shipper.snapshots.reader_process import ENDED
from firebird_cdc.journal.shipper.snapshots.readers import Readers
from firebird_cdc.journal.shipper.snapshots.rows import Batch, BatchEvents
from firebird_cdc.journal.shipper.snapshots.state import (
    GONE,
    Kind,
    SeenSet,
    Snapshot,
    SnapshotState,
    Status,
    TableProgress,
)
from firebird_cdc.journal.shipper.snapshots.surroundings import Surroundings
from firebird_cdc.journal.shipper.snapshots.windows import (
    BatchGrowth,
    OpenWindow,
    Phase,
    transaction_of,
)
from firebird_cdc.journal.snapshot.visibility import VisibleSet

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.runner")

_AWAY_S = 10.0
"""With Kafka away for so long a window is dropped: an open snapshot makes updates slow."""

_WINDOW_S = 10.0
"""An incremental snapshot's window is not continued after so long, though no journal waits."""

_SETTLES_S = 1.0
"""So long a window that several read waits for transactions that are under way when it begins:
those that end later may be seen by who joins it, and then it is of no use."""

_IDLE_S = 2.0
"""The reader process stays attached so long with nothing to do."""

_MOST_VOIDS = 3
"""Windows in a row that may turn out not to be sound before there is a pause."""

_LOOKS_S = 1.0
"""After so long of reading it is looked whether the rows are still wanted."""


class SnapshotRunner:
    """Takes the snapshots that STATE has, one after the other.

    ``phase``: the step that it is at, and ``since`` when (monotonic); ``waits_for``: why it does
    not go on, for people.
    ``is_decided``: False while it is not known whether one has to go before the first journal.
    """

    def __init__(self, state: SnapshotState, surroundings: Surroundings) -> None:
        self.state = state
        self.phase = Phase.IDLE
        self.waits_for = ""
        self.is_decided = True
        self.sent_serial = 0
        self._around = surroundings
        self._readers: Readers | None = None
        self._window: OpenWindow | None = None
        self._batch: Batch | None = None
        self._is_committed = False
        self.since = monotonic()
        self._attempts = Attempts()
        self._pauses = Backoff(FIRST_PAUSE_S)  # for others
        self._voids = 0  # windows in a row that were not sound
        self._look_at = 0.0
        self._growth = BatchGrowth()
        self._news = News(state.database, surroundings)
        self._left_out = left_out_by(state)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that is taken, or comes next."""
        return self.state.waiting[0] if self.state.waiting else None

    @property
    def is_busy(self) -> bool:
        """Tell whether a window is open, or about to be."""
        return self.phase is not Phase.IDLE

    @property
    def awaits_answers(self) -> bool:
        """Tell whether Kafka's answers are what it waits for: journals or rows are under way."""
        return self.phase in (Phase.FOLLOWING, Phase.SENDING)

    @property
    def wants_to_go_on(self) -> bool:
        """Tell whether something is to be done that waits for nobody else."""
        if self.is_busy:
            return True
        is_due = self.snapshot is not None and not self.state.is_paused and not self.waits_for
        return is_due and not self._around.is_halted(self.state.database)

    # Between journals

    @property
    def are_near(self) -> bool:
        """Tell whether the journals that come next may be concerned."""
        return (
            self.is_busy
            or self.snapshot is not None
            or self._left_out is not None
            or not self.is_decided
            or not self._around.sends_changes
        )

    def left_out_of(self, entry: Entry) -> frozenset[str]:
        """Return the tables whose changes in ENTRY are not sent, as the initial snapshot saw it."""
        left_out = self._left_out
        if left_out is None or left_out.epoch != entry.epoch:
            return frozenset()
        transaction = transaction_of(entry, self._around.plan)
        if transaction is None or not left_out.visible.sees(transaction):
            return frozenset()
        return left_out.tables

    def stops(self, entry: Entry) -> bool:
        """Tell whether ENTRY, which would be the next one, has to wait for rows."""
        if not self.is_decided:
            return True
        match self.phase:
            case Phase.IDLE | Phase.ATTACHING | Phase.CLOSING:
                return self._is_first_of_all or not self._sends_changes()
            case Phase.FOLLOWING:
                assert self._window is not None
                is_seen = self._window.sees(entry, self._around.plan)
                return self._goes_before_everything or not is_seen
            case _:
                return True

    @property
    def _is_first_of_all(self) -> bool:
        """Tell whether the first journal is to wait for an initial snapshot. Where that does not go
        on, it waits no longer, and the rows get a place behind journals."""
        snapshot = self.snapshot
        if not self._goes_before_everything or self.state.is_paused:
            return False
        if snapshot is None or snapshot.status is Status.OWED:
            return False
        return self._attempts.holds_first(self._look_at)

    @property
    def _goes_before_everything(self) -> bool:
        """Tell whether the rows go before the first journal of all, and changes that the snapshot
        sees are left out. Not if none was there when its first window began: those that it sees
        come later then, and go out before its rows."""
        snapshot, seen = self.snapshot, self.state.seen
        return (
            snapshot is not None
            and snapshot.kind is Kind.INITIAL
            and (seen is None or bool(seen.tables))
            and self._around.place_of(self.state.database) is None
            and self._around.is_at_rest(self.state.database)
        )

    def _sends_changes(self) -> bool:
        """Tell whether changes go out at all; else it is told that they wait."""
        if self._around.sends_changes:
            return True
        text = "changes wait: snapshot.mode says that only existing rows are sent"
        self._around.plan.statistics.trouble(SNAPSHOT + self.state.database, "halted", text)
        return False

    def wait_until(self, time: float) -> None:
        """Begin nothing before TIME (monotonic)."""
        self._look_at = time

    # The steps

    def advance(self) -> bool:
        """Do what can be done now; tell whether something was."""
        moved = False
        while self._readers is not None and (taken := self._readers.take()) is not None:
            self._take(*taken)
            moved = True
        now = monotonic()
        if self.phase is Phase.IDLE:
            return self._begin(now) or moved
        lasts_s = now - self.since
        depends = self.phase in (Phase.FOLLOWING, Phase.SENDING)  # on Kafka
        if depends and lasts_s > _AWAY_S and self._around.is_away():
            self.drop("Kafka is away")
            return True
        if self.phase is Phase.READING and lasts_s > _LOOKS_S and self._ends_reading():
            return True
        if self.phase is not Phase.SENDING and lasts_s > self._limit_s:
            self._give_up()
            return True
        if self.phase is Phase.FOLLOWING:
            return self._follow() or moved
        return moved

    @property
    def _limit_s(self) -> float:
        """Time after which the step under way is given up."""
        snapshot = self.snapshot
        is_in_parts = snapshot is not None and snapshot.kind is Kind.INCREMENTAL
        waits = self._around.next_entry(self.state.database) is not None
        return self._attempts.limit_s(self.phase, is_in_parts=is_in_parts, waits=waits)

    def _ends_reading(self) -> bool:
        """Drop the window, though rows are read, if nobody wants them, or changes need the room."""
        snapshot = self.snapshot
        if snapshot is None or self.state.is_paused or snapshot.status is Status.STOPPED:
            self._drop_window("its rows are not wanted any more")
            self._end_readers()
            self._go(Phase.IDLE)
            return True
        if self._gives_way(snapshot):
            self.drop(CROWDED)
            return True
        return False

    def _give_up(self) -> None:
        """Drop a step that takes too long."""
        if self.phase is Phase.FOLLOWING:
            self.drop("the changes that come before its rows are not delivered")
            return
        self._attempts.give_up(self.phase)
        why = f"the reader process does not answer ({self.phase.name.lower()})"
        if self.phase is not Phase.ATTACHING or not self._is_owed(why):
            self._lose(why)

    def stop(self, snapshot: Snapshot) -> None:
        """End SNAPSHOT: at once, or where its window ends."""
        if snapshot is self.snapshot and self.is_busy:
            snapshot.status = Status.STOPPED
        else:
            self._end_stopped(snapshot)

    def _end_stopped(self, snapshot: Snapshot) -> None:
        self._end_as(snapshot, Status.STOPPED, is_first=self._goes_before_everything)
        self._around.keep(self.state, is_urgent=True)
        self._news.add(snapshot, "ABORTED", why=WAS_STOPPED)
        self._news.send()

    def _end_without_tables(self, snapshot: Snapshot) -> None:
        why = snapshot.why or "no captured table of the database is meant"
        self.state.end(snapshot, Status.SKIPPED, why)
        self._around.keep(self.state, is_urgent=True)
        _log.notice("{}: snapshot {} is skipped: {}", self.state.database, snapshot.id, why)
        self._news.add(snapshot, "SKIPPED", why=why)
        self._news.send()

    def _end_as(self, snapshot: Snapshot, status: Status, *, is_first: bool) -> None:
        """SNAPSHOT has ended so. IS_FIRST: what it sent stands before all changes."""
        if snapshot.kind is Kind.INITIAL:
            end_initial(self.state, snapshot, is_first=is_first)
        self.state.end(snapshot, status)
        self._left_out = left_out_by(self.state)

    def _begin(self, now: float) -> bool:
        snapshot = self.snapshot
        database = self.state.database
        if snapshot is None or self.state.is_paused:
            self._clear()
            self._end_readers()
            return False
        if not self._around.is_placed(database):
            self._let_go(now)
            return False
        if snapshot.tables is not None and not snapshot.open_tables:
            self._end(snapshot)  # Kafka had all of it when the shipper, or one before, was ended
            return True
        if snapshot.status is Status.STOPPED:
            self._end_stopped(snapshot)
            return True
        if not (self._attempts.is_due and self._pauses.is_over) or now < self._look_at:
            self._let_go(now)
            return False
        wanted = self._readers_for(snapshot)
        if self._readers is not None and len(self._readers) != wanted:
            self._end_readers()
        if self._readers is None:
            try:
                self._readers = Readers(self._around.setup(database), self._around.wake, wanted)
            except (OSError, ConfigError) as error:
                self._fail(f"the reader process can't be started: {error}")
                return True
            self._go(Phase.ATTACHING)
            self._readers.ask_all({"do": "attach"})
        else:
            self._go(Phase.OPENING)
            question = {
                "do": "open",
                "barriers": self.state.barriers,
                "wants_tables": snapshot.tables is None,
                "patience_s": _SETTLES_S if wanted > 1 else 0,
            }
            self._readers.ask(0, question)
        return True

    def _readers_for(self, snapshot: Snapshot) -> int:
        """Return how many readers SNAPSHOT has. Parts of an incremental one are over before others
        have joined it."""
        return 1 if snapshot.kind is Kind.INCREMENTAL else self._around.config.snapshots.readers

    def _let_go(self, now: float) -> None:
        """Have nobody attached who does nothing: a database in use can't be dropped."""
        if self._readers is not None and now - self.since > _IDLE_S:
            self._end_readers()

    def _go(self, phase: Phase) -> None:
        self.phase = phase
        self.since = monotonic()

    def _take(self, reader: int, answer: dict[str, Any]) -> None:
        readers, window = self._readers, self._window
        assert readers is not None
        if window is not None and window.ahead is not None:
            window.ahead.take(reader, answer)
            if self.phase is Phase.READING:
                self._read_on()
            else:
                self._read_ahead()
            return
        if self.phase is Phase.CLOSING and answer.get("kind") != ENDED:
            if not readers.are_awaited:  # what was read ahead is of no use any more
                self._go(Phase.IDLE)
            return
        if "failed" in answer:
            self._take_failure(answer)
            return
        match self.phase:
            case Phase.ATTACHING:
                self._attached(answer)
            case Phase.OPENING:
                self._opened(answer)
            case Phase.FOLLOWING if "joined" in answer:
                pass
            case _:
                self.drop("the reader process answers out of turn")

    def _take_failure(self, answer: dict[str, Any]) -> None:
        text, kind = answer["failed"], answer["kind"]
        if kind == VOID:  # chance, nearly always: at once again
            self._voids += 1
            self._drop_window(text)
            if self._voids > _MOST_VOIDS:
                self._pause(text)
            else:
                self._close()
            return
        if self.phase is Phase.ATTACHING and kind != ENDED and self._is_owed(text):
            return
        self._lose(text)

    def _lose(self, why: str) -> None:
        """Drop the window, as a reader has failed. Rows that it has sent are not sent again and
        again: before that the snapshot goes on part by part."""
        snapshot, window = self.snapshot, self._window
        if snapshot is not None and window is not None and window.rows:
            self._attempts.lose_rows()
            if self._attempts.are_too_many and snapshot.kind is not Kind.INCREMENTAL:
                self._give_way(snapshot, why, keeps_torn=True)
        self.drop(why)

    def _is_owed(self, why: str) -> bool:
        """Take it, if the snapshot is initial, that nobody can attach yet: the changes go on."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.kind is not Kind.INITIAL:
            return False
        if snapshot.status is not Status.OWED:
            snapshot.status = Status.OWED
            self._around.keep(self.state, is_urgent=True)
        self._fail(
            f"the initial snapshot is owed: {why}. Changes are delivered meanwhile, and it is taken"
            " as soon as an attachment works"
        )
        return True

    def _attached(self, answer: dict[str, Any]) -> None:
        if answer["path"] != self.state.database:
            why = f"{answer['path']} was attached to, in place of {self.state.database}"
            if not self._is_owed(why):
                self.drop(why)
            return
        if follow_database(self.state, answer["guid"].hex()):
            database = self.state.database
            _log.warning("{}: it is another database now, and its rows are read anew", database)
            self._around.keep(self.state, is_urgent=True)
        snapshot = self.snapshot
        if snapshot is not None and snapshot.status is Status.OWED:
            snapshot.status = Status.WAITING
        assert self._readers is not None
        if not self._readers.are_awaited:
            self._go(Phase.IDLE)

    def _opened(self, answer: dict[str, Any]) -> None:
        barriers = answer["barriers"]
        if barriers != self.state.barriers:
            self.state.barriers = barriers
            self._around.keep(self.state, is_urgent=True)
        if answer.get("unpublished"):
            self._pause("its publication is off; ALTER DATABASE ENABLE PUBLICATION turns it on")
            return
        if "waits" in answer:
            self._pause(f"{OLD_TRANSACTIONS}: {'; '.join(answer['waits'][:10])}")
            return
        self._clear()
        self._pauses.succeed()
        assert self._readers is not None
        # At once: as long as nothing of before has ended they see the same.
        self._readers.ask_all({**answer, "do": "join"}, first=1)
        self._window = OpenWindow.of(answer)
        snapshot = self.snapshot
        assert snapshot is not None
        self._begin_snapshot(snapshot, answer["tables"], answer["extents"])
        if snapshot.kind is Kind.INITIAL:
            self._window.seen = self._seen_in(snapshot, self._window.visible)
        snapshot.windows += 1
        self._go(Phase.FOLLOWING)

    def _seen_in(self, snapshot: Snapshot, visible: VisibleSet) -> SeenSet | None:
        """Return what is to be left out behind SNAPSHOT, an initial one, None: nothing.

        That is what the first window saw of which Kafka may have rows. One of them may be gone in
        this window, and the change that took it away has to be sent.
        """
        seen = self.state.seen
        if not self._goes_before_everything:
            self.state.seen = None if seen is None or seen.tables else seen
        elif seen is None:
            entry = self._around.next_entry(self.state.database)
            if entry is not None:
                return seen_by(snapshot, visible, entry.epoch)
            self.state.seen = nothing_seen()
            self._around.keep(self.state, is_urgent=True)
        return self.state.seen

    def _begin_snapshot(
        self, snapshot: Snapshot, published: list[str], extents: Mapping[str, int]
    ) -> None:
        """Look up the tables of SNAPSHOT, or begin those anew that have to be of one moment."""
        database = self.state.database
        if snapshot.tables is None:
            snapshot.tables = self._around.tables_of(snapshot, database, published)
            for table in snapshot.tables:
                table.extent = extents.get(table.name, 0)
            stopped = stop_tables(database, snapshot, snapshot.stopped)
            snapshot.started_us = now_us()
            self._news.add(snapshot, "STARTED")
            for table in snapshot.tables:
                if table.status is Status.SKIPPED:
                    self._skip(snapshot, table, table.why, SKIPPED)
            if stopped:
                self._news.add(snapshot, "ABORTED", why=WAS_STOPPED, of=stopped)
        if snapshot.status is not Status.STOPPED:
            snapshot.status = Status.RUNNING
        renew_tables(snapshot)

    def _look_after(self, snapshot: Snapshot, table: TableProgress, answer: dict[str, Any]) -> None:
        """Deal with TABLE, of which no rows were read, as it is not what it was."""
        if "changed" in answer:
            database = self.state.database
            _log.warning("{}: table {} has changed, and is read anew", database, table.name)
            table.begin_anew()
            table.shape = answer["changed"]
        elif "bad_row" in answer:
            if not self._put_off(snapshot, table, answer["bad_row"]):
                return
        else:
            outcome = SQL_EXCEPTION if answer.get("is_sql") else SKIPPED
            self._skip(snapshot, table, answer.get("refused", GONE), outcome)
        self._read_on()

    def _put_off(self, snapshot: Snapshot, table: TableProgress, why: str) -> bool:
        """Have TABLE wait behind the others, as a row of it can't be sent; False: it is the last
        one, and the window is dropped. What was sent of the others is not sent again."""
        assert self._window is not None
        if torn := table.torn_by_pause:
            self._skip(snapshot, table, f"{why}, and {torn}", SKIPPED)
            return True
        put_off = self._window.put_off
        if table.name not in put_off and len(snapshot.open_tables) > 1:
            put_off.add(table.name)
            put_last(snapshot, table)
            return True
        if snapshot.kind is not Kind.INCREMENTAL:
            self._give_way(snapshot, why)
        self.drop(why)
        return False

    def _skip(self, snapshot: Snapshot, table: TableProgress, why: str, outcome: str) -> None:
        table.status, table.why = Status.SKIPPED, why
        database = self.state.database
        _log.warning("{}: table {} is left out of the snapshot: {}", database, table.name, why)
        self._news.add(snapshot, "TABLE_SCAN_COMPLETED", table, outcome, why)

    def _follow(self) -> bool:
        """Begin to read once the journals that the snapshot sees are out."""
        database, window, readers = self.state.database, self._window, self._readers
        assert window is not None
        assert readers is not None
        if not (self._around.is_at_rest(database) and self._around.is_placed(database)):
            return False
        if readers.are_awaited:
            return False
        entry = self._around.next_entry(database)
        if not self._goes_before_everything:
            if entry is not None and window.sees(entry, self._around.plan):
                return False
            if entry is None and not window.is_decided(
                self._around.plan.directory, database, self._around.wake
            ):
                return False
        window.cut = window.cut_before(entry, self._around.place_of(database))
        snapshot = self.snapshot
        assert snapshot is not None
        is_in_parts = snapshot.kind is Kind.INCREMENTAL
        facts = {
            "cut": window.cut,
            "uuid": window.uuid.bytes,
            "is_incremental": is_in_parts,
            "numbers": self._attempts.numbers() if is_in_parts else None,
        }
        window.ahead = ReadAhead(readers, snapshot, facts)
        window.ahead.look_for_last()
        return self._read_on()

    def _read_on(self) -> bool:
        """Have the next batch sent, or wait for it, or end the window where there is none."""
        snapshot, window = self.snapshot, self._window
        assert snapshot is not None
        assert window is not None
        assert window.ahead is not None
        tables = snapshot.open_tables
        if not tables:
            self._end(snapshot)
            self._close()
            return True
        tables[0].status = Status.RUNNING
        answer = window.ahead.next(
            self._growth.rows_of(snapshot, self._around.config.snapshots), window.rows
        )
        if answer is None:
            self._go(Phase.READING)
        elif "failed" in answer:
            self._take_failure(answer)
        else:
            self._read(answer)
        return True

    def _read_ahead(self) -> None:
        """Have readers go on while rows are sent, unless the window is to end behind these."""
        snapshot, window = self.snapshot, self._window
        if snapshot is None or window is None or window.ahead is None:
            return
        if self.state.is_paused or snapshot.status is Status.STOPPED:
            return
        is_quiet = self._growth.times > 1 and self._around.next_entry(self.state.database) is None
        if snapshot.kind is not Kind.INCREMENTAL or is_quiet:
            window.ahead.ask(self._growth.rows_of(snapshot, self._around.config.snapshots))

    def _read(self, answer: dict[str, Any]) -> None:
        window, snapshot = self._window, self.snapshot
        assert window is not None
        assert window.cut is not None
        assert snapshot is not None
        table = table_of(snapshot, answer["table"])
        if "rows" not in answer:
            self._look_after(snapshot, table, answer)
            return
        table.shape = answer["shape"]
        self._attempts.note_read(answer["took_s"])
        self._news.add_rows(snapshot, table, answer)
        batch = Batch.of(answer, self.state.database, window.uuid, window.cut, self._news.messages)
        self._batch = batch
        is_known = window.seen is None or self.state.seen is not None
        if not is_known and not self._around.config.transactional:
            # Who comes after a crash has to know what Kafka may have rows of.
            self.state.seen = window.seen
            self._around.keep(self.state, is_urgent=True)
        self._is_committed = False
        self._go(Phase.SENDING)
        topics = dict.fromkeys(message[0] for message in batch.messages)
        try:
            for topic in topics:
                self._around.plan.renderer.writer.require_topic(topic)
        except Exception as error:  # Obstacle: it is tried again with the next window
            self.drop(str(error))
            return
        self._around.send(batch, partial(self._begin_sending, batch), partial(self._sent, batch))
        self._read_ahead()

    def _begin_sending(self, batch: Batch) -> RedeliverySend | Outcome:
        if self._batch is not batch:
            return Outcome(False, "its window is over")
        if self._is_committed:
            return Outcome(True, "")
        plan = self._around.plan
        return RedeliverySend(plan, BatchEvents(plan, batch, partial(self._record, batch)))

    def _record(self, batch: Batch) -> tuple[bytes, bytes]:
        """Return what the offset topic says once BATCH is there."""
        window = self._window
        assert window is not None
        state = self.state.copy()
        state.seen = window.seen or state.seen
        apply_batch(state.waiting[0], batch)
        state.serial = self.sent_serial = max(self.sent_serial, self.state.serial) + 1
        return self._around.record_of(state)

    def take_known(self, state: SnapshotState) -> None:
        """Kafka has STATE, which is newer than what was known here."""
        if self.phase is Phase.SENDING and state.serial == self.sent_serial:
            self._is_committed = True
            return
        self.drop("Kafka knows of more")
        self.state = state
        self._left_out = left_out_by(state)
        self._around.keep(state, is_urgent=True)

    def _sent(self, batch: Batch, outcome: Outcome) -> None:
        if self._batch is not batch:
            return
        self._batch = None
        snapshot, window = self.snapshot, self._window
        assert snapshot is not None
        assert window is not None
        if not outcome.is_sent:
            self.drop(outcome.text)
            return
        self.state.seen = window.seen or self.state.seen
        apply_batch(snapshot, batch)
        window.rows += batch.rows
        self.state.serial = max(self.state.serial, self.sent_serial) + 1
        batch.report()
        self._news.note_sent()
        self._around.keep(self.state, is_urgent=False)
        self._voids = 0
        self._attempts.get_on(snapshot, table_of(snapshot, batch.table))
        if self._goes_on(snapshot, window):
            self._read_on()
        else:
            self._close()

    def _give_way(self, snapshot: Snapshot, why: str, *, keeps_torn: bool = False) -> None:
        """Let the changes go on that wait for SNAPSHOT, for this reason; see `give_way`."""
        was = snapshot.kind
        for table in give_way(self.state, snapshot, why, keeps_torn=keeps_torn):
            self._skip(snapshot, table, table.why, SKIPPED)
        self._left_out = left_out_by(self.state)
        if was is not Kind.INCREMENTAL:
            snapshot.why = f"it began as {was}, and went on part by part: {why}"
            _log.warning("{}: snapshot {}: {}", self.state.database, snapshot.id, snapshot.why)
        self._around.keep(self.state, is_urgent=True)

    def _goes_on(self, snapshot: Snapshot, window: OpenWindow) -> bool:
        """Tell whether the next batch is read in the same window."""
        if self.state.is_paused or snapshot.status is Status.STOPPED:
            return False
        if not snapshot.open_tables:
            return True
        if is_of_one_moment(snapshot):
            return not self._gives_way(snapshot)
        journal_waits = self._around.next_entry(self.state.database) is not None
        self._growth.note(journal_waits=journal_waits)
        return not journal_waits and monotonic() - window.began_at < _WINDOW_S

    def _gives_way(self, snapshot: Snapshot) -> bool:
        """Give way if changes that wait for SNAPSHOT need the room; tell whether it did."""
        if not (is_of_one_moment(snapshot) and self._around.is_crowded()):
            return False
        self._give_way(snapshot, CROWDED)
        return True

    def _end(self, snapshot: Snapshot) -> None:
        """SNAPSHOT is complete, or all its tables were stopped, or it has none."""
        if not snapshot.tables:
            self._end_without_tables(snapshot)
            return
        status = Status.COMPLETED if self._news.has_end else end_of(snapshot)
        self._end_as(snapshot, status, is_first=True)
        self.state.serial = max(self.state.serial, self.sent_serial) + 1
        self._around.keep(self.state, is_urgent=True)
        _log.notice("{}: {}", self.state.database, told_end(snapshot, status))
        if status is Status.STOPPED:
            self._news.add(snapshot, "ABORTED", why="all its tables were stopped")
        elif not self._news.has_end:
            self._news.add(snapshot, "COMPLETED")
        self._news.send()

    def _close(self) -> None:
        assert self._readers is not None
        self._window = None
        self._go(Phase.CLOSING)
        self._readers.ask_all({"do": "close"})

    # What goes wrong

    def _pause(self, why: str) -> None:
        """Wait, with the window closed, for what somebody else has to do."""
        self._tell(why)
        self._pauses.fail()
        self._end_readers()
        self._go(Phase.IDLE)

    def _tell(self, why: str) -> None:
        if why != self.waits_for:
            _log.warning("{}: the snapshot waits: {}", self.state.database, why)
        self.waits_for = why
        text = f"{self.state.database}: the snapshot waits: {why}"
        self._around.plan.statistics.trouble(SNAPSHOT + self.state.database, "waiting", text)

    def _clear(self) -> None:
        if self.waits_for:
            self.waits_for = ""
            self._around.plan.statistics.clear(SNAPSHOT + self.state.database)

    def _drop_window(self, why: str) -> None:
        snapshot = self.snapshot
        if self._batch is not None:
            self._around.cancel(self._batch)
            self._batch = None
        self._news.forget_rows()
        if self._window is not None and snapshot is not None:
            _log.info("{}: a window of the snapshot is dropped: {}", self.state.database, why)
        self._window = None

    def drop(self, why: str) -> None:
        """Drop the window, and end the reader process; the next one begins after a pause."""
        self._drop_window(why)
        self._fail(why)

    def _fail(self, why: str) -> None:
        self._end_readers()
        self._go(Phase.IDLE)
        if self.snapshot is not None:
            self._attempts.fail()
            self._tell(why)

    def _end_readers(self) -> None:
        if self._readers is not None:
            self._readers.leave()
            self._readers = None

    def close(self) -> None:
        """Give everything back: the shipper ends."""
        self._batch = self._window = None
        if self._readers is not None:
            self._readers.close()
            self._readers = None
        self.phase = Phase.IDLE
