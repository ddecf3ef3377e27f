"""State of a runner of snapshots: what it has at hand, how that is given back, and why it waits."""

from __future__ import annotations

from time import monotonic

import logbook

from firebird_cdc.journal.folder.subjects import SNAPSHOT
from firebird_cdc.journal.shipper.delivery.backoff import Backoff
from firebird_cdc.journal.shipper.snapshots.attempts import FIRST_PAUSE_S, Attempts
from firebird_cdc.journal.shipper.snapshots.news import News
from firebird_cdc.journal.shipper.snapshots.progress import (
    left_out_by,
)
from firebird_cdc.journal.shipper.snapshots.readers import Readers
from firebird_cdc.journal.shipper.snapshots.rows import Batch
from firebird_cdc.journal.shipper.snapshots.state import (
    Snapshot,
    SnapshotState,
)
from firebird_cdc.journal.shipper.snapshots.surroundings import Surroundings
from firebird_cdc.journal.shipper.snapshots.windows import (
    BatchGrowth,
    OpenWindow,
    Phase,
)

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.standing")


class Standing:
    """State in which the snapshots of one database are, which STATE has.

    ``phase``: the step that it is at, and ``since`` when (monotonic); ``waits_for``: why it does
    not go on, for people.
    ``is_decided``: False while it is not known whether one has to go before the first journal.
    """

    def __init__(self, state: SnapshotState, surroundings: Surroundings) -> None:
        self.state = state
        self.phase = Phase.IDLE
        self.waits_for = ""
        self.is_decided = True
        self.sent_serial = 0
        self._around = surroundings
        self._readers: Readers | None = None
        self._window: OpenWindow | None = None
        self._batch: Batch | None = None
        self._is_committed = False
        self.since = monotonic()
        self._attempts = Attempts()
        self._pauses = Backoff(FIRST_PAUSE_S)  # for others
        self._voids = 0  # windows in a row that were not sound
        self._look_at = 0.0
        self._growth = BatchGrowth()
        self._news = News(state.database, surroundings)
        self._left_out = left_out_by(state)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that is taken, or comes next."""
        return self.state.waiting[0] if self.state.waiting else None

    @property
    def is_busy(self) -> bool:
        """Tell whether a window is open, or about to be."""
        return self.phase is not Phase.IDLE

    def _go(self, phase: Phase) -> None:
        self.phase = phase
        self.since = monotonic()

    def _clear(self) -> None:
        if self.waits_for:
            self.waits_for = ""
            self._around.plan.statistics.clear(SNAPSHOT + self.state.database)

    def _tell(self, why: str) -> None:
        if why != self.waits_for:
            _log.warning("{}: the snapshot waits: {}", self.state.database, why)
        self.waits_for = why
        text = f"{self.state.database}: the snapshot waits: {why}"
        self._around.plan.statistics.trouble(SNAPSHOT + self.state.database, "waiting", text)

    def _pause(self, why: str) -> None:
        """Wait, with the window closed, for what somebody else has to do."""
        self._tell(why)
        self._pauses.fail()
        self._end_readers()
        self._go(Phase.IDLE)

    def _drop_window(self, why: str) -> None:
        snapshot = self.snapshot
        if self._batch is not None:
            self._around.cancel(self._batch)
            self._batch = None
        self._news.forget_rows()
        if self._window is not None and snapshot is not None:
            _log.info("{}: a window of the snapshot is dropped: {}", self.state.database, why)
        self._window = None

    def drop(self, why: str) -> None:
        """Drop the window, and end the reader process; the next one begins after a pause."""
        self._drop_window(why)
        self._fail(why)

    def _fail(self, why: str) -> None:
        self._end_readers()
        self._go(Phase.IDLE)
        if self.snapshot is not None:
            self._attempts.fail()
            self._tell(why)

    def _end_readers(self) -> None:
        if self._readers is not None:
            self._readers.leave()
            self._readers = None

    def close(self) -> None:
        """Give everything back: the shipper ends."""
        self._batch = self._window = None
        if self._readers is not None:
            self._readers.close()
            self._readers = None
        self.phase = Phase.IDLE
