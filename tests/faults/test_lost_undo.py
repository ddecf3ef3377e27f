"""Changes that the engine undid and kept, told apart from what the plugin lost or made up."""

from __future__ import annotations

import hashlib

import pytest
from capture import UNREADABLE, Attachment, Capture
from effects import EFFECTS, Effects
from harness import Tally, Truth
from workload import MARK, TABLES

pytestmark = pytest.mark.engine

_UNCAPTURED = "ALTER DATABASE EXCLUDE TABLE ITEM FROM PUBLICATION"
_CAPTURED = "ALTER DATABASE INCLUDE TABLE ITEM TO PUBLICATION"
_UNTRACED = "ALTER TRIGGER ITEM_EFFECTS INACTIVE"
_TRACED = "ALTER TRIGGER ITEM_EFFECTS ACTIVE"

FOUND_EITHER_WAY = pytest.mark.parametrize(
    "goes_on", [True, False], ids=["found_by_a_journal", "found_in_the_table"]
)
EACH_CHANGE = pytest.mark.parametrize(
    "change",
    [
        "UPDATE ITEM SET N = N + 1 WHERE ID = 12",
        "DELETE FROM ITEM WHERE ID = 12",
        "INSERT INTO ITEM (ID, N) VALUES (13, 1)",
    ],
)


@pytest.fixture
def attachment(capture: Capture) -> Attachment:
    capture.create(*TABLES, *EFFECTS)
    attachment = capture.attach()
    _do(attachment, "INSERT INTO ITEM (ID, N) VALUES (12, 4)")
    _do(attachment, "UPDATE ITEM SET N = 5 WHERE ID = 12")
    return attachment


@EACH_CHANGE
@FOUND_EITHER_WAY
def test_a_change_that_no_statement_made_is_the_engines(
    capture: Capture, attachment: Attachment, change: str, goes_on: bool
) -> None:
    _do(attachment, _UNCAPTURED, _UNTRACED)
    _do(attachment, change)
    _do(attachment, _CAPTURED, _TRACED)
    if goes_on:
        _do(attachment, "UPDATE ITEM SET PRICE = 1")
        _do(attachment, "UPDATE OR INSERT INTO ITEM (ID, N) VALUES (12, 70)")
    assert _compare(capture, attachment) == ([], 1, 0)


@EACH_CHANGE
@FOUND_EITHER_WAY
def test_a_change_that_a_statement_made_has_to_be_in_a_journal(
    capture: Capture, attachment: Attachment, change: str, goes_on: bool
) -> None:
    _do(attachment, _UNCAPTURED)
    _do(attachment, change)
    _do(attachment, _CAPTURED)
    if goes_on:
        _do(attachment, "UPDATE OR INSERT INTO ITEM (ID, N) VALUES (12, 70)")
    faults, kept, taken_back = _compare(capture, attachment)
    assert faults
    assert not kept + taken_back


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        ("UPDATE ITEM SET N = 6 WHERE ID = 12", "UPDATE ITEM SET N = 5 WHERE ID = 12"),
        ("DELETE FROM ITEM WHERE ID = 12", "INSERT INTO ITEM (ID, N) VALUES (12, 5)"),
        ("INSERT INTO ITEM (ID, N) VALUES (13, 1)", "DELETE FROM ITEM WHERE ID = 13"),
    ],
)
def test_journal_of_an_undone_change_is_a_fault(
    capture: Capture, attachment: Attachment, change: str, undo: str
) -> None:
    _do(attachment, _UNTRACED)
    _do(attachment, change)
    _do(attachment, _UNCAPTURED)
    _do(attachment, undo)
    faults, kept, taken_back = _compare(capture, attachment)
    assert faults
    assert not kept + taken_back


