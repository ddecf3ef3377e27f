"""The shipper's side of ``firebird-cdc replay repair``: holds a database, and sends its repairs.

A repair (``journal.shipper.repairs``) is true only at one place of its database's history: newer
events of its keys would make it old. So the command first asks for a *hold*: no further journal of
the database is begun, and once none is under way the answer tells the last place that was shipped.
What the command then makes names that place, and is sent only if it still is the last one. A hold
ends by itself; repairs that wait keep their database held, also over a restart, so none of them is
overtaken. Commits never wait for any of this.

All of a repair goes out in one Kafka transaction, as a retry does
(``journal.shipper.delivery.redelivery``), with the same kind of record in the offset topic.
Everything belongs to the shipping thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from time import monotonic
from typing import NamedTuple
from uuid import UUID

import logbook

from firebird_cdc.errors import ShipError
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.render import JournalRenderer
from firebird_cdc.journal.format import Gap, JournalReader, RowChange, SequenceChange
from firebird_cdc.journal.shipper.delivery.resend import (
    CHANGES_PER_TURN,
    TURN,
    RedeliverySend,
    Rendered,
)
from firebird_cdc.journal.shipper.delivery.send import seen_of
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.delivery.tally import counted_as
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.kafka.offset_topic import redelivery_record
from firebird_cdc.journal.shipper.repairs import (
    REPAIR_HEADER,
    WHOLE,
    Repair,
    RepairFolder,
    RepairPoint,
    check_count,
    state_change,
)

_log = logbook.Logger("firebird_cdc.journal.shipper.delivery.repair")

_NOTHING = "by the options in force nothing of it is sent"


class RepairEvents:
    """The events of one repair. ``again``: those up to ``reached`` that had a problem; ``left``:
    those of them that were not read again."""

    def __init__(
        self,
        plan: SendContext,
        repair: Repair,
        folder: RepairFolder,
        *,
        reached: int = 0,
        again: Collection[int] = (),
    ) -> None:
        self.repair = repair
        self.uuid = repair.uuid
        self.database = repair.database
        self.path = folder.journal(repair.uuid)
        self.reached = reached
        self._plan = plan
        self._folder = folder
        self.left = set(again)
        self._again = again

    def rendered(self) -> Generator[Rendered, None, None]:
        """Yield them in their order. Raises JournalError, OSError or Obstacle."""
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
                    yield TURN
                if number <= self.reached and number not in self._again:
                    continue
                self.left.discard(number)
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
                    yield Rendered(number, problem=str(error))
                    continue
                if not messages:
                    yield Rendered(number, problem=_NOTHING)
                    continue
                seen = seen_of(plan.quarantine, renderer, change, messages)
                plan.quarantine.see(entry, repair.database, pos, seen, is_redelivered=True)
                table = change.table.name if isinstance(change, RowChange) else ""
                told = plan.renderer.writer.header_writer.told(repair.header_of(number, table))
                mark = (REPAIR_HEADER, told)
                messages = [each._replace(headers=[*each.headers, mark]) for each in messages]
                yield Rendered(number, counted_as(change), messages)
        check_count(self.path, repair, count)

    def record(self) -> tuple[bytes, bytes]:
        """Return key and value of the record that all of them were sent."""
        return redelivery_record(self.database, self.uuid)

    def behind(
        self, reached: int | None, problems: Mapping[int, str], taken: int, broken: str
    ) -> RepairEvents:
        """Return those that have PROBLEMS, and all behind number REACHED; None: nothing is."""
        del taken, broken  # no note tells of them
        if reached is None:
            reached = len(self.repair.events)
        return RepairEvents(
            self._plan, self.repair, self._folder, reached=reached, again=problems.keys()
        )


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
    """The repairs that wait, and the databases that are held for them.

    ``place_of``: the last place of a database that was shipped, asked once ``is_at_rest`` says
    that nothing of it is under way.
    """

    title = "repair {}"

    def __init__(
        self,
        plan: SendContext,
        is_at_rest: Callable[[str], bool],
        place_of: Callable[[str], RepairPoint | None],
    ) -> None:
        self.files = RepairFolder(plan.directory)
        self._plan = plan
        self._is_at_rest = is_at_rest
        self._place_of = place_of
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

    def begin(self, uuid: UUID) -> RedeliverySend | RepairOutcome | None:
        """Return the sending of a repair, or why it is not sent, or None: not yet."""
        database = self.database_of(uuid)
        if database is not None and not self._is_at_rest(database):
            return None
        place = None if database is None else self._place_of(database)
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
        return RedeliverySend(self._plan, RepairEvents(self._plan, repair, self.files))

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

    def finish(self, send: RedeliverySend, *, is_aborted: bool) -> tuple[bool, RepairOutcome]:
        """Note what became of SEND, of which everything is answered, and return it.

        Returns also whether it is noted that Kafka has all of it. IS_ABORTED: nothing of it becomes
        visible.
        """
        try:
            self._plan.quarantine.flush()
        except OSError as error:
            _log.error("the notes of the quarantine on newer events can't be written: {}", error)
        assert isinstance(send.events, RepairEvents)
        repair, problems = send.events.repair, send.problems
        numbers = range(1, len(repair.events) + 1)
        reached = 0 if is_aborted else send.reached
        not_taken = problems.keys() | send.events.left
        taken = [number for number in numbers[:reached] if number not in not_taken]
        text = f"{len(taken)} event{'' if len(taken) == 1 else 's'} sent"
        if send.is_sent and not is_aborted:
            return self.note_sent(repair.uuid), RepairOutcome(True, text, [], {})
        outcome = RepairOutcome(
            False,
            f"{text}, the rest not: {send.trouble}",
            taken,
            {number: problems[number] for number in sorted(problems)},
        )
        part = repair.without(set(numbers).difference(taken)) if taken else None
        if part is not None:
            self.note_sent(repair.uuid, part)
        else:
            self._remove(repair.uuid)
        return False, outcome
