"""The page of the tickets where version 0.1 finds none, and back."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from uuid import uuid4

import pytest

from firebird_cdc.cli import main
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry, read_records
from firebird_cdc.journal.format import SharedJournalWriter, Stamp, TransactionWriter

DATABASE = "/data/shop.fdb"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journals"


def _state(path: Path) -> Path:
    return path / ".firebird-cdc"


def _of_former_version(path: Path, last_ticket: int) -> Path:
    """Make a folder as version 0.1 left it; return the file of its page."""
    _work(path, last_ticket)
    tickets = _state(path) / "tickets"
    content = (tickets / "page").read_bytes()
    for each in tickets.iterdir():
        each.unlink()
    tickets.rmdir()
    tickets.write_bytes(content)
    return tickets


def _work(path: Path, last_ticket: int | None = None) -> int:
    """Work in a folder as a server does; return the last ticket, or set it."""
    folder = JournalFolder(path)
    if last_ticket is not None:
        folder.page.fields.ticket = last_ticket
    found = folder.last_ticket
    folder.close()
    return found


def test_server_goes_on_with_the_counter_of_version_0_1_and_keeps_that_out(path: Path) -> None:
    tickets = _of_former_version(path, 41)
    assert _work(path) == 41
    with pytest.raises(IsADirectoryError):
        os.open(tickets, os.O_RDWR | os.O_CREAT)  # as version 0.1 does
    assert "version 0.1" in (tickets / "README").read_text()


def test_shipper_leaves_the_page_to_a_server_of_version_0_1(path: Path) -> None:
    tickets = _of_former_version(path, 41)
    folder = JournalFolder(path, writes=False)
    assert folder.last_ticket == 41
    assert tickets.is_file()
    assert _work(path) == 41
    assert folder.has_tickets()  # the same page, at another place
    folder.close()


def test_server_of_version_0_1_that_lives_is_named_and_not_disturbed(path: Path) -> None:
    tickets = _of_former_version(path, 41)
    mark = _state(path) / "owners" / str(uuid4())
    mark.write_text("1:2 4711 3 boot\n")
    with mark.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CaptureError, match=r"process 4711.*end those server processes"):
            JournalFolder(path)
    assert tickets.is_file()
    assert _work(path) == 41


@pytest.mark.parametrize("is_moved", [False, True])
def test_move_that_was_cut_off_is_completed(path: Path, is_moved: bool) -> None:
    tickets = _of_former_version(path, 41)
    new = _state(path) / "tickets-new"
    new.mkdir()
    if is_moved:
        tickets.rename(new / "page")
    assert _work(path) == 41
    assert (tickets / "page").exists()
    assert not new.exists()


def _config(path: Path, tmp_path: Path) -> str:
    config = tmp_path / "connector.yaml"
    config.write_text(
        f"connector.name: test\nconnector.journal.directory: {path}\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nkafka.topic.prefix: test\n"
    )
    return str(config)


def test_downgrade_waits_for_shared_journals_and_then_gives_the_folder_back(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _work(path, 41)
    journal = path / f"{uuid4()}.log"
    with SharedJournalWriter.create(journal, database=DATABASE) as writer:
        written = TransactionWriter(writer.header, 7, "SYSDBA")
        written.gap("it")
        written.seal()
        writer.append(written)
        place = writer.commit(written, 1, ticket=41, commit_us=1)
        writer.close()
    folder = JournalFolder(path, writes=False)
    ledger = SequenceLedger(folder, database_key(DATABASE), True, lambda: None, DATABASE)
    with ledger.exclusive():
        stamp = Stamp(0, 1, 1, 1, place.stamp.journal_length, 1, 7, 0)
        home = writer.header.uuid
        ledger.record([LedgerEntry(place.uuid, stamp, home, place.offset, 41, place.seal_end)], 1)
    ledger.close()
    folder.close()
    command = ["journal", "downgrade", "--config", _config(path, tmp_path)]

    assert main(command) != 0
    said = capsys.readouterr().err
    assert f"1 journal in {path} may be readable by this version alone ({journal.name})" in said
    assert (_state(path) / "tickets").is_dir()

    journal.unlink()
    assert main(command) == 0
    assert (_state(path) / "tickets").is_file()
    [records] = (_state(path) / "databases").glob("*.ledger")
    found = list(read_records(records.read_bytes()))
    assert [record.last for record in found] == [1]
    assert not any(record.given for record in found)
    assert main(command) == 0
    assert _work(path) == 41


def test_downgrade_beside_a_server_changes_nothing(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = JournalFolder(path)
    assert main(["journal", "downgrade", "--config", _config(path, tmp_path)]) != 0
    assert f"a server captures into {path} (process {os.getpid()})" in capsys.readouterr().err
    assert (_state(path) / "tickets").is_dir()
    folder.close()
