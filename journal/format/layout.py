"""The layout of a journal: its offsets, magic numbers, flags, and how lengths and texts lie in
it."""

from __future__ import annotations

import functools
import os
import struct
import uuid as uuids
from uuid import UUID

from firebird_cdc.journal.format import crc32c

VERSION = 1
SHARED_VERSION = 2
SECTOR = 512
COMMIT_OFFSET = 512
STAMP_OFFSET = 1024
DATA_OFFSET = 1536
BLOCK_HEADER = 40
MAX_PAYLOAD = 16 * 1024 * 1024
SEAL_BLOCK = BLOCK_HEADER + 32


MAGIC = b"FBCDCJ\r\n"
TRANSACTION_MAGIC = b"FBCDCT\r\n"
COMMIT_MAGIC = b"FBCM"
STAMP_MAGIC = b"FBCS"
BLOCK_MAGIC = b"FBCB"
HEADER = struct.Struct("<8sHH4x16sQq16s16sQ")
COMMIT = struct.Struct("<4sIQqQ")
UNSYNCED = 1  # a flag of the commit mark
STAMP = struct.Struct("<4sIQqqQQQQ")
BLOCK = struct.Struct("<4sIQQIHHII")
SEAL = struct.Struct("<QQQq")
FLOORS = 1 << 32

ALIGNMENT = 64
"""Transactions and voids of a shared journal begin at multiples of it."""

FILE_BLOCK = 4096
"""Bytes of the first block of a shared journal and of each block of its index; a sync ends one for
good."""

# A transaction of version 2: its head in place of the sectors, and a seal that has the floor.
HEAD = struct.Struct("<8sHHI16sQq16s16sQQ16sQQII")
FLOOR_SEAL = struct.Struct("<QQQqQ16sQ")
# A record's kind and flags are read as one number: the kinds without flags are compared as is.
RECORD = struct.Struct("<HHI")


TABLE_CHANGE_HEAD = struct.Struct("<QBB")
U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
I64 = struct.Struct("<q")
CRC = U32
# Block flags.
DEFINES = 1  # also of blocks with DDL
SEALS = 2
CATALOGUE = 4
# Record kinds.
BEGIN, TABLE, INSERT, UPDATE, DELETE, DDL, SEQUENCE, BLOB, GAP, TABLE_CHANGE, PAD = range(1, 12)


# A TABLE record with the flag that says: the writer could not ask the engine's catalogue.
UNRESOLVED_TABLE = TABLE | 2 << 8


# Flags of a BLOB record.
LAST_CHUNK = 1
UNAVAILABLE = 2


class Malformed(ValueError):
    """Bytes under a right checksum that make no sense; becomes JournalCorrupt with its place."""


class MalformedRecord(Malformed):
    """The same, at a place within its block's payload."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


new_tuple = tuple.__new__
_new_object = object.__new__
_set_field = object.__setattr__
_UNKNOWN = uuids.SafeUUID.unknown


def fast_uuid(raw: bytes) -> UUID:
    """Return the uuid of 16 bytes, in a third of the time that its class takes."""
    made = _new_object(UUID)
    _set_field(made, "int", int.from_bytes(raw, "big"))
    _set_field(made, "is_safe", _UNKNOWN)
    return made


known_uuid = functools.lru_cache(maxsize=64)(fast_uuid)  # of databases and servers: few


def pread(fd: int, length: int, offset: int) -> bytes:
    """Return up to LENGTH bytes of FD at OFFSET; fewer only where the file ends. Raises OSError."""
    piece = os.pread(fd, length, offset)
    if len(piece) == length or not piece:
        return piece
    pieces = [piece]
    have = len(piece)
    while have < length and (piece := os.pread(fd, length - have, offset + have)):
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def checksum(uuid: bytes, content: bytes) -> int:
    """Return the CRC-32C of UUID, the journal's 16 bytes, and CONTENT behind it."""
    crc: int = crc32c.extend(crc32c.value(uuid), content)
    return crc


def sector_of(uuid: bytes, content: bytes) -> bytes:
    """Return the SECTOR bytes of a sector of journal UUID: CONTENT, which is at most SECTOR - 4
    bytes (not checked), zeros, and the checksum of all that in the last four bytes."""
    body = content.ljust(SECTOR - 4, b"\0")
    return body + CRC.pack(checksum(uuid, body))


def file_block(uuid: bytes, content: bytes) -> bytes:
    """Return a block of `FILE_BLOCK` bytes of the shared journal UUID, with its checksum."""
    body = content.ljust(FILE_BLOCK - CRC.size, b"\0")
    return body + CRC.pack(checksum(uuid, body))


def is_file_block(uuid: bytes, block: bytes) -> bool:
    """Tell whether BLOCK is one of the shared journal UUID, intact."""
    body = block[: FILE_BLOCK - CRC.size]
    return bool(CRC.unpack_from(block, len(body))[0] == checksum(uuid, body))


def pwrite(fd: int, content: bytes, offset: int) -> None:
    """Write all of CONTENT to FD at OFFSET, in several calls if need be; syncs nothing.

    Raises OSError, after which a part may be written.
    """
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written


def read_counted(buffer: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the bytes behind a u16 length at AT, and the offset after them."""
    (length,) = U16.unpack_from(buffer, at)
    start = at + 2
    if start + length > end:
        raise Malformed("a name or a default is longer than its record")
    return buffer[start : start + length], start + length


def read_text(buffer: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the UTF-8 text behind a u16 length at AT, and the offset after it."""
    text, at = read_counted(buffer, at, end)
    return text.decode(), at


def with_length(text: str) -> bytes:
    """Return TEXT in UTF-8 behind its u16 length, as `read_text` reads it; ValueError if it is
    longer than 65535 bytes."""
    raw = text.encode()
    if len(raw) > 0xFFFF:
        raise ValueError(f"{text[:40]!r}... is longer than 65535 bytes")
    return U16.pack(len(raw)) + raw
