"""Number of events with placeholders for BLOBs that the engine did not give to the plugin.

Each counts once, also where its journal is sent again, and before Kafka has it for good: who counts
afterwards forgets it in a crash, as nobody reads that journal again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.journal.format import RowChange

Found = tuple[int, str]
"""The number of such an event in its journal, and which fields of which table, for people."""

OnUnread = Callable[[str, UUID, tuple[int, int], Sequence[Found]], object]
"""Hears of such events: database, journal, its epoch and sequence, and what was found in it."""


def found_in(change: RowChange, fields: str) -> Found:
    """Return what is counted of CHANGE with its FIELDS."""
    return change.pos, f"{fields} of table {change.table.name}"


def unheard(database: str, uuid: UUID, number: tuple[int, int], found: Sequence[Found]) -> None:
    """Hear of nothing."""


@dataclass(slots=True)
class UnreadBlobs:
    """Count of such events of one database, as the journal folder remembers it.

    ``total``: since the folder was made, ``known``: those that somebody has acknowledged.
    ``first``: the first of the others, for people; ``first_us``, ``last_us``: when the first and
    the last of these were noticed. ``counted``: of journals that may be sent again, epoch and
    sequence, and the event up to which they are counted.
    """

    total: int = 0
    known: int = 0
    first: str = ""
    first_us: int = 0
    last_us: int = 0
    counted: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def unknown(self) -> int:
        """Number of those that nobody has acknowledged."""
        return self.total - self.known

    def add(self, uuid: UUID, number: tuple[int, int], found: Sequence[Found]) -> bool:
        """Count those FOUND in journal UUID with NUMBER that are not counted; False: all are."""
        reached = self.counted.get(str(uuid), (*number, 0))[2]
        new = [each for each in found if each[0] > reached]
        if not new:
            return False
        self.last_us = now_us()
        if not self.unknown:
            pos, what = new[0]
            self.first = f"event {pos} of {uuid}.log: {what}"
            self.first_us = self.last_us
        self.total += len(new)
        self.counted[str(uuid)] = (*number, new[-1][0])
        return True

    def forget(self, reached: tuple[int, int]) -> None:
        """Kafka has all journals up to REACHED for good: none of these is sent again."""
        if self.counted:
            self.counted = {
                uuid: place for uuid, place in self.counted.items() if place[:2] > reached
            }

    def acknowledge(self, until_us: int) -> None:
        """Take it that somebody knows of all, unless one was noticed after that time."""
        # What was noticed in the future was noticed before the clock was set back.
        if not until_us < self.last_us <= now_us():
            self.known = self.total

    def __str__(self) -> str:
        events = "1 event has" if self.unknown == 1 else f"{self.unknown} events have"
        return f"{events} placeholders for BLOBs that could not be read"

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> UnreadBlobs:
        """Read what a memory has of it; raises ValueError, KeyError, TypeError."""
        if not fields:
            return cls()
        return cls(
            int(fields["total"]),
            int(fields["known"]),
            str(fields["first"]),
            int(fields["first_us"]),
            int(fields["last_us"]),
            {
                str(uuid): (int(epoch), int(sequence), int(pos))
                for uuid, (epoch, sequence, pos) in fields["counted"].items()
            },
        )


class UnreadEvents:
    """Such events of one journal that is being sent. ``new``: those of which nobody heard yet;
    ``count``: of all, ``first``: the first one, for people."""

    __slots__ = ("count", "first", "new")

    def __init__(self) -> None:
        self.new: list[Found] = []
        self.count = 0
        self.first = ""

    def add(self, change: RowChange, fields: str, whose: str) -> None:
        """Note CHANGE with its FIELDS. WHOSE: table and key, which the log alone tells."""
        self.new.append(found_in(change, fields))
        self.count += 1
        self.first = self.first or f"event {change.pos}: {fields} of {whose}"

    def taken(self) -> Sequence[Found]:
        """Return ``new``, and empty it."""
        new, self.new = self.new, []
        return new
