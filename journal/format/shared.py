"""Shared journals, version 2 of the format: transactions of one process and one database.

A journal begins with a block that says whose it is. Behind it lie transactions and voids, each at a
multiple of `ALIGNMENT`, in any order. A closed journal ends with its index, which says what is
committed: readers go by that, or by the ledger, and never by what is whole. A transaction reads as
a journal of version 1 does, from its head on (``JournalReader`` with a `Place`).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.errors import (
    JournalCorrupt,
    JournalEmpty,
    JournalError,
    JournalShared,
    JournalTorn,
)
from firebird_cdc.journal.format.content import Closeable, RandomAccess, Source
from firebird_cdc.journal.format.journal_index import (
    Entry,
    JournalIndex,
    find_index,
    is_index_block,
    pack_index,
    pack_places,
    packed_above,
    unpack_entries,
)
from firebird_cdc.journal.format.layout import (
    ALIGNMENT,
    CRC,
    FILE_BLOCK,
    HEAD,
    MAGIC,
    SECTOR,
    SHARED_VERSION,
    TRANSACTION_MAGIC,
    checksum,
    fast_uuid,
    file_block,
    is_file_block,
    known_uuid,
)
from firebird_cdc.journal.format.model import Header, Place
from firebird_cdc.journal.format.reader import JournalReader, read_envelope
from firebird_cdc.journal.format.sectors import Head, is_sector, parse_head

_FILE = struct.Struct("<8sHHI16s16s16sQ16sqQH")
_IS_OWN = 1  # a flag: the journal is one transaction's own
_VOID = struct.Struct("<4sI16sQ16sQ16sQII")
_VOID_MAGIC = b"FBCV"
_WINDOW = 1024 * 1024
_MOST_IN_RUN = 1024


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

    @classmethod
    def of_own(cls, header: Header, boot: UUID, database: str) -> FileHeader:
        """Return the first block of the journal of that one transaction."""
        uuid, transaction, started_us, guid, owner, inode = header
        return cls(uuid, owner, guid, inode, boot, started_us, transaction, True, database)

    def of_transaction(self, uuid: UUID, transaction: int, started_us: int) -> Header:
        """Return the header of a transaction in the journal."""
        guid, owner, inode = self.database_guid, self.owner, self.database_inode
        return Header(uuid, transaction, started_us, guid, owner, inode)

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
        return file_block(self.uuid.bytes, content + path)


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
    if not is_file_block(uuid, block):
        return None
    path = block[_FILE.size : _FILE.size + length].decode(errors="replace")
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


def own_head(read: Callable[[int, int], bytes]) -> Head | None:
    """Return the head of the transaction that a journal, read by READ (length, offset), is of
    alone; None: it is not so, or that is rolled back."""
    head = parse_head(read(HEAD.size, FILE_BLOCK))
    if head is None or (head.offset, head.length) != (FILE_BLOCK, 0):
        return None
    return head if head.journal == head.header.uuid.bytes else None


def own_reader(path: Path, uuid: UUID, none_charset: str = "UTF-8") -> JournalReader:
    """Return a reader of the transaction that the journal at PATH is of alone, closed or not, be it
    without a seal. Raises JournalCorrupt if it has none, OSError."""
    return JournalReader(f"{path}/{uuid}.log", none_charset, base=FILE_BLOCK)


def read_file_header(path: Path) -> FileHeader:
    """Return the header of the journal at PATH. One that is damaged does not matter where the
    journal is one transaction's own. Raises JournalEmpty, JournalTorn, JournalCorrupt, OSError."""
    with closing(Source(path)) as source:
        block = source.read(FILE_BLOCK, 0)
        header = parse_file_header(block)
        if header is not None:
            return header
        head = own_head(source.read)
        is_torn = not any(source.read(HEAD.size, FILE_BLOCK))  # where the first head is
    if head is not None:
        with own_reader(path, head.header.uuid) as reader:
            return FileHeader.of_own(head.header, UUID(int=0), reader.database)
    if is_torn and not any(block):
        raise JournalEmpty(path, 0, "nothing has been written to it yet")
    if is_torn and (is_shared(block) or not any(block[: len(MAGIC)])):
        raise JournalTorn(path, 0, "its first block is not whole, and nothing is behind that")
    raise JournalCorrupt(path, 0, "its first block is damaged")


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


