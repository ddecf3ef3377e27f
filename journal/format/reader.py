"""Reads journals, whole, torn or damaged."""

from __future__ import annotations

import functools
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from firebird_cdc.errors import JournalCorrupt, JournalTorn
from firebird_cdc.journal.format import charsets
from firebird_cdc.journal.format.blocks import BlockChain, BlockHeader, read_header, read_payload
from firebird_cdc.journal.format.content import Closeable, RandomAccess, Source
from firebird_cdc.journal.format.definitions import (
    kept_catalogue,
    parse_begin,
    parse_catalogue,
)
from firebird_cdc.journal.format.layout import (
    BEGIN,
    BLOB,
    BLOCK_HEADER,
    CATALOGUE,
    DDL,
    DEFINES,
    DELETE,
    FILE_BLOCK,
    FLOOR_SEAL,
    FLOORS,
    GAP,
    I64,
    INSERT,
    PAD,
    RECORD,
    SEALS,
    SEQUENCE,
    TABLE,
    TABLE_CHANGE,
    U16,
    U32,
    UNRESOLVED_TABLE,
    UPDATE,
    Malformed,
    MalformedRecord,
    new_tuple,
    read_text,
)
from firebird_cdc.journal.format.model import (
    Change,
    CommitMark,
    DdlChange,
    Gap,
    Header,
    Place,
    RowChange,
    Seal,
    SequenceChange,
    Stamp,
    Storage,
    Table,
    TableChange,
    Undecodable,
)
from firebird_cdc.journal.format.open_tables import MAX_KEPT_DEFINITION, OpenTables, PendingBlobs
from firebird_cdc.journal.format.row_decoder import (
    ImageField,
    RowDecoder,
    codec_for_none,
    decode_text,
)
from firebird_cdc.journal.format.sectors import parse_sectors

_HALF_FLOOR = 30  # where it is in the header of a block


_ROWS = frozenset({INSERT, UPDATE, DELETE})
_EVENTS = _ROWS | {DDL, GAP}


# The first read of a file: the sectors and all of a small transaction, so that most journals
# cost one read.
_HEAD = 8 * 1024


class _Catalogue(NamedTuple):
    """The block behind the seal: the bodies of its definitions by table number, and the changes
    of tables by the number of the event."""

    block: BlockHeader
    bodies: Mapping[int, bytes]
    changes: Mapping[int, tuple[TableChange, ...]]


_NO_BODIES: Mapping[int, bytes] = {}
_NO_CHANGES: Mapping[int, tuple[TableChange, ...]] = {}


class UnstampedCatalogue(NamedTuple):
    """Catalogue behind the seal of a journal without a stamp: where it lies, ``start`` to ``end``;
    number of records, and payload; ``bodies``, definitions by table number; whether it
    ``tells_of_ddl`` and its tables."""

    start: int
    end: int
    records: int
    payload: bytes
    bodies: dict[int, bytes]
    tells_of_ddl: bool


