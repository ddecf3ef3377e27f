"""Sends events of one journal again, beside those of the journals that are shipped just then.

Which events, and how they are marked, is told by `Events`: those of a journal in the quarantine
(``retry``) or those of a repair (``repair``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from confluent_kafka import KafkaError

from firebird_cdc.errors import JournalError, Obstacle
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.tally import PLACED, Kind
from firebird_cdc.journal.shipper.kafka.client import Sender, hand_over, is_refusal

CHANGES_PER_TURN = 500
"""Changes read in one turn of the shipping thread."""

MOST_PROBLEMS = 20
"""Events of one journal that are refused again before its redelivery ends."""


class Outcome(NamedTuple):
    """Result of a retry. ``text``: one sentence."""

    is_sent: bool
    text: str


class Rendered(NamedTuple):
    """One event that is to be sent again, by its number in `Events`, or TIMES of one kind.

    ``kind``: what the statistics count it as; ``problem``: why it has no messages. Without either,
    the configuration gives no message for it.
    """

    number: int
    kind: Kind = ("", "")
    messages: Sequence[Message] = ()
    problem: str = ""
    has_placeholders: bool = False
    times: int = 1


TURN = Rendered(0)
"""No event: what is yielded now and then to let others have their turn."""


class Events(Protocol):
    """Events that are to be sent again.

    ``uuid``: names them in the offset topic; ``path``: the journal that has them; ``database``:
    known once that is open. ``reached``: the last one that is dealt with already.
    """

    @property
    def uuid(self) -> UUID: ...
    @property
    def path(self) -> Path: ...
    @property
    def database(self) -> str: ...
    @property
    def reached(self) -> int: ...

    def rendered(self) -> Generator[Rendered, None, None]:
        """Yield them in their order. Raises JournalError, OSError or Obstacle."""

    def record(self) -> tuple[bytes, bytes]:
        """Return key and value of what the offset topic says once all of them are sent."""

    def behind(
        self, reached: int | None, problems: Mapping[int, str], taken: int, broken: str
    ) -> Events:
        """Return those that have PROBLEMS, and all behind number REACHED; None: nothing is.

        TAKEN: the last one that Kafka took; BROKEN: why no more could be read.
        """


@dataclass(slots=True)
class _Open:
    """An event that was handed over and is not wholly answered, or COUNT of them. ``left``: its
    messages that are not; ``is_placed``: it has placeholders."""

    left: int
    kind: Kind
    is_placed: bool
    count: int
    is_refused: bool = False


class RedeliverySend:
    """`Events` on their way.

    ``one_at_a_time``: one after the other, each answered before the next is sent. ``unacked``:
    messages without an answer; ``sent``: events that Kafka took, ``counts``: by their kinds;
    ``problems``: those that can't be sent, and why; ``is_read``: nothing more will be handed over;
    ``reached``: the last event that was.
    """

    def __init__(
        self,
        plan: SendContext,
        events: Events,
        *,
        one_at_a_time: bool = False,
        sent: int = 0,
        counts: dict[Kind, int] | None = None,
    ) -> None:
        self.events = events
        self.one_at_a_time = one_at_a_time
        self.unacked = 0
        self.sent = sent
        self.counts: dict[Kind, int] = counts or {}
        self.is_read = False
        self.problems: dict[int, str] = {}
        self.broken = ""
        self.reached = events.reached
        self._plan = plan
        self._taken = 0
        self._is_whole = False
        self._refused_from: int | None = None  # the first event that Kafka refused
        self._open: dict[int, _Open] = {}
        # Taken before all events in front of them were: the number, and as what how many count.
        self._ahead: deque[tuple[int, int, tuple[Kind, ...]]] = deque()
        self._held: Sequence[Message] = ()
        self._held_number = 0
        self._rendered = events.rendered()

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
        return self._refused_from is not None and not self.one_at_a_time

    def close(self) -> None:
        """Close the file; answers that come later are of no interest."""
        self._rendered.close()
        self._plan.unacked -= self.unacked
        self.unacked = 0
        self._open.clear()
        self.is_read = True

    def forsake(self) -> None:
        """Hand over no more. Answers that come later are of no interest, but that they come is:
        they may be all that shows that Kafka is back."""
        self._rendered.close()
        self._open.clear()
        self._held = ()
        self.is_read = True

    def give_up(self, why: str) -> None:
        """Hand over no more."""
        self.broken = why
        self._rendered.close()
        self.is_read = True

    def produce(self, producer: Sender) -> bool:
        """Hand over some more; whether that went on."""
        moved = False
        for _ in range(CHANGES_PER_TURN):
            if self.wants_care:  # all from that event on is sent again
                self._rendered.close()
                self.is_read = True
            if self.is_read or (self.one_at_a_time and self.unacked):
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
                event = next(self._rendered, None)
            except (JournalError, OSError, Obstacle) as error:
                self.broken = str(error)
            else:
                if event is not None:
                    self._take(event)
                    return True
                self._is_whole = True
        self._rendered.close()
        self.is_read = True
        return False

    def _take(self, event: Rendered) -> None:
        number = event.number
        self.reached = max(self.reached, number)
        if event.problem:
            self.problems[number] = event.problem
        elif event.messages:
            self._open[number] = _Open(
                len(event.messages), event.kind, event.has_placeholders, event.times
            )
            self._held, self._held_number = event.messages, number

    def _hand_over(self, producer: Sender) -> bool:
        number = self._held_number
        taken, refusal = hand_over(producer, self._held, partial(self._report, number))
        self.unacked += taken
        self._plan.unacked += taken
        left = len(self._held) - taken
        if refusal is not None:
            self._held = ()
            self._answered(number, left, refusal.args[0])
        else:
            self._held = self._held[taken:]
        return not self._held

    def _report(self, number: int, error: KafkaError | None, message: Any) -> None:
        if self.unacked == 0:
            return  # closed meanwhile
        event = self._open.get(number)
        plan = self._plan
        self.unacked -= 1
        plan.unacked -= 1
        error = plan.failure_of(error, message)
        if error is None:
            plan.acknowledged += 1
        if event is None:
            return  # forsaken meanwhile
        if error is None and event.left > 1:  # at once, as most messages of a snapshot come here
            event.left -= 1
            return
        self._answered(number, 1, error)

    def _answered(self, number: int, messages: int, error: KafkaError | None) -> None:
        event = self._open[number]
        event.left -= messages
        if error is not None:
            event.is_refused = True
            self.problems.setdefault(number, f"Kafka refuses it: {error.str()}")
            if is_refusal(error) and number < (self._refused_from or number + 1):
                self._refused_from = number
        if event.left == 0:
            del self._open[number]
            if not event.is_refused:
                self.sent += event.count
                self._taken = max(self._taken, number)
                kinds: tuple[Kind, ...] = (event.kind, PLACED)[: 1 + event.is_placed]
                for kind in kinds:
                    self.counts[kind] = self.counts.get(kind, 0) + event.count
                if not self.one_at_a_time:
                    self._ahead.append((number, event.count, kinds))
            if self._refused_from is None:
                first_open = next(iter(self._open), self._held_number + 1)
                while self._ahead and self._ahead[0][0] < first_open:
                    self._ahead.popleft()

    @property
    def trouble(self) -> str:
        """Reason why not all was sent."""
        if self.problems:
            number, problem = min(self.problems.items())
            return f"event {number}: {problem}"
        return self.broken

    def rest(self) -> Events:
        """Return what is still not sent, once everything is answered."""
        reached = None if self._is_whole else self.reached
        return self.events.behind(reached, self.problems, self._taken, self.broken)

    def again(self, *, is_aborted: bool) -> RedeliverySend:
        """The same once more, with care; ``is_aborted``: nothing of it became visible.

        Without a Kafka transaction, what was taken behind the first refused event is repeated:
        the last event of a key has to be its newest.
        """
        if is_aborted:
            return RedeliverySend(self._plan, self.events, one_at_a_time=True)
        first = self._refused_from
        assert first is not None
        for number, count, kinds in self._ahead:
            if number > first:
                self.sent -= count
                for kind in kinds:
                    self.counts[kind] -= count
        before = {number: why for number, why in self.problems.items() if number < first}
        events = self.events.behind(first - 1, before, self._taken, self.broken)
        return RedeliverySend(
            self._plan, events, one_at_a_time=True, sent=self.sent, counts=self.counts
        )
