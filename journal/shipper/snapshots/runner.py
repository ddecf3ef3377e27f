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
from firebird_cdc.journal.shipper.delivery.resend import Outcome, RedeliverySend
from firebird_cdc.journal.shipper.snapshots.ahead import VOID, ReadAhead
from firebird_cdc.journal.shipper.snapshots.notifications import SKIPPED, SQL_EXCEPTION
from firebird_cdc.journal.shipper.snapshots.outcomes import Outcomes
from firebird_cdc.journal.shipper.snapshots.progress import (
    CROWDED,
    OLD_TRANSACTIONS,
    WAS_STOPPED,
    apply_batch,
    follow_database,
    is_of_one_moment,
    left_out_by,
    nothing_seen,
    renew_tables,
    seen_by,
    stop_tables,
    table_of,
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
from firebird_cdc.journal.shipper.snapshots.waiting_journals import WaitingJournals
from firebird_cdc.journal.shipper.snapshots.windows import (
    OpenWindow,
    Phase,
)
from firebird_cdc.journal.shipper.snapshots.work import SnapshotWork
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
    """Takes the snapshots of one database, which STATE has, one after the other."""

    def __init__(self, state: SnapshotState, surroundings: Surroundings) -> None:
        self.work = SnapshotWork(state, surroundings)
        self._around = surroundings
        self.journals = WaitingJournals(self.work)
        self.outcomes = Outcomes(self.work, self.journals)

    @property
    def awaits_answers(self) -> bool:
        """Tell whether Kafka's answers are what it waits for: journals or rows are under way."""
        return self.work.phase in (Phase.FOLLOWING, Phase.SENDING)

    @property
    def wants_to_go_on(self) -> bool:
        """Tell whether something is to be done that waits for nobody else."""
        if self.work.is_busy:
            return True
        is_due = (
            self.work.snapshot is not None
            and not self.work.state.is_paused
            and not self.work.waits_for
        )
        return is_due and not self._around.is_halted(self.work.state.database)

    # The steps

    def advance(self) -> bool:
        """Do what can be done now; tell whether something was."""
        moved = False
        while self.work.readers is not None and (taken := self.work.readers.take()) is not None:
            self._take(*taken)
            moved = True
        now = monotonic()
        if self.work.phase is Phase.IDLE:
            return self._begin(now) or moved
        lasts_s = now - self.work.since
        depends = self.work.phase in (Phase.FOLLOWING, Phase.SENDING)  # on Kafka
        if depends and lasts_s > _AWAY_S and self._around.is_away():
            self.work.drop("Kafka is away")
            return True
        if self.work.phase is Phase.READING and lasts_s > _LOOKS_S and self._ends_reading():
            return True
        if self.work.phase is not Phase.SENDING and lasts_s > self._limit_s:
            self._give_up()
            return True
        if self.work.phase is Phase.FOLLOWING:
            return self._follow() or moved
        return moved

    @property
    def _limit_s(self) -> float:
        """Time after which the step under way is given up."""
        snapshot = self.work.snapshot
        is_in_parts = snapshot is not None and snapshot.kind is Kind.INCREMENTAL
        waits = self._around.next_entry(self.work.state.database) is not None
        return self.work.attempts.limit_s(self.work.phase, is_in_parts=is_in_parts, waits=waits)

    def _ends_reading(self) -> bool:
        """Drop the window, though rows are read, if nobody wants them, or changes need the room."""
        snapshot = self.work.snapshot
        if snapshot is None or self.work.state.is_paused or snapshot.status is Status.STOPPED:
            self.work.drop_window("its rows are not wanted any more")
            self.work.end_readers()
            self.work.go(Phase.IDLE)
            return True
        if self.outcomes.gives_way(snapshot):
            self.work.drop(CROWDED)
            return True
        return False

    def _give_up(self) -> None:
        """Drop a step that takes too long."""
        if self.work.phase is Phase.FOLLOWING:
            self.work.drop("the changes that come before its rows are not delivered")
            return
        self.work.attempts.give_up(self.work.phase)
        why = f"the reader process does not answer ({self.work.phase.name.lower()})"
        if self.work.phase is not Phase.ATTACHING or not self.outcomes.is_owed(why):
            self._lose(why)

    def _begin(self, now: float) -> bool:
        snapshot = self.work.snapshot
        database = self.work.state.database
        if snapshot is None or self.work.state.is_paused:
            self.work.clear()
            self.work.end_readers()
            return False
        if not self._around.is_placed(database):
            self._let_go(now)
            return False
        if snapshot.tables is not None and not snapshot.open_tables:
            self.outcomes.end(
                snapshot
            )  # Kafka had all of it when the shipper, or one before, was ended
            return True
        if snapshot.status is Status.STOPPED:
            self.outcomes.end_stopped(snapshot)
            return True
        if not (self.work.attempts.is_due and self.work.pauses.is_over) or now < self.work.look_at:
            self._let_go(now)
            return False
        wanted = self._readers_for(snapshot)
        if self.work.readers is not None and len(self.work.readers) != wanted:
            self.work.end_readers()
        if self.work.readers is None:
            try:
                self.work.readers = Readers(self._around.setup(database), self._around.wake, wanted)
            except (OSError, ConfigError) as error:
                why = f"the reader process can't be started: {error}"
                if not self.outcomes.is_owed(why):
                    self.work.fail(why)
                return True
            self.work.go(Phase.ATTACHING)
            self.work.readers.ask_all({"do": "attach"})
        else:
            self.work.go(Phase.OPENING)
            question = {
                "do": "open",
                "barriers": self.work.state.barriers,
                "wants_tables": snapshot.tables is None,
                "patience_s": _SETTLES_S if wanted > 1 else 0,
            }
            self.work.readers.ask(0, question)
        return True

    def _readers_for(self, snapshot: Snapshot) -> int:
        """Return how many readers SNAPSHOT has. Parts of an incremental one are over before others
        have joined it."""
        return 1 if snapshot.kind is Kind.INCREMENTAL else self._around.config.snapshots.readers

    def _let_go(self, now: float) -> None:
        """Have nobody attached who does nothing: a database in use can't be dropped."""
        if self.work.readers is not None and now - self.work.since > _IDLE_S:
            self.work.end_readers()

    def _take(self, reader: int, answer: dict[str, Any]) -> None:
        readers, window = self.work.readers, self.work.window
        assert readers is not None
        if window is not None and window.ahead is not None:
            window.ahead.take(reader, answer)
            if self.work.phase is Phase.READING:
                self._read_on()
            else:
                self._read_ahead()
            return
        if self.work.phase is Phase.CLOSING and answer.get("kind") != ENDED:
            if not readers.are_awaited:  # what was read ahead is of no use any more
                self.work.go(Phase.IDLE)
            return
        if "failed" in answer:
            self._take_failure(answer)
            return
        match self.work.phase:
            case Phase.ATTACHING:
                self._attached(answer)
            case Phase.OPENING:
                self._opened(answer)
            case Phase.FOLLOWING if "joined" in answer:
                pass
            case _:
                self.work.drop("the reader process answers out of turn")

    def _take_failure(self, answer: dict[str, Any]) -> None:
        text, kind = answer["failed"], answer["kind"]
        if kind == VOID:  # chance, nearly always: at once again
            self.work.voids += 1
            self.work.drop_window(text)
            if self.work.voids > _MOST_VOIDS:
                self.work.pause(text)
            else:
                self._close()
            return
        if self.work.phase is Phase.ATTACHING and kind != ENDED and self.outcomes.is_owed(text):
            return
        self._lose(text)

    def _lose(self, why: str) -> None:
        """Drop the window, as a reader has failed. Rows that it has sent are not sent again and
        again: before that the snapshot goes on part by part."""
        snapshot, window = self.work.snapshot, self.work.window
        if snapshot is not None and window is not None and window.rows:
            self.work.attempts.lose_rows()
            if self.work.attempts.are_too_many and snapshot.kind is not Kind.INCREMENTAL:
                self.outcomes.give_way(snapshot, why, keeps_torn=True)
        self.work.drop(why)

    def _attached(self, answer: dict[str, Any]) -> None:
        if answer["path"] != self.work.state.database:
            why = f"{answer['path']} was attached to, in place of {self.work.state.database}"
            if not self.outcomes.is_owed(why):
                self.work.drop(why)
            return
        if follow_database(self.work.state, answer["guid"].hex()):
            database = self.work.state.database
            _log.warning("{}: it is another database now, and its rows are read anew", database)
            self._around.keep(self.work.state, is_urgent=True)
        snapshot = self.work.snapshot
        if snapshot is not None and snapshot.status is Status.OWED:
            snapshot.status = Status.WAITING
        assert self.work.readers is not None
        if not self.work.readers.are_awaited:
            self.work.go(Phase.IDLE)

    def _opened(self, answer: dict[str, Any]) -> None:
        barriers = answer["barriers"]
        if barriers != self.work.state.barriers:
            self.work.state.barriers = barriers
            self._around.keep(self.work.state, is_urgent=True)
        if answer.get("unpublished"):
            self.work.pause("its publication is off; ALTER DATABASE ENABLE PUBLICATION turns it on")
            return
        if "waits" in answer:
            self.work.pause(f"{OLD_TRANSACTIONS}: {'; '.join(answer['waits'][:10])}")
            return
        self.work.clear()
        self.work.pauses.succeed()
        assert self.work.readers is not None
        # At once: as long as nothing of before has ended they see the same.
        self.work.readers.ask_all({**answer, "do": "join"}, first=1)
        self.work.window = OpenWindow.of(answer)
        snapshot = self.work.snapshot
        assert snapshot is not None
        self._begin_snapshot(snapshot, answer["tables"], answer["extents"])
        if snapshot.kind is Kind.INITIAL:
            self.work.window.seen = self._seen_in(snapshot, self.work.window.visible)
        snapshot.windows += 1
        self.work.go(Phase.FOLLOWING)

    def _seen_in(self, snapshot: Snapshot, visible: VisibleSet) -> SeenSet | None:
        """Return what is to be left out behind SNAPSHOT, an initial one, None: nothing.

        That is what the first window saw of which Kafka may have rows. One of them may be gone in
        this window, and the change that took it away has to be sent.
        """
        seen = self.work.state.seen
        if not self.journals.rows_come_first:
            self.work.state.seen = None if seen is None or seen.tables else seen
        elif seen is None:
            entry = self._around.next_entry(self.work.state.database)
            if entry is not None:
                return seen_by(snapshot, visible, entry.epoch)
            self.work.state.seen = nothing_seen()
            self._around.keep(self.work.state, is_urgent=True)
        return self.work.state.seen

    def _begin_snapshot(
        self, snapshot: Snapshot, published: list[str], extents: Mapping[str, int]
    ) -> None:
        """Look up the tables of SNAPSHOT, or begin those anew that have to be of one moment."""
        database = self.work.state.database
        if snapshot.tables is None:
            snapshot.tables = self._around.tables_of(snapshot, database, published)
            for table in snapshot.tables:
                table.extent = extents.get(table.name, 0)
            stopped = stop_tables(database, snapshot, snapshot.stopped)
            snapshot.started_us = now_us()
            self.work.news.add(snapshot, "STARTED")
            for table in snapshot.tables:
                if table.status is Status.SKIPPED:
                    self.outcomes.skip(snapshot, table, table.why, SKIPPED)
            if stopped:
                self.work.news.add(snapshot, "ABORTED", why=WAS_STOPPED, of=stopped)
        if snapshot.status is not Status.STOPPED:
            snapshot.status = Status.RUNNING
        renew_tables(snapshot)

    def _look_after(self, snapshot: Snapshot, table: TableProgress, answer: dict[str, Any]) -> None:
        """Deal with TABLE, of which no rows were read, as it is not what it was."""
        if "changed" in answer:
            database = self.work.state.database
            _log.warning("{}: table {} has changed, and is read anew", database, table.name)
            table.begin_anew()
            table.shape = answer["changed"]
        elif "bad_row" in answer:
            if not self.outcomes.put_off(snapshot, table, answer["bad_row"]):
                return
        else:
            outcome = SQL_EXCEPTION if answer.get("is_sql") else SKIPPED
            self.outcomes.skip(snapshot, table, answer.get("refused", GONE), outcome)
        self._read_on()

    def _follow(self) -> bool:
        """Begin to read once the journals that the snapshot sees are out."""
        database, window, readers = (
            self.work.state.database,
            self.work.window,
            self.work.readers,
        )
        assert window is not None
        assert readers is not None
        if not (self._around.is_at_rest(database) and self._around.is_placed(database)):
            return False
        if readers.are_awaited:
            return False
        entry = self._around.next_entry(database)
        if not self.journals.rows_come_first:
            if entry is not None and window.sees(entry, self._around.plan):
                return False
            if entry is None and not window.is_decided(
                self.work.look_at_journals(), self._around.wake
            ):
                return False
        window.cut = window.cut_before(entry, self._around.place_of(database))
        snapshot = self.work.snapshot
        assert snapshot is not None
        is_in_parts = snapshot.kind is Kind.INCREMENTAL
        facts = {
            "cut": window.cut,
            "uuid": window.uuid.bytes,
            "is_incremental": is_in_parts,
            "numbers": self.work.attempts.numbers() if is_in_parts else None,
        }
        window.ahead = ReadAhead(readers, snapshot, facts)
        window.ahead.look_for_last()
        return self._read_on()

    def _read_on(self) -> bool:
        """Have the next batch sent, or wait for it, or end the window where there is none."""
        snapshot, window = self.work.snapshot, self.work.window
        assert snapshot is not None
        assert window is not None
        assert window.ahead is not None
        tables = snapshot.open_tables
        if not tables:
            self.outcomes.end(snapshot)
            self._close()
            return True
        tables[0].status = Status.RUNNING
        answer = window.ahead.next(
            self.work.growth.rows_of(snapshot, self._around.config.snapshots), window.rows
        )
        if answer is None:
            self.work.go(Phase.READING)
        elif "failed" in answer:
            self._take_failure(answer)
        else:
            self._read(answer)
        return True

    def _read_ahead(self) -> None:
        """Have readers go on while rows are sent, unless the window is to end behind these."""
        snapshot, window = self.work.snapshot, self.work.window
        if snapshot is None or window is None or window.ahead is None:
            return
        if self.work.state.is_paused or snapshot.status is Status.STOPPED:
            return
        is_quiet = (
            self.work.growth.times > 1 and self._around.next_entry(self.work.state.database) is None
        )
        if snapshot.kind is not Kind.INCREMENTAL or is_quiet:
            window.ahead.ask(self.work.growth.rows_of(snapshot, self._around.config.snapshots))

    def _read(self, answer: dict[str, Any]) -> None:
        window, snapshot = self.work.window, self.work.snapshot
        assert window is not None
        assert window.cut is not None
        assert snapshot is not None
        table = table_of(snapshot, answer["table"])
        if "rows" not in answer:
            self._look_after(snapshot, table, answer)
            return
        table.shape = answer["shape"]
        self.work.attempts.note_read(answer["took_s"])
        self.work.news.add_rows(snapshot, table, answer)
        batch = Batch.of(
            answer, self.work.state.database, window.uuid, window.cut, self.work.news.messages
        )
        self.work.batch = batch
        is_known = window.seen is None or self.work.state.seen is not None
        if not is_known and not self._around.config.transactional:
            # Who comes after a crash has to know what Kafka may have rows of.
            self.work.state.seen = window.seen
            self._around.keep(self.work.state, is_urgent=True)
        self.work.is_committed = False
        self.work.go(Phase.SENDING)
        topics = dict.fromkeys(message[0] for message in batch.messages)
        try:
            for topic in topics:
                self._around.plan.renderer.writer.require_topic(topic)
        except Exception as error:  # Obstacle: it is tried again with the next window
            self.work.drop(str(error))
            return
        self._around.send(batch, partial(self._begin_sending, batch), partial(self._sent, batch))
        self._read_ahead()

    def _begin_sending(self, batch: Batch) -> RedeliverySend | Outcome:
        if self.work.batch is not batch:
            return Outcome(False, "its window is over")
        if self.work.is_committed:
            return Outcome(True, "")
        plan = self._around.plan
        return RedeliverySend(plan, BatchEvents(plan, batch, partial(self._record, batch)))

    def _record(self, batch: Batch) -> tuple[bytes, bytes]:
        """Return what the offset topic says once BATCH is there."""
        window = self.work.window
        assert window is not None
        state = self.work.state.copy()
        state.seen = window.seen or state.seen
        apply_batch(state.waiting[0], batch)
        state.serial = self.work.sent_serial = (
            max(self.work.sent_serial, self.work.state.serial) + 1
        )
        return self._around.record_of(state)

    def take_known(self, state: SnapshotState) -> None:
        """Kafka has STATE, which is newer than what was known here."""
        if self.work.phase is Phase.SENDING and state.serial == self.work.sent_serial:
            self.work.is_committed = True
            return
        self.work.drop("Kafka knows of more")
        self.work.state = state
        self.work.left_out = left_out_by(state)
        self._around.keep(state, is_urgent=True)

    def _sent(self, batch: Batch, outcome: Outcome) -> None:
        if self.work.batch is not batch:
            return
        self.work.batch = None
        snapshot, window = self.work.snapshot, self.work.window
        assert snapshot is not None
        assert window is not None
        if not outcome.is_sent:
            self.work.drop(outcome.text)
            return
        self.work.state.seen = window.seen or self.work.state.seen
        apply_batch(snapshot, batch)
        window.rows += batch.rows
        self.work.state.serial = max(self.work.state.serial, self.work.sent_serial) + 1
        batch.report()
        self.work.news.note_sent()
        self._around.keep(self.work.state, is_urgent=False)
        self.work.voids = 0
        self.work.attempts.get_on(snapshot, table_of(snapshot, batch.table))
        if self._goes_on(snapshot, window):
            self._read_on()
        else:
            self._close()

    def _goes_on(self, snapshot: Snapshot, window: OpenWindow) -> bool:
        """Tell whether the next batch is read in the same window."""
        if self.work.state.is_paused or snapshot.status is Status.STOPPED:
            return False
        if not snapshot.open_tables:
            return True
        if is_of_one_moment(snapshot):
            return not self.outcomes.gives_way(snapshot)
        journal_waits = self._around.next_entry(self.work.state.database) is not None
        self.work.growth.note(journal_waits=journal_waits)
        return not journal_waits and monotonic() - window.began_at < _WINDOW_S

    def _close(self) -> None:
        assert self.work.readers is not None
        self.work.window = None
        self.work.go(Phase.CLOSING)
        self.work.readers.ask_all({"do": "close"})
