"""The shipper's side of ``firebird-cdc replay repair``: holds a database, and sends its repairs.

A repair (``journal.repairs``) is true only at one place of its database's history: newer events of
its keys would make it old. So the command first asks for a *hold*: no further journal of the
database is begun, and once none is under way the answer tells the last place that was shipped.
What the command then makes names that place, and is sent only if it still is the last one. A hold
ends by itself; repairs that wait keep their database held, also over a restart, so none of them is
overtaken. Commits never wait for any of this.

All of a repair goes out in one Kafka transaction, as a late retry does (``journal.late``), with
the same kind of record in the position topic. Everything belongs to the shipping thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import logbook
from confluent_kafka import KafkaError

from firebird_cdc.errors import ShipError
from firebird_cdc.journal.backlog import Entry
from firebird_cdc.journal.bad_event import BadEvent
from firebird_cdc.journal.flight import FlightPlan, seen_of
from firebird_cdc.journal.format import Gap, JournalReader, RowChange, SequenceChange
from firebird_cdc.journal.late import CHANGES_PER_TURN, LateFlight
from firebird_cdc.journal.quarantine_note import Note
from firebird_cdc.journal.records import Message
from firebird_cdc.journal.render import JournalRenderer
from firebird_cdc.journal.repairs import (
    REPAIR_HEADER,
    WHOLE,
    Place,
    Repair,
    RepairFolder,
    check_count,
    state_change,
)
from firebird_cdc.journal.tally import counted_as

if TYPE_CHECKING:
    from firebird_cdc.journal.delivery import Delivery

_log = logbook.Logger("firebird_cdc.journal.repair_desk")

HOLD_S = 20.0
"""How long a database is held for a command that doesn't come back."""

Answer = Callable[[dict[str, Any]], object]
"""Takes what the command is told, as JSON."""


