"""A server that is played, for the confirmer beside it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from firebird_cdc.bridge.confirm import closing, entries, gaps, loop, troubles, undecided
from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.bridge.host import (
    CommittedJournal,
    CountedGap,
    DatabaseIdentity,
    Event,
    JournalAbandoned,
    OwnAttachment,
)
from firebird_cdc.clock import now_us
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder import ledger, ledger_lock
from firebird_cdc.journal.folder.commit_entries import CommitEntry, write_entry
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.inventory import TransactionState
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import (
    DdlChange,
    Gap,
    JournalReader,
    JournalWriter,
    OwnJournalWriter,
    Stamp,
    TableChange,
    alone,
    append_catalogue,
    open_any,
    own_reader,
    read_file_header,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader

GUID = UUID(int=7)


class Attachment:
    """An attachment that was ended by somebody else, or was not."""

    def __init__(self, is_ended: bool) -> None:
        self.is_ended = is_ended
        self.is_closed = False

    def ask(self, transactions: Sequence[int]) -> list[TransactionState]:
        if self.is_ended:
            raise CaptureError("connection shutdown")
        return [TransactionState.COMMITTED] * len(transactions)

    def reading(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def describe(self, definition: bytes) -> bytes:
        return definition

    def select(self, sql: str, columns: int) -> list[tuple[bytes | None, ...]]:
        if self.is_ended:
            raise CaptureError("connection shutdown")
        return []

    def close(self) -> None:
        self.is_closed = True


def add_changes(live: Path, uuid: UUID, changes: Sequence[TableChange]) -> None:
    """Add to a journal what its DDL made of tables, as another leader does."""
    with own_reader(live, uuid) as reader:
        seal, at = reader.seal, reader.late_catalogue_offset()
    assert seal is not None
    with live.open("r+b") as file:
        append_catalogue(file.fileno(), uuid, seal, at, {}, {1: changes})


def publish_as_before(server: PlayedServer, count: int = 1) -> list[UUID]:
    """Leave journals that firebird-cdc 0.1 has published: the ledger has their numbers, and they
    bear stamps."""
    key = ledger_lock.database_key(str(server.database_path))
    history = ledger.SequenceLedger(
        server.folder, key, True, lambda: None, str(server.database_path), lambda: (0, 0)
    )
    with contextlib.closing(history), history.exclusive():
        numbers = range(history.last + 1, history.last + 1 + count)
        group = []
        for number in numbers:
            uuid = uuid4()
            path = server.folder.committed(uuid)
            with JournalWriter(
                path,
                uuid=uuid,
                database=str(server.database_path),
                database_guid=server.guids[-1],
                owner=server.folder.owner,
                epoch=history.epoch,
            ) as writer:
                writer.gap("it")
                writer.seal()
                writer.commit(number, now_us())
                writer.stamp(number)
            with JournalReader(path) as reader:
                assert reader.stamp is not None
                group.append(LedgerEntry(uuid, reader.stamp))
        history.record(group, numbers[-1])
    return [entry.uuid for entry in group]


class PlayedServer:
    """Writes journals of one database, and tells of them."""

    def __init__(self, directory: Path) -> None:
        self.database_path = directory / "test.fdb"
        self.guids = [GUID]  # of the databases at the path, one after the other
        self.folder = JournalFolder(directory / "journals")
        self.events: list[Event] = []
        self.settled = 0
        self.attachments: list[Attachment] = []
        self.ended_attachments = 0  # so many of the first ones
        self.gap: CountedGap | None = None
        self.counted_next: CountedGap | None = None  # while the first gap is being marked
        self.before_leading: list[Event] = []  # what happens while the confirmer turns to lead
        self._serial = 0

    def commit(self, transaction: int, is_unsynced: bool = False, ddl: str = "") -> UUID:
        """Leave a journal, which is one gap or a DDL, and tell of it. Nothing asks about
        transaction 0."""
        uuid, serial = self._journal(transaction)
        ticket = self.folder.last_ticket + 1
        self.folder.page.fields.ticket = ticket
        written = self._write(uuid, transaction, ticket, ddl=ddl)
        self.events.append(
            CommittedJournal(
                serial=serial,
                database=len(self.guids),
                uuid=uuid,
                transaction=transaction,
                ticket=ticket,
                commit_us=now_us(),
                length=written.length,
                catalogue_offset=0,
                events=1,
                has_ddl=bool(ddl),
                is_unresolved=False,
                is_unsynced=is_unsynced,
                is_gap=False,
                reason="",
                journal=uuid,
                offset=FILE_BLOCK,
                seal_end=written.seal_end,
            )
        )
        return uuid

    def abandon(self, transaction: int) -> UUID:
        """Leave a journal without a word on its end."""
        uuid, serial = self._journal(transaction)
        self._write(uuid, transaction, None)
        fd = os.open(self.folder.live(uuid), os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self.events.append(JournalAbandoned(serial, 1, uuid, transaction, fd=fd))
        return uuid

    def _journal(self, transaction: int) -> tuple[UUID, int]:
        self._serial += 1
        return UUID(int=(transaction << 32) + self._serial, version=4), self._serial

    def commit_elsewhere(
        self, transaction: int, owner: UUID, ddl: str = "", has_ticket: bool = True, **more: Any
    ) -> UUID:
        """Leave a journal as another process does, which tells us nothing."""
        uuid, _ = self._journal(transaction)
        ticket = self.folder.last_ticket + 1
        self._write(uuid, transaction, ticket if has_ticket else None, owner, ddl, **more)
        if has_ticket:
            self.folder.page.fields.ticket = ticket
        return uuid

    def create_database(self) -> None:
        """Make a file with a header and an inventory page, by which all is active."""
        header = bytearray(4096)
        header[0] = 1
        struct.pack_into("<HH16xI", header, 16, 4096, 0x800D, 1000)
        header[128:146] = bytes([10, 16]) + self.guids[-1].bytes_le
        self.database_path.write_bytes(header + bytes([3]) + bytes(4095))

    def set_state(self, transaction: int, state: int) -> None:
        """Have the first inventory page say STATE of a transaction; all others are active."""
        with self.database_path.open("r+b") as file:
            file.seek(4096 + 20 + transaction // 4)
            file.write(bytes([state << transaction % 4 * 2]))

    def _write(
        self,
        uuid: UUID,
        transaction: int,
        ticket: int | None,
        owner: UUID | None = None,
        ddl: str = "",
        changes: Sequence[TableChange] | None = None,
    ) -> OwnJournalWriter:
        header = FileHeader(
            uuid, owner or self.folder.owner, self.guids[-1], 0, boot_uuid(), now_us(), transaction,
            True, str(self.database_path),
        )  # fmt: skip
        live = self.folder.live(uuid)
        with OwnJournalWriter(live, header) as writer:
            if ddl:
                writer.ddl(ddl)
            else:
                writer.gap("it")
            writer.seal()
            writer.sync()
        if changes is not None:
            add_changes(live, uuid, changes)
        if ticket is not None:
            entry = CommitEntry(
                ticket, uuid, uuid, FILE_BLOCK, writer.length, writer.seal_end, 0, 1, transaction,
                now_us(), bool(ddl),
            )  # fmt: skip
            write_entry(self.folder.commits_fd, entry)
        return writer

    # -- what the confirmer asks

    def last_ticket(self) -> int:
        self.events += self.before_leading
        self.before_leading = []
        return self.folder.last_ticket

    def take_events(self, timeout_ms: int) -> list[Event]:
        events, self.events = self.events, []
        return events

    def settle(self, serial: int) -> None:
        self.settled = serial

    def database(self, database: int) -> DatabaseIdentity:
        return DatabaseIdentity(str(self.database_path), self.guids[database - 1])

    def open_attachment(self, database: str) -> OwnAttachment:
        attachment = Attachment(len(self.attachments) < self.ended_attachments)
        self.attachments.append(attachment)
        return attachment

    def store_definition(
        self, database: int, generation: int, shown: bytes, complete: bytes
    ) -> None:
        pass

    def new_generation(self) -> None:
        pass

    def read_gap(self, database: int) -> CountedGap | None:
        return self.gap

    def clear_gap(self, database: int, gap: CountedGap) -> None:
        self.gap, self.counted_next = self.counted_next, None

    def sync_file_system(self, fd: int) -> None:
        pass

    def count_prepared(self) -> int:
        return 0


def shorten_pauses(monkeypatch: pytest.MonkeyPatch, to_s: float = 0.0) -> None:
    """Have a confirmer try again TO_S seconds after a failure."""
    for module in (troubles, gaps):
        monkeypatch.setattr(module, "_TROUBLE_S", to_s)
    monkeypatch.setattr(troubles, "_LEDGER_TROUBLE_S", to_s)
    monkeypatch.setattr(loop, "_PAUSE_S", to_s)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedServer:
    shorten_pauses(monkeypatch, 0.01)
    return PlayedServer(tmp_path)


def opened(folder: JournalFolder, uuid: UUID) -> JournalReader:
    """Return a reader of a transaction with a journal of its own, once that has its name."""
    return alone(open_any(folder.committed(uuid)))


def published(folder: JournalFolder, uuid: UUID) -> str:
    """Return the reason of the gap that the journal is, once it has its name."""
    with opened(folder, uuid) as reader:
        assert reader.stamp is not None
        [gap] = reader.changes()
        assert isinstance(gap, Gap)
        return gap.reason


def statement(folder: JournalFolder, uuid: UUID) -> DdlChange:
    """Return the statement that the journal holds, once it has its name."""
    with opened(folder, uuid) as reader:
        [ddl] = reader.changes()
        assert isinstance(ddl, DdlChange)
        return ddl


def work_until_committed(confirmer: Confirmer, folder: JournalFolder, uuid: UUID) -> None:
    work_until(confirmer, folder.committed(uuid).exists)


def work_until(confirmer: Confirmer, is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_done():
        assert time.monotonic() < until
        confirmer.turn()


def look(confirmer: Confirmer, times: int = 1) -> None:
    """Have CONFIRMER look so often for what dead processes left, also for what it keeps."""
    for _ in range(times):
        confirmer._looks.at = 0.0
        confirmer.turn()


def damage_event(journal: Path) -> None:
    """Change a byte of the event in JOURNAL; the seal is whole."""
    content = journal.read_bytes()
    assert content.count(b"it") == 1
    journal.write_bytes(content.replace(b"it", b"is"))


def unreadable_journals(monkeypatch: pytest.MonkeyPatch, number: int = errno.EIO) -> set[str]:
    """Return the names, to be filled in, of journals that the disk doesn't give back."""
    names: set[str] = set()

    def read(path: Path) -> FileHeader:
        if path.name in names:
            raise OSError(number, os.strerror(number), str(path))
        return read_file_header(path)

    for reader in (entries, undecided, closing):
        monkeypatch.setattr(reader, "read_file_header", read)
    return names


def wait_for_nothing(seconds: float) -> bool:
    return False


def work(confirmer: Confirmer, turns: int = 5) -> None:
    for _ in range(turns):
        confirmer.turn()


OTHER = UUID(int=5, version=4)  # a process


def idle(server: PlayedServer) -> Confirmer:
    """Return a confirmer that has looked around just now, and so will not for a second."""
    server.create_database()
    confirmer = Confirmer(server, server.folder, fsync=False)
    work(confirmer)
    return confirmer


def stamp_of(folder: JournalFolder, uuid: UUID) -> Stamp:
    with opened(folder, uuid) as reader:
        assert reader.stamp is not None
        return reader.stamp
