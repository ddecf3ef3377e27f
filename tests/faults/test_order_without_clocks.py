"""Rows that several transactions changed one after the other, before a crash that took the marks of
their commits and under a clock that was set back: published in the order of each row's history."""

from __future__ import annotations

import struct
from uuid import UUID

import google_crc32c
import pytest
from capture import Attachment, Capture, SqlError, fold, until
from harness import HERE
from shared_folder import ledger_entries

from firebird_cdc.journal.folder.commit_entries import read_entries
from firebird_cdc.journal.format import BLOCK_HEADER

pytestmark = pytest.mark.engine

_POINTS = HERE / "points.py"
_HOUR_US = 3_600_000_000
_ENTRY = 128  # bytes of the entry of a commit
_SEAL = BLOCK_HEADER + 64  # of a transaction that shares its journal


def _stalled(capture: Capture) -> tuple[Attachment, Attachment]:
    """Return two connections to a server that publishes nothing from now on."""
    client = capture.client()
    one, two = client.attach(capture.database), client.attach(capture.database)
    one.execute("UPDATE OR INSERT INTO T VALUES (1, 0)")
    one.commit()
    until("the first journal", capture.committed)
    client.perform(_POINTS, "stall", "number.before")
    two.execute("INSERT INTO T VALUES (2, 0)")  # this one is where it stalls
    two.commit()
    return one, two


def _crash(capture: Capture, marked: int = -1) -> None:
    """Kill the server, set the clock back by an hour before each of its seals, and take what says
    the ticket of each transaction that it did not publish but the MARKED-th, from 0."""
    capture.clients.pop().kill()
    commits = capture.journal_directory / ".firebird-cdc/commits"
    with commits.open("r+b") as file:
        given = {entry.uuid for entry in ledger_entries(capture.journal_directory)}
        entries = [each for each in read_entries(file.fileno(), 1) if each.uuid not in given]
        for number, entry in enumerate(entries):
            with (capture.journal_directory / f"{entry.journal}.log.live").open("r+b") as journal:
                content = bytearray(journal.read())
                at = entry.offset + entry.seal_end - _SEAL
                (sealed_us,) = struct.unpack_from("<q", content, at + BLOCK_HEADER + 24)
                back_us = sealed_us - number * _HOUR_US
                struct.pack_into("<q", content, at + BLOCK_HEADER + 24, back_us)
                crc = _close_block(content, at, entry.uuid)
                if entry.catalogue_offset:  # which continues the seal
                    at = entry.offset + entry.catalogue_offset
                    struct.pack_into("<I", content, at + 24, crc)
                    _close_block(content, at, entry.uuid)
                journal.seek(0)
                journal.write(content)
            if number != marked:
                file.seek(entry.ticket * _ENTRY)
                file.write(bytes(_ENTRY))


def _close_block(content: bytearray, at: int, uuid: UUID) -> int:
    """Write the checksum of the block at AT of a journal, and return it."""
    (length,) = struct.unpack_from("<I", content, at + 4)
    covered = content[at : at + 36] + content[at + BLOCK_HEADER :][:length]
    crc = int(google_crc32c.value(uuid.bytes + covered))
    struct.pack_into("<I", content, at + 36, crc)
    return crc


def _values(capture: Capture) -> list[int]:
    """Return what row 1 was set to, in the order of the journals, after another commit."""
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (3, 0)")
    attachment.commit()
    rows = [row for journal in capture.journals() for _, _, row in journal.brief() if row]
    assert fold(capture.journals())["T"] == attachment.rows("T")
    return [row["N"] for row in rows if row["ID"] == 1 and "N" in row]


@pytest.fixture(params=["own", "shared"], autouse=True)
def journals(capture: Capture, request: pytest.FixtureRequest) -> None:
    """Have each transaction in a journal of its own, or let them share one."""
    capture.options["connector.journal.transactions"] = "0" if request.param == "shared" else "1"
    capture.write_config()


@pytest.mark.parametrize("marked", [-1, 1, 2, 3])
def test_changes_of_a_row_by_several_transactions_keep_their_order(
    capture: Capture, marked: int
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)")
    one, two = _stalled(capture)
    for number, attachment in ((1, one), (2, two), (3, one)):
        attachment.execute("UPDATE T SET N = ? WHERE ID = 1", number)
        attachment.commit()
    _crash(capture, marked)
    assert _values(capture) == [0, 1, 2, 3]


def test_a_row_that_was_taken_over_after_a_commit_had_failed(capture: Capture) -> None:
    """Order by the seal of the prepare that was followed by a commit, not by the first seal."""
    capture.create(
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)",
        "CREATE TABLE TWICE (ID INTEGER NOT NULL)",
    )
    client = capture.client()
    attachment = client.attach(capture.database)
    for _ in range(2):
        attachment.execute("INSERT INTO TWICE VALUES (1)")
    attachment.commit()
    attachment.close()
    client.end()
    capture.clients.remove(client)
    one, two = _stalled(capture)
    one.begin("READ_COMMITTED_RECORD_VERSION")
    one.execute("INSERT INTO T VALUES (4, 0)")
    one.immediate("CREATE UNIQUE INDEX TWICE_X ON TWICE (ID)")
    with pytest.raises(SqlError, match="duplicate"):
        one.commit()
    two.execute("UPDATE T SET N = 1 WHERE ID = 1")
    two.commit()
    one.execute("UPDATE T SET N = 2 WHERE ID = 1")
    one.execute("DELETE FROM TWICE ROWS 1")
    one.commit()
    _crash(capture)
    assert _values(capture) == [0, 1, 2]
