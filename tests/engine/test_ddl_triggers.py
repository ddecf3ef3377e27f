"""Changes that triggers on DDL write: the engine reports them to no replication."""

from __future__ import annotations

import pytest
from capture import Attachment, Capture

pytestmark = pytest.mark.engine

TABLES = (
    "CREATE TABLE T (ID INTEGER)",
    "CREATE TABLE LOG_ (N INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY, WHAT VARCHAR(40))",
)


def _rows_of(attachment: Attachment, table: str) -> int:
    (row,) = attachment.execute(f"SELECT COUNT(*) AS N FROM {table}")
    attachment.commit()
    return int(row["N"])


@pytest.mark.parametrize("when", ["BEFORE", "AFTER"])
def test_rows_written_by_a_ddl_trigger_are_in_no_journal(capture: Capture, when: str) -> None:
    capture.create(
        *TABLES,
        f"CREATE TRIGGER NOTICE {when} ANY DDL STATEMENT AS BEGIN"
        " INSERT INTO LOG_ (WHAT) VALUES (RDB$GET_CONTEXT('DDL_TRIGGER', 'OBJECT_NAME')); END",
    )
    attachment = capture.attach()
    before = _rows_of(attachment, "LOG_")
    attachment.script("ALTER TABLE T ADD N INTEGER")
    attachment.execute("INSERT INTO LOG_ (WHAT) VALUES ('by hand')")
    attachment.commit()
    assert _rows_of(attachment, "LOG_") == before + 2
    written = [change for journal in capture.journals() for change in journal.rows]
    assert [change.after[1] for change in written] == ["by hand"]