class RepairFlight(LateFlight):
    """The messages of one repair on their way. ``skipped``: events that are not sent again."""

    def __init__(
        self,
        plan: FlightPlan,
        repair: Repair,
        folder: RepairFolder,
        *,
        is_careful: bool = False,
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        as_of = repair.as_of
        note = Note(repair.uuid, repair.database, as_of.epoch, as_of.sequence, repair.made_us)
        super().__init__(plan, note, is_careful=is_careful, sent=len(skipped))
        self.path = folder.journal(repair.uuid)
        self.database = repair.database
        self.repair = repair
        self.taken: set[int] = set(skipped)
        self._folder = folder
        self._skipped = skipped

    def _answered(self, pos: int, messages: int, error: KafkaError | None) -> None:
        super()._answered(pos, messages, error)
        if pos not in self._open and pos not in self.problems:
            self.taken.add(pos)

    def _rendered(self) -> Generator[tuple[int, tuple[str, str], Sequence[Message]], None, None]:
        plan, repair = self._plan, self.repair
        renderer: JournalRenderer | None = None
        rendered = -1  # the journal that it is for
        count = 0
        with JournalReader(self.path, plan.none_charset) as reader:
            for change in reader.changes():
                if isinstance(change, SequenceChange | Gap):
                    continue
                count = number = change.pos
                if number % CHANGES_PER_TURN == 0:
                    yield 0, ("", ""), ()
                if number in self._skipped:
                    continue
                if repair.is_original(number):
                    ((index, pos),) = repair.events[number - 1]
                    header, stamp = repair.origins[index].header, repair.origins[index].stamp
                    change = change._replace(pos=pos)
                else:
                    assert reader.stamp is not None
                    index, pos = len(repair.origins), WHOLE
                    header, stamp = reader.header, reader.stamp
                    if isinstance(change, RowChange):
                        change = state_change(change)
                if renderer is None or index != rendered:
                    renderer = plan.renderer.journal(header, stamp, repair.database, alone=True)
                    rendered = index
                entry = Entry(stamp.epoch, stamp.sequence, header.uuid)
                try:
                    messages = renderer.messages(change)
                except BadEvent as error:
                    self.problems[number] = str(error)
                    messages = []
                if messages:
                    seen = seen_of(plan.quarantine, renderer, change, messages)
                    plan.quarantine.see(entry, repair.database, pos, seen, is_late=True)
                    table = change.table.name if isinstance(change, RowChange) else ""
                    told = plan.renderer.header_writer.told(repair.header_of(number, table))
                    mark = (REPAIR_HEADER, told)
                    marked = [each._replace(headers=[*each.headers, mark]) for each in messages]
                    yield number, counted_as(change), marked
                elif number not in self.problems:
                    self.taken.add(number)  # as the configuration has it, it gives no message
        check_count(self.path, repair, count)

    def again(self, *, is_aborted: bool) -> RepairFlight:
        first = 0 if is_aborted else self._take_back()
        skipped = frozenset(number for number in self.taken if number < first)
        again = RepairFlight(
            self._plan, self.repair, self._folder, is_careful=True, skipped=skipped
        )
        if not is_aborted:
            again.counts = self.counts
        return again


class RepairOutcome(NamedTuple):
    """What became of a repair. ``taken``: the events that Kafka took of one that was not sent as a
    whole, by their numbers; ``problems``: why others can't be sent; ``is_stale``: newer events of
    its database have come."""

    is_sent: bool
    text: str
    taken: list[int]
    problems: dict[int, str]
    is_stale: bool = False


class Repairs:
    """The repairs that wait, and the databases that are held for them."""

    def __init__(self, plan: FlightPlan) -> None:
        self.files = RepairFolder(plan.directory)
        self._plan = plan
        self._waiting: dict[UUID, str] = {}
        self._holds: dict[str, float] = {}
        self._done: dict[UUID, Repair | None] = {}

    def load(self) -> None:
        """Read what waits, and hold the databases concerned. Raises ShipError."""
        self._waiting.clear()
        self._holds.clear()
        try:
            for uuid in self.files.pending():
                self.take(uuid)
        except OSError as error:
            raise ShipError(f"repairs that wait can't be read: {error}") from error

    def take(self, uuid: UUID) -> None:
        """A repair is to be sent: its database is held until it is or can't be."""
        try:
            repair = self.files.read(uuid)
        except ValueError as error:
            _log.error("{}: can't be read, so it is not sent: {}", self.files.journal(uuid), error)
            self.files.remove(uuid)
            return
        if repair is not None:
            self._waiting[uuid] = repair.database

    @property
    def waiting(self) -> list[UUID]:
        """Repairs that are to be sent, in the order in which they were made."""
        return list(self._waiting)

    def hold(self, database: str, until: float) -> None:
        """Begin no further journal of DATABASE until then (monotonic)."""
        self._holds[database] = until

    def let_go(self, database: str) -> None:
        """The hold of DATABASE is over."""
        self._holds.pop(database, None)

    def holds(self, database: str) -> bool:
        """Whether no journal of DATABASE may be begun."""
        if not self._holds and not self._waiting:
            return False
        until = self._holds.get(database)
        if until is not None:
            if until > monotonic():
                return True
            del self._holds[database]
        return database in self._waiting.values()

    def begin(self, uuid: UUID, place: Place | None) -> RepairFlight | RepairOutcome:
        """The sending of a repair, or why it is not sent; PLACE: the last one of its database."""
        if uuid in self._done:
            self.note_sent(uuid)
        if uuid in self._done or self.files.is_sent(uuid):
            self._waiting.pop(uuid, None)
            return RepairOutcome(True, "it was sent before", [], {})
        try:
            repair = self.files.read(uuid)
        except (OSError, ValueError) as error:
            return self._refuse(uuid, f"it can't be read: {error}")
        if repair is None:
            self._waiting.pop(uuid, None)
            return RepairOutcome(False, "it is gone", [], {}, is_stale=True)
        if place is not None and (repair.token is None or place > repair.token):
            why = "was not sent: newer events came since it was made; run replay repair again"
            return self._refuse(uuid, why)._replace(is_stale=True)
        return RepairFlight(self._plan, repair, self.files)

    def _refuse(self, uuid: UUID, why: str) -> RepairOutcome:
        self._remove(uuid)
        return RepairOutcome(False, why, [], {})

    def _remove(self, uuid: UUID) -> None:
        try:
            self.files.remove(uuid)
        except OSError as error:
            _log.error("{}: can't be removed: {}", self.files.journal(uuid), error)
        self._waiting.pop(uuid, None)

    def database_of(self, uuid: UUID) -> str | None:
        """The database of a repair that waits."""
        return self._waiting.get(uuid)

    def knows(self, uuid: UUID) -> bool:
        """Whether UUID is that of a repair that waits."""
        return uuid in self._waiting or uuid in self._done

    def note_sent(self, uuid: UUID, part: Repair | None = None) -> bool:
        """Kafka has a repair, or PART of it: it is never sent again. False if that can't be
        written now; it is remembered until then."""
        part = part or self._done.get(uuid)
        try:
            self.files.note_sent(uuid, part)
        except OSError as error:
            _log.error("repair {}: sent, but that can't be noted: {}", uuid, error)
            self._done[uuid] = part
            return False
        self._done.pop(uuid, None)
        self._waiting.pop(uuid, None)
        return True

    def finish(self, flight: RepairFlight, *, is_aborted: bool) -> tuple[bool, RepairOutcome]:
        """Everything of FLIGHT is answered. Returns whether it is noted that Kafka has all of it,
        and what became of it. IS_ABORTED: nothing of it becomes visible."""
        repair = flight.repair
        taken = set() if is_aborted else flight.taken
        text = f"{len(taken)} event{'' if len(taken) == 1 else 's'} sent"
        if flight.is_sent and not is_aborted:
            return self.note_sent(repair.uuid), RepairOutcome(True, text, [], {})
        outcome = RepairOutcome(
            False,
            f"{text}, the rest not: {flight.trouble}",
            sorted(taken),
            {pos: flight.problems[pos] for pos in sorted(flight.problems)},
        )
        rest = {pos for pos in range(1, len(repair.events) + 1) if pos not in taken}
        part = repair.without(rest) if taken else None
        if part is not None:
            self.note_sent(repair.uuid, part)
        else:
            self._remove(repair.uuid)
        return False, outcome


class RepairDesk:
    """Takes what the command asks for. A part of ``RetryDesk``, which finds the requests."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._repairs = delivery.late.repairs
        self._asked: set[UUID] = set()
        self._wanted: dict[UUID, list[Answer]] = {}
        self._holds: dict[str, tuple[str, float, Answer]] = {}

    def take(self, name: str, content: dict[str, Any], answer: Answer) -> None:
        """Take request NAME. Raises KeyError, TypeError or ValueError if it makes no sense."""
        database = str(content["database"])
        match content["action"]:
            case "hold":
                until = monotonic() + HOLD_S
                self._repairs.hold(database, until)
                self._holds[name] = database, until, answer
            case "send":
                uuid = UUID(content["repair"])
                self._repairs.take(uuid)
                self._wanted.setdefault(uuid, []).append(answer)
            case "release":
                self._repairs.let_go(database)
                answer({"released": True})
            case other:
                raise ValueError(other)

    def _tell(self, uuid: UUID, database: str | None, outcome: RepairOutcome) -> None:
        self._asked.discard(uuid)
        if database is not None:
            self._repairs.let_go(database)
        for answer in self._wanted.pop(uuid, ()):
            answer(outcome._asdict())

    def turn(self, now: float) -> None:
        """Answer holds that have taken effect, and have sent what a former shipper left."""
        # In the order in which they were made; the others are gone, and that is the answer.
        for uuid in dict.fromkeys([*self._repairs.waiting, *self._wanted]):
            if uuid not in self._asked:
                self._asked.add(uuid)
                database = self._repairs.database_of(uuid)
                tell = partial(self._tell, uuid, database)
                self._delivery.late.ask_repair(uuid, tell)
        for name, (database, until, answer) in list(self._holds.items()):
            if self._delivery.is_at_rest(database):
                del self._holds[name]
                self._repairs.hold(database, now + HOLD_S)
                answer({"place": self._delivery.place_of(database)})
            elif now >= until:
                del self._holds[name]
                answer({"refused": "Kafka does not take what is under way of the database"})
