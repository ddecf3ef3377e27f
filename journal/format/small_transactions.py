"""Small transactions of shared journals, many of them in a second.

Most transactions are one block with a few rows, and repeat the definitions of others. Such a one is
checked here as `JournalReader` checks it, with nothing made for it but its changes. Whatever is not
as simple (several blocks, DDL, gaps, BLOBs, a catalogue), or not in order, is left to that reader,
which also says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn

from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.format.definitions import parse_begin
from firebird_cdc.journal.format.journal_index import Entry
from firebird_cdc.journal.format.layout import (
    BEGIN,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    DEFINES,
    DELETE,
    FLOOR_SEAL,
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

# The head with the header of the first block, and the seal with its header: each with one call.
_FRONT = struct.Struct("<12s4x16sQ92xI4sIQQIHHII")
_SEAL = struct.Struct("<4sIQQIHHIIQQQqQ16sQ")
_PAYLOAD = HEAD.size + BLOCK_HEADER
_BEHIND_HEAD = BLOCK_HEADER + 4  # with the checksum of the head
_MAGIC = struct.pack("<8sHH", TRANSACTION_MAGIC, SHARED_VERSION, HEAD.size)
_FIRST_BLOCK = (_MAGIC, BLOCK_MAGIC, HEAD.size, 1, DEFINES)
_LAST_BLOCK = (BLOCK_MAGIC, FLOOR_SEAL.size, SEALS, 0, 1)
_DEFINITIONS = (TABLE, UNRESOLVED_TABLE)
_PLAIN = frozenset({INSERT, UPDATE, DELETE, SEQUENCE})
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


_NOTHING = Beginning(b"\0", 0, "", "", OpenTables("", {}), ())  # which none begins with

PlainChange = RowChange | SequenceChange


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
        unpack_record = RECORD.unpack_from
        for entry in entries:
            (
                uuid, offset, _, _, _, length, events, transaction, catalogue, _, _, _, seal_end,
            ) = entry  # fmt: skip
            offset -= start
            left = 0
            if length == seal_end and not catalogue:
                left = count_records(content, offset, uuid, transaction, length, events)
            if not left:
                yield entry, None, []
                continue
            payload = content[offset + _PAYLOAD : offset + length - _SEAL.size]
            changes: list[PlainChange] = []
            pos = 1
            try:
                beginning = self._last
                if not payload.startswith(beginning.raw):
                    self._last = beginning = self._beginning(payload)
                raw, records, _, _, tables, _ = beginning
                left -= records
                at, size = len(raw), len(payload)
                while at < size:
                    kind, number, length = unpack_record(payload, at)
                    body = at + 8
                    at = body + length
                    left -= 1
                    if at > size:
                        raise Malformed("a record is longer than its block")
                    if kind == INSERT:
                        table, decode = tables[number]
                        after = decode(payload, body, at, _no_blob)
                        changes.append(new_tuple(RowChange, (pos, "c", table, None, after)))
                        pos += 1
                    elif kind == UPDATE:
                        table, decode = tables[number]
                        middle = body + 4 + U32.unpack_from(payload, body)[0]
                        if middle > at:
                            raise Malformed("the old row is longer than its record")
                        before = decode(payload, body + 4, middle, _no_blob)
                        after = decode(payload, middle, at, _no_blob)
                        changes.append(new_tuple(RowChange, (pos, "u", table, before, after)))
                        pos += 1
                    elif kind == DELETE:
                        table, decode = tables[number]
                        before = decode(payload, body, at, _no_blob)
                        changes.append(new_tuple(RowChange, (pos, "d", table, before, None)))
                        pos += 1
                    elif kind == SEQUENCE and length >= I64.size:
                        (value,) = I64.unpack_from(payload, body)
                        changes.append(SequenceChange(payload[body + 8 : at].decode(), value))
                    elif kind in _DEFINITIONS:
                        if tables is beginning.tables:
                            tables = tables.copy()
                        tables.define(kind, number, payload[body:at])
                        defined = (*beginning.defined, (pos, tables[number][0]))
                        beginning = beginning._replace(defined=defined)
                    else:
                        raise Malformed("a record that is not read here")
            except (Malformed, struct.error, UnicodeDecodeError):
                yield entry, None, []
                continue
            is_right = left == 0 and pos == events + 1
            yield entry, beginning if is_right else None, changes

    def _beginning(self, payload: bytes) -> Beginning:
        """Return the records before the first change."""
        at, size = 0, len(payload)
        definitions = []
        while at + RECORD.size <= size:
            kind, number, length = RECORD.unpack_from(payload, at)
            if kind != BEGIN and kind not in _DEFINITIONS:
                break
            definitions.append((kind, number, payload[at + 8 : at + 8 + length]))
            at += 8 + length
        raw = payload[:at]
        known = self._beginnings.get(raw)
        if known is None:
            if at > size or not definitions or definitions[0][0] != BEGIN:
                raise Malformed("the first record is not BEGIN")
            database, user = parse_begin(definitions[0][2])
            tables = OpenTables(self._none_codec, {}, self._decoder)
            for definition in definitions[1:]:
                tables.define(*definition)
            defined = tuple((1, table) for table, _ in tables.values())
            known = Beginning(raw, len(definitions), database, user, tables, defined)
            if len(self._beginnings) >= _MOST_BEGINNINGS:
                self._beginnings.clear()
            self._beginnings[raw] = known
        return known


def count_records(
    content: bytes, at: int, uuid: bytes, transaction: int, length: int, events: int
) -> int:
    """Return how many records the only block of a transaction says to have, 0 if there is not one
    block or anything is wrong with head, block, seal or their checksums.

    AT: where it begins in CONTENT; LENGTH: up to the end of its seal. The records are not looked
    at.
    """
    if length <= _PAYLOAD + _SEAL.size or at + length > len(content):
        return 0
    begin = at + _PAYLOAD
    end = at + length - _SEAL.size
    (
        magic, own_uuid, own_number, head_crc,
        block_magic, block_length, block_at, first, previous, flags, _, records, block_crc,
    ) = _FRONT.unpack_from(content, at)  # fmt: skip
    (
        seal_magic, seal_length, seal_at, seal_first, seal_previous, seal_flags, _, none, seal_crc,
        all_events, all_records, blocks, _, _, _, _,
    ) = _SEAL.unpack_from(content, end)  # fmt: skip
    extend = crc32c.extend
    uuid_crc = crc32c.value(uuid)
    is_right = (
        own_uuid == uuid
        and own_number == transaction
        and (magic, block_magic, block_at, first, flags) == _FIRST_BLOCK
        and block_length == end - begin
        and previous == uuid_crc
        and (seal_magic, seal_length, seal_flags, none, blocks) == _LAST_BLOCK
        and seal_at == end - at
        and seal_previous == block_crc
        and seal_first == events + 1
        and all_events == events
        and all_records == records
        and extend(uuid_crc, content[at : begin - _BEHIND_HEAD]) == head_crc
        and extend(extend(uuid_crc, content[at + HEAD.size : begin - 4]), content[begin:end])
        == block_crc
        and extend(
            extend(uuid_crc, content[end : end + BLOCK_HEADER - 4]),
            content[end + BLOCK_HEADER : at + length],
        )
        == seal_crc
    )
    return records if is_right else 0


def _no_blob(number: int) -> NoReturn:
    raise Malformed(f"a row refers to blob {number}, which is not read here")
