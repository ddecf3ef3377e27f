"""Course of the snapshots of one database, as figures for those who show it."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from firebird_cdc.clock import now_us
from firebird_cdc.journal.shipper.monitoring.snapshot_figures import (
    RATE_S,
    Chunk,
    Lasting,
    Sample,
    SnapshotFigures,
    WindowFigures,
)
from firebird_cdc.journal.shipper.snapshots.figures import figures_of, shown_in
from firebird_cdc.journal.shipper.snapshots.progress import OLD_TRANSACTIONS
from firebird_cdc.journal.shipper.snapshots.rows import Batch
from firebird_cdc.journal.shipper.snapshots.runner import SnapshotRunner
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot
from firebird_cdc.journal.shipper.snapshots.windows import Phase

if TYPE_CHECKING:
    from firebird_cdc.journal.shipper.monitoring.statistics import DatabaseStatistics

_SAMPLE_S = 5.0
_SAMPLES = int(RATE_S / _SAMPLE_S) + 1

# While it is at one of these no journal is begun, or only some are.
_HOLDS = (Phase.OPENING, Phase.FOLLOWING, Phase.READING, Phase.SENDING)


class Course:
    """Follows RUNNER, and sets figures of STATISTICS whenever a step has changed something.

    Belongs to the shipping thread. ``ended``: keys of the snapshots that are known to have ended.
    """

    def __init__(self, runner: SnapshotRunner, statistics: DatabaseStatistics) -> None:
        self.ended = {each.key for each in runner.work.state.past}
        self._runner = runner
        self._statistics = statistics
        self._mark: tuple[object, ...] = ()
        self._counted = 0  # rows of this snapshot that were sent since the start
        self._figures: SnapshotFigures | None = None
        self._shown = ""  # key of the snapshot that they are of

    def look(self, obstacle: str) -> None:
        """Look what the last step has changed. OBSTACLE: why nothing can be begun, if it can't."""
        runner = self._runner
        state = runner.work.state
        shown = shown_in(state)
        if shown is None:
            return
        mark = (
            shown.key,
            shown.status,
            runner.work.phase,
            runner.work.since,
            runner.work.waits_for or obstacle,
            state.serial,
            state.is_paused,
            self._counted,
        )
        if mark != self._mark:
            self._mark = mark
            self._set(shown, runner.work.waits_for or obstacle)

    def _set(self, shown: Snapshot, reason: str) -> None:
        fresh = figures_of(self._runner.work.state, shown)
        now, former, phase = monotonic(), self._figures, self._runner.work.phase
        if former is None or self._shown != shown.key:
            former, self._counted, self._shown = fresh, 0, shown.key
        is_going = fresh.is_on and fresh.status != "paused"
        waits = is_going and (bool(reason) or phase is Phase.IDLE)
        is_old = is_going and reason.startswith(OLD_TRANSACTIONS)
        self._figures = self._statistics.snapshot = replace(
            fresh,
            phase=phase.name.lower() if fresh.is_on else "",
            waits_for=reason if waits else "",
            waits_since_us=(former.waits_since_us or now_us()) if waits else 0,
            windows=self._windows(former.windows, fresh.windows.count),
            chunks=former.chunks,
            chunk=former.chunk,
            recent=self._recent(former.recent, (now, self._counted, fresh.reached)),
            paused=_lasting(former.paused, now, goes_on=fresh.status == "paused"),
            old_transactions=_lasting(former.old_transactions, now, goes_on=is_old),
        )

    def _windows(self, former: WindowFigures, count: int) -> WindowFigures:
        """Return the windows after this step. Between two looks one may have ended, and the next
        one begun."""
        phase, since = self._runner.work.phase, self._runner.work.since
        is_open = phase in _HOLDS
        is_next = phase is Phase.OPENING and former.opened_at != since
        if former.opened_at is None or (is_open and not is_next):
            return replace(
                former, count=count, opened_at=former.opened_at or (since if is_open else None)
            )
        lasted = since - former.opened_at
        return WindowFigures(
            count, since if is_next else None, lasted, max(lasted, former.longest_s)
        )

    @staticmethod
    def _recent(former: tuple[Sample, ...], last: Sample) -> tuple[Sample, ...]:
        """Return samples, some seconds apart, the LAST one new."""
        kept = former
        if len(former) > 1 and former[-1][0] - former[-2][0] < _SAMPLE_S:
            kept = former[:-1]
        return (*kept, last)[-_SAMPLES:]

    def after(self, table: str) -> str:
        """Return the DB_KEY, in hexadecimal, behind which the next rows of TABLE come."""
        snapshot = self._runner.work.snapshot
        tables = () if snapshot is None else snapshot.tables or ()
        return next((each.after or "" for each in tables if each.name == table), "")

    def sent(self, batch: Batch, after: str) -> None:
        """BATCH is in Kafka, and stands behind the row AFTER."""
        snapshot, former = self._runner.work.snapshot, self._figures
        if snapshot is None or former is None:
            return
        rows = batch.rows - len(batch.left_out)
        counts = self._statistics.snapshot_counts
        is_chunk = snapshot.kind is Kind.INCREMENTAL
        counts.add(batch.table, rows - batch.filtered, is_chunk=is_chunk)
        counts.filtered += batch.filtered
        counts.erroneous += len(batch.left_out)
        self._counted += batch.rows
        chunk = former.chunk
        # A batch without rows ends its table.
        if batch.rows:
            before = chunk.pos if chunk is not None and chunk.journal == batch.window else 0
            last = (batch.last or b"").hex()
            pos = before + batch.rows
            place = (batch.window, batch.cut[1], pos)
            chunk = Chunk(batch.uuid, batch.table, after, last, *place, now_us())
        self._figures = replace(former, chunks=former.chunks + 1, chunk=chunk)

    def newly_ended(self) -> list[Snapshot]:
        """Return the snapshots that have ended since this was last asked."""
        found = [each for each in self._runner.work.state.past if each.key not in self.ended]
        self.ended = {each.key for each in self._runner.work.state.past}
        return found


def _lasting(former: Lasting, now: float, *, goes_on: bool) -> Lasting:
    return former.begun(now) if goes_on else former.ended(now)
