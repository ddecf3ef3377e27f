"""Many databases in one server process, which has few descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections import Counter
from pathlib import Path

import pytest
from capture import Attachment, Capture, Client, after, read_journal, until

from firebird_cdc.journal.folder.ledger_lock import read_database

pytestmark = [pytest.mark.engine, pytest.mark.plain]

_MOST = 100  # descriptors of the process
_DATABASES = 60  # one descriptor of each would be too many
_TABLE = (
    "CREATE TABLE T (ID INTEGER PRIMARY KEY)",
    "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
    "ALTER DATABASE ENABLE PUBLICATION",
)


@pytest.fixture
def client(capture: Capture) -> Client:
    """A process with few descriptors, in which somebody works in one database all the time."""
    capture.create(*_TABLE, publish=False)
    client = capture.client()
    resource.prlimit(client.pid, resource.RLIMIT_NOFILE, (_MOST, _MOST))
    stays = client.attach(capture.database)
    _insert(stays, 0)
    return client


def _insert(attachment: Attachment, value: int) -> None:
    attachment.execute("INSERT INTO T VALUES (?)", value)
    attachment.commit()


def _ours(client: Client, capture: Capture) -> int:
    """Return how many descriptors of the process lead to journals, to our files of databases, or
    to databases that were dropped or left."""
    found = 0
    for fd in Path(f"/proc/{client.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = str(fd.readlink())
            ours = (".firebird-cdc/databases/", "/many", ".log.live")
            found += any(part in target for part in ours)
    return found


def _assert_all_captured(capture: Capture, databases: list[Path]) -> None:
    """Assert that the row of each database is in one journal, and that nothing else was lost."""
    capture.end_clients()
    assert not capture.live()
    assert not list((capture.journal_directory / ".firebird-cdc/quarantine").iterdir())
    rows = Counter(
        (journal.database, (after(change) or {})["ID"])
        for journal in map(read_journal, capture.committed())
        for change in journal.rows
        if journal.database != str(capture.database)
    )
    assert rows == Counter((str(path), number) for number, path in enumerate(databases, 1))


def test_databases_that_are_created_and_dropped_take_no_descriptors(
    capture: Capture, client: Client
) -> None:
    databases = [capture.directory / f"many{number}.fdb" for number in range(_DATABASES)]
    most = 0
    for number, path in enumerate(databases, 1):
        attachment = client.attach(path, create=True)
        attachment.script(*_TABLE)
        _insert(attachment, number)
        attachment.drop_database()
        most = max(most, _ours(client, capture))
    assert most < _MOST / 2
    _assert_all_captured(capture, databases)


def test_databases_that_are_opened_in_turn_take_no_descriptors(
    capture: Capture, client: Client
) -> None:
    template = capture.directory / "template.fdb"
    client.attach(template, create=True).script(*_TABLE)
    databases = [capture.directory / f"many{number}.fdb" for number in range(_DATABASES)]
    most = 0
    for number, path in enumerate(databases, 1):
        shutil.copy(template, path)
        attachment = client.attach(path)
        _insert(attachment, number)
        attachment.close()
        most = max(most, _ours(client, capture))
    assert most < _MOST / 2
    _assert_all_captured(capture, databases)


def test_processes_that_live_for_a_moment_notice_a_dropped_database(classic: Capture) -> None:
    """Under Classic each connection has one of its own."""
    classic.create(*_TABLE, publish=False)
    dropped = classic.directory / "many.fdb"
    attachment = classic.client().attach(dropped, create=True)
    attachment.script(*_TABLE)
    _insert(attachment, 1)
    attachment.drop_database()
    classic.end_clients()
    databases = classic.journal_directory / ".firebird-cdc/databases"
    [lock] = (lock for lock in databases.glob("*.lock") if read_database(lock).path == str(dropped))
    os.utime(databases / "looked", (0, 0))  # longer ago than all that is waited for
    _insert(classic.client().attach(classic.database), 1)
    until("it is noted that the file is gone", lambda: read_database(lock).gone_since)
