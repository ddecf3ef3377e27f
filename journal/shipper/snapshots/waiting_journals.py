"""Journals beside snapshots: which of them wait for rows, and what is left out of them."""

from __future__ import annotations

from firebird_cdc.journal.folder.subjects import SNAPSHOT
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    Status,
)
from firebird_cdc.journal.shipper.snapshots.windows import (
    Phase,
    transaction_of,
)
from firebird_cdc.journal.shipper.snapshots.work import SnapshotWork


class WaitingJournals:
    """Journals of one database beside its snapshots, whose runner does WORK."""

    def __init__(self, work: SnapshotWork) -> None:
        self.work = work
        self._around = work.around

    @property
    def are_near(self) -> bool:
        """Tell whether the journals that come next may be concerned."""
        return (
            self.work.is_busy
            or self.work.snapshot is not None
            or self.work.left_out is not None
            or not self.work.is_decided
            or not self._around.sends_changes
        )

    def left_out_of(self, entry: Entry) -> frozenset[str]:
        """Return the tables whose changes in ENTRY are not sent, as the initial snapshot saw it."""
        left_out = self.work.left_out
        if left_out is None or left_out.epoch != entry.epoch:
            return frozenset()
        transaction = transaction_of(entry, self._around.plan)
        if transaction is None or not left_out.visible.sees(transaction):
            return frozenset()
        return left_out.tables

    def stops(self, entry: Entry) -> bool:
        """Tell whether ENTRY, which would be the next one, has to wait for rows."""
        if not self.work.is_decided:
            return True
        match self.work.phase:
            case Phase.IDLE | Phase.ATTACHING | Phase.CLOSING:
                return self._is_first_of_all or not self._sends_changes()
            case Phase.FOLLOWING:
                assert self.work.window is not None
                is_seen = self.work.window.sees(entry, self._around.plan)
                return self.rows_come_first or not is_seen
            case _:
                return True

    @property
    def _is_first_of_all(self) -> bool:
        """Tell whether the first journal is to wait for an initial snapshot. Where that does not go
        on, it waits no longer, and the rows get a place behind journals."""
        snapshot = self.work.snapshot
        if not self.rows_come_first or self.work.state.is_paused:
            return False
        if snapshot is None or snapshot.status is Status.OWED:
            return False
        return self.work.attempts.holds_first(self.work.look_at)

    @property
    def rows_come_first(self) -> bool:
        """Tell whether the rows go before the first journal of all, and changes that the snapshot
        sees are left out. Not if none was there when its first window began: those that it sees
        come later then, and go out before its rows."""
        snapshot, seen = self.work.snapshot, self.work.state.seen
        return (
            snapshot is not None
            and snapshot.kind is Kind.INITIAL
            and (seen is None or bool(seen.tables))
            and self._around.place_of(self.work.state.database) is None
            and self._around.is_at_rest(self.work.state.database)
        )

    def _sends_changes(self) -> bool:
        """Tell whether changes go out at all; else it is told that they wait."""
        if self._around.sends_changes:
            return True
        text = "changes wait: snapshot.mode says that only existing rows are sent"
        self._around.plan.statistics.trouble(SNAPSHOT + self.work.state.database, "halted", text)
        return False
