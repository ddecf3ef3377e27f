"""Number of events with placeholders for values that could not be read or decoded.

Each counts once, also where its journal is sent again, and before Kafka has it for good: who counts
afterwards forgets it in a crash, as nobody reads that journal again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.journal.events.render import RowRenderer
from firebird_cdc.journal.events.values import UNDECODED, UNREAD
from firebird_cdc.journal.folder import subjects
from firebird_cdc.journal.format import DdlChange, RowChange

MOST_COUNTED = 2500
"""Journals of which is remembered what is counted; more than may be under way at a time, so that no
other one is sent again."""

Found = tuple[int, str]
"""The number of such an event in its journal, and which fields of which table, for people."""


class Kind(NamedTuple):
    """Words for one kind of such values: under which ``subject`` operators are told of it, what the
    placeholders stand for, and what to do."""

    subject: str
    values: str
    remedy: str


KINDS: Mapping[str, Kind] = {
    UNREAD: Kind(
        subjects.UNREAD,
        "BLOBs that could not be read",
        "read these BLOBs in the database: if that works, have firebird-cdc snapshot execute send"
        " their rows, else gfix -validate tells what is damaged",
    ),
    UNDECODED: Kind(
        subjects.UNDECODED,
        "values that could not be decoded",
        "set connector.charset.none to what columns of CHARACTER SET NONE hold, correct what is"
        " wrong in others, and have firebird-cdc snapshot execute send these rows",
    ),
}


class UnsentCounter(Protocol):
    """Counter of such events, which hears of them."""

    def count_unsent(
        self,
        database: str,
        kind: str,
        uuid: UUID,
        number: tuple[int, int],
        found: Sequence[Found],
    ) -> object:
        """Count those of KIND that were FOUND in journal UUID with NUMBER (epoch, sequence)."""

    def write_counts(self) -> object:
        """Have on disk what was counted, before Kafka has it for good."""


class NoCounter:
    """Counter that counts nothing."""

    def count_unsent(self, *_: object) -> None:
        """Hear of nothing."""

    def write_counts(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class UnsentCount:
    """Count of such events of one database and kind, as the journal folder remembers it.

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
        counted = self.counted
        counted.pop(str(uuid), None)
        counted[str(uuid)] = (*number, new[-1][0])
        if len(counted) > MOST_COUNTED:  # where Kafka does not tell what it has
            del counted[next(iter(counted))]
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

    def told(self, values: str) -> str:
        """Return for people how many events have placeholders for VALUES, and nobody knows it."""
        events = "1 event has" if self.unknown == 1 else f"{self.unknown} events have"
        return f"{events} placeholders for {values}"

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> UnsentCount:
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


def found_in(change: RowChange | DdlChange, fields: Sequence[str]) -> Found:
    """Return what is counted of CHANGE with its FIELDS."""
    table = "" if isinstance(change, DdlChange) else f" of table {change.table.name}"
    return change.pos, ", ".join(fields) + table


class UnsentEvents:
    """Such events of one journal that is being sent. ``new``: by kind, those of which nobody heard
    yet. ``unread``: of how many BLOBs could not be read, ``first_unread``: the first one, for
    people. ``first_undecoded``: the first one with values that could not be decoded, if the log has
    not told of all their columns."""

    __slots__ = ("_told", "first_undecoded", "first_unread", "new", "unread")

    def __init__(self, told: set[tuple[str, str]]) -> None:
        """TOLD: the tables and columns with such values of which the log has told."""
        self.new: dict[str, list[Found]] = {}
        self.unread = 0
        self.first_unread = self.first_undecoded = ""
        self._told = told

    def add(self, renderer: RowRenderer, change: RowChange | DdlChange) -> None:
        """Note CHANGE if it is one."""
        for kind, fields in renderer.unsent(change).items():
            self.new.setdefault(kind, []).append(found_in(change, fields))
            if kind == UNREAD:
                self.unread += 1
                self.first_unread = self.first_unread or _named(renderer, change, fields)
                continue
            table = "" if isinstance(change, DdlChange) else change.table.name
            columns = {(table, field.partition(".")[2]) for field in fields}
            if not columns <= self._told:
                self._told |= columns
                self.first_undecoded = self.first_undecoded or _named(renderer, change, fields)

    def taken(self) -> Mapping[str, Sequence[Found]]:
        """Return ``new``, and empty it."""
        new, self.new = self.new, {}
        return new


def _named(renderer: RowRenderer, change: RowChange | DdlChange, fields: Sequence[str]) -> str:
    """Return CHANGE with its FIELDS, table and key, which the log alone tells."""
    whose = renderer.whose(change)
    return f"event {change.pos}: {', '.join(fields)}" + (whose and f" of {whose}")
