"""Figures of the snapshots of one database, as they were after one step. All of them are immutable:
the shipping thread makes new ones, other threads read them at any time.

What goes on by itself is given by its beginning, so whoever shows it knows how long it has lasted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

Sample = tuple[float, int, int]
"""Time (monotonic), rows that were there then, and record numbers to which they had come."""

RATE_S = 60.0
"""Seconds of which a rate is the mean."""

TABLES_TOLD = 1000
"""Tables of one snapshot in a report; those that are open come first."""

WAITS = ("waiting", "owed", "running", "paused")
"""Statuses of a snapshot that has not ended."""


class TableFigures(NamedTuple):
    """A table of a snapshot; as `TableProgress`."""

    name: str
    status: str
    rows: int
    left_out: int
    why: str

    @property
    def is_open(self) -> bool:
        """Tell whether rows of it are still to be sent."""
        return self.status in ("waiting", "running")


class Chunk(NamedTuple):
    """Rows that were sent together. ``after``, ``last``: DB_KEY of the row before them, and of the
    last one, in hexadecimal, empty where there is none. ``journal``, ``sequence``, ``pos``: place
    of the last row."""

    uuid: UUID
    table: str
    after: str
    last: str
    journal: UUID
    sequence: int
    pos: int
    sent_us: int


class Lasting(NamedTuple):
    """Time that something lasted: ``seconds``, and since ``since`` (monotonic), if it goes on."""

    seconds: float = 0.0
    since: float | None = None

    def begun(self, now: float) -> Lasting:
        """Return it as it goes on from NOW."""
        return self if self.since is not None else Lasting(self.seconds, now)

    def ended(self, now: float) -> Lasting:
        """Return it as it is over since NOW."""
        return Lasting(self.until(now))

    def until(self, now: float) -> float:
        """Return the seconds up to NOW."""
        return self.seconds if self.since is None else self.seconds + max(now - self.since, 0.0)


NOT_YET = Lasting()
"""Time of what has not begun."""


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Windows of a snapshot. ``opened_at``: when (monotonic) the one that is open was asked for,
    since when no journal is begun, None: none is. ``last_s``, ``longest_s``: how long they were
    open."""

    count: int = 0
    opened_at: float | None = None
    last_s: float = 0.0
    longest_s: float = 0.0

    def open_s(self, now: float) -> float:
        """Return how long one has been open at NOW, 0: none is."""
        return 0.0 if self.opened_at is None else max(now - self.opened_at, 0.0)


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """The snapshot that is taken, or comes next, or was the last one.

    ``status``: as `Status`, or ``paused``. ``phase``: step that it is at. ``waits_for``: why it
    does not go on, for people; ``waits_since_us``: 0: it does. ``behind``: how many wait behind it.
    ``chunks``: number that this shipper has sent; ``chunk``: the last of them. ``recent``: oldest
    first. ``reached``: record numbers of the large tables that it has come to, of ``extent``.
    """

    id: str
    kind: str
    status: str
    requested_us: int
    started_us: int = 0
    ended_us: int = 0
    tables: tuple[TableFigures, ...] = ()
    behind: int = 0
    phase: str = ""
    waits_for: str = ""
    waits_since_us: int = 0
    windows: WindowFigures = WindowFigures()
    chunks: int = 0
    chunk: Chunk | None = None
    recent: tuple[Sample, ...] = ()
    reached: int = 0
    extent: int = 0
    paused: Lasting = NOT_YET
    old_transactions: Lasting = NOT_YET

    @property
    def is_on(self) -> bool:
        """Tell whether it has not ended."""
        return self.status in WAITS

    @property
    def open_tables(self) -> int:
        """Number of tables of which rows are still to be sent."""
        return sum(table.is_open for table in self.tables)

    @property
    def rows(self) -> int:
        """Rows that Kafka has."""
        return sum(table.rows for table in self.tables)

    @property
    def left_out(self) -> int:
        """Rows that could not be sent."""
        return sum(table.left_out for table in self.tables)

    def rate(self, now: float) -> float:
        """Return the rows a second of the last minute before NOW (monotonic)."""
        return self._speed(now, 1)

    def _speed(self, now: float, which: int) -> float:
        """Return how much more a second the number WHICH of samples became in the last minute."""
        within = [each for each in self.recent if each[0] >= now - RATE_S]
        if not within or not self.is_on:
            return 0.0
        return max(within[-1][which] - within[0][which], 0) / max(now - within[0][0], 1.0)

    def remaining_s(self, now: float) -> float | None:
        """Return about how many seconds it will still take at the rate of the last minute before
        NOW (monotonic), None: that can't be told, as while it reads tables of few pages."""
        speed = self._speed(now, 2)
        return (self.extent - self.reached) / speed if speed else None

    def waited_s(self, now_us: int) -> float:
        """Return for how many seconds it has not gone on at NOW_US, 0: it does."""
        return max(now_us - self.waits_since_us, 0) / 1e6 if self.waits_since_us else 0.0

    def duration_s(self, now_us: int) -> float:
        """Return what it has taken at NOW_US."""
        if not self.started_us:
            return 0.0
        return max((self.ended_us or now_us) - self.started_us, 0) / 1e6

    def as_json(self) -> dict[str, Any]:
        """Return it as reports have it."""
        now, chunk, windows = monotonic(), self.chunk, self.windows
        remaining_s = self.remaining_s(now)
        tables = sorted(self.tables, key=lambda table: not table.is_open)
        return {
            "id": self.id,
            "kind": self.kind,
            "status": self.status,
            "phase": self.phase,
            "waits_for": self.waits_for,
            "waits_since_us": self.waits_since_us,
            "behind": self.behind,
            "requested_us": self.requested_us,
            "started_us": self.started_us,
            "ended_us": self.ended_us,
            "tables": len(tables),
            "open_tables": self.open_tables,
            "rows": self.rows,
            "rows_per_s": round(self.rate(now), 1),
            "reached": self.reached,
            "extent": self.extent,
            "remaining_s": None if remaining_s is None else round(remaining_s),
            "left_out": self.left_out,
            "windows": windows.count,
            "window_open_s": round(windows.open_s(now), 1),
            "window_last_s": round(windows.last_s, 3),
            "window_longest_s": round(windows.longest_s, 3),
            # In steps: a status that says nothing new is not to be written each second.
            "paused_s": round(self.paused.until(now), -1),
            "old_transactions_s": round(self.old_transactions.until(now), -1),
            "chunks": self.chunks,
            "chunk": None
            if chunk is None
            else {
                "id": str(chunk.uuid),
                "table": chunk.table,
                "after": chunk.after,
                "last": chunk.last,
                "journal": str(chunk.journal),
                "sequence": chunk.sequence,
                "pos": chunk.pos,
                "sent_us": chunk.sent_us,
            },
            "by_table": [
                {
                    "table": table.name,
                    "status": table.status,
                    "rows": table.rows,
                    "left_out": table.left_out,
                    "why": table.why,
                }
                for table in tables[:TABLES_TOLD]
            ],
        }


NO_SNAPSHOT = SnapshotFigures("", "", "", 0)
"""Figures where there is none."""


@dataclass(slots=True)
class SnapshotCounts:
    """Counts of all snapshots of one database since the shipper started.

    ``rows``, ``chunks``: sent, by table. ``filtered``: rows that give no message, as the
    configuration says; ``erroneous``: those that could not be sent. ``is_skipped``: none was due.
    """

    rows: dict[str, int] = field(default_factory=dict)
    chunks: dict[str, int] = field(default_factory=dict)
    filtered: int = 0
    erroneous: int = 0
    is_skipped: bool = False

    def add(self, table: str, rows: int, *, is_chunk: bool) -> None:
        """Count ROWS of TABLE that were sent, as a chunk of an incremental snapshot or not."""
        self.rows[table] = self.rows.get(table, 0) + rows
        if is_chunk:
            self.chunks[table] = self.chunks.get(table, 0) + 1
