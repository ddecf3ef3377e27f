"""Journals as a stream: ``spark.readStream.format("firebird_journal").load(folder)``.

New journals of the folders become batches in the order of their sequence. The offset of the stream
is, for each database and epoch, the first and the last number that were read; Spark keeps it in the
checkpoint, so that a query goes on where it stopped, with each journal exactly once. Journals may
be archived and packed meanwhile. Besides the options of the table there are

========================== ============ ===================================================
``maxJournalsPerTrigger``  10000        journals of one batch
``missingAfter``           300          seconds to wait for a number that is missing while
                                        later ones are there
``onMissingNumber``        report       what comes then: a row with operation ``missing``, the
                                        first number as its sequence and the range as its
                                        reason, or ``fail``: the query ends
========================== ============ ===================================================

A database is read from the lowest number that is there when it is first met. Numbers that come
later than that, or after they were given up, are not read; a query that is started again waits
anew. A journal that can't be read has no known number, so it counts as missing. The driver reads
the beginning of each journal once, of a segment without holes that of its first journal.

A stream's ``load`` takes one folder; give several as ``option("paths", ...)``, a JSON list.

Conditions of the query are Spark's own here: it hands none over to a stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from firebird_cdc.errors import JournalError, ReplayError
from firebird_cdc.journal.folder.segments import SEGMENT_NAME, close_segments
from firebird_cdc.journal.format import SharedJournal
from firebird_cdc.journal.replay.source.changes import missing_numbers, read_changes
from firebird_cdc.journal.replay.source.planning import (
    JournalOptions,
    OptionTexts,
    divide_journals,
)
from firebird_cdc.journal.replay.source.storage import (
    JOURNAL_SUFFIX,
    Folder,
    name_in,
    open_folder,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

Offset = dict[str, dict[str, dict[str, int]]]
"""By database and epoch: the ``first`` and the ``last`` number that were read."""

_Line = tuple[str, int]  # database and epoch


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream; ``table``: those that it has in common with the table."""

    table: JournalOptions
    max_journals: int
    missing_after_s: int
    fail_on_missing_number: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read what Spark hands over. Raises ReplayError naming option and allowed values."""
        given = OptionTexts(options)
        return cls(
            table=JournalOptions.parse(options),
            max_journals=given.number("maxJournalsPerTrigger", 10_000),
            missing_after_s=given.number("missingAfter", 300, least=0),
            fail_on_missing_number=given.choice("onMissingNumber", "report", "fail") == "fail",
        )


class MissingPartition(InputPartition):
    """Numbers that were given up: (database, epoch, first, last)."""

    def __init__(self, gaps: list[tuple[str, int, int, int]]) -> None:
        self.gaps = gaps


class _Where(NamedTuple):
    folder: int
    name: str  # in the folder, in a segment or not
    size: int


class JournalStreamReader(DataSourceStreamReader):
    """Plans and reads the batches; only COLUMNS are made."""

    def __init__(self, options: StreamOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._forget()

    def _forget(self) -> None:
        self._read: Offset = {}  # by the batch that was planned last
        self._floor: Offset = {}  # nothing up to there is asked for again
        self._waiting: dict[_Line, dict[int, _Where]] = {}
        self._known: set[str] = set()  # journals, by their names, and segments
        self._noticed: dict[tuple[_Line, int], float] = {}

    def __getstate__(self) -> tuple[StreamOptions, tuple[str, ...]]:
        return self._options, self._columns

    def __setstate__(self, state: tuple[StreamOptions, tuple[str, ...]]) -> None:
        self._options, self._columns = state
        self._forget()

    def initialOffset(self) -> Offset:
        """Nothing was read yet."""
        return {}

    def latestOffset(self) -> Offset:
        """Return how far the next batch goes, from where the last one ended."""
        self._look()
        left = self._options.max_journals
        latest = {database: dict(epochs) for database, epochs in self._read.items()}
        for line in sorted(self._waiting):
            database, epoch = line
            before = latest.get(database, {}).get(str(epoch))
            numbers = sorted(n for n in self._waiting[line] if before is None or n > before["last"])
            if not numbers:
                continue
            first = numbers[0] if before is None else before["first"]
            last = numbers[0] - 1 if before is None else before["last"]
            for number in numbers:
                if left == 0 or not self._may_pass(line, last, number):
                    break
                last = number
                left -= 1
            if last >= first:
                latest.setdefault(database, {})[str(epoch)] = {"first": first, "last": last}
        return {
            database: dict(sorted(epochs.items())) for database, epochs in sorted(latest.items())
        }

    def _may_pass(self, line: _Line, last: int, number: int) -> bool:
        """Tell whether NUMBER may be read after LAST: nothing is between, or was waited for."""
        if number == last + 1:
            return True
        now = time.monotonic()
        since = self._noticed.setdefault((line, last), now)
        if now - since < self._options.missing_after_s:
            return False
        if self._options.fail_on_missing_number:
            database, epoch = line
            raise ReplayError(
                f"{database}: no journal has the sequence numbers {last + 1} to {number - 1} of"
                f" epoch {epoch}, after {self._options.missing_after_s} s"
            )
        return True

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks that read what is behind START up to END."""
        self._read = end
        self._floor = start
        if start == end:
            return []  # as a query that goes on tells where it was
        self._look()
        journals: list[_Where] = []
        gaps: list[tuple[str, int, int, int]] = []
        for database, epochs in end.items():
            for epoch, numbers in epochs.items():
                before = start.get(database, {}).get(epoch)
                first = numbers["first"] if before is None else before["last"] + 1
                waiting = self._waiting.get((database, int(epoch)), {})
                expected = first
                for number in sorted(n for n in waiting if first <= n <= numbers["last"]):
                    if number > expected:
                        gaps.append((database, int(epoch), expected, number - 1))
                    journals.append(waiting[number])
                    expected = number + 1
                if expected <= numbers["last"]:
                    gaps.append((database, int(epoch), expected, numbers["last"]))
        tasks = divide_journals(journals, self._options.table) if journals else []
        partitions = [InputPartition(task) for task in tasks]
        if gaps:
            partitions.append(MissingPartition(gaps))
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a task."""
        if isinstance(partition, MissingPartition):
            return missing_numbers(partition.gaps, self._columns)
        table = self._options.table
        return read_changes(partition.value, table, self._columns, table.wanted)

    def commit(self, end: Offset) -> None:
        """Forget where the journals up to END are."""
        self._floor = end
        for (database, epoch), waiting in self._waiting.items():
            read = end.get(database, {}).get(str(epoch))
            if read is not None:
                for number in [n for n in waiting if n <= read["last"]]:
                    del waiting[number]
        self._noticed = {
            (line, last): since
            for (line, last), since in self._noticed.items()
            if last >= end.get(line[0], {}).get(str(line[1]), {}).get("last", 0)
        }

    # What there is.

    def _look(self) -> None:
        """Take in the journals that were not known yet."""
        try:
            for index, url in enumerate(self._options.table.folders):
                folder = open_folder(url)
                segments = []
                for name, size in folder.entries():
                    if name in self._known:
                        continue
                    if name.endswith(JOURNAL_SUFFIX):
                        self._take_in(index, folder, name, size)
                    elif SEGMENT_NAME.fullmatch(name):
                        segments.append(name)
                for segment in segments:
                    self._take_in_segment(index, folder, segment)
        finally:
            close_segments()

    def _take_in(self, index: int, folder: Folder, name: str, size: int) -> _Line | None:
        """Note where a journal is; return its database and epoch, None if it can't be read."""
        try:
            with folder.open_journal(name) as opened:
                database = opened.database
                if isinstance(opened, SharedJournal):
                    places, stamp = opened.places, None
                else:
                    places, stamp = [], opened.stamp
        except (JournalError, FileNotFoundError):
            return None
        self._known.add(name.rpartition("/")[2])
        for place in places:
            where = _Where(index, name_in(name, place), place.stamp.journal_length)
            self._note((database, place.stamp.epoch), place.stamp.sequence, where)
        if stamp is None:
            return None
        line = database, stamp.epoch
        self._note(line, stamp.sequence, _Where(index, name, size))
        return line

    def _note(self, line: _Line, number: int, where: _Where) -> None:
        database, epoch = line
        done = self._floor.get(database, {}).get(str(epoch))
        if self._options.table.database in (None, database) and (
            done is None or number > done["last"]
        ):
            self._waiting.setdefault(line, {}).setdefault(number, where)

    def _take_in_segment(self, index: int, folder: Folder, segment: str) -> None:
        facts = SEGMENT_NAME.fullmatch(segment)
        try:
            members = folder.members(segment)
        except (JournalError, FileNotFoundError):
            return
        self._known.add(segment)
        assert facts is not None
        first, last = int(facts[3]), int(facts[4])
        line: _Line | None = None
        dense = len(members) == last - first + 1
        for number, (name, size) in enumerate(members, first):
            place = f"{segment}/{name}"
            if dense and line is not None:
                self._known.add(name)
                self._note(line, number, _Where(index, place, size))
            elif name not in self._known or dense:
                line = self._take_in(index, folder, place, size) or line
