"""Counts and troubles of the shipper, for everybody who shows them.

The shipping thread writes; other threads read at any time. Nothing is locked: every write is one
assignment or one change of a dict, so a reader sees numbers that are true, though a sum may be one
journal ahead of another. Readers copy a dict (``dict(...)``, ``list(...items())``) before they go
through it: the copy is made in one step, the dict itself may grow meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.subjects import TroubleKind
from firebird_cdc.journal.shipper.monitoring.snapshot_figures import (
    SnapshotCounts,
    SnapshotFigures,
)


class LastEvent(NamedTuple):
    """Place of the last change that Kafka has. ``commit_us``: of its transaction."""

    table: str
    uuid: UUID
    sequence: int
    pos: int
    transaction: int
    commit_us: int


class UnsentFigures(NamedTuple):
    """Number of events with placeholders of one kind, and of those nobody has acknowledged."""

    total: int = 0
    unknown: int = 0


@dataclass(slots=True)
class DatabaseStatistics:
    """Figures of what was shipped of one database since the shipper started.

    ``events``: changes whose messages Kafka has acknowledged, each once, by table and operation
    (``c``, ``u``, ``d``; ``ddl`` with the table ""); with a transactional id those of committed
    Kafka transactions. ``filtered``: changes that give no message, as the configuration says.
    ``placeholders``: those of ``events`` with placeholders for values that are too large; the
    journal folder remembers that number, so it counts from before this shipper on.
    ``unsent``: by kind, events with placeholders for values that could not be read or decoded,
    which it remembers, too.
    ``transactions``: those whose changes were all acknowledged, none quarantined;
    ``journals_shipped``: the same, ``bytes_shipped``: what they take in journals.
    ``handled_us``: the time of day at which the last of them was found to be acknowledged;
    ``latency_ms``: how long after its commit that was.
    ``send_failures``: messages that Kafka did not take; ``retries``: how often journals were sent
    again for that. ``tables``: those met so far that are captured. ``nameless``: tables of which
    events are quarantined, as they can't have the names they need, such as a topic.
    ``snapshot``: the one that is taken or was the last one, None: none is known.
    """

    events: dict[tuple[str, str], int] = field(default_factory=dict)
    filtered: int = 0
    placeholders: int = 0
    unsent: dict[str, UnsentFigures] = field(default_factory=dict)
    transactions: int = 0
    journals_shipped: int = 0
    bytes_shipped: int = 0
    last_event: LastEvent | None = None
    handled_us: int = 0
    latency_ms: float = 0.0
    send_failures: int = 0
    retries: int = 0
    tables: set[str] = field(default_factory=set)
    nameless: int = 0
    snapshot: SnapshotFigures | None = None
    snapshot_counts: SnapshotCounts = field(default_factory=SnapshotCounts)

    def add(self, table: str, op: str, count: int = 1) -> None:
        """Count changes of TABLE."""
        key = (table, op)
        self.events[key] = self.events.get(key, 0) + count

    def handled(self, event: LastEvent) -> None:
        """EVENT is the last one now: sets what goes with it."""
        now = now_us()
        self.handled_us = now
        self.latency_ms = max(now - event.commit_us, 0) / 1000
        self.last_event = event


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that isn't as it should be, since ``since_us``; ``text``: one sentence."""

    since_us: int
    text: str
    kind: TroubleKind


@dataclass(frozen=True, slots=True)
class DatabaseBacklog:
    """The transactions of one database that are committed and not delivered, those under way
    included.

    ``live``: those that have changed something and are not decided; ``quarantined``: those in the
    quarantine. ``oldest_us``: when the first that waits was committed, None if none does.
    """

    pending: int
    live: int = 0
    quarantined: int = 0
    oldest_us: int | None = None

    def lag_s(self, now: int) -> float:
        """Return how far Kafka is behind at NOW (microseconds since 1970): the age of the oldest
        commit that it does not have, in seconds; 0 if it has all."""
        return 0.0 if self.oldest_us is None else max(now - self.oldest_us, 0) / 1e6


