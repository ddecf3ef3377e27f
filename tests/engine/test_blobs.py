"""BLOBs: every size and kind, changed and left alone, against what the driver reads."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from capture import Attachment, Capture, SqlError
from exact import net, read

pytestmark = pytest.mark.engine

KIB = 1024
# Around the engine's segments and pages, and around what the plugin reads at a time.
SIZES = sorted(
    edge + off
    for edge in (1, 8 * KIB, 32 * KIB, 60 * KIB, 64 * KIB, 120 * KIB, 1024 * KIB)
    for off in (-1, 0, 1)
)


@pytest.fixture
def blobs(capture: Capture) -> Capture:
    capture.create(
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER, B BLOB SUB_TYPE BINARY,"
        " C BLOB SUB_TYPE TEXT CHARACTER SET UTF8, W BLOB SUB_TYPE TEXT CHARACTER SET WIN1251)"
    )
    return capture


def _adds_up(capture: Capture, attachment: Attachment) -> bool:
    """Say whether T is what the journals make of it; texts of such length are not for assert."""
    return net(capture.journals()) == read(attachment)


@pytest.mark.parametrize("segment", [0, 1000, 65535], ids=["stream", "small", "large"])
def test_blobs_of_sizes_around_every_edge_are_captured_whole(blobs: Capture, segment: int) -> None:
    attachment = blobs.attach()
    blobs.clients[0].perform(Path(__file__).with_name("segments.py"), "limit", segment or 65535)
    pattern = bytes(range(251)) * (SIZES[-1] // 251 + 1)
    for number, size in enumerate(SIZES):
        content = pattern[:size]
        # The driver makes a stream of a file, and segments of bytes.
        value = content if segment else BytesIO(content)
        attachment.execute("INSERT INTO T (ID, B) VALUES (?, ?)", number, value)
    attachment.commit()
    [journal] = blobs.journals()
    found = [change.after[2] for change in journal.rows if change.after]
    assert [blob.length for blob in found] == SIZES  # type: ignore[union-attr]
    assert [blob.read() for blob in found] == [pattern[:size] for size in SIZES]  # type: ignore[union-attr]
    assert _adds_up(blobs, attachment)


@pytest.mark.parametrize("client", ["UTF8", "WIN1251", "NONE"])
def test_long_texts_of_another_character_set_than_the_attachments(
    blobs: Capture, client: str
) -> None:
    # No piece of 60 KiB ends at the end of a character.
    text = "x" + "Жю я" * 40 * KIB
    attachment = blobs.client().attach(blobs.database, charset=client)
    if client == "NONE":
        attachment.execute("INSERT INTO T (ID, C) VALUES (1, ?)", text.encode())
        attachment.execute("INSERT INTO T (ID, W) VALUES (2, ?)", text.encode("cp1251"))
    else:
        attachment.execute("INSERT INTO T (ID, C) VALUES (1, ?)", text)
        attachment.execute("INSERT INTO T (ID, W) VALUES (2, ?)", text)
    attachment.commit()
    rows = [row for _, _, row in blobs.last_rows() if row]
    assert rows[0]["C"] == text or pytest.fail("the text in UTF8 differs")
    assert rows[1]["W"] == text or pytest.fail("the text in WIN1251 differs")


def test_written_read_copied_changed_and_deleted_in_one_transaction(blobs: Capture) -> None:
    attachment = blobs.attach()
    long = "Жук " * 50_000
    attachment.execute("INSERT INTO T VALUES (1, 0, ?, ?, ?)", b"\0\1", long, "Жук")
    [row] = attachment.execute("SELECT C FROM T")
    assert row["C"] == long
    attachment.execute("INSERT INTO T SELECT 2, N, B, C, W FROM T")
    attachment.execute("UPDATE T SET C = W, W = C WHERE ID = 2")
    attachment.execute("UPDATE T SET N = 1")
    attachment.execute("UPDATE T SET B = NULL, C = C || 'x' WHERE ID = 1")
    attachment.execute("UPDATE T SET C = '' WHERE ID = 2")
    attachment.execute("INSERT INTO T SELECT 3, N, W, C, NULL FROM T WHERE ID = 2")
    attachment.execute("DELETE FROM T WHERE ID = 2")
    attachment.commit()
    [journal] = blobs.journals()
    assert [op for op, _, _ in journal.brief()] == [*"ccuuu", *"uucd"]
    assert _adds_up(blobs, attachment)
    attachment.execute("UPDATE T SET B = C, C = NULL, W = ''")
    attachment.execute("INSERT INTO T SELECT ID + 10, N, B, C, W FROM T")
    attachment.commit()
    attachment.execute("DELETE FROM T WHERE ID < 10")
    attachment.commit()
    assert _adds_up(blobs, attachment)
    assert len(read(attachment)) == 2


def test_blobs_written_by_triggers_and_procedures_are_captured(blobs: Capture) -> None:
    attachment = blobs.attach()
    attachment.script(
        "CREATE TRIGGER B FOR T BEFORE INSERT OR UPDATE AS BEGIN NEW.C = NEW.C || '!'; END",
        "CREATE TRIGGER A FOR T AFTER INSERT AS BEGIN"
        " IF (NEW.ID < 100) THEN"
        " INSERT INTO T SELECT ID + 100, N, B, C, W FROM T WHERE ID = NEW.ID;"
        " END",
        "CREATE PROCEDURE P (X BLOB SUB_TYPE TEXT) AS DECLARE Y BLOB SUB_TYPE TEXT; BEGIN"
        " Y = BLOB_APPEND(:X, 'abc', 'def'); INSERT INTO T (ID, C) VALUES (7, :Y);"
        " UPDATE T SET C = BLOB_APPEND(C, 'ghi') WHERE ID = 7; END",
    )
    attachment.execute("INSERT INTO T VALUES (1, 0, x'00', ?, 'w')", "c" * 70_000)
    attachment.execute("EXECUTE PROCEDURE P(?)", "p" * 40_000)
    attachment.commit()
    assert _adds_up(blobs, attachment)
    assert len(read(attachment)) == 4


def test_blob_of_a_user_without_the_right_to_select_is_captured(blobs: Capture) -> None:
    blobs.attach().script("GRANT INSERT ON T TO USER WRITER")
    attachment = blobs.clients[0].attach(blobs.database, user="WRITER")
    attachment.execute("INSERT INTO T (ID, B) VALUES (1, ?)", b"secret" * 20_000)
    with pytest.raises(SqlError, match="no permission"):
        attachment.execute("SELECT B FROM T")
    attachment.commit()
    [(_, _, row)] = blobs.last_rows()
    assert row
    assert row["B"] == b"secret" * 20_000
    assert blobs.journals()[-1].user == "WRITER"
