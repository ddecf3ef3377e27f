"""The three sectors before the blocks of a journal: header, commit mark and stamp."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.errors import JournalCorrupt, JournalEmpty, JournalShared, JournalTorn
from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.format.layout import (
    BLOCK_HEADER,
    COMMIT,
    COMMIT_MAGIC,
    COMMIT_OFFSET,
    CRC,
    DATA_OFFSET,
    FLOOR_SEAL,
    HEAD,
    HEADER,
    MAGIC,
    SEAL,
    SEAL_BLOCK,
    SECTOR,
    SHARED_VERSION,
    STAMP,
    STAMP_MAGIC,
    STAMP_OFFSET,
    TRANSACTION_MAGIC,
    VERSION,
    checksum,
    fast_uuid,
    known_uuid,
    new_tuple,
)
from firebird_cdc.journal.format.model import CommitMark, Header, Place, Stamp

MAX_LENGTH = 1 << 62
"""More bytes than a file can have; offsets up to here can be asked of the system."""

# All three sectors at once, each with its checksum behind its padding.
_SECTORS = struct.Struct("<8sHH4x16sQq16s16sQ420xI 4sIQqQ476xI 4sIQqqQQQQ444xI")


class Sectors(NamedTuple):
    """Sectors of a journal, with checksums: of the header, and of the UUID alone, with which all
    others begin. ``data_offset``: where the blocks begin; ``seal``: the payload of its seal;
    ``seal_end``: offset just behind that, 0 without a stamp."""

    header: Header
    commit_mark: CommitMark | None
    stamp: Stamp | None
    header_crc: int
    uuid: bytes
    uuid_crc: int
    data_offset: int
    seal: struct.Struct
    seal_end: int


def parse_sectors(head: bytes, path: Path | str, place: Place | None = None) -> Sectors:
    """Return the sectors at the beginning of HEAD, the first bytes of the journal at PATH.

    ``place``: of a transaction in a shared journal, as ledger or index have it. Raises
    JournalEmpty, JournalTorn or JournalCorrupt.
    """
    if place is not None or head.startswith(TRANSACTION_MAGIC):
        return _parse_transaction(head, path, place)
    whole = _parse_whole(head) if len(head) >= DATA_OFFSET else None
    return whole if whole is not None else _parse_each(head, path)


def _parse_whole(head: bytes) -> Sectors | None:
    """Return the sectors of a journal with a stamp; None if anything isn't as it should."""
    (
        magic, version, data_offset, uuid, transaction, started_us, guid, owner, inode,
        header_crc,
        mark_magic, _, ticket, mark_us, marked, mark_crc,
        stamp_magic, stamp_epoch, sequence, commit_us, stamped_us, length, events, stamped,
        catalogue, stamp_crc,
    ) = _SECTORS.unpack_from(head)  # fmt: skip
    uuid_crc = crc32c.value(uuid)
    extend = crc32c.extend
    end = catalogue or length
    if (
        magic != MAGIC
        or version != VERSION
        or data_offset != DATA_OFFSET
        or mark_magic != COMMIT_MAGIC
        or stamp_magic != STAMP_MAGIC
        or not transaction == marked == stamped
        or extend(uuid_crc, head[: SECTOR - 4]) != header_crc
        or extend(uuid_crc, head[SECTOR : 2 * SECTOR - 4]) != mark_crc
        or extend(uuid_crc, head[2 * SECTOR : 3 * SECTOR - 4]) != stamp_crc
        or end < DATA_OFFSET + SEAL_BLOCK
        or length > MAX_LENGTH
        or (catalogue and end + BLOCK_HEADER >= length)
    ):
        return None
    header = new_tuple(
        Header,
        (
            fast_uuid(uuid),
            transaction,
            started_us,
            known_uuid(guid),
            known_uuid(owner),
            inode,
        ),
    )
    mark = new_tuple(CommitMark, (ticket, mark_us, marked))
    stamp = new_tuple(
        Stamp,
        (stamp_epoch, sequence, commit_us, stamped_us, length, events, stamped, catalogue),
    )
    return new_tuple(
        Sectors, (header, mark, stamp, header_crc, uuid, uuid_crc, DATA_OFFSET, SEAL, end)
    )