@dataclass(frozen=True, slots=True)
class BacklogFigures:
    """Figures of the content of the journal folder.

    ``databases``: by path, "" for transactions whose database is unknown. ``bytes``: of all
    journals in the folder, an estimate where there are very many. ``free_bytes``: of the folder's
    file system.
    """

    databases: dict[str, DatabaseBacklog]
    bytes: int
    free_bytes: int
    oldest_pending_seconds: float
    taken_us: int

    @property
    def pending(self) -> int:
        """Transactions that wait, of all databases."""
        return sum(backlog.pending for backlog in self.databases.values())

    @property
    def live(self) -> int:
        """Transactions that are not decided, of all databases."""
        return sum(backlog.live for backlog in self.databases.values())

    @property
    def quarantined(self) -> int:
        """Transactions in the quarantine, of all databases."""
        return sum(backlog.quarantined for backlog in self.databases.values())

    def as_json(self) -> dict[str, Any]:
        """Return the sums, as reports have them."""
        return {
            "pending": self.pending,
            "live": self.live,
            "quarantined": self.quarantined,
            "bytes": self.bytes,
            "free_bytes": self.free_bytes,
            "oldest_s": round(self.oldest_pending_seconds, 1),
        }


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Messages and bytes that the Kafka client holds, and takes before reading pauses."""

    messages: int
    bytes: int
    max_messages: int
    max_bytes: int


@dataclass(slots=True)
class CanaryStatistics:
    """One canary table.

    ``seen_us``: when its last write came out of a journal, 0: never yet; ``latency_ms``: how long
    after its commit. ``missing``: a write is overdue. ``unwritable``: the last one failed, so
    nothing is known of capture.
    """

    database: str
    seen_us: int = 0
    latency_ms: float = 0.0
    missing: bool = False
    unwritable: bool = False


class Statistics:
    """All that one shipper has to tell.

    ``databases``: by path; use ``database`` to write. ``troubles``: what is wrong now, by subject:
    a database's path, or one of `folder.subjects`.
    ``last_error``: the newest that was more than a warning, also when it has passed.
    ``send_failures``, ``retries``: those that concern no single database. ``loop_at``: when
    (monotonic) the loop last came round. ``kafka_at``: when (monotonic) Kafka last gave a sign of
    life, None: not yet. ``brokers_up``: those that the client is connected to. ``backlog``,
    ``queue``: asked for figures, by whoever shows them; they must be cheap and callable from any
    thread.
    """

    def __init__(self) -> None:
        self.started_us = now_us()
        self.databases: dict[str, DatabaseStatistics] = {}
        self.troubles: dict[str, Trouble] = {}
        self.last_error: Trouble | None = None
        self.canaries: dict[str, CanaryStatistics] = {}
        self.send_failures = 0
        self.retries = 0
        self.loop_at = monotonic()
        self.kafka_at: float | None = None
        self.brokers_up = 0
        self.backlog: Callable[[], BacklogFigures] | None = None
        self.queue: Callable[[], QueueFigures] | None = None

    def database(self, path: str) -> DatabaseStatistics:
        """The statistics of one database, made when first asked for."""
        found = self.databases.get(path)
        if found is None:
            found = self.databases[path] = DatabaseStatistics()
        return found

    def canary(self, table: str, database: str) -> CanaryStatistics:
        """The canary TABLE (its whole identifier), made when first asked for."""
        found = self.canaries.get(table)
        if found is None:
            found = self.canaries[table] = CanaryStatistics(database)
        return found

    def trouble(self, subject: str, kind: TroubleKind, text: str) -> None:
        """SUBJECT is in trouble; it keeps the time at which that began, if it was before."""
        known = self.troubles.get(subject)
        if known is not None and (known.kind, known.text) == (kind, text):
            return
        since_us = now_us() if known is None or known.kind != kind else known.since_us
        trouble = Trouble(since_us, text, kind)
        self.troubles[subject] = trouble
        if kind != "warning":
            self.last_error = Trouble(now_us(), text, kind)

    def clear(self, subject: str) -> None:
        """SUBJECT is well; calling it for one that was costs nothing."""
        if subject in self.troubles:
            del self.troubles[subject]

    @property
    def halted(self) -> dict[str, Trouble]:
        """The troubles that need somebody."""
        return {
            subject: trouble
            for subject, trouble in list(self.troubles.items())
            if trouble.kind == "halted"
        }
