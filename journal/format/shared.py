"""Shared journals, version 2 of the format: transactions of one process and one database.

A journal begins with a block that says whose it is. Behind it lie transactions and voids, each at a
multiple of `ALIGNMENT`, in any order. A closed journal ends with its index, which says what is
committed: readers go by that, or by the ledger, and never by what is whole. A transaction reads as
a journal of version 1 does, from its head on (``JournalReader`` with a `Place`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.errors import (
    JournalCorrupt,
    JournalEmpty,
    JournalError,
    JournalShared,
    JournalTorn,
)
from firebird_cdc.journal.format.content import RandomAccess, Source
from firebird_cdc.journal.format.layout import (
    CRC,
    HEAD,
    MAGIC,
    SECTOR,
    SHARED_VERSION,
    TRANSACTION_MAGIC,
    checksum,
    fast_uuid,
    known_uuid,
)
from firebird_cdc.journal.format.model import Place, Stamp
from firebird_cdc.journal.format.reader import JournalReader
from firebird_cdc.journal.format.sectors import Head, is_sector, parse_head

ALIGNMENT = 64
"""Transactions and voids begin at multiples of it."""

FILE_BLOCK = 4096
"""Bytes of the first block and of each block of the index; a sync ends one for good."""

_FILE = struct.Struct("<8sHHI16s16s16sQ16sqQH")
_IS_OWN = 1  # a flag: the journal is one transaction's own
_VOID = struct.Struct("<4sI16sQ16sQ16sQII")
_VOID_MAGIC = b"FBCV"
_INDEX = struct.Struct("<4sIIIIIQ16s")
_INDEX_MAGIC = b"FBCX"
_ENTRY = struct.Struct("<16sQQqqQQQQIIQQ")
_IN_A_BLOCK = (FILE_BLOCK - _INDEX.size - CRC.size) // _ENTRY.size
_WINDOW = 1024 * 1024
_LOOKED_THROUGH = 4 * _WINDOW  # from the end, for an intact block of the index


class FileHeader(NamedTuple):
    """First block of a shared journal; ``transaction``: its number, if the journal is one
    transaction's own, else 0; ``boot``: of the machine; ``begun_us``: microseconds since 1970."""

    uuid: UUID
    owner: UUID
    database_guid: UUID
    database_inode: int
    boot: UUID
    begun_us: int
    transaction: int
    is_own: bool
    database: str

    def pack(self) -> bytes:
        """Return the block. Raises ValueError if the database's path is too long for it."""
        path = self.database.encode()
        if _FILE.size + len(path) > FILE_BLOCK - CRC.size:
            raise ValueError(f"{self.database[:80]}...: the path fits no journal")
        content = _FILE.pack(
            MAGIC,
            SHARED_VERSION,
            FILE_BLOCK,
            _IS_OWN if self.is_own else 0,
            self.uuid.bytes,
            self.owner.bytes,
            self.database_guid.bytes,
            self.database_inode,
            self.boot.bytes,
            self.begun_us,
            self.transaction,
            len(path),
        )
        return _with_checksum(self.uuid.bytes, content + path)


def _with_checksum(uuid: bytes, content: bytes) -> bytes:
    body = content.ljust(FILE_BLOCK - CRC.size, b"\0")
    return body + CRC.pack(checksum(uuid, body))


def is_shared(head: bytes) -> bool:
    """Tell whether the first bytes of a file are those of a shared journal, intact or not."""
    return head[: len(MAGIC) + 2] == MAGIC + SHARED_VERSION.to_bytes(2, "little")