def _parse_transaction(head: bytes, path: Path | str, place: Place | None) -> Sectors:
    """Return what a transaction of version 2 has in place of the sectors."""
    found = parse_head(head)
    if found is None:
        raise JournalCorrupt(path, 0, "no intact head of a transaction is here")
    header, stamp = found.header, None
    if place is not None:
        stamp = place.stamp
        if header.uuid != place.uuid:  # its bytes are right wherever they lie
            raise JournalCorrupt(path, 0, f"transaction {header.uuid} lies here")
        _check_transaction(header, stamp.transaction, 0, path)
        end = place.seal_end
        is_short = end < HEAD.size + BLOCK_HEADER + FLOOR_SEAL.size
        if is_short or stamp.journal_length > MAX_LENGTH:
            raise JournalCorrupt(path, 0, f"the index gives a length of {end} bytes up to the seal")
        catalogue, length = stamp.catalogue_offset, stamp.journal_length
        if catalogue:
            is_wrong = catalogue < end or catalogue + BLOCK_HEADER >= length
        else:
            is_wrong = end != length
        if is_wrong:
            what = f"a seal up to {end}, a catalogue at {catalogue}, and the end at {length}"
            raise JournalCorrupt(path, 0, f"the index has {what}")
    uuid = header.uuid.bytes
    uuid_crc = crc32c.value(uuid)  # which the first block continues: the head is written last
    end = 0 if place is None else place.seal_end
    return new_tuple(
        Sectors, (header, None, stamp, uuid_crc, uuid, uuid_crc, HEAD.size, FLOOR_SEAL, end)
    )


class Head(NamedTuple):
    """Head of a transaction in a shared journal. ``length``: bytes of the transaction, up to the
    end of its seal or catalogue; 0: it has a journal of its own, and ends with its seal.
    ``journal``, ``offset``: where it was written, which a copy of it keeps; ``synced``: what lay
    there before this offset was on disk by then."""

    header: Header
    length: int
    journal: bytes
    offset: int
    synced: int

    def pack(self) -> bytes:
        """Return the head as it stands in a journal."""
        header = self.header
        raw = header.uuid.bytes
        content = HEAD.pack(
            TRANSACTION_MAGIC,
            SHARED_VERSION,
            HEAD.size,
            0,
            raw,
            header.transaction,
            header.started_us,
            header.database_guid.bytes,
            header.owner.bytes,
            header.database_inode,
            self.length,
            self.journal,
            self.offset,
            self.synced,
            0,
            0,
        )[: -CRC.size]
        return content + CRC.pack(checksum(raw, content))


def parse_head(raw: bytes) -> Head | None:
    """Return the head at the beginning of RAW; None: there is none that is intact."""
    if len(raw) < HEAD.size:
        return None
    (
        magic, version, size, _, uuid, transaction, started_us, guid, owner, inode,
        length, journal, offset, synced, _, crc,
    ) = HEAD.unpack_from(raw)  # fmt: skip
    if (magic, version, size) != (TRANSACTION_MAGIC, SHARED_VERSION, HEAD.size):
        return None
    if checksum(uuid, raw[: HEAD.size - CRC.size]) != crc:
        return None
    header = new_tuple(
        Header,
        (fast_uuid(uuid), transaction, started_us, known_uuid(guid), known_uuid(owner), inode),
    )
    return new_tuple(Head, (header, length, journal, offset, synced))


