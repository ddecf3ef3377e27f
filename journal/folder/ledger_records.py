"""Records of a ledger: the numbers that a group of transactions was given, and where they lie.

record:  4s magic, u32 epoch, u32 entries, u32 attachments that the database had had, modulo
         2^32 (0: not known), u64 last number before the group, u64 highest transaction so far,
         16s GUID, i32 i32 creation time and u64 inode of the database file, then the entries, and
         u32 CRC-32C of all that
entry:   16s uuid, i64 commit_us, i64 stamped_us, u64 length, u64 events, u64 transaction, u64
         catalogue_offset; in a record whose magic says so also the 16s uuid of the journal that it
         shares, u64 offset in that, u64 ticket, u64 end of the seal
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.journal.folder.inventory import Incarnation
from firebird_cdc.journal.format import Entry, Place, Stamp, crc32c, fast_uuid
from firebird_cdc.journal.format.layout import new_tuple

_HEAD = struct.Struct("<4sIIIQQ16siiQ")
_ENTRY = struct.Struct("<16sqqQQQQ")
_PLACED = struct.Struct("<16sqqQQQQ16sQQQ")
_ENTRIES = {b"FBCL": _ENTRY, b"FBCP": _PLACED}
_HOMES = struct.Struct("64x16s24x")  # of an entry that names one
_TICKETS = struct.Struct("88xQ8x")
_CRC = struct.Struct("<I")
_UNKNOWN = Incarnation(UUID(int=0), (0, 0), 0)
_NO_HOME = bytes(16)


class LedgerEntry(NamedTuple):
    """A transaction's number: in a journal of its name, or at ``offset`` of the journal ``home``,
    with the ``ticket`` and ``seal_end`` of a `Place`."""

    uuid: UUID
    stamp: Stamp
    home: UUID | None = None
    offset: int = 0
    ticket: int = 0
    seal_end: int = 0

    @property
    def place(self) -> Place:
        """Its place in ``home``."""
        return Place(self.uuid, self.offset, self.ticket, self.seal_end, self.stamp)


class LedgerRecord(NamedTuple):
    """One record of a ledger; ``last``: the last number that it gives; ``end``: the offset behind
    it."""

    epoch: int
    last: int
    highest_transaction: int
    attachments: int
    incarnation: Incarnation | None
    given: Sequence[LedgerEntry]
    end: int = 0

    def pack(self) -> bytes:
        """Return the record as it is written."""
        is_placed = any(entry.home is not None for entry in self.given)
        guid, created, inode = self.incarnation or _UNKNOWN
        head = _HEAD.pack(
            b"FBCP" if is_placed else b"FBCL",
            self.epoch,
            len(self.given),
            self.attachments,
            self.last - len(self.given),
            self.highest_transaction,
            guid.bytes,
            *created,
            inode,
        )
        parts = [head]
        for uuid, stamp, home, *place in self.given:
            fields = (uuid.bytes, *stamp[2:])
            if is_placed:
                home_bytes = _NO_HOME if home is None else home.bytes
                parts.append(_PLACED.pack(*fields, home_bytes, *place))
            else:
                parts.append(_ENTRY.pack(*fields))
        body = b"".join(parts)
        return body + _CRC.pack(crc32c.value(body))


def places_of_records(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each record of a ledger begins and ends; a torn one ends it."""
    at = 0
    while at + _HEAD.size + _CRC.size <= len(content):
        magic, _, entries, *_ = _HEAD.unpack_from(content, at)
        entry = _ENTRIES.get(magic)
        if entry is None:
            return
        end = at + _HEAD.size + entries * entry.size
        if end + _CRC.size > len(content):
            return
        if _CRC.unpack_from(content, end)[0] != crc32c.value(content[at:end]):
            return
        yield at, end + _CRC.size
        at = end + _CRC.size