class JournalReader(Closeable):
    """Reads one journal, whole or not, in memory for one block; a context manager.

    Checks the three sectors when it is made, and each block with all its records before it
    yields from it. Doesn't look at the file's name: whether a journal without a stamp counts
    is the caller's business. A live journal may be read while it is written; it is torn then
    where the writing has got to. One reader may be asked for changes several times, but
    belongs to one thread.

    ``none_charset``: for texts of CHARACTER SET NONE, a name of Firebird's or of Python's.
    ``content``: all of the file, where the caller has it; ``opener``: opens it, where it is not on
    this machine. PATH is only its name then. ``place``: of a transaction in a shared journal
    (``journal.format.shared``); PATH is ``JOURNAL/<uuid>.log`` then, and ``content`` its own bytes.
    ``base``: the same for one of which nobody knows the end; it is looked for.
    ``header``, ``commit_mark`` and ``stamp``: None where not written yet.

    Raises JournalEmpty if nothing has been written yet, JournalTorn if the file ends inside
    the sectors, JournalCorrupt if they are damaged or no journal's, OSError if the file can't
    be read, ValueError if ``none_charset`` is unknown.
    """

    header: Header
    commit_mark: CommitMark | None
    stamp: Stamp | None

    def __init__(
        self,
        path: Path | str,
        none_charset: str = "UTF-8",
        content: bytes | None = None,
        opener: Callable[[], RandomAccess] | None = None,
        place: Place | None = None,
        base: int = 0,
    ) -> None:
        self._none_codec = codec_for_none(none_charset)
        self._begin: tuple[str, str] | None = None
        self._catalogue_read: _Catalogue | None = None
        base = base if place is None else place.offset
        self._source = source = Source(path, content, opener, base)
        try:
            self._head = source.read(_HEAD, 0) if content is None else content
            self._sectors = sectors = parse_sectors(self._head, source.path, place)
        except BaseException:
            if content is None:
                source.close()
            raise
        self.header, self.commit_mark, self.stamp = sectors[:3]
        if place is not None:
            self.commit_mark = CommitMark(
                place.ticket, place.stamp.commit_us, self.header.transaction
            )
        self._chain = BlockChain(source, self._head, sectors)

    def close(self) -> None:
        """Close the file; blobs that were read from it open it again by its path."""
        self._source.close()

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._source.path)

    @property
    def place(self) -> str:
        """The file as the caller named it, which may be by a URI."""
        return str(self._source.path)

    @property
    def data_offset(self) -> int:
        """Offset of the first block."""
        return self._sectors.data_offset

    @property
    def size(self) -> int:
        """Bytes of the file, slack included; of a transaction in a shared journal, its own."""
        if self.stamp is not None and self._sectors.seal is FLOOR_SEAL:
            return min(self._source.size, self.stamp.journal_length)
        return self._source.size

    @property
    def database(self) -> str:
        """Path of the database as the server knows it; needs the first block.

        Raises as ``changes`` does.
        """
        return self._read_begin()[0]

    @property
    def user(self) -> str:
        """Name of the user whose attachment made the changes; needs the first block."""
        return self._read_begin()[1]

    @functools.cached_property
    def seal(self) -> Seal | None:
        """The seal, None if the journal has none that is intact where it has to be.

        Found through the stamp, or else by walking the headers of the blocks.
        """
        try:
            form = self._sectors.seal
            earlier: list[BlockHeader] = []
            if self.stamp is not None:
                block = self._chain.header(self._sectors.seal_end - BLOCK_HEADER - form.size)
            else:
                *earlier, block = deque(self._chain.walk(), maxlen=2)
            if not block.flags & SEALS:
                return None
            seal = self._parse_seal(block, self._chain.payload(block))
            if form is FLOOR_SEAL:
                return seal
            if self.stamp is not None:
                before = self._chain.block_before(block.offset)
            else:
                before = earlier[0] if earlier else None
            return seal._replace(floor=self._floor(before, block))
        except (JournalTorn, JournalCorrupt):
            return None

    def blocks(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield the blocks before the seal: number of the first event, flags, number of records and
        payload. Raises as ``changes`` does."""
        for block in self._chain.walk():
            payload = self._chain.payload(block)
            if not block.flags & SEALS:
                yield block.first_event, block.flags, block.record_count, payload

    def has_seal_at(self, place: Place) -> bool:
        """Tell whether a transaction without a place has an intact seal where PLACE says, without
        going through its blocks."""
        form = self._sectors.seal
        try:
            block = self._chain.header(place.seal_end - BLOCK_HEADER - form.size)
            seal = self._parse_seal(block, self._chain.payload(block))
        except (JournalTorn, JournalCorrupt):
            return False
        return (seal.end, seal.event_count) == (place.seal_end, place.stamp.event_count)

    def block_offsets(self) -> Iterator[int]:
        """Yield the file offset of every block, the seal's last, from their headers alone.

        Raises JournalTorn or JournalCorrupt where the chain of headers breaks.
        """
        for block in self._chain.walk():
            yield block.offset

    def first_block(self, start: int) -> int | None:
        """Return the offset of the first block at START or later, the seal's too; None: there is
        none, as START is behind the seal.

        In a journal with a stamp, blocks lie one behind the other up to its seal, so any bytes of a
        block that are intact there are in use: they can't be left over from a savepoint that was
        rolled back, whose place newer blocks have taken. The last intact block before START is
        looked for backwards, and the chain is followed from there. Damage in between is an error
        like any other, so a range begins behind the one before it or not at all. Without a stamp
        all headers are walked. Raises as ``changes`` does.
        """
        for block in self._chain.walk_to(start):
            if block.offset >= start:
                return block.offset
        return None

    def unresolved_tables(self) -> dict[int, bytes]:
        """Return the bodies of the definitions that are to be completed, by table number.

        For a sealed journal that has no stamp yet; of its blocks, only those with definitions
        are read. Raises as ``changes`` does.
        """
        unresolved = {}
        for block in self._chain.walk():
            if block.flags & DEFINES:
                for kind, number, payload, body, end in self._chain.records(block):
                    if kind == UNRESOLVED_TABLE:
                        unresolved[number] = payload[body:end]
        return unresolved

    def statements(self) -> dict[int, str | Undecodable]:
        """Return the DDL statements by the number of their event.

        Of the blocks, only those with definitions or DDL are read. Raises as ``changes`` does.
        """
        found = {}
        for block in self._chain.walk():
            if block.flags & DEFINES:
                pos = block.first_event
                for kind, _, payload, body, end in self._chain.records(block):
                    if kind == DDL:
                        found[pos] = self._ddl_text(payload[body:end])
                    pos += kind in _EVENTS
        return found

    def unstamped_catalogue(self) -> UnstampedCatalogue | None:
        """Return the catalogue behind the seal, None if there is none that is intact.

        For a sealed journal that has no stamp yet: the plugin writes the catalogue together with
        the seal if it knows anything by then. In version 2 one that was written later lies in
        another block of the file, and has all that the first one had. Raises as ``changes`` does.
        """
        seal = self.seal
        if seal is None:
            return None
        block = self._catalogue_at(seal.end, seal)
        if self._sectors.seal is FLOOR_SEAL:
            block = self._catalogue_at(self._late_catalogue_offset(seal, block), seal) or block
        if block is None:
            return None
        bodies = {}
        tells_of_ddl = False
        for kind, number, content, body, end in self._chain.records(block):
            if kind == TABLE:
                bodies[number] = content[body:end]
            tells_of_ddl = tells_of_ddl or kind == TABLE_CHANGE
        payload = self._chain.payload(block)
        return UnstampedCatalogue(
            block.offset, block.end, block.record_count, payload, bodies, tells_of_ddl
        )

    def late_catalogue_offset(self) -> int:
        """Return where a catalogue goes that is written after the seal was synced: to another block
        of the file, as the head begins one, and behind what the plugin wrote with the seal."""
        assert self.seal is not None
        return self._late_catalogue_offset(self.seal, self._catalogue_at(self.seal.end, self.seal))

    @staticmethod
    def _late_catalogue_offset(seal: Seal, early: BlockHeader | None) -> int:
        end = seal.end if early is None else early.end
        return -(-end // FILE_BLOCK) * FILE_BLOCK

    def _catalogue_at(self, offset: int, seal: Seal) -> BlockHeader | None:
        """Return the intact block at OFFSET that continues SEAL as a catalogue."""
        block = read_header(self._chain.read, offset)
        if block is None or (block.flags, block.previous_crc) != (CATALOGUE, seal.crc):
            return None
        is_intact = read_payload(self._chain.read, self._sectors.uuid, block) is not None
        return block if is_intact else None

    def outline(self) -> Iterator[tuple[int, Table] | DdlChange]:
        """Yield the tables' definitions, each with the number of the event that comes next, and
        the DDL statements.

        Of the blocks, only those with definitions or DDL are read. Raises as ``changes`` does.
        """
        catalogue = self._catalogue()
        completed, changed = _NO_BODIES, _NO_CHANGES
        if catalogue is not None:
            _, completed, changed = catalogue
        tables = OpenTables(self._none_codec, completed)
        for block in self._chain.walk():
            if not block.flags & DEFINES:
                continue
            pos = block.first_event
            payload = self._chain.payload(block)
            at, size = 0, len(payload)
            while at + RECORD.size <= size:
                kind, number, length = RECORD.unpack_from(payload, at)
                body = at + RECORD.size
                at = body + length
                if kind in _ROWS:  # mostly
                    pos += 1
                elif kind in (TABLE, UNRESOLVED_TABLE):
                    self._define_one(tables, block, kind, number, payload, body, at)
                    yield pos, tables[number][0]
                else:
                    if kind == DDL:
                        yield DdlChange(pos, self._ddl_text(payload[body:at]), changed.get(pos))
                    pos += kind in _EVENTS
            if at != size:
                self._chain.malformed(
                    block.offset + BLOCK_HEADER, "a record is longer than its block"
                )

    def changes(
        self,
        start_offset: int = 0,
        end_offset: int | None = None,
        decoder: Callable[[Table], RowDecoder] | None = None,
    ) -> Iterator[Change]:
        """Yield the changes in the order in which the engine made them.

        ``start_offset``: the offset of a block, as ``block_offsets`` gives it; 0 is the first.
        What comes before it and is needed (definitions, chunks of blobs) is read as well, so
        ranges that are read separately add up to the whole. ``end_offset``: stop before the
        first block that starts there or later. In a journal with a stamp the way to the range is
        short, whatever the length of the journal: `first_block` tells how it is found.

        Ends normally only after an intact seal or at ``end_offset``. Raises JournalTorn if the
        journal ends before its seal, JournalCorrupt if something in it is damaged; what was
        yielded before is sound, but only a whole journal says that the transaction committed.
        Texts that can't be decoded come as Undecodable. ``decoder``: makes for each table what
        makes ``before`` and ``after`` of its row images, for a caller that wants no whole rows.
        """
        catalogue = self._catalogue()
        completed, changed = _NO_BODIES, _NO_CHANGES
        if catalogue is not None:
            _, completed, changed = catalogue
        tables = OpenTables(self._none_codec, completed, decoder)
        blobs = PendingBlobs(self._source)
        data_offset = self._sectors.data_offset
        unpack_record = RECORD.unpack_from
        new_row = new_tuple
        pos = 0
        unmet: set[int] = set()  # of these, events that were not met yet
        for block, counts in self._blocks_from(start_offset, end_offset, tables, blobs):
            payload = self._chain.payload(block)
            offset, _, first_event, _, flags, record_count, *_ = block
            if pos == 0:
                pos = first_event
                if changed:
                    unmet = {event for event in changed if event >= pos}
            is_first = offset == data_offset
            if first_event != pos or pos == 0 or (is_first and pos != 1):
                self._chain.malformed(offset, f"event {first_event} is out of the count")
            if flags & SEALS:
                self._check_seal(block, payload, pos - 1, counts)
                if catalogue is not None:
                    defined = tables.keys() if counts is not None else catalogue.bodies.keys()
                    self._check_catalogue(catalogue, block, defined, unmet)
                return
            file_offset = offset + BLOCK_HEADER
            at = 0
            size = len(payload)
            records = 0
            try:
                while at < size:
                    kind, number, length = unpack_record(payload, at)
                    body = at + 8
                    end = body + length
                    if end > size:
                        raise Malformed("a record is longer than its block")
                    if kind == INSERT:
                        table, decode = tables[number]
                        after = decode(payload, body, end, blobs)
                        yield new_row(RowChange, (pos, "c", table, None, after))
                        pos += 1
                        if blobs:
                            blobs.clear()
                    elif kind == UPDATE:
                        table, decode = tables[number]
                        (old_length,) = U32.unpack_from(payload, body)
                        middle = body + 4 + old_length
                        if middle > end:
                            raise Malformed("the old row is longer than its record")
                        before = decode(payload, body + 4, middle, blobs)
                        after = decode(payload, middle, end, blobs)
                        yield new_row(RowChange, (pos, "u", table, before, after))
                        pos += 1
                        if blobs:
                            blobs.clear()
                    elif kind == DELETE:
                        table, decode = tables[number]
                        before = decode(payload, body, end, blobs)
                        yield new_row(RowChange, (pos, "d", table, before, None))
                        pos += 1
                        if blobs:
                            blobs.clear()
                    elif kind & 0xFF == BLOB:
                        blobs.add(kind >> 8, payload, body, end, file_offset)
                    elif kind in (BEGIN, TABLE, UNRESOLVED_TABLE):
                        first = is_first and at == 0
                        if not flags & DEFINES or first != (kind == BEGIN):
                            raise Malformed("a definition is where none may be")
                        if kind == BEGIN:
                            self._begin = parse_begin(payload[body:end])
                        else:
                            tables.define(kind, number, payload[body:end])
                    elif kind == SEQUENCE:
                        (value,) = I64.unpack_from(payload, body)
                        if length < 8:
                            raise Malformed("a SEQUENCE record ends early")
                        yield SequenceChange(payload[body + 8 : end].decode(), value)
                    elif kind == DDL:
                        sql = self._ddl_text(payload[body:end])
                        unmet.discard(pos)
                        yield DdlChange(pos, sql, changed.get(pos))
                        pos += 1
                    elif kind == GAP:
                        yield self._gap(pos, payload[body:end])
                        pos += 1
                    elif kind != PAD or self._sectors.seal is not FLOOR_SEAL:
                        raise Malformed(f"unknown record kind {kind}")
                    if is_first and records == 0 and kind != BEGIN:
                        raise Malformed("the first record is not BEGIN")
                    records += 1
                    at = end
            except (Malformed, struct.error, UnicodeDecodeError) as error:
                self._chain.malformed(file_offset + at, str(error))
            if records != record_count:
                self._chain.malformed(
                    offset, f"the block has {records} records, not {record_count}"
                )

    def _ddl_text(self, body: bytes) -> str | Undecodable:
        (charset_id,) = U16.unpack_from(body)
        none = charset_id == charsets.NONE
        codec = self._none_codec if none else charsets.codec_of(charset_id)
        return decode_text(body[2:], ImageField(Storage.TEXT, codec, charset_id, 0))

    @staticmethod
    def _gap(pos: int, body: bytes) -> Gap:
        reason, end = read_text(body, 0, len(body))
        if end != len(body):
            raise Malformed("a GAP record has bytes left over")
        return Gap(pos, reason)

    def _read_begin(self) -> tuple[str, str]:
        if self._begin is None:
            block = self._chain.header(self._sectors.data_offset)
            self._chain.check_link(block, self._sectors.header_crc)
            payload = self._chain.payload(block)
            try:
                kind, _, length = RECORD.unpack_from(payload)
                if kind != BEGIN or 8 + length > len(payload):
                    raise Malformed("the first record is not BEGIN")
                self._begin = parse_begin(payload[8 : 8 + length])
            except (Malformed, struct.error, UnicodeDecodeError) as error:
                self._chain.malformed(self._sectors.data_offset + BLOCK_HEADER, str(error))
        return self._begin

    # Blocks.

    def _blocks_from(
        self, start_offset: int, end_offset: int | None, tables: OpenTables, blobs: PendingBlobs
    ) -> Iterator[tuple[BlockHeader, tuple[int, int] | None]]:
        """Yield the blocks from START_OFFSET on, each with the counts of those before it.

        The counts are (records, blocks), None if it was not walked past all of them. Fills TABLES
        and BLOBS with what the blocks before START_OFFSET leave open.
        """
        if end_offset is not None and start_offset >= end_offset:
            return
        counts: tuple[int, int] | None = (0, 0)
        if start_offset > self._sectors.data_offset:
            counts = None
            offset, previous_crc = start_offset, self._begin_within(start_offset, tables, blobs)
        else:
            offset, previous_crc = self._sectors.data_offset, self._sectors.header_crc
        while end_offset is None or offset < end_offset:
            block = self._chain.header(offset)
            if block.previous_crc != previous_crc:
                self._chain.check_link(block, previous_crc)
            yield block, counts
            if block.flags & SEALS:
                break
            if counts is not None:
                counts = (counts[0] + block.record_count, counts[1] + 1)
            offset = block.end
            previous_crc = block.crc

    def _begin_within(self, start: int, tables: OpenTables, blobs: PendingBlobs) -> int:
        """Return the checksum of the block before the one at START, whose chunks go to BLOBS.

        Of TABLES, those that the first block doesn't define are looked for when a row has one.
        """
        before = None
        for block in self._chain.walk_to(start):
            if block.offset >= start:
                break
            before = block
        if before is None or before.end != start:
            self._chain.malformed(start, "no block begins here")
        self._collect_blobs(before, blobs)
        (first,) = self._chain.walk(self._sectors.data_offset + 1)
        if first.flags & DEFINES:
            self._define(first, tables)
        tables.find_earlier = functools.partial(self._define_earlier, start, tables)
        return before.crc

    def _define_earlier(self, start: int, tables: OpenTables, number: int) -> None:
        """Look for the definition of table NUMBER between the first block and START."""
        for block in self._chain.walk(start):
            if block.flags & DEFINES and block.offset > self._sectors.data_offset:
                for kind, defined, payload, body, end in self._chain.records(block):
                    if kind in (TABLE, UNRESOLVED_TABLE) and defined == number:
                        tables.define(kind, number, payload[body:end])
                        return

    def _define(self, block: BlockHeader, tables: OpenTables) -> None:
        for kind, number, payload, body, end in self._chain.records(block):
            if kind in (TABLE, UNRESOLVED_TABLE):
                self._define_one(tables, block, kind, number, payload, body, end)

    def _define_one(
        self,
        tables: OpenTables,
        block: BlockHeader,
        kind: int,
        number: int,
        payload: bytes,
        body: int,
        end: int,
    ) -> None:
        try:
            tables.define(kind, number, payload[body:end])
        except (Malformed, struct.error, UnicodeDecodeError) as error:
            self._chain.malformed(block.offset + BLOCK_HEADER + body - 8, str(error))

    def _collect_blobs(self, block: BlockHeader, blobs: PendingBlobs) -> None:
        """Note the chunks behind the last row of what comes up to the end of BLOCK."""
        groups = []
        while True:
            chunks: list[tuple[int, bytes, int, int, int]] = []
            rows = 0
            for kind, _, payload, body, end in self._chain.records(block):
                if kind & 0xFF == BLOB:
                    chunks.append((kind >> 8, payload, body, end, block.offset + BLOCK_HEADER))
                elif kind in (INSERT, UPDATE, DELETE):
                    chunks.clear()
                    rows += 1
            groups.append(chunks)
            if rows or block.offset == self._sectors.data_offset:
                break
            start = block.offset
            for before in self._chain.walk_to(start):
                if before.offset >= start:
                    break
                block = before
        for chunks in reversed(groups):
            for chunk in chunks:
                try:
                    blobs.add(*chunk)
                except Malformed as error:
                    self._chain.malformed(chunk[4] + chunk[2] - 8, str(error))

    def _parse_seal(self, block: BlockHeader, payload: bytes) -> Seal:
        form = self._sectors.seal
        if len(payload) != form.size or block.record_count:
            self._chain.malformed(block.offset, "the seal has a wrong size")
        events, records, blocks, sealed_us, *more = form.unpack(payload)
        seal = Seal(events, records, blocks, sealed_us, block.end, block.crc)
        if more:
            floor, uuid, transaction = more
            if (uuid, transaction) != (self._sectors.uuid, self.header.transaction):
                self._chain.malformed(block.offset, "the seal is another transaction's")
            seal = seal._replace(floor=floor - 1 if floor else None)
        stamp = self.stamp
        if stamp is not None and (self._sectors.seal_end, stamp.event_count) != (
            seal.end,
            seal.event_count,
        ):
            self._chain.malformed(
                block.offset, "seal and stamp differ in length or number of events"
            )
        return seal

    def _floor(self, before: BlockHeader | None, seal: BlockHeader) -> int | None:
        """Return the floor of the journal, None if it has none or the block BEFORE its seal, where
        one half of it is, is damaged."""
        if before is None or before.crc != seal.previous_crc:
            return None
        high, low = (U16.unpack_from(block.raw, _HALF_FLOOR)[0] for block in (before, seal))
        stored: int = high << 16 | low
        if not stored:
            return None
        is_intact = read_payload(self._chain.read, self._sectors.uuid, before) is not None
        return (stored - 1) % FLOORS if is_intact else None

    def _check_seal(
        self, block: BlockHeader, payload: bytes, events: int, counts: tuple[int, int] | None
    ) -> None:
        """Check the seal. COUNTS: of the records and blocks before it, None if not all were met."""
        form = self._sectors.seal
        if len(payload) == form.size and not block.record_count and counts is not None:
            stamp = self.stamp
            stamped = stamp is None or (
                stamp.event_count == events and self._sectors.seal_end == block.end
            )
            if stamped and form.unpack(payload)[:3] == (events, *counts):
                return
        seal = self._parse_seal(block, payload)
        records, blocks = counts or (seal.record_count, seal.block_count)
        if (seal.event_count, seal.record_count, seal.block_count) != (events, records, blocks):
            what = f"{events} events, {records} records and {blocks} blocks are here"
            says = f"{seal.event_count}, {seal.record_count} and {seal.block_count}"
            self._chain.malformed(block.offset, f"{what}; the seal says {says}")

    def _catalogue(self) -> _Catalogue | None:
        """The completed definitions, None if the journal has no catalogue.

        Read before any definition, since a reader may begin behind all of them.
        """
        stamp = self.stamp
        if stamp is None or not stamp.catalogue_offset:
            return None
        if self._catalogue_read is None:
            block = self._chain.header(stamp.catalogue_offset)
            payload = self._chain.payload(block)
            parse = kept_catalogue if len(payload) <= MAX_KEPT_DEFINITION else parse_catalogue
            try:
                records, bodies, changes = parse(payload)
            except MalformedRecord as error:
                self._chain.malformed(block.offset + BLOCK_HEADER + error.at, str(error))
            if (block.end, block.first_event, block.record_count) != (
                stamp.journal_length,
                stamp.event_count + 1,
                records,
            ):
                self._chain.malformed(
                    block.offset, "the catalogue and the stamp, or its records, differ"
                )
            self._catalogue_read = _Catalogue(block, bodies, changes)
        return self._catalogue_read

    def _check_catalogue(
        self,
        catalogue: _Catalogue,
        seal: BlockHeader,
        defined: Set[int],
        unmet: Iterable[int],
    ) -> None:
        """Check what only a reader that has come to the seal knows. UNMET: events that changed
        tables, and were none of the DDL statements that were read."""
        offset = catalogue.block.offset
        if catalogue.block.previous_crc != seal.crc:
            self._chain.malformed(offset, "the catalogue does not continue the seal")
        if unknown := catalogue.bodies.keys() - defined:
            what = f"the catalogue completes table number {min(unknown)}, which is not defined"
            self._chain.malformed(offset, what)
        for event in unmet:
            self._chain.malformed(offset, f"the catalogue says of event {event} that it is a DDL")


def read_envelope(path: Path | str) -> tuple[Header, Stamp | None, str]:
    """Return header, stamp and database path: all that is needed to order journals.

    Costs one small read unless the first block is larger than 6 KiB. Raises as JournalReader
    and its ``database`` do.
    """
    with JournalReader(path) as reader:
        return reader.header, reader.stamp, reader.database
