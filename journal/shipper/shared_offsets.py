"""Offsets in shared journals: up to which number the transactions of each are delivered.

A journal that transactions share stays until the last of them is delivered, and others may have
numbers between those of one. So what a crash leaves of it is told from what is new by its own
number, not by that of the database. One that is alone in its journal is known by its uuid.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from firebird_cdc.journal.shipper.inbox.queue import Entry

Number = tuple[int, int]
"""Epoch and sequence."""

NOTHING: Number = (-1, -1)
"""Below all numbers."""

EVERYTHING: Number = (sys.maxsize, sys.maxsize)
"""Above all numbers."""

GONE = 64
"""Journals that are remembered although they are gone, those that were read last: a power cut may
bring them back. More of them are removed only once that is on disk
(``journal.shipper.delivery.disposal``)."""


class SharedOffsets:
    """The shared journals of one database, those that were read last at the end.

    REACHED: of each the number of its last transaction that is delivered.
    """

    def __init__(self, reached: Mapping[UUID, Number] | None = None) -> None:
        self._reached = dict(reached or {})
        self._set_aside: list[Entry] = []

    @property
    def reached(self) -> Mapping[UUID, Number]:
        """Of each journal the number of its last transaction that is delivered."""
        return self._reached

    def covers(self, entry: Entry) -> bool:
        """Tell whether ENTRY is delivered."""
        return entry.shares is not None and entry[:2] <= self._reached.get(entry.shares, NOTHING)

    def anew(self, reached: Mapping[UUID, Number]) -> SharedOffsets:
        """Return offsets that begin with REACHED, without those that were quarantined."""
        made = SharedOffsets(reached)
        made._set_aside = self._set_aside
        return made

    def note(self, entries: Iterable[Entry]) -> None:
        """Take it that ENTRIES, and all of their journals before them, are delivered."""
        _raise(self._reached, entries)

    def set_aside(self, entry: Entry) -> None:
        """Take it that ENTRY is never delivered, though transactions before it may have to be."""
        self._set_aside.append(entry)

    def after(
        self, entries: Iterable[Entry], last: Number, holds: Callable[[UUID], bool]
    ) -> dict[UUID, Number]:
        """Return what is reached once ENTRIES, and so everything up to LAST, are delivered.

        HOLDS: tells whether a journal is still there.
        """
        reached = self._reached.copy()
        _raise(reached, entries)
        _raise(reached, (entry for entry in self._set_aside if entry[:2] <= last))
        gone = [home for home in reached if not holds(home)]
        for home in gone[:-GONE]:
            del reached[home]
        return reached

    def advance(self, reached: Mapping[UUID, Number], last: Number) -> None:
        """Take it that all is delivered that `after` was given."""
        self._reached = dict(reached)
        self._set_aside = [entry for entry in self._set_aside if entry[:2] > last]


def _raise(reached: dict[UUID, Number], entries: Iterable[Entry]) -> None:
    # Many of one journal follow each other, and hashing a uuid takes its time.
    for _, of_one in groupby(entries, attrgetter("home")):
        most = max(of_one)  # if that one is alone in its journal, so are the others
        if (home := most.shares) is not None:
            reached[home] = max(reached.pop(home, NOTHING), most[:2])


def as_json(reached: Mapping[UUID, Number]) -> dict[str, Number]:
    """Return REACHED as JSON can have it."""
    return {str(home): number for home, number in reached.items()}


def from_json(fields: Mapping[str, Any]) -> dict[UUID, Number]:
    """Return what `as_json` made FIELDS of. Raises ValueError or TypeError."""
    return {UUID(home): (int(epoch), int(sequence)) for home, (epoch, sequence) in fields.items()}
