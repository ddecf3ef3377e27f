"""Statements that somebody cancels: the plugin calls the engine in the middle of them."""

from __future__ import annotations

from pathlib import Path

import cancel_work
import pytest
from capture import Attachment, Capture, SqlError, until

pytestmark = pytest.mark.engine

_CANCEL_WORK = Path(cancel_work.__file__)
_TABLE = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, B BLOB SUB_TYPE BINARY)"
# A key of 4,096 bits takes a second, in which the engine looks for no cancel.
_SLOW_INDEX = (
    "CREATE INDEX X ON T COMPUTED BY (IIF(ID = 2,"
    " OCTET_LENGTH(RSA_PRIVATE(512)) + OCTET_LENGTH(RSA_PRIVATE(512)), 0))"
)
_RUNNING = "MON$STATE = 1 AND MON$SQL_TEXT STARTING WITH 'EXECUTE BLOCK AS'"
_TIMES = 3


def _captured(capture: Capture) -> dict[int, bytes | None]:
    """Return the BLOBs of all rows that were inserted, by their keys; None: unreadable."""
    found = {}
    for journal in capture.journals():
        for change in journal.rows:
            assert change.after is not None
            number, blob = change.after
            found[number] = blob.read() if blob.available else None
    return found


@pytest.mark.parametrize("is_first", [True, False])
def test_cancel_during_a_write_ends_a_call_of_the_user_and_none_of_the_plugin(
    capture: Capture, is_first: bool
) -> None:
    capture.create(_TABLE, _SLOW_INDEX)
    client = capture.client()
    arguments = (str(capture.database), is_first)
    assert client.perform(_CANCEL_WORK, "cancelled_insert", *arguments) == 1
    numbers = [2, 3] if is_first else [1, 2, 3]
    assert _captured(capture) == dict.fromkeys(numbers, b"content")


def test_cancelled_loop_over_blobs_ends_and_leaves_none_of_them_unreadable(
    classic: Capture,
) -> None:
    classic.create(_TABLE)
    client = classic.client()
    working = client.attach(classic.database)
    watching = classic.attach()
    for number in range(_TIMES):
        block = (
            "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (1 = 1) DO BEGIN"  # until then
            f" INSERT INTO T VALUES (:I * {_TIMES} + {number}, 'content'); I = I + 1; END END"
        )
        client.start("execute", working.number, block, None)
        until("the statement to run", lambda: _cancel(watching))
        with pytest.raises(SqlError, match="cancelled"):
            client.finish()
        working.execute("INSERT INTO T VALUES (?, 'content')", -number)
        working.commit()
    kept = [row["ID"] for row in watching.execute("SELECT ID FROM T")]
    assert _captured(classic) == dict.fromkeys(kept, b"content")


def _cancel(attachment: Attachment) -> bool:
    """Cancel the statement that runs; return whether one does."""
    [row] = attachment.execute(f"SELECT COUNT(*) AS RUNNING FROM MON$STATEMENTS WHERE {_RUNNING}")
    attachment.execute(f"DELETE FROM MON$STATEMENTS WHERE {_RUNNING}")
    attachment.commit()
    return bool(row["RUNNING"])
