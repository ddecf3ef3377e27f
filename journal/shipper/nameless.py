"""Tells of tables that can't have the names they need in Kafka, as long as their events are in the
quarantine.

The notes in the quarantine say which they are (`journal.folder.notes`), so it is told as long as
something of them lies there: over restarts, whoever asks, and until it is sent or given up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, NamedTuple
from uuid import UUID

from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE, Note
from firebird_cdc.journal.folder.subjects import NAMELESS
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_LOOK_S = 1.0
_SHARE = 50
"""A look takes one part in so many of the shipping thread's time at most."""

_TICK_NS = 1_000_000_000
"""Times of files that are this far apart differ, on any file system; a guess well above."""

_NOTE = ".json"

REMEDY = (
    "To have them sent before newer events, stop the shipper, change that, run firebird-cdc journal"
    " retry --all, and start it"
)
"""The way out, told behind the reason."""


class NamelessTable(NamedTuple):
    """A table without names. ``journals``: those that wait with events of it; ``reason``: why, and
    what to do, in one sentence."""

    database: str
    table: str
    journals: int
    reason: str

    @property
    def subject(self) -> str:
        """Of the trouble that tells of it."""
        return f"{NAMELESS}{self.database}:{self.table}"

    @property
    def text(self) -> str:
        """Return what is to be told of it, in one sentence."""
        journals = "1 journal" if self.journals == 1 else f"{self.journals} journals"
        return (
            f"table {self.table} in {self.database} is not delivered, events of it in {journals}"
            f" are quarantined: {self.reason}. {REMEDY}"
        )


class NamelessTables:
    """The tables without names of one journal folder; reads only what changed since it last did."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / STATE_DIRECTORY / QUARANTINE
        self._changed_at: tuple[int, int] | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        self._tables: dict[str, tuple[str, dict[str, str]]] = {}

    def look(self) -> list[NamelessTable]:
        """Return them, in the order of their names. Raises OSError."""
        try:
            status = self._folder.stat()
        except FileNotFoundError:
            self._seen.clear()
            self._tables.clear()
            return []
        changed_at = status.st_ino, status.st_mtime_ns
        if changed_at != self._changed_at:
            self._read_changed()
            # A change that follows at once may leave the folder the same time.
            is_old = time_ns() - status.st_mtime_ns > _TICK_NS
            self._changed_at = changed_at if is_old else None
        return list(self._summed())

    def _read_changed(self) -> None:
        notes, journals = {}, set()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                stem, ending = os.path.splitext(entry.name)  # noqa: PTH122 - there may be very many
                if ending == ".log":
                    journals.add(stem)
                elif ending == _NOTE:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        notes[stem] = status.st_ino, status.st_mtime_ns
        for stem in self._seen.keys() - (notes.keys() & journals):
            del self._seen[stem]
            self._tables.pop(stem, None)
        for stem in notes.keys() & journals:
            if self._seen.get(stem) != notes[stem]:
                self._seen[stem] = notes[stem]
                self._read(stem)

    def _read(self, stem: str) -> None:
        self._tables.pop(stem, None)
        # One that can't be read is told of by the quarantine.
        with contextlib.suppress(OSError, ValueError):
            note = Note.from_json(UUID(stem), (self._folder / f"{stem}{_NOTE}").read_bytes())
            if found := note.nameless_now():
                self._tables[stem] = note.database or "", found

    def _summed(self) -> Iterator[NamelessTable]:
        counts: dict[tuple[str, str], tuple[int, str]] = {}
        for database, tables in self._tables.values():
            for table, reason in tables.items():
                count, _ = counts.get((database, table), (0, ""))
                counts[database, table] = count + 1, reason
        for (database, table), (count, reason) in sorted(counts.items()):
            yield NamelessTable(database, table, count, reason)


def troubles_of(directory: Path, now: int) -> list[dict[str, Any]]:
    """Return what to tell of the tables without names of the journal folder DIRECTORY, as a report
    has it; NOW: microseconds since 1970."""
    try:
        found = NamelessTables(directory).look()
    except OSError:
        return []  # that the folder can't be read is told elsewhere
    return [
        {"subject": each.subject, "kind": "warning", "text": each.text, "since_us": now}
        for each in found
    ]


class NamelessWatch:
    """A periodic task of the shipper: has the statistics tell of tables without names."""

    def __init__(self, directory: Path, statistics: Statistics) -> None:
        self._tables = NamelessTables(directory)
        self._statistics = statistics

    def turn(self, now: float) -> float:
        """Look at what lies in the quarantine."""
        begun = monotonic()
        statistics, counts = self._statistics, dict.fromkeys(self._statistics.databases, 0)
        found = self._tables.look()
        for each in found:
            counts[each.database] = counts.get(each.database, 0) + 1
            statistics.trouble(each.subject, "warning", each.text)
        subjects = {each.subject for each in found}
        for subject in [*statistics.troubles]:
            if subject.startswith(NAMELESS) and subject not in subjects:
                statistics.clear(subject)
        for database, count in counts.items():
            statistics.database(database).nameless = count
        return now + max(_LOOK_S, _SHARE * (monotonic() - begun))

    def close(self) -> None:
        """Nothing is held."""
