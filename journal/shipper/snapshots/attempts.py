"""Attempts to take a snapshot: what counts as getting on, how long each step may take, and when the
next attempt is due."""

from __future__ import annotations

from time import monotonic

from firebird_cdc.journal.shipper.delivery.backoff import Backoff
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, TableProgress
from firebird_cdc.journal.shipper.snapshots.windows import Phase
from firebird_cdc.journal.snapshot.catalogue import MOST_NUMBERS

FIRST_PAUSE_S = 1.0

_FIRST_NUMBERS = 1 << 16
_FEWER = 16
"""Record numbers that a part may look through after one took too long, and by what they are divided
after each other one."""

_QUICK_S = 1.0
"""Parts may have twice as many in the next window where none took longer."""

_ATTACH_S = 30.0
_OPEN_S = 60.0
"""A window has to be open after so long; meanwhile no journal of the database is begun."""

_READ_S = 120.0
"""A part has to be read after so long; twice as long after each time that this was too short."""

_PATIENCE_S = 10.0
"""The same for whatever a change waits for that need not."""

_MOMENT_S = 3600.0
"""The same for rows of one moment, which all would have to be read again. The reader process says
each second that it runs, so this ends but what waits for a server that is not there any more."""

_MOST_LONGER = 1024

_HELD_S = 60.0
"""The first journal of all waits so long for an initial snapshot that does not go on, once
that may begin."""

_MOST_FAILURES = 3
"""Windows in a row that may be lost with rows that have to be sent again."""


class Attempts:
    """Attempts at the snapshots of one database."""

    def __init__(self) -> None:
        self._pauses = Backoff(FIRST_PAUSE_S)
        self._failures = 0  # with rows that were sent, since it last got on
        self._furthest = "", 0  # snapshot, and how many tables of it were through at once
        self._longer = 1  # times the limits
        self._holds_until = 0.0
        self._numbers: int | None = None
        self._took_s: float | None = None  # the longest part of this window

    @property
    def is_due(self) -> bool:
        """Tell whether the next one may begin."""
        return self._pauses.is_over

    @property
    def are_too_many(self) -> bool:
        """Tell whether it has to be taken in another way."""
        return self._failures >= _MOST_FAILURES

    def fail(self) -> float:
        """Pause, as one has failed; return the seconds."""
        return self._pauses.fail()

    def lose_rows(self) -> None:
        """A reader failed in a window of which rows were sent."""
        self._failures += 1

    def get_on(self, snapshot: Snapshot, table: TableProgress) -> None:
        """Kafka has rows of TABLE. After a failure those that would have to be sent again in
        another window don't count, until more tables are through than ever. The next part of a
        table may need about as long as this one, and is given half of the time."""
        self._longer = max(self._longer // 2, 1)
        if not table.is_open:
            self._numbers = None
        key, most = self._furthest
        through = len(snapshot.tables or ()) - len(snapshot.open_tables)
        is_torn = snapshot.kind is not Kind.INCREMENTAL or bool(table.torn_by_pause)
        if key == snapshot.key and through <= most and is_torn:
            if not self._failures:
                self._holds_until = 0.0
            return
        self._furthest = snapshot.key, through
        self._failures = 0
        self._pauses.succeed()
        self._holds_until = 0.0

    def holds_first(self, not_before: float) -> bool:
        """Tell whether the first journal of all is still to wait, which it does now. NOT_BEFORE
        (monotonic): when the snapshot may begin."""
        if not self._holds_until:
            self._holds_until = max(monotonic(), not_before) + _HELD_S
        return monotonic() < self._holds_until

    def limit_s(self, phase: Phase, *, is_in_parts: bool, waits: bool) -> float:
        """Return after how long PHASE is given up. IS_IN_PARTS: of an incremental snapshot; WAITS:
        a change does."""
        patience_s = (_PATIENCE_S if waits else _READ_S) * self._longer
        match phase:
            case Phase.ATTACHING:
                return _ATTACH_S
            case Phase.READING:
                return patience_s if is_in_parts else _MOMENT_S * self._longer
            case Phase.OPENING if is_in_parts:
                return min(patience_s, _OPEN_S)
            case _:
                return _OPEN_S

    def give_up(self, phase: Phase) -> None:
        """PHASE took too long: the next time it may take longer."""
        if phase is not Phase.ATTACHING:
            self._longer = min(self._longer * 2, _MOST_LONGER)
        if phase is Phase.READING:
            fewer = _FIRST_NUMBERS if self._numbers is None else self._numbers // _FEWER
            self._numbers, self._took_s = max(fewer, 1), None

    def note_read(self, took_s: float) -> None:
        """Note that a part took so long to be read."""
        self._took_s = max(took_s, self._took_s or 0.0)

    def numbers(self) -> int | None:
        """Return how many record numbers a part may look through in the window that begins, None:
        as many as there are. A condition that few rows fulfil would look through all of a table."""
        if self._numbers is not None and self._took_s is not None and self._took_s < _QUICK_S:
            more = self._numbers * 2
            self._numbers = more if more < MOST_NUMBERS else None
        self._took_s = None
        return self._numbers
