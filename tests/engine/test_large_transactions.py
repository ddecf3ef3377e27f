"""Transactions that are far larger than what the plugin keeps in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture import Attachment, Capture, Client
from shared_folder import open_transaction

from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.journal.format import RowChange

pytestmark = pytest.mark.engine

_MEMORY_KIB = 64 * 1024
_TABLE = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(30), N BIGINT)"


def _insert(attachment: Attachment, first: int, count: int) -> None:
    attachment.immediate(
        f"""EXECUTE BLOCK AS DECLARE I INTEGER = {first};
        BEGIN
            WHILE (I < {first + count}) DO
            BEGIN
                INSERT INTO T VALUES (:I, 'row number ' || :I, :I * 1000);
                I = I + 1;
            END
        END"""
    )


def _fill(client: Client, database: Path) -> Attachment:
    """Insert rows 0..299999, and in between some that are taken back."""
    attachment = client.attach(database)
    for first in range(0, 300_000, 100_000):
        _insert(attachment, first, 50_000)
        attachment.immediate("SAVEPOINT S")
        _insert(attachment, 1_000_000, 10_000)
        attachment.immediate("ROLLBACK TO SAVEPOINT S")
        _insert(attachment, first + 50_000, 50_000)
    return attachment


def _peak_of_bare_engine(capture: Capture, directory: Path) -> int:
    bare = EmbeddedRoot(directory / "bare", {"ServerMode": "Super"})
    environment = capture.stack.environment(bare.environment())
    client = Client(bare.client_library, environment, directory / "bare.log")
    client.attach(directory / "bare.fdb", create=True).script(_TABLE)
    _fill(client, directory / "bare.fdb").commit()
    peak = client.memory_peak_kib()
    client.end()
    return peak


@pytest.mark.plain
def test_300_000_rows_with_savepoints_rolled_back_need_little_memory(
    capture: Capture, tmp_path: Path
) -> None:
    capture.create(_TABLE)
    client = capture.client()
    attachment = _fill(client, capture.database)
    assert len(capture.live()) == 1
    assert capture.live()[0].stat().st_size > 10_000_000
    assert not capture.committed()
    attachment.commit()
    peak = client.memory_peak_kib()
    capture.end_clients()
    assert not capture.live()
    [journal] = capture.committed()
    with open_transaction(journal) as reader:
        found = [
            change.after[0]
            for change in reader.changes()
            if isinstance(change, RowChange) and change.after
        ]
        assert reader.stamp is not None
        assert reader.stamp.event_count == 300_000
    assert found == list(range(300_000))
    assert peak - _peak_of_bare_engine(capture, tmp_path) < _MEMORY_KIB


def test_a_large_transaction_rolled_back_leaves_no_file(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    _insert(attachment, 0, 50_000)
    assert capture.live()[0].stat().st_size > 1_000_000
    attachment.rollback()
    assert not capture.live()
    assert not capture.committed()


def _insert_blob(attachment: Attachment, number: int, pieces: int) -> None:
    """Have the engine itself make a BLOB of so many pieces of 32 KiB."""
    attachment.immediate(
        f"""EXECUTE BLOCK AS DECLARE I INTEGER = 0; DECLARE B BLOB = '';
        BEGIN
            WHILE (I < {pieces}) DO
            BEGIN
                B = BLOB_APPEND(B, LPAD('', 32000, 'content'), LPAD('', 768, 'x'));
                I = I + 1;
            END
            INSERT INTO T VALUES ({number}, :B);
        END"""
    )
    attachment.execute("INSERT INTO U SELECT * FROM T WHERE ID = ?", number)
    attachment.commit()


@pytest.mark.plain
def test_a_blob_of_100_mib_needs_no_more_memory_than_one_of_16(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER, B BLOB)", "CREATE TABLE U (ID INTEGER, B BLOB)")
    client = capture.client()
    attachment = client.attach(capture.database, charset="NONE")
    _insert_blob(attachment, 1, 512)  # as much as the engine's page cache holds
    before = client.memory_peak_kib()
    _insert_blob(attachment, 2, 3200)
    assert client.memory_peak_kib() - before < 4 * 1024
    capture.end_clients()
    lengths = []
    for path in capture.committed():
        with open_transaction(path) as reader:
            for change in reader.changes():
                assert isinstance(change, RowChange) and change.after
                assert change.after[1].available
                lengths.append(change.after[1].length // 32768)
    assert sorted(lengths) == [512, 512, 3200, 3200]
