"""Writes the records of one transaction, framed in blocks."""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from firebird_cdc import access
from firebird_cdc.clock import now_us
from firebird_cdc.journal.format import charsets
from firebird_cdc.journal.format.content import Closeable
from firebird_cdc.journal.format.definitions import table_body
from firebird_cdc.journal.format.layout import (
    BEGIN,
    BLOB,
    BLOCK,
    BLOCK_MAGIC,
    CRC,
    DDL,
    DEFINES,
    DELETE,
    GAP,
    I64,
    INSERT,
    LAST_CHUNK,
    MAX_PAYLOAD,
    RECORD,
    SEALS,
    SEQUENCE,
    TABLE,
    U16,
    U32,
    U64,
    UNAVAILABLE,
    UNRESOLVED_TABLE,
    UPDATE,
    checksum,
    pwrite,
    with_length,
)
from firebird_cdc.journal.format.model import (
    FIXED_FORMATS,
    VARIABLE_STORAGES,
    Column,
    Seal,
    Storage,
    Table,
    Undecodable,
    Value,
)

# The writer ends a block once its payload would grow beyond this; a guess that suits one read.
BLOCK_TARGET = 64 * 1024
_BLOB_CHUNK = 32 * 1024


def pack_block(
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


class RecordWriter(ABC):
    """Writes one transaction from its BEGIN to its seal; ``name``: what errors call it.

    A block is written before its payload would grow beyond ``block_bytes``. Values are given as
    the reader yields them, but blobs by the number that ``blob`` returned; ``ValueError`` names the
    column of one that doesn't fit.
    """

    def __init__(
        self,
        name: object,
        uuid: UUID,
        *,
        data_offset: int,
        header_crc: int,
        block_bytes: int = BLOCK_TARGET,
    ) -> None:
        self.uuid = uuid
        self.event_count = 0
        self._name = name
        self._block_bytes = block_bytes
        self._block = _OpenBlock(first_event=1)
        self._offset = data_offset
        self._previous_crc = header_crc
        self._record_count = 0
        self._block_count = 0
        self._tables = 0
        self._blobs = 0
        self._seal: Seal | None = None

    @abstractmethod
    def _put(self, content: bytes, offset: int) -> None:
        """Write CONTENT at OFFSET of the transaction. Raises OSError."""

    def _begin(self, database: str, user: str) -> None:
        self._add(BEGIN, 0, with_length(database) + with_length(user), flags=DEFINES)

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

    def _write_seal(
        self, form: struct.Struct, sealed_us: int | None, half: int, *more: int | bytes
    ) -> Seal:
        """Write the seal with MORE fields; HALF of the floor goes into its header."""
        when = sealed_us if sealed_us is not None else now_us()
        counts = self.event_count, self._record_count, self._block_count
        self._write_block(form.pack(*counts, when, *more), SEALS, 0, half)
        self._seal = Seal(*counts, when, self._offset, self._previous_crc)
        return self._seal

    def _add(
        self, kind: int, number: int, body: bytes, event: bool = False, flags: int = 0
    ) -> None:
        if self._seal is not None:
            raise ValueError(f"{self._name}: the journal is sealed")
        record = RECORD.pack(kind, number, len(body)) + body
        if len(record) > MAX_PAYLOAD:
            raise ValueError(f"{self._name}: a record of {len(record)} bytes fits no block")
        if self._block.size + len(record) > self._block_bytes:
            self.flush()
        self._block.records.append(record)
        self._block.size += len(record)
        self._block.flags |= flags
        self._record_count += 1
        self.event_count += event

    def _write_block(self, payload: bytes, flags: int, records: int, half_floor: int) -> None:
        block, self._previous_crc = pack_block(
            self.uuid.bytes,
            self._offset,
            self._block.first_event,
            self._previous_crc,
            flags,
            records,
            payload,
            half_floor,
        )
        self._put(block, self._offset)
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


class FileWriter(RecordWriter, Closeable):
    """Writes one transaction into a new file (mode 0600), from byte ``base`` on; a context manager.
    See `RecordWriter`."""

    def __init__(
        self,
        path: Path | str,
        uuid: UUID,
        *,
        base: int,
        data_offset: int,
        header_crc: int,
        block_bytes: int,
    ) -> None:
        super().__init__(
            path, uuid, data_offset=data_offset, header_crc=header_crc, block_bytes=block_bytes
        )
        self.path = Path(path)
        self._base = base
        self._fd = -1

    def _create(self, first: bytes, database: str, user: str | None) -> None:
        """Begin the file with FIRST, and a BEGIN record unless USER is None. Raises OSError; then
        the file is closed."""
        self._fd = access.open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            pwrite(self._fd, first, 0)
            if user is not None:
                self._begin(database, user)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; what was not sealed leaves a torn transaction."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, content: bytes, offset: int) -> None:
        pwrite(self._fd, content, self._base + offset)
