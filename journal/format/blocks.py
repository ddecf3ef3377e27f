"""Blocks of a journal: their headers, checksums and chain."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from firebird_cdc.errors import JournalCorrupt, JournalError, JournalTorn
from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.layout import (
    BLOCK,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CATALOGUE,
    DEFINES,
    MAX_PAYLOAD,
    RECORD,
    SEALS,
    Malformed,
    checksum,
    new_tuple,
)
from firebird_cdc.journal.format.sectors import Sectors

_SCAN_WINDOW = 1024 * 1024
# What the plugin gives a block.
_BACKWARD_WINDOW = 128 * 1024

Read = Callable[[int, int], bytes]
"""Reads LENGTH bytes at an OFFSET, fewer only where the file ends."""


class BlockHeader(NamedTuple):
    """Header of a block; offsets are those of the file."""

    offset: int
    payload_length: int
    first_event: int
    previous_crc: int
    flags: int
    record_count: int
    crc: int
    raw: bytes
    end: int  # offset just behind the block


def read_header(read: Read, offset: int) -> BlockHeader | None:
    """Return the header of the block that may begin at OFFSET; None: none does."""
    raw = read(BLOCK_HEADER, offset)
    if len(raw) < BLOCK_HEADER:
        return None
    magic, length, own, first_event, previous, flags, _, count, crc = BLOCK.unpack(raw)
    if magic != BLOCK_MAGIC or own != offset or not 0 < length <= MAX_PAYLOAD:
        return None
    end = offset + BLOCK_HEADER + length
    return new_tuple(
        BlockHeader, (offset, length, first_event, previous, flags, count, crc, raw, end)
    )


def read_payload(read: Read, uuid: bytes, block: BlockHeader) -> bytes | None:
    """Return the payload of BLOCK of journal UUID; None: it is not intact."""
    payload = read(block.payload_length, block.offset + BLOCK_HEADER)
    return payload if checksum(uuid, block.raw[:36] + payload) == block.crc else None


class BlockChain:
    """Blocks of one journal, each of which bears the checksum of the one before it.

    ``head``: the first bytes of the file, the sectors and what was read with them. Calls raise
    JournalTorn where the journal ends early, JournalCorrupt where it is damaged, OSError.
    """

    __slots__ = ("_head", "_sectors", "_source", "_stamp", "_uuid_crc")

    def __init__(self, source: Source, head: bytes, sectors: Sectors) -> None:
        self._source = source
        self._head = head
        self._sectors = sectors
        self._stamp = sectors.stamp
        self._uuid_crc = sectors.uuid_crc

    def read(self, length: int, offset: int) -> bytes:
        """Return LENGTH bytes at OFFSET, fewer only where the file ends."""
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        return self._source.read(length, offset)

    def header(self, offset: int) -> BlockHeader:
        """Return the header of the block at OFFSET, which has to be one of this journal. Raises
        JournalTorn or JournalCorrupt."""
        block = read_header(self.read, offset)
        if block is None:
            raw = self.read(BLOCK_HEADER, offset)
            is_end = len(raw) < BLOCK_HEADER
            raise self.broken(offset, raw, "the file ends" if is_end else "no block begins here")
        stamp = self._stamp
        is_catalogue = stamp is not None and offset == stamp.catalogue_offset
        if block.flags != CATALOGUE if is_catalogue else block.flags & ~(DEFINES | SEALS):
            raise self.broken(offset, block.raw, "the block has unknown flags")
        if stamp is not None:
            limit = stamp.journal_length if is_catalogue else self._sectors.seal_end
            if block.end > limit:
                raise self.broken(offset, block.raw, "the block is longer than the journal")
        return block

    def payload(self, block: BlockHeader) -> bytes:
        """Return the block's payload after its checksum was found right."""
        offset, length, _, _, _, _, crc, raw, end = block
        payload = self._head[offset + BLOCK_HEADER : end]
        if len(payload) < length:
            payload = self._source.read(length, offset + BLOCK_HEADER)
            if len(payload) < length:
                raise self.broken(offset, raw + payload, "the file ends inside the block")
        extend = crc32c.extend
        if extend(extend(self._uuid_crc, raw[:36]), payload) != crc:
            raise self.broken(offset, raw + payload, "the block's checksum is wrong")
        return payload

    def records(self, block: BlockHeader) -> Iterator[tuple[int, int, bytes, int, int]]:
        """Yield (kind and flags, table number, payload, body's start, its end) of a block."""
        payload = self.payload(block)
        at = 0
        try:
            while at < len(payload):
                kind, number, length = RECORD.unpack_from(payload, at)
                end = at + 8 + length
                if end > len(payload):
                    raise Malformed("a record is longer than its block")
                yield kind, number, payload, at + 8, end
                at = end
        except (Malformed, struct.error) as error:
            self.malformed(block.offset + BLOCK_HEADER + at, str(error))

    def check_link(self, block: BlockHeader, previous_crc: int) -> None:
        """Raise an error unless BLOCK continues the one with checksum PREVIOUS_CRC."""
        if block.previous_crc != previous_crc:
            what = "the block does not continue the one before it"
            raise self.broken(block.offset, block.raw, what)

    def walk(self, end_offset: int | None = None) -> Iterator[BlockHeader]:
        """Yield the header of every block up to the seal; checks their chain, no payload."""
        offset = self._sectors.data_offset
        previous_crc = self._sectors.header_crc
        while end_offset is None or offset < end_offset:
            block = self.header(offset)
            self.check_link(block, previous_crc)
            yield block
            if block.flags & SEALS:
                return
            offset = block.end
            previous_crc = block.crc

    def walk_to(self, offset: int) -> Iterator[BlockHeader]:
        """Yield the headers of the blocks from the last intact one before OFFSET up to the seal;
        checks their chain. Of a journal without a stamp, of all blocks."""
        before = self.block_before(offset) if self._stamp is not None else None
        if before is None:
            yield from self.walk()
            return
        while not before.flags & SEALS:
            yield before
            block = self.header(before.end)
            self.check_link(block, before.crc)
            before = block
        yield before

    def block_before(self, offset: int) -> BlockHeader | None:
        """Return the last intact block that begins before OFFSET; None: none but the first may.

        See `JournalReader.first_block` on why it is one of the chain.
        """
        end = min(offset, self._sectors.seal_end)
        size = _BACKWARD_WINDOW
        while end > self._sectors.data_offset:
            start = max(self._sectors.data_offset, end - size)
            window = self.read(end - start + len(BLOCK_MAGIC) - 1, start)
            at = window.rfind(BLOCK_MAGIC, 0, end - start + len(BLOCK_MAGIC) - 1)
            while at >= 0:
                try:
                    block = self.header(start + at)
                    self.payload(block)
                    return block
                except JournalCorrupt:
                    at = window.rfind(BLOCK_MAGIC, 0, at + len(BLOCK_MAGIC) - 1)
            end = start
            size = min(2 * size, _SCAN_WINDOW)
        return None

    def malformed(self, offset: int, what: str) -> NoReturn:
        """Raise JournalCorrupt: at OFFSET is WHAT the format does not allow."""
        raise JournalCorrupt(self._source.path, offset, what)

    def broken(self, offset: int, seen: bytes, what: str) -> JournalError:
        """Return the error for a block that is not right at OFFSET, where SEEN was read.

        Torn if the journal may simply end here: nobody has marked it as committed and nothing
        of it follows. Corrupt if more of it was there once.
        """
        if self._stamp is not None:
            end = self._stamp.journal_length  # the catalogue's, if there is one
            return JournalCorrupt(
                self._source.path, offset, f"{what}; the stamp says it ends at {end}"
            )
        if self._sectors.commit_mark is not None:
            why = "no intact seal, though the transaction was committed"
            return JournalCorrupt(self._source.path, offset, f"{what}; {why}")
        later = self._find_later_part(offset)
        if later is not None and self._source.read(len(seen), offset) == seen:
            what = f"{what}; an intact part of the journal follows at {later}"
            return JournalCorrupt(self._source.path, offset, what)
        return JournalTorn(self._source.path, offset, f"{what}; the journal has no seal")

    def _find_later_part(self, offset: int) -> int | None:
        """Return the place of an intact seal, or of the next block of the chain, after OFFSET.

        A block that is intact but out of the chain is a remainder: of a savepoint that was
        rolled back and partly overwritten. So it says nothing about what follows.
        """
        broken = self._source.read(BLOCK_HEADER, offset)
        links = set()
        if len(broken) == BLOCK_HEADER:
            length = min(BLOCK.unpack(broken)[1], MAX_PAYLOAD)
            payload = self._source.read(length, offset + BLOCK_HEADER)
            links = {BLOCK.unpack(broken)[8], checksum(self._sectors.uuid, broken[:36] + payload)}
            if len(links) == 1:
                links = set()
        seal_length = self._sectors.seal.size
        start = offset + 1
        while window := self._source.read(_SCAN_WINDOW, start):
            at = window.find(BLOCK_MAGIC)
            while at >= 0:
                block = read_header(self._source.read, start + at)
                if block is not None:
                    is_seal = block.flags == SEALS and block.payload_length == seal_length
                    if is_seal or block.previous_crc in links:
                        if read_payload(self._source.read, self._sectors.uuid, block) is not None:
                            return start + at
                        if not is_seal:
                            links.clear()
                at = window.find(BLOCK_MAGIC, at + 1)
            if len(window) < _SCAN_WINDOW:
                return None
            start += _SCAN_WINDOW - len(BLOCK_MAGIC) + 1
        return None
