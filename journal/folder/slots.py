"""Slots of the transactions that are open in a process and have their changes in memory alone.

The file ``slots/<owner>`` in ``.firebird-cdc``, which native/slots.c writes. A transaction that is
in limbo when its process is killed is known by its slot alone: the engine does not report the first
phase of a two-phase commit.

    slot, 512 bytes: u64 transaction (0: free), u64 inode of the database, i64 begun_us, 16s GUID,
    16s boot, u16 length of the path, the path

The file is mapped, and never synced: slots of another start of the machine say nothing. The number
of the transaction is written last, and taken away first.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.format import fast_uuid

_SLOT = struct.Struct("<QQq16s16sH")
_BYTES = 512


class OpenTransaction(NamedTuple):
    """Transaction that was open in a process; ``begun_us``: microseconds since 1970, UTC."""

    transaction: int
    database_inode: int
    begun_us: int
    database_guid: UUID
    database: str


def read_slots(path: Path) -> list[OpenTransaction]:
    """Return the transactions that a file of slots names, if it was written since the machine
    started; none if there is no file. Raises OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return list(_parse(content, boot_uuid().bytes))


def _parse(content: bytes, boot: bytes) -> Iterator[OpenTransaction]:
    for at in range(0, len(content) - _BYTES + 1, _BYTES):
        transaction, inode, begun_us, guid, written_in, length = _SLOT.unpack_from(content, at)
        if transaction and written_in == boot:
            path = content[at + _SLOT.size : at + _SLOT.size + length]
            yield OpenTransaction(transaction, inode, begun_us, fast_uuid(guid), os.fsdecode(path))
