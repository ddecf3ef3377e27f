"""Snapshots of all databases of a journal folder: their states, and who may ask for one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

import logbook

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.topics import SHARED_TOPICS, BadName, read_owners
from firebird_cdc.journal.folder.disk_usage import measure_folder
from firebird_cdc.journal.folder.ledger_lock import read_database
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.subjects import OVERRIDE
from firebird_cdc.journal.format import RowChange
from firebird_cdc.journal.shipper.delivery.resend import Outcome, RedeliverySend
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.offset_topic import snapshot_record
from firebird_cdc.journal.shipper.snapshots.channels import SOURCE
from firebird_cdc.journal.shipper.snapshots.course import Course
from firebird_cdc.journal.shipper.snapshots.figures import missing_in
from firebird_cdc.journal.shipper.snapshots.intake import Signals
from firebird_cdc.journal.shipper.snapshots.modes import ORIGIN, SnapshotPolicy
from firebird_cdc.journal.shipper.snapshots.notifications import Notifications, Subject
from firebird_cdc.journal.shipper.snapshots.progress import WAS_STOPPED, stop_tables
from firebird_cdc.journal.shipper.snapshots.rows import Batch
from firebird_cdc.journal.shipper.snapshots.runner import SnapshotRunner
from firebird_cdc.journal.shipper.snapshots.state import (
    FOLDER,
    Kind,
    Snapshot,
    SnapshotState,
    StateFolder,
    Status,
    TableProgress,
)
from firebird_cdc.journal.shipper.snapshots.waiting_journals import WaitingJournals
from firebird_cdc.journal.shipper.tasks.canary import client_library
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.signals import (
    Matched,
    condition_for,
    describe_unmatched,
    idle_conditions,
    matches,
    matching,
    may_match,
)
from firebird_cdc.journal.snapshot.worker import Setup

if TYPE_CHECKING:
    from firebird_cdc.journal.shipper.delivery.base import Delivery

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.service")

_MEASURE_S = 0.2

_WRITE_S = 0.5
"""Progress is written after so long at the earliest; what is lost of it is sent again."""


class Snapshots:
    """The snapshots of a journal folder. Belongs to the shipping thread.

    WAKE: ends the wait of that thread, from any other one.
    """

    title = ""  # batches are too many to be told of

    def __init__(
        self, config: ConnectorConfig, delivery: Delivery, wake: Callable[[], object]
    ) -> None:
        self.config = config
        self.plan = delivery.plan
        self._delivery = delivery
        self._wake = wake
        self._files = StateFolder(config.journal_directory)
        self._policy = SnapshotPolicy(config.snapshots)
        self._runners: dict[str, SnapshotRunner] = {}
        self._courses: dict[str, Course] = {}
        self._unwritten: dict[str, float] = {}
        self._notifications = Notifications(config, self.plan.renderer.writer)
        self._signals = Signals(config, self._files.folder, self)
        self._known: Mapping[str, bytes] = {}
        self._met: set[str] = set()
        self._has_met = False  # those that were known at the start
        self._open: set[UUID] = set()  # batches that were begun, and not answered
        self._signals_wait = False
        self._started = monotonic()
        self._is_crowded = False
        self._next_measure = 0.0

    def load(self) -> None:
        """Take over what the folder says. Raises ShipError."""
        self.close()
        former = {database: runner.work.state for database, runner in self._runners.items()}
        self._runners.clear()
        self._courses.clear()
        self._met.clear()
        self._has_met = False
        for figures in self.plan.statistics.databases.values():
            figures.snapshot = None
        try:
            for state in self._files.read():
                # A folder that is back may lack what was since, and Kafka knows of it.
                known = former.pop(state.database, state)
                self._add(known if known.serial > state.serial else state)
            for state in former.values():
                self._add(state)
                self.keep(state, is_urgent=True)
        except (OSError, ValueError) as error:
            raise ShipError(f"the state of snapshots can't be read: {error}") from error

    def _add(self, state: SnapshotState) -> SnapshotRunner:
        self._know_folder(state)
        runner = self._runners[state.database] = SnapshotRunner(state, self)
        figures = self.plan.statistics.database(state.database)
        self._courses[state.database] = Course(runner, figures)
        if queue := self._delivery.queues.get(state.database):
            queue.rows = runner.journals
        return runner

    def _know_folder(self, state: SnapshotState) -> None:
        """Forget places of STATE that are of another folder, whose place this one has taken: here
        numbers begin anew, and what has one of those would be taken for heard."""
        folder = self._delivery.offsets.folder
        if state.places.get(FOLDER, folder) != folder:
            state.places.clear()
        state.places[FOLDER] = folder

    def meet(self, database: str) -> WaitingJournals:
        """Return how journals of DATABASE, which is captured, wait for rows."""
        return self._meet(database).journals

    def _meet(self, database: str) -> SnapshotRunner:
        """Return what runs the snapshots of DATABASE."""
        runner = self._runners.get(database)
        if runner is None:
            runner = self._add(SnapshotState(database))
        if database not in self._met:
            self._met.add(database)
            runner.work.is_decided = not self._policy.asks_for_place
        return runner

    def begin(self, database: str) -> None:
        """Have what ``snapshot.mode`` says of DATABASE taken, without waiting for a change."""
        runner = self._meet(database)
        if not runner.work.is_decided:
            self._decide(database, runner)

    def _decide(self, database: str, runner: SnapshotRunner) -> None:
        """Have what ``snapshot.mode`` says of DATABASE taken, now that Kafka is known to have what
        it has."""
        runner.work.is_decided = True
        state = runner.work.state
        due = self._policy.due(
            database,
            has_any=bool(state.waiting or state.past),
            is_new=self.place_of(database) is None,
        )
        if due is not None and not any(each.origin == ORIGIN for each in state.waiting):
            state.waiting.append(due)
            delay_s = self.config.snapshots.delay_ms / 1000
            runner.work.wait_until(self._started + delay_s)
            # Changes may go out before it has begun, and then it could not be told to be due.
            self.keep(state, is_urgent=True)
        counts = self.plan.statistics.database(database).snapshot_counts
        counts.is_skipped = not (state.waiting or state.past)

    def note_loss(self, database: str, kind: str, place: Sequence[int]) -> None:
        """Have the rows of DATABASE read again, if ``snapshot.mode`` says so, as changes at PLACE
        are not in Kafka. KIND: of what PLACE is, which only grows; each is heard once."""
        if not self._policy.mends_losses:
            return
        runner = self._meet(database)
        places = runner.work.state.places
        if tuple(place) <= tuple(places.get(kind, ())):
            return
        places[kind] = list(place)
        if not any(
            each.origin == ORIGIN and each.status in (Status.WAITING, Status.OWED)
            for each in runner.work.state.waiting
        ):
            runner.work.state.waiting.append(self._policy.mending())
        self._accept(runner)

    def _look_for_losses(self) -> None:
        """Note what the folder's memory has of journals that Kafka lacks."""
        if self._policy.mends_losses:
            for database in list(self._runners):
                if noticed_us := self._delivery.offsets.loss_noticed_us(database):
                    self.note_loss(database, ORIGIN, [noticed_us])

    def _adopt(self, records: Mapping[str, bytes]) -> None:
        """Kafka has RECORDS, by database: what it knows of holds, if it is newer."""
        for database, content in records.items():
            try:
                state = SnapshotState.from_json(content)
            except ValueError as error:
                _log.error("{}: Kafka's record of its snapshots: {}", database, error)
                continue
            runner = self._runners.get(database)
            if runner is None:
                self.keep(self._add(state).work.state, is_urgent=True)
            elif state.serial > runner.work.state.serial:
                self._know_folder(state)
                runner.take_known(state)

    @property
    def is_busy(self) -> bool:
        """Tell whether something is to be done that waits for nobody else."""
        return any(runner.wants_to_go_on for runner in self._runners.values())

    @property
    def awaits_answers(self) -> bool:
        """Tell whether a database's changes are held up until Kafka has answered."""
        return any(runner.awaits_answers for runner in self._runners.values())

    @property
    def progress(self) -> int:
        """Number that differs while a snapshot goes on."""
        return sum(runner.work.state.serial for runner in self._runners.values())

    def advance(self) -> bool:
        """Do what can be done now; tell whether something was."""
        moved = False
        if self._delivery.is_placed and self._known is not self._delivery.offsets.snapshots:
            self._known = self._delivery.offsets.snapshots
            self._adopt(self._known)
        if self._delivery.is_placed and not self._has_met and self._policy.asks_for_place:
            self._has_met = True
            gone = {database for database, is_gone in self._files_of_databases() if is_gone}
            for database in self.databases:
                if database not in gone:
                    self._meet(database)
        for database, runner in list(self._runners.items()):
            if self._delivery.is_placed and not runner.work.is_decided:
                self._decide(database, runner)
            moved = runner.advance() or moved
            obstacle = self._obstacle(database) if runner.work.snapshot is not None else ""
            self._courses[database].look(obstacle)
        if self._delivery.is_placed:
            self._look_for_losses()
        self._write_due()
        return moved

    def close(self) -> None:
        """End the reader processes; what is not sent is read again."""
        for runner in self._runners.values():
            runner.work.close()
        self._signals.close()
        for database in list(self._unwritten):
            self._write(self._runners[database].work.state)

    # Requests

    def take_signals(self) -> None:
        """Look for signals, but while it is open what becomes of rows: Kafka then has a state that
        this one must not get past. Then they are looked for before the next rows go."""
        self._signals_wait = bool(self._open)
        if self._delivery.is_placed and not self._signals_wait:
            self._signals.take()

    def take_row(self, database: str, change: RowChange, place: tuple[int, int, int]) -> None:
        """Follow the signal that CHANGE, at PLACE of DATABASE's history, may have inserted into its
        signal table, unless that was done before."""
        runner = self._runners.get(database) or self._add(SnapshotState(database))
        last = runner.work.state.places.get(SOURCE)
        if last is not None and place <= tuple(last):
            return
        runner.work.state.places[SOURCE] = place
        self._signals.take_row(database, change)
        self._accept(runner)

    def refuse(self, id: str, type: str, channel: str, why: str) -> None:
        """Tell that a signal is not followed."""
        message = self._notifications.signal_refused(id, type, channel, why)
        self.tell([] if message is None else [message])

    def request(self, database: str, snapshot: Snapshot) -> bool:
        """Have SNAPSHOT of DATABASE taken; False: its signal was read before."""
        runner = self._runners.get(database) or self._add(SnapshotState(database))
        state = runner.work.state
        if any(each.key == snapshot.key for each in (*state.waiting, *state.past)):
            return False
        state.waiting.append(snapshot)
        self._accept(runner)
        return True

    @property
    def databases(self) -> list[str]:
        """The databases that are known."""
        offsets = self._delivery.offsets
        known = {*self._runners, *self._delivery.queues, *offsets.known, *offsets.databases}
        known |= {database for database, is_gone in self._files_of_databases() if not is_gone}
        return sorted(known)

    def _files_of_databases(self) -> Iterator[tuple[str, bool]]:
        """Yield each database that was captured in this folder, and whether its file is gone."""
        for lock in (self._state_folder / "databases").glob("*.lock"):
            with suppress(OSError):
                database, gone = read_database(lock)
                if database:
                    yield database, bool(gone)

    def stop(
        self, database: str, collections: tuple[str, ...] | None, *, is_of_any_kind: bool
    ) -> int:
        """Take tables out of the snapshots of DATABASE, None: end these; return how many. Without
        IS_OF_ANY_KIND only out of incremental ones."""
        runner = self._runners.get(database)
        if runner is None:
            return 0
        count = 0
        for snapshot in list(runner.work.state.waiting):
            if not is_of_any_kind and snapshot.kind is not Kind.INCREMENTAL:
                continue
            if collections is None:
                runner.outcomes.stop(snapshot)
                count += 1
            elif snapshot.tables is None:
                snapshot.stopped += collections
                count += len(collections)
            else:
                stopped = stop_tables(database, snapshot, collections)
                count += len(stopped)
                if stopped:
                    told = self.notifications(
                        database, snapshot, "ABORTED", why=WAS_STOPPED, of=stopped
                    )
                    self.tell(told)
        if count:
            self._accept(runner)
        return count

    def pause(self, database: str, *, is_paused: bool) -> None:
        """Let the snapshots of DATABASE rest, or go on."""
        runner = self._runners.get(database) or self._add(SnapshotState(database))
        if runner.work.state.is_paused != is_paused:
            runner.work.state.is_paused = is_paused
            snapshot = runner.work.snapshot
            if snapshot is not None and snapshot.tables is not None:  # else it has not STARTED
                kind = "PAUSED" if is_paused else "RESUMED"
                self.tell(self.notifications(database, snapshot, kind))
            self._accept(runner)

    def position(self, database: str) -> str:
        """Return how far DATABASE has come, for people."""
        place = self.place_of(database)
        return f"{database}: " + ("nothing is shipped" if place is None else f"journal {place[1]}")

    def _accept(self, runner: SnapshotRunner) -> None:
        runner.work.state.serial = max(runner.work.state.serial, runner.work.sent_serial) + 1
        self.keep(runner.work.state, is_urgent=True)
        self.wake()

    # What runners need

    @property
    def sends_changes(self) -> bool:
        """Tell whether changes are sent at all."""
        return self._policy.sends_changes

    def wake(self) -> None:
        """Have the shipping thread come round."""
        self._wake()

    def setup(self, database: str) -> Setup:
        """Return what a reader process is told. Raises ConfigError."""
        how = self.config.attachment
        is_own_engine = how.hostname is None
        return Setup(
            self.config,
            DatabaseConnection(
                how.target(database),
                # The engine in a process asks nobody for a password.
                how.user or ("SYSDBA" if is_own_engine else None),
                how.password(),
                client_library(self.config),
                how.statements,
            ),
            database,
            read_owners(self._state_folder / SHARED_TOPICS),
        )

    @property
    def _state_folder(self) -> Path:
        return self.config.journal_directory / STATE_DIRECTORY

    def is_placed(self, database: str) -> bool:
        """Tell whether it is known what Kafka has of DATABASE, and it does not stand still."""
        delivery = self._delivery
        queue = delivery.queues.get(database)
        is_well = queue is None or (queue.halt is None and queue.setback is None)
        # With nothing under way only who tries notices that Kafka is back.
        is_away = self.is_away() and delivery.unacked > 0
        return delivery.is_placed and is_well and not delivery.stopping and not is_away

    def _obstacle(self, database: str) -> str:
        """Return why no snapshot of DATABASE can be begun, for people; empty: it can."""
        delivery = self._delivery
        if not delivery.is_placed or self.is_away():
            return "Kafka does not answer"
        return "" if self.is_placed(database) else "changes of the database are not shipped"

    def is_halted(self, database: str) -> bool:
        """Tell whether DATABASE stands still until somebody has mended something."""
        queue = self._delivery.queues.get(database)
        return queue is not None and queue.halt is not None

    def is_at_rest(self, database: str) -> bool:
        """Tell whether no journal of DATABASE is under way."""
        queue = self._delivery.queues.get(database)
        return queue is None or not queue.sends

    def next_entry(self, database: str) -> Entry | None:
        """Return the transaction that comes next, None: none waits."""
        queue = self._delivery.backlog.queues.get(database)
        return queue.first() if queue else None

    def place_of(self, database: str) -> tuple[int, int] | None:
        """Return epoch and sequence of the last journal in Kafka, None: there is none."""
        place = self._delivery.place_of(database)
        return None if place is None else (place.epoch, place.sequence)

    def is_crowded(self) -> bool:
        """Tell whether journals take half of ``connector.journal.max.bytes``, or without that limit
        of the room on their disk."""
        now = monotonic()
        if now >= self._next_measure:
            limit = self.config.journal_max_bytes
            with suppress(OSError):  # of a folder that is away others tell
                held = measure_folder(self.config.journal_directory)
                free = shutil.disk_usage(self.config.journal_directory).free
                self._is_crowded = held >= (limit / 2 if limit else free)
            # Of the time a twentieth at most: there may be a million journals.
            self._next_measure = monotonic() + max(_MEASURE_S, 20 * (monotonic() - now))
        return self._is_crowded

    def is_away(self) -> bool:
        """Tell whether Kafka is away."""
        return self._delivery.link.away

    def tables_of(self, snapshot: Snapshot, database: str, names: list[str]) -> list[TableProgress]:
        """Return the tables of SNAPSHOT among the published ones, NAMES, in their order. None, and
        ``why`` of SNAPSHOT, where a condition of it is for none of them."""
        rules = self.plan.renderer.rules
        captured = {
            f"{database}.{name}": name
            for name in sorted(names)
            if rules.tables.captures(database, name)
        }
        if snapshot.kind is not Kind.INCREMENTAL:
            self._look_at_overrides(database, set(captured.values()))
        wanted = list(captured)
        if snapshot.origin == ORIGIN and (include := self.config.snapshots.include):
            wanted = [each for each in wanted if any(one.fullmatch(each) for one in include)]
        if snapshot.collections:
            matched = matching(snapshot.collections, wanted)
            for pattern in matched.unmatched:
                if self._is_meant_for(pattern, database):
                    text = describe_unmatched(pattern, wanted)
                    _log.warning("snapshot {}: {}", snapshot.id, text)
                    self.refuse(snapshot.id, "execute-snapshot", snapshot.origin, text)
            wanted = list(matched.identifiers)
            if wanted and (why := self._misdirected(snapshot, database, matched, captured)):
                self._refuse(snapshot, why)
                return []
        tables = []
        for identifier in wanted:
            name = captured[identifier]
            condition = condition_for(identifier, snapshot.conditions)
            if condition is None and snapshot.kind is not Kind.INCREMENTAL:
                condition = self._policy.query(database, name)
                if condition == "":
                    continue
            table = TableProgress(name, condition)
            try:
                rules.topics.of_table(database, name)
            except BadName as error:
                table.status, table.why = Status.SKIPPED, str(error)
            tables.append(table)
        return tables

    def _misdirected(
        self, snapshot: Snapshot, database: str, matched: Matched, captured: Iterable[str]
    ) -> str:
        """Return which condition of SNAPSHOT is for none of its tables, for people; empty: each is
        for one, or for another database. What it was to keep back must not be sent."""
        idle = idle_conditions(snapshot.conditions, matched.unmatched, matched.identifiers)
        for pattern in idle:
            if self._is_meant_for(pattern, database):
                meant = describe_unmatched(pattern, captured)
                if any(matches(pattern, each) for each in captured):
                    meant = f"{pattern} is for none of the tables in data-collections"
                return f"additional-conditions: {meant}"
        return ""

    def _is_meant_for(self, pattern: str, database: str) -> bool:
        """Tell whether PATTERN, of a signal, is for DATABASE rather than for another known one."""
        if may_match(pattern, database):
            return True
        return not any(may_match(pattern, each) for each in self.databases)

    def _look_at_overrides(self, database: str, captured: set[str]) -> None:
        """Warn of the SELECTs of the options that no table of DATABASE, or of another one, has:
        tables that were meant are sent with all rows."""
        for identifier, why in self._policy.overrides(database, captured, self.databases):
            subject = OVERRIDE + identifier
            if not why:
                self.plan.statistics.clear(subject)
                continue
            text = f"snapshot.select.statement.overrides: {identifier} has no effect: {why}"
            _log.warning("{}", text)
            self.plan.statistics.trouble(subject, "warning", text)

    def _refuse(self, snapshot: Snapshot, why: str) -> None:
        """Have no rows read for SNAPSHOT, which the sender has to ask for anew."""
        snapshot.why = why
        _log.warning("snapshot {} is refused: {}", snapshot.id, why)
        self.refuse(snapshot.id, "execute-snapshot", snapshot.origin, why)

    def record_of(self, state: SnapshotState) -> tuple[bytes, bytes]:
        """Return key and value of the offset topic's record of STATE."""
        return snapshot_record(state.database, state.to_json())

    def send(
        self,
        batch: Batch,
        begin: Callable[[], RedeliverySend | Outcome | None],
        answer: Callable[[Outcome], None],
    ) -> None:
        """Have BATCH sent; ANSWER hears what became of it."""
        course = self._courses[batch.database]
        after = course.after(batch.table)

        def begun() -> RedeliverySend | Outcome | None:
            if self._signals_wait:
                self.take_signals()
            self._open.add(batch.uuid)
            return begin()

        def answered(outcome: Outcome) -> None:
            self._open.discard(batch.uuid)
            if outcome.is_sent:
                course.sent(batch, after)
            answer(outcome)

        self._delivery.redelivery.ask_batch(batch.uuid, self, begun, answered)

    def cancel(self, batch: Batch) -> None:
        """Send no more of BATCH."""
        self._open.discard(batch.uuid)
        self._delivery.redelivery.cancel(batch.uuid)

    def notifications(
        self,
        database: str,
        snapshot: Snapshot,
        kind: str,
        table: TableProgress | None = None,
        status: str = "",
        why: str = "",
        of: Sequence[TableProgress] = (),
    ) -> list[Message]:
        """Return the messages that tell of KIND of SNAPSHOT; what is to be logged is logged. OF:
        that only these tables were stopped."""
        tables = tuple(f"{database}.{each.name}" for each in snapshot.tables or ())
        subject = Subject(snapshot.id, database, snapshot.kind is Kind.INCREMENTAL, tables)
        tell = self._notifications
        match kind:
            case "IN_PROGRESS" | "TABLE_SCAN_COMPLETED":
                assert table is not None
                name = f"{database}.{table.name}"
                if kind == "IN_PROGRESS":
                    message = tell.in_progress(subject, name, table.after)
                else:
                    message = tell.table_scan_completed(subject, name, table.rows, status, why)
            case "ABORTED":
                message = tell.aborted(
                    subject, why, tuple(f"{database}.{each.name}" for each in of)
                )
            case "SKIPPED":
                message = tell.skipped(subject, why)
            case _:
                plain = {
                    "STARTED": tell.started,
                    "COMPLETED": tell.completed,
                    "PAUSED": tell.paused,
                    "RESUMED": tell.resumed,
                }
                message = plain[kind](subject)
        return [] if message is None else [message]

    def tell(self, messages: list[Message]) -> None:
        """Have MESSAGES sent by themselves, once at most."""
        for message in messages:
            self._delivery.out_of_band.add(message)

    def keep(self, state: SnapshotState, *, is_urgent: bool) -> None:
        """Have STATE in its file: at once, or within half a second."""
        if is_urgent:
            for snapshot in self._courses[state.database].newly_ended():
                if what := missing_in(snapshot):  # first, so that a crash loses none of it
                    self._delivery.offsets.lack(
                        state.database, snapshot.id, snapshot.ended_us, what
                    )
            self._write(state)
        else:
            self._unwritten.setdefault(state.database, monotonic() + _WRITE_S)

    def _write_due(self) -> None:
        now = monotonic()
        for database, due in list(self._unwritten.items()):
            if now >= due:
                self._write(self._runners[database].work.state)

    def _write(self, state: SnapshotState) -> None:
        self._unwritten.pop(state.database, None)
        try:
            self._files.write(state)
        except OSError as error:
            _log.error("{}: {} can't be written: {}", state.database, self._files.folder, error)
            self._unwritten[state.database] = monotonic() + 10 * _WRITE_S

    # As an owner of what is sent again

    def finish(self, send: RedeliverySend, *, is_aborted: bool) -> tuple[bool, Outcome]:
        """Return what became of SEND, of which everything is answered."""
        is_sent = send.is_sent and not is_aborted
        return False, Outcome(is_sent, "" if is_sent else send.trouble)

    def note_sent(self, uuid: Any) -> bool:  # noqa: ARG002 - the record of a state tells
        """Kafka names no batch."""
        return False
