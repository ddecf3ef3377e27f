"""Changes that an initial snapshot leaves out behind it: only those that its rows have."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.shipper.snapshots.progress import (
    end_initial,
    end_of,
    follow_database,
    give_way,
    left_out_by,
    renew_tables,
    seen_by,
)
from firebird_cdc.journal.shipper.snapshots.runner import SnapshotRunner
from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    Snapshot,
    SnapshotState,
    Status,
    TableProgress,
)
from firebird_cdc.journal.shipper.snapshots.windows import Phase
from firebird_cdc.journal.snapshot.visibility import VisibleSet

_NONE: frozenset[int] = frozenset()
_VISIBLE = VisibleSet(0, 100, 1, 100, _NONE, _NONE, _NONE)


def _state(*statuses: Status) -> SnapshotState:
    """Return the state of a database whose initial snapshot has tables A, B, ... that are so."""
    tables = [TableProgress("ABC"[place]) for place in range(len(statuses))]
    snapshot = Snapshot("it", Kind.INITIAL, "snapshot.mode", tables=tables)
    state = SnapshotState("db", waiting=[snapshot], seen=seen_by(snapshot, _VISIBLE, 0))
    for table, status in zip(tables, statuses, strict=True):
        table.status = status
    return state


def _left_out(state: SnapshotState) -> frozenset[str]:
    found = left_out_by(state)
    return frozenset() if found is None else found.tables


def test_nothing_is_left_out_while_rows_are_still_to_come() -> None:
    # Changes may go out before the rest of the rows: those are then of a later moment.
    assert not _left_out(_state(Status.COMPLETED, Status.RUNNING))


def test_changes_of_a_snapshot_that_is_complete_but_not_ended_are_left_out() -> None:
    # So Kafka's record has it, if the shipper dies behind the last rows.
    assert _left_out(_state(Status.COMPLETED, Status.COMPLETED)) == {"A", "B"}


@pytest.mark.parametrize("status", [Status.STOPPED, Status.SKIPPED, Status.RUNNING])
def test_changes_of_a_table_that_was_not_sent_as_a_whole_are_sent(status: Status) -> None:
    state = _state(Status.COMPLETED, status)
    (snapshot,) = state.waiting
    end_initial(state, snapshot, is_first=True)
    state.end(snapshot, Status.STOPPED)
    assert _left_out(state) == _left_out(state.copy()) == {"A"}


def test_nothing_is_left_out_behind_a_stopped_snapshot_that_changes_have_passed() -> None:
    state = _state(Status.COMPLETED, Status.RUNNING)
    (snapshot,) = state.waiting
    end_initial(state, snapshot, is_first=False)
    state.end(snapshot, Status.STOPPED)
    assert not _left_out(state)


def test_a_table_that_was_stopped_stays_so_in_the_next_window() -> None:
    (snapshot,) = _state(Status.STOPPED, Status.COMPLETED).waiting
    renew_tables(snapshot)
    assert [table.status for table in snapshot.tables or ()] == [Status.STOPPED, Status.WAITING]


def test_rows_of_a_restored_database_are_read_from_the_beginning() -> None:
    state = _state(Status.COMPLETED, Status.RUNNING, Status.SKIPPED)
    (snapshot,) = state.waiting
    first, second, third = snapshot.tables or ()
    first.rows, second.after, second.shape = 7, "00ff", [128, "ID"]
    state.barriers = {"A": (1, 2)}
    assert not follow_database(state, "aa")
    assert not follow_database(state, "aa")
    assert (first.rows, second.after, state.barriers) == (7, "00ff", {"A": (1, 2)})
    assert follow_database(state, "bb")
    assert [each.status for each in (first, second)] == [Status.WAITING] * 2
    assert (first.rows, second.after, second.shape, state.barriers) == (0, None, None, {})
    assert third.status is Status.SKIPPED


def test_tables_that_can_not_be_read_in_parts_are_dropped_where_they_are_half_read() -> None:
    key = "8000000001000000"
    tables = [
        TableProgress("IN_PARTS", shape=[128, "ID"], after=key, rows=5, status=Status.RUNNING),
        TableProgress("KEYLESS", shape=[129], after=key, rows=5, status=Status.RUNNING),
        TableProgress("SELECTED", "SELECT * FROM T", [130, "ID"], rows=5, status=Status.RUNNING),
        TableProgress("NOT_BEGUN", "SELECT * FROM T"),
    ]
    snapshot = Snapshot("it", Kind.INITIAL, "snapshot.mode", tables=tables)
    dropped = give_way(SnapshotState("db", waiting=[snapshot]), snapshot, "it was late")
    assert [table.name for table in dropped] == ["KEYLESS", "SELECTED"]
    assert dropped[0].why == "it was late, and without a key it can't be read in parts"
    assert "SELECT" in dropped[1].why
    assert [table.name for table in snapshot.open_tables] == ["IN_PARTS", "NOT_BEGUN"]


@pytest.mark.parametrize(
    ("statuses", "end"),
    [
        ([Status.COMPLETED, Status.COMPLETED], Status.COMPLETED),
        ([Status.COMPLETED, Status.STOPPED], Status.COMPLETED),
        ([Status.STOPPED, Status.STOPPED], Status.STOPPED),
        ([Status.STOPPED, Status.SKIPPED], Status.STOPPED),
        ([Status.SKIPPED, Status.SKIPPED], Status.COMPLETED),
    ],
)
def test_snapshot_of_which_all_tables_were_stopped_ends_as_stopped(
    statuses: list[Status], end: Status
) -> None:
    (snapshot,) = _state(*statuses).waiting
    assert end_of(snapshot) is end


def test_snapshot_without_tables_is_skipped_though_its_window_was_dropped() -> None:
    surroundings = Mock()
    surroundings.notifications.return_value = []
    snapshot = Snapshot("it", Kind.BLOCKING, "file", tables=[], why="a condition is for no table")
    state = SnapshotState("db", waiting=[snapshot])
    runner = SnapshotRunner(state, surroundings)
    assert runner.advance()
    assert [(each.status, each.why) for each in state.past] == [(Status.SKIPPED, snapshot.why)]
    told = [call.args[2] for call in surroundings.notifications.call_args_list]
    assert told == ["SKIPPED"]


def test_initial_snapshot_is_owed_and_no_change_waits_while_the_password_is_not_to_be_had() -> None:
    surroundings = Mock()
    surroundings.setup.side_effect = ConfigError(["database.password.file: it can't be read"])
    surroundings.place_of.return_value = None
    snapshot = Snapshot("it", Kind.INITIAL, "snapshot.mode")
    runner = SnapshotRunner(SnapshotState("db", waiting=[snapshot]), surroundings)
    assert runner.journals.stops(Mock())
    assert runner.advance()
    assert not runner.journals.stops(Mock())
    assert snapshot.status is Status.OWED
    told = runner.work.waits_for
    assert "owed: the reader process can't be started: database.password.file" in told


def test_initial_snapshot_that_is_stopped_as_somebody_attaches_in_vain_is_owed_no_longer() -> None:
    surroundings = Mock()
    surroundings.notifications.return_value = []
    surroundings.place_of.return_value = None
    snapshot = Snapshot("it", Kind.INITIAL, "snapshot.mode", status=Status.OWED)
    state = SnapshotState("db", waiting=[snapshot])
    runner = SnapshotRunner(state, surroundings)
    runner.work.readers, runner.work.phase = Mock(), Phase.ATTACHING
    runner.outcomes.stop(snapshot)
    runner._take(0, {"failed": "cannot attach to db", "kind": "DatabaseUnreadable"})
    assert runner.advance()
    assert [each.status for each in state.past] == [Status.STOPPED]
