"""Writes journals, and the marks that the server sets in those of the plugin."""

from __future__ import annotations

import os
import struct
import uuid as uuids
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.journal.format import charsets
from firebird_cdc.journal.format.definitions import table_body, table_change_body
from firebird_cdc.journal.format.layout import (
    BEGIN,
    BLOB,
    BLOCK,
    BLOCK_MAGIC,
    CATALOGUE,
    COMMIT,
    COMMIT_MAGIC,
    COMMIT_OFFSET,
    CRC,
    DATA_OFFSET,
    DDL,
    DEFINES,
    DELETE,
    FLOORS,
    GAP,
    HEADER,
    I64,
    INSERT,
    LAST_CHUNK,
    MAGIC,
    MAX_PAYLOAD,
    RECORD,
    SEAL,
    SEALS,
    SECTOR,
    SEQUENCE,
    STAMP,
    STAMP_MAGIC,
    STAMP_OFFSET,
    TABLE,
    TABLE_CHANGE,
    TABLE_CHANGE_HEAD,
    U16,
    U32,
    U64,
    UNAVAILABLE,
    UNRESOLVED_TABLE,
    UNSYNCED,
    UPDATE,
    VERSION,
    checksum,
    pwrite,
    sector_of,
    with_length,
)
from firebird_cdc.journal.format.model import (
    FIXED_FORMATS,
    VARIABLE_STORAGES,
    Column,
    CommitMark,
    Seal,
    Stamp,
    Storage,
    Table,
    TableChange,
    TableState,
    Undecodable,
    Value,
)

_NIL = UUID(int=0)


# The writer ends a block once its payload would grow beyond this; a guess that suits one read.
_BLOCK_TARGET = 64 * 1024
_BLOB_CHUNK = 32 * 1024


def write_stamp(fd: int, uuid: UUID, stamp: Stamp) -> None:
    """Write sector 2 of the journal that is open for writing at FD; syncs nothing.

    Raises OSError. After a failure the sector may be half written: write it again, or leave
    the journal unstamped and unrenamed.
    """
    content = STAMP.pack(
        STAMP_MAGIC,
        stamp.epoch,
        stamp.sequence,
        stamp.commit_us,
        stamp.stamped_us,
        stamp.journal_length,
        stamp.event_count,
        stamp.transaction,
        stamp.catalogue_offset,
    )
    pwrite(fd, sector_of(uuid.bytes, content), STAMP_OFFSET)


def write_commit_mark(fd: int, uuid: UUID, mark: CommitMark, is_unsynced: bool = False) -> None:
    """Write the commit mark of the journal that is open for writing at FD; syncs nothing.

    Ticket 0: the transaction was seen in limbo, and nobody works in it any more. IS_UNSYNCED: see
    the reader's property. Raises OSError.
    """
    flags = UNSYNCED if is_unsynced else 0
    content = COMMIT.pack(COMMIT_MAGIC, flags, mark.ticket, mark.commit_us, mark.transaction)
    pwrite(fd, sector_of(uuid.bytes, content), COMMIT_OFFSET)