def highest_ticket_of(content: bytes, at: int) -> int:
    """Return the highest ticket in a ledger's record at AT, of what shares a journal; 0: none."""
    magic, _, entries, *_ = _HEAD.unpack_from(content, at)
    if _ENTRIES[magic] is _ENTRY:
        return 0
    start = at + _HEAD.size
    found = _TICKETS.iter_unpack(content[start : start + entries * _TICKETS.size])
    return max((ticket for (ticket,) in found), default=0)


def shared_journals_of(content: bytes, at: int) -> set[UUID]:
    """Return the shared journals that a ledger's record at AT names."""
    magic, _, entries, *_ = _HEAD.unpack_from(content, at)
    if _ENTRIES[magic] is _ENTRY:
        return set()
    start = at + _HEAD.size
    found = _HOMES.iter_unpack(content[start : start + entries * _HOMES.size])
    return {fast_uuid(home) for (home,) in set(found) if home != _NO_HOME}


def index_entries(
    content: bytes, places: Iterable[tuple[int, int]], journal: UUID
) -> Iterator[Entry]:
    """Yield what records at PLACES, which all name a shared journal, say of JOURNAL: the entries
    that its index is to have."""
    home, new = journal.bytes, new_tuple  # there are very many
    for at, _ in places:
        _, epoch, entries, _, number, *_ = _HEAD.unpack_from(content, at)
        start = at + _HEAD.size
        for fields in _PLACED.iter_unpack(content[start : start + entries * _PLACED.size]):
            number += 1
            uuid, commit, given, size, events, transaction, catalogue, named, *where = fields
            if named == home:
                offset, ticket, seal_end = where
                yield new(
                    Entry,
                    (
                        uuid, offset, number, commit, given, size, events, transaction, catalogue,
                        epoch, 0, ticket, seal_end,
                    ),
                )  # fmt: skip


def read_records(
    content: bytes, places: Iterable[tuple[int, int]] | None = None, *, only_shared: bool = False
) -> Iterator[LedgerRecord]:
    """Yield the records of a ledger, all or those at PLACES; a torn one ends it. ONLY_SHARED: leave
    out the entries of records that name no shared journal."""
    for at, end in places_of_records(content) if places is None else places:
        magic, epoch, entries, attachments, before, highest, guid, *created, inode = (
            _HEAD.unpack_from(content, at)
        )
        layout = _ENTRIES[magic]
        start = at + _HEAD.size
        given = []
        if layout is _PLACED or not only_shared:
            found = layout.iter_unpack(content[start : start + entries * layout.size])
            given = [
                _entry(epoch, number, fields) for number, fields in enumerate(found, before + 1)
            ]
        known = Incarnation(UUID(bytes=guid), (created[0], created[1]), inode)
        incarnation = known if known != _UNKNOWN else None
        yield LedgerRecord(epoch, before + entries, highest, attachments, incarnation, given, end)


def _entry(epoch: int, number: int, fields: tuple[bytes | int, ...]) -> LedgerEntry:
    uuid, stamp, where = fields[0], fields[1:7], fields[7:]
    made = LedgerEntry(fast_uuid(uuid), Stamp(epoch, number, *stamp))  # type: ignore[arg-type]
    if not where or where[0] == _NO_HOME:
        return made
    home, *rest = where
    return LedgerEntry(*made[:2], fast_uuid(home), *rest)  # type: ignore[arg-type]


class Given(NamedTuple):
    """Numbers given, as a ledger says: the last one, and the journals that it still names;
    ``lasts``: the last number of each epoch that it still tells of."""

    epoch: int
    last: int
    journals: dict[UUID, tuple[int, int, int]]  # epoch, number, commit in microseconds since 1970
    lasts: dict[int, int]


def read_given(path: Path) -> Given | None:
    """Read a ledger without a lock, for whoever only looks; None if it says nothing (yet).

    A number may be in it whose journal is visible a moment later. Raises OSError.
    """
    given = None
    journals = {}
    lasts = {}
    for record in read_records(path.read_bytes()):
        for entry in record.given:
            journals[entry.uuid] = entry.stamp[:3]
        lasts[record.epoch] = record.last
        given = Given(record.epoch, record.last, journals, lasts)
    return given
