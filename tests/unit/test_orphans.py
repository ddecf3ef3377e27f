"""Journals whose process is gone, while the database file calls their transactions active."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from played_server import (
    Attachment,
    PlayedServer,
    look,
    publish_as_before,
    stamp_of,
)

from firebird_cdc.bridge.confirm import orphans
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.bridge.confirm.orphans import Orphans
from firebird_cdc.bridge.confirm.pending import FoundProcess, Pending
from firebird_cdc.bridge.host import OwnAttachment
from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder import owners
from firebird_cdc.journal.folder.inventory import TransactionState
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import JournalReader, Stamp

_COMMITTED = 3
_STATES_AT = 4096 + 20


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    monkeypatch.setattr(orphans, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(orphans, "_APART_S", 0.0)  # each turn looks, where it needs several looks
    server = PlayedServer(tmp_path)
    server.create_database()
    return server


@contextmanager
def _open_as(path: Path, kind: int) -> Iterator[None]:
    """Have PATH open as an engine's process does."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, kind)
        yield
    finally:
        os.close(fd)


def _set_state(database: Path, transaction: int, state: int) -> None:
    with database.open("r+b") as file:
        file.seek(_STATES_AT + transaction // 4)
        (before,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([before & ~(3 << transaction % 4 * 2) | state << transaction % 4 * 2]))


def _set_oldest(database: Path, transaction: int) -> None:
    with database.open("r+b") as file:
        file.seek(28)
        file.write(struct.pack("<I", transaction))


def _work_until_decided(server: PlayedServer, confirmer: Confirmer, uuid: UUID) -> None:
    until = time.monotonic() + 60
    while server.folder.live(uuid).exists():
        assert time.monotonic() < until, "it is not decided"
        look(confirmer)


def _decided(server: PlayedServer, orphan: UUID) -> bool:
    """Have a process that begins now decide ORPHAN; tell whether it published it."""
    confirmer = Confirmer(server, server.folder, fsync=True)
    _work_until_decided(server, confirmer, orphan)
    confirmer.let_go()
    return server.folder.committed(orphan).exists()


def test_orphan_unknown_to_any_other_process_is_dead(server: PlayedServer) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    assert not _decided(server, orphan)


def test_orphan_below_the_oldest_interesting_transaction_is_committed(server: PlayedServer) -> None:
    """The header was on disk before the inventory page: the engine sees its rows for ever."""
    orphan = server.commit_elsewhere(7, owner=uuid4())
    _set_oldest(server.database_path, 8)
    assert _decided(server, orphan)


def test_orphan_that_is_the_oldest_interesting_transaction_is_dead(server: PlayedServer) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    _set_oldest(server.database_path, 7)
    assert not _decided(server, orphan)


def test_a_new_server_for_all_knows_no_more_than_the_file(server: PlayedServer) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    with _open_as(server.database_path, fcntl.LOCK_EX):
        assert not _decided(server, orphan)


def _end(server: PlayedServer) -> None:
    """Have the process that writes journals end; its mark stays."""
    os.close(server.folder._owner_fd)
    server.folder._owner_fd = -1


def _hold(server: PlayedServer, orphan: UUID) -> tuple[Confirmer, UUID]:
    """Work until ORPHAN is counted as undecided and another transaction has passed it."""
    confirmer = Confirmer(server, server.folder, fsync=True)
    other = server.commit(9)
    _set_state(server.database_path, 9, _COMMITTED)
    until = time.monotonic() + 60
    while not (server.folder.undecided and server.folder.committed(other).exists()):
        assert time.monotonic() < until, "others wait for it"
        confirmer.turn()
    return confirmer, other


def test_orphan_possibly_known_to_others_is_kept_counted_and_skipped(
    server: PlayedServer,
) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    with _open_as(server.database_path, fcntl.LOCK_SH):
        confirmer, _ = _hold(server, orphan)
        assert server.folder.live(orphan).exists()
        assert server.folder.undecided == 1
        assert server.attachments, "the engine was asked, so that it writes what it knows"
        assert all(each.is_closed for each in server.attachments)
    _work_until_decided(server, confirmer, orphan)
    assert not server.folder.committed(orphan).exists(), "nobody is left who knew it as committed"
    assert server.folder.undecided == 0


def test_kept_orphan_is_published_once_the_database_file_shows_its_commit(
    server: PlayedServer,
) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    with _open_as(server.database_path, fcntl.LOCK_SH):
        confirmer, other = _hold(server, orphan)
        _set_oldest(server.database_path, 8)
        _work_until_decided(server, confirmer, orphan)
    numbers = [stamp_of(server.folder, uuid).sequence for uuid in (other, orphan)]
    assert numbers == [1, 2]


def test_engine_answer_publishes_nothing_of_a_process_that_died_meanwhile(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file can't tell, as beside nbackup: the survivors may be wrong."""
    server.database_path.write_bytes(bytes(8192))
    owner = uuid4()
    mark = os.open(server.folder.owners.mark(owner), os.O_RDWR | os.O_CREAT)
    fcntl.flock(mark, fcntl.LOCK_EX)
    journal = server.commit_elsewhere(7, owner)
    is_alive = True

    def ask(_: Attachment, transactions: Sequence[int]) -> list[TransactionState]:
        nonlocal is_alive
        if is_alive:
            os.close(mark)
        is_alive = False
        return [TransactionState.COMMITTED] * len(transactions)

    monkeypatch.setattr(Attachment, "ask", ask)
    with _open_as(server.database_path, fcntl.LOCK_SH):
        confirmer = Confirmer(server, server.folder, fsync=True)
        until = time.monotonic() + 60
        while not server.folder.undecided:
            assert time.monotonic() < until, "it is not counted"
            confirmer.turn()
        assert not is_alive
        assert server.folder.live(journal).exists()


@pytest.fixture
def hidden_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have no lock of others in sight."""
    (tmp_path / "locks").touch()
    monkeypatch.setattr(orphans, "_LOCKS", tmp_path / "locks")


@pytest.mark.usefixtures("hidden_locks")
def test_orphan_is_kept_while_locks_of_other_processes_are_invisible(
    server: PlayedServer,
) -> None:
    """As for a shipper in a container of its own."""
    orphan = server.commit_elsewhere(7, owner=uuid4())
    _hold(server, orphan)
    assert server.folder.live(orphan).exists()


@pytest.mark.usefixtures("hidden_locks")
def test_shipper_in_a_container_decides_nothing_beside_invisible_readers(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only process that wrote has ended; the others have no mark."""
    orphan = server.commit_elsewhere(7, owner=server.folder.owner)
    _end(server)
    monkeypatch.setattr(owners, "_pid_namespace", lambda: 4711)  # the shipper's
    recovery = Recovery(server.folder.path, fsync=True)
    recovery.look()
    recovery.look()
    assert server.folder.live(orphan).exists()


def test_server_ended_by_a_reboot_leaves_no_survivors(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = server.commit_elsewhere(7, owner=server.folder.owner)
    monkeypatch.setattr(orphans, "_PATIENCE_S", 60.0)  # it looks until it is certain
    mark = server.folder.owners.mark(server.folder.owner)
    tickets, process, _, _ = mark.read_text().split()
    mark.write_text(f"{tickets} {process} 4711 another-boot\n")
    _end(server)
    Recovery(server.folder.path, fsync=True).look()
    assert not server.folder.live(orphan).exists()
    assert not server.folder.committed(orphan).exists()


def test_orphan_is_kept_and_others_pass_without_a_lock_list(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(orphans, "_LOCKS", tmp_path / "missing")
    orphan = server.commit_elsewhere(7, owner=uuid4())
    _hold(server, orphan)
    assert server.folder.live(orphan).exists()


def test_orphan_is_kept_while_an_unreadable_mark_may_be_another_process(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    unknown = server.folder.owners.mark(uuid4())
    unknown.touch()
    is_held = owners.is_held

    def held(path: Path) -> bool:
        if path == unknown:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return is_held(path)

    monkeypatch.setattr(owners, "is_held", held)
    _hold(server, orphan)
    assert server.folder.live(orphan).exists()


def test_engine_is_asked_once_about_a_kept_orphan(server: PlayedServer) -> None:
    """Each question is an attachment, which is in a DBA's way."""
    orphan = server.commit_elsewhere(7, owner=uuid4())
    with _open_as(server.database_path, fcntl.LOCK_SH):
        confirmer, _ = _hold(server, orphan)
        for _ in range(5):
            look(confirmer)
        assert server.folder.undecided == 1
        assert len(server.attachments) == 1


# ---- Lists of locks that the kernel gives in pieces, and that may lack some ----------------------

_PAGE = os.sysconf("SC_PAGE_SIZE")
_IN_ONE_PIECE, _NEARLY_FULL, _IN_PIECES = 10, _PAGE // 68, _PAGE // 10  # locks, of 57 bytes


class PlayedLocks:
    """A list of locks, with those of the bridges that live."""

    def __init__(self, path: Path, server: PlayedServer, others: int) -> None:
        self._path = path
        self._inode = server.database_path.stat().st_ino
        marks = [(inode, "WRITE") for inode in server.folder.owners.living_inodes()]
        self._always = [*((1 << 40 | number, "WRITE") for number in range(others)), *marks]

    def show(self, survivor: bool) -> None:
        """Have the list tell, or not, of a SURVIVOR with the database open."""
        held = [*self._always, *([(self._inode, "READ")] if survivor else [])]
        self._path.write_text(
            "".join(
                f"{number}: FLOCK  ADVISORY  {access} 4711 fe:00:{inode} 0 EOF\n"
                for number, (inode, access) in enumerate(held, 1)
            )
        )


@pytest.fixture
def locks(
    server: PlayedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> PlayedLocks:
    monkeypatch.setattr(orphans, "_LOCKS", tmp_path / "locks")
    locks = PlayedLocks(tmp_path / "locks", server, request.param)
    locks.show(survivor=True)
    return locks


def _start_keeping(server: PlayedServer, orphan: UUID, is_held: bool) -> Confirmer:
    if is_held:
        return _hold(server, orphan)[0]
    confirmer = Confirmer(server, server.folder, fsync=True)
    for _ in range(3):
        look(confirmer)
    return confirmer


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("locks", [_NEARLY_FULL, _IN_PIECES], indirect=True)
def test_survivor_missing_in_some_lock_scans_is_still_alive(
    server: PlayedServer, locks: PlayedLocks, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_held:
        monkeypatch.setattr(orphans, "_PATIENCE_S", 60.0)
    orphan = server.commit_elsewhere(7, owner=uuid4())
    confirmer = _start_keeping(server, orphan, is_held)
    for _ in range(3):
        for survivor in [False] * 9 + [True]:
            locks.show(survivor)
            look(confirmer)
            assert server.folder.live(orphan).exists()
            assert server.folder.undecided == is_held
    _set_oldest(server.database_path, 8)  # by the survivor
    _work_until_decided(server, confirmer, orphan)
    assert server.folder.committed(orphan).exists()


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("locks", [_NEARLY_FULL, _IN_PIECES], indirect=True)
def test_survivor_missing_in_ten_lock_scans_is_gone(
    server: PlayedServer, locks: PlayedLocks, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each scan finds a kept journal anew."""
    if not is_held:
        monkeypatch.setattr(orphans, "_PATIENCE_S", 60.0)
    orphan = server.commit_elsewhere(7, owner=uuid4())
    confirmer = _start_keeping(server, orphan, is_held)
    locks.show(survivor=False)
    for _ in range(10):
        look(confirmer)
        assert server.folder.live(orphan).exists()
    look(confirmer)  # reads once more what the file says
    assert not server.folder.live(orphan).exists()
    assert not server.folder.committed(orphan).exists()


@pytest.mark.parametrize("locks", [_IN_PIECES], indirect=True)
def test_kept_orphan_is_rechecked_soon_while_lock_scans_miss_the_survivor(
    server: PlayedServer, locks: PlayedLocks
) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    confirmer = _start_keeping(server, orphan, is_held=True)
    for _ in range(5):
        look(confirmer)
    assert confirmer._looks.at > time.monotonic() + 5
    locks.show(survivor=False)
    for _ in range(5):
        look(confirmer)
        assert confirmer._looks.at < time.monotonic() + 2


@pytest.mark.parametrize("locks", [_IN_ONE_PIECE], indirect=True)
def test_single_complete_lock_scan_decides_an_orphan(
    server: PlayedServer, locks: PlayedLocks
) -> None:
    orphan = server.commit_elsewhere(7, owner=uuid4())
    confirmer = _start_keeping(server, orphan, is_held=True)
    locks.show(survivor=False)
    for _ in range(2):
        assert server.folder.live(orphan).exists()
        look(confirmer)
    assert not server.folder.live(orphan).exists()


@pytest.mark.parametrize("locks", [_IN_PIECES], indirect=True)
def test_lock_scans_count_only_with_a_pause_between_them(
    server: PlayedServer, locks: PlayedLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the orphan: the cause that hides a lock may last for some looks."""
    monkeypatch.setattr(orphans, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(orphans, "_APART_S", 60.0)
    orphan = server.commit_elsewhere(7, owner=uuid4())
    locks.show(survivor=False)
    confirmer = Confirmer(server, server.folder, fsync=True)
    for _ in range(15):
        look(confirmer)
    assert server.folder.live(orphan).exists()


@pytest.mark.parametrize("locks", [_IN_PIECES], indirect=True)
def test_orphan_with_uncertain_survivors_lets_others_pass_after_a_while(
    server: PlayedServer, locks: PlayedLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_APART_S", 60.0)
    orphan = server.commit_elsewhere(7, owner=uuid4())
    locks.show(survivor=False)
    _hold(server, orphan)
    assert server.folder.live(orphan).exists()


def _no_attachment(database: str) -> OwnAttachment:
    raise CaptureError(f"no engine for {database}")


def _orphan(uuid: UUID) -> Pending:
    now_us = time.time_ns() // 1000
    header: Any = SimpleNamespace(owner=None)
    return Pending(uuid, uuid, 0, "", 7, 1, now_us, 0, 0, 1, process=FoundProcess(header))


@pytest.mark.parametrize("locks", [_IN_PIECES], indirect=True)
def test_lock_scans_for_journals_decided_elsewhere_are_forgotten(
    server: PlayedServer, locks: PlayedLocks
) -> None:
    kept = server.commit_elsewhere(7, owner=uuid4())
    watching = Orphans(server.folder, _no_attachment)
    for uuid in (kept, *(uuid4() for _ in range(300))):
        watching.look(_orphan(uuid), 4711)
    assert kept in watching._watched
    assert len(watching._watched) <= 64


_HOLDER = """
import fcntl, os, sys
files = [os.open(path, os.O_RDWR | os.O_CREAT) for path in sys.argv[1:]]
for file in files[3:]:
    fcntl.flock(file, fcntl.LOCK_SH)
print("ready", flush=True)
while True:  # these come and go
    for kind in (fcntl.LOCK_SH, fcntl.LOCK_UN):
        for file in files[:3]:
            fcntl.flock(file, kind)
"""


def test_held_lock_among_many_is_not_taken_for_released(
    server: PlayedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's own list, which lacks one of them in every tenth to hundredth look."""
    monkeypatch.setattr(orphans, "_PATIENCE_S", 60.0)
    paths = [tmp_path / f"{number}.lock" for number in range(153)]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _HOLDER, *map(str, paths)], stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            held = [(_orphan(uuid4()), path.stat().st_ino) for path in paths[3:]]
            for orphan, _ in held:
                server.folder.live(orphan.uuid).touch()  # what is not there is forgotten
            watching = Orphans(server.folder, _no_attachment)
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                for orphan, inode in held:
                    watching.look(orphan, inode)
                    assert orphan.process is not None
                    assert not orphan.process.is_alone
        finally:
            holder.kill()


# ---- Stamps --------------------------------------------------------------------------------------


def _lose_stamp(journal: Path) -> None:
    with journal.open("r+b") as file:
        file.seek(1024)
        file.write(bytes(512))


def _stamp(journal: Path) -> Stamp | None:
    with JournalReader(journal) as reader:
        return reader.stamp


def test_lost_stamps_are_restored_beside_another_process(server: PlayedServer) -> None:
    """After a power cut the connections of Classic come back all at once."""
    uuids = publish_as_before(server, 3)
    journals = [server.folder.committed(uuid) for uuid in uuids]
    stamps = [_stamp(journal) for journal in journals]
    for journal in journals:
        _lose_stamp(journal)
    server.folder.is_restored = False  # the machine started anew
    beside = JournalFolder(server.folder.path)
    assert beside.owners.has_other()
    server.folder = beside
    confirmer = Confirmer(server, beside, fsync=True)
    _work_until_decided(server, confirmer, server.commit(0))
    assert [_stamp(journal) for journal in journals] == stamps
