"""Writes journals, and the marks that the server sets in those of the plugin."""

from __future__ import annotations

import os
import uuid as uuids
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.journal.format.definitions import table_body, table_change_body
from firebird_cdc.journal.format.layout import (
    CATALOGUE,
    COMMIT,
    COMMIT_MAGIC,
    COMMIT_OFFSET,
    CRC,
    DATA_OFFSET,
    FLOORS,
    HEADER,
    MAGIC,
    MAX_PAYLOAD,
    RECORD,
    SEAL,
    SECTOR,
    STAMP,
    STAMP_MAGIC,
    STAMP_OFFSET,
    TABLE,
    TABLE_CHANGE,
    TABLE_CHANGE_HEAD,
    UNSYNCED,
    VERSION,
    pwrite,
    sector_of,
)
from firebird_cdc.journal.format.model import (
    CommitMark,
    Seal,
    Stamp,
    Table,
    TableChange,
    TableState,
)
from firebird_cdc.journal.format.records import BLOCK_TARGET, FileWriter, pack_block

_NIL = UUID(int=0)


def write_stamp(fd: int, uuid: UUID, stamp: Stamp) -> None:
    """Write sector 2 of the journal that is open for writing at FD; syncs nothing.

    Raises OSError. After a failure the sector may be half written: write it again, or leave
    the journal unstamped and unrenamed.
    """
    pwrite(fd, sector_of(uuid.bytes, STAMP.pack(STAMP_MAGIC, *stamp)), STAMP_OFFSET)


def write_commit_mark(fd: int, uuid: UUID, mark: CommitMark, is_unsynced: bool = False) -> None:
    """Write the commit mark of the journal that is open for writing at FD; syncs nothing.

    Ticket 0: the transaction was seen in limbo, and nobody works in it any more. IS_UNSYNCED: see
    the reader's property. Raises OSError.
    """
    flags = UNSYNCED if is_unsynced else 0
    content = COMMIT.pack(COMMIT_MAGIC, flags, mark.ticket, mark.commit_us, mark.transaction)
    pwrite(fd, sector_of(uuid.bytes, content), COMMIT_OFFSET)


def pack_catalogue(
    uuid: UUID,
    seal: Seal,
    completed: Mapping[int, bytes],
    changes: Mapping[int, Sequence[TableChange]] | None = None,
    offset: int | None = None,
) -> bytes:
    """Return the catalogue that stands behind SEAL, at OFFSET if not directly.

    ``completed``: the complete definition (``table_body``) of tables that are unresolved in the
    journal, by their number there. ``changes``: what DDL statements did to tables, by the
    number of the event. At least one of either. Raises ValueError if there is nothing to write or
    it is larger than a block.
    """
    records = [RECORD.pack(TABLE, number, len(body)) + body for number, body in completed.items()]
    written: dict[str, TableState] = {}
    for event, several in (changes or {}).items():
        bodies = [table_change_body(event, change, written) for change in several]
        if not several:
            bodies = [TABLE_CHANGE_HEAD.pack(event, 0, 0)]
        records += [RECORD.pack(TABLE_CHANGE, 0, len(body)) + body for body in bodies]
    payload = b"".join(records)
    if not 0 < len(payload) <= MAX_PAYLOAD:
        raise ValueError(f"journal {uuid}: a catalogue of {len(payload)} bytes fits no block")
    at = seal.end if offset is None else offset
    block, _ = pack_block(
        uuid.bytes, at, seal.event_count + 1, seal.crc, CATALOGUE, len(records), payload
    )
    return block


