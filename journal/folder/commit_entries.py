"""Entries of commits by their tickets: the file commits in ``.firebird-cdc``.

native/commits.c writes one for each transaction that was committed in a shared journal, while it
holds the lock of the tickets. They are not synced: those of another start of the machine say
nothing.

    at 128 times the ticket: u64 ticket, 16s uuid, 16s uuid of the journal, u64 offset, u64 length,
    u64 end of the seal, u64 offset of the catalogue, u64 events, u64 transaction, i64 commit_us,
    16s boot, 12 bytes of zeros, u32 CRC-32C
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

import google_crc32c

from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.format import fast_uuid

_ENTRY = struct.Struct("<Q16s16sQQQQQQq16s12xI")
_CRC_BYTES = 4

LAST_TICKET = 2**64 - 1
"""No ticket that is ever drawn."""

_MOST_AT_ONCE = 4096  # entries


class CommitEntry(NamedTuple):
    """Entry of a commit; offsets but ``offset`` itself are relative to that."""

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
        ticket, uuid, journal, *rest, written_in, crc = fields
        if ticket != first + number or written_in != boot:
            continue
        at = number * _ENTRY.size
        if crc == google_crc32c.value(content[at : at + _ENTRY.size - _CRC_BYTES]):
            yield CommitEntry(ticket, fast_uuid(uuid), fast_uuid(journal), *rest)
