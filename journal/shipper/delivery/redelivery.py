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
from firebird_cdc.journal.shipper.delivery.repair import RepairOutcome, Repairs, RepairSend
from firebird_cdc.journal.shipper.delivery.resend import RedeliverySend
from firebird_cdc.journal.shipper.delivery.send import SendContext
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


class _Request(NamedTuple):
    """``answer``: takes an `Outcome`, of a repair a ``RepairOutcome``. ``held``: the database of
    which no journal begins meanwhile."""

    uuid: UUID
    answer: Callable[[Any], object]
    is_forced: bool = False
    was_draft: bool = False
    is_repair: bool = False
    held: str | None = None


class Redelivery:
    """The retries and repairs that were asked for, one after the other.

    ``send``: the one under way. ``place_of``: the last place of a database that was shipped,
    asked once ``is_at_rest`` says that nothing of it is under way.
    """

    def __init__(
        self,
        plan: SendContext,
        archive: Path | None,
        repairs: Repairs,
        is_at_rest: Callable[[str], bool],
        place_of: Callable[[str], Place | None],
    ) -> None:
        self.send: RedeliverySend | None = None
        self.repairs = repairs
        self._is_at_rest = is_at_rest
        self._place_of = place_of
        self._plan = plan
        self._archive = archive
        self._requests: deque[_Request] = deque()
        self._request: _Request | None = None
        self._held: Counter[str] = Counter()
        self._sent: set[UUID] = set()
        self._gone: set[UUID] = set()
        self._doubtful: dict[UUID, RedeliverySend] = {}

    @property
    def is_busy(self) -> bool:
        """Tell whether anything is left to do."""
        return self.send is not None or bool(self._requests)

    @property
    def progress(self) -> int:
        """Number that grows while a retry goes on: events that Kafka took."""
        return 0 if self.send is None else self.send.sent

    @property
    def can_go_on(self) -> bool:
        """Tell whether something is left to do that waits for nothing else."""
        is_draft = self._plan.quarantine.is_draft
        return self.send is not None or any(
            not is_draft(request.uuid) for request in self._requests
        )

    def ask(self, uuid: UUID, answer: Callable[[Outcome], None], *, is_forced: bool) -> None:
        """Have a journal sent when its turn comes; ANSWER is called with what became of it."""
        held = self._held_for(uuid)
        if held is not None:
            self._held[held] += 1
        self._requests.append(_Request(uuid, answer, is_forced, held=held))

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
        self._requests.append(_Request(uuid, answer, is_repair=True))

    def begin(self) -> RedeliverySend | None:
        """The retry that is under way, or the next one that is not refused."""
        for _ in range(len(self._requests)):
            if self.send is not None:
                break
            request = self._request = self._requests.popleft()
            if request.is_repair:
                self._begin_repair(request)
            elif self._plan.quarantine.is_draft(request.uuid):
                # A crash left it in both places: first it ends in the journal folder.
                self._requests.append(request._replace(was_draft=True))
            else:
                self._begin(request)
        return self.send

    def _begin(self, request: _Request) -> None:
        quarantine, uuid = self._plan.quarantine, request.uuid
        if uuid in self._sent:
            self.note_sent(uuid)
        if uuid in self._sent or uuid in self._gone:
            self._answer(Outcome(True, "its events were redelivered before"))
            return
        try:
            note = quarantine.find(uuid)
        except (OSError, ValueError) as error:
            self._answer(Outcome(False, f"its note can't be read: {error}"))
            return
        why = refusal(note, uuid, quarantine.folder, is_forced=request.is_forced)
        if note is not None and why is None:
            self.send = RedeliverySend(self._plan, note)
        elif note is None and request.was_draft:
            self._answer(Outcome(True, "all of it was sent, with its journal"))
        else:
            self._answer(Outcome(False, f"refused: {why}"))

    def _begin_repair(self, request: _Request) -> None:
        database = self.repairs.database_of(request.uuid)
        if database is not None and not self._is_at_rest(database):
            self._requests.append(request)
            return
        place = None if database is None else self._place_of(database)
        begun = self.repairs.begin(request.uuid, place)
        if isinstance(begun, RedeliverySend):
            self.send = begun
        else:
            self._answer(begun)

    def _finish_repair(self, send: RepairSend, *, is_aborted: bool) -> bool:
        try:
            self._plan.quarantine.flush()
        except OSError as error:
            _log.error("the notes of the quarantine on newer events can't be written: {}", error)
        is_noted, outcome = self.repairs.finish(send, is_aborted=is_aborted)
        self._doubtful.pop(send.note.uuid, None)
        if outcome.is_sent or outcome.taken:
            self._count(send)
        send.close()
        self.send = None
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
                _log.notice("retry of {}.log: Kafka has its redelivered events already", uuid)
        except (OSError, ValueError) as error:
            _log.error("{}.log: sent, but can't be removed from the quarantine: {}", uuid, error)
            self._sent.add(uuid)
            return False
        self._sent.discard(uuid)
        return True

    def start_over(self) -> None:
        """The producer is gone, and no answers will come: begin the same retry anew."""
        if self.send is not None and self._request is not None:
            if self.send.is_sent:  # perhaps; Kafka tells
                self._doubtful[self._request.uuid] = self.send
            self.send.close()
            self.send = None
            self._requests.appendleft(self._request)

    def advance(self, producer: Sender) -> bool:
        """Send, without transactions; whether anything went on."""
        send = self.begin()
        if send is None:
            return False
        moved = send.produce(producer)
        if not send.is_over:
            return moved
        if send.wants_care:
            self.take_care(send, is_aborted=False)
        else:
            self.finish(send)
        return True

    def take_care(self, send: RedeliverySend, *, is_aborted: bool) -> None:
        """A batch shares the fate of one message: one by one, the culprit shows itself."""
        self.send = send.again(is_aborted=is_aborted)
        send.close()

    def finish(self, send: RedeliverySend, *, is_aborted: bool = False) -> bool:
        """Everything is answered: let the journal go, or note what is left of it.

        ``is_aborted``: nothing of it becomes visible. Returns whether the journal is gone.
        """
        if self._request is not None and self._request.is_repair:
            return self._finish_repair(cast(RepairSend, send), is_aborted=is_aborted)
        is_gone = False
        quarantine = self._plan.quarantine
        sent = 0 if is_aborted else send.sent
        text = f"{sent} event{'' if sent == 1 else 's'} redelivered"
        try:
            quarantine.flush()
            if send.is_sent and not is_aborted:
                self._sent.add(send.note.uuid)
                self._let_go(send.note)
                self._sent.discard(send.note.uuid)
                is_gone = True
                outcome = Outcome(True, text)
            else:
                if sent:
                    quarantine.update(send.rest())
                outcome = Outcome(False, f"{text}, the rest stays: {send.trouble}")
        except OSError as error:
            outcome = Outcome(False, f"{text}, which could not be noted: {error}")
        self._doubtful.pop(send.note.uuid, None)
        if sent:
            self._count(send)
        send.close()
        self.send = None
        self._answer(outcome)
        return is_gone

    def _count_known(self, uuid: UUID) -> None:
        """Count a late sending that Kafka turned out to have."""
        if (send := self._doubtful.pop(uuid, None)) is not None:
            self._count(send)

    def _count(self, send: RedeliverySend) -> None:
        statistics = self._plan.statistics.database(send.database)
        for kind, count in send.counts.items():
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
        request, self._request = self._request, None
        assert request is not None
        if request.held is not None:
            self._held[request.held] -= 1
        what = f"repair {request.uuid}" if request.is_repair else f"retry of {request.uuid}.log"
        (_log.notice if outcome.is_sent else _log.error)("{}: {}", what, outcome.text)
        request.answer(outcome)
