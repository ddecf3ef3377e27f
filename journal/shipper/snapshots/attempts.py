"""Attempts to take a snapshot: what counts as getting on, how long each step may take, and when the
next attempt is due."""

from __future__ import annotations

from time import monotonic

from firebird_cdc.journal.shipper.delivery.backoff import Backoff
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, TableProgress
from firebird_cdc.journal.shipper.snapshots.windows import Phase

_FIRST_PAUSE_S = 1.0

_ATTACH_S = 30.0
_OPEN_S = 60.0
"""A window has to be open after so long; meanwhile no journal of the database is begun."""

_READ_S = 120.0
"""A batch has to be read after so long."""

_PATIENCE_S = 10.0
"""The same where a change waits that need not; twice as long each time, up to the others."""

_HELD_S = 60.0
"""The first journal of all waits so long for an initial snapshot that does not go on, once
that may begin."""

_MOST_FAILURES = 3
"""Windows in a row that may be lost with rows that have to be sent again."""


class Attempts:
    """Attempts at the snapshots of one database."""

    def __init__(self) -> None:
        self._pauses = Backoff(_FIRST_PAUSE_S)
        self._failures = 0  # with rows that were sent, since it last got on
        self._furthest = "", 0  # snapshot, and how many tables of it were through at once
        self._patience_s = _PATIENCE_S
        self._holds_until = 0.0

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
        another window don't count, until more tables are through than ever."""
        self._patience_s = _PATIENCE_S
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

    def limit_s(self, phase: Phase, *, is_hurried: bool) -> float:
        """Return after how long PHASE is given up. IS_HURRIED: a change waits that need not."""
        most_s = {Phase.ATTACHING: _ATTACH_S, Phase.READING: _READ_S}.get(phase, _OPEN_S)
        if is_hurried and phase in (Phase.OPENING, Phase.READING):
            return min(self._patience_s, most_s)
        return most_s

    def give_up(self) -> None:
        """A step took too long: the next one may take longer."""
        self._patience_s *= 2
