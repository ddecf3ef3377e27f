"""Work on the snapshots of one database: its step, what is open for it, and why it waits."""

from __future__ import annotations

from time import monotonic

import logbook

from firebird_cdc.journal.folder.open_journals import OpenJournals
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

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.work")


class SnapshotWork:
    """Work on the snapshots of one database, which STATE has.

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
        self.around = surroundings
        self.readers: Readers | None = None
        self.window: OpenWindow | None = None
        self.batch: Batch | None = None
        self.is_committed = False
        self.since = monotonic()
        self.attempts = Attempts()
        self.pauses = Backoff(FIRST_PAUSE_S)  # for others
        self.voids = 0  # windows in a row that were not sound
        self.look_at = 0.0
        self.growth = BatchGrowth()
        self.news = News(state.database, surroundings)
        self.left_out = left_out_by(state)
        self._open_journals: OpenJournals | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that is taken, or comes next."""
        return self.state.waiting[0] if self.state.waiting else None

    @property
    def is_busy(self) -> bool:
        """Tell whether a window is open, or about to be."""
        return self.phase is not Phase.IDLE

    def wait_until(self, time: float) -> None:
        """Begin nothing before TIME (monotonic)."""
        self.look_at = time

    def go(self, phase: Phase) -> None:
        """Come to the step PHASE."""
        self.phase = phase
        self.since = monotonic()

    def clear(self) -> None:
        """Wait for nothing any more."""
        if self.waits_for:
            self.waits_for = ""
            self.around.plan.statistics.clear(SNAPSHOT + self.state.database)

    def tell(self, why: str) -> None:
        """Tell WHY the snapshot does not go on."""
        if why != self.waits_for:
            _log.warning("{}: the snapshot waits: {}", self.state.database, why)
        self.waits_for = why
        text = f"{self.state.database}: the snapshot waits: {why}"
        self.around.plan.statistics.trouble(SNAPSHOT + self.state.database, "waiting", text)

    def pause(self, why: str) -> None:
        """Wait, with the window closed, for what somebody else has to do."""
        self.tell(why)
        self.pauses.fail()
        self.end_readers()
        self.go(Phase.IDLE)

    def drop_window(self, why: str) -> None:
        """Drop the window, with what was read in it and is not sent."""
        snapshot = self.snapshot
        if self.batch is not None:
            self.around.cancel(self.batch)
            self.batch = None
        self.news.forget_rows()
        if self.window is not None and snapshot is not None:
            _log.info("{}: a window of the snapshot is dropped: {}", self.state.database, why)
        self.window = None

    def drop(self, why: str) -> None:
        """Drop the window, and end the reader process; the next one begins after a pause."""
        self.drop_window(why)
        self.fail(why)

    def fail(self, why: str) -> None:
        """End the reader processes, and begin again after a pause."""
        self.end_readers()
        self.go(Phase.IDLE)
        if self.snapshot is not None:
            self.attempts.fail()
            self.tell(why)

    def end_readers(self) -> None:
        """Have the reader processes end."""
        self._close_journals()
        if self.readers is not None:
            self.readers.leave()
            self.readers = None

    def look_at_journals(self) -> OpenJournals:
        """Return the journals that are open."""
        if self._open_journals is None:
            directory = self.around.plan.directory
            self._open_journals = OpenJournals(directory, self.state.database)
        return self._open_journals

    def _close_journals(self) -> None:
        if self._open_journals is not None:
            self._open_journals.close()
            self._open_journals = None

    def close(self) -> None:
        """Give everything back: the shipper ends."""
        self._close_journals()
        self.batch = self.window = None
        if self.readers is not None:
            self.readers.close()
            self.readers = None
        self.phase = Phase.IDLE
