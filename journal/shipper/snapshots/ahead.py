"""Parts of tables that readers read ahead of what is sent, and the order in which they count.

The rows of a window are sent in one order, whoever reads them: table by table, as they are stored,
each with the number of its place. So what is known of a snapshot's progress is the last row that
was sent, and nothing of what readers have beyond that. What comes behind a part is known once its
reader has counted its rows, which takes a tenth of the time of reading them, and then the next one
is asked; where one reads alone, once they are read. No reader is asked for more while rows of it
wait to be sent, which bounds the memory.

Where it comes otherwise than planned, as with rows that are long, or a table that was taken out, a
part that is not the one behind what was sent is forgotten, and read again from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from firebird_cdc.journal.shipper.snapshots.readers import Readers
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, TableProgress
from firebird_cdc.journal.snapshot.worker import BATCH_BYTES

_FILLED = 0.75
"""Share of a batch's bytes that parts are meant to have, so that they rarely have more."""

VOID = "SnapshotVoid"
"""Kind of failure: what was read in the window does not count."""


class _Place(NamedTuple):
    """Place in the rows of a window: behind the row AFTER of TABLE.

    ``pos``: number of the row that comes there. ``taken``: rows of the table that were read in this
    window before. ``reader``: who alone can read there, None: anybody.
    """

    table: TableProgress
    after: bytes | None
    pos: int
    taken: int = 0
    reader: int | None = None


@dataclass
class _Part:
    """Part of a table, at PLACE, that READER was asked for: ROWS at most.

    ``count``, ``last``: its rows, and the DB_KEY of the last one, None: not known. ``answer``: with
    the rows, or why there are none; None: not yet.
    """

    place: _Place
    reader: int
    rows: int
    is_measured: bool
    count: int | None = None
    last: bytes | None = None
    answer: dict[str, Any] | None = None

    @property
    def is_surplus(self) -> bool:
        """Tell whether it was only asked for as the table might have had more rows."""
        return self.count == 0 and self.place.taken > 0


