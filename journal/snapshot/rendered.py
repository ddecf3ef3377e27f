"""Rows of a snapshot, rendered while they are read: what one answer of a reader process holds.

A row becomes messages before the next one is decoded, and only these are kept. Whether it is the
last one of its table, which its event tells, is known once the one behind it was looked for.
"""

from __future__ import annotations

from typing import Any, Protocol

from firebird_cdc.errors import RowRefused, TableRefused
from firebird_cdc.journal.events.bad_event import BadEvent, NamelessEvent
from firebird_cdc.journal.events.records import Headers, Message
from firebird_cdc.journal.events.snapshot_rows import READ, RowPlan, SnapshotRenderer
from firebird_cdc.journal.events.values import UNDECODED, UNREAD
from firebird_cdc.journal.format import Row, RowChange, Table
from firebird_cdc.journal.snapshot.cursor import Cursor, WriteRows
from firebird_cdc.journal.snapshot.quick_rows import writer_of
from firebird_cdc.journal.snapshot.reader import SnapshotReader, StoredRow

INCREMENTAL = "incremental"
FIRST, FIRST_OF_TABLE, MIDDLE = "first", "first_in_data_collection", "true"
LAST_OF_TABLE, LAST = "last_in_data_collection", "last"

Run = tuple[str, Headers, list[bytes | None], list[bytes | None]]
"""Topic and headers of messages that follow each other, their keys, and their values."""

PackedRun = tuple[str, Headers, list[bytes | None], bytes, list[bytes | None]]
"""The same, with what all values begin with before what is left of them."""

_LONG = 500  # bytes; what is shorter costs more to take off and to put back than to carry


class Rows(Protocol):
    """Rows, of which one is at hand. ``last``: its DB_KEY, once it was asked for its values."""

    last: bytes | None

    def values(self) -> Any:
        """Return the values of the row at hand."""

    def look_ahead(self) -> bool:
        """Get the row behind it; False: there is none."""

    def advance(self) -> None:
        """Have that one at hand."""

    def writer(self, plan: RowPlan) -> WriteRows | None:
        """Return what has C write rows as PLAN says, None: Python does."""


class StoredRows:
    """`Rows` of TABLE that CURSOR of READER has, with version and DB_KEY behind the values."""

    def __init__(self, reader: SnapshotReader, cursor: Cursor, table: Table) -> None:
        self.last: bytes | None = None
        self.look_ahead, self.advance = cursor.look_ahead, cursor.advance
        self._reader, self._cursor, self._table = reader, cursor, table

    def values(self) -> list[Any]:
        """Return the values of the row at hand."""
        *values, _, self.last = self._reader.values_of(self._cursor)
        return values

    def writer(self, plan: RowPlan) -> WriteRows | None:
        """Return what has C write rows as PLAN says, None: Python does."""
        return writer_of(self._cursor, self._table.columns, plan)


class SelectedRows:
    """`Rows` of TABLE that a SELECT of the user's gives. ``held``: the one at hand, None: none is
    left. ``taken``: those before it."""

    last: bytes | None = None

    def __init__(self, table: str, rows: Any) -> None:
        self.table = table
        self.rows = rows
        self.taken = 0
        self.held: StoredRow | None = next(rows, None)
        self._next: StoredRow | None = None

    def values(self) -> Any:
        """Return the values of the row at hand."""
        assert self.held is not None
        return self.held.values

    def look_ahead(self) -> bool:
        """Get the row behind it; False: there is none."""
        self._next = next(self.rows, None)
        return self._next is not None

    def advance(self) -> None:
        """Have that one at hand."""
        self.held = self._next

    def writer(self, plan: RowPlan) -> WriteRows | None:  # noqa: ARG002 - it has no messages
        """Python writes them."""
        return None


class Marks:
    """The ``source.snapshot`` of rows. IS_FIRST: the batch begins its table, and perhaps, as
    BEGINS_ALL says, all; ENDS_ALL: the table is the last one."""

    def __init__(
        self, *, is_incremental: bool, is_first: bool, begins_all: bool, ends_all: bool
    ) -> None:
        self.middle = INCREMENTAL if is_incremental else MIDDLE
        self._first = self._last = self.middle
        if not is_incremental:
            self._last = LAST if ends_all else LAST_OF_TABLE
            if is_first:
                self._first = FIRST if begins_all else FIRST_OF_TABLE

    def of(self, number: int, *, is_last: bool) -> str:
        """Return that of row NUMBER of the batch, from 0."""
        if is_last:
            return self._last
        return self.middle if number else self._first

    @property
    def begins_unmarked(self) -> bool:
        """Tell whether the first row is none of a table, or marked as all are."""
        return self._first == self.middle


