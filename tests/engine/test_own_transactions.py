"""Count of the transaction numbers that we take in a user's database, as in a DBA's traces."""

from __future__ import annotations

import pytest
from capture import Attachment, Capture, until

pytestmark = pytest.mark.engine

_TABLE = "CREATE TABLE T (ID INTEGER PRIMARY KEY, N INTEGER)"


def _next_number(attachment: Attachment) -> int:
    """Return the number of a transaction that begins now."""
    [row] = attachment.execute("SELECT CURRENT_TRANSACTION NUMBER FROM RDB$DATABASE")
    attachment.commit()
    number: int = row["NUMBER"]
    return number


def _ours(capture: Capture, attachment: Attachment, *statements: str) -> int:
    """Run STATEMENTS, each committed; return how many numbers were taken beside theirs, once all
    is known of them."""
    before = _next_number(attachment)
    attachment.script(*statements)
    capture.journals()
    return _next_number(attachment) - before - 1 - len(statements)


@pytest.fixture
def attachment(capture: Capture) -> Attachment:
    capture.create(_TABLE)
    attachment = capture.attach()
    attachment.script("INSERT INTO T VALUES (1, 1)")
    capture.journals()
    return attachment


_BESIDE = 1  # for a question that is asked again, as the engine was busy


@pytest.mark.parametrize(
    ("ddl", "count"),
    [
        ("ALTER TABLE T ADD M INTEGER", 1),
        ("CREATE TABLE U (ID INTEGER PRIMARY KEY)", 1),
        ("CREATE UNIQUE INDEX I ON T (N)", 2),  # which indexes are keys is asked before, too
    ],
)
def test_ddl_starts_few_transactions_of_the_connector(
    capture: Capture, attachment: Attachment, ddl: str, count: int
) -> None:
    assert 1 <= _ours(capture, attachment, ddl) <= count + _BESIDE


def test_row_changes_of_known_tables_start_no_transaction_of_the_connector(
    capture: Capture, attachment: Attachment
) -> None:
    statements = [f"INSERT INTO T VALUES ({number}, 1)" for number in range(2, 12)]
    assert _ours(capture, attachment, *statements) <= _BESIDE


def test_tables_created_in_one_transaction_are_read_in_one_transaction(
    capture: Capture, attachment: Attachment
) -> None:
    before = _next_number(attachment)
    for number in range(5):
        attachment.immediate(f"CREATE TABLE T{number} (ID INTEGER PRIMARY KEY)")
    attachment.commit()
    capture.journals()
    assert 1 <= _next_number(attachment) - before - 2 <= 1 + _BESIDE


def test_connector_attachments_are_identified_by_their_process_name(
    capture: Capture, attachment: Attachment
) -> None:
    seen: set[str] = set()
    columns = iter(range(1000))

    def is_seen() -> bool:
        attachment.script(f"ALTER TABLE T ADD C{next(columns)} INTEGER")
        while capture.live() and "firebird-cdc" not in seen:
            rows = attachment.execute(
                "SELECT TRIM(MON$REMOTE_PROCESS) NAME FROM MON$ATTACHMENTS"
                " WHERE MON$ATTACHMENT_ID <> CURRENT_CONNECTION AND MON$SYSTEM_FLAG = 0"
            )
            attachment.commit()
            seen.update(row["NAME"] for row in rows)
        return bool(seen)

    until("an attachment of ours to be seen", is_seen)
    assert seen == {"firebird-cdc"}