def append_catalogue(
    fd: int,
    uuid: UUID,
    seal: Seal,
    completed: Mapping[int, bytes],
    changes: Mapping[int, Sequence[TableChange]] | None = None,
) -> int:
    """Write the catalogue behind the seal of the journal open for writing at FD; syncs nothing.

    ``completed``: the complete definition (``table_body``) of tables that are unresolved in the
    journal, by their number there. ``changes``: what DDL statements did to tables, by the
    number of the event. At least one of either. Returns the length of the journal with it, for
    the stamp, whose ``catalogue_offset`` is ``seal.end``; without such a stamp what was written
    is no part of the journal. Raises OSError, ValueError if there is nothing to write or it is
    larger than a block.
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
    block, _ = _block(
        uuid.bytes, seal.end, seal.event_count + 1, seal.crc, CATALOGUE, len(records), payload
    )
    pwrite(fd, block, seal.end)
    return seal.end + len(block)


def _block(
    uuid: bytes,
    offset: int,
    first_event: int,
    previous_crc: int,
    flags: int,
    records: int,
    payload: bytes,
    half_floor: int = 0,
) -> tuple[bytes, int]:
    """Return the bytes of a block, and its checksum."""
    head = BLOCK.pack(
        BLOCK_MAGIC, len(payload), offset, first_event, previous_crc, flags, half_floor, records, 0
    )[:36]
    crc = checksum(uuid, head + payload)
    return head + CRC.pack(crc) + payload, crc


@dataclass(slots=True)
class _OpenBlock:
    first_event: int
    records: list[bytes] = field(default_factory=list)
    size: int = 0
    flags: int = 0


class JournalWriter:
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
        block_bytes: int = _BLOCK_TARGET,
    ) -> None:
        self.path = Path(path)
        self.uuid = uuid if uuid is not None else uuids.uuid4()
        self.event_count = 0
        self.journal_length: int | None = None
        self._transaction = transaction
        self._epoch = epoch
        self._block_bytes = block_bytes
        self._commit_us: int | None = None
        self._seal: Seal | None = None
        self._catalogue_offset = 0
        self._block = _OpenBlock(first_event=1)
        self._offset = DATA_OFFSET
        self._record_count = 0
        self._block_count = 0
        self._tables = 0
        self._blobs = 0
        header = sector_of(
            self.uuid.bytes,
            HEADER.pack(
                MAGIC,
                VERSION,
                DATA_OFFSET,
                self.uuid.bytes,
                transaction,
                started_us if started_us is not None else now_us(),
                database_guid.bytes,
                owner.bytes,
                database_inode,
            ),
        )
        (self._previous_crc,) = CRC.unpack_from(header, SECTOR - 4)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            pwrite(self._fd, header + bytes(DATA_OFFSET - SECTOR), 0)
            self._add(BEGIN, 0, with_length(database) + with_length(user), flags=DEFINES)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was not sealed leaves a torn journal."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def table(
        self,
        name: str,
        columns: Sequence[Column],
        key_kind: int = 1,
        *,
        resolved: bool = True,
        order: Sequence[int] | None = None,
    ) -> Table:
        """Define a table, or a new shape of one, and return it for the rows that follow.

        ``order`` and ``resolved`` as in `Table`; the columns are written as they are given.
        """
        self._tables += 1
        table = Table(self._tables, name, key_kind, tuple(columns), tuple(order or ()), resolved)
        kind = TABLE if resolved else UNRESOLVED_TABLE
        self._add(kind, table.number, table_body(table), flags=DEFINES)
        return table

    def insert(self, table: Table, values: Sequence[Value]) -> None:
        """Record an inserted row."""
        self._add(INSERT, table.number, _row_image(table, values), event=True)

    def update(self, table: Table, old: Sequence[Value], new: Sequence[Value]) -> None:
        """Record an updated row."""
        image = _row_image(table, old)
        body = U32.pack(len(image)) + image + _row_image(table, new)
        self._add(UPDATE, table.number, body, event=True)

    def delete(self, table: Table, old: Sequence[Value]) -> None:
        """Record a deleted row."""
        self._add(DELETE, table.number, _row_image(table, old), event=True)

    def ddl(self, sql: str | bytes, charset_id: int = charsets.UTF8) -> None:
        """Record a DDL statement; bytes are taken as they are."""
        raw = sql if isinstance(sql, bytes) else _encode_text(sql, charset_id)
        self._add(DDL, 0, U16.pack(charset_id) + raw, event=True, flags=DEFINES)

    def sequence(self, name: str, value: int) -> None:
        """Record the last value of a generator."""
        self._add(SEQUENCE, 0, I64.pack(value) + name.encode())

    def gap(self, reason: str) -> None:
        """Record that something could not be captured."""
        self._add(GAP, 0, with_length(reason), event=True)

    def blob(self, content: bytes, available: bool = True, chunk_bytes: int = _BLOB_CHUNK) -> int:
        """Record the content of a blob of the next row; returns its number for that row.

        ``available``: False if this is all of the content that could be read.
        """
        self._blobs += 1
        number = U64.pack(self._blobs)
        last = LAST_CHUNK if available else LAST_CHUNK | UNAVAILABLE
        for start in range(0, max(len(content), 1), chunk_bytes):
            end = start + chunk_bytes
            flags = last if end >= len(content) else 0
            self._add(BLOB | flags << 8, 0, number + content[start:end])
        return self._blobs

    def flush(self) -> None:
        """Write the block begun so far, as if it were full."""
        self._flush(0)

    def _flush(self, half_floor: int) -> None:
        block = self._block
        if block.records:
            self._write_block(b"".join(block.records), block.flags, len(block.records), half_floor)
            self._block_count += 1
            self._block = _OpenBlock(first_event=self.event_count + 1)

    def seal(self, sealed_us: int | None = None, floor: int | None = None) -> None:
        """Write what is left and the seal, and sync; nothing can be recorded any more.

        FLOOR: the last ticket drawn so far; not recorded where no block is left to be written.
        """
        stored = (floor + 1) % FLOORS if floor is not None and self._block.records else 0
        self._flush(stored >> 16)
        when = sealed_us if sealed_us is not None else now_us()
        seal = SEAL.pack(self.event_count, self._record_count, self._block_count, when)
        self._write_block(seal, SEALS, 0, stored & 0xFFFF)
        self.journal_length = self._offset
        self._seal = Seal(
            self.event_count,
            self._record_count,
            self._block_count,
            when,
            self._offset,
            self._previous_crc,
            (stored - 1) % FLOORS if stored else None,
        )
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
        self.journal_length = append_catalogue(self._fd, self.uuid, self._seal, bodies, changes)
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

    def _add(
        self, kind: int, number: int, body: bytes, event: bool = False, flags: int = 0
    ) -> None:
        if self.journal_length is not None:
            raise ValueError(f"{self.path}: the journal is sealed")
        record = RECORD.pack(kind, number, len(body)) + body
        if len(record) > MAX_PAYLOAD:
            raise ValueError(f"{self.path}: a record of {len(record)} bytes fits no block")
        if self._block.size + len(record) > self._block_bytes:
            self.flush()
        self._block.records.append(record)
        self._block.size += len(record)
        self._block.flags |= flags
        self._record_count += 1
        self.event_count += event

    def _write_block(self, payload: bytes, flags: int, records: int, half_floor: int) -> None:
        block, self._previous_crc = _block(
            self.uuid.bytes,
            self._offset,
            self._block.first_event,
            self._previous_crc,
            flags,
            records,
            payload,
            half_floor,
        )
        pwrite(self._fd, block, self._offset)
        self._offset += len(block)


def _encode_text(text: str, charset_id: int) -> bytes:
    codec = "utf-8" if charset_id == charsets.NONE else charsets.codec_of(charset_id)
    if codec is None:
        raise ValueError(f"no codec for {charsets.name_of(charset_id)}; give bytes")
    return text.encode(codec)


def _row_image(table: Table, values: Sequence[Value]) -> bytes:
    """Return the row image of VALUES, one for each column of TABLE."""
    if len(values) != len(table.columns):
        raise ValueError(f"{table.name}: {len(values)} values, {len(table.columns)} columns")
    bits = 0
    fixed = []
    variable = []
    for index, (column, value) in enumerate(zip(table.columns, values, strict=True)):
        field: object = value
        code = FIXED_FORMATS[column.storage]
        try:
            if value is None:
                bits |= 1 << index
                fixed.append(bytes(struct.calcsize("<" + code)))
                continue
            if column.storage in VARIABLE_STORAGES:
                raw = _variable_bytes(column, value)
                variable.append(raw)
                field = len(raw)
            elif column.storage == Storage.INT128 and isinstance(value, int):
                field = value.to_bytes(16, "little", signed=True)
            elif code.endswith("s") and len(value) != int(code[:-1]):  # type: ignore[arg-type]
                raise ValueError(f"{len(value)} bytes, not {code[:-1]}")  # type: ignore[arg-type]
            fixed.append(struct.pack("<" + code, field))
        except (struct.error, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{table.name}.{column.name}: {value!r}: {error}") from error
    bitmap = bits.to_bytes((len(values) + 7) // 8, "little")
    return bitmap + b"".join(fixed) + b"".join(variable)


def _variable_bytes(column: Column, value: Value) -> bytes:
    if isinstance(value, Undecodable):
        return value.raw
    if isinstance(value, str):
        raw = value.rstrip(" ") if column.storage == Storage.PADDED_TEXT else value
        return _encode_text(raw, column.charset_id)
    if isinstance(value, bytes):
        return value
    raise TypeError("a text or bytes are expected")
