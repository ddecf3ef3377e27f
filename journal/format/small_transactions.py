"""Small transactions of shared journals, many of them in a second.

Most transactions are one block with a few rows, and repeat the definitions of others. Such a one is
checked here as `JournalReader` checks it, with nothing made for it but its changes. Whatever is not
as simple (several blocks, DDL, gaps, BLOBs, a catalogue), or not in order, is left to that reader,
which also says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.format.definitions import parse_begin
from firebird_cdc.journal.format.journal_index import Entry
from firebird_cdc.journal.format.layout import (
    BEGIN,
    BLOCK_MAGIC,
    DEFINES,
    DELETE,
    HEAD,
    I64,
    INSERT,
    RECORD,
    SEALS,
    SEQUENCE,
    SHARED_VERSION,
    TABLE,
    TRANSACTION_MAGIC,
    U32,
    UNRESOLVED_TABLE,
    UPDATE,
    Malformed,
    new_tuple,
)
from firebird_cdc.journal.format.model import RowChange, SequenceChange, Table
from firebird_cdc.journal.format.open_tables import OpenTables
from firebird_cdc.journal.format.row_decoder import RowDecoder, codec_for_none

if TYPE_CHECKING:
    from firebird_cdc.native._journal_files import split_transaction
else:
    try:
        from firebird_cdc.native._journal_files import split_transaction
    except ImportError:
        split_transaction = None

# The head and the header of the first block; the header of the seal, and the seal.
_FRONT = struct.Struct("<132sI36sI")
_SEAL = struct.Struct("<36sI64s")
_HEADER = struct.Struct("<4sIQQIHHI")
_COUNTS = struct.Struct("<QQQ")
_PAYLOAD = _FRONT.size
_MAGIC = struct.pack("<8sHH", TRANSACTION_MAGIC, SHARED_VERSION, HEAD.size)
_DEFINITIONS = (TABLE, UNRESOLVED_TABLE)
_ROWS = frozenset({INSERT, UPDATE, DELETE})
_OTHERS = frozenset({BEGIN, *_DEFINITIONS, SEQUENCE})
_PLAIN = _ROWS | {SEQUENCE}
_MOST_BEGINNINGS = 1000


class Beginning(NamedTuple):
    """Records before the first change of a transaction, whose bytes are ``raw``; most are equal to
    those of others. ``defined``: the definitions in it, each with the number of the event that
    comes next; ``tables``: by their numbers, with the decoders of their rows."""

    raw: bytes
    records: int
    database: str
    user: str
    tables: OpenTables
    defined: tuple[tuple[int, Table], ...]

    @property
    def overhead(self) -> int:
        """Bytes of a transaction but for its changes."""
        return _PAYLOAD + len(self.raw) + _SEAL.size


_NOTHING = Beginning(b"\0", 0, "", "", OpenTables("", {}), ())  # which none begins with

PlainChange = RowChange | SequenceChange

SplitRecord = tuple[int, int, int, int]
"""Kind and flags of a record, the number of its table, and where its body begins and ends."""


class SmallTransactions:
    """Reader of small transactions; belongs to one thread. Arguments as of ``JournalReader`` and
    its ``changes``.

    Its methods get CONTENT, the bytes of a journal from START on, and the ENTRIES of transactions
    that lie in it. They yield no `Beginning` of what has to be read by a `JournalReader`, or is
    damaged.
    """

    def __init__(
        self,
        none_charset: str = "UTF-8",
        decoder: Callable[[Table], RowDecoder] | None = None,
    ) -> None:
        self._none_codec = codec_for_none(none_charset)
        self._decoder = decoder
        self._beginnings: dict[bytes, Beginning] = {}
        self._last = _NOTHING

    def beginnings(
        self, content: bytes, start: int, entries: Iterable[Entry]
    ) -> Iterator[tuple[list[Entry], Beginning | None]]:
        """Yield what transactions define, together for those that follow each other and begin
        alike. Checksums are looked at only where that is not known: damage behind known bytes is
        for `changes` to find."""
        unpack_record = RECORD.unpack_from
        size = len(content)
        last = self._last
        alike: list[Entry] = []
        for entry in entries:
            record = entry.offset - start + _PAYLOAD
            end = record - _PAYLOAD + entry.length
            if content.startswith(last.raw, record) and end <= size and not entry.catalogue_offset:
                record += len(last.raw)
                end -= _SEAL.size
                while record < end:
                    kind, _, length = unpack_record(content, record)
                    if kind not in _PLAIN:
                        break
                    record += 8 + length
                if record == end:
                    alike.append(entry)
                    continue
            if alike:
                yield alike, last
                alike = []
            ((_, beginning, _),) = self.changes(content, start, (entry,))
            yield [entry], beginning
            last = self._last
        if alike:
            yield alike, last

    def changes(
        self, content: bytes, start: int, entries: Iterable[Entry]
    ) -> Iterator[tuple[Entry, Beginning | None, list[PlainChange]]]:
        """Yield what transactions define, and their changes."""
        size = len(content)
        for entry in entries:
            (
                uuid, offset, _, _, _, length, events, transaction, catalogue, _, _, _, seal_end,
            ) = entry  # fmt: skip
            at = offset - start
            records = None
            if length == seal_end and not catalogue and at + length <= size:
                records = split(content, at, uuid, transaction, length, events)
            if records is None:
                yield entry, None, []
                continue
            changes: list[PlainChange] = []
            pos = 1
            try:
                beginning = self._last
                if not content.startswith(beginning.raw, at + _PAYLOAD):
                    self._last = beginning = self._beginning(content, records)
                _, begun, _, _, tables, _ = beginning
                for kind, number, body, end in records[begun:]:
                    if kind == INSERT:
                        table, decode = tables[number]
                        after = decode(content, body, end, _no_blob)
                        changes.append(new_tuple(RowChange, (pos, "c", table, None, after)))
                        pos += 1
                    elif kind == UPDATE:
                        table, decode = tables[number]
                        middle = body + 4 + U32.unpack_from(content, body)[0]
                        if middle > end:
                            raise Malformed("the old row is longer than its record")
                        before = decode(content, body + 4, middle, _no_blob)
                        after = decode(content, middle, end, _no_blob)
                        changes.append(new_tuple(RowChange, (pos, "u", table, before, after)))
                        pos += 1
                    elif kind == DELETE:
                        table, decode = tables[number]
                        before = decode(content, body, end, _no_blob)
                        changes.append(new_tuple(RowChange, (pos, "d", table, before, None)))
                        pos += 1
                    elif kind == SEQUENCE:
                        (value,) = I64.unpack_from(content[body:end])
                        name = content[body + I64.size : end].decode()
                        changes.append(SequenceChange(name, value))
                    elif kind in _DEFINITIONS:
                        if tables is beginning.tables:
                            tables = tables.copy()
                        tables.define(kind, number, content[body:end])
                        defined = (*beginning.defined, (pos, tables[number][0]))
                        beginning = beginning._replace(defined=defined)
                    else:
                        raise Malformed("a second BEGIN")
            except (Malformed, struct.error, UnicodeDecodeError):
                yield entry, None, []
                continue
            yield entry, beginning, changes

    def _beginning(self, content: bytes, records: list[SplitRecord]) -> Beginning:
        """Return the records before the first change."""
        begin, *others = records
        if begin[0] != BEGIN:
            raise Malformed("the first record is not BEGIN")
        definitions = [begin, *takewhile(lambda record: record[0] in _DEFINITIONS, others)]
        raw = content[definitions[0][2] - RECORD.size : definitions[-1][3]]
        known = self._beginnings.get(raw)
        if known is None:
            (_, _, body, end), *more = definitions
            database, user = parse_begin(content[body:end])
            tables = OpenTables(self._none_codec, {}, self._decoder)
            for kind, number, body, end in more:
                tables.define(kind, number, content[body:end])
            defined = tuple((1, table) for table, _ in tables.values())
            known = Beginning(raw, len(definitions), database, user, tables, defined)
            if len(self._beginnings) >= _MOST_BEGINNINGS:
                self._beginnings.clear()
            self._beginnings[raw] = known
        return known


def split(
    content: bytes, at: int, uuid: bytes, transaction: int, length: int, events: int
) -> list[SplitRecord] | None:
    """Return the records of a transaction that lies at AT of CONTENT, LENGTH bytes up to the end of
    its seal. None if that is not one block with EVENTS rows, definitions and sequences, or anything
    is wrong with head, block or seal.

    What has no sequences is split by C where this Python has it, which takes a fifth of the time.
    """
    if split_transaction is not None:
        found = split_transaction(content, at, uuid, transaction, length, events)
        if found is not None:
            return found
    begin, end = at + _PAYLOAD, at + length - _SEAL.size
    if begin >= end:
        return None
    extend = crc32c.extend
    uuid_crc = crc32c.value(uuid)
    head, head_crc, block, block_crc = _FRONT.unpack_from(content, at)
    sealing, seal_crc, seal = _SEAL.unpack_from(content, end)
    payload = content[begin:end]
    count = int.from_bytes(seal[8:12], "little")
    size, seal_at = end - begin, end - at
    if not (
        head.startswith(_MAGIC)
        and head[16:40] == uuid + transaction.to_bytes(8, "little")
        and block == _HEADER.pack(BLOCK_MAGIC, size, HEAD.size, 1, uuid_crc, DEFINES, 0, count)
        and sealing
        == _HEADER.pack(BLOCK_MAGIC, len(seal), seal_at, events + 1, block_crc, SEALS, 0, 0)
        and seal.startswith(_COUNTS.pack(events, count, 1))
        and extend(uuid_crc, head) == head_crc
        and extend(extend(uuid_crc, block), payload) == block_crc
        and extend(extend(uuid_crc, sealing), seal) == seal_crc
    ):
        return None
    records = []
    unpack_record = RECORD.unpack_from
    left = events
    while begin + RECORD.size <= end:
        kind, number, size = unpack_record(content, begin)
        body = begin + RECORD.size
        begin = body + size
        if kind in _ROWS:
            left -= 1
        elif kind not in _OTHERS:
            return None
        records.append((kind, number, body, begin))
    return records if (begin, left, len(records)) == (end, 0, count) else None


def _no_blob(number: int) -> NoReturn:
    raise Malformed(f"a row refers to blob {number}, which is not read here")
