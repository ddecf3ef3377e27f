"""Attempts at a snapshot: rows that would have to be sent again are no progress."""

from __future__ import annotations

import pytest

from firebird_cdc.journal.shipper.snapshots.attempts import Attempts
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot, Status, TableProgress
from firebird_cdc.journal.shipper.snapshots.windows import Phase


def _snapshot(kind: Kind, *shape: int | str) -> Snapshot:
    tables = [TableProgress(name, shape=list(shape)) for name in "AB"]
    return Snapshot("it", kind, "command", tables=tables)


def _lose(attempts: Attempts, snapshot: Snapshot) -> float:
    """Have a window fail in table B behind all rows of table A; return the pause."""
    first, second = snapshot.tables or ()
    first.status, first.rows, second.rows = Status.COMPLETED, 10, 5
    attempts.get_on(snapshot, first)
    attempts.get_on(snapshot, second)
    attempts.lose_rows()
    return attempts.fail()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (Kind.INITIAL, (1, "ID")),
        (Kind.BLOCKING, (1, "ID")),
        (Kind.INCREMENTAL, (1,)),  # without a key, so that it begins anew
    ],
)
def test_pauses_grow_while_a_snapshot_fails_behind_rows_that_it_sends_anew(
    kind: Kind, shape: tuple[int | str, ...]
) -> None:
    attempts, snapshot = Attempts(), _snapshot(kind, *shape)
    assert [_lose(attempts, snapshot) for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    assert attempts.are_too_many
    *_, second = snapshot.tables or ()
    second.status = Status.COMPLETED  # further than ever
    attempts.get_on(snapshot, second)
    assert attempts.fail() == 1
    assert not attempts.are_too_many


def test_pauses_stay_short_while_an_incremental_snapshot_gets_on() -> None:
    attempts, snapshot = Attempts(), _snapshot(Kind.INCREMENTAL, 1, "ID")
    assert [_lose(attempts, snapshot) for _ in range(4)] == [1, 1, 1, 1]
    assert not attempts.are_too_many


def test_first_journal_is_held_no_longer_by_a_snapshot_that_fails_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("firebird_cdc.journal.shipper.snapshots.attempts.monotonic", lambda: now)
    attempts, snapshot = Attempts(), _snapshot(Kind.INITIAL, 1, "ID")
    assert attempts.holds_first(0)
    now += 59
    first, _ = snapshot.tables or ()
    attempts.get_on(snapshot, first)  # all is well
    now += 59
    assert attempts.holds_first(0)
    for _ in range(2):
        _lose(attempts, snapshot)
        assert attempts.holds_first(0) is (now < 1178)
        now += 61
    assert not attempts.holds_first(0)


def test_first_journal_is_held_from_when_the_snapshot_may_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("firebird_cdc.journal.shipper.snapshots.attempts.monotonic", lambda: now)
    attempts = Attempts()
    assert attempts.holds_first(1300.0)  # snapshot.delay.ms: 300000
    now = 1359.0
    assert attempts.holds_first(1300.0)
    now = 1361.0
    assert not attempts.holds_first(1300.0)


def test_part_of_a_table_may_take_longer_each_time_that_it_was_given_up() -> None:
    attempts, snapshot = Attempts(), _snapshot(Kind.INCREMENTAL, 1, "ID")

    def limits() -> list[float]:
        return [
            attempts.limit_s(Phase.READING, is_in_parts=is_in_parts, waits=waits)
            for is_in_parts, waits in ((True, True), (True, False), (False, True))
        ]

    assert limits() == [10, 120, 3600]
    for _ in range(5):
        attempts.give_up(Phase.READING)
    assert limits() == [320, 3840, 115_200]
    assert attempts.limit_s(Phase.OPENING, is_in_parts=True, waits=True) == 60
    first, _ = snapshot.tables or ()
    attempts.get_on(snapshot, first)  # the next one is of the same table, and may need as long
    assert limits() == [160, 1920, 57_600]
    for _ in range(5):
        attempts.get_on(snapshot, first)
    assert limits() == [10, 120, 3600]


def test_part_that_took_too_long_looks_through_less_until_it_is_quick() -> None:
    attempts, snapshot = Attempts(), _snapshot(Kind.INCREMENTAL, 1, "ID")
    assert attempts.numbers() is None
    given = []
    for _ in range(6):
        attempts.give_up(Phase.READING)
        given.append(attempts.numbers())
    assert given == [65_536, 4096, 256, 16, 1, 1]
    attempts.give_up(Phase.OPENING)  # which says nothing of rows
    assert attempts.numbers() == 1
    for took_s, numbers in ((0.1, 2), (0.9, 4), (1.5, 4), (0.1, 8)):
        for each in (took_s, took_s / 2):
            attempts.note_read(each)
        assert attempts.numbers() == numbers
    first, _ = snapshot.tables or ()
    attempts.get_on(snapshot, first)
    assert attempts.numbers() == 8
    first.status = Status.COMPLETED
    attempts.get_on(snapshot, first)
    assert attempts.numbers() is None
