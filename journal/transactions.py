"""Delivery in Kafka transactions: many whole journals become visible together, or none.

For a producer with ``kafka.producer.transactional.id``. A journal is split over several Kafka
transactions only if it alone is larger than ``SPLIT_MESSAGES`` or takes more than half of
``transaction.timeout.ms``. A crash of the shipper between the end of a Kafka transaction and
the disposal of its journals sends these again: the position is not part of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import logbook
from confluent_kafka import KafkaError, KafkaException

from firebird_cdc.errors import JournalError, Obstacle
from firebird_cdc.journal.backlog import Backlog
from firebird_cdc.journal.delivery import EVENTS_PER_TURN, Delivery, is_refusal
from firebird_cdc.journal.flight import Flight, FlightPlan
from firebird_cdc.journal.lane import MAX_BACKOFF_S, Lane
from firebird_cdc.journal.producer import KafkaLink
from firebird_cdc.journal.render import BadEvent

_log = logbook.Logger("firebird_cdc.journal.transactions")

BATCH_S = 0.5
"""No further journal joins a Kafka transaction that is older; consumers wait as long."""

BATCH_JOURNALS = 2000
"""Journals in one Kafka transaction."""

SPLIT_MESSAGES = 1_000_000
"""Messages in one Kafka transaction; only a larger journal is split."""

_STEP_S = 1.0
"""Longest wait inside one call of the client, so that a stop is noticed in time."""


class _Interrupted(Exception):
    """The owner wants to leave while something is still under way."""


class _Aborted(Exception):
    """The open Kafka transaction can't be committed."""