def walk(
    read: Callable[[int, int], bytes], size: int, journal: UUID, start: int = FILE_BLOCK
) -> Iterator[Found]:
    """Yield what lies in a journal of SIZE bytes, read by READ (length, offset), from START on.

    Bytes other than zeros where nothing begins are yielded as damage, up to the next thing that is
    intact; so is the index, if there is one, but for its intact blocks. A transaction's content is
    not looked at. Where one has no length, it is its journal's own and ends the walk, whatever is
    behind it.
    """
    raw = journal.bytes
    window = _Window(read, size)
    at, damaged = start, -1
    while at < size:
        piece = window.at(at, ALIGNMENT)
        if not any(piece):
            at = window.next_written(at)
            continue
        what = _parse_at(window, raw, at)
        if what is None and not is_index_block(window.at(at, FILE_BLOCK), raw, at):
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
        at, step = start, FILE_BLOCK
        while at < self._size:
            piece = self.at(at, step)
            if not piece:
                break
            written = len(piece.lstrip(b"\0"))
            if written:
                return at + (len(piece) - written) // ALIGNMENT * ALIGNMENT
            at += len(piece)
            step = min(step * 2, _WINDOW)  # most of a journal that has just begun
        return self._size


def _packed(first: bytes, journal: UUID, found: Iterable[tuple[Place, bytes]]) -> bytes:
    """Return a journal that begins with the block FIRST and has FOUND, which are transactions with
    their bytes."""
    parts, entries = [first], []
    at = FILE_BLOCK
    for place, content in found:
        entries.append(Entry.of(place._replace(offset=at)))
        end = aligned(at + len(content))
        parts.append(content.ljust(end - at, b"\0"))
        at = end
    start = aligned(at, FILE_BLOCK)
    return b"".join([*parts, bytes(start - at), pack_index(entries, journal, start)])


class SharedJournal(Closeable):
    """A shared journal, closed unless PLACES are given; a context manager.

    ``opener``: opens it where it is not on this machine, PATH is only its name then; ``content``:
    all of it, where the caller has it. ``entries``: its committed transactions in the order of
    their numbers; ``index``: where that says so. ``header``: None where it is damaged, which harms
    no transaction. PLACES: what is committed in one that is open, as a ledger says.

    Raises JournalTorn if the journal has no index, JournalEmpty if nothing is in the file,
    JournalCorrupt if it is no shared journal or both copies of a part of the index are damaged,
    OSError.
    """

    def __init__(
        self,
        path: Path | str,
        content: bytes | None = None,
        opener: Callable[[], RandomAccess] | None = None,
        places: list[Place] | None = None,
    ) -> None:
        self._path = path
        self._opener = opener
        self._source = source = Source(path, content, opener)
        try:
            first = source.read(FILE_BLOCK, 0)
            if is_sector(first[:SECTOR], MAGIC, first[16:32]):  # as version 1 has it
                raise JournalCorrupt(path, 8, "this is no journal that transactions share")
            self.header = parse_file_header(first)
            if places is None:
                self.index, self._packed = self._read_index(first)
            else:
                self._packed = pack_places(places)
            self._by_uuid: dict[bytes, Entry] = {}  # once it is asked for
        except BaseException:
            source.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """Entries of the committed transactions, in the order of their numbers."""
        return unpack_entries(self._packed)

    def packed_places(self, last: tuple[int, int]) -> bytes:
        """Return the places with numbers above LAST, packed."""
        return packed_above(self._packed, last)

    @functools.cached_property
    def places(self) -> list[Place]:
        """Places of the committed transactions, in the order of their numbers."""
        return [entry.place for entry in self.entries]

    def find(self, uuid: str) -> Place | None:
        """Return the place of a committed transaction, None if it is not here."""
        return next((place for place in self.places if str(place.uuid) == uuid), None)

    def among(self, uuids: Iterable[UUID]) -> list[Entry]:
        """Return the entries of those transactions that are here, in the order of their numbers;
        for who asks many times."""
        if not self._by_uuid:
            self._by_uuid = {entry.uuid: entry for entry in self.entries}
        found = (self._by_uuid.get(uuid.bytes) for uuid in uuids)
        return sorted(filter(None, found), key=lambda entry: entry.number)

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
        found = []
        for place in self.places:
            content = self._source.read(place.stamp.journal_length, place.offset)
            if len(content) < place.stamp.journal_length:
                raise JournalCorrupt(self._path, place.offset, f"{place.uuid} ends early")
            found.append((place, content))
        first = self._source.read(FILE_BLOCK, 0).ljust(FILE_BLOCK, b"\0")
        return _packed(first, self.index.journal, found)

    def only(self, none_charset: str = "UTF-8") -> JournalReader:
        """Return a reader of its only transaction. Raises JournalShared if it has several, or
        JournalEmpty if it has none."""
        if not self.entries:
            raise JournalEmpty(self._path, FILE_BLOCK, "no transaction in it was committed")
        if len(self.entries) > 1:
            what = f"{len(self.entries):,} transactions share this journal"
            raise JournalShared(self._path, FILE_BLOCK, what)
        return self.reader(self.places[0], none_charset)

    def readers(
        self, places: Iterable[Place], none_charset: str = "UTF-8"
    ) -> Iterator[tuple[Place, JournalReader | JournalError]]:
        """Yield each of PLACES with a reader, or with the error that came of opening one; many
        small ones that lie near to each other cost one read."""
        listed = list(places)
        spans = [(each.offset, each.stamp.journal_length) for each in listed]
        for run, start, content in self._runs(spans):
            for place in listed[run]:
                at, length = place.offset - start, place.stamp.journal_length
                own = None if content is None else content[at : at + length]
                try:
                    yield place, self._reader(place, none_charset, own)
                except JournalError as error:
                    yield place, error

    def runs(self, entries: list[Entry]) -> Iterator[tuple[list[Entry], int, bytes | None]]:
        """Yield ENTRIES in this order, those together that lie near to each other; where their
        bytes begin, and the bytes, None if it is one that is large."""
        for run, start, content in self._runs([(each.offset, each.length) for each in entries]):
            yield entries[run], start, content

    def _runs(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[slice, int, bytes | None]]:
        """Yield the same of SPANS, each an offset and a length."""
        first, many = 0, _MOST_IN_RUN
        while first < len(spans):
            run = slice(first, first + many)
            start = min(spans[run])[0]
            size = max(map(sum, spans[run])) - start
            if size > _WINDOW and many > 1:
                many //= 2
                continue
            yield run, start, self._source.read(size, start) if size <= _WINDOW else None
            first += many
            if 2 * size < _WINDOW:
                many = min(2 * many, _MOST_IN_RUN)

    def _read_index(self, first: bytes) -> tuple[JournalIndex, bytes]:
        """Return where the index lies, and the committed transactions that it names, packed."""
        source = self._source
        index = _find_index(self._path, source, first, self.header)
        held = source.read(index.end - index.start, index.start)
        begin = index.start
        return index, index.packed(lambda n, at: held[at - begin : at - begin + n])


