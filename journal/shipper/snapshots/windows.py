"""Window of a snapshot that a reader process holds open, as the shipper sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import logbook

from firebird_cdc.config.snapshots import SnapshotOptions
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.open_journals import OpenJournals
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.snapshots.ahead import ReadAhead
from firebird_cdc.journal.shipper.snapshots.state import Kind, SeenSet, Snapshot
from firebird_cdc.journal.snapshot.visibility import VisibleSet

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.windows")

_LOOK_S = 0.02
_MOST_S = 10.0
"""Journals of which nobody knows whether they count are waited for so long."""

_GROWS_TO = 10
_QUIET_S = 1.0


class BatchGrowth:
    """Rows of a batch; ``times``: the chunk sizes in one of an incremental snapshot.

    They grow once no journal has waited for a second: the next one would wait for a large batch.
    """

    def __init__(self) -> None:
        self.times = 1
        self._waited_at = -_QUIET_S

    def rows_of(self, snapshot: Snapshot, options: SnapshotOptions) -> int:
        """Return the most rows of the next batch of SNAPSHOT."""
        is_incremental = snapshot.kind is Kind.INCREMENTAL
        return options.chunk_size * self.times if is_incremental else options.fetch_size

    def note(self, *, journal_waits: bool) -> None:
        """Note whether a journal waits behind a batch that was sent."""
        now = monotonic()
        if journal_waits:
            self.times, self._waited_at = 1, now
        elif now - self._waited_at > _QUIET_S:
            self.times = min(self.times * 2, _GROWS_TO)


class Phase(Enum):
    """Step that a database's snapshot is at; see `runner`."""

    IDLE = auto()
    ATTACHING = auto()
    OPENING = auto()
    FOLLOWING = auto()
    READING = auto()
    SENDING = auto()
    CLOSING = auto()


@dataclass
class OpenWindow:
    """A window.

    ``seen``: changes that are not sent behind its rows; ``rows``: those that were read in it;
    ``cut``: the last journal before them, by epoch and sequence; ``given``: up to which number all
    journals were there when none was undecided, None: it is not known. ``ahead``: what readers do,
    once the cut is known; ``put_off``: tables that wait behind the others, for a row of theirs.
    """

    visible: VisibleSet
    taken_us: int
    seen: SeenSet | None = None
    uuid: UUID = field(default_factory=uuid4)
    began_at: float = field(default_factory=monotonic)
    rows: int = 0
    cut: tuple[int, int] | None = None
    given: tuple[int, int] | None = None
    ahead: ReadAhead | None = None
    put_off: set[str] = field(default_factory=set)
    _is_decided: bool = False
    _next_look: float = 0.0

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> OpenWindow:
        """Return the window that a reader process says it has opened."""
        return cls(VisibleSet.of(answer), answer["taken_us"])

    def sees(self, entry: Entry, plan: SendContext) -> bool:
        """Tell whether its rows have the changes in ENTRY."""
        transaction = transaction_of(entry, plan)
        # 0: a gap, which has nothing that could be misplaced.
        return transaction == 0 or (transaction is not None and self.visible.sees(transaction))

    def cut_before(self, entry: Entry | None, place: tuple[int, int] | None) -> tuple[int, int]:
        """Return epoch and sequence of the last journal before its rows: ENTRY is the next one
        behind them, and PLACE that of the last one in Kafka."""
        # What was sent just before a crash is not among the places, without a transactional id.
        reached = self.given
        if entry is not None:
            reached = entry.epoch, max(entry.sequence - 1, 0)
        if place is None:
            return reached or (0, 0)
        return place if reached is None or reached[0] != place[0] else max(place, reached)

    def is_decided(self, journals: OpenJournals, wake: Callable[[], None]) -> bool:
        """Tell whether no journal of a transaction that the window sees is still to come; JOURNALS:
        those that are open.

        WAKE: has whoever asks do so again, once the inbox was looked at.
        """
        now = monotonic()
        if self._is_decided or now - self.began_at > _MOST_S:
            return True
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        try:
            # In this order: what has its number later is not meant.
            noted = journals.noted
            heads = journals.undecided()
            is_known = noted.last and noted.is_synced and not heads
            self.given = noted.number if is_known else None
            # Of one that was decided just before, the next look at the inbox tells.
            self._is_decided = not any(
                self.visible.sees(head.header.transaction) for _, head in heads
            )
        except (OSError, JournalError) as error:
            _log.debug("open journals: {}", error)
        wake()
        return False


def transaction_of(entry: Entry, plan: SendContext) -> int | None:
    """Return the transaction of ENTRY, None: it can't be told."""
    if entry.place is not None:
        return entry.place.stamp.transaction
    try:
        with plan.journals.open(entry) as reader:
            return reader.header.transaction
    except (JournalError, OSError):
        return None
