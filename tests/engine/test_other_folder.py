"""A journal folder that is taken away and made anew while transactions and commits are at work."""

from __future__ import annotations

import pytest
from capture import Attachment, Capture, SqlError, own_journals, until

from firebird_cdc.journal.format import Gap

pytestmark = pytest.mark.engine


def _can_commit(attachment: Attachment, number: int) -> bool:
    try:
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
    except SqlError:
        attachment.rollback()
        return False
    return True


def _replace_folder(capture: Capture, other: Attachment) -> None:
    """Take the folder away, and have another attachment's commits find that out."""
    capture.journal_directory.rename(capture.journal_directory.with_name("elsewhere"))

    def is_at_work() -> bool:
        return _can_commit(other, 1) and bool(capture.live() or capture.committed())

    until("a bridge to be at work in a new folder", is_at_work)


@pytest.mark.parametrize("mode", ["refuse", "gap"])
@own_journals
def test_transaction_begun_in_the_folder_before_is_refused_or_a_gap(
    capture: Capture, mode: str
) -> None:
    capture.options["connector.capture.failure.mode"] = mode
    capture.write_config()
    capture.create("CREATE TABLE T (ID INTEGER)")
    client = capture.client()
    early, other = client.attach(capture.database), client.attach(capture.database)
    assert _can_commit(other, 0)
    until("the journal to be confirmed", lambda: not capture.live())
    early.execute("INSERT INTO T VALUES (9)")
    _replace_folder(capture, other)
    if mode == "refuse":
        with pytest.raises(SqlError, match=r"(?s)firebird-cdc.*journal"):
            early.commit()
        early.rollback()
    else:
        early.commit()
    assert _can_commit(other, 2)
    client.end()
    capture.clients.remove(client)
    changes = [change for journal in capture.journals() for change in journal.changes]
    gaps = [change.reason for change in changes if isinstance(change, Gap)]
    assert any("is no longer in" in reason for reason in gaps) is (mode == "gap"), gaps
    captured = [row["ID"] for j in capture.journals() for _, _, row in j.brief() if row]
    assert captured[-1] == 2
    assert 9 not in captured


def test_transaction_in_memory_goes_to_the_folder_that_is_there_at_its_end(
    capture: Capture,
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER)")
    client = capture.client()
    early, other = client.attach(capture.database), client.attach(capture.database)
    assert _can_commit(other, 0)
    until("the journal to be confirmed", lambda: not capture.live())
    early.execute("INSERT INTO T VALUES (9)")
    _replace_folder(capture, other)
    early.commit()
    assert [row["ID"] for _, _, row in capture.last_rows() if row] == [9]


def test_log_names_the_missing_folder_not_a_file_in_it(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER)")
    attachment = capture.attach()
    assert _can_commit(attachment, 0)
    until("the journal to be confirmed", lambda: not capture.live())
    capture.journal_directory.rename(capture.journal_directory.with_name("elsewhere"))
    words = f"{capture.journal_directory} was removed or replaced while the server runs"
    until("it to be noticed", lambda: words in capture.log.read_text())
    until("capture to go on", lambda: _can_commit(attachment, 1))
    assert "tickets was" not in capture.log.read_text()
