"""Survey of the journals: which there are, and what their definitions and DDL statements are.

Spark's tasks make it, and read of the journals what they need for that: sectors, and the few blocks
with definitions and DDL. `outline` brings it together on the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.format import (
    Beginning,
    DdlChange,
    Entry,
    Remains,
    SmallTransactions,
    Stamp,
    Table,
)
from firebird_cdc.journal.replay.source.arrow import Columns
from firebird_cdc.journal.replay.source.bounds import HistoryPoint
from firebird_cdc.journal.replay.source.planning import (
    Found,
    FoundShared,
    JournalOptions,
    JournalPartition,
    find_files,
)
from firebird_cdc.journal.replay.source.storage import name_in
from firebird_cdc.journal.replay.state.row_maker import decoder_of, know

SURVEY: Columns = (
    ("kind", "string"),
    ("database", "string"),
    ("epoch", "bigint"),
    ("sequence", "bigint"),
    ("position", "bigint"),
    ("content", "binary"),
    ("file", "string"),
    ("transaction", "bigint"),
    ("commit_us", "bigint"),
    ("events", "bigint"),
    ("last", "bigint"),
    ("last_us", "bigint"),
    ("bytes", "bigint"),
)
"""Columns of a survey. ``kind``: file (a journal, or a transaction in one), or, where outlines are
asked for, span: all journals from ``sequence`` to ``last``, within a multiple of `SPAN`; of some
spans one has the events of all, their bytes without what small transactions repeat, and their first
and last time of commit. Or what ``content`` is:
shape (the `Table`, pickled), ddl (the `DdlChange`, pickled), damaged, missing (a sentence). Of a
damaged journal all columns say what is certain, wherever it lies; a whole segment can be one."""

SPAN = 1 << 16
"""Numbers from one multiple of it to the next are in spans of their own: so who looks for what is
missing or doubled can do so in parts."""

VANISHED = "the file vanished while the folder was being read"

_NO_FILE = (None,) * 7
_MOST_NUMBERS = 1_000_000  # which a task has in memory

_NOTHING = (-1, -1)  # a limit that is below all numbers

_Limits = Mapping[str, tuple[int, int]]
_Row = tuple[Any, ...]


def survey_rows(
    task: JournalPartition, options: JournalOptions, limits: _Limits | None, outlines: bool
) -> Iterator[_Row]:
    """Yield rows of `SURVEY` of the journals up to LIMITS, None: of all. OUTLINES: also what their
    definitions and DDL are, a shape once or twice."""
    survey = _Survey(options, limits, outlines)
    for found in find_files(task, options):
        if isinstance(found, Found):
            yield from survey.journal(found)
        else:
            yield from survey.shared(found)
    yield from survey.spans()
    yield from survey.shapes()


class _Facts(NamedTuple):
    """Facts on some journals of a database and epoch; ``first_us``, ``last_us``: of commits."""

    events: int
    bytes: int
    first_us: int
    last_us: int

    def and_also(self, more: _Facts) -> _Facts:
        """Return the facts on these and on others."""
        return _Facts(
            self.events + more.events,
            self.bytes + more.bytes,
            min(self.first_us, more.first_us),
            max(self.last_us, more.last_us),
        )


class _Survey:
    """Survey of a task. Spans and shapes are told at its end."""

    def __init__(self, options: JournalOptions, limits: _Limits | None, outlines: bool) -> None:
        self._options = options
        self._limits = limits
        self._outlines = outlines
        self._small = SmallTransactions(options.none_charset, decoder_of)
        self._spans: dict[tuple[str, int], tuple[list[int], _Facts]] = {}
        self._shapes: dict[tuple[str, bytes], list[Any]] = {}

    def journal(self, found: Found) -> Iterator[_Row]:
        """Look at one journal, by its reader."""
        try:
            reader, stamp = found.stamped()
            epoch, sequence, database = stamp.epoch, stamp.sequence, reader.database
            if self._options.database not in (None, database):
                return
            limits = self._limits
            if limits is not None and (epoch, sequence) > limits.get(database, _NOTHING):
                return
            if not self._outlines:
                yield _file_row(database, stamp, found.place)
                return
            commit_us = stamp.commit_us
            facts = _Facts(stamp.event_count, stamp.journal_length, commit_us, commit_us)
            yield from self._add(database, epoch, [sequence], facts)
            for what in reader.outline():
                if isinstance(what, DdlChange):
                    content = pickle.dumps(what)
                    yield "ddl", database, epoch, sequence, what.pos, content, *_NO_FILE
                else:
                    self._note(database, what[1], (epoch, sequence, what[0]))
        except FileNotFoundError:
            sentence = f"{found.place}: {VANISHED}".encode()
            yield "missing", None, None, None, None, sentence, *_NO_FILE
        except JournalError as error:
            left = _remains(found)
            if self._options.database not in (None, left.database):
                left = Remains()  # of this history, if at all, nobody knows where
            of = (None, None) if left.stamp is None else (left.stamp.epoch, left.stamp.sequence)
            rest = (found.place, left.transaction, left.commit_us, *_NO_FILE[3:])
            yield "damaged", left.database, *of, None, str(error).encode(), *rest

    def shared(self, found: FoundShared) -> Iterator[_Row]:
        """Look at the transactions of a shared journal, at those together that begin alike."""
        left: list[Entry] = []
        for entries, beginning in self._beginnings(found, left):
            if beginning is None:
                left += entries
            else:
                yield from self._alike(found, beginning, entries)
        for each in found.found(left):
            yield from self.journal(each)

    def _beginnings(
        self, found: FoundShared, left: list[Entry]
    ) -> Iterator[tuple[list[Entry], Beginning | None]]:
        # Damage is an error once rows are read, unless it lies behind a point: so if there may be
        # one, it has to be known by then.
        if self._outlines and self._limits is None:
            return found.small(self._small.beginnings, left)
        checked = found.small(self._small.changes, left)
        return (([entry], beginning) for entry, beginning, _ in checked)

    def _alike(
        self, found: FoundShared, beginning: Beginning, entries: list[Entry]
    ) -> Iterator[_Row]:
        database = beginning.database
        if self._options.database not in (None, database):
            return
        if self._limits is not None:
            limit = self._limits.get(database, _NOTHING)
            entries = [each for each in entries if (each.epoch, each.sequence) <= limit]
        if not self._outlines:
            for place in (entry.place for entry in entries):
                name = found.folder.place(name_in(found.name, place))
                yield _file_row(database, place.stamp, name)
            return
        for epoch, those in groupby(entries, attrgetter("epoch")):
            some = list(those)
            times = [entry.commit_us for entry in some]
            facts = _Facts(
                sum([entry.event_count for entry in some]),
                sum([entry.length for entry in some]) - len(some) * beginning.overhead,
                min(times),
                max(times),
            )
            yield from self._add(database, epoch, [entry.sequence for entry in some], facts)
            for position, table in beginning.defined:
                for entry in (some[0], some[-1]):
                    self._note(database, table, (epoch, entry.sequence, position))

    def _note(self, database: str, table: Table, at: HistoryPoint) -> None:
        known = self._shapes.setdefault((database, know(table).digest), [table, at, at])
        known[1:] = min(known[1], at), max(known[2], at)

    def _add(self, database: str, epoch: int, numbers: list[int], facts: _Facts) -> Iterator[_Row]:
        """Note journals; yield what becomes too much to keep."""
        known, before = self._spans.get((database, epoch), ([], facts))
        if known:
            facts = before.and_also(facts)
        known += numbers
        self._spans[database, epoch] = known, facts
        if len(known) > _MOST_NUMBERS:
            yield from self.spans()

    def spans(self) -> Iterator[_Row]:
        """Yield the spans noted so far, and forget them."""
        for (database, epoch), (numbers, of_all) in self._spans.items():
            facts: tuple[int | None, ...] = of_all
            for first, last in _consecutive(sorted(numbers)):
                events, size, first_us, last_us = facts
                place = (epoch, first, None, None, None, None)
                yield "span", database, *place, first_us, events, last, last_us, size
                facts = (None, None, None, None)
        self._spans.clear()

    def shapes(self) -> Iterator[_Row]:
        """Yield each shape with the first and the last point of it."""
        for (database, _), (table, first, last) in self._shapes.items():
            content = pickle.dumps(table)
            for at in {first, last}:
                yield "shape", database, *at, content, *_NO_FILE


def _consecutive(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of NUMBERS, in order, that follow each other; a number that comes
    twice is in two of them."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1 or number % SPAN == 0:
            yield first, last
            first = number
        last = number
    yield first, last


def _file_row(database: str, stamp: Stamp, file: str) -> _Row:
    facts = (file, stamp.transaction, stamp.commit_us, stamp.event_count, *_NO_FILE[4:])
    return "file", database, stamp.epoch, stamp.sequence, None, None, *facts


def _remains(found: Found) -> Remains:
    # It is damaged, and is told; this is what may be had of it beyond that.
    with suppress(ValueError, OSError, JournalError):
        return found.salvage()[1]
    return Remains()
