"""The messages of a journal in the quarantine on their way, marked as late ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import logbook
from confluent_kafka import KafkaError

from firebird_cdc.errors import JournalError, Obstacle
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.headers import HeaderWriter
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.format import Gap, JournalReader, SequenceChange
from firebird_cdc.journal.shipper.delivery.send import SendContext, seen_of
from firebird_cdc.journal.shipper.delivery.tally import PLACED, Kind, counted_as
from firebird_cdc.journal.shipper.inbox.backlog import Entry
from firebird_cdc.journal.shipper.kafka.client import Sender, hand_over, is_refusal

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.resend")

LATE_HEADER = "__firebird_cdc.late"
"""Header of a late event: JSON with ``set_aside_at`` and ``reason``."""

CHANGES_PER_TURN = 500
"""Changes read in one turn of the shipping thread."""

MOST_PROBLEMS = 20
"""Events of one journal that are refused again before its retry ends."""


@dataclass(slots=True)
class _Open:
    """An event that was handed over and is not wholly answered. ``left``: its messages that are
    not; ``kind``: what the statistics count it as."""

    left: int
    kind: tuple[str, str]
    is_refused: bool = False


class RedeliverySend:
    """The late events of one journal on their way.

    ``is_careful``: one after the other, each answered before the next is sent. ``unacked``:
    messages without an answer; ``sent``: events that Kafka took; ``problems``: those that can't be
    sent, and why; ``is_read``: nothing more will be handed over.
    """

    def __init__(
        self, plan: SendContext, note: Note, *, is_careful: bool = False, sent: int = 0
    ) -> None:
        self.note = note
        self.path = plan.quarantine.folder / f"{note.uuid}.log"
        self.is_careful = is_careful
        self.unacked = 0
        self.sent = sent
        self.is_read = False
        self.problems: dict[int, str] = {}
        self.broken = ""
        self.database = ""
        self.counts: dict[Kind, int] = {}
        self._placed: set[int] = set()  # events with placeholders
        self._plan = plan
        self._reached = 0
        self._taken = 0
        self._is_whole = False
        self._refused_from: int | None = None  # the first event that Kafka refused
        self._open: dict[int, _Open] = {}
        # Taken before all events in front of them were: the number and what each was counted as.
        self._ahead: deque[tuple[int, tuple[Kind, ...]]] = deque()
        self._held: Sequence[Message] = ()
        self._held_pos = 0
        self._batches = self._rendered()

    @property
    def is_over(self) -> bool:
        """Tell whether everything is handed over and answered."""
        return self.is_read and self.unacked == 0

    @property
    def is_sent(self) -> bool:
        """Tell whether all that was left out was taken by Kafka, or is not captured any more."""
        return self.is_over and self._is_whole and not self.problems

    @property
    def wants_care(self) -> bool:
        """Tell whether a message was refused, perhaps only because of another one in its batch."""
        return self._refused_from is not None and not self.is_careful

    def close(self) -> None:
        """Close the file; answers that come later are of no interest."""
        self._batches.close()
        self._plan.unacked -= self.unacked
        self.unacked = 0
        self._open.clear()
        self.is_read = True

    def give_up(self, why: str) -> None:
        """Hand over no more."""
        self.broken = why
        self._batches.close()
        self.is_read = True

    def produce(self, producer: Sender) -> bool:
        """Hand over some more; whether that went on."""
        moved = False
        for _ in range(CHANGES_PER_TURN):
            if self.wants_care:  # all from that event on is sent again
                self._batches.close()
                self.is_read = True
            if self.is_read or (self.is_careful and self.unacked):
                break
            if not self._held and not self._next():
                break
            moved = True
            if not self._hand_over(producer):
                break
        return moved

    def _next(self) -> bool:
        """Have the messages of the next event at hand; False at the end."""
        if len(self.problems) < MOST_PROBLEMS:
            try:
                batch = next(self._batches, None)
            except (JournalError, OSError, Obstacle) as error:
                self.broken = str(error)
            else:
                if batch is not None:
                    self._held_pos, kind, messages = batch
                    if messages:
                        self._open[self._held_pos] = _Open(len(messages), kind)
                        self._held = messages
                    return True
                self._is_whole = True
        self._batches.close()
        self.is_read = True
        return False

    def _hand_over(self, producer: Sender) -> bool:
        pos = self._held_pos
        taken, refusal = hand_over(producer, self._held, partial(self._report, pos))
        self.unacked += taken
        self._plan.unacked += taken
        left = len(self._held) - taken
        if refusal is not None:
            self._held = ()
            self._answered(pos, left, refusal.args[0])
        else:
            self._held = self._held[taken:]
        return not self._held

    def _report(self, pos: int, error: KafkaError | None, message: Any) -> None:
        if pos not in self._open:
            return  # closed meanwhile
        self.unacked -= 1
        self._plan.unacked -= 1
        error = self._plan.failure_of(error, message)
        if error is None:
            self._plan.acknowledged += 1
        self._answered(pos, 1, error)

    def _answered(self, pos: int, messages: int, error: KafkaError | None) -> None:
        event = self._open[pos]
        event.left -= messages
        if error is not None:
            event.is_refused = True
            self.problems.setdefault(pos, f"Kafka refuses it: {error.str()}")
            if is_refusal(error) and pos < (self._refused_from or pos + 1):
                self._refused_from = pos
        if event.left == 0:
            del self._open[pos]
            if not event.is_refused:
                self.sent += 1
                self._taken = max(self._taken, pos)
                kinds: tuple[Kind, ...] = (event.kind, PLACED)[: 1 + (pos in self._placed)]
                for kind in kinds:
                    self.counts[kind] = self.counts.get(kind, 0) + 1
                if not self.is_careful:
                    self._ahead.append((pos, kinds))
            if self._refused_from is None:
                first_open = next(iter(self._open), self._held_pos + 1)
                while self._ahead and self._ahead[0][0] < first_open:
                    self._ahead.popleft()

    def _rendered(self) -> Generator[tuple[int, tuple[str, str], Sequence[Message]], None, None]:
        """Yield the number of each late event, its kind, and its messages with the header; now
        and then none, to let others have their turn."""
        plan, note = self._plan, self.note
        with JournalReader(self.path, plan.none_charset) as reader:
            stamp = reader.stamp
            if stamp is None:
                raise JournalError(self.path, 1024, "it has no stamp")
            entry = Entry(stamp.epoch, stamp.sequence, reader.header.uuid)
            database = self.database = reader.database
            # Without BEGIN and END: those of its transaction were sent, and counted without it.
            renderer = plan.renderer.journal(reader.header, stamp, database, alone=True)
            passed = 0
            for change in reader.changes():
                passed += 1
                if passed % CHANGES_PER_TURN == 0:
                    yield 0, ("", ""), ()
                if isinstance(change, SequenceChange):
                    continue
                reason = note.reason_at(change.pos)
                if reason is None:
                    continue
                if isinstance(change, Gap):
                    _log.error(
                        "{}: event {} marks a gap: {}; Kafka gets no message for it",
                        self.path,
                        change.pos,
                        change.reason,
                    )
                    continue
                placed = renderer.reduced
                try:
                    messages = renderer.messages(change)
                except BadEvent as error:
                    self.problems[change.pos] = str(error)
                    messages = []
                self._reached = change.pos
                if renderer.reduced != placed:
                    self._placed.add(change.pos)
                if messages:
                    seen = seen_of(plan.quarantine, renderer, change, messages)
                    plan.quarantine.see(entry, database, change.pos, seen, is_late=True)
                    writer = plan.renderer.writer.header_writer
                    marked = [_marked(each, note, reason, writer) for each in messages]
                    yield change.pos, counted_as(change), marked

    @property
    def trouble(self) -> str:
        """Reason why not all was sent."""
        if self.problems:
            pos, problem = min(self.problems.items())
            return f"event {pos}: {problem}"
        return self.broken

    def rest(self) -> Note:
        """Return a note of what is still not sent, once everything is answered."""
        return self._rest_behind(None if self._is_whole else self._reached, self.problems)

    def _rest_behind(self, reached: int | None, problems: dict[int, str]) -> Note:
        """Return a note of PROBLEMS and of all behind event REACHED; None: nothing is behind it."""
        note = self.note
        rest = replace(note, left_out=[], rest_after=None, reasons=list(note.reasons))
        for pos, problem in sorted(problems.items()):
            rest.add(pos, problem)
        if reached is not None:
            rest.left_out += [
                each._replace(first=max(each.first, reached + 1))
                for each in note.left_out
                if each.last > reached
            ]
        if note.rest_after is not None:
            rest.rest_after = None if reached is None else max(note.rest_after, reached)
            rest.rest_reason = self.broken or note.rest_reason
        if note.newer is None and problems and self._taken > min(problems):
            rest.newer = f"event {self._taken} of the same journal, by a retry"
        return rest

    def again(self, *, is_aborted: bool) -> RedeliverySend:
        """The same once more, with care; ``is_aborted``: nothing of it became visible.

        Without a Kafka transaction, what was taken behind the first refused event is repeated:
        the last event of a key has to be its newest.
        """
        if is_aborted:
            return RedeliverySend(self._plan, self.note, is_careful=True)
        first = self._take_back()
        before = {pos: problem for pos, problem in self.problems.items() if pos < first}
        note = self._rest_behind(first - 1, before)
        again = RedeliverySend(self._plan, note, is_careful=True, sent=self.sent)
        again.counts = self.counts
        return again

    def _take_back(self) -> int:
        """Count what was taken behind the first refused event as not sent; return its number."""
        first = self._refused_from
        assert first is not None
        for pos, kinds in self._ahead:
            if pos > first:
                self.sent -= 1
                for kind in kinds:
                    self.counts[kind] -= 1
        return first


def _marked(message: Message, note: Note, reason: str, writer: HeaderWriter) -> Message:
    """MESSAGE with the header that says that it comes late."""
    value = writer.told({"set_aside_at": note.at, "reason": reason})
    return message._replace(headers=[*message.headers, (LATE_HEADER, value)])
