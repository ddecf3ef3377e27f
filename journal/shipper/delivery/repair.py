"""The shipper's side of ``firebird-cdc replay repair``: holds a database, and sends its repairs.

A repair (``journal.shipper.repairs``) is true only at one place of its database's history: newer
events of its keys would make it old. So the command first asks for a *hold*: no further journal of
the database is begun, and once none is under way the answer tells the last place that was shipped.
What the command then makes names that place, and is sent only if it still is the last one. A hold
ends by itself; repairs that wait keep their database held, also over a restart, so none of them is
overtaken. Commits never wait for any of this.

All of a repair goes out in one Kafka transaction, as a late retry does
(``journal.shipper.delivery.redelivery``), with the same kind of record in the offset topic.
Everything belongs to the shipping thread.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import logbook
from confluent_kafka import KafkaError

from firebird_cdc.errors import ShipError
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import JournalRenderer
from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.format import Gap, JournalReader, RowChange, SequenceChange
from firebird_cdc.journal.shipper.delivery.resend import CHANGES_PER_TURN, RedeliverySend
from firebird_cdc.journal.shipper.delivery.send import SendContext, seen_of
from firebird_cdc.journal.shipper.delivery.tally import counted_as
from firebird_cdc.journal.shipper.inbox.backlog import Entry
from firebird_cdc.journal.shipper.repairs import (
    REPAIR_HEADER,
    WHOLE,
    Place,
    Repair,
    RepairFolder,
    check_count,
    state_change,
)

if TYPE_CHECKING:
    pass

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.repair")


class RepairSend(RedeliverySend):
    """The messages of one repair on their way. ``skipped``: events that are not sent again."""

    def __init__(
        self,
        plan: SendContext,
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
                    told = plan.renderer.writer.header_writer.told(repair.header_of(number, table))
                    mark = (REPAIR_HEADER, told)
                    marked = [each._replace(headers=[*each.headers, mark]) for each in messages]
                    yield number, counted_as(change), marked
                elif number not in self.problems:
                    self.taken.add(number)  # as the configuration has it, it gives no message
        check_count(self.path, repair, count)

    def again(self, *, is_aborted: bool) -> RepairSend:
        first = 0 if is_aborted else self._take_back()
        skipped = frozenset(number for number in self.taken if number < first)
        again = RepairSend(self._plan, self.repair, self._folder, is_careful=True, skipped=skipped)
        if not is_aborted:
            again.counts = self.counts
        return again


class RepairOutcome(NamedTuple):
    """Result of a repair. ``taken``: the events that Kafka took of one that was not sent as a
    whole, by their numbers; ``problems``: why others can't be sent; ``is_stale``: newer events of
    its database have come."""

    is_sent: bool
    text: str
    taken: list[int]
    problems: dict[int, str]
    is_stale: bool = False


class Repairs:
    """The repairs that wait, and the databases that are held for them."""

    def __init__(self, plan: SendContext) -> None:
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
        """Tell whether no journal of DATABASE may be begun."""
        if not self._holds and not self._waiting:
            return False
        until = self._holds.get(database)
        if until is not None:
            if until > monotonic():
                return True
            del self._holds[database]
        return database in self._waiting.values()

    def begin(self, uuid: UUID, place: Place | None) -> RepairSend | RepairOutcome:
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
        return RepairSend(self._plan, repair, self.files)

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
        """Tell whether UUID is that of a repair that waits."""
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

    def finish(self, send: RepairSend, *, is_aborted: bool) -> tuple[bool, RepairOutcome]:
        """Everything of SEND is answered. Returns whether it is noted that Kafka has all of it,
        and what became of it. IS_ABORTED: nothing of it becomes visible."""
        repair = send.repair
        taken = set() if is_aborted else send.taken
        text = f"{len(taken)} event{'' if len(taken) == 1 else 's'} sent"
        if send.is_sent and not is_aborted:
            return self.note_sent(repair.uuid), RepairOutcome(True, text, [], {})
        outcome = RepairOutcome(
            False,
            f"{text}, the rest not: {send.trouble}",
            sorted(taken),
            {pos: send.problems[pos] for pos in sorted(send.problems)},
        )
        rest = {pos for pos in range(1, len(repair.events) + 1) if pos not in taken}
        part = repair.without(rest) if taken else None
        if part is not None:
            self.note_sent(repair.uuid, part)
        else:
            self._remove(repair.uuid)
        return False, outcome
