"""Notes on journals that were quarantined: which of their events were not sent, and why.

The shipper writes notes (`journal.shipper.quarantine`); a replay reads them in Spark's tasks, so
nothing here needs a compiled part of ours.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from firebird_cdc import __version__

QUARANTINE = "quarantine"
"""Folder of what was quarantined, in ``.firebird-cdc``."""

MOST_KEYS_OF_ONE = 5_000
"""Keys of one journal that are watched; beyond them any newer event in the topics concerned counts.
A bound on memory and on the size of a note."""

MOST_TOPICS_OF_ONE = 100
"""Topics of one journal; beyond them any newer event of the database counts."""

MOST_RANGES = 50_000
"""Stretches of left out events that a note holds. The rest of a journal with more is left out as
a whole."""

MOST_NAMELESS = 100
"""Tables of one journal that are noted as having no names."""

MOST_EVENTS_NAMED = 100
"""Left out events of one journal whose table and key stand in the note."""

_BEFORE_VERSIONS = "0.1.0"  # notes told none until 0.2
_MOST_REASONS = 50
_REASON_CHARS = 2_000  # enough for one that names two tables, their databases and their topics


class LeftOut(NamedTuple):
    """Events FIRST to LAST were not sent; ``reason`` is an index into the note's reasons."""

    first: int
    last: int
    reason: int