def _find_index(
    path: Path | str, source: Source, first: bytes, header: FileHeader | None
) -> JournalIndex:
    """Return where the index of a journal lies that begins with the block FIRST, which HEADER is of
    if it is intact. Raises as `SharedJournal`."""
    size = source.size
    index = find_index(path, source.read, size, None if header is None else header.uuid.bytes)
    if index is None:
        if is_shared(first):
            raise JournalTorn(path, size, "the journal has no index: it is not closed")
        if size and any(first):
            raise JournalCorrupt(path, 0, "this is no journal that transactions share")
        raise JournalEmpty(path, 0, "nothing has been written to it yet")
    if index.end > aligned(size, FILE_BLOCK):
        raise JournalTorn(path, size, f"its index would end at byte {index.end}")
    return index


def count_above(path: Path | str, last: tuple[int, int]) -> tuple[str, int, Place | None]:
    """Return the database of a closed shared journal ("" if its first block is damaged), how many
    of its transactions have numbers above LAST, and the first of these: with few reads, however
    many there are. Raises as `SharedJournal`."""
    with closing(Source(path)) as source:
        first = source.read(FILE_BLOCK, 0)
        header = parse_file_header(first)
        index = _find_index(path, source, first, header)
        return "" if header is None else header.database, *index.above(source.read, last)


def alone(opened: JournalReader | SharedJournal, none_charset: str = "UTF-8") -> JournalReader:
    """Return OPENED or, in its place, a reader of its only transaction; raises as ``only``."""
    if isinstance(opened, JournalReader):
        return opened
    with opened:
        return opened.only(none_charset)


def own_journal(path: Path | str, place: Place) -> bytes:
    """Return a journal with the transaction at PLACE of the one at PATH as its own, byte by byte as
    it lies there, be it damaged. Raises OSError."""
    with closing(Source(path)) as source:
        header = parse_file_header(source.read(FILE_BLOCK, 0))
        length = place.stamp.journal_length
        content = source.read(length, place.offset).ljust(length, b"\0")
    first = bytes(FILE_BLOCK)
    if header is not None:
        number = place.stamp.transaction
        first = header._replace(uuid=place.uuid, transaction=number, is_own=True).pack()
    return _packed(first, place.uuid, [(place, content)])


def last_tickets(path: Path | str) -> Iterator[int]:
    """Yield, for each transaction that is whole in a shared journal, the last ticket drawn when it
    was sealed. Raises JournalError if PATH is none, OSError."""
    header = read_file_header(Path(path))
    with closing(Source(path)) as source:
        if header.is_own:
            with suppress(JournalError), own_reader(Path(path), header.uuid) as reader:
                if reader.seal is not None and reader.seal.floor is not None:
                    yield reader.seal.floor
            return
        for found in walk(source.read, source.size, header.uuid):
            if not isinstance(found.what, Head):
                continue
            content = source.read(found.what.length, found.offset)
            with suppress(JournalError), JournalReader(path, content=content) as reader:
                if reader.seal is not None and reader.seal.floor is not None:
                    yield reader.seal.floor


def database_of(path: Path | str) -> str:
    """Return the path of the database of a journal, of either version, closed or not. Raises as
    `read_envelope`."""
    try:
        return read_envelope(path)[2]
    except JournalShared:
        return read_file_header(Path(path)).database


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