class TransactionalDelivery(Delivery):
    """Sends journals one after the other, inside Kafka transactions."""

    def __init__(
        self,
        backlog: Backlog,
        plan: FlightPlan,
        link: KafkaLink,
        archive: Path | None,
        backoff_s: float,
        transaction_timeout_s: float,
    ) -> None:
        super().__init__(backlog, plan, link, archive, backoff_s)
        self._ready_for_transactions = False
        self._split_after_s = transaction_timeout_s / 2
        self._first_backoff_s = max(backoff_s, 0.01)
        self._pause_s = self._first_backoff_s
        self._retry_at = 0.0
        self._sent = 0
        self._began_at = 0.0
        self._failures_seen = 0
        self._turn = 0

    @property
    def next_retry(self) -> float | None:
        """When (monotonic) the next attempt is made."""
        paused = super().next_retry
        return None if paused is None else max(paused, self._retry_at)

    def step(self) -> bool:
        """Run one Kafka transaction over what waits now, if anything does."""
        self.link.producer.poll(0)
        disposed = self.settle()
        lanes = [lane for lane in self._rotation() if self._ready(lane)]
        if not lanes or monotonic() < self._retry_at:
            return disposed
        try:
            self._initialise()
            self._transaction()
        except _Interrupted:
            return False
        except KafkaException as error:
            self._fail(error.args[0])
        except _Aborted:
            pass
        return True

    def abandon(self) -> None:
        """Abort what is open: none of it ever becomes visible to read_committed consumers."""
        super().abandon()
        if self._ready_for_transactions and self._began_at:
            try:
                self.link.producer.abort_transaction(_STEP_S)
            except KafkaException as error:
                _log.debug("abort while stopping: {}", error)

    def _rotation(self) -> list[Lane]:
        """All lanes, another one first each time."""
        lanes = list(self.lanes.values())
        self._turn += 1
        start = self._turn % len(lanes) if lanes else 0
        return lanes[start:] + lanes[:start]

    def _initialise(self) -> None:
        """Register the transactional id; ends what a crashed predecessor left open."""
        if not self._ready_for_transactions:
            self.link.note_start()
            self._repeat(self.link.producer.init_transactions)
            self._ready_for_transactions = True
            self.link.note_progress()

    def _repeat(self, call: Callable[[float], None]) -> None:
        """Repeat a call of the client until it succeeds or fails for good."""
        while True:
            try:
                call(_STEP_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                self.link.note_waiting()
                if self.should_leave():
                    raise _Interrupted from None
            else:
                return

    # One transaction

    def _transaction(self) -> None:
        """Send whole journals in turn, commit, and dispose of them."""
        self._begin()
        more = True
        while more and monotonic() - self._began_at < BATCH_S:
            more = False
            for lane in self._rotation():
                if self.in_flight < BATCH_JOURNALS and self._ready(lane):
                    self._send_whole(lane)
                    more = more or lane.careful is None
        self._commit()
        self.settle()

    def _begin(self) -> None:
        self.link.producer.begin_transaction()
        self.link.note_start()
        self._began_at = monotonic()
        self._failures_seen = self.plan.failures
        self._sent = 0

    def _send_whole(self, lane: Lane) -> None:
        flight = lane.begin(self.plan)
        careful = lane.careful == flight.entry.uuid
        while not flight.read_to_end:
            before = flight.messages
            try:
                took_all = flight.send(self.link.producer, 1 if careful else EVENTS_PER_TURN)
            except (BadEvent, JournalError, OSError) as error:
                self._abort()
                self._restart_others(lane, flight)
                self.take_bad(lane, flight, error)
                raise _Aborted from error
            except Obstacle as error:
                self._abort()
                self._restart_others(lane, None)
                self.back_off(lane, str(error), flight.path)
                raise _Aborted from error
            self._sent += flight.messages - before
            self._serve(0 if took_all else 0.05)
            if careful:
                self._await_answers()
            self._check()
            if self._must_split() and flight.between_changes and not flight.read_to_end:
                self._split(lane, flight)

    def _serve(self, seconds: float) -> None:
        """Take answers; leave if the owner has to."""
        self.link.producer.poll(seconds)
        if not self._note_answers():
            (self.link.note_waiting if self.unacked else self.link.note_start)()
        if self.should_leave():
            raise _Interrupted

    def _await_answers(self) -> None:
        while self.unacked:
            self._serve(0.05)

    def _check(self) -> None:
        """Abort if a message of this transaction was refused or failed."""
        if self.plan.failures == self._failures_seen:
            return
        for lane in self.lanes.values():
            for flight in lane.flights:
                if flight.failed is not None:
                    self._take_failure(lane, flight)

    def _take_failure(self, lane: Lane, failed: Flight) -> None:
        error = failed.failed
        assert error is not None
        if not is_refusal(error):
            raise KafkaException(error)
        careful = lane.careful == failed.entry.uuid
        self._abort()
        self._restart_others(lane, failed if careful else None)
        if careful:
            bad = BadEvent(failed.place, f"Kafka refuses it: {error.str()}")
            self.take_bad(lane, failed, bad)
        else:
            # A batch shares the fate of one message; sent one by one, the culprit shows itself.
            lane.careful = failed.entry.uuid
        raise _Aborted

    def _must_split(self) -> bool:
        age = monotonic() - self._began_at
        return self._sent >= SPLIT_MESSAGES or (self._sent > 0 and age >= self._split_after_s)

    def _take_damaged(self, lane: Lane, flight: Flight, reason: str) -> None:
        lane.drop(flight)
        self.backlog.forget(flight.entry)
        # What was sent of it behind the last split is aborted.
        self._set_aside(flight.path, flight.entry, lane.database, reason, flight.resume_after)

    def _split(self, lane: Lane, flight: Flight) -> None:
        """Commit in the middle of a journal that is too large for one Kafka transaction."""
        pos = flight.pos
        self._commit()
        lane.resume_after(flight.entry, pos)
        if flight.messages:
            _log.warning(
                "{}: too large for one Kafka transaction, events up to {} are committed and visible"
                " before the rest",
                flight.path,
                pos,
            )
        self.settle()
        self._begin()

    def _commit(self) -> None:
        self._await_answers()
        self._check()
        self._write_notes()
        self._repeat(self.link.producer.commit_transaction)
        self._began_at = 0.0
        self._pause_s = self._first_backoff_s
        self.link.note_progress()

    def _write_notes(self) -> None:
        """Have on disk what is left out, before what goes with it becomes visible."""
        try:
            self.plan.quarantine.flush()
        except OSError as error:
            self._abort()
            for lane in self.lanes.values():
                lane.start_over()
            self._retry_at = monotonic() + MAX_BACKOFF_S
            _log.error(
                "{}: can't be written: {}; next attempt in {:.0f} s, nothing is lost",
                self.plan.quarantine.folder,
                error,
                MAX_BACKOFF_S,
            )
            raise _Aborted from error

    # Failure

    def _abort(self) -> None:
        self._repeat(self.link.producer.abort_transaction)
        self._began_at = 0.0

    def _restart_others(self, lane: Lane, flight: Flight | None) -> None:
        """Put back all journals of the aborted transaction but FLIGHT of LANE."""
        for other in self.lanes.values():
            if flight is not None and other is lane:
                other.flights.remove(flight)
            other.start_over()
        if flight is not None:
            lane.flights.append(flight)

    def _fail(self, error: KafkaError) -> None:
        """The transaction failed: all its journals go back, and the next attempt waits a bit."""
        fatal = error.fatal() or not error.txn_requires_abort()
        if not fatal:
            try:
                self._abort()
            except (KafkaException, _Interrupted):
                fatal = True
        for lane in self.lanes.values():
            lane.start_over()
        self._retry_at = monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, MAX_BACKOFF_S)
        self.link.note_away(_explain(error))
        if fatal:
            self._replace_producer()
            self._ready_for_transactions = False
            self._began_at = 0.0


def _explain(error: KafkaError) -> str:
    if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        return (
            f"{error.str()}. If this happens again and again, another producer uses the same"
            " kafka.producer.transactional.id"
        )
    text: str = error.str()
    return text
