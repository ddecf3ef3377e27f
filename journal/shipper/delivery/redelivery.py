"""Sends events of journals again when somebody asks for it: one retry or repair after the other.

Their events go out between the journals that are shipped just then. Without a transactional id an
event may be sent twice, if the shipper dies between the acknowledgement and the note of it. With
one, all events of a retry or repair are in one Kafka transaction together with a record that names
it (``journal.shipper.kafka.offset_topic``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import logbook

from firebird_cdc.journal.shipper.delivery.repair import RepairOutcome, Repairs
from firebird_cdc.journal.shipper.delivery.resend import Outcome, RedeliverySend
from firebird_cdc.journal.shipper.delivery.retry import Retries
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.tally import FILTERED, PLACED
from firebird_cdc.journal.shipper.kafka.client import Sender

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.redelivery")


class Owner(Protocol):
    """Owner of what is sent again. ``title``: what it is called in the log, empty: nowhere."""

    title: str

    def finish(self, send: RedeliverySend, *, is_aborted: bool) -> tuple[bool, Any]:
        """Note what became of SEND, of which everything is answered, and return it, and before
        that whether a record that it was sent is of no more use."""

    def note_sent(self, uuid: UUID) -> bool:
        """Kafka has what UUID names; False if that can't be noted now."""


class _Request(NamedTuple):
    """A retry or repair that was asked for, or a batch of a snapshot.

    ``begin``: gives what is to be sent, or why nothing is, or None: not yet. ``answer``: takes what
    became of it. ``held``: the database of which no journal begins meanwhile.
    """

    uuid: UUID
    owner: Owner
    begin: Callable[[], RedeliverySend | Outcome | RepairOutcome | None]
    answer: Callable[[Any], object]
    held: str | None = None


class Redelivery:
    """The retries and repairs that were asked for, one after the other. ``send``: the one under
    way."""

    def __init__(self, plan: SendContext, retries: Retries, repairs: Repairs) -> None:
        self.send: RedeliverySend | None = None
        self.retries = retries
        self.repairs = repairs
        self._plan = plan
        self._requests: deque[_Request] = deque()
        self._request: _Request | None = None
        self._held: Counter[str] = Counter()
        self._doubtful: dict[UUID, RedeliverySend] = {}
        self._forsaken: list[RedeliverySend] = []  # with answers that may still come

    @property
    def is_busy(self) -> bool:
        """Tell whether anything is left to do."""
        return self.send is not None or bool(self._requests)

    @property
    def progress(self) -> int:
        """Number that differs while a retry goes on: events that Kafka took."""
        return 0 if self.send is None else self.send.sent

    @property
    def can_go_on(self) -> bool:
        """Tell whether something is left to do that waits for nothing else."""
        waits = self.retries.waits
        return self.send is not None or any(not waits(each.uuid) for each in self._requests)

    def ask(self, uuid: UUID, answer: Callable[[Outcome], None], *, is_forced: bool) -> None:
        """Have a journal sent when its turn comes; ANSWER is called with what became of it."""
        held = self.retries.held_for(uuid)
        if held is not None:
            self._held[held] += 1
        begin = partial(self.retries.begin, uuid, is_forced=is_forced)
        self._requests.append(_Request(uuid, self.retries, begin, answer, held))

    def ask_repair(self, uuid: UUID, answer: Callable[[RepairOutcome], None]) -> None:
        """Have a repair sent once nothing of its database is under way; as ``ask``."""
        begin = partial(self.repairs.begin, uuid)
        self._requests.append(_Request(uuid, self.repairs, begin, answer))

    def ask_batch(
        self,
        uuid: UUID,
        owner: Owner,
        begin: Callable[[], RedeliverySend | Outcome | None],
        answer: Callable[[Outcome], None],
    ) -> None:
        """Have what BEGIN gives sent, before all that waits; as ``ask``."""
        self._requests.appendleft(_Request(uuid, owner, begin, answer))

    def cancel(self, uuid: UUID) -> None:
        """Send no more of the batch UUID; nobody hears of it."""
        self._requests = deque(each for each in self._requests if each.uuid != uuid)
        self._doubtful.pop(uuid, None)
        if self._request is not None and self._request.uuid == uuid and self.send is not None:
            self.send.forsake()
            self._forsaken = [*(each for each in self._forsaken if each.unacked), self.send]
            self.send = self._request = None

    def holds(self, database: str) -> bool:
        """Tell whether no journal of DATABASE may be begun: its events come behind what is
        redelivered, or a repair is made of it."""
        return bool(self._held[database]) or self.repairs.holds(database)

    def begin(self) -> RedeliverySend | None:
        """Return what is under way, or else the next one that is not refused."""
        for _ in range(len(self._requests)):
            if self.send is not None:
                break
            request = self._requests.popleft()
            begun = request.begin()
            if begun is None:
                self._requests.append(request)
                continue
            self._request = request
            if isinstance(begun, RedeliverySend):
                self.send = begun
                continue
            former = self._doubtful.pop(request.uuid, None)
            if former is not None and begun.is_sent:
                self._count(former)
            self._answer(begun)
        return self.send

    def note_sent(self, uuid: UUID) -> bool:
        """Kafka has what was left out of a journal, or a repair, as it says itself: it is not sent
        again.

        False if the journal can't be let go of now.
        """
        if (send := self._doubtful.pop(uuid, None)) is not None:
            self._count(send)
        owner = self.repairs if self.repairs.knows(uuid) else self.retries
        return owner.note_sent(uuid)

    def start_over(self) -> None:
        """The producer is gone, and no answers will come: begin the same retry anew."""
        for forsaken in self._forsaken:
            forsaken.close()
        self._forsaken.clear()
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
        """Everything is answered: note what became of it, and answer who asked.

        ``is_aborted``: nothing of it becomes visible. Returns whether the journal is gone.
        """
        assert self._request is not None
        is_gone, outcome = self._request.owner.finish(send, is_aborted=is_aborted)
        self._doubtful.pop(self._request.uuid, None)
        if not is_aborted:
            self._count(send)
        send.close()
        self.send = None
        self._answer(outcome)
        return is_gone

    def _count(self, send: RedeliverySend) -> None:
        if not send.sent:
            return
        statistics = self._plan.statistics.database(send.events.database)
        for kind, count in send.counts.items():
            if kind is FILTERED:
                continue
            if kind is PLACED:
                statistics.placeholders += count
            else:
                statistics.add(*kind, count)

    def _answer(self, outcome: Outcome | RepairOutcome) -> None:
        request, self._request = self._request, None
        assert request is not None
        if request.held is not None:
            self._held[request.held] -= 1
        if what := request.owner.title.format(request.uuid):
            (_log.notice if outcome.is_sent else _log.error)("{}: {}", what, outcome.text)
        request.answer(outcome)
