"""Remains of a journal whose beginning is damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.journal.format.blocks import read_header, read_payload
from firebird_cdc.journal.format.definitions import parse_begin
from firebird_cdc.journal.format.layout import (
    BEGIN,
    COMMIT_MAGIC,
    COMMIT_OFFSET,
    DATA_OFFSET,
    HEADER,
    MAGIC,
    RECORD,
    SECTOR,
    STAMP_MAGIC,
    STAMP_OFFSET,
    Malformed,
)
from firebird_cdc.journal.format.model import Stamp
from firebird_cdc.journal.format.sectors import is_sector, parse_commit_mark, parse_stamp


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
        sector if is_sector(sector, magic, raw) else None
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
        marked = parse_commit_mark(mark)
        remains = remains._replace(commit_us=marked.commit_us, transaction=marked.transaction)
    if stamp is not None:
        held = parse_stamp(stamp)
        remains = remains._replace(
            commit_us=held.commit_us, transaction=held.transaction, stamp=held
        )
    return remains


def _remaining_database(read: Callable[[int, int], bytes], uuid: bytes) -> str | None:
    """The database's path in the first block, None if that is not intact."""
    block = read_header(read, DATA_OFFSET)
    payload = None if block is None else read_payload(read, uuid, block)
    if payload is None:
        return None
    try:
        kind, _, size = RECORD.unpack_from(payload)
        return parse_begin(payload[8 : 8 + size])[0] if kind == BEGIN else None
    except (Malformed, struct.error, UnicodeDecodeError):
        return None
