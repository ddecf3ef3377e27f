"""Outcomes of snapshots: how they and their tables end, are put off, or go on in another way."""

from __future__ import annotations

import logbook

from firebird_cdc.journal.shipper.snapshots.notifications import SKIPPED
from firebird_cdc.journal.shipper.snapshots.passage import Passage
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

_log = logbook.Logger("firebird_cdc.journal.shipper.snapshots.outcomes")


class Outcomes(Passage):
    """Outcomes of the snapshots of one database."""

    def stop(self, snapshot: Snapshot) -> None:
        """End SNAPSHOT: at once, or where its window ends."""
        if snapshot is self.snapshot and self.is_busy:
            snapshot.status = Status.STOPPED
        else:
            self._end_stopped(snapshot)

    def _end_stopped(self, snapshot: Snapshot) -> None:
        self._end_as(snapshot, Status.STOPPED, is_first=self._goes_before_everything)
        self._around.keep(self.state, is_urgent=True)
        self._news.add(snapshot, "ABORTED", why=WAS_STOPPED)
        self._news.send()

    def _end_without_tables(self, snapshot: Snapshot) -> None:
        why = snapshot.why or "no captured table of the database is meant"
        self.state.end(snapshot, Status.SKIPPED, why)
        self._around.keep(self.state, is_urgent=True)
        _log.notice("{}: snapshot {} is skipped: {}", self.state.database, snapshot.id, why)
        self._news.add(snapshot, "SKIPPED", why=why)
        self._news.send()

    def _end_as(self, snapshot: Snapshot, status: Status, *, is_first: bool) -> None:
        """SNAPSHOT has ended so. IS_FIRST: what it sent stands before all changes."""
        if snapshot.kind is Kind.INITIAL:
            end_initial(self.state, snapshot, is_first=is_first)
        self.state.end(snapshot, status)
        self._left_out = left_out_by(self.state)

    def _end(self, snapshot: Snapshot) -> None:
        """SNAPSHOT is complete, or all its tables were stopped, or it has none."""
        if not snapshot.tables:
            self._end_without_tables(snapshot)
            return
        status = Status.COMPLETED if self._news.has_end else end_of(snapshot)
        self._end_as(snapshot, status, is_first=True)
        self.state.serial = max(self.state.serial, self.sent_serial) + 1
        self._around.keep(self.state, is_urgent=True)
        _log.notice("{}: {}", self.state.database, told_end(snapshot, status))
        if status is Status.STOPPED:
            self._news.add(snapshot, "ABORTED", why="all its tables were stopped")
        elif not self._news.has_end:
            self._news.add(snapshot, "COMPLETED")
        self._news.send()

    def _skip(self, snapshot: Snapshot, table: TableProgress, why: str, outcome: str) -> None:
        table.status, table.why = Status.SKIPPED, why
        database = self.state.database
        _log.warning("{}: table {} is left out of the snapshot: {}", database, table.name, why)
        self._news.add(snapshot, "TABLE_SCAN_COMPLETED", table, outcome, why)

    def _put_off(self, snapshot: Snapshot, table: TableProgress, why: str) -> bool:
        """Have TABLE wait behind the others, as a row of it can't be sent; False: it is the last
        one, and the window is dropped. What was sent of the others is not sent again."""
        assert self._window is not None
        if torn := table.torn_by_pause:
            self._skip(snapshot, table, f"{why}, and {torn}", SKIPPED)
            return True
        put_off = self._window.put_off
        if table.name not in put_off and len(snapshot.open_tables) > 1:
            put_off.add(table.name)
            put_last(snapshot, table)
            return True
        if snapshot.kind is not Kind.INCREMENTAL:
            self._give_way(snapshot, why)
        self.drop(why)
        return False

    def _give_way(self, snapshot: Snapshot, why: str, *, keeps_torn: bool = False) -> None:
        """Let the changes go on that wait for SNAPSHOT, for this reason; see `give_way`."""
        was = snapshot.kind
        for table in give_way(self.state, snapshot, why, keeps_torn=keeps_torn):
            self._skip(snapshot, table, table.why, SKIPPED)
        self._left_out = left_out_by(self.state)
        if was is not Kind.INCREMENTAL:
            snapshot.why = f"it began as {was}, and went on part by part: {why}"
            _log.warning("{}: snapshot {}: {}", self.state.database, snapshot.id, snapshot.why)
        self._around.keep(self.state, is_urgent=True)

    def _gives_way(self, snapshot: Snapshot) -> bool:
        """Give way if changes that wait for SNAPSHOT need the room; tell whether it did."""
        if not (is_of_one_moment(snapshot) and self._around.is_crowded()):
            return False
        self._give_way(snapshot, CROWDED)
        return True

    def _is_owed(self, why: str) -> bool:
        """Take it, if the snapshot is initial, that nobody can attach yet: the changes go on."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.kind is not Kind.INITIAL:
            return False
        if snapshot.status is Status.STOPPED:  # meanwhile
            return False
        if snapshot.status is not Status.OWED:
            snapshot.status = Status.OWED
            self._around.keep(self.state, is_urgent=True)
        self._fail(
            f"the initial snapshot is owed: {why}. Changes are delivered meanwhile, and it is taken"
            " as soon as an attachment works"
        )
        return True