def _parse_each(head: bytes, path: Path | str) -> Sectors:
    """Return the sectors one by one, or say what is wrong with them."""
    raw = head[:SECTOR]
    if not any(raw):
        if any(head[:DATA_OFFSET]):
            raise JournalCorrupt(path, 0, "the header is gone, while later marks are there")
        raise JournalEmpty(path, 0, "nothing has been written to it yet")
    if not raw.startswith(MAGIC[: len(raw)]):
        raise JournalCorrupt(path, 0, "this is not a journal of firebird-cdc")
    if len(raw) < SECTOR:
        raise JournalTorn(path, len(raw), "the file ends inside its header")
    _, version, data_offset, uuid, transaction, started_us, guid, owner, inode = HEADER.unpack_from(
        raw
    )
    if version == SHARED_VERSION:
        raise JournalShared(path, 8, "several transactions share this journal")
    if version != VERSION:
        what = f"journal format {version} is not known to this version of firebird-cdc"
        raise JournalCorrupt(
            path, 8, f"{what} (it knows {VERSION} and {SHARED_VERSION}); upgrade it"
        )
    header_crc = read_crc(raw)
    if not is_sector(raw, MAGIC, uuid) or data_offset != DATA_OFFSET:
        raise JournalCorrupt(path, 0, "the header's checksum is wrong")
    header = Header(
        UUID(bytes=uuid), transaction, started_us, UUID(bytes=guid), UUID(bytes=owner), inode
    )
    sector = _sector(head, COMMIT_OFFSET, COMMIT_MAGIC, "commit mark", uuid, path)
    mark = None if sector is None else parse_commit_mark(sector)
    if mark is not None:
        _check_transaction(header, mark.transaction, COMMIT_OFFSET, path)
    sector = _sector(head, STAMP_OFFSET, STAMP_MAGIC, "stamp", uuid, path)
    stamp = None if sector is None else parse_stamp(sector)
    if stamp is not None:
        _check_transaction(header, stamp.transaction, STAMP_OFFSET, path)
        length, end = stamp.journal_length, stamp.seal_end
        if end < DATA_OFFSET + SEAL_BLOCK or length > MAX_LENGTH:
            what = f"the stamp gives a length of {length} bytes, {end} up to the seal"
            raise JournalCorrupt(path, STAMP_OFFSET, what)
        if stamp.catalogue_offset and end + BLOCK_HEADER >= length:
            what = f"the stamp has a catalogue at {end}, and the journal end at {length}"
            raise JournalCorrupt(path, STAMP_OFFSET, what)
    end = stamp.seal_end if stamp is not None else 0
    uuid_crc = crc32c.value(uuid)
    return Sectors(header, mark, stamp, header_crc, uuid, uuid_crc, DATA_OFFSET, SEAL, end)


def _sector(
    head: bytes, offset: int, magic: bytes, name: str, uuid: bytes, path: Path | str
) -> bytes | None:
    sector = head[offset : offset + SECTOR]
    if not any(sector):
        return None
    if len(sector) < SECTOR:
        raise JournalTorn(path, offset + len(sector), f"the file ends inside its {name}")
    if not is_sector(sector, magic, uuid):
        raise JournalCorrupt(path, offset, f"the {name}'s checksum is wrong")
    return sector


def _check_transaction(header: Header, transaction: int, offset: int, path: Path | str) -> None:
    if transaction != header.transaction:
        what = f"marked for transaction {transaction}, not for {header.transaction}"
        raise JournalCorrupt(path, offset, what)


def is_sector(sector: bytes, magic: bytes, uuid: bytes) -> bool:
    """Tell whether SECTOR is whole, begins with MAGIC and has the checksum of journal UUID."""
    return (
        len(sector) == SECTOR
        and sector.startswith(magic)
        and read_crc(sector) == checksum(uuid, sector[:-4])
    )


def read_crc(sector: bytes) -> int:
    """Return the checksum at the end of a SECTOR."""
    (crc,) = CRC.unpack_from(sector, SECTOR - 4)
    return int(crc)


def parse_commit_mark(sector: bytes) -> CommitMark:
    """Return the commit mark in an intact SECTOR."""
    _, _, ticket, commit_us, marked = COMMIT.unpack_from(sector)
    return CommitMark(ticket, commit_us, marked)


def parse_stamp(sector: bytes) -> Stamp:
    """Return the stamp in an intact SECTOR."""
    return Stamp(*STAMP.unpack_from(sector)[1:])
