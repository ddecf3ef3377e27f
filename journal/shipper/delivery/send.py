"""One journal on its way to Kafka: read, rendered and handed to the producer as a stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import logbook
from confluent_kafka import KafkaError

from firebird_cdc.errors import Obstacle, RegistryRefused
from firebird_cdc.journal.events.bad_event import (
    BEGIN,
    END,
    NEW_EPOCH,
    OUT_OF_BAND,
    BadEvent,
    NamelessEvent,
)
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import JournalRenderer
from firebird_cdc.journal.format import DdlChange, Gap, RowChange
from firebird_cdc.journal.shipper.delivery.sending import MARKED, RESTORED, Send, SendContext
from firebird_cdc.journal.shipper.delivery.tally import (
    FILTERED,
    NOTHING,
    PLACED,
    Kind,
    Tally,
    counted_as,
)
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.client import Sender, hand_over
from firebird_cdc.journal.shipper.monitoring.statistics import LastEvent
from firebird_cdc.journal.shipper.quarantine import Quarantine
from firebird_cdc.journal.shipper.unsent_values import UnsentEvents

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.send")

_LEFT_OUT: Sequence[Message] = []
"""The messages of a change that is left out."""

_NOTHING: Mapping[int, str] = {}


class _Step:
    """The messages of one journal that were handed over in one go, and what they count as."""

    __slots__ = ("_plan", "_send", "counts", "has_failed", "pos", "unacked")

    def __init__(self, send: JournalSend, plan: SendContext) -> None:
        self.unacked = 0
        self.has_failed = False
        self.counts: Mapping[Kind, int] = NOTHING
        self.pos = 0
        self._send = send
        self._plan = plan

    def report(self, error: KafkaError | None, message: Any) -> None:
        """Take the answer to one message."""
        plan = self._plan
        self.unacked -= 1
        plan.unacked -= 1
        error = plan.failure_of(error, message)
        if error is None:
            plan.acknowledged += 1
            if not self.unacked:
                self._send.take_steps()
            return
        self.has_failed = True
        self._send.refuse(error, message.topic())


class Part:
    """The part of a journal that goes into one Kafka transaction: all, if ``begin`` isn't called.

    ``sent_to``: the change of which all messages were handed over last. ``most``: of the messages
    of the journal, how many there may be when the part ends. ``is_full``: the next change doesn't
    fit, and none of its messages was handed over.
    """

    __slots__ = ("_begun_at", "is_full", "most", "sent_to")

    def __init__(self, resume_after: int) -> None:
        self.sent_to = self._begun_at = resume_after
        self.most = sys.maxsize
        self.is_full = False

    def begin(self, messages: int, most: int) -> None:
        """Begin the next part, of MOST messages, behind the first MESSAGES of the journal. A change
        that has more messages than that is a part of its own."""
        self._begun_at = self.sent_to
        self.most = messages + most
        self.is_full = False

    @property
    def has_changes(self) -> bool:
        """Tell whether it may end here."""
        return self.sent_to > self._begun_at


class JournalSend(Send):
    """The sending of one journal, from its first event or after ``resume_after``.

    ``skipped``: positions of events to leave out, those of OUT_OF_BAND among them, and why.
    ``left_out_tables``: of which no change is sent, as rows of a snapshot have them. Holds one
    open file until ``close``, and the messages of one change at most; what the producer holds is
    bounded by its own limits. ``part``: what goes into one Kafka transaction. ``tally``: what of it
    counts.
    """

    def __init__(
        self,
        plan: SendContext,
        entry: Entry,
        database: str,
        *,
        skipped: Mapping[int, str] | None = None,
        left_out_tables: AbstractSet[str] = frozenset(),
        resume_after: int = 0,
        counted: int = 0,
        opens_epoch: bool = False,
    ) -> None:
        super().__init__(plan, entry, database)
        self.opens_epoch = opens_epoch
        self.pos = self.place = self.resume_after = resume_after
        self.tally = Tally(plan.statistics.database(database), counted)
        self._taken = 0
        self._steps: list[_Step] = []
        self._skipped = skipped or _NOTHING
        self._left_out_tables = left_out_tables
        if skipped:  # what goes before the events is behind one that goes on among them
            self.left_out = skipped.keys() & ({END} if resume_after else OUT_OF_BAND.keys())
        self._held: Sequence[Message] = ()
        self._unsent = UnsentEvents(plan.undecoded[database])
        self.part = Part(resume_after)
        self._changes = self._rendered()

    @property
    def sent_to(self) -> int:
        """The last change of which all messages were handed over."""
        return self.part.sent_to

    @property
    def told(self) -> int:
        """Up to which change the statistics have counted it."""
        return self.tally.told

    @property
    def length(self) -> int:
        """Its bytes, once it is read."""
        return self.tally.length

    @property
    def last_event(self) -> LastEvent | None:
        """Its last event, once it is read."""
        return self.tally.last_event

    @property
    def has_placeholders(self) -> bool:
        """Tell whether some were handed over."""
        return self.tally.has_placeholders

    @property
    def unacked(self) -> int:
        """Messages that were handed over and are not answered yet."""
        return sum(step.unacked for step in self._steps)

    @property
    def delivered(self) -> bool:
        """Tell whether Kafka has acknowledged every message of the journal."""
        return self.read_to_end and not self._steps and self.failed is None

    @property
    def progress(self) -> int:
        """Number that grows as changes are read and messages answered."""
        return self._taken + self.messages - self.unacked

    @property
    def between_changes(self) -> bool:
        """Tell whether all messages of change ``pos`` are handed over and nothing after them."""
        return not self._held and self.place == self.pos

    def close(self) -> None:
        """Close the file; what is answered later counts in the next attempt, if there is one."""
        super().close()
        self._changes.close()

    def tell(self) -> None:
        """Give the statistics what is acknowledged and will stay."""
        self.tally.tell()

    def produce(self, producer: Sender, limit: int) -> bool:
        """Hand over the messages of the next changes, as every `Send` does."""
        step = _Step(self, self._plan)
        try:
            return self._send(step, producer, limit)
        finally:
            if self._unsent.new:
                self._count_unsent()
            step.counts, step.pos = self.tally.cut(is_whole=not self._held)
            if step.unacked or step.counts:
                self._steps.append(step)
                if not step.unacked:
                    self.take_steps()

    def _send(self, step: _Step, producer: Sender, limit: int) -> bool:
        changes, report = self._changes, step.report
        plan, part = self._plan, self.part
        for _ in range(limit):
            batch: Sequence[Message] | Obstacle | None = self._held or next(changes, None)
            if batch is None:
                self.read_to_end = True
                return True
            if isinstance(batch, Obstacle):
                raise batch
            if self.messages + len(batch) > part.most and part.has_changes:
                self._held = batch
                part.is_full = True
                return True
            taken, refusal = hand_over(producer, batch, report)
            step.unacked += taken
            plan.unacked += taken
            self.messages += taken
            if refusal is not None:
                self.failed_topic = batch[taken].topic
                step.has_failed = True
                raise refusal
            if taken < len(batch):
                self._held = batch[taken:]
                return False
            self._held = ()
            part.sent_to = self.pos
        self._taken += limit
        return True

    def take_steps(self) -> None:
        """Let those steps go of which all is acknowledged, in order, and count them."""
        steps, tally = self._steps, self.tally
        while steps:
            step = steps[0]
            if step.unacked or step.has_failed:
                break
            del steps[0]
            if not self._is_closed:
                tally.take(step.counts, step.pos)
        if self._plan.counts_at_once and not self._is_closed:
            tally.tell()

    def _rendered(self) -> Generator[Sequence[Message] | Obstacle, None, None]:
        """Yield the messages of one change after the other, and those at the journal's end."""
        plan = self._plan
        with plan.journals.open(self.entry) as reader:
            stamp = reader.stamp
            assert stamp is not None
            tally, skipped = self.tally, self._skipped
            left_out_tables = self._left_out_tables
            signals = plan.signals.get(self.database)
            tally.length = stamp.journal_length
            counts, told = tally.handed, tally.told
            last: RowChange | DdlChange | None = None
            placed = 0
            renderer = plan.renderer.journal(reader.header, stamp, self.database)
            render = renderer.messages
            unsent = plan.renderer.rules.unsent
            quarantine = plan.quarantine
            left_out = quarantine.begin(self.entry.uuid, self.resume_after)
            if self.opens_epoch and NEW_EPOCH not in skipped:
                opening = yield from self._attempts(renderer.new_epoch)
                if opening:
                    self.place = NEW_EPOCH
                    yield opening
            if self.opens_epoch:
                plan.on_loss(self.database, RESTORED, self.entry[:2])
            for change in reader.changes():
                if type(change) is not RowChange and not isinstance(change, DdlChange):
                    if isinstance(change, Gap):
                        self._tell_gap(change)
                    continue
                pos = change.pos
                is_left_out = bool(left_out_tables) and _is_of(change, left_out_tables)
                if pos <= self.resume_after:
                    if not is_left_out and (left_out is None or left_out.reason_at(pos) is None):
                        yield (yield from self._attempts(partial(renderer.pass_over, change)))
                        placed = renderer.reduced
                    continue
                if signals is not None and isinstance(change, RowChange):
                    signals.saw(change, self.entry[:2])
                messages: Sequence[Message]
                unsent_before = unsent.count
                if is_left_out:
                    messages = ()
                elif pos in skipped:
                    messages = self._left_out(renderer, change, skipped[pos])
                else:
                    try:
                        messages = render(change)
                    except (Obstacle, BadEvent) as error:
                        messages = yield from self._attempts(
                            partial(render, change), renderer, change, error
                        )
                if self.read_to_end:
                    return
                last = change
                if renderer.awaits_begin and BEGIN not in skipped:
                    begin = yield from self._attempts(renderer.begin)
                    if begin:
                        self.place = BEGIN
                        yield begin
                if messages:
                    self.place = self.pos = pos
                    if quarantine.watching:
                        seen = seen_of(quarantine, renderer, change, messages)
                        quarantine.see(self.entry, self.database, pos, seen)
                tally.read = pos
                if pos > told and messages is not _LEFT_OUT:
                    tally.kind = kind = counted_as(change) if messages else FILTERED
                    counts[kind] = counts.get(kind, 0) + 1
                else:
                    tally.kind = None
                if tally.is_placed or renderer.reduced != placed:
                    self._count_placeholders(renderer.reduced - placed)
                    placed = renderer.reduced
                if messages is _LEFT_OUT or (messages and unsent.count != unsent_before):
                    self._unsent.add(renderer, change)
                # Also what gives no message takes its time, and has its part in a turn.
                yield messages
            if renderer.reduced:
                _log.warning(
                    "{}: in {} of its events placeholders stand for values that are too large; the"
                    " first is {}",
                    self.path,
                    renderer.reduced,
                    renderer.first_reduced,
                )
            self._tell_unsent()
            if last is not None:
                tally.last_event = LastEvent(
                    counted_as(last)[0],
                    self.entry.uuid,
                    stamp.sequence,
                    last.pos,
                    stamp.transaction,
                    stamp.commit_us,
                )
            if renderer.metadata is not None and END not in skipped:
                messages = yield from self._attempts(renderer.finish)
                if messages:
                    self.place = END
                    yield messages

    def _count_unsent(self) -> None:
        for kind, found in self._unsent.taken().items():
            self._plan.unsent.count_unsent(
                self.database, kind, self.entry.uuid, self.entry[:2], found
            )

    def _tell_unsent(self) -> None:
        unsent = self._unsent
        if unsent.unread:
            _log.error(
                "{}: in {} of its events placeholders stand for BLOBs that the engine did not"
                " give to the plugin; the first is {}",
                self.path,
                unsent.unread,
                unsent.first_unread,
            )
        if unsent.first_undecoded:
            _log.error(
                "{}: placeholders stand for values that could not be decoded: {}. Further events"
                " with such values of the same columns are counted, and not told here",
                self.path,
                unsent.first_undecoded,
            )

    def _count_placeholders(self, count: int) -> None:
        """Count the change that was rendered last if it has some; COUNT: 1 then, else 0."""
        tally = self.tally
        tally.is_placed = bool(count) and tally.kind not in (None, FILTERED)
        if tally.is_placed:
            tally.handed[PLACED] = tally.handed.get(PLACED, 0) + 1
            tally.has_placeholders = True

    def _tell_gap(self, gap: Gap) -> None:
        _log.error(
            "{}: event {} marks a gap: {}; Kafka gets no message for it",
            self.path,
            gap.pos,
            gap.reason,
        )
        self._plan.on_loss(self.database, MARKED, (*self.entry[:2], gap.pos))

    def _attempts(
        self,
        render: Callable[[], Sequence[Message]],
        renderer: JournalRenderer | None = None,
        change: RowChange | DdlChange | None = None,
        failure: Obstacle | BadEvent | None = None,
    ) -> Generator[Obstacle, None, Sequence[Message]]:
        """Yield the obstacles of RENDER, and return its messages, none for a bad event (CHANGE)
        that is to be left out.

        Yields the error while a topic can't be made or the schema registry can't be used, or says
        no to an event that must not be left out, and tries again: an administrator may change that.
        FAILURE: what the first attempt, that was made already, came to.
        """
        while True:
            try:
                if failure is not None:
                    first, failure = failure, None
                    raise first
                return render()
            except Obstacle as error:
                yield error
            except BadEvent as error:
                is_nameless = isinstance(error, NamelessEvent)
                if self._plan.failure_mode != "fail" or is_nameless:
                    self.report_left_out(error)
                    if renderer is None or change is None:
                        self.left_out |= {error.pos}
                        return ()
                    return self._left_out(renderer, change, str(error), is_nameless=is_nameless)
                if not _registry_refused(error):
                    raise
                yield RegistryRefused(f"{error.where}: {error.told}")

    def _left_out(
        self,
        renderer: JournalRenderer,
        change: RowChange | DdlChange,
        reason: str,
        *,
        is_nameless: bool = False,
    ) -> Sequence[Message]:
        """Note that CHANGE is not sent: no messages, and the end where there is no more room."""
        quarantine, entry, database = self._plan.quarantine, self.entry, self.database
        table: str | None = None
        if is_nameless and isinstance(change, RowChange):
            table, concerned = change.table.name, renderer.by_table(change)
        else:
            concerned = renderer.concerned(change)
        quarantine.name(entry, database, change.pos, renderer.whose(change))
        if not quarantine.leave_out(entry, database, change.pos, reason, concerned, table):
            self.end_early("too many of its events can't be sent, the last one because " + reason)
        return _LEFT_OUT


def _is_of(change: RowChange | DdlChange, tables: AbstractSet[str]) -> bool:
    return isinstance(change, RowChange) and change.table.name in tables


def _registry_refused(error: BaseException) -> bool:
    """Tell whether ERROR was caused by a refusal of the schema registry."""
    cause = error.__cause__
    return cause is not None and (isinstance(cause, RegistryRefused) or _registry_refused(cause))


def seen_of(
    quarantine: Quarantine,
    renderer: JournalRenderer,
    change: RowChange | DdlChange,
    messages: Sequence[Message],
) -> Sequence[Message]:
    """Return what QUARANTINE has to see of CHANGE: its MESSAGES, and if it watches for tables what
    stands for these."""
    if not quarantine.watches_tables:
        return messages
    named = renderer.by_table(change)
    if isinstance(named, str):
        named = [(named, None)]
    return [*messages, *(Message(topic, key, None, []) for topic, key in named or ())]
