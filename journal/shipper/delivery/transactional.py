"""Delivery in Kafka transactions: many whole journals become visible together, or none, once.

For a producer with ``kafka.producer.transactional.id``. Each Kafka transaction also writes where
its databases stand then (``journal.shipper.kafka.offset_topic``). What became of a transaction
whose end is not known (a crash, a lost answer, a client that gave up) is never guessed: a new
producer fences the old one, so that nothing of it can come true later, and the positions are read.
Journals that they name are disposed of unsent.

A journal is split over several Kafka transactions only if it alone has more messages than
``SPLIT_MESSAGES``, the most in each, or takes more than half of ``transaction.timeout.ms``; the
position then tells after which of its events to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from uuid import UUID

import logbook
from confluent_kafka import KafkaError, KafkaException

from firebird_cdc.errors import JournalError, Obstacle, ShipperFenced
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.topics import missing_topic
from firebird_cdc.journal.folder.subjects import NOTES
from firebird_cdc.journal.shipper.delivery.backoff import MAX_BACKOFF_S, Backoff
from firebird_cdc.journal.shipper.delivery.base import Delivery, DeliveryLimits, is_missing
from firebird_cdc.journal.shipper.delivery.database_queue import DatabaseQueue, Halt
from firebird_cdc.journal.shipper.delivery.kafka_transaction import (
    EndingPause,
    KafkaTransaction,
)
from firebird_cdc.journal.shipper.delivery.out_of_band import OutOfBand
from firebird_cdc.journal.shipper.delivery.send import JournalSend
from firebird_cdc.journal.shipper.delivery.sending import Send, SendContext
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.client import KafkaLink, is_refusal
from firebird_cdc.journal.shipper.kafka.error_codes import FENCED, OF_TOPICS, PASSING, PURGED
from firebird_cdc.journal.shipper.kafka.offset_topic import (
    FRAME_BYTES,
    NAME_BYTES,
    Offset,
)
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.transactional")

BATCH_JOURNALS = 2000
"""Journals in one Kafka transaction."""

SPLIT_MESSAGES = 1_000_000
"""Messages of one journal in one Kafka transaction; only a larger journal is split."""

EVENTS_PER_TURN = 500
"""Changes of one journal before answers are looked after."""

_TURN_JOURNALS = 200
"""Journals of one database before the next one has its turn in a Kafka transaction."""

PATIENCE_S = 5.0
"""A transaction in which nothing is acknowledged for so long is begun anew, with a new client; the
next one has twice as long."""

_ALONE_S = 60.0
"""For so long after trouble with a topic each database has Kafka transactions of its own."""

_SERVE_MESSAGES = 200
"""Messages and journals after which answers are taken."""

_STEP_S = 0.25
"""Longest wait inside one call of the client, so that a stop is noticed in time."""

_FIRST_ANSWER_S = 1.0

_READ_STEP_S = 1.0
"""The same for reading positions, in which a broker far away has to answer."""


class _Interrupted(Exception):
    """The owner wants to leave while something is still under way."""


class _Aborted(Exception):
    """The open Kafka transaction can't be committed."""


