"""Small transactions on their way to Kafka, many in one go: each is read, rendered and handed over
as a whole, which takes a fraction of what a ``JournalSend`` does. To that is left what is unusual
in any way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from confluent_kafka import KafkaError

from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import SmallRenderer
from firebird_cdc.journal.format.row_decoder import UndecodedChange
from firebird_cdc.journal.shipper.delivery.database_queue import DatabaseQueue
from firebird_cdc.journal.shipper.delivery.sending import Send, SendContext
from firebird_cdc.journal.shipper.delivery.tally import FILTERED, Kind, count
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.client import Sender, hand_over
from firebird_cdc.journal.shipper.monitoring.statistics import LastEvent


class SmallSend(Send):
    """The sending of one small transaction, of which all is rendered: CHANGES, each with its
    messages, none if the configuration gives it none."""

    unacked = 0
    told = 0
    has_placeholders = False

    def __init__(
        self,
        plan: SendContext,
        entry: Entry,
        database: str,
        changes: Sequence[UndecodedChange],
        rendered: Sequence[Sequence[Message]],
    ) -> None:
        super().__init__(plan, entry, database)
        kinds: list[Kind] = []
        for change, messages in zip(changes, rendered, strict=True):
            if messages:
                self.pos = self.place = change.pos
                kinds.append((change.table.name, change.op))
            else:
                kinds.append(FILTERED)
        self._kinds: Sequence[Kind] = kinds
        self._held = rendered[0] if len(rendered) == 1 else list(chain.from_iterable(rendered))
        self._last_table = changes[-1].table.name

    @property
    def sent_to(self) -> int:
        """The last change, if all messages were handed over."""
        return self.pos if self.read_to_end else 0

    @property
    def delivered(self) -> bool:
        """Tell whether Kafka has acknowledged every message."""
        return self.read_to_end and not self.unacked and self.failed is None

    @property
    def progress(self) -> int:
        """Number that grows as messages are handed over and answered."""
        return self.messages + self.read_to_end - self.unacked

    @property
    def length(self) -> int:
        """Its bytes."""
        place = self.entry.place
        return 0 if place is None else place.stamp.journal_length

    @property
    def last_event(self) -> LastEvent | None:
        """Its last event."""
        _, sequence, uuid, _, place, _ = self.entry
        if place is None:
            return None
        _, _, commit_us, _, _, events, transaction, _ = place.stamp
        return LastEvent(self._last_table, uuid, sequence, events, transaction, commit_us)

    def produce(self, producer: Sender, limit: int) -> bool:  # noqa: ARG002 - all of it at once
        """Hand over what is left; False if the queue is full. Raises as `Send`."""
        held, plan = self._held, self._plan
        taken, refusal = hand_over(producer, held, self.report)
        self.unacked += taken
        plan.unacked += taken
        self.messages += taken
        if refusal is not None:
            self.failed_topic = held[taken].topic
            raise refusal
        if taken < len(held):
            self._held = held[taken:]
            return False
        self._held = ()
        self.read_to_end = True
        if not self.unacked and plan.counts_at_once:
            self.tell()
        return True

    def report(self, error: KafkaError | None, message: Any) -> None:
        """Take the answer to one message."""
        plan = self._plan
        self.unacked -= 1
        plan.unacked -= 1
        error = plan.failure_of(error, message)
        if error is not None:
            self.refuse(error, message.topic())
            return
        plan.acknowledged += 1
        if not self.unacked and plan.counts_at_once and not self._is_closed:
            self.tell()

    def tell(self) -> None:
        """Give the statistics what is acknowledged and will stay."""
        if self.told or not self.delivered:
            return
        self.told = len(self._kinds)
        statistics = self._plan.statistics.database(self.database)
        for kind in self._kinds:
            count(statistics, kind)


class SmallSender:
    """Sends small transactions for one delivery, as PLAN says."""

    def __init__(self, plan: SendContext) -> None:
        self._plan = plan
        self._renderers: dict[str, SmallRenderer] = {}

    def send(self, queue: DatabaseQueue, producer: Sender, most: int) -> tuple[int, int]:
        """Begin and hand over what comes next in QUEUE, whose ``ready`` must have said yes, as long
        as that is small and usual; return how many transactions and messages, of which there are
        MOST in all, but for the rest of the last transaction.

        Where the producer's queue is full, the last one is not handed over to its end. Raises
        KafkaException if the producer refuses a message of the last one on the spot.
        """
        begun = messages = 0
        if self._plan.quarantine.watches_tables:
            return begun, messages
        renderer = self._renderer(queue.database)
        try:
            for entry in queue.following(most):
                send = self._made(entry, renderer)
                if send is None:
                    break
                begun += 1
                queue.start(send)
                is_taken = send.produce(producer, most)
                messages += send.messages
                if not is_taken or begun + messages >= most:
                    break
        finally:
            queue.backlog.skip(begun)
        return begun, messages

    def _renderer(self, database: str) -> SmallRenderer:
        renderer = self._renderers.get(database)
        if renderer is None:
            signals = self._plan.signals.get(database)
            renderer = self._renderers[database] = SmallRenderer(
                self._plan.renderer, database, None if signals is None else signals.table
            )
        return renderer

    def _made(self, entry: Entry, renderer: SmallRenderer) -> SmallSend | None:
        """Return the sending of ENTRY, None if that is left to others."""
        plan, place, database = self._plan, entry.place, renderer.database
        quarantine = plan.quarantine
        try:
            content, changes = plan.journals.small_changes(entry)
        except OSError:
            return None
        if not changes or place is None or quarantine.has_note_of(entry.uuid):
            return None
        rendered = renderer.messages(entry.uuid, place.stamp, content, changes)
        if rendered is None:
            return None
        if quarantine.watching:
            for change, messages in zip(changes, rendered, strict=True):
                if messages:
                    quarantine.see(entry, database, change.pos, messages)
        return SmallSend(plan, entry, database, changes, rendered)
