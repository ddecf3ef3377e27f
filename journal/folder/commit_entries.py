"""Entries of commits by their tickets: the file commits in ``.firebird-cdc``.

native/commits.c writes one for each transaction that was committed, while it holds the lock of the
tickets. They are not synced: those of another start of the machine say nothing.

    at 128 times the ticket: u64 ticket, 16s uuid, 16s uuid of the journal, u64 offset, u64 length,
    u64 end of the seal, u64 offset of the catalogue, u64 events, u64 transaction, i64 commit_us,
    16s boot, u8 flags (1 it has DDL, 2 definitions in it have to be completed, 4 a sync of it
    failed), 11 bytes of zeros, u32 CRC-32C
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.format import crc32c, fast_uuid
from firebird_cdc.journal.format.layout import new_tuple, pwrite

_ENTRY = struct.Struct("<Q16s16sQQQQQQq16sB11xI")
_HAS_DDL, _IS_UNRESOLVED, _IS_UNSYNCED = 1, 2, 4
_CRC_BYTES = 4

LAST_TICKET = 2**64 - 1
"""No ticket that is ever drawn."""

_MOST_AT_ONCE = 4096  # entries


class CommitEntry(NamedTuple):
    """Entry of a commit; all offsets but ``offset`` are relative to that. ``flags``: as above."""

    ticket: int
    uuid: UUID
    journal: UUID
    offset: int
    length: int
    seal_end: int
    catalogue_offset: int
    events: int
    transaction: int
    commit_us: int
    flags: int = 0

    @property
    def has_ddl(self) -> bool:
        """True if it has DDL."""
        return bool(self.flags & _HAS_DDL)

    @property
    def is_unresolved(self) -> bool:
        """True if definitions in it have to be completed."""
        return bool(self.flags & _IS_UNRESOLVED)

    @property
    def is_unsynced(self) -> bool:
        """True if a sync of it failed: it has to be copied."""
        return bool(self.flags & _IS_UNSYNCED)


def write_entry(fd: int, entry: CommitEntry) -> None:
    """Write ENTRY, whose ticket was drawn by who calls, and is still locked. Raises OSError."""
    ticket, uuid, journal, *rest, flags = entry
    content = _ENTRY.pack(
        ticket, uuid.bytes, journal.bytes, *rest, boot_uuid().bytes, flags, 0
    )[:-_CRC_BYTES]  # fmt: skip
    crc = crc32c.value(content)
    pwrite(fd, content + crc.to_bytes(_CRC_BYTES, "little"), ticket * _ENTRY.size)


def read_entries(fd: int, first: int, last: int = LAST_TICKET) -> Iterator[CommitEntry]:
    """Yield the entries of tickets FIRST to LAST that were written since the machine started.
    Raises OSError."""
    boot = boot_uuid().bytes
    at = max(first, 1)
    while at <= last:
        try:
            at = max(at, os.lseek(fd, at * _ENTRY.size, os.SEEK_DATA) // _ENTRY.size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes alone up to the end
                return
            raise
        count = min(last - at + 1, _MOST_AT_ONCE)
        if count <= 0:
            return
        content = os.pread(fd, count * _ENTRY.size, at * _ENTRY.size)
        yield from _entries(content, at, boot)
        if len(content) < count * _ENTRY.size:
            return
        at += count


def _entries(content: bytes, first: int, boot: bytes) -> Iterator[CommitEntry]:
    whole = len(content) // _ENTRY.size * _ENTRY.size
    for number, fields in enumerate(_ENTRY.iter_unpack(content[:whole])):
        ticket, uuid, journal, *rest, written_in, flags, crc = fields
        if ticket != first + number or written_in != boot:
            continue
        at = number * _ENTRY.size
        if crc == crc32c.value(content[at : at + _ENTRY.size - _CRC_BYTES]):
            found = ticket, fast_uuid(uuid), fast_uuid(journal), *rest, flags
            yield new_tuple(CommitEntry, found)
