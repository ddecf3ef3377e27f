"""Rows that snapshots read, beside the changes of their keys: what is right and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from firebird_cdc.journal.replay.audit.kafka.message_form import image_digest
from firebird_cdc.journal.replay.audit.kafka.read_diff import (
    ALTERED,
    DOUBLED,
    MISPLACED,
    READ,
    compare_reads,
)
from firebird_cdc.journal.replay.audit.kafka.rendered import LEFT_OUT

UNAVAILABLE = frozenset({"unavailable"})
TAKEN_US = 1_000_000_000
LATER_US = TAKEN_US + 60_000_000

Image = dict[str, Any] | None


def _digest(image: Image) -> bytes | None:
    return image_digest(image, UNAVAILABLE)


def _row(value: object) -> Image:
    return {"ID": 1, "N": value}


def change(
    sequence: int, before: Image, after: Image, time_us: int = 0, note: str | None = None
) -> dict[str, Any]:
    """Return a change that the journals ask for."""
    op = "c" if before is None else "d" if after is None else "u"
    return {
        "op": op, "a": 0, "b": sequence, "c": 1, "transaction": sequence, "time_us": time_us,
        "note": note, "was": _digest(before), "row": _digest(after), "database": "d", "table": "T",
    }  # fmt: skip


def sent(sequence: int, offset: int) -> dict[str, Any]:
    """Return a change in the topic."""
    return {
        "op": "u", "a": 0, "b": offset, "c": sequence, "d": 1, "epoch": 0, "note": None,
        "journal": b"%16d" % sequence, "transaction": sequence, "database": "d",
    }  # fmt: skip


def read(
    cut: int, after: Image, offset: int = 50, pos: int = 1, key: str = '{"ID":1}'
) -> dict[str, Any]:
    """Return a row that a snapshot read."""
    return {
        "op": "r", "topic": "t", "a": 0, "b": offset, "c": cut, "d": pos, "epoch": 0, "note": None,
        "journal": bytes(16), "transaction": None, "time_us": TAKEN_US, "row": _digest(after),
        "key": key, "database": "d", "table": "T",
    }  # fmt: skip


def kinds(
    wanted: list[dict[str, Any]],
    reads: list[dict[str, Any]],
    seen: list[dict[str, Any]] | None = None,
    *,
    are_stored: bool = True,
) -> list[str]:
    found = compare_reads(wanted, seen or [], reads, lambda *_: are_stored)
    return [each["kind"] for each in found if each["kind"] != READ]


_HISTORY = [change(1, None, _row(1)), change(3, _row(1), _row(2)), change(6, _row(2), None)]


@pytest.mark.parametrize(
    ("cut", "value", "expected"),
    [
        (1, 1, []),
        (2, 1, []),
        (3, 2, []),
        (3, 1, [MISPLACED]),
        (5, 9, [ALTERED]),
        (6, 2, [MISPLACED]),
        (0, 1, [MISPLACED]),
    ],
)
def test_row_is_what_the_last_change_before_its_cut_has_left(
    cut: int, value: int, expected: list[str]
) -> None:
    history = [{**each, "time_us": LATER_US} for each in _HISTORY]
    assert kinds(history, [read(cut, _row(value))]) == expected


def test_row_may_have_a_change_that_was_committed_at_the_same_moment() -> None:
    beside = [change(1, None, _row(1)), change(3, _row(1), _row(2), TAKEN_US)]
    assert kinds(beside, [read(2, _row(2))]) == []
    later = [*beside[:1], {**beside[1], "time_us": LATER_US}]
    assert kinds(later, [read(2, _row(2))]) == [MISPLACED]


def test_row_has_what_an_initial_snapshot_left_out() -> None:
    seen = [change(1, _row(0), _row(1), note=LEFT_OUT), change(2, _row(1), _row(2), LATER_US)]
    assert kinds(seen, [read(0, _row(1))]) == []
    assert kinds(seen, [read(0, _row(0))]) == [ALTERED]


def test_row_before_all_changes_is_what_the_first_one_found() -> None:
    first = [change(4, _row(1), _row(2), LATER_US)]
    assert kinds(first, [read(2, _row(1))]) == []
    assert kinds(first, [read(2, _row(7))]) == [ALTERED]
    assert kinds([], [read(2, _row(7))]) == []


def test_values_that_no_message_tells_are_not_compared() -> None:
    """A value that no journal has, and another structure of the table."""
    assert kinds([change(1, None, _row("unavailable"))], [read(1, _row("a BLOB"))]) == []
    assert kinds([change(1, None, {"ID": 1})], [read(1, _row(1))]) == []
    other = [change(1, None, {"ID": 1, "N": "unavailable", "M": 1})]
    assert kinds(other, [read(1, {"ID": 1, "N": "x", "M": 2})]) == [ALTERED]


def test_row_stands_between_the_changes_around_its_cut() -> None:
    right = [sent(2, 10), sent(7, 60)]
    assert kinds([], [read(5, _row(1))], right) == []
    assert kinds([], [read(8, _row(1))], right) == [MISPLACED]
    assert kinds([], [read(1, _row(1))], right) == [MISPLACED]
    repeated = [*right, {**sent(2, 70)}]
    assert kinds([], [read(5, _row(1))], repeated) == []


def test_key_comes_once_in_a_window() -> None:
    twice = [read(1, _row(1)), read(1, _row(1), 51, 2)]
    assert kinds([], twice) == [DOUBLED]
    null = '{"ID":null}'
    assert kinds([], [{**each, "key": null} for each in twice]) == []
    assert kinds([], twice, are_stored=False) == []
