"""Sends what was left out of journals in the quarantine, when somebody asks for it.

A late event keeps its place in the history (``source``), and has a header that says that it comes
late. It goes out between the journals that are shipped just then, so it may come behind newer
events; behind one of the same key only where that is asked for.

Without a transactional id an event may be sent twice, if the shipper dies between the
acknowledgement and the removal of the journal. With one, all late events of a journal are in one
Kafka transaction together with a record that names the journal (``journal.positions``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

import logbook
from confluent_kafka import KafkaError, KafkaException

from firebird_cdc.errors import JournalError, Obstacle
from firebird_cdc.journal.backlog import Entry
from firebird_cdc.journal.bad_event import BadEvent
from firebird_cdc.journal.dispose import dispose_shipped
from firebird_cdc.journal.flight import FlightPlan, seen_of
from firebird_cdc.journal.format import Gap, JournalReader, SequenceChange
from firebird_cdc.journal.producer import Sender, is_refusal
from firebird_cdc.journal.quarantine import refusal
from firebird_cdc.journal.quarantine_note import Note
from firebird_cdc.journal.records import Message
from firebird_cdc.journal.tally import PLACED, Kind, counted_as

if TYPE_CHECKING:
    from firebird_cdc.journal.header_values import HeaderWriter
    from firebird_cdc.journal.repair_desk import RepairFlight, RepairOutcome, Repairs
    from firebird_cdc.journal.repairs import Place

_log = logbook.Logger("firebird_cdc.journal.late")

LATE_HEADER = "__firebird_cdc.late"
"""Header of a late event: JSON with ``set_aside_at`` and ``reason``."""

CHANGES_PER_TURN = 500
"""Changes read in one turn of the shipping thread."""

MOST_PROBLEMS = 20
"""Events of one journal that are refused again before its retry ends."""


class Outcome(NamedTuple):
    """What became of a retry. ``text``: one sentence."""

    is_sent: bool
    text: str


@dataclass(slots=True)
class _Open:
    """An event that was handed over and is not wholly answered. ``left``: its messages that are
    not; ``kind``: what the statistics count it as."""

    left: int
    kind: tuple[str, str]
    is_refused: bool = False


class LateFlight:
    """The late events of one journal on their way.

    ``is_careful``: one after the other, each answered before the next is sent. ``unacked``:
    messages without an answer; ``sent``: events that Kafka took; ``problems``: those that can't be
    sent, and why; ``is_read``: nothing more will be handed over.
    """

    def __init__(
        self, plan: FlightPlan, note: Note, *, is_careful: bool = False, sent: int = 0
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
        self._held: deque[Message] = deque()
        self._held_pos = 0
        self._batches = self._rendered()

    @property
    def is_over(self) -> bool:
        """Whether everything is answered."""
        return self.is_read and self.unacked == 0

    @property
    def is_sent(self) -> bool:
        """Whether all that was left out was taken by Kafka, or is not captured any more."""
        return self.is_over and self._is_whole and not self.problems

    @property
    def wants_care(self) -> bool:
        """Whether a message was refused that may only have shared the fate of its batch."""
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

    def send(self, producer: Sender) -> bool:
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
                        self._held.extend(messages)
                    return True
                self._is_whole = True
        self._batches.close()
        self.is_read = True
        return False

    def _hand_over(self, producer: Sender) -> bool:
        pos = self._held_pos
        while self._held:
            message = self._held[0]
            try:
                producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    headers=message.headers,
                    on_delivery=partial(self._report, pos),
                )
            except BufferError:
                return False
            except KafkaException as error:
                count = len(self._held)
                self._held.clear()
                self._answered(pos, count, error.args[0])
            else:
                self._held.popleft()
                self.unacked += 1
                self._plan.unacked += 1
        return True

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
                    writer = plan.renderer.header_writer
                    marked = [_marked(each, note, reason, writer) for each in messages]
                    yield change.pos, counted_as(change), marked

    @property
    def trouble(self) -> str:
        """Why not all was sent."""
        if self.problems:
            pos, problem = min(self.problems.items())
            return f"event {pos}: {problem}"
        return self.broken

    def rest(self) -> Note:
        """What is still not sent, once everything is answered."""
        return self._rest_behind(None if self._is_whole else self._reached, self.problems)

    def _rest_behind(self, reached: int | None, problems: dict[int, str]) -> Note:
        """Those of PROBLEMS, and all behind event REACHED; None: nothing is behind it."""
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

    def again(self, *, is_aborted: bool) -> LateFlight:
        """The same once more, with care; ``is_aborted``: nothing of it became visible.

        Without a Kafka transaction, what was taken behind the first refused event is repeated:
        the last event of a key has to be its newest.
        """
        if is_aborted:
            return LateFlight(self._plan, self.note, is_careful=True)
        first = self._take_back()
        before = {pos: problem for pos, problem in self.problems.items() if pos < first}
        note = self._rest_behind(first - 1, before)
        again = LateFlight(self._plan, note, is_careful=True, sent=self.sent)
        again.counts = self.counts
        return again

    def _take_back(self) -> int:
        """Count as not sent what was taken behind the first refused event; its number."""
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


class _Wish(NamedTuple):
    """``answer``: takes an `Outcome`, of a repair a ``RepairOutcome``. ``held``: the database of
    which no journal begins meanwhile."""

    uuid: UUID
    answer: Callable[[Any], object]
    is_forced: bool = False
    was_draft: bool = False
    is_repair: bool = False
    held: str | None = None


class LateSending:
    """The retries and repairs that were asked for, one after the other.

    ``flight``: the one under way. ``place_of``: the last place of a database that was shipped,
    asked once ``is_at_rest`` says that nothing of it is under way.
    """

    def __init__(
        self,
        plan: FlightPlan,
        archive: Path | None,
        repairs: Repairs,
        is_at_rest: Callable[[str], bool],
        place_of: Callable[[str], Place | None],
    ) -> None:
        self.flight: LateFlight | None = None
        self.repairs = repairs
        self._is_at_rest = is_at_rest
        self._place_of = place_of
        self._plan = plan
        self._archive = archive
        self._wishes: deque[_Wish] = deque()
        self._wish: _Wish | None = None
        self._held: Counter[str] = Counter()
        self._sent: set[UUID] = set()
        self._gone: set[UUID] = set()
        self._doubtful: dict[UUID, LateFlight] = {}

    @property
    def is_busy(self) -> bool:
        """Whether anything is left to do."""
        return self.flight is not None or bool(self._wishes)

    @property
    def progress(self) -> int:
        """What grows while a retry goes on."""
        return 0 if self.flight is None else self.flight.sent

    @property
    def can_go_on(self) -> bool:
        """Whether what is left to do waits for nothing else."""
        is_draft = self._plan.quarantine.is_draft
        return self.flight is not None or any(not is_draft(wish.uuid) for wish in self._wishes)

    def ask(self, uuid: UUID, answer: Callable[[Outcome], None], *, is_forced: bool) -> None:
        """Have a journal sent when its turn comes; ANSWER is called with what became of it."""
        held = self._held_for(uuid)
        if held is not None:
            self._held[held] += 1
        self._wishes.append(_Wish(uuid, answer, is_forced, held=held))

    def holds(self, database: str) -> bool:
        """Tell whether no journal of DATABASE may be begun: its events come behind late ones, or
        a repair is made of it."""
        return bool(self._held[database]) or self.repairs.holds(database)

    def _held_for(self, uuid: UUID) -> str | None:
        """The database of a journal of which a table had no topic: now that it may have one, its
        events are to come in their order."""
        try:
            note = self._plan.quarantine.find(uuid)
        except (OSError, ValueError):
            return None
        if note is None or not note.nameless or self._plan.quarantine.is_draft(uuid):
            return None
        return note.database

    def ask_repair(self, uuid: UUID, answer: Callable[[RepairOutcome], None]) -> None:
        """Have a repair sent once nothing of its database is under way; as ``ask``."""
        self._wishes.append(_Wish(uuid, answer, is_repair=True))

    def begin(self) -> LateFlight | None:
        """The retry that is under way, or the next one that is not refused."""
        for _ in range(len(self._wishes)):
            if self.flight is not None:
                break
            wish = self._wish = self._wishes.popleft()
            if wish.is_repair:
                self._begin_repair(wish)
            elif self._plan.quarantine.is_draft(wish.uuid):
                # A crash left it in both places: first it ends in the journal folder.
                self._wishes.append(wish._replace(was_draft=True))
            else:
                self._begin(wish)
        return self.flight

    def _begin(self, wish: _Wish) -> None:
        quarantine, uuid = self._plan.quarantine, wish.uuid
        if uuid in self._sent:
            self.note_sent(uuid)
        if uuid in self._sent or uuid in self._gone:
            self._answer(Outcome(True, "its late events were sent before"))
            return
        try:
            note = quarantine.find(uuid)
        except (OSError, ValueError) as error:
            self._answer(Outcome(False, f"its note can't be read: {error}"))
            return
        why = refusal(note, uuid, quarantine.folder, is_forced=wish.is_forced)
        if note is not None and why is None:
            self.flight = LateFlight(self._plan, note)
        elif note is None and wish.was_draft:
            self._answer(Outcome(True, "all of it was sent, with its journal"))
        else:
            self._answer(Outcome(False, f"refused: {why}"))

    def _begin_repair(self, wish: _Wish) -> None:
        database = self.repairs.database_of(wish.uuid)
        if database is not None and not self._is_at_rest(database):
            self._wishes.append(wish)
            return
        place = None if database is None else self._place_of(database)
        begun = self.repairs.begin(wish.uuid, place)
        if isinstance(begun, LateFlight):
            self.flight = begun
        else:
            self._answer(begun)

    def _finish_repair(self, flight: RepairFlight, *, is_aborted: bool) -> bool:
        try:
            self._plan.quarantine.flush()
        except OSError as error:
            _log.error("what comes behind newer events can't be noted: {}", error)
        is_noted, outcome = self.repairs.finish(flight, is_aborted=is_aborted)
        self._doubtful.pop(flight.note.uuid, None)
        if outcome.is_sent or outcome.taken:
            self._count(flight)
        flight.close()
        self.flight = None
        self._answer(outcome)
        return is_noted

    def note_sent(self, uuid: UUID) -> bool:
        """Kafka has what was left out of a journal, or a repair, as it says itself: it is not sent
        again.

        False if the journal can't be let go of now.
        """
        self._count_known(uuid)
        if self.repairs.knows(uuid):
            return self.repairs.note_sent(uuid)
        try:
            note = self._plan.quarantine.find(uuid)
            if note is not None:
                self._let_go(note)
                self._gone.add(uuid)
                _log.notice("retry of {}.log: Kafka has its late events already", uuid)
        except (OSError, ValueError) as error:
            _log.error("{}.log: sent, but can't be removed from the quarantine: {}", uuid, error)
            self._sent.add(uuid)
            return False
        self._sent.discard(uuid)
        return True

    def start_over(self) -> None:
        """The producer is gone, and no answers will come: begin the same retry anew."""
        if self.flight is not None and self._wish is not None:
            if self.flight.is_sent:  # perhaps; Kafka tells
                self._doubtful[self._wish.uuid] = self.flight
            self.flight.close()
            self.flight = None
            self._wishes.appendleft(self._wish)

    def advance(self, producer: Sender) -> bool:
        """Send, without transactions; whether anything went on."""
        flight = self.begin()
        if flight is None:
            return False
        moved = flight.send(producer)
        if not flight.is_over:
            return moved
        if flight.wants_care:
            self.take_care(flight, is_aborted=False)
        else:
            self.finish(flight)
        return True

    def take_care(self, flight: LateFlight, *, is_aborted: bool) -> None:
        """A batch shares the fate of one message: one by one, the culprit shows itself."""
        self.flight = flight.again(is_aborted=is_aborted)
        flight.close()

    def finish(self, flight: LateFlight, *, is_aborted: bool = False) -> bool:
        """Everything is answered: let the journal go, or note what is left of it.

        ``is_aborted``: nothing of it becomes visible. Returns whether the journal is gone.
        """
        if self._wish is not None and self._wish.is_repair:
            return self._finish_repair(cast("RepairFlight", flight), is_aborted=is_aborted)
        is_gone = False
        quarantine = self._plan.quarantine
        sent = 0 if is_aborted else flight.sent
        text = f"{sent} late event{'' if sent == 1 else 's'} sent"
        try:
            quarantine.flush()
            if flight.is_sent and not is_aborted:
                self._sent.add(flight.note.uuid)
                self._let_go(flight.note)
                self._sent.discard(flight.note.uuid)
                is_gone = True
                outcome = Outcome(True, text)
            else:
                if sent:
                    quarantine.update(flight.rest())
                outcome = Outcome(False, f"{text}, the rest stays: {flight.trouble}")
        except OSError as error:
            outcome = Outcome(False, f"{text}, which could not be noted: {error}")
        self._doubtful.pop(flight.note.uuid, None)
        if sent:
            self._count(flight)
        flight.close()
        self.flight = None
        self._answer(outcome)
        return is_gone

    def _count_known(self, uuid: UUID) -> None:
        """Count a late sending that Kafka turned out to have."""
        if (flight := self._doubtful.pop(uuid, None)) is not None:
            self._count(flight)

    def _count(self, flight: LateFlight) -> None:
        statistics = self._plan.statistics.database(flight.database)
        for kind, count in flight.counts.items():
            if kind is PLACED:
                statistics.placeholders += count
            else:
                statistics.add(*kind, count)

    def _let_go(self, note: Note) -> None:
        """All of a journal is in Kafka."""
        quarantine = self._plan.quarantine
        journal = quarantine.folder / f"{note.uuid}.log"
        # One of which only single events were left out went to the archive at that time.
        dispose_shipped([journal], self._archive if note.is_moved else None)
        quarantine.remove(note.uuid)

    def _answer(self, outcome: Outcome | RepairOutcome) -> None:
        wish, self._wish = self._wish, None
        assert wish is not None
        if wish.held is not None:
            self._held[wish.held] -= 1
        what = f"repair {wish.uuid}" if wish.is_repair else f"retry of {wish.uuid}.log"
        (_log.notice if outcome.is_sent else _log.error)("{}: {}", what, outcome.text)
        wish.answer(outcome)
