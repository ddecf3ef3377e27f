"""Commits that fail after the plugin's prepare, and what becomes of their transactions."""

from __future__ import annotations

import pytest
from capture import Attachment, Capture, Journal, SqlError, either_mode, fold, until
from test_rollbacks import play

pytestmark = pytest.mark.engine

_INDEX = "CREATE UNIQUE INDEX TWICE_X ON TWICE (ID)"


@pytest.fixture
def published(capture: Capture) -> Capture:
    """A table T; a table TWICE that can't have a unique index; a table AWAY for others."""
    _create(capture)
    return capture


def _create(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)",
        "CREATE TABLE TWICE (ID INTEGER NOT NULL)",
        "CREATE TABLE AWAY (ID INTEGER)",
    )
    client = capture.client()
    attachment = client.attach(capture.database)
    play(attachment, "INSERT INTO TWICE VALUES (1)\n\nINSERT INTO TWICE VALUES (1)\n\nCOMMIT")
    assert len(capture.journals()) == 1
    client.end()
    capture.clients.remove(client)


def _fails(attachment: Attachment, why: str, retaining: bool = False) -> None:
    with pytest.raises(SqlError, match=why):
        attachment.commit(retaining)


def _balance(capture: Capture, attachment: Attachment) -> list[Journal]:
    """Assert that the journals add up to the tables; return those after the first."""
    journals = capture.journals()
    folded = fold(journals)
    for table in ("T", "TWICE"):
        assert folded.get(table, {}) == attachment.rows(table)
    return journals[1:]


@pytest.mark.parametrize("retaining", [False, True], ids=["commit", "commit retain"])
def test_failed_commit_succeeds_after_retries_and_a_repair(
    published: Capture, retaining: bool
) -> None:
    attachment = published.attach()
    play(attachment, f"INSERT INTO T VALUES (1, 0)\n\n{_INDEX}")
    for number in range(3):
        _fails(attachment, "duplicate", retaining)
        assert len(published.committed()) == 1
        attachment.immediate(f"UPDATE T SET N = {number + 1}")
    _fails(attachment, "duplicate", retaining)
    attachment.immediate("DELETE FROM TWICE ROWS 1")
    attachment.commit(retaining)
    attachment.close()
    attachment = published.clients[-1].attach(published.database)
    [journal] = _balance(published, attachment)
    assert journal.statements == [_INDEX]
    assert [row.op for row in journal.rows] == ["c", *"uuu", "d"]


def test_failed_commit_retried_without_changes_leaves_no_journal(published: Capture) -> None:
    client = published.client()
    attachment, other = client.attach(published.database), client.attach(published.database)
    play(attachment, f"INSERT INTO T VALUES (1, 0)\n\n{_INDEX}")
    _fails(attachment, "duplicate")
    _fails(attachment, "duplicate")
    play(other, "INSERT INTO T VALUES (2, 0)\n\nCOMMIT")
    _fails(attachment, "duplicate")
    attachment.rollback()
    [journal] = _balance(published, attachment)
    assert journal.brief() == [("c", None, {"ID": 2, "N": 0})]
    assert journal.statements == []


def test_savepoint_rollbacks_after_a_failed_commit_are_left_out(published: Capture) -> None:
    attachment = published.attach()
    play(attachment, f"INSERT INTO T VALUES (1, 0)\n\nSAVEPOINT A\n\n{_INDEX}")
    _fails(attachment, "duplicate")
    # The attempt to commit has released the savepoint already.
    play(attachment, "!ROLLBACK TO SAVEPOINT A\n\nSAVEPOINT B\n\nUPDATE T SET N = 1")
    play(attachment, "!INSERT INTO T VALUES (1, 0)\n\nROLLBACK TO SAVEPOINT B")
    _fails(attachment, "duplicate")
    play(attachment, "INSERT INTO T VALUES (2, 0)\n\nDELETE FROM TWICE ROWS 1\n\nSAVEPOINT C")
    play(attachment, "DELETE FROM T\n\nROLLBACK TO SAVEPOINT C\n\nCOMMIT")
    [journal] = _balance(published, attachment)
    assert [row.op for row in journal.rows] == ["c", "c", "d"]


def test_rollback_retaining_after_a_failed_commit_leaves_only_later_changes(
    published: Capture,
) -> None:
    attachment = published.attach()
    play(attachment, f"INSERT INTO T VALUES (1, 0)\n\n{_INDEX}")
    _fails(attachment, "duplicate")
    play(attachment, "ROLLBACK RETAIN\n\nINSERT INTO T VALUES (2, 0)\n\nCOMMIT")
    [journal] = _balance(published, attachment)
    assert [row.op for row in journal.rows] == ["c"]


def test_failed_commit_of_a_key_is_captured_after_its_rows_are_corrected(
    published: Capture,
) -> None:
    attachment = published.attach()
    key = "ALTER TABLE TWICE ADD CONSTRAINT TWICE_K PRIMARY KEY (ID)"
    play(attachment, f"INSERT INTO TWICE VALUES (2)\n\nINSERT INTO T VALUES (1, 0)\n\n{key}")
    _fails(attachment, "duplicate|PRIMARY or UNIQUE")
    play(attachment, "DELETE FROM TWICE WHERE ID = 1\n\nINSERT INTO TWICE VALUES (1)\n\nCOMMIT")
    [journal] = _balance(published, attachment)
    assert journal.statements == [key]
    assert sorted(row.op for row in journal.rows) == ["c", "c", "c", "d", "d"]


@either_mode
def test_drop_of_a_table_in_use_is_captured_once_its_retry_succeeds(
    request: pytest.FixtureRequest, mode: str
) -> None:
    capture: Capture = request.getfixturevalue(mode)
    _create(capture)
    client = capture.client()
    attachment = client.attach(capture.database)
    other = (client if mode == "capture" else capture.client()).attach(capture.database)
    other.execute("SELECT * FROM AWAY")
    attachment.begin(lock_timeout=0)
    play(attachment, "INSERT INTO T VALUES (1, 0)\n\nDROP TABLE AWAY")
    _fails(attachment, "in use")
    _fails(attachment, "in use")
    assert len(capture.committed()) == 1
    attachment.immediate("INSERT INTO T VALUES (2, 0)")
    other.close()
    attachment.commit()
    [journal] = _balance(capture, attachment)
    assert journal.statements == ["DROP TABLE AWAY"]
    assert [row.op for row in journal.rows] == ["c", "c"]


def test_kill_after_a_failed_commit_leaves_no_journal(published: Capture) -> None:
    attachment = published.attach()
    play(attachment, f"INSERT INTO T VALUES (1, 0)\n\n{_INDEX}")
    _fails(attachment, "duplicate")
    published.clients.pop().kill()
    attachment = published.attach()
    play(attachment, "INSERT INTO T VALUES (2, 0)\n\nCOMMIT")
    [journal] = _balance(published, attachment)
    assert journal.brief() == [("c", None, {"ID": 2, "N": 0})]


def test_detach_after_a_failed_commit_leaves_no_journal(published: Capture) -> None:
    client = published.client()
    attachment, other = client.attach(published.database), client.attach(published.database)
    play(attachment, f"INSERT INTO T VALUES (1, 0)\n\n{_INDEX}")
    _fails(attachment, "duplicate")
    attachment.close()
    until("the journal to go", lambda: not published.live())
    play(other, "INSERT INTO T VALUES (2, 0)\n\nCOMMIT")
    [journal] = _balance(published, other)
    assert [row.op for row in journal.rows] == ["c"]
