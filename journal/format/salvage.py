"""Remains of a journal whose beginning is damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.journal.format.definitions import parse_begin
from firebird_cdc.journal.format.layout import (
    BEGIN,
    BLOCK,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    COMMIT,
    COMMIT_MAGIC,
    COMMIT_OFFSET,
    CRC,
    DATA_OFFSET,
    HEADER,
    MAGIC,
    MAX_PAYLOAD,
    RECORD,
    SECTOR,
    STAMP,
    STAMP_MAGIC,
    STAMP_OFFSET,
    Malformed,
    checksum,
)
from firebird_cdc.journal.format.model import Stamp


class Remains(NamedTuple):
    """Intact parts of the envelope of a damaged journal; None for those that are not."""

    transaction: int | None = None
    commit_us: int | None = None
    stamp: Stamp | None = None
    database: str | None = None


def read_remains(read: Callable[[int, int], bytes], uuid: UUID) -> Remains:
    """Return what sectors and first block of journal UUID still say, each for itself.

    read: takes length and offset, and gives fewer bytes only where the file ends. UUID is a part of
    each checksum: it may be known by the file's name where the header is lost. Never raises for
    what is in the file.
    """
    raw = uuid.bytes
    head = read(DATA_OFFSET, 0)
    header, mark, stamp = (
        sector
        if len(sector) == SECTOR
        and sector.startswith(magic)
        and CRC.unpack_from(sector, SECTOR - 4) == (checksum(raw, sector[:-4]),)
        else None
        for sector, magic in (
            (head[:SECTOR], MAGIC),
            (head[COMMIT_OFFSET : COMMIT_OFFSET + SECTOR], COMMIT_MAGIC),
            (head[STAMP_OFFSET : STAMP_OFFSET + SECTOR], STAMP_MAGIC),
        )
    )
    remains = Remains(database=_remaining_database(read, raw))
    if header is not None:
        remains = remains._replace(transaction=HEADER.unpack_from(header)[4])
    if mark is not None:
        *_, commit_us, transaction = COMMIT.unpack_from(mark)
        remains = remains._replace(commit_us=commit_us, transaction=transaction)
    if stamp is not None:
        held = Stamp(*STAMP.unpack_from(stamp)[1:])
        remains = remains._replace(
            commit_us=held.commit_us, transaction=held.transaction, stamp=held
        )
    return remains


def _remaining_database(read: Callable[[int, int], bytes], uuid: bytes) -> str | None:
    """The database's path in the first block, None if that is not intact."""
    raw = read(BLOCK_HEADER, DATA_OFFSET)
    if len(raw) < BLOCK_HEADER:
        return None
    magic, length, own, *_, crc = BLOCK.unpack(raw)
    if magic != BLOCK_MAGIC or own != DATA_OFFSET or not 0 < length <= MAX_PAYLOAD:
        return None
    payload = read(length, DATA_OFFSET + BLOCK_HEADER)
    if checksum(uuid, raw[:36] + payload) != crc:
        return None
    try:
        kind, _, size = RECORD.unpack_from(payload)
        return parse_begin(payload[8 : 8 + size])[0] if kind == BEGIN else None
    except (Malformed, struct.error, UnicodeDecodeError):
        return None