class ReadAhead:
    """Has READERS read the tables of SNAPSHOT in one window; FACTS: what all questions have."""

    def __init__(self, readers: Readers, snapshot: Snapshot, facts: Mapping[str, Any]) -> None:
        self._readers = readers
        self._snapshot = snapshot
        self._facts = facts
        self._parts: deque[_Part] = deque()  # not sent yet, in their order
        self._place: _Place | None = None  # where nobody was asked yet, None: it is not known
        self._fitting: int | None = None  # rows of which the messages have room in a batch
        self._is_looking = False  # the first reader looks for the last table with rows
        self._failure: dict[str, Any] | None = None  # instead
        self._empty: frozenset[str] = frozenset()  # tables behind that one

    def look_for_last(self) -> None:
        """Have the last table with rows be known before any are read: its last row is marked so.
        Not in an incremental snapshot, which has no such marks."""
        if self._snapshot.kind is Kind.INCREMENTAL:
            return
        tables = self._snapshot.open_tables
        behind = [*takewhile(lambda each: each.condition is None, reversed(tables[1:]))]
        if behind:
            self._is_looking = True
            self._readers.ask(0, {"do": "look", "tables": [each.name for each in behind]})

    def ask(self, rows: int) -> None:
        """Ask readers that have nothing to do for ROWS each, as far as it is known where."""
        while self._place is not None:
            self._pass_closed()
            if self._place is None or (reader := self._idle(self._place.reader)) is None:
                return
            # Rows of a SELECT can't be counted without it being run.
            is_measured = len(self._readers) > 1 and not self._place.table.is_selected
            if is_measured and self._fitting is not None:
                rows = min(rows, self._fitting)
            part = _Part(self._place, reader, rows, is_measured)
            self._place = None
            self._ask(part)
            self._parts.append(part)

    def take(self, reader: int, answer: dict[str, Any]) -> None:
        """Take an ANSWER of READER."""
        if self._is_looking and reader == 0:
            self._is_looking = False
            self._empty = frozenset(answer.get("empty", ()))
            self._failure = answer if "failed" in answer else None
            return
        part = next((each for each in self._parts if each.reader == reader), None)
        if part is None or part.answer is not None:
            return  # nobody wants to know any more
        if part.is_measured and part.count is None and "measured" in answer:
            part.count, part.last = answer["measured"], answer["last"]
            is_end = part.count < part.rows
            self._place = self._behind(part, part.count, part.last, is_end=is_end)
            return
        part.answer = answer
        if "rows" not in answer:
            return
        if part.count is not None:
            part.answer = _checked(part, answer)
            if answer["size"]:
                fill = int(_FILLED * BATCH_BYTES)
                self._fitting = max(answer["rows"] * fill // answer["size"], 1)
        else:
            reached = answer["rows"], answer["last"]
            self._place = self._behind(part, *reached, is_end=answer["is_end"])

    def next(self, rows: int, sent: int) -> dict[str, Any] | None:
        """Return the answer whose rows come behind the SENT ones of the window, while none are on
        their way; None: it is not there yet. Who is free then is asked for ROWS."""
        if self._is_looking or self._failure is not None:
            return self._failure
        parts = self._parts
        while parts and parts[0].is_surplus and parts[0].answer is not None:
            parts.popleft()
        is_known = self._is_next(parts[0], sent) if parts else self._place is not None
        if not is_known:
            self._begin(sent)
        self.ask(rows)
        if not parts or parts[0].answer is None:
            return None
        part = parts.popleft()
        answer = part.answer
        assert answer is not None
        if part.count is not None and answer.get("rows", part.count) < part.count:
            self._go_on_behind(part, answer)
        return answer

    def _is_next(self, part: _Part, sent: int) -> bool:
        """Tell whether PART is behind what the snapshot is known to have come to."""
        table, after, pos, _, _ = part.place
        tables = self._snapshot.open_tables
        is_first = bool(tables) and tables[0] is table and after == _reached(table)
        return part.is_surplus or (is_first and pos == sent + 1)

    def _begin(self, sent: int) -> None:
        """Begin, or begin again, where the snapshot is."""
        self._parts.clear()
        tables = self._snapshot.open_tables
        self._place = _Place(tables[0], _reached(tables[0]), sent + 1) if tables else None

    def _pass_closed(self) -> None:
        """Go on to the next table where rows of the present one are not wanted any more."""
        place = self._place
        if place is not None and not place.table.is_open:
            self._place = self._in_next_table(place.table, place.pos)

    def _idle(self, wanted: int | None) -> int | None:
        """Return a reader that has nothing to do, the WANTED one if there is one; None: none is."""
        busy = {part.reader for part in self._parts}
        numbers = range(len(self._readers)) if wanted is None else (wanted,)
        for number in numbers:
            if number not in busy and not self._readers.is_awaited(number):
                return number
        return None

    def _behind(
        self, part: _Part, count: int, last: bytes | None, *, is_end: bool
    ) -> _Place | None:
        """Return the place behind PART, which has COUNT rows."""
        place = part.place
        pos, taken = place.pos + count, place.taken + count
        if is_end:
            return self._in_next_table(place.table, pos)
        alone = part.reader if place.table.is_selected else None
        return _Place(place.table, last, pos, taken, alone)

    def _in_next_table(self, table: TableProgress, pos: int) -> _Place | None:
        following = self._behind_table(table)
        return _Place(following[0], _reached(following[0]), pos) if following else None

    def _behind_table(self, table: TableProgress) -> list[TableProgress]:
        """Return the open tables behind TABLE."""
        tables = self._snapshot.tables or []
        index = next(index for index, each in enumerate(tables) if each is table)
        return [each for each in tables[index + 1 :] if each.is_open]

    def _ask(self, part: _Part) -> None:
        table, after, pos, taken, _ = part.place
        which = {
            "table": table.name,
            "after": after,
            "rows": part.rows,
            "condition": table.condition,
        }
        if part.is_measured and part.count is None:
            self._readers.ask(part.reader, {"do": "measure", **which})
        question = {
            **self._facts,
            **which,
            "do": "read",
            "shape": table.shape,
            "is_first": after is None and taken + table.rows + table.left_out == 0,
            "pos": pos,
            "taken": taken,
            "is_last_table": all(each.name in self._empty for each in self._behind_table(table)),
        }
        self._readers.ask(part.reader, question)

    def _go_on_behind(self, part: _Part, answer: Mapping[str, Any]) -> None:
        """Go on behind the rows in ANSWER, which are a piece of PART, as they are long: others have
        begun behind all of PART, and would have to wait for the rest of it."""
        self._parts.clear()
        self._place = self._behind(part, answer["rows"], answer["last"], is_end=False)


def _reached(table: TableProgress) -> bytes | None:
    return None if table.after is None else bytes.fromhex(table.after)


def _checked(part: _Part, answer: dict[str, Any]) -> dict[str, Any]:
    """Return ANSWER, or that it does not have the rows that were counted: nothing can be relied on
    then, as both are of one snapshot."""
    assert part.count is not None
    rows = answer["rows"]
    if rows < part.count and not answer["is_end"]:
        return answer
    if rows == part.count and answer["last"] in (part.last, part.place.after):
        return answer
    counted = f"{part.count} rows of {part.place.table.name} were counted, and others were read"
    return {"failed": counted, "kind": VOID}