def parse_file_header(block: bytes) -> FileHeader | None:
    """Return the header in the first block of a journal; None: it is not intact."""
    if len(block) < FILE_BLOCK:
        return None
    (
        magic, version, size, flags, uuid, owner, guid, inode, boot, begun_us, transaction, length,
    ) = _FILE.unpack_from(block)  # fmt: skip
    if (magic, version, size) != (MAGIC, SHARED_VERSION, FILE_BLOCK):
        return None
    body = block[: FILE_BLOCK - CRC.size]
    if CRC.unpack_from(block, len(body))[0] != checksum(uuid, body):
        return None
    path = body[_FILE.size : _FILE.size + length].decode(errors="replace")
    return FileHeader(
        fast_uuid(uuid),
        known_uuid(owner),
        known_uuid(guid),
        inode,
        known_uuid(boot),
        begun_us,
        transaction,
        bool(flags & _IS_OWN),
        path,
    )


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """Return the first multiple of ALIGNMENT at OFFSET or behind it."""
    return -(-offset // alignment) * alignment


# Voids


class Void(NamedTuple):
    """Void: the transaction at a place of a journal was rolled back after its ``prepare``, or has
    been written anew elsewhere. ``journal``, ``offset``: that place."""

    uuid: UUID
    transaction: int
    journal: bytes
    offset: int


def pack_void(void: Void, journal: UUID, offset: int) -> bytes:
    """Return a void that is to lie at OFFSET of JOURNAL."""
    content = _VOID.pack(
        _VOID_MAGIC,
        0,
        void.uuid.bytes,
        void.transaction,
        void.journal,
        void.offset,
        journal.bytes,
        offset,
        0,
        0,
    )
    body = content[: -CRC.size]
    return body + CRC.pack(checksum(journal.bytes, body))


def _parse_void(raw: bytes, journal: bytes, offset: int) -> Void | None:
    if len(raw) < _VOID.size:
        return None
    magic, _, uuid, transaction, of, at, home, own, _, crc = _VOID.unpack_from(raw)
    if (magic, home, own) != (_VOID_MAGIC, journal, offset):
        return None
    if checksum(journal, raw[: _VOID.size - CRC.size]) != crc:
        return None
    return Void(fast_uuid(uuid), transaction, of, at)


# What is in a journal, whatever became of it


class Found(NamedTuple):
    """Transaction, void or damage (None) at ``offset``; ``end``: where the next one may begin."""

    offset: int
    end: int
    what: Head | Void | None


def walk(read: Callable[[int, int], bytes], size: int, journal: UUID) -> Iterator[Found]:
    """Yield what lies in a journal of SIZE bytes, read by READ (length, offset).

    Bytes other than zeros where nothing begins are yielded as damage, up to the next thing that is
    intact; so is the index, if there is one, but for its intact blocks. A transaction's content is
    not looked at. Where one has no length, it is its journal's own and ends the walk, whatever is
    behind it.
    """
    raw = journal.bytes
    window = _Window(read, size)
    at, damaged = FILE_BLOCK, -1
    while at < size:
        piece = window.at(at, ALIGNMENT)
        if not any(piece):
            at = window.next_written(at)
            continue
        what = _parse_at(window, raw, at)
        if what is None and _index_block(window.at(at, FILE_BLOCK), raw, at) is None:
            damaged = at if damaged < 0 else damaged
            at += ALIGNMENT
            continue
        if damaged >= 0:
            yield Found(damaged, at, None)
            damaged = -1
        if what is None:
            at += FILE_BLOCK
            continue
        length = _VOID.size if isinstance(what, Void) else what.length
        end = min(aligned(at + length), size) if length else size
        yield Found(at, end, what)
        at = end
    if damaged >= 0:
        yield Found(damaged, size, None)


def _parse_at(window: _Window, journal: bytes, offset: int) -> Head | Void | None:
    piece = window.at(offset, HEAD.size)
    if piece.startswith(TRANSACTION_MAGIC):
        head = parse_head(piece)
        is_here = head is not None and (head.journal, head.offset) == (journal, offset)
        return head if is_here else None
    return _parse_void(piece, journal, offset) if piece.startswith(_VOID_MAGIC) else None


class _Window:
    """A part of a file in memory, which follows a walk."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._start = 0
        self._held = b""

    def at(self, offset: int, length: int) -> bytes:
        """Return LENGTH bytes at OFFSET, fewer only where the file ends."""
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._held):
            self._held = self._read(min(_WINDOW, self._size - offset), offset)
            self._start, begin = offset, 0
        return self._held[begin : begin + length]

    def next_written(self, start: int) -> int:
        """Return the first aligned offset from START on where not all is zero, or the size."""
        at = start
        while at < self._size:
            self.at(at, 1)
            begin = at - self._start
            found = _WRITTEN.search(self._held, begin)
            if found is not None:
                return (self._start + found.start()) // ALIGNMENT * ALIGNMENT
            if len(self._held) <= begin:
                break
            at = self._start + len(self._held)
        return self._size


_WRITTEN = re.compile(rb"[^\0]")


# The index


def pack_index(places: Sequence[Place], journal: UUID, offset: int) -> bytes:
    """Return the index of JOURNAL for OFFSET, a multiple of `FILE_BLOCK`: twice, so that damage to
    one place of it costs nothing. What it does not name is no part of the history."""
    total = max(-(-len(places) // _IN_A_BLOCK), 1)
    blocks = []
    for copy in range(2):
        for number in range(total):
            part = places[number * _IN_A_BLOCK : (number + 1) * _IN_A_BLOCK]
            at = offset + (copy * total + number) * FILE_BLOCK
            head = _INDEX.pack(_INDEX_MAGIC, number, total, copy, len(part), 0, at, journal.bytes)
            content = head + b"".join(map(_packed, part))
            blocks.append(_with_checksum(journal.bytes, content))
    return b"".join(blocks)


def _packed(place: Place) -> bytes:
    uuid, offset, ticket, seal_end, stamp = place
    return _ENTRY.pack(
        uuid.bytes,
        offset,
        stamp.sequence,
        stamp.commit_us,
        stamp.stamped_us,
        stamp.journal_length,
        stamp.event_count,
        stamp.transaction,
        stamp.catalogue_offset,
        stamp.epoch,
        0,
        ticket,
        seal_end,
    )


def _places_in(block: bytes, count: int) -> list[Place]:
    content = block[_INDEX.size : _INDEX.size + count * _ENTRY.size]
    return [
        Place(
            fast_uuid(uuid),
            offset,
            ticket,
            seal_end,
            Stamp(epoch, sequence, commit_us, stamped_us, length, events, transaction, catalogue),
        )
        for (
            uuid, offset, sequence, commit_us, stamped_us, length, events, transaction, catalogue,
            epoch, _, ticket, seal_end,
        ) in _ENTRY.iter_unpack(content)
    ]  # fmt: skip


class _IndexBlock(NamedTuple):
    number: int
    total: int
    copy: int
    entries: int
    journal: bytes

    def start(self, offset: int) -> int:
        """Return where the index begins of which this block lies at OFFSET."""
        return offset - (self.copy * self.total + self.number) * FILE_BLOCK


def _index_block(block: bytes, journal: bytes | None, offset: int) -> _IndexBlock | None:
    """Return the block of the index at OFFSET, of JOURNAL or, if that is None, of whatever journal
    it says; None: it is none that is intact and makes sense."""
    if len(block) < FILE_BLOCK or not block.startswith(_INDEX_MAGIC):
        return None
    _, number, total, copy, count, _, at, uuid = _INDEX.unpack_from(block)
    body = block[: FILE_BLOCK - CRC.size]
    if at != offset or journal not in (None, uuid):
        return None
    if CRC.unpack_from(block, len(body))[0] != checksum(uuid, body):
        return None
    found = _IndexBlock(number, total, copy, count, uuid)
    is_sound = number < total and copy < 2 and count <= _IN_A_BLOCK
    return found if is_sound and found.start(offset) >= FILE_BLOCK else None


class SharedJournal:
    """A shared journal that is closed; a context manager.

    ``opener``: opens it where it is not on this machine, PATH is only its name then; ``content``:
    all of it, where the caller has it. ``places``: its committed transactions in the order of
    their numbers. ``header``: None where it is damaged, which harms no transaction.

    Raises JournalTorn if the journal has no index, JournalEmpty if nothing is in the file,
    JournalCorrupt if it is no shared journal or both copies of a part of the index are damaged,
    OSError.
    """

    def __init__(
        self,
        path: Path | str,
        content: bytes | None = None,
        opener: Callable[[], RandomAccess] | None = None,
    ) -> None:
        self._path = path
        self._opener = opener
        self._source = source = Source(path, content, opener)
        try:
            first = source.read(FILE_BLOCK, 0)
            if is_sector(first[:SECTOR], MAGIC, first[16:32]):  # as version 1 has it
                raise JournalCorrupt(path, 8, "this is no journal that transactions share")
            self.header = parse_file_header(first)
            self.uuid, self.places = self._read_index(first)
        except BaseException:
            source.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __enter__(self) -> SharedJournal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def find(self, uuid: str) -> Place | None:
        """Return the place of a committed transaction, None if it is not here."""
        return next((place for place in self.places if str(place.uuid) == uuid), None)

    def reader(self, place: Place, none_charset: str = "UTF-8") -> JournalReader:
        """Return a reader of one of its transactions; raises as that does."""
        content = self._source.content
        if content is not None:
            content = content[place.offset : place.offset + place.stamp.journal_length]
        return self._reader(place, none_charset, content)

    def _reader(self, place: Place, none_charset: str, content: bytes | None) -> JournalReader:
        name = f"{self._path}/{place.uuid}.log"
        opener = None if content is not None else self._opener
        return JournalReader(name, none_charset, content, opener, place)

    @property
    def database(self) -> str:
        """Path of the database. Raises as `reader` does where the first block does not say it."""
        if self.header is not None:
            return self.header.database
        for _, reader in self.readers(self.places[:1]):
            if isinstance(reader, JournalError):
                raise reader
            with reader:
                return reader.database
        return ""

    def without_undone(self) -> bytes:
        """Return the journal with its committed transactions alone, in the order of their numbers,
        as it goes into a segment: nothing of what was rolled back is left. Raises JournalCorrupt
        if one of them ends early, OSError."""
        parts = [self._source.read(FILE_BLOCK, 0).ljust(FILE_BLOCK, b"\0")]
        places = []
        at = FILE_BLOCK
        for place in self.places:
            length = place.stamp.journal_length
            own = self._source.read(length, place.offset)
            if len(own) < length:
                raise JournalCorrupt(self._path, place.offset, f"{place.uuid} ends early")
            places.append(place._replace(offset=at))
            end = aligned(at + length)
            parts.append(own.ljust(end - at, b"\0"))
            at = end
        start = aligned(at, FILE_BLOCK)
        return b"".join([*parts, bytes(start - at), pack_index(places, self.uuid, start)])

    def only(self, none_charset: str = "UTF-8") -> JournalReader:
        """Return a reader of its only transaction. Raises JournalShared if it has several, or
        JournalEmpty if it has none."""
        if not self.places:
            raise JournalEmpty(self._path, FILE_BLOCK, "no transaction in it was committed")
        if len(self.places) > 1:
            what = f"{len(self.places):,} transactions share this journal"
            raise JournalShared(self._path, FILE_BLOCK, what)
        return self.reader(self.places[0], none_charset)

    def readers(
        self, places: Iterable[Place], none_charset: str = "UTF-8"
    ) -> Iterator[tuple[Place, JournalReader | JournalError]]:
        """Yield each of PLACES with a reader, or with the error that came of opening one; many
        small ones that lie near to each other cost one read."""
        run: list[Place] = []
        start = end = 0
        for place in places:
            behind = place.offset + place.stamp.journal_length
            least, most = (min(start, place.offset), max(end, behind)) if run else (0, 0)
            if not run or most - least > _WINDOW:
                yield from self._run(run, start, end, none_charset)
                run, least, most = [], place.offset, behind
            run.append(place)
            start, end = least, most
        yield from self._run(run, start, end, none_charset)

    def _run(
        self, run: list[Place], start: int, end: int, none_charset: str
    ) -> Iterator[tuple[Place, JournalReader | JournalError]]:
        is_read = bool(run) and end - start <= _WINDOW
        content = self._source.read(end - start, start) if is_read else None
        for place in run:
            at = place.offset - start
            own = None if content is None else content[at : at + place.stamp.journal_length]
            try:
                yield place, self._reader(place, none_charset, own)
            except JournalError as error:
                yield place, error

    def _read_index(self, first: bytes) -> tuple[UUID, list[Place]]:
        """Return the journal's uuid and its committed transactions, by the index."""
        source, size = self._source, self._source.size
        at, found = self._last_index_block(size)
        if found is None:
            raise self._without_index(first, size)
        start, behind = found.start(at), found.start(at) + 2 * found.total * FILE_BLOCK
        if behind > aligned(size, FILE_BLOCK):
            raise JournalTorn(self._path, size, f"its index would end at byte {behind}")
        index = source.read(behind - start, start)
        places: list[Place] = []
        for number in range(found.total):
            for copy in range(2):
                at = (copy * found.total + number) * FILE_BLOCK
                begin, block = start + at, index[at : at + FILE_BLOCK]
                held = _index_block(block, found.journal, begin)
                if held is not None and held[:3] == (number, found.total, copy):
                    places += self._checked(_places_in(block, held.entries), start, begin)
                    break
            else:
                begin = start + number * FILE_BLOCK
                raise JournalCorrupt(self._path, begin, "both copies of its index are damaged")
        return fast_uuid(found.journal), sorted(places, key=_number)

    def _last_index_block(self, size: int) -> tuple[int, _IndexBlock | None]:
        """Return the last block of the index that is intact, and where it lies."""
        named = None if self.header is None else self.header.uuid.bytes
        end = size
        while end > FILE_BLOCK and end > size - _LOOKED_THROUGH:
            start = max(aligned(end, FILE_BLOCK) - _WINDOW, 0)
            held = self._source.read(end - start, start)
            for at in range((end - 1) // FILE_BLOCK * FILE_BLOCK, start - 1, -FILE_BLOCK):
                begin = at - start
                found = _index_block(held[begin : begin + FILE_BLOCK], named, at)
                if found is not None:
                    return at, found
            end = start
        return 0, None

    def _without_index(self, first: bytes, size: int) -> JournalError:
        if not is_shared(first):
            if size and any(first):
                return JournalCorrupt(self._path, 0, "this is no journal that transactions share")
            return JournalEmpty(self._path, 0, "nothing has been written to it yet")
        return JournalTorn(self._path, size, "the journal has no index: it is not closed")

    def _checked(self, places: list[Place], start: int, block: int) -> list[Place]:
        """Return PLACES, of a block of the index that begins at START, if all lie before that.
        Raises JournalCorrupt."""
        for place in places:
            length = place.stamp.journal_length
            is_inside = place.offset >= FILE_BLOCK and place.offset + length <= start
            if not is_inside or place.offset % ALIGNMENT:
                what = f"the index has transaction {place.uuid} at byte {place.offset:,}"
                raise JournalCorrupt(self._path, block, what)
        return places


def open_any(
    path: Path | str,
    none_charset: str = "UTF-8",
    content: bytes | None = None,
    opener: Callable[[], RandomAccess] | None = None,
) -> JournalReader | SharedJournal:
    """Return a reader of a journal, or of one that transactions share; arguments, and what it
    raises, as of both. Where its first block is damaged, a shared one is known by its index."""
    try:
        return JournalReader(path, none_charset, content, opener)
    except JournalShared:
        return SharedJournal(path, content, opener)
    except (JournalEmpty, JournalCorrupt) as error:
        with suppress(JournalError):
            return SharedJournal(path, content, opener)
        raise error from None


def _number(place: Place) -> tuple[int, int]:
    return place.stamp.epoch, place.stamp.sequence
