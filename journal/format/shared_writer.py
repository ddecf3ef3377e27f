"""Writes shared journals as the plugin does, for gaps and tests."""

from __future__ import annotations

import fcntl
import os
import uuid as uuids
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from firebird_cdc import access
from firebird_cdc.clock import now_us
from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.format.definitions import table_body
from firebird_cdc.journal.format.journal_index import Entry, pack_index
from firebird_cdc.journal.format.layout import (
    BLOCK_HEADER,
    CATALOGUE,
    FILE_BLOCK,
    FLOOR_SEAL,
    HEAD,
    PAD,
    RECORD,
    pwrite,
)
from firebird_cdc.journal.format.model import Place, Seal, Stamp, Table, TableChange
from firebird_cdc.journal.format.reader import UnstampedCatalogue
from firebird_cdc.journal.format.records import BLOCK_TARGET, FileWriter, RecordWriter
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import FileHeader, Void, aligned, pack_void
from firebird_cdc.journal.format.writer import pack_catalogue

_NIL = UUID(int=0)


class TransactionWriter(RecordWriter):
    """Writes one transaction into memory, until it is appended to a journal; see `RecordWriter`."""

    def __init__(
        self,
        journal: FileHeader,
        transaction: int,
        user: str,
        *,
        uuid: UUID | None = None,
        started_us: int | None = None,
        block_bytes: int = BLOCK_TARGET,
    ) -> None:
        uuid = uuid if uuid is not None else uuids.uuid4()
        super().__init__(
            uuid,
            uuid,
            data_offset=HEAD.size,
            header_crc=crc32c.value(uuid.bytes),
            block_bytes=block_bytes,
        )
        started_us = started_us if started_us is not None else now_us()
        self._content = bytearray(HEAD.size)
        self._catalogue_offset = 0
        self.header = journal.of_transaction(uuid, transaction, started_us)
        self._begin(journal.database, user)

    def _put(self, content: bytes, offset: int) -> None:
        self._content[offset:] = content

    def seal(self, sealed_us: int | None = None, floor: int | None = None) -> None:
        """Write the seal: nothing can be recorded any more. FLOOR: the last ticket drawn so far."""
        self.flush()
        stored = 0 if floor is None else floor + 1
        number = self.header.transaction
        self._write_seal(FLOOR_SEAL, sealed_us, 0, stored, self.uuid.bytes, number)

    def complete(
        self,
        tables: Sequence[Table],
        changes: Mapping[int, Sequence[TableChange]] | None = None,
        *,
        is_late: bool = False,
    ) -> None:
        """Add the catalogue behind the seal, as `JournalWriter.complete`. IS_LATE: the seal was
        synced already, so it begins in another block."""
        if self._seal is None or self._catalogue_offset:
            raise ValueError(f"{self.uuid}: a catalogue follows the seal, and only once")
        bodies = {table.number: table_body(table) for table in tables}
        at = aligned(self._seal.end, FILE_BLOCK) if is_late else self._seal.end
        self._catalogue_offset = at
        self._content.extend(bytes(at - len(self._content)))
        self._put(pack_catalogue(self.uuid, self._seal, bodies, changes, at), at)

    @property
    def seal_end(self) -> int:
        """Bytes up to the end of the seal."""
        assert self._seal is not None
        return self._seal.end

    def packed(self, journal: UUID, offset: int, synced: int, *, is_own: bool) -> bytes:
        """Return the sealed transaction for a place in a journal, SYNCED up to that offset."""
        if self._seal is None:
            raise ValueError(f"{self.uuid}: seal the transaction before it is appended")
        length = 0 if is_own else len(self._content)
        head = Head(self.header, length, journal.bytes, offset, synced)
        self._content[: HEAD.size] = head.pack()
        return bytes(self._content)

    def stamp(self, epoch: int, sequence: int, commit_us: int, stamped_us: int | None) -> Stamp:
        """Return the stamp of the sealed transaction."""
        return Stamp(
            epoch,
            sequence,
            commit_us,
            stamped_us if stamped_us is not None else now_us(),
            len(self._content),
            self.event_count,
            self.header.transaction,
            self._catalogue_offset,
        )