class RowWriter:
    """Writes rows of TABLE as messages, in one batch.

    pos: of the first row; fails: a row that has no form ends it all. ``rows``: those that were
    taken; ``size``: bytes of ``runs``; ``left_out``: why some rows have no message; ``unread``:
    fields with placeholders for BLOBs that the database has not got, and whose; ``undecoded``: of
    the other rows, those with placeholders for values that could not be decoded;
    ``filtered``: rows that the configuration leaves out.
    """

    def __init__(
        self, renderer: SnapshotRenderer, table: Table, pos: int, marks: Marks, *, fails: bool
    ) -> None:
        self.rows = self.size = self.filtered = 0
        self.runs: list[Run] = []
        self.left_out: list[str] = []
        self.unread: list[str] = []
        self.undecoded: list[str] = []
        self._renderer, self._table, self._pos, self._marks = renderer, table, pos, marks
        self._fails = fails

    def write(self, rows: Rows, most_rows: int, most_bytes: int) -> bool:
        """Take ROWS from the one at hand on, until they are so many, or by their messages come to
        MOST_BYTES; tell whether there is no other. Raises RowRefused and TableRefused."""
        plan = self._renderer.plan(self._table, self._marks.middle)
        quick = None if plan is None else rows.writer(plan)
        while True:
            ahead = None
            if plan and quick and (self.rows or self._marks.begins_unmarked):
                # The last row of all is left to Python: the table may end there.
                most = most_rows - self.rows - 1, most_bytes - self.size
                lists = self._lists(plan.topic, plan.headers)
                count, size, ahead = quick(self._pos + self.rows, *most, *lists)
                self.rows += count
                self.size += size
            values = rows.values()
            has_next = rows.look_ahead() if ahead is None else ahead
            self._take(values, rows.last, is_last=not has_next)
            if not has_next:
                return True
            rows.advance()
            if self.rows >= most_rows or self.size >= most_bytes:
                return False

    def _take(self, values: Any, key: bytes | None, *, is_last: bool) -> None:
        number, name = self.rows, self._table.name
        self.rows += 1
        mark = self._marks.of(number, is_last=is_last)
        unsent, row = self._renderer.renderer.rules.unsent, tuple(values)
        unsent_before = unsent.count
        try:
            made = self._renderer.messages(self._table, row, self._pos + number, mark)
        except NamelessEvent as error:  # as each row of the table would be
            raise TableRefused(f"table {name}: {error}") from error
        except BadEvent as error:
            told = error.told if error.whose else f"table {name}: {error.told}"
            if key is not None:
                told += f" (RDB$DB_KEY x'{key.hex()}')"
            if self._fails:
                raise RowRefused(told) from error
            self.left_out.append(told)
            return
        self.filtered += not made
        if made and unsent.count != unsent_before:
            self._note_unsent(row, number)
        for message in made:
            self._add(message)

    def _note_unsent(self, row: Row, number: int) -> None:
        change = RowChange(self._pos + number, READ, self._table, None, row)
        fields = self._renderer.unsent(change)
        for kind, noted in ((UNREAD, self.unread), (UNDECODED, self.undecoded)):
            if kind in fields:
                noted.append(f"{', '.join(fields[kind])} of {self._renderer.whose(change)}")
                return

    def _add(self, message: Message) -> None:
        topic, key, value, headers = message
        self.size += len(key or b"") + len(value or b"")
        keys, values = self._lists(topic, headers)
        keys.append(key)
        values.append(value)

    def _lists(self, topic: str, headers: Headers) -> tuple[list[bytes | None], list[bytes | None]]:
        """Return where the key and the value of the next message go."""
        runs = self.runs
        if not runs or runs[-1][0] != topic or runs[-1][1] is not headers:
            runs.append((topic, headers, [], []))
        return runs[-1][2:]


def packed(run: Run) -> PackedRun:
    """Return RUN for a pipe: with schemas nine tenths of the values are the same."""
    topic, headers, keys, values = run
    whole = [value for value in values if value is not None]
    length = _common(min(whole), max(whole)) if len(whole) == len(values) > 1 else 0
    if length < _LONG:
        return topic, headers, keys, b"", values
    return topic, headers, keys, whole[0][:length], [value[length:] for value in whole]


def _common(one: bytes, other: bytes) -> int:
    """Return with how many equal bytes they begin."""
    differ = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def unpacked(run: PackedRun) -> Run:
    """Return what `packed` was given."""
    topic, headers, keys, head, values = run
    if head:
        values = [None if value is None else head + value for value in values]
    return topic, headers, keys, values
