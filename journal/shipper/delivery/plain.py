"""Delivery without transactional id: idempotent, in order, at least once."""

from __future__ import annotations

from time import monotonic

import logbook
from confluent_kafka import KafkaError, KafkaException

from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalError, Obstacle
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.shipper.delivery.backoff import MAX_BACKOFF_S
from firebird_cdc.journal.shipper.delivery.base import Delivery
from firebird_cdc.journal.shipper.delivery.database_queue import DatabaseQueue
from firebird_cdc.journal.shipper.delivery.sending import Send
from firebird_cdc.journal.shipper.kafka.client import is_refusal
from firebird_cdc.journal.shipper.kafka.offset_topic import UNUSABLE, Offset, runs_of

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.plain")

JOURNALS_IN_FLIGHT = 2000
"""Journals that may await acknowledgement or disposal at a time, over all databases."""

_OFFSETS_S = 1.0  # between two writes of the offsets
_RENEW_S = 0.1  # before a producer that gave up is replaced for the first time
_READ_STEP_S = 0.2
_READ_PAUSE_S = 2.0  # after an attempt while Kafka is away
_READ_MOST_S = 30.0


class PlainDelivery(Delivery):
    """Sends without transactions; several journals of several databases at a time."""

    _failures_seen = 0
    _read_since: float | None = None
    _next_read = 0.0
    _positions_usable = True
    _next_positions = 0.0
    _renew_at = 0.0
    _renew_pause_s = _RENEW_S

    def step(self) -> bool:
        """Send, take answers, dispose."""
        if self.link.fatal is not None:
            return self._renew()
        moved = self.out_of_band.send() > 0
        if self._is_to_read:
            self._read_positions()
        # Where a snapshot may have to come first, nothing goes out before Kafka's place is known.
        awaits_place = self._is_to_read and any(queue.backlog for queue in self.queues.values())
        idle = self.unacked == 0 and not awaits_place
        failures = self.plan.failures
        for queue in self.queues.values():
            moved = self._advance(queue) or moved
        self._failures_seen = failures
        if self.redelivery.is_busy and not (self.stopping and self.redelivery.send is None):
            moved = self.redelivery.advance(self.link.producer) or moved
        if idle:
            self.link.note_start()
        self.link.poll(0)
        if self._note_answers():
            self._renew_pause_s = _RENEW_S
            moved = True
        elif not moved and not idle:
            self.link.note_waiting()
        if not idle and self._waits_too_long():
            self._give_up_all()
            return True
        moved = self.settle() or moved
        self._take_acknowledgements()
        self._write_positions()
        return moved

    def abandon(self, patience_s: float) -> None:
        """Stop: tell Kafka where each database stands, and leave the rest."""
        if patience_s and not self.link.away:
            until = monotonic() + patience_s
            if any(queue.settled for queue in self.queues.values()):
                while self._is_to_read and self._next_read <= monotonic() < until:
                    self._read_positions()
            self._next_positions = 0.0
            self._write_positions()
            while self.out_of_band.unacked and monotonic() < until:
                self.link.poll(0.05)
        super().abandon(patience_s)

    @property
    def is_placed(self) -> bool:
        """Tell whether it is known which journals Kafka has."""
        return not self._is_to_read

    # Positions serve here to notice that a cluster was emptied; nothing else needs them.

    @property
    def _is_to_read(self) -> bool:
        return not self.offsets.is_read and self._positions_usable

    def _read_positions(self) -> None:
        """Read on what Kafka has; journals go out meanwhile."""
        now = monotonic()
        if now < self._next_read:
            return
        if self._read_since is None:
            self._read_since = now
        try:
            if self.offsets.advance(_READ_STEP_S):
                self.link.note_progress()
                self._read_since = None
                self._position_offset = self.offsets.end - 1
                for queue in self.queues.values():
                    self._place(queue)
            elif now - self._read_since > _READ_MOST_S:
                self._go_without_positions("it can't be read to its end")
        except KafkaException as error:
            if error.args[0].code() in UNUSABLE:
                self._go_without_positions(error.args[0].str())
            else:
                self._read_since = None
                self._next_read = monotonic() + _READ_PAUSE_S

    def _go_without_positions(self, why: str) -> None:
        _log.warning(
            "offset topic {} can't be used: {}. Shipping goes on without it,"
            " but a cluster that has lost journals will not be noticed",
            self.offsets.topic,
            why,
        )
        self._positions_usable = False
        self._read_since = None

    def _place(self, queue: DatabaseQueue) -> None:
        # Kafka may not tell where it is; shared journals are known by the folder's own memory.
        shared = queue.offset.shared
        if not shared.reached:
            shared = self.offsets.shared(queue.database)
            if (delivered := self.offsets.delivered(queue.database)) is not None:
                queue.go_past(delivered)
        queue.stand(None, self.offsets.passed(queue.database), shared=shared)
        known = self.offsets.known.get(queue.database)
        if known is None:
            return
        position = known.position
        if position.folder == self.offsets.folder:
            queue.offset.done = position.number
        else:
            _log.warning(
                "{}: its last journal in Kafka (sequence {}) came from another journal folder, {}."
                " If that one is still in use, two servers feed the same topics: give each a"
                " kafka.topic.prefix of its own",
                queue.database,
                position.sequence,
                position.place,
            )

    def _ready(self, queue: DatabaseQueue) -> bool:
        # Behind a journal that is sent again all has to be, or rows stay as they were there.
        while not queue.has_begun and queue.backlog:
            entry = queue.backlog.first()
            if not queue.offset.shared.covers(entry):
                break
            self._take_known(queue, entry)
        return super()._ready(queue)

    def before_removal(self) -> None:
        """Keep how far shared journals are delivered: without a file that goes now, what is sent
        again of another one would take rows back to what they were. And what was counted of it."""
        self.offsets.write_counts()
        for queue in self.queues.values():
            self._keep_shared(queue)
        self.offsets.write_shared()

    def _keep_shared(self, queue: DatabaseQueue) -> None:
        shared = queue.offset.shared
        if shared.reached and queue.settled is not None:
            last = queue.settled[0][:2]
            shared.advance(shared.after((), last, self.backlog.holds), last)
            self.offsets.keep_shared(queue.database, shared.reached, last)

    def _write_positions(self) -> None:
        """Let Kafka know, now and then, how far each database has come."""
        now = monotonic()
        if now < self._next_positions:
            return
        self._next_positions = now + _OFFSETS_S
        for queue in self.queues.values():
            self._keep_shared(queue)
        if not self.offsets.is_read:
            return
        for queue in self.queues.values():
            if queue.settled is None or queue.settled[0][:2] <= queue.offset.done:
                continue
            entry, pos = queue.settled
            epoch, sequence, uuid = entry[:3]
            position = Offset(
                queue.database, epoch, sequence, uuid, pos, True, now_us(), runs_of([entry]),
                self.offsets.folder, self.offsets.place, queue.offset.shared.reached,
            )  # fmt: skip
            try:
                self._produce_record(*position.record(), position)
            except BufferError:
                return
            queue.offset.done = position.number

    def _look_again(self) -> None:
        self.offsets.forget()
        for queue in self.queues.values():
            queue.offset.done = (-1, -1)

    def _position_taken(self, position: Offset) -> None:
        self.offsets.note(position)

    def _position_failed(self, error: KafkaError) -> None:
        if error.code() in UNUSABLE:
            self.offsets.forget()
            self._go_without_positions(error.str())

    def _advance(self, queue: DatabaseQueue) -> bool:
        """Give QUEUE its turn; True if it moved."""
        if self.plan.failures != self._failures_seen or queue.failing:
            failed = next((send for send in queue.sends if send.failed is not None), None)
            queue.failing = failed is not None
            if failed is not None:
                if queue.unacked:
                    return False
                queue.failing = False
                self._take_failure(queue, failed)
                return True
        moved = False
        budget = self.limits.events_per_turn
        room = JOURNALS_IN_FLIGHT - self.in_flight
        while budget > 0:
            send = queue.sends[-1] if queue.sends else None
            if send is not None and not queue.backoff.is_over:
                break
            if send is None or send.read_to_end:
                if room <= 0 or not self._ready(queue):
                    break
                most = min(room, budget)
                try:
                    begun, messages = self.small.send(queue, self.link.producer, most)
                except KafkaException as error:
                    queue.sends[-1].refuse(error.args[0])
                    return True
                if begun:
                    moved = True
                    room -= begun
                    budget -= begun + messages
                    continue
                send = queue.begin(self.plan)
                room -= 1
            if queue.one_at_a_time is not None and queue.one_at_a_time == send.entry.uuid:
                if send.unacked:
                    break
                budget = 1
            before = send.messages
            try:
                took_all = send.produce(self.link.producer, budget)
            except (BadEvent, JournalError, OSError) as error:
                self.take_bad(queue, send, error)
                return True
            except Obstacle as error:
                # What was sent of the journal stays sent, and the next turn goes on behind it.
                self.back_off(queue, error, send)
                return True
            except KafkaException as error:
                send.refuse(error.args[0])
                return True
            moved = moved or took_all or send.messages > before
            if not took_all or not send.read_to_end:
                break
            # An empty journal costs a turn's time too.
            budget -= send.messages - before + 1
        return moved

    def _take_damaged(self, queue: DatabaseQueue, send: Send, reason: str) -> None:
        del queue  # it goes on with the next one
        send.end_early(reason)  # what was sent of it has to be acknowledged first

    def _take_failure(self, queue: DatabaseQueue, failed: Send) -> None:
        """All of QUEUE's messages are answered, one of them with a refusal or a failure."""
        error = failed.failed
        assert error is not None
        if is_refusal(error) and queue.one_at_a_time == failed.entry.uuid:
            self.take_bad(queue, failed, BadEvent(failed.place, f"Kafka refuses it: {error.str()}"))
        elif is_refusal(error):
            # A batch shares the fate of one message; sent one by one, the culprit shows itself.
            queue.one_at_a_time = failed.entry.uuid
            queue.start_over()
        else:
            queue.start_over()
            self.back_off(queue, self._why(failed), failed)

    def _renew(self) -> bool:
        """The producer has given up for good: make a new one, after a pause, and send all again
        that is open. Returns whether that was done."""
        fatal = self.link.fatal
        assert fatal is not None
        now = monotonic()
        if self._renew_at == 0.0:
            self._renew_at = now + self._renew_pause_s
            self._renew_pause_s = min(self._renew_pause_s * 2, MAX_BACKOFF_S)
            self.link.note_away(fatal.str())
        if now < self._renew_at:
            return False
        self._renew_at = 0.0
        _log.info("the Kafka client gave up ({}); going on with a new one", fatal.str())
        for queue in self.queues.values():
            begun = list(queue.sends)
            queue.start_over()
            if begun:
                self.back_off(queue, fatal.str(), begun[0])
        self.redelivery.start_over()
        self._replace_producer()
        return True

    def _give_up_all(self) -> None:
        """Kafka has not answered for too long."""
        why = f"Kafka has not answered for {self.limits.attempt_s:.0f} s each time"
        for queue in self.queues.values():
            if queue.pending and queue.halt is None:
                queue.failures = self.limits.max_retries + 1
                self.give_up(queue, why)
        self.redelivery.start_over()
        self._replace_producer()
        self.link.note_start()