class JournalWriter(FileWriter):
    """Writes a journal as the plugin does, for gap journals and tests; a context manager.

    Creates the file (mode 0600); raises FileExistsError if it is there, OSError from writing.
    A block is written before its payload would grow beyond ``block_bytes``. ``seal`` and the
    marks after it are synced, the folder is not: that is for whoever gives the file its name.
    Times are microseconds since 1970, UTC; ``started_us`` and ``uuid`` default to now and to a
    random one; ``epoch`` is that of the stamp. Values are given as the reader yields them, but
    blobs by the number that ``blob`` returned; ``ValueError`` names the column of one that doesn't
    fit.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        uuid: UUID | None = None,
        transaction: int = 0,
        database: str = "",
        user: str = "",
        database_guid: UUID = _NIL,
        owner: UUID = _NIL,
        database_inode: int = 0,
        epoch: int = 0,
        started_us: int | None = None,
        block_bytes: int = BLOCK_TARGET,
    ) -> None:
        uuid = uuid if uuid is not None else uuids.uuid4()
        header = sector_of(
            uuid.bytes,
            HEADER.pack(
                MAGIC,
                VERSION,
                DATA_OFFSET,
                uuid.bytes,
                transaction,
                started_us if started_us is not None else now_us(),
                database_guid.bytes,
                owner.bytes,
                database_inode,
            ),
        )
        super().__init__(
            path,
            uuid,
            base=0,
            data_offset=DATA_OFFSET,
            header_crc=CRC.unpack_from(header, SECTOR - 4)[0],
            block_bytes=block_bytes,
        )
        self.journal_length: int | None = None
        self._transaction = transaction
        self._epoch = epoch
        self._commit_us: int | None = None
        self._catalogue_offset = 0
        self._create(header + bytes(DATA_OFFSET - SECTOR), database, user)

    def seal(self, sealed_us: int | None = None, floor: int | None = None) -> None:
        """Write what is left and the seal, and sync; nothing can be recorded any more.

        FLOOR: the last ticket drawn so far; not recorded where no block is left to be written.
        """
        stored = (floor + 1) % FLOORS if floor is not None and self._block.records else 0
        self._flush(stored >> 16)
        seal = self._write_seal(SEAL, sealed_us, stored & 0xFFFF)
        self._seal = seal._replace(floor=(stored - 1) % FLOORS if stored else None)
        self.journal_length = seal.end
        os.fsync(self._fd)

    def complete(
        self,
        tables: Sequence[Table],
        changes: Mapping[int, Sequence[TableChange]] | None = None,
    ) -> None:
        """Append the catalogue with the definitions of TABLES, as the confirmer does; syncs.

        Once, between the seal and the stamp; ``number`` says which definition each completes.
        CHANGES: what DDL events did to tables, by their numbers.
        """
        if self._seal is None or self._catalogue_offset:
            raise ValueError(f"{self.path}: a catalogue follows the seal, and only once")
        bodies = {table.number: table_body(table) for table in tables}
        block = pack_catalogue(self.uuid, self._seal, bodies, changes)
        pwrite(self._fd, block, self._seal.end)
        self.journal_length = self._seal.end + len(block)
        self._catalogue_offset = self._seal.end
        os.fsync(self._fd)

    def commit(self, ticket: int, commit_us: int) -> None:
        """Write the commit mark, and sync."""
        self._commit_us = commit_us
        write_commit_mark(self._fd, self.uuid, CommitMark(ticket, commit_us, self._transaction))
        os.fsync(self._fd)

    def stamp(self, sequence: int, stamped_us: int | None = None) -> None:
        """Write the stamp of the sealed and committed journal, and sync."""
        if self.journal_length is None or self._commit_us is None:
            raise ValueError(f"{self.path}: seal and commit the journal before its stamp")
        stamp = Stamp(
            epoch=self._epoch,
            sequence=sequence,
            commit_us=self._commit_us,
            stamped_us=stamped_us if stamped_us is not None else now_us(),
            journal_length=self.journal_length,
            event_count=self.event_count,
            transaction=self._transaction,
            catalogue_offset=self._catalogue_offset,
        )
        write_stamp(self._fd, self.uuid, stamp)
        os.fsync(self._fd)
