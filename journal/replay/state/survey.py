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
from typing import Any

from pyspark.sql.datasource import InputPartition

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
from firebird_cdc.journal.replay.source.planning import (
    Found,
    FoundShared,
    JournalOptions,
    find_files,
)
from firebird_cdc.journal.replay.source.storage import name_in
from firebird_cdc.journal.replay.state.evolution import Place
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
)
"""Columns of a survey. ``kind``: file (a journal, or a transaction in one), or, where outlines are
asked for, span: all journals from ``sequence`` to ``last``, within a multiple of `SPAN`; of some
spans one has the events of all, and their first and last time of commit. Or what ``content`` is:
shape (the `Table`, pickled), ddl (the `DdlChange`, pickled), damaged, missing (a sentence). Of a
damaged journal all columns say what is certain, wherever it lies; a whole segment can be one."""

SPAN = 1 << 16
"""Numbers from one multiple of it to the next are in spans of their own: so who looks for what is
missing or doubled can do so in parts."""

VANISHED = "the file vanished while the folder was being read"

_NO_FILE = (None,) * 6
_MOST_NUMBERS = 1_000_000  # which a task has in memory

_NOTHING = (-1, -1)  # a limit that is below all numbers

_Limits = Mapping[str, tuple[int, int]]
_Row = tuple[Any, ...]


def survey_rows(
    task: InputPartition, options: JournalOptions, limits: _Limits | None, outlines: bool
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


class _Survey:
    """Survey of a task. Spans and shapes are told at its end."""

    def __init__(self, options: JournalOptions, limits: _Limits | None, outlines: bool) -> None:
        self._options = options
        self._limits = limits
        self._outlines = outlines
        self._small = SmallTransactions(options.none_charset, decoder_of)
        self._spans: dict[tuple[str, int], _Span] = {}
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
            yield from self._add(
                database, epoch, [sequence], stamp.event_count, (commit_us, commit_us)
            )
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
            rest = (found.place, left.transaction, left.commit_us, None, None, None)
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
            numbers = [entry.sequence for entry in some]
            times = [entry.commit_us for entry in some]
            events = sum([entry.event_count for entry in some])
            yield from self._add(database, epoch, numbers, events, (min(times), max(times)))
            for position, table in beginning.defined:
                for number in (numbers[0], numbers[-1]):
                    self._note(database, table, (epoch, number, position))

    def _note(self, database: str, table: Table, at: Place) -> None:
        known = self._shapes.setdefault((database, know(table).digest), [table, at, at])
        known[1:] = min(known[1], at), max(known[2], at)

    def _add(
        self, database: str, epoch: int, numbers: list[int], events: int, times: tuple[int, int]
    ) -> Iterator[_Row]:
        """Note journals; yield what becomes too much to keep."""
        span = self._spans.get((database, epoch))
        if span is None:
            span = self._spans[database, epoch] = _Span(*times)
        span.numbers += numbers
        span.events += events
        span.first_us = min(span.first_us, times[0])
        span.last_us = max(span.last_us, times[1])
        if len(span.numbers) > _MOST_NUMBERS:
            yield from self.spans()

    def spans(self) -> Iterator[_Row]:
        """Yield the spans noted so far, and forget them."""
        for (database, epoch), span in self._spans.items():
            facts: tuple[int | None, ...] = (span.first_us, span.events, span.last_us)
            for first, last in _consecutive(sorted(span.numbers)):
                first_us, events, last_us = facts
                rest = (first_us, events, last, last_us)
                yield "span", database, epoch, first, None, None, None, None, *rest
                facts = (None, None, None)
        self._spans.clear()

    def shapes(self) -> Iterator[_Row]:
        """Yield each shape with the first and the last place of it."""
        for (database, _), (table, first, last) in self._shapes.items():
            content = pickle.dumps(table)
            for at in {first, last}:
                yield "shape", database, *at, content, *_NO_FILE


class _Span:
    """Journals of a database and epoch: their numbers, and facts on all of them."""

    __slots__ = ("events", "first_us", "last_us", "numbers")

    def __init__(self, first_us: int, last_us: int) -> None:
        self.numbers: list[int] = []
        self.events = 0
        self.first_us = first_us
        self.last_us = last_us


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
    facts = (file, stamp.transaction, stamp.commit_us, stamp.event_count, None, None)
    return "file", database, stamp.epoch, stamp.sequence, None, None, *facts


def _remains(found: Found) -> Remains:
    # It is damaged, and is told; this is what may be had of it beyond that.
    with suppress(ValueError, OSError, JournalError):
        return found.salvage()[1]
    return Remains()
