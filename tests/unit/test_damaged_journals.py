"""Journals with a damaged byte that are committed: they are published, for the shipper to set
aside, and hold up nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import logbook
import pytest
from played_server import (
    PlayedServer,
    damage_event,
    look,
    opened,
    shorten_pauses,
    stamp_of,
    work_until,
    work_until_committed,
)

from firebird_cdc.bridge.confirm import closing
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.folder import journal_folder
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import (
    Gap,
    JournalReader,
    SharedJournalWriter,
    TransactionWriter,
    own_reader,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader
from firebird_cdc.journal.shipper.quarantine import journals_in


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    shorten_pauses(monkeypatch)
    return PlayedServer(tmp_path)


def _commit(server: PlayedServer, is_unresolved: bool, ddl: str = "") -> UUID:
    uuid = server.commit(0, ddl=ddl)
    server.events[-1] = server.events[-1]._replace(is_unresolved=is_unresolved)  # type: ignore[call-arg]
    return uuid


@pytest.mark.parametrize("ddl", ["", "ALTER TABLE it ADD N INTEGER"])
@pytest.mark.parametrize("is_unresolved", [False, True])
def test_a_damaged_journal_is_published_and_holds_up_nothing(
    server: PlayedServer, is_unresolved: bool, ddl: str
) -> None:
    confirmer = Confirmer(server, server.folder, fsync=True)
    damaged = _commit(server, is_unresolved, ddl)
    damage_event(server.folder.live(damaged))
    later = _commit(server, is_unresolved)
    with logbook.TestHandler() as log:
        work_until_committed(confirmer, server.folder, later)
    assert [stamp_of(server.folder, uuid).sequence for uuid in (damaged, later)] == [1, 2]
    with opened(server.folder, damaged) as reader, pytest.raises(JournalCorrupt):
        list(reader.changes())
    told = [record for record in log.records if record.level >= logbook.WARNING]
    if is_unresolved or ddl:
        assert {record.kwargs["journal"] for record in told} == {damaged}
        assert all(str(damaged) in record.message for record in told)


def _flip(path: Path, at: int) -> bytes:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    return bytes(content)


def test_a_damaged_seal_leaves_a_gap_and_the_journal_in_the_quarantine(
    server: PlayedServer,
) -> None:
    server.create_database()
    server.set_state(12, 3)
    damaged = server.commit_elsewhere(12, uuid4())
    live = server.folder.live(damaged)
    content = _flip(live, _seal_at(live, damaged) + 20)
    confirmer = Confirmer(server, server.folder, fsync=True)
    work_until_committed(confirmer, server.folder, damaged)
    with opened(server.folder, damaged) as reader:
        [gap] = reader.changes()
    [kept] = journals_in(server.folder.quarantine)
    assert isinstance(gap, Gap)
    assert "damaged" in gap.reason
    assert str(kept) in gap.reason
    assert (server.folder.quarantine / f"{kept}.log").read_bytes() == content
    assert str(damaged) in (server.folder.quarantine / f"{kept}.reason").read_text("utf-8")


def test_a_page_that_cannot_be_read_leaves_a_gap_and_holds_up_nothing(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_database()
    server.set_state(12, 3)
    uuid = server.commit_elsewhere(12, uuid4(), has_ticket=False)  # from limbo
    _ends_too_early(server.folder.live(uuid), uuid)

    def fails(reader: JournalReader) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(reader.path))

    monkeypatch.setattr(JournalReader, "changes", fails)
    confirmer = Confirmer(server, server.folder, fsync=True)
    work_until_committed(confirmer, server.folder, uuid)
    assert len(journals_in(server.folder.quarantine)) == 1


def _seal_at(path: Path, uuid: UUID) -> int:
    with own_reader(path, uuid) as reader:
        *_, seal_at = reader.block_offsets()
    return FILE_BLOCK + seal_at


def _ends_too_early(path: Path, uuid: UUID) -> None:
    os.truncate(path, _seal_at(path, uuid))


def test_journal_with_missing_content_leaves_only_a_gap(server: PlayedServer) -> None:
    server.create_database()
    server.set_state(12, 3)
    uuid = server.commit_elsewhere(12, uuid4(), has_ticket=False)  # from limbo
    _ends_too_early(server.folder.live(uuid), uuid)
    confirmer = Confirmer(server, server.folder, fsync=True)
    work_until_committed(confirmer, server.folder, uuid)
    with opened(server.folder, uuid) as reader:
        [gap] = reader.changes()
    assert isinstance(gap, Gap)
    assert not list(server.folder.quarantine.iterdir())


def test_failed_sync_during_a_quarantine_does_not_block_publishing(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.turn()
    server.set_state(12, 3)
    real, failed = journal_folder.sync_directory, []

    def fails_once(directory: Path) -> None:
        if directory == server.folder.path and not failed:
            failed.append(directory)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(directory))
        real(directory)

    monkeypatch.setattr(journal_folder, "sync_directory", fails_once)
    strange = server.commit(2000)  # the database knows of no such transaction
    later = server.commit(12)
    work_until_committed(confirmer, server.folder, later)
    assert failed
    assert journals_in(server.folder.quarantine) == [strange]


def test_journal_removed_before_its_quarantine_does_not_block_publishing(
    server: PlayedServer,
) -> None:
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=True)
    confirmer.turn()
    server.set_state(12, 3)
    strange, later = server.commit(2000), server.commit(12)
    server.folder.live(strange).unlink()
    with logbook.TestHandler() as log:
        work_until_committed(confirmer, server.folder, later)
    assert any("was removed by somebody" in each.message for each in log.records)


def _damage_head(path: Path) -> bytes:
    return _flip(path, FILE_BLOCK + 40)


def test_damaged_head_of_a_committed_transaction_leaves_a_gap_and_is_kept(
    server: PlayedServer,
) -> None:
    server.create_database()
    server.set_state(12, 3)
    uuid = server.commit_elsewhere(12, uuid4())
    content = _damage_head(server.folder.live(uuid))
    work_until_committed(Confirmer(server, server.folder, fsync=True), server.folder, uuid)
    with opened(server.folder, uuid) as reader:
        [gap] = reader.changes()
    assert isinstance(gap, Gap)
    [kept] = journals_in(server.folder.quarantine)
    assert (server.folder.quarantine / f"{kept}.log").read_bytes() == content


def test_damaged_head_of_a_transaction_without_a_ticket_is_kept(server: PlayedServer) -> None:
    server.create_database()
    server.set_state(12, 3)
    uuid = server.commit_elsewhere(12, uuid4(), has_ticket=False)
    content = _damage_head(server.folder.live(uuid))
    confirmer = Confirmer(server, server.folder, fsync=True)
    work_until(confirmer, lambda: bool(journals_in(server.folder.quarantine)))
    assert (server.folder.quarantine / f"{uuid}.log").read_bytes() == content
    assert not server.folder.has_live(uuid)


@pytest.mark.parametrize("lost", [FILE_BLOCK, 10])
def test_lost_beginning_of_a_journal_that_has_a_transaction_removes_nothing(
    server: PlayedServer, lost: int
) -> None:
    """Of one that others share, so that nobody knows what to make of it."""
    owner = uuid4()
    server.folder.owners.mark(owner).touch()
    header = FileHeader(uuid4(), owner, UUID(int=7), 0, uuid4(), now_us(), 0, False, "/a.fdb")
    live = server.folder.live(header.uuid)
    with SharedJournalWriter(live, header) as journal:
        written = TransactionWriter(header, 12, "u")
        written.gap("it")
        written.seal(floor=0)
        journal.append(written)
    with live.open("r+b") as file:
        file.write(bytes(lost))
    content = live.read_bytes()
    folder = JournalFolder(server.folder.path, writes=False)
    server.folder.owners.mark(server.folder.owner).unlink()  # nobody lives
    confirmer = Confirmer(None, folder, fsync=True, pause=lambda _: False)
    for _ in range(5):
        confirmer._scan.is_wanted = True
        confirmer.turn()
    kept = [live, *server.folder.quarantine.glob("*.log")]
    assert content in [path.read_bytes() for path in kept if path.exists()]


def test_index_of_a_quarantine_that_failed_gives_no_number(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_database()
    strange = server.commit_elsewhere(2000, uuid4())  # the database knows of no such transaction
    real, fails = JournalFolder.set_aside, [True]

    def set_aside(folder: JournalFolder, *given: Any) -> None:
        if fails[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(folder, *given)

    monkeypatch.setattr(JournalFolder, "set_aside", set_aside)
    monkeypatch.setattr(closing, "_LOOK_S", 0.0)
    confirmer = Confirmer(server, server.folder, fsync=True)
    look(confirmer, times=10)
    assert not list(server.folder.path.glob("*.log"))
    fails[0] = False
    confirmer._scan.is_wanted = True
    work_until(confirmer, lambda: journals_in(server.folder.quarantine) == [strange])
