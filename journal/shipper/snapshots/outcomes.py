"""Outcomes of snapshots: how they and their tables end, are put off, or go on in another way."""

from __future__ import annotations

import logbook

from firebird_cdc.journal.shipper.snapshots.notifications import SKIPPED
from firebird_cdc.journal.shipper.snapshots.progress import (
    CROWDED,
    WAS_STOPPED,
    end_initial,
    end_of,
    give_way,
    is_of_one_moment,
    left_out_by,
    put_last,
    told_end,
)
from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    Snapshot,
    Status,
    TableProgress,
)
from firebird_cdc.journal.shipper.snapshots.waiting_journals import WaitingJournals
from firebird_cdc.journal.shipper.snapshots.work import SnapshotWork

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.outcomes")


class Outcomes:
    """Outcomes of the snapshots of one database, whose runner does WORK."""

    def __init__(self, work: SnapshotWork, journals: WaitingJournals) -> None:
        self.work = work
        self._around = work.around
        self._journals = journals

    def stop(self, snapshot: Snapshot) -> None:
        """End SNAPSHOT: at once, or where its window ends."""
        if snapshot is self.work.snapshot and self.work.is_busy:
            snapshot.status = Status.STOPPED
        else:
            self.end_stopped(snapshot)

    def end_stopped(self, snapshot: Snapshot) -> None:
        self._end_as(snapshot, Status.STOPPED, is_first=self._journals.rows_come_first)
        self._around.keep(self.work.state, is_urgent=True)
        self.work.news.add(snapshot, "ABORTED", why=WAS_STOPPED)
        self.work.news.send()

    def _end_without_tables(self, snapshot: Snapshot) -> None:
        why = snapshot.why or "no captured table of the database is meant"
        self.work.state.end(snapshot, Status.SKIPPED, why)
        self._around.keep(self.work.state, is_urgent=True)
        _log.notice("{}: snapshot {} is skipped: {}", self.work.state.database, snapshot.id, why)
        self.work.news.add(snapshot, "SKIPPED", why=why)
        self.work.news.send()

    def _end_as(self, snapshot: Snapshot, status: Status, *, is_first: bool) -> None:
        """SNAPSHOT has ended so. IS_FIRST: what it sent stands before all changes."""
        if snapshot.kind is Kind.INITIAL:
            end_initial(self.work.state, snapshot, is_first=is_first)
        self.work.state.end(snapshot, status)
        self.work.left_out = left_out_by(self.work.state)

    def end(self, snapshot: Snapshot) -> None:
        """SNAPSHOT is complete, or all its tables were stopped, or it has none."""
        if not snapshot.tables:
            self._end_without_tables(snapshot)
            return
        status = Status.COMPLETED if self.work.news.has_end else end_of(snapshot)
        self._end_as(snapshot, status, is_first=True)
        self.work.state.serial = max(self.work.state.serial, self.work.sent_serial) + 1
        self._around.keep(self.work.state, is_urgent=True)
        _log.notice("{}: {}", self.work.state.database, told_end(snapshot, status))
        if status is Status.STOPPED:
            self.work.news.add(snapshot, "ABORTED", why="all its tables were stopped")
        elif not self.work.news.has_end:
            self.work.news.add(snapshot, "COMPLETED")
        self.work.news.send()

    def skip(self, snapshot: Snapshot, table: TableProgress, why: str, outcome: str) -> None:
        table.status, table.why = Status.SKIPPED, why
        database = self.work.state.database
        _log.warning("{}: table {} is left out of the snapshot: {}", database, table.name, why)
        self.work.news.add(snapshot, "TABLE_SCAN_COMPLETED", table, outcome, why)

    def put_off(self, snapshot: Snapshot, table: TableProgress, why: str) -> bool:
        """Have TABLE wait behind the others, as a row of it can't be sent; False: it is the last
        one, and the window is dropped. What was sent of the others is not sent again."""
        assert self.work.window is not None
        if torn := table.torn_by_pause:
            self.skip(snapshot, table, f"{why}, and {torn}", SKIPPED)
            return True
        put_off = self.work.window.put_off
        if table.name not in put_off and len(snapshot.open_tables) > 1:
            put_off.add(table.name)
            put_last(snapshot, table)
            return True
        if snapshot.kind is not Kind.INCREMENTAL:
            self.give_way(snapshot, why)
        self.work.drop(why)
        return False

    def give_way(self, snapshot: Snapshot, why: str, *, keeps_torn: bool = False) -> None:
        """Let the changes go on that wait for SNAPSHOT, for this reason; see `give_way`."""
        was = snapshot.kind
        for table in give_way(self.work.state, snapshot, why, keeps_torn=keeps_torn):
            self.skip(snapshot, table, table.why, SKIPPED)
        self.work.left_out = left_out_by(self.work.state)
        if was is not Kind.INCREMENTAL:
            snapshot.why = f"it began as {was}, and went on part by part: {why}"
            _log.warning("{}: snapshot {}: {}", self.work.state.database, snapshot.id, snapshot.why)
        self._around.keep(self.work.state, is_urgent=True)

    def gives_way(self, snapshot: Snapshot) -> bool:
        """Give way if changes that wait for SNAPSHOT need the room; tell whether it did."""
        if not (is_of_one_moment(snapshot) and self._around.is_crowded()):
            return False
        self.give_way(snapshot, CROWDED)
        return True

    def is_owed(self, why: str) -> bool:
        """Take it, if the snapshot is initial, that nobody can attach yet: the changes go on."""
        snapshot = self.work.snapshot
        if snapshot is None or snapshot.kind is not Kind.INITIAL:
            return False
        if snapshot.status is Status.STOPPED:  # meanwhile
            return False
        if snapshot.status is not Status.OWED:
            snapshot.status = Status.OWED
            self._around.keep(self.work.state, is_urgent=True)
        self.work.fail(
            f"the initial snapshot is owed: {why}. Changes are delivered meanwhile, and it is taken"
            " as soon as an attachment works"
        )
        return True
