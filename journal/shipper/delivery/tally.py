"""Number of changes of a journal that Kafka has acknowledged, without a look at each answer.

Changes are handed over some hundred at a time, in steps. What a step's changes are counted as is
known when they are rendered; it becomes a figure of the statistics once the step and all before it
are acknowledged, in a Kafka transaction once that is committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from firebird_cdc.journal.format import DdlChange, RowChange
from firebird_cdc.journal.shipper.monitoring.statistics import DatabaseStatistics, LastEvent

Kind = tuple[str, str]
"""Table and operation; ("", "ddl") of DDL."""

NOTHING: Mapping[Kind, int] = {}

FILTERED: Kind = ("", "")
"""Kind of changes without a message."""

PLACED: Kind = ("", "placeholder")
"""Second kind of changes that have placeholders for what is too large; they have their own, too."""


def counted_as(change: RowChange | DdlChange) -> Kind:
    """Return under which table and operation the statistics count CHANGE."""
    return (change.table.name, change.op) if isinstance(change, RowChange) else ("", "ddl")


def count(statistics: DatabaseStatistics, kind: Kind, times: int = 1) -> None:
    """Count in STATISTICS that so many changes of KIND are in Kafka."""
    if kind is FILTERED:
        statistics.filtered += times
    elif kind is PLACED:
        statistics.placeholders += times
    elif times:
        events = statistics.events
        events[kind] = events.get(kind, 0) + times


class Tally:
    """The counts of one journal, from change to statistics.

    ``handed``: what was handed over since the last ``cut``, by kind. ``read``: the position of the
    change that was rendered last, ``kind``: as what it is in ``handed``, None if it isn't;
    ``is_placed``: it is there as PLACED, too.
    ``told``: up to which change the statistics have counted, also by earlier attempts.
    ``has_placeholders``: some of what was handed over is PLACED. ``length``: the journal's bytes,
    ``last_event``: its last event, once it is read.
    """

    __slots__ = (
        "_acknowledged",
        "_reached",
        "_statistics",
        "handed",
        "has_placeholders",
        "is_placed",
        "kind",
        "last_event",
        "length",
        "read",
        "told",
    )

    def __init__(self, statistics: DatabaseStatistics, told: int) -> None:
        self.handed: dict[Kind, int] = {}
        self.kind: Kind | None = None
        self.is_placed = False
        self.has_placeholders = False
        self.length = 0
        self.last_event: LastEvent | None = None
        self.read = self.told = self._reached = told
        self._acknowledged = NOTHING
        self._statistics = statistics

    def cut(self, *, is_whole: bool) -> tuple[Mapping[Kind, int], int]:
        """Return what was handed over since the last call, and up to which position.

        Not IS_WHOLE: messages of the change read last are still held back, it belongs to the next.
        """
        if not self.handed:
            return NOTHING, self.read if is_whole else self.read - 1
        counts = self.handed.copy()
        self.handed.clear()
        if is_whole:
            return counts, self.read
        for kind in (self.kind, PLACED if self.is_placed else None):
            if kind is not None and kind in counts:
                counts[kind] -= 1
                self.handed[kind] = 1
        return counts, self.read - 1

    def take(self, counts: Mapping[Kind, int], pos: int) -> None:
        """Take COUNTS, which ``cut`` gave, as acknowledged, and all up to POS with it."""
        if pos > self._reached:
            self._reached = pos
        if not self._acknowledged:
            self._acknowledged = counts
        elif counts:
            total = dict(self._acknowledged)
            for kind, count in counts.items():
                total[kind] = total.get(kind, 0) + count
            self._acknowledged = total

    def tell(self) -> None:
        """Give the statistics what is acknowledged and will stay."""
        counts = self._acknowledged
        if counts:
            self._acknowledged = NOTHING
            for kind, times in counts.items():
                count(self._statistics, kind, times)
        self.told = self._reached