@pytest.mark.parametrize("goes_on", [True, False], ids=["found_by_a_journal", "found_in_the_table"])
@pytest.mark.parametrize(
    ("change", "undo"),
    [
        ("UPDATE ITEM SET N = 6 WHERE ID = 12", "UPDATE ITEM SET N = 5 WHERE ID = 12"),
        ("DELETE FROM ITEM WHERE ID = 12", "INSERT INTO ITEM (ID, N) VALUES (12, 5)"),
        ("INSERT INTO ITEM (ID, N) VALUES (13, 1)", "DELETE FROM ITEM WHERE ID = 13"),
    ],
)
def test_a_committed_change_that_no_statement_undid_is_the_engines_to_take_back(
    capture: Capture, attachment: Attachment, change: str, undo: str, goes_on: bool
) -> None:
    _do(attachment, change)
    _do(attachment, _UNCAPTURED, _UNTRACED)
    _do(attachment, undo)
    _do(attachment, _CAPTURED, _TRACED)
    if goes_on:
        _do(attachment, "UPDATE OR INSERT INTO ITEM (ID, N) VALUES (12, 70)")
    assert _compare(capture, attachment) == ([], 0, 1)


def test_key_freed_by_an_open_transaction_may_be_used_by_another(
    capture: Capture, attachment: Attachment
) -> None:
    other = capture.clients[-1].attach(capture.database)
    for statement in (
        MARK,
        "INSERT INTO ITEM (ID, N) VALUES (13, 1)",
        "DELETE FROM ITEM WHERE N = 1",
    ):
        attachment.execute(statement)
    _do(other, "INSERT INTO ITEM (ID, N) VALUES (13, 2)")
    attachment.commit()
    assert _compare(capture, attachment) == ([], 0, 0)


def _do(attachment: Attachment, *statements: str) -> None:
    for statement in (MARK, *statements):
        attachment.execute(statement)
    attachment.commit()


def _compare(capture: Capture, attachment: Attachment) -> tuple[list[str], int, int]:
    """Return the faults, and how many changes the engine is said to have kept, and taken back."""
    tables = {name: attachment.rows(name) for name in ("MARK", "ITEM", "LOG_", "WIDE", "EFFECTS")}
    effects = Effects(map(dict, tables["EFFECTS"]))
    tally = Tally()
    truth = Truth(tally)
    faults = truth.take(capture.journals(), effects) + truth.compare(tables, [], effects)
    return faults, tally.kept_undone, tally.taken_back


_NOTES = ("OLD_NOTE", "NEW_NOTE")
_GIVEN, _LEFT, _FOREIGN = "given", "left", "another row's"


@pytest.mark.parametrize(
    ("seen", "told", "is_fault"),
    [
        ((_GIVEN, _LEFT), (_GIVEN, _LEFT), False),
        ((_GIVEN, _LEFT), (_GIVEN, _FOREIGN), True),
        ((_GIVEN, _LEFT), (_GIVEN, None), True),
        ((_GIVEN, _LEFT), (_FOREIGN, _LEFT), True),
        ((_GIVEN, _LEFT), (UNREADABLE, _LEFT), True),
        ((_FOREIGN, _LEFT), (_FOREIGN, _LEFT), False),
        ((_FOREIGN, _LEFT), (UNREADABLE, _LEFT), False),
        ((UNREADABLE, _LEFT), (_FOREIGN, _LEFT), False),
    ],
)
def test_blobs_of_a_change_are_its_statements_unless_replaced_by_the_engine(
    seen: tuple[str, str], told: tuple[str, str | None], is_fault: bool
) -> None:
    def digest(note: str) -> str:
        return note if note == UNREADABLE else hashlib.md5(note.encode()).hexdigest().upper()

    rows = [
        {"ID": 1, "BECAME": 5, "NEW_NOTE": digest(_GIVEN)},
        {"ID": 1, "WAS": 5, "BECAME": 6, **dict(zip(_NOTES, map(digest, seen), strict=True))},
    ]
    old, new = ({"ID": 1, "N": 5 + at, "NOTE": note} for at, note in enumerate(told))
    assert bool(Effects(rows).fault_of_blobs(old, new)) == is_fault
