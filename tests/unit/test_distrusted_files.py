"""Journals of which a sync fails: what is published of them is on disk, or says that it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from losing_disk import LosingDisk, once
from played_server import (
    PlayedServer,
    add_changes,
    damage_event,
    look,
    opened,
    shorten_pauses,
)

from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.commit_entries import CommitEntry, write_entry
from firebird_cdc.journal.folder.disposal import dispose_shipped
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import (
    DdlChange,
    Gap,
    JournalWriter,
    OwnJournalWriter,
    TableChange,
    alone,
    open_any,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.quarantine import Quarantine


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JournalFolder]:
    folder = JournalFolder(tmp_path / "journals", writes=False)
    yield folder
    folder.close()


@pytest.fixture
def disk(folder: JournalFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[LosingDisk]:
    with monkeypatch.context() as patch:
        yield LosingDisk(folder.path.parent, patch)


def _leave(folder: JournalFolder, *, is_unsynced: bool) -> UUID:
    """Leave the committed journal of a process that has ended; nobody asks about transaction 0."""
    uuid = uuid4()
    ticket = folder.last_ticket + 1
    folder.page.fields.ticket = ticket
    header = FileHeader(uuid, uuid4(), UUID(int=0), 0, boot_uuid(), now_us(), 0, True, "")
    with OwnJournalWriter(folder.live(uuid), header) as writer:
        writer.flush()  # a block of its own for what comes
        writer.gap("it")
        writer.seal()
        with suppress(OSError):
            writer.sync()
    entry = CommitEntry(
        ticket, uuid, uuid, FILE_BLOCK, writer.length, writer.seal_end, 0, 1, 0, 1,
        4 * is_unsynced,
    )  # fmt: skip
    write_entry(folder.commits_fd, entry)
    return uuid


def _confirm(folder: JournalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    confirmer = Confirmer(None, folder, fsync=True, pause=lambda _: False)
    look(confirmer, times=5)
    confirmer.let_go()


def _reason(path: Path) -> str:
    with alone(open_any(path)) as reader:
        [gap] = reader.changes()
        assert isinstance(gap, Gap)
        return gap.reason


def test_unsynced_journal_of_a_killed_process_is_synced_before_publication(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch, disk: LosingDisk
) -> None:
    disk.fails = lambda path: path.suffix == ".live"
    uuid = _leave(folder, is_unsynced=True)
    assert disk.failed
    disk.fails = lambda _: False
    _confirm(folder, monkeypatch)
    disk.cut()
    _confirm(JournalFolder(folder.path, writes=False), monkeypatch)  # it may lack its name
    assert _reason(folder.committed(uuid)) == "it"


def test_unsynced_journal_not_readable_back_becomes_a_gap(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = _leave(folder, is_unsynced=True)
    damage_event(folder.live(uuid))
    _confirm(folder, monkeypatch)
    assert "can't be read back" in _reason(folder.committed(uuid))


def test_catalogue_is_written_again_where_the_process_that_could_not_sync_it_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PlayedServer(tmp_path)
    server.create_database()
    uuid = server.commit_elsewhere(0, uuid4(), "ALTER TABLE T ADD N INTEGER")
    changes = (TableChange("ALTER", "T", None),)
    with monkeypatch.context() as patch:
        disk = LosingDisk(tmp_path, patch)
        live = server.folder.live(uuid)
        add_changes(live, uuid, changes)
        with live.open("rb") as file:
            disk.fail(file.fileno())
        _confirm(server.folder, monkeypatch)
        disk.cut()
    with opened(server.folder, uuid) as reader:
        [change] = reader.changes()
    assert isinstance(change, DdlChange)
    assert change.table_changes == changes


def test_only_an_unsynced_journal_is_copied(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked, other = (_leave(folder, is_unsynced=each) for each in (True, False))
    inodes = {uuid: folder.live(uuid).stat().st_ino for uuid in (marked, other)}
    _confirm(folder, monkeypatch)
    copied = [uuid for uuid in inodes if folder.committed(uuid).stat().st_ino != inodes[uuid]]
    assert copied == [marked]


def test_a_copy_that_lacks_its_end_does_not_take_the_place(folder: JournalFolder) -> None:
    uuid = _leave(folder, is_unsynced=True)
    content = folder.live(uuid).read_bytes()
    with pytest.raises(JournalError, match="it has to be whole"):
        folder.copy_anew(uuid, len(content) + 1)
    assert folder.live(uuid).read_bytes() == content
    assert not list(folder.state.glob("copy-*"))


Keep = Callable[[JournalFolder, Path], Path]


def _archive(folder: JournalFolder, journal: Path) -> Path:
    archive = folder.path.parent / "archive"
    dispose_shipped([journal], archive)
    return archive / journal.name


def _set_aside(folder: JournalFolder, journal: Path) -> Path:
    quarantine = Quarantine(folder.path)
    entry = Entry(0, 1, UUID(journal.stem))
    quarantine.set_aside(journal, entry, None, "it can't be read to its end")
    return quarantine.folder / journal.name


def _set_aside_unread(folder: JournalFolder, journal: Path) -> Path:
    quarantine = Quarantine(folder.path)
    quarantine.set_aside(journal, None, None, "it can't be read")
    return quarantine.folder / journal.name


def _shipped(folder: JournalFolder) -> tuple[Path, bytes]:
    """Return a journal that has its number, and what it was without that."""
    uuid = uuid4()
    journal = folder.committed(uuid)
    with JournalWriter(journal, uuid=uuid) as writer:
        writer.flush()
        writer.gap("it")
        writer.seal()
        writer.commit(1, 1)
        before = journal.read_bytes()
        writer.stamp(1)
    return journal, before


@pytest.mark.parametrize("keep", [_archive, _set_aside])
@pytest.mark.parametrize("failures", [1, 3])
def test_kept_copy_of_a_shipped_journal_is_synced(
    folder: JournalFolder, disk: LosingDisk, keep: Keep, failures: int
) -> None:
    journal, _ = _shipped(folder)
    content = journal.read_bytes()
    left = [failures]

    def fails(path: Path) -> bool:
        is_meant = path.name in (journal.name, f".{journal.name}.part")
        left[0] -= is_meant
        return is_meant and left[0] >= 0

    disk.fails = fails
    for _ in range(failures):
        try:
            kept = keep(folder, journal)
            break
        except OSError:
            assert journal.exists()
    else:
        kept = keep(folder, journal)
    assert disk.failed
    disk.cut()
    assert kept.read_bytes() == content


@pytest.mark.parametrize("keep", [_archive, _set_aside])
def test_journal_without_its_stamp_after_a_failed_sync_is_not_moved(
    folder: JournalFolder, disk: LosingDisk, keep: Keep
) -> None:
    journal, on_disk = _shipped(folder)
    whole = journal.read_bytes()
    is_meant = once(journal.name)

    def fails(path: Path) -> bool:
        found = is_meant(path)
        if found:
            journal.write_bytes(on_disk)  # memory is short, and it is read again
        return found

    disk.fails = fails
    for _ in range(2):
        with pytest.raises(OSError, match="its stamp is gone") as caught:
            keep(folder, journal)
        assert caught.value.filename == str(journal)
        assert journal.read_bytes() == on_disk
    journal.write_bytes(whole)  # the ledger had its stamp
    assert keep(folder, journal).read_bytes() == whole


def test_unreadable_journal_is_quarantined_as_a_copy(
    folder: JournalFolder, disk: LosingDisk
) -> None:
    journal = folder.committed(uuid4())
    journal.write_bytes(b"it" * 3000)
    disk.fails = once(journal.name)
    kept = _set_aside_unread(folder, journal)
    assert disk.failed
    assert kept.read_bytes() == b"it" * 3000
    assert not journal.exists()


def test_a_gap_is_written_again_after_a_failed_sync(
    folder: JournalFolder, monkeypatch: pytest.MonkeyPatch, disk: LosingDisk
) -> None:
    uuid = _leave(folder, is_unsynced=True)
    damage_event(folder.live(uuid))
    disk.fails = once("gap-")
    _confirm(folder, monkeypatch)
    assert disk.failed
    disk.cut()
    _confirm(JournalFolder(folder.path, writes=False), monkeypatch)
    assert "can't be read back" in _reason(folder.committed(uuid))