@dataclass(slots=True)
class Note:
    """Note on a journal: what of it was not sent, and what that concerns.

    ``database``, ``epoch``, ``sequence``: as far as they could be read. ``left_out``: single
    events, in order; ``rest_after``: nothing behind this event was sent, None: all was but those.
    ``events``: of the first of them table and key, for people. ``nameless``: tables that can't have
    the names they need (`journal.events.bad_event`), each with the first of its events that was
    left out. ``keys``: digests of topic and key, each with the lowest event that has it;
    ``topics``: all topics concerned, in the same way; ``is_topics``: the keys are too many or
    unknown, any newer event in the topics counts; ``is_all``: any newer event of the database does.
    ``newer``: the newer event that was shipped since, None while there is none. ``is_moved``: the
    journal never was disposed of like a shipped one, so the archive has not got it. ``version``:
    the first of ours that noted keys in it, as messages have them in its form. ``home``: the
    journal that it shared with other transactions, where it was not alone in it.
    """

    uuid: UUID
    database: str | None
    epoch: int | None
    sequence: int | None
    at_us: int
    left_out: list[LeftOut] = field(default_factory=list)
    rest_after: int | None = None
    rest_reason: str = ""
    reasons: list[str] = field(default_factory=list)
    keys: dict[bytes, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    is_topics: bool = False
    is_all: bool = False
    newer: str | None = None
    is_moved: bool = False
    events: dict[int, str] = field(default_factory=dict)
    version: str = __version__
    nameless: dict[str, int] = field(default_factory=dict)
    home: UUID | None = None

    @property
    def says_something(self) -> bool:
        """Tell whether anything of the journal was not sent."""
        return bool(self.left_out) or self.rest_after is not None

    @property
    def at(self) -> str:
        """Time at which the journal was quarantined."""
        return (
            datetime.fromtimestamp(self.at_us / 1_000_000, UTC).isoformat().replace("+00:00", "Z")
        )

    def reason_at(self, pos: int) -> str | None:
        """Return the reason that event POS was not sent, None if it was."""
        place = bisect_right(self.left_out, pos, key=lambda each: each.first) - 1
        if place >= 0 and pos <= self.left_out[place].last:
            return self.reasons[self.left_out[place].reason]
        if self.rest_after is not None and pos > self.rest_after:
            return self.rest_reason
        return None

    def add(self, pos: int, reason: str) -> bool:
        """Event POS is left out, too; False if there is no room to say so."""
        if self.reason_at(pos) is not None:
            return True
        number = self._number_of(reason)
        last = self.left_out[-1] if self.left_out else None
        if last is not None and last.last == pos - 1 and last.reason == number:
            self.left_out[-1] = last._replace(last=pos)
        elif len(self.left_out) >= MOST_RANGES:
            return False
        else:
            place = bisect_right(self.left_out, pos, key=lambda each: each.first)
            self.left_out.insert(place, LeftOut(pos, pos, number))
        return True

    def end_after(self, pos: int, reason: str) -> None:
        """Nothing behind event POS is sent."""
        self.rest_after = pos
        self.is_moved = True
        self.rest_reason = _shortened(reason)

    def cut_back(self, pos: int) -> None:
        """Nothing is known any more about what comes behind event POS."""
        self.left_out = [
            each._replace(last=min(each.last, pos)) for each in self.left_out if each.first <= pos
        ]
        self.rest_after = None
        self.is_moved = False
        self.events = {at: whose for at, whose in self.events.items() if at <= pos}
        self.nameless = {table: first for table, first in self.nameless.items() if first <= pos}
        self.keys = {digest: first for digest, first in self.keys.items() if first <= pos}
        self.topics = {topic: first for topic, first in self.topics.items() if first <= pos}
        if not self.left_out:
            self.is_topics = self.is_all = False

    def named(self) -> list[tuple[int, str]]:
        """Return the events of which table and key are known, and these, in order."""
        return [each for each in sorted(self.events.items()) if self.reason_at(each[0]) is not None]

    def _number_of(self, reason: str) -> int:
        reason = _shortened(reason)
        if reason in self.reasons:
            return self.reasons.index(reason)
        if len(self.reasons) >= _MOST_REASONS:
            reason = "for more reasons than are kept here; our log has them"
            if self.reasons[-1] == reason:
                return len(self.reasons) - 1
        self.reasons.append(reason)
        return len(self.reasons) - 1

    def concerns(self, pos: int, what: Concerned) -> None:
        """Event POS, which is left out, concerns WHAT."""
        if what is None:
            self.is_all = True
        elif isinstance(what, str):
            self.is_topics = True
            self.topics.setdefault(what, pos)
        else:
            for topic, key in what:
                self.topics.setdefault(topic, pos)
                if not self.is_topics and not self.is_all:
                    self.keys.setdefault(digest_of(topic, key), pos)
        if len(self.keys) > MOST_KEYS_OF_ONE:
            self.is_topics = True
        if len(self.topics) > MOST_TOPICS_OF_ONE:
            self.is_all = True

    def add_nameless(self, table: str, pos: int) -> None:
        """Event POS of TABLE, which has no names, is left out."""
        if len(self.nameless) < MOST_NAMELESS:
            self.nameless.setdefault(table, pos)

    def nameless_now(self) -> dict[str, str]:
        """Return the tables that have no names, each with why, without those sent meanwhile."""
        found = {table: self.reason_at(pos) for table, pos in self.nameless.items()}
        return {table: reason for table, reason in found.items() if reason is not None}

    @property
    def breadth(self) -> str:
        """Scope of the newer events that count, for people."""
        if self.is_all:
            return "the same database" if self.database is not None else "some database"
        return "the same table" if self.is_topics else "the same key"

    def sentence(self) -> str:
        """Return a text about what became of the journal, for people."""
        parts = []
        if self.left_out:
            count = sum(each.last - each.first + 1 for each in self.left_out)
            first = self.left_out[0]
            why = self.reasons[first.reason]
            if (whose := self.events.get(first.first)) is not None:
                why += f"; it is of {whose}"
            parts.append(
                f"event {first.first} was left out: {why}"
                if count == 1
                else f"{count} events were left out, the first is event {first.first}: {why}"
            )
        if self.rest_after is not None:
            sent = (
                f"its events up to {self.rest_after} were sent"
                if self.rest_after
                else "none of its events was sent"
            )
            parts.append(f"{self.rest_reason}; {sent}")
        return "; ".join(parts)

    def to_json(self) -> bytes:
        """The note as it is written."""
        content = {
            "database": self.database,
            "epoch": self.epoch,
            "sequence": self.sequence,
            "set_aside_at": self.at,
            "set_aside_us": self.at_us,
            "left_out": [list(each) for each in self.left_out],
            "rest_after": self.rest_after,
            "rest_reason": self.rest_reason,
            "reasons": self.reasons,
            "keys": {digest.hex(): pos for digest, pos in self.keys.items()},
            "topics": self.topics,
            "any_key": self.is_topics,
            "any_topic": self.is_all,
            "newer": self.newer,
            "moved": self.is_moved,
            "events": self.named(),
            "version": self.version,
            "nameless": self.nameless,
            "home": None if self.home is None else str(self.home),
        }
        return json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, uuid: UUID, content: bytes) -> Note:
        """The note that was written. Raises ValueError."""
        try:
            held: dict[str, Any] = json.loads(content)
            return cls(
                uuid,
                held["database"],
                held["epoch"],
                held["sequence"],
                held["set_aside_us"],
                [LeftOut(*each) for each in held["left_out"]],
                held["rest_after"],
                held["rest_reason"],
                held["reasons"],
                {bytes.fromhex(digest): pos for digest, pos in held["keys"].items()},
                held["topics"],
                held["any_key"],
                held["any_topic"],
                held["newer"],
                held["moved"],
                dict(held.get("events", ())),
                held.get("version", _BEFORE_VERSIONS),
                dict(held.get("nameless", {})),
                None if (home := held.get("home")) is None else UUID(home),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a note of ours: {error!r}") from error


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _REASON_CHARS else f"{reason[: _REASON_CHARS - 3]}..."


def digest_of(topic: str, key: bytes | None) -> bytes:
    """Return a digest of the key of a topic. All its messages without a key have the same one."""
    digest = hashlib.blake2b(topic.encode(), digest_size=16)
    if key is not None:
        digest.update(b"\0")
        digest.update(key)
    return digest.digest()


Concerned = Sequence[tuple[str, bytes | None]] | str | None
"""Messages of an event that can't be sent: their topics and keys; a topic, where the key can't be
told; None, where not even that can."""
