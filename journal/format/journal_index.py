"""Index of a shared journal: which of its transactions are committed, and where they lie.

It ends the file: blocks of `FILE_BLOCK` bytes with some of the transactions each, in the order of
their numbers, and then the same blocks once more, so that damage to one place of it costs nothing.
What it does not name is no part of the history.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.format.layout import (
    ALIGNMENT,
    CRC,
    FILE_BLOCK,
    fast_uuid,
    file_block,
    is_file_block,
    new_tuple,
)
from firebird_cdc.journal.format.model import Place, Stamp

_BLOCK = struct.Struct("<4sIIIIIQ16s")
_MAGIC = b"FBCX"
_ENTRY = struct.Struct("<16sQQqqQQQQIIQQ")
PLACE_BYTES = _ENTRY.size
"""Bytes of a packed place."""

_WHERE = struct.Struct("<16xQQ16xQ24xI20x")  # of an entry: offset, sequence, bytes, epoch
_IN_A_BLOCK = (FILE_BLOCK - _BLOCK.size - CRC.size) // _ENTRY.size
_WINDOW = 1024 * 1024
_LOOKED_THROUGH = 4 * _WINDOW  # from the end, for an intact block

Read = Callable[[int, int], bytes]
"""Reads a file: up to so many bytes, at an offset."""


class Entry(NamedTuple):
    """Entry of the index: its fields in the order in which they stand there, see `Place` and
    `Stamp`. A `Place` takes several times as long to make."""

    uuid: bytes
    offset: int
    sequence: int
    commit_us: int
    stamped_us: int
    length: int
    event_count: int
    transaction: int
    catalogue_offset: int
    epoch: int
    zero: int
    ticket: int
    seal_end: int

    @classmethod
    def of(cls, place: Place) -> Entry:
        """Return the entry that says where PLACE is."""
        uuid, offset, ticket, seal_end, (epoch, *stamp) = place
        fields = (uuid.bytes, offset, *stamp, epoch, 0, ticket, seal_end)
        return new_tuple(cls, fields)

    @property
    def place(self) -> Place:
        """The place that it says."""
        return _places((self,))[0]

    @property
    def number(self) -> tuple[int, int]:
        """Epoch and sequence."""
        return self.epoch, self.sequence


def pack_index(entries: Sequence[Entry], journal: UUID, offset: int) -> bytes:
    """Return the index of JOURNAL for OFFSET, a multiple of `FILE_BLOCK`."""
    total = max(-(-len(entries) // _IN_A_BLOCK), 1)
    ordered = sorted(entries, key=attrgetter("epoch", "sequence"))
    packed = _packed(ordered)
    step = _IN_A_BLOCK * _ENTRY.size
    blocks = []
    for copy in range(2):
        for number in range(total):
            part = packed[number * step : (number + 1) * step]
            count = len(part) // _ENTRY.size
            at = offset + (copy * total + number) * FILE_BLOCK
            head = _BLOCK.pack(_MAGIC, number, total, copy, count, 0, at, journal.bytes)
            blocks.append(file_block(journal.bytes, head + part))
    return b"".join(blocks)


def pack_places(places: Sequence[Place]) -> bytes:
    """Return PLACES as the index has them."""
    return _packed(map(Entry.of, places))


def _packed(entries: Iterable[Entry]) -> bytes:
    return b"".join([_ENTRY.pack(*entry) for entry in entries])


def unpack_places(content: bytes) -> list[Place]:
    """Return the places that `pack_places` packed."""
    return _places(_ENTRY.iter_unpack(content))


def _places(entries: Iterable[tuple[Any, ...]]) -> list[Place]:
    new = new_tuple  # there are very many
    return [
        new(
            Place,
            (
                fast_uuid(uuid),
                offset,
                ticket,
                seal_end,
                new(Stamp, (epoch, sequence, commit_us, given_us, size, events, number, catalogue)),
            ),
        )
        for (
            uuid, offset, sequence, commit_us, given_us, size, events, number, catalogue, epoch, _,
            ticket, seal_end,
        ) in entries
    ]  # fmt: skip


def unpack_entries(content: bytes) -> list[Entry]:
    """Return the same as entries."""
    return [new_tuple(Entry, fields) for fields in _ENTRY.iter_unpack(content)]


def packed_above(content: bytes, last: tuple[int, int]) -> bytes:
    """Return those of packed places, which are in the order of their numbers, that are above
    LAST."""
    places = range(0, len(content), PLACE_BYTES)
    first = bisect_right(places, last, key=lambda at: _number(content, at))
    return content[first * PLACE_BYTES :]


def _number(content: bytes, at: int) -> tuple[int, int]:
    _, sequence, _, epoch = _WHERE.unpack_from(content, at)
    return epoch, sequence


class _Block(NamedTuple):
    number: int
    total: int
    copy: int
    entries: int
    journal: bytes

    def start(self, offset: int) -> int:
        """Return where the index begins of which this block lies at OFFSET."""
        return offset - (self.copy * self.total + self.number) * FILE_BLOCK


def _parse_block(block: bytes, journal: bytes | None, offset: int) -> _Block | None:
    """Return the block at OFFSET, of JOURNAL or, if that is None, of whatever journal it says;
    None: it is none that is intact and makes sense."""
    if len(block) < FILE_BLOCK or not block.startswith(_MAGIC):
        return None
    _, number, total, copy, count, _, at, uuid = _BLOCK.unpack_from(block)
    if at != offset or journal not in (None, uuid) or not is_file_block(uuid, block):
        return None
    found = _Block(number, total, copy, count, uuid)
    is_sound = number < total and copy < 2 and count <= _IN_A_BLOCK
    return found if is_sound and found.start(offset) >= FILE_BLOCK else None


def is_index_block(block: bytes, journal: bytes, offset: int) -> bool:
    """Tell whether BLOCK, at OFFSET of JOURNAL, is an intact one of its index."""
    return _parse_block(block, journal, offset) is not None


class JournalIndex(NamedTuple):
    """Place of the index in a shared journal, the file PATH: it begins at byte ``start``, with
    ``parts`` blocks, and then the same once more."""

    path: Path | str
    journal: UUID
    start: int
    parts: int

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.start + 2 * self.parts * FILE_BLOCK

    def part(self, read: Read, number: int) -> bytes:
        """Return the transactions that block NUMBER names, from 0, as `pack_places` does.

        Raises JournalCorrupt if both copies of it are damaged or it makes no sense, OSError.
        """
        part = self._part(read, number)
        self._check(part, number, (-1, -1))
        return part

    def packed(self, read: Read) -> bytes:
        """Return all of them; raises as `part`, or if they are not in the order of their
        numbers."""
        parts = [self._part(read, number) for number in range(self.parts)]
        last = (-1, -1)
        for number, part in enumerate(parts):
            last = self._check(part, number, last)
        return b"".join(parts)

    def _part(self, read: Read, number: int) -> bytes:
        for copy in range(2):
            at = self.start + (copy * self.parts + number) * FILE_BLOCK
            block = read(FILE_BLOCK, at)
            found = _parse_block(block, self.journal.bytes, at)
            if found is not None and found[:3] == (number, self.parts, copy):
                return block[_BLOCK.size : _BLOCK.size + found.entries * _ENTRY.size]
        at = self.start + number * FILE_BLOCK
        raise JournalCorrupt(self.path, at, "both copies of its index are damaged")

    def _check(self, part: bytes, block: int, last: tuple[int, int]) -> tuple[int, int]:
        """Check the places in a PART, whose numbers have to be above LAST; return the last one."""
        start = self.start
        for place, (offset, sequence, length, epoch) in enumerate(_WHERE.iter_unpack(part)):
            number = epoch, sequence
            is_here = offset >= FILE_BLOCK and offset + length <= start and not offset % ALIGNMENT
            if not is_here or number <= last:
                where = f"at byte {offset:,}" if not is_here else "in another order"
                what = f"the index has transaction {_uuid(part, place)} {where}"
                raise JournalCorrupt(self.path, start + block * FILE_BLOCK, what)
            last = number
        return last

    def places(self, read: Read) -> list[Place]:
        """Return the same as places; raises as `packed`."""
        return unpack_places(self.packed(read))

    def above(self, read: Read, last: tuple[int, int]) -> tuple[int, Place | None]:
        """Return how many transactions have numbers above LAST, and the first of these: few of the
        blocks are read, as all but the last one are full. Raises as `part`."""
        low, high = 0, self.parts
        while low < high:
            middle = (low + high) // 2
            if packed_above(self.part(read, middle), last):
                high = middle
            else:
                low = middle + 1
        if low == self.parts:
            return 0, None
        wanted = packed_above(self.part(read, low), last)
        (first,) = unpack_places(wanted[:PLACE_BYTES])
        count = len(wanted) // PLACE_BYTES
        if behind := self.parts - 1 - low:
            count += (behind - 1) * _IN_A_BLOCK
            count += len(self.part(read, self.parts - 1)) // PLACE_BYTES
        return count, first


def _uuid(places: bytes, place: int) -> UUID:
    at = place * PLACE_BYTES
    return fast_uuid(places[at : at + 16])


def find_index(
    path: Path | str, read: Read, size: int, journal: bytes | None
) -> JournalIndex | None:
    """Return the place of the index in a journal of SIZE bytes, by any intact block of it near the
    end; None: there is none. JOURNAL: the uuid that it has to have, if that is known."""
    end, length = size, FILE_BLOCK  # the last one is intact nearly always
    while end > FILE_BLOCK and end > size - _LOOKED_THROUGH:
        start = max(-(-end // FILE_BLOCK) * FILE_BLOCK - length, 0)
        held = read(end - start, start)
        for at in range((end - 1) // FILE_BLOCK * FILE_BLOCK, start - 1, -FILE_BLOCK):
            begin = at - start
            found = _parse_block(held[begin : begin + FILE_BLOCK], journal, at)
            if found is not None:
                return JournalIndex(path, fast_uuid(found.journal), found.start(at), found.total)
        end, length = start, _WINDOW
    return None
