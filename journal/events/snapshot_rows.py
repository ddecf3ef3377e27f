"""Renders rows that a snapshot read as ``r`` events (docs/events.md, "Rows of a snapshot")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.records import Headers, Message
from firebird_cdc.journal.events.render import BoundShape, Renderer, RowRenderer
from firebird_cdc.journal.events.source import SourceFacts
from firebird_cdc.journal.events.templates import fill_partly
from firebird_cdc.journal.format import Row, RowChange, Table
from firebird_cdc.journal.format.layout import new_tuple

READ = "r"


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Facts of the snapshot that the events of one window share.

    ``uuid``: of the window, their ``source.journal``. ``number``: of the snapshot in the engine.
    ``epoch``, ``sequence``: the cut, which is the last journal before the rows. ``taken_us``: time
    of the snapshot in microseconds since 1970, UTC.
    """

    uuid: UUID
    number: int
    epoch: int
    sequence: int
    taken_us: int


class RowPlan(NamedTuple):
    """Plan by which C writes the events of a table's rows (`native/event_json.c`).

    ``row``, ``key``: see `row_json`. ``value``, ``around_key``: templates around these, with the
    row or key as the second text, and position and time as in `Frame`. The rest as there.
    """

    topic: str
    headers: Headers
    row: bytes
    key: bytes | None
    value: bytes
    around_key: bytes
    room: int


class SnapshotRenderer(RowRenderer):
    """Renders rows of DATABASE that were read in one window of a snapshot.

    Not thread-safe. It keeps each table that it is given: give it one object for each.
    """

    def __init__(self, renderer: Renderer, database: str, facts: SnapshotFacts) -> None:
        super().__init__(renderer, database, metadata=None)
        self._is_skipped = READ in renderer.config.skipped_operations
        us, place = facts.taken_us, (facts.epoch, facts.sequence, facts.number)
        self._facts = SourceFacts(facts.uuid.bytes, (us // 1000, us, us * 1000, *place))
        self._bound: dict[tuple[int, str], tuple[Table, BoundShape | None]] = {}

    def captures(self, table: Table) -> bool:
        """Tell whether the table lists let TABLE through."""
        return self.renderer.rules.tables.captures(self.database, table.name)

    def plan(self, table: Table, marker: str) -> RowPlan | None:
        """Return by what C writes events of TABLE, None: they are left to `messages`."""
        if self._is_skipped:
            return None
        try:
            shape = self.renderer.captured(self.database, table, 0)
        except BadEvent:  # each row tells it
            return None
        if shape is None or (frame := shape.quick_form(marker).frame) is None:
            return None
        row, key = shape.row_plan, shape.key_plan
        if row is None or (frame.key and key is None):
            return None
        uuid, numbers = self._facts
        value = fill_partly(frame.value, uuid, {0: b"null", 2: READ.encode()}, numbers)
        return RowPlan(shape.topic, frame.headers, row, key, value, frame.key, frame.room)

    def messages(self, table: Table, row: Row, pos: int, marker: str) -> list[Message]:
        """Return the messages of ROW, read as the POSth row of the window, from 1.

        MARKER: its ``source.snapshot``, one of Debezium's: ``first``, ``first_in_data_collection``,
        ``true``, ``last_in_data_collection``, ``last``, ``incremental``. Empty for a table that is
        filtered out, or if reads are skipped, or a transform drops the event. Raises BadEvent if
        the row can't be expressed, Obstacle as ``JournalRenderer``.
        """
        if self._is_skipped:
            return []
        change = new_tuple(RowChange, (pos, READ, table, None, row))
        known = self._bound.get((id(table), marker))
        if known is None:
            bound = self.bound_shape(change, self._facts, marker)
            known = self._bound[id(table), marker] = table, bound
        return [] if known[1] is None else self.rendered(known[1], change)
