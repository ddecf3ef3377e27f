"""Sends what was left out of journals in the quarantine, when somebody asks for it.

A late event keeps its place in the history (``source``), and has a header that says that it comes
late. It goes out between the journals that are shipped just then, so it may come behind newer
events; behind one of the same key only where that is asked for.

Without a transactional id an event may be sent twice, if the shipper dies between the
acknowledgement and the removal of the journal. With one, all late events of a journal are in one
Kafka transaction together with a record that names the journal
(``journal.shipper.kafka.offset_topic``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

import logbook

from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.shipper.delivery.repair import RepairFlight, RepairOutcome, Repairs
from firebird_cdc.journal.shipper.delivery.resend import LateFlight
from firebird_cdc.journal.shipper.delivery.send import FlightPlan
from firebird_cdc.journal.shipper.delivery.tally import PLACED
from firebird_cdc.journal.shipper.kafka.client import Sender
from firebird_cdc.journal.shipper.quarantine import refusal

if TYPE_CHECKING:
    from firebird_cdc.journal.shipper.repairs import Place

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.redelivery")


class Outcome(NamedTuple):
    """Result of a retry. ``text``: one sentence."""

    is_sent: bool
    text: str


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
        """Tell whether anything is left to do."""
        return self.flight is not None or bool(self._wishes)

    @property
    def progress(self) -> int:
        """Number that grows while a retry goes on: events that Kafka took."""
        return 0 if self.flight is None else self.flight.sent

    @property
    def can_go_on(self) -> bool:
        """Tell whether something is left to do that waits for nothing else."""
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
            return self._finish_repair(cast(RepairFlight, flight), is_aborted=is_aborted)
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