class TransactionalDelivery(Delivery):
    """Sends journals one after the other, inside Kafka transactions."""

    _recognises_shipped = True  # the positions name them

    def __init__(
        self,
        backlog: Backlog,
        plan: SendContext,
        link: KafkaLink,
        archive: Path | None,
        offsets: OffsetTracker,
        limits: DeliveryLimits,
        on_missing: Callable[[str], str] = missing_topic,
        *,
        transaction_timeout_s: float,
        max_message_bytes: int,
        should_leave: Callable[[Delivery], bool],
        take_notified: Callable[[Delivery], None],
    ) -> None:
        """``should_leave``: tells whether to end while a call of the client is repeated;
        ``take_notified``: sorts in what was notified since the last step."""
        super().__init__(backlog, plan, link, archive, offsets, limits, on_missing)
        self.out_of_band = OutOfBand(link, self._heartbeat_failed)
        self._should_leave = should_leave
        self._take_notified = take_notified
        self._ready_for_transactions = False
        self._registered = False
        self._position_error: KafkaError | None = None
        self._out_of_band_fails = False
        self._notes_fail = False
        self._awaits_start = False
        self._attempts = 0
        self._alone_until = 0.0
        self._ending = EndingPause()
        self._patience_s = PATIENCE_S
        self._batch_journals = min(
            BATCH_JOURNALS, max((max_message_bytes - FRAME_BYTES) // NAME_BYTES, 1)
        )
        self._timeout_s = transaction_timeout_s
        self._redelivery_keys: list[bytes] = []
        self._backoff = Backoff(limits.backoff_s)
        self._open: KafkaTransaction | None = None
        self._unserved = 0
        self._turn = 0

    def try_again(self) -> list[tuple[DatabaseQueue, tuple[int, int]]]:
        """Have databases that are paused, or wait before the next attempt, go on at once."""
        self._backoff.skip()
        self._attempts = 0
        return super().try_again()

    @property
    def next_retry(self) -> float | None:
        """Time (monotonic) of the next attempt."""
        paused = super().next_retry
        if not self._ready_for_transactions:
            return self._backoff.retry_at
        return None if paused is None else max(paused, self._backoff.retry_at)

    @property
    def is_placed(self) -> bool:
        """Tell whether it is known which journals Kafka has."""
        return self._ready_for_transactions

    def step(self) -> bool:
        """Run one Kafka transaction over what waits now, if anything does.

        Raises ShipperFenced if another producer has taken over the transactional id.
        """
        self.link.poll(0)
        disposed = self.settle()
        if self.disposal or not self._backoff.is_over:
            return disposed
        try:
            if self.link.fatal is not None:
                raise KafkaException(self.link.fatal)
            if not self._ready_for_transactions:
                self._initialise()
                return True
            moved = None if self.stopping else self._redeliver()
            if moved is False:
                return True
            self._take_acknowledgements()
            queues = [queue for queue in self._rotation() if self._ready(queue)]
            if self.out_of_band and (self._out_of_band_fails or not queues):
                self._send_out_of_band_alone()
            if not queues:
                return self.settle() or disposed or moved is not None
            # Where a topic of one database is in the way, it shows which one that is.
            alone = monotonic() < self._alone_until
            self._send_queues(queues[:1] if alone else queues)
        except _Interrupted:
            return False
        except KafkaException as error:
            self._fail(error.args[0])
        except _Aborted:
            pass
        return True

    def abandon(self, patience_s: float) -> None:
        """Abort what is open: none of it ever becomes visible to read_committed consumers. What
        can't be aborted now, the next producer with this transactional id ends."""
        super().abandon(patience_s)
        if patience_s and self._ready_for_transactions and self._open is not None:
            try:
                self.link.producer.abort_transaction(patience_s)
            except KafkaException as error:
                _log.debug("abort while stopping: {}", error)

    def _rotation(self) -> list[DatabaseQueue]:
        """All queues, another one first each time."""
        queues = list(self.queues.values())
        self._turn += 1
        start = self._turn % len(queues) if queues else 0
        return queues[start:] + queues[:start]

    # Where Kafka is

    def _initialise(self) -> None:
        """Register the transactional id, which ends what a predecessor left open, and learn what
        Kafka has. Takes a step of that each time."""
        if not self._awaits_start:
            self._awaits_start = True
            self.link.note_start()
        if not (self._register() and self._read_positions()):
            self.link.note_waiting()
            return
        self._awaits_start = False
        self._position_offset = self.offsets.end - 1
        self._take_known_redelivered(self.offsets.redelivered)
        for queue in self.queues.values():
            self._place(queue)
        self._ready_for_transactions = True
        self.link.note_progress()

    def _register(self) -> bool:
        """Try to register the transactional id, and tell whether it is ours by now."""
        if not self._registered:
            try:
                self.link.producer.init_transactions(_STEP_S)
            except KafkaException as error:
                if not error.args[0].retriable() or self._waits_too_long():
                    raise
            else:
                self._registered = True
        return self._registered

    def _read_positions(self) -> bool:
        """Read on in the positions, and tell whether all are read by now."""
        try:
            return self.offsets.advance(_READ_STEP_S)
        except KafkaException as error:
            what = error.args[0]
            if what.code() in PASSING and not self._waits_too_long():
                return False
            text = f"offset topic {self.offsets.topic}: {what.str()}"
            raise KafkaException(KafkaError(what.code(), text)) from error

    def _place(self, queue: DatabaseQueue) -> None:
        known = self.offsets.known.get(queue.database)
        is_foreign = known is not None and known.position.folder != self.offsets.folder
        queue.stand(known, self.offsets.passed(queue.database), is_foreign=is_foreign)

    def _repeat(self, call: Callable[[float], None]) -> None:
        """Repeat a call of the client until it succeeds or fails for good."""
        while True:
            try:
                call(_STEP_S)
            except KafkaException as error:
                if not error.args[0].retriable() or self._waits_too_long():
                    raise
                self.link.note_waiting()
                if self._should_leave(self):
                    raise _Interrupted from None
            else:
                return

    def _ready(self, queue: DatabaseQueue) -> bool:
        while super()._ready(queue):
            entry = queue.backlog.first()
            if queue.sends and entry[:2] <= queue.sends[-1].entry[:2]:
                return False  # whether it fits shows once those before it are in Kafka
            if queue.offset.is_foreign and not self._forgives(queue):
                self._halt_foreign(queue)
                return False
            if queue.offset.is_continued_by(entry):
                return True
            assert queue.offset.known is not None
            names = queue.offset.known.names.find(entry.epoch, entry.sequence)
            if entry.uuid.bytes in names or queue.offset.shared.covers(entry):
                self._take_known(queue, entry)
            elif self._forgives(queue):
                return True
            else:
                position = queue.offset.known.position
                if not position.complete and entry[:2] == position.number:
                    names.add(position.uuid.bytes)
                self._halt_for(queue, entry, names)
                return False
        return False

    def _halt_foreign(self, queue: DatabaseQueue) -> None:
        """Stop QUEUE, whose database Kafka has from another journal folder."""
        assert queue.offset.known is not None
        position = queue.offset.known.position
        reason = (
            f"Kafka has it up to sequence {position.sequence} (epoch {position.epoch}) from another"
            f" journal folder, {position.place}, and {self.backlog.directory} may not go on where"
            " that one stopped"
        )
        advice = (
            "If both are in use, give each server a kafka.topic.prefix of its own. If this folder"
            " takes the other one's place, ship what that one still holds first, then run:"
            f" firebird-cdc journal acknowledge --config FILE {queue.database}"
        )
        self.halt(queue, Halt((0, 0), None, reason, None, advice, acknowledgeable=True))

    def _halt_for(self, queue: DatabaseQueue, entry: Entry, names: set[bytes]) -> None:
        """Stop QUEUE at ENTRY, whose number is that of something else in Kafka."""
        assert queue.offset.known is not None
        position = queue.offset.known.position
        path = self.backlog.directory / entry.name
        if names:
            other = " or ".join(f"{uuid.hex()}" for uuid in names)
            reason = (
                f"{path} has sequence {entry.sequence} (epoch {entry.epoch}), under which Kafka has"
                f" another journal, {other}"
            )
            advice = (
                "Two journal folders, or a folder that was copied or begun anew, feed the same"
                " topics under the same name of a database: give each server a kafka.topic.prefix"
                " of its own. If the journal is not to be shipped, move it away, and shipping"
                " resumes automatically; if it is, in spite of that, run: firebird-cdc journal"
                f" acknowledge --config FILE {queue.database}"
            )
        else:
            reason = (
                f"{path} has sequence {entry.sequence} (epoch {entry.epoch}), but Kafka already has"
                f" all up to sequence {position.sequence} (epoch {position.epoch}), and it is not"
                " told whether this journal is among them"
            )
            advice = (
                "Somebody has put an old journal back, or the numbering began anew. Move it away,"
                " and shipping resumes automatically; look into the topics for its events before"
                " you send them again"
            )
            if not entry.is_alone:
                advice += ". Other transactions are in the same file"
        signature = self._signature(entry)
        queue.backlog.pop()
        halt = Halt(entry[:2], entry, reason, signature, advice, acknowledgeable=bool(names))
        self.halt(queue, halt)

    # One transaction

    def _send_queues(self, queues: list[DatabaseQueue]) -> None:
        """Send whole journals in turn, commit, and dispose of them."""
        self._begin()
        self.out_of_band.send()
        left = self._send_in_turn(queues, self._batch_journals)
        if self._transaction.await_joining():
            self._take_notified(self)
            joining = [queue for queue in queues if queue.one_at_a_time is None]
            self._send_in_turn(joining, left, only_small=True)
        self._commit()
        self.settle()

    def _send_in_turn(
        self, queues: list[DatabaseQueue], left: int, *, only_small: bool = False
    ) -> int:
        """Send what waits in QUEUES, at most LEFT journals; return how many more there may be.
        ONLY SMALL: up to the first large one."""
        while queues and left > 0 and not self._transaction.is_full:
            going = []
            for queue in queues:
                taken = self._send_journals(queue, min(left, _TURN_JOURNALS), only_small)
                left -= taken
                if taken and queue.one_at_a_time is None:
                    going.append(queue)
            queues = going
        return left

    def _send_out_of_band_alone(self) -> None:
        """Send what is no event in a transaction of its own, which may fail."""
        self._begin()
        self.out_of_band.send()
        try:
            self._commit()
        except KafkaException as error:
            if error.args[0].code() in FENCED or not self._out_of_band_fails:
                raise
            self._begin_anew()
            raise _Aborted from error
        self._out_of_band_fails = False

    def _begin(self) -> None:
        self._ending.await_end()
        self.link.producer.begin_transaction()
        self.link.note_start()
        self._open = KafkaTransaction(self._timeout_s, self.plan)
        self._position_error = None

    @property
    def _transaction(self) -> KafkaTransaction:
        """The Kafka transaction that is open."""
        assert self._open is not None
        return self._open

    def _send_journals(self, queue: DatabaseQueue, limit: int, only_small: bool) -> int:
        """Send up to LIMIT journals of QUEUE; how many it was."""
        taken = 0
        while taken < limit and ((taken and queue.goes_on()) or self._ready(queue)):
            if queue.must_come_first:
                break
            begun = self._send_small(queue, limit - taken)
            if not begun:
                if only_small:
                    break
                self._send_whole(queue)
            taken += begun or 1
            if queue.one_at_a_time is not None or self._transaction.is_full:
                break
        return taken

    def _send_small(self, queue: DatabaseQueue, limit: int) -> int:
        """Send up to LIMIT transactions of QUEUE together that are small; how many it was."""
        begun, messages = self.small.send(queue, self.link.producer, min(limit, _SERVE_MESSAGES))
        self._unserved += begun
        send = queue.sends[-1] if begun else None
        while send and not self._is_over(send, messages, took_all=send.read_to_end):
            before = send.messages
            send.produce(self.link.producer, EVENTS_PER_TURN)
            messages = send.messages - before
        return begun

    def _send_whole(self, queue: DatabaseQueue) -> None:
        send = queue.begin(self.plan)
        send.part.begin(send.messages, SPLIT_MESSAGES)
        one_at_a_time = queue.one_at_a_time is not None and queue.one_at_a_time == send.entry.uuid
        self._transaction.journal_began_at = monotonic()
        while True:
            before = send.messages
            try:
                took_all = send.produce(self.link.producer, 1 if one_at_a_time else EVENTS_PER_TURN)
            except (BadEvent, JournalError, OSError) as error:
                is_gone = isinstance(error, FileNotFoundError) and self._is_same_folder
                if is_gone and not send.messages:  # nothing of it is in the transaction
                    queue.drop(send)
                    self._pass_over(queue, send.entry)
                    return
                self._abort()
                self._restart_others(queue, send)
                self.take_bad(queue, send, error)
                raise _Aborted from error
            except Obstacle as error:
                self._abort()
                self._restart_others(queue, None)
                self.back_off(queue, error, send)
                raise _Aborted from error
            self._unserved += 1
            if self._is_over(
                send, send.messages - before, took_all=took_all, one_at_a_time=one_at_a_time
            ):
                return
            if send.part.is_full or (send.between_changes and self._transaction.takes_too_long):
                self._split(queue, send)

    def _is_over(
        self, send: Send, messages: int, *, took_all: bool, one_at_a_time: bool = False
    ) -> bool:
        """Count MESSAGES that were handed over, and take answers if it is time; tell whether all of
        SEND is handed over. TOOK_ALL: the client's queue is not full."""
        self._transaction.sent += messages
        self._unserved += messages
        if send.read_to_end and not one_at_a_time and self._unserved < _SERVE_MESSAGES:
            return True
        self._unserved = 0
        self._serve(0 if took_all else 0.05)
        if one_at_a_time:
            self._await_answers()
        self._check()
        return send.read_to_end

    def _serve(self, seconds: float) -> None:
        """Take answers; leave if the owner has to."""
        self.link.poll(seconds)
        if self.link.fatal is not None:
            raise KafkaException(self.link.fatal)
        if not self._note_answers():
            if not self.unacked:
                self.link.note_start()
            elif self.link.is_silent_for(self._patience_s):
                # The client asks for ever where a topic was deleted; a new one looks anew.
                self._patience_s = min(self._patience_s * 2, self._timeout_s)
                silent = "connected, but nothing is acknowledged"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, silent))
            else:
                self.link.note_waiting()
        if self._should_leave(self):
            raise _Interrupted

    def _await_answers(self) -> None:
        """Wait until all is answered. Where a message is refused, the client may keep what is
        behind it until the transaction is aborted."""
        while self.unacked:
            self.link.hurry(0.05)
            self._serve(0)
            self._check()

    def _check(self) -> None:
        """Abort if a message of this transaction was refused or failed."""
        if self.plan.failures != self._transaction.failures_before:
            for queue in self.queues.values():
                for send in queue.sends:
                    if send.failed is not None:
                        self._take_failure(queue, send)
        # A refusal takes the record with it: what was refused comes first.
        if self._position_error is not None:
            self._take_position_error(self._position_error)

    def _take_position_error(self, error: KafkaError) -> None:
        if is_refusal(error) and self._batch_journals > 1:
            # The topic takes smaller records only: name fewer journals in each.
            self._batch_journals //= 2
        raise KafkaException(KafkaError(error.code(), f"beside events: {error.str()}"))

    def _take_failure(self, queue: DatabaseQueue, failed: Send) -> None:
        error = failed.failed
        assert error is not None
        if error.code() in PURGED:
            self.link.producer.commit_transaction(_STEP_S)  # which fails, and says why
        if is_missing(error):
            self._abort()
            self._restart_others(queue, None)
            self.back_off(queue, self._why(failed), failed)
            raise _Aborted
        if not is_refusal(error):
            raise KafkaException(error)
        one_at_a_time = queue.one_at_a_time == failed.entry.uuid
        self._abort()
        self._restart_others(queue, failed if one_at_a_time else None)
        if one_at_a_time:
            bad = BadEvent(failed.place, f"Kafka refuses it: {error.str()}")
            self.take_bad(queue, failed, bad)
        else:
            # A batch shares the fate of one message; sent one by one, the culprit shows itself.
            queue.one_at_a_time = failed.entry.uuid
        # Behind a message that Kafka has refused, the client leaves a hole in its numbers.
        self._begin_anew()
        raise _Aborted

    def _take_damaged(self, queue: DatabaseQueue, send: Send, reason: str) -> None:
        # What was sent of it behind the last split is aborted.
        if not self._quarantine(send.path, send.entry, queue.database, reason, send.resume_after):
            queue.start_over()
            self.await_disk(queue, send, f"{reason}, and it can't be moved to the quarantine")
            return
        queue.drop(send)
        self.goes_on_without(queue, send.entry)
        if send.entry.is_alone:
            self.backlog.forget(send.entry)
        else:
            queue.offset.shared.set_aside(send.entry)
            self.disposal.add(send.entry)

    def _split(self, queue: DatabaseQueue, send: JournalSend) -> None:
        """Commit in the middle of a journal that is too large for one Kafka transaction."""
        pos = send.part.sent_to
        self._commit()
        queue.resume_after(send.entry, pos)
        if send.messages:
            _log.warning(
                "{}: too large for one Kafka transaction, events up to {} are committed and visible"
                " before the rest",
                send.path,
                pos,
            )
        self.settle()
        self._begin()
        send.part.begin(send.messages, SPLIT_MESSAGES)

    # What was left out

    def _redeliver(self) -> bool | None:
        """Send what was left out of one journal, in a Kafka transaction of its own, or nothing.

        Returns whether the producer is still good for others; None if nothing could be sent.
        """
        send = self.redelivery.begin()
        if send is None:
            return None
        self._begin()
        most_s = self._timeout_s * 3 / 4
        while not send.is_over:
            moved = send.produce(self.link.producer)
            self._serve(0 if moved else 0.05)
            if monotonic() - self._transaction.began_at > most_s:
                send.give_up(
                    f"Kafka did not take all of it within {most_s:.0f} s, and it has to fit into"
                    " one Kafka transaction; raise kafka.producer.transaction.timeout.ms if it is"
                    " large"
                )
                break
        if send.is_sent:
            key, value = send.events.record()
            try:
                self._hand_over(key, value, None)
                self._commit()
            except _Aborted:
                self.redelivery.start_over()
                raise
            if self.redelivery.finish(send):
                self._redelivery_keys.append(key)
            return True
        self._abort()
        if send.wants_care:
            self.redelivery.take_care(send, is_aborted=True)
        else:
            self.redelivery.finish(send, is_aborted=True)
        # Behind a message that Kafka has refused, the client leaves a hole in its numbers.
        self._begin_anew()
        return False

    def _take_known_redelivered(self, keys: Mapping[UUID, bytes]) -> None:
        """Kafka has what was left out of these journals: it is not sent again."""
        for uuid, key in keys.items():
            if self.redelivery.note_sent(uuid):
                self._redelivery_keys.append(key)

    def _commit(self) -> None:
        positions = []
        for queue in self.queues.values():
            position = queue.reached(self.offsets.folder, self.offsets.place, self.backlog.holds)
            if position is not None:
                self._hand_over(*position.record(), position)
                positions.append((queue, position))
        keys, self._redelivery_keys = self._redelivery_keys, []
        for key in keys:  # what they speak of is gone from the quarantine
            self._hand_over(key, None, None)
        self._await_answers()
        self._transaction.note_answers()
        self._check()
        self._write_notes()
        self.offsets.write_counts()
        self._tell_left_out()
        self._repeat(self.link.producer.commit_transaction)
        self._ending.begin(self._transaction)
        self._open = None
        self._backoff.succeed()
        self._attempts = 0
        self._patience_s = PATIENCE_S
        self.link.note_progress()
        for queue, position in positions:
            queue.count()
            queue.advance(position)
            self.offsets.note(position)
            if position.shared:  # for whoever goes on without a transactional id
                self.offsets.keep_shared(queue.database, position.shared, position.whole)

    def _tell_left_out(self) -> None:
        """Have it on disk what goes with events and was left out, before these become visible:
        after a crash nobody reads their journals again. If the commit fails it counts twice."""
        for queue in self.queues.values():
            left_out = [place for send in queue.sends for place in send.take_left_out()]
            if left_out:
                self.offsets.leave_out(queue.database, left_out)

    def _hand_over(self, key: bytes, value: bytes | None, position: Offset | None) -> None:
        """Hand over a record of the offset topic."""
        while True:
            try:
                self._produce_record(key, value, position)
            except BufferError:
                self._serve(0.05)
                self._check()
            except KafkaException as error:  # too large for the client already
                self._position_failed(error.args[0])
                self._check()
                raise
            else:
                return

    def _look_again(self) -> None:
        """The topic was made anew: what was read of it counts no longer."""

    def before_removal(self) -> None:
        """Do nothing: the offset topic knows what is delivered, and all is counted by then."""

    def _position_taken(self, position: Offset) -> None:
        """Do nothing: an offset counts once its transaction is committed."""

    def _position_failed(self, error: KafkaError) -> None:
        if error.code() not in PURGED:
            self._position_error = error

    def _heartbeat_failed(self, error: KafkaError) -> None:
        if error.code() not in PURGED:
            # It must not take journals with it again.
            self._out_of_band_fails = True
            self._position_error = error

    def _write_notes(self) -> None:
        """Have on disk what is left out, before what goes with it becomes visible."""
        try:
            self.plan.quarantine.flush()
        except OSError as error:
            self._abort()
            for queue in self.queues.values():
                queue.start_over()
            self._backoff.retry_at = monotonic() + MAX_BACKOFF_S
            _log.error(
                "{}: can't be written: {}; next attempt in {:.0f} s, nothing is lost",
                self.plan.quarantine.folder,
                error,
                MAX_BACKOFF_S,
            )
            self.statistics.trouble(
                NOTES,
                "halted",
                f"what is left out can't be noted in {self.plan.quarantine.folder}: {error};"
                " shipping waits",
            )
            self._notes_fail = True
            raise _Aborted from error
        if self._notes_fail:
            self._notes_fail = False
            self.statistics.clear(NOTES)

    # Failure

    def _abort(self) -> None:
        self._await_first_answer()
        self._repeat(self.link.producer.abort_transaction)
        self._open = None

    def _await_first_answer(self) -> None:
        """Wait until Kafka is known to know of the transaction. Before, it may refuse to abort what
        it has not heard of (INVALID_TXN_STATE), and the client ends for good (librdkafka 2.13)."""
        until = monotonic() + _FIRST_ANSWER_S
        while (
            self.unacked
            and not self._transaction.is_answered
            and self.link.fatal is None
            and monotonic() < until
        ):
            self.link.hurry(0.02)

    def _restart_others(self, queue: DatabaseQueue, send: Send | None) -> None:
        """Put back all journals of the aborted transaction but SEND of QUEUE."""
        for other in self.queues.values():
            if send is not None and other is queue:
                other.sends.remove(send)
            other.start_over()
        if send is not None:
            queue.sends.append(send)

    def _fail(self, error: KafkaError) -> None:
        """The transaction failed, or may even be committed: all its journals go back, and a new
        producer ends it and finds out, after a pause."""
        self.link.poll(0)
        error = self.link.fatal or error
        is_late = self._open is not None and self._open.may_have_expired
        if error.code() in FENCED and not is_late:  # Kafka itself may have fenced us off
            raise ShipperFenced(
                "another producer has taken over kafka.producer.transactional.id"
                f" {self.link.transactional_id!r}, so this shipper ends and sends nothing more"
                f" ({error.str()}). One shipper may use it at a time: stop the other one, or give"
                " each server an id of its own, and start this shipper again. Nothing is lost, its"
                f" journals stay in {self.backlog.directory}"
            )
        begun = [(queue, queue.sends[0]) for queue in self.queues.values() if queue.sends]
        refused = self.link.take_refused_topic()
        of_positions = self._position_error is not None or refused == self.offsets.topic
        why = f"topic {refused}: {error.str()}" if refused else error.str()
        for queue in self.queues.values():
            queue.start_over()
        self.redelivery.start_over()
        if begun and error.code() in OF_TOPICS and not of_positions:
            self._alone_until = monotonic() + _ALONE_S
            if len(begun) == 1:
                ((queue, send),) = begun
                if send.failed is not None and send.failed.code() in OF_TOPICS:
                    why = self._why(send)
                self.back_off(queue, why, send)
        else:
            self._backoff.fail()
            self.link.note_away(why)
            self._count_attempt(why)
        self._begin_anew()

    def _count_attempt(self, why: str) -> None:
        """Nothing could be sent: pause all databases that wait, after the last one."""
        self._attempts += 1
        if not (0 <= self.limits.max_retries < self._attempts or self._waits_too_long()):
            return
        for queue in self.queues.values():
            if queue.backlog and queue.halt is None:
                queue.failures = max(self._attempts, 1)
                self.give_up(queue, why)

    def _begin_anew(self) -> None:
        """Go on with a new producer, which begins with asking where Kafka is."""
        self._replace_producer()
        self._registered = self._ready_for_transactions = self._awaits_start = False
        self._open = None