class OwnJournalWriter(FileWriter):
    """Writes a journal of one transaction's own, in place; a context manager. See `RecordWriter`.

    Creates the file (mode 0600), named by the journal's uuid or not; raises FileExistsError if it
    is there, OSError. ``journal``: whose uuid is the transaction's, too. Nothing is synced but by
    ``sync``, and what was not sealed leaves a torn transaction.
    """

    def __init__(
        self,
        path: Path | str,
        journal: FileHeader,
        *,
        user: str | None = "",
        block_bytes: int = BLOCK_TARGET,
    ) -> None:
        """``user``: None to begin without a BEGIN record, which the caller writes."""
        uuid = journal.uuid
        super().__init__(
            path,
            uuid,
            base=FILE_BLOCK,
            data_offset=HEAD.size,
            header_crc=crc32c.value(uuid.bytes),
            block_bytes=block_bytes,
        )
        self.length = self.seal_end = 0
        self._transaction = journal.transaction
        header = journal.of_transaction(uuid, journal.transaction, journal.begun_us)
        head = Head(header, 0, uuid.bytes, FILE_BLOCK, 0)
        self._create(journal.pack() + head.pack(), journal.database, user)

    def sync(self) -> None:
        """Wait until what was written is on disk. Raises OSError."""
        os.fsync(self._fd)

    def seal(self, sealed_us: int | None = None, floor: int | None = None) -> None:
        """Write what is left and the seal, in a block of the file of its own. FLOOR: the last
        ticket drawn so far."""
        self._pad()
        self.flush()
        stored = 0 if floor is None else floor + 1
        seal = self._write_seal(
            FLOOR_SEAL, sealed_us, 0, stored, self.uuid.bytes, self._transaction
        )
        self.length = self.seal_end = seal.end

    def _pad(self) -> None:
        """Fill the block of the file up to its end."""
        block = self._block
        if not block.records and self._offset % FILE_BLOCK == 0:
            return
        room = -(self._offset + BLOCK_HEADER + block.size) % FILE_BLOCK
        if not room and block.records:
            return
        if room < RECORD.size:
            room += FILE_BLOCK
        block.records.append(RECORD.pack(PAD, 0, room - RECORD.size) + bytes(room - RECORD.size))
        block.size += room
        self._record_count += 1

    def copy(self, first_event: int, flags: int, records: int, payload: bytes) -> None:
        """Write a block as ``JournalReader.blocks`` gives it."""
        self._block.first_event = first_event
        self._write_block(payload, flags, records, 0)
        self._record_count += records
        self._block_count += 1

    def end_copy(
        self,
        seal: Seal | None,
        catalogue: UnstampedCatalogue | None,
        sealed_us: int,
        floor: int | None,
    ) -> None:
        """Write, behind blocks that were copied, a seal with the counts of SEAL, and CATALOGUE."""
        assert seal is not None
        self.event_count = seal.event_count
        self._block.first_event = seal.event_count + 1
        self.seal(sealed_us, floor)
        if catalogue is not None:
            self._write_block(catalogue.payload, CATALOGUE, catalogue.records, 0)
            self.length = self._offset


def append_catalogue(
    fd: int,
    uuid: UUID,
    seal: Seal,
    at: int,
    completed: Mapping[int, bytes],
    changes: Mapping[int, Sequence[TableChange]] | None = None,
) -> int:
    """Write the catalogue of the transaction that the journal open for writing at FD is of alone;
    syncs nothing. AT: as ``JournalReader.late_catalogue_offset`` has it.

    Arguments as of `pack_catalogue`. Returns the length of the transaction with it; without a place
    in ledger or index what was written is no part of it. Raises OSError, and as `pack_catalogue`.
    """
    block = pack_catalogue(uuid, seal, completed, changes, at)
    pwrite(fd, block, FILE_BLOCK + at)
    return at + len(block)


class SharedJournalWriter:
    """Writes a shared journal; a context manager. Creates the file (mode 0600).

    Raises FileExistsError if it is there, OSError, ValueError. Nothing is synced. The file is
    locked until it is closed, as by a process that may append to it.
    """

    def __init__(self, path: Path | str, header: FileHeader) -> None:
        self.header = header
        self.path = Path(path)
        self._end = self._synced = FILE_BLOCK
        self._entries: list[Entry] = []
        self._offsets: dict[UUID, int] = {}
        first = header.pack()
        self._fd = access.open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            pwrite(self._fd, first, 0)
        except BaseException:
            self.leave()
            raise

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        database: str = "",
        guid: UUID = _NIL,
        transaction: int | None = None,
    ) -> SharedJournalWriter:
        """Begin a journal of DATABASE with what is not given left out; its uuid is that of the
        file's name, if that has one. ``transaction``: the journal is that one's own."""
        name = Path(path).name[:36]
        uuid = UUID(name) if len(name) == 36 else uuids.uuid4()
        own, number = transaction is not None, transaction or 0
        header = FileHeader(uuid, _NIL, guid, 0, _NIL, now_us(), number, own, database)
        return cls(path, header)

    def __enter__(self) -> SharedJournalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the file as it is, without an index."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def append(self, written: TransactionWriter) -> int:
        """Append a sealed transaction; return its offset."""
        offset = aligned(self._end)
        uuid, is_own = self.header.uuid, self.header.is_own
        content = written.packed(uuid, offset, self._synced, is_own=is_own)
        pwrite(self._fd, content, offset)
        self._end = offset + len(content)
        self._offsets[written.uuid] = offset
        return offset

    def begin_block(self) -> None:
        """Have what follows begin in a new block, as behind a sync."""
        self._end = self._synced = aligned(self._end, FILE_BLOCK)

    def offset_of(self, written: TransactionWriter) -> int:
        """Return where a transaction of this journal lies."""
        return self._offsets[written.uuid]

    def void(self, written: TransactionWriter, home: SharedJournalWriter | None = None) -> None:
        """Append a void, twice: the transaction was rolled back after its ``prepare``. HOME: the
        journal that it is in, if that is another one."""
        uuid, number = written.uuid, written.header.transaction
        home = home or self
        void = Void(uuid, number, home.header.uuid.bytes, home.offset_of(written))
        for _ in range(2):
            self.begin_block()
            content = pack_void(void, self.header.uuid, self._end)
            pwrite(self._fd, content, self._end)
            self._end += len(content)

    def commit(
        self,
        written: TransactionWriter,
        sequence: int,
        *,
        ticket: int = 0,
        commit_us: int,
        epoch: int = 0,
        stamped_us: int | None = None,
    ) -> Place:
        """Have the index name a transaction; return its place."""
        stamp = written.stamp(epoch, sequence, commit_us, stamped_us)
        at = self._offsets[written.uuid]
        place = Place(written.uuid, at, ticket, written.seal_end, stamp)
        self._entries.append(Entry.of(place))
        return place

    def close(self) -> None:
        """Write the index, and close the file."""
        offset = aligned(self._end, FILE_BLOCK)
        index = pack_index(self._entries, self.header.uuid, offset)
        pwrite(self._fd, index, offset)
        os.ftruncate(self._fd, offset + len(index))
        self.leave()
