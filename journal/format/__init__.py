"""The journal format, version 1: every byte that is read from or written to a journal.

``docs/journal-format.md`` describes the bytes; ``native/`` writes the same ones in C. A
reader checks all that it reads before it uses it: a damaged file ends in JournalEmpty,
JournalTorn or JournalCorrupt, whatever is in it, and in no other way.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import importlib
import os
import struct
import uuid as uuids
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalCorrupt, JournalEmpty, JournalError, JournalTorn
from firebird_cdc.journal.format import charsets, crc32c

VERSION = 1
SECTOR = 512
COMMIT_OFFSET = 512
STAMP_OFFSET = 1024
DATA_OFFSET = 1536
BLOCK_HEADER = 40
MAX_PAYLOAD = 16 * 1024 * 1024
SEAL_BLOCK = BLOCK_HEADER + 32

_NIL = UUID(int=0)
_MAGIC = b"FBCDCJ\r\n"
_COMMIT_MAGIC = b"FBCM"
_STAMP_MAGIC = b"FBCS"
_BLOCK_MAGIC = b"FBCB"

_HEADER = struct.Struct("<8sHHI16sQq16s16sQ")
_COMMIT = struct.Struct("<4sIQqQ")
_UNSYNCED = 1  # a flag of the commit mark
_STAMP = struct.Struct("<4sIQqqQQQQ")
_BLOCK = struct.Struct("<4sIQQIHHII")
_SEAL = struct.Struct("<QQQq")
_HALF_FLOOR = 30  # where it is in the header of a block
_FLOORS = 1 << 32
# A record's kind and flags are read as one number: the kinds without flags are compared as is.
_RECORD = struct.Struct("<HHI")
_COLUMN = struct.Struct("<HhhIHHHBBBB")
_ELEMENT = struct.Struct("<HhhHHH")
_BOUNDS = struct.Struct("<ii")
_TABLE_CHANGE_HEAD = struct.Struct("<QBB")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_CRC = _U32

# Block flags.
_DEFINES = 1  # also of blocks with DDL
_SEALS = 2
_CATALOGUE = 4
# Record kinds.
_BEGIN, _TABLE, _INSERT, _UPDATE, _DELETE, _DDL, _SEQUENCE, _BLOB, _GAP, _TABLE_CHANGE = range(
    1, 11
)
_ROWS = frozenset({_INSERT, _UPDATE, _DELETE})
_EVENTS = _ROWS | {_DDL, _GAP}
# A TABLE record with the flag that says: the writer could not ask the engine's catalogue.
_UNRESOLVED_TABLE = _TABLE | 2 << 8
# Kinds of a TABLE_CHANGE, by their codes; its flags that say: the table's state follows, or is the
# same as in the one before it of this table.
_CHANGE_KINDS = {1: "CREATE", 2: "ALTER", 3: "DROP"}
_CHANGE_CODES = {kind: code for code, kind in _CHANGE_KINDS.items()}
_HAS_STATE = 1
_SAME_STATE = 2
# Flags of a column in a definition: NOT NULL, IDENTITY, and a default follows behind all columns.
_COLUMN_FLAGS = 7
_DEFAULTED = 4
# Flags of a column in a TABLE_CHANGE.
_GENERATED = 1
_HAS_DEFAULT = 2
# Flags of a BLOB record.
_LAST_CHUNK = 1
_UNAVAILABLE = 2

# All three sectors at once, each with its checksum behind its padding.
_SECTORS = struct.Struct("<8sHHI16sQq16s16sQ420xI 4sIQqQ476xI 4sIQqqQQQQ444xI")

# The writer ends a block once its payload would grow beyond this; a guess that suits one read.
_BLOCK_TARGET = 64 * 1024
_BLOB_CHUNK = 32 * 1024
# The first read of a file: the sectors and all of a small transaction, so that most journals
# cost one read.
_HEAD = 8 * 1024
_SCAN_WINDOW = 1024 * 1024
# Twice what the writers give a block.
_BACKWARD_WINDOW = 128 * 1024
# More than a file can have; offsets up to here can be asked of the system.
_MAX_LENGTH = 1 << 62
# Blanks that one row may be padded with. The engine's own limit for a row is 64 KiB.
_MAX_PADDING = 1024 * 1024
_MAX_DIMENSIONS = 16


class Storage(IntEnum):
    """How a column's values lie in a row image; the codes of the format."""

    SMALLINT = 1
    INTEGER = 2
    BIGINT = 3
    INT128 = 4
    FLOAT = 5
    DOUBLE = 6
    BOOLEAN = 7
    DATE = 8
    TIME = 9
    TIMESTAMP = 10
    TIME_TZ = 11
    TIMESTAMP_TZ = 12
    DECFLOAT16 = 13
    DECFLOAT34 = 14
    TEXT = 15
    PADDED_TEXT = 16
    OCTETS = 17
    BLOB = 18
    ARRAY = 19
    RAW = 20


_FIXED = {
    Storage.SMALLINT: "h",
    Storage.INTEGER: "i",
    Storage.BIGINT: "q",
    Storage.INT128: "16s",
    Storage.FLOAT: "f",
    Storage.DOUBLE: "d",
    Storage.BOOLEAN: "?",
    Storage.DATE: "i",
    Storage.TIME: "I",
    Storage.TIMESTAMP: "q",
    Storage.TIME_TZ: "6s",
    Storage.TIMESTAMP_TZ: "10s",
    Storage.DECFLOAT16: "8s",
    Storage.DECFLOAT34: "16s",
    Storage.TEXT: "H",
    Storage.PADDED_TEXT: "H",
    Storage.OCTETS: "H",
    Storage.BLOB: "Q",
    Storage.ARRAY: "Q",
    Storage.RAW: "H",
}
_VARIABLE = frozenset({Storage.TEXT, Storage.PADDED_TEXT, Storage.OCTETS, Storage.RAW})
_TEXTS = frozenset({Storage.TEXT, Storage.PADDED_TEXT})
_BLOBS = frozenset({Storage.BLOB, Storage.ARRAY})


class _Malformed(ValueError):
    """Bytes under a right checksum that make no sense; becomes JournalCorrupt with its place."""


class _MalformedRecord(_Malformed):
    """The same, at a place within its block's payload."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


class Element(NamedTuple):
    """What an element of an ARRAY column is, as its row in RDB$FIELDS says.

    ``field_type``: RDB$FIELD_TYPE, e.g. 7 SMALLINT, 8 INTEGER, 14 CHAR, 37 VARCHAR; ``length``:
    bytes; ``bounds``: lower and upper of each dimension.
    """

    field_type: int
    sub_type: int
    scale: int
    length: int
    charset_id: int
    bounds: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the writer met it.

    ``sql_type``, ``sub_type``, ``scale`` and ``length`` (bytes) are the engine's; NUMERIC and
    DECIMAL values are unscaled integers to be multiplied by 10**scale. ``char_length``:
    characters, 0 if not a text; ``precision``: decimal digits, 0 unknown; ``key_position``:
    place in the table's key from 1, 0 if not in it. ``element``: of an array, None if it is
    none or not known; ``char_length`` and ``precision`` are its own then. ``default``: as the
    engine has compiled it (``journal.events.defaults`` reads it), None if there is none or it isn't known.
    """

    name: str
    sql_type: int
    sub_type: int
    scale: int
    length: int
    charset_id: int
    char_length: int
    precision: int
    nullable: bool
    identity: bool
    key_position: int
    storage: Storage
    element: Element | None = None
    # Rows of tables that differ in it alone have one shape: shapes are told by what is shown here.
    default: bytes | None = dataclass_field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Table:
    """One shape of a table; ``key_kind``: 0 it has no key, 1 primary, 2 unique.

    ``columns`` are in the order in which rows are stored, and so are a row's values; ``order``
    lists their indexes as the table shows them (RDB$FIELD_POSITION), by default the same.
    ``resolved`` False: key, precision, lengths in characters, NOT NULL, IDENTITY and order are
    not known, and the fields for them say nothing.
    """

    number: int
    name: str
    key_kind: int
    columns: tuple[Column, ...]
    order: tuple[int, ...] = ()
    resolved: bool = True

    def __post_init__(self) -> None:
        if not self.order:
            object.__setattr__(self, "order", tuple(range(len(self.columns))))

    @property
    def key_columns(self) -> tuple[int, ...]:
        """Indexes into ``columns`` of the key's columns, in the key's order."""
        keyed = [(c.key_position, i) for i, c in enumerate(self.columns) if c.key_position]
        return tuple(index for _, index in sorted(keyed))


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A text whose bytes are not valid in its character set, or whose set Python lacks.

    ``raw``: the bytes as the engine handed them over, without padding; ``charset_id``:
    RDB$CHARACTER_SET_ID of the column.
    """

    raw: bytes
    charset_id: int


class Header(NamedTuple):
    """Sector 0: which journal this is; times in microseconds since 1970, UTC."""

    uuid: UUID
    transaction: int
    started_us: int
    database_guid: UUID
    owner: UUID
    epoch: int
    database_inode: int = 0  # of the database file when the journal was begun; 0: unknown


class CommitMark(NamedTuple):
    """Sector 1: the engine called commit; ``ticket`` orders the database's commits."""

    ticket: int
    commit_us: int
    transaction: int


class Stamp(NamedTuple):
    """Sector 2: the commit is durable, and this is the journal's place in the history.

    ``journal_length``: bytes from the start of the file to the end of the seal, or of the
    catalogue if there is one; ``catalogue_offset``: where that begins, which is the end of the
    seal, 0 without one.
    """

    epoch: int
    sequence: int
    commit_us: int
    stamped_us: int
    journal_length: int
    event_count: int
    transaction: int
    catalogue_offset: int = 0

    @property
    def seal_end(self) -> int:
        """File offset just behind the seal."""
        return self.catalogue_offset or self.journal_length


class Seal(NamedTuple):
    """The block that ends a transaction's records; the counts leave it out itself.

    ``end``: file offset just after it; ``crc``: its checksum, which the catalogue continues.
    ``floor``: the last ticket drawn when it was sealed, modulo 2**32; None: not recorded.
    """

    event_count: int
    record_count: int
    block_count: int
    sealed_us: int
    end: int
    crc: int
    floor: int | None = None


class RandomAccess(Protocol):
    """A file that is read at any place; pyarrow's ``NativeFile`` is one."""

    def size(self) -> int:
        """Bytes of the file."""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """Return up to NBYTES at OFFSET; fewer only where the file ends."""

    def close(self) -> None:
        """Give up what is open."""


class _Source:
    """A journal's file: read as the reader opened it, or opened anew once that is closed.

    ``content``: all of it, where it is in memory already. ``opener``: opens it where it is no
    file of this machine, that PATH would name.
    """

    __slots__ = ("_opener", "content", "fd", "file", "path")

    def __init__(
        self,
        path: Path | str,
        content: bytes | None = None,
        opener: Callable[[], RandomAccess] | None = None,
    ) -> None:
        self.path = path
        self.content = content
        self.fd = -1
        self.file: RandomAccess | None = None
        self._opener = opener
        if content is None:
            if opener is not None:
                self.file = opener()
            else:
                self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        if self.content is not None:
            return len(self.content)
        return self.file.size() if self.file is not None else os.fstat(self.fd).st_size

    def read(self, length: int, offset: int) -> bytes:
        """Return up to LENGTH bytes at OFFSET; fewer only where the file ends."""
        if self.fd >= 0:
            return _pread(self.fd, length, offset)
        if self.content is not None:
            return self.content[offset : offset + length]
        if self.file is not None:
            return self.file.read_at(length, offset)
        again = _Source(self.path, None, self._opener)
        try:
            return again.read(length, offset)
        finally:
            again.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.file is not None:
            self.file.close()
            self.file = None


class Blob:
    """The content of a BLOB or ARRAY value, read from the journal when it is asked for.

    Holds the places of its chunks in the file, not the content: 32 KiB or so are in memory
    at a time. Pickling reads the content and carries it along. ``length``: bytes; text is in
    the column's character set. ``available`` False: the writer could not read the content,
    and what is here is what it got.
    """

    __slots__ = ("_content", "_extents", "_source", "available", "length", "number")

    def __init__(
        self,
        number: int,
        available: bool,
        source: _Source | None,
        extents: Sequence[tuple[int, int, int]],
        content: bytes = b"",
    ) -> None:
        self.number = number
        self.available = available
        self.length = len(content) if source is None else sum(size for _, size, _ in extents)
        self._source = source
        self._extents = extents
        self._content = content

    def chunks(self) -> Iterator[bytes]:
        """Yield the content piece by piece; the pieces are those of the writer.

        Raises JournalCorrupt if the file no longer holds what was checked when the row was
        read, OSError if the file is gone.
        """
        if self._source is None:
            yield self._content
            return
        for offset, size, crc in self._extents:
            piece = self._source.read(size, offset)
            if len(piece) != size or crc32c.value(piece) != crc:
                what = "the content of a blob has changed since its row was read"
                raise JournalCorrupt(self._source.path, offset, what)
            yield piece

    def read(self) -> bytes:
        """Return the whole content."""
        return b"".join(self.chunks())

    def __reduce__(self) -> tuple[object, ...]:
        return (Blob, (self.number, self.available, None, (), self.read()))

    def __repr__(self) -> str:
        return f"Blob(number={self.number}, length={self.length}, available={self.available})"


Value: TypeAlias = int | float | bool | str | bytes | Blob | Undecodable | None
"""A column's value.

int: integers, unscaled numerics, INT128, DATE (days since 1858-11-17), TIME (1/10000 s),
TIMESTAMP (1/10000 s since 1858-11-17); float: FLOAT, DOUBLE; bool: BOOLEAN; str: texts, CHAR
padded to its length; bytes: OCTETS, RAW, TIME_TZ, TIMESTAMP_TZ and DECFLOAT as stored.
"""

Row: TypeAlias = tuple[Value, ...]


class RowChange(NamedTuple):
    """A row inserted (op "c"), updated ("u") or deleted ("d"); ``pos``: event number from 1."""

    pos: int
    op: str
    table: Table
    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as it was after the transaction that changed it.

    ``table``: its key, and all its columns in the order in which they are shown; its ``number``
    is 0. For each column: ``generated``, it is computed; ``defaults``, the text of its default
    without the word DEFAULT, None if it has none. ``charset``: the database's default one.
    """

    table: Table
    charset: str
    generated: tuple[bool, ...]
    defaults: tuple[str | None, ...]


class TableChange(NamedTuple):
    """What a DDL statement did to a table: CREATE, ALTER or DROP.

    ``state``: None after a DROP, and where it is not known: nobody could be asked in time, or
    the table was gone by the end of the transaction.
    """

    kind: str
    name: str
    state: TableState | None


class DdlChange(NamedTuple):
    """A DDL statement as the client sent it, and the tables it changed.

    ``table_changes`` None: the journal doesn't tell, as nobody could be asked when it was
    confirmed, or none of its statements is about tables.
    """

    pos: int
    sql: str | Undecodable
    table_changes: tuple[TableChange, ...] | None = None


class SequenceChange(NamedTuple):
    """The last value of a generator; not an event."""

    name: str
    value: int


class Gap(NamedTuple):
    """Something happened here that could not be captured; ``reason`` says what and why."""

    pos: int
    reason: str


Change: TypeAlias = RowChange | DdlChange | SequenceChange | Gap


# Low level: sectors, records, definitions.

_new_tuple = tuple.__new__
_new_object = object.__new__
_set_field = object.__setattr__
_UNKNOWN = uuids.SafeUUID.unknown


def fast_uuid(raw: bytes) -> UUID:
    """Return the uuid of 16 bytes, in a third of the time that its class takes."""
    made = _new_object(UUID)
    _set_field(made, "int", int.from_bytes(raw, "big"))
    _set_field(made, "is_safe", _UNKNOWN)
    return made


_known_uuid = functools.lru_cache(maxsize=64)(fast_uuid)  # of databases and servers: few


def _pread(fd: int, length: int, offset: int) -> bytes:
    piece = os.pread(fd, length, offset)
    if len(piece) == length or not piece:
        return piece
    pieces = [piece]
    have = len(piece)
    while have < length and (piece := os.pread(fd, length - have, offset + have)):
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def _crc(uuid: bytes, content: bytes) -> int:
    crc: int = crc32c.extend(crc32c.value(uuid), content)
    return crc


def _sector(uuid: bytes, content: bytes) -> bytes:
    body = content.ljust(SECTOR - 4, b"\0")
    return body + _CRC.pack(_crc(uuid, body))


def write_stamp(fd: int, uuid: UUID, stamp: Stamp) -> None:
    """Write sector 2 of the journal that is open for writing at FD; syncs nothing.

    Raises OSError. After a failure the sector may be half written: write it again, or leave
    the journal unstamped and unrenamed.
    """
    content = _STAMP.pack(
        _STAMP_MAGIC,
        stamp.epoch,
        stamp.sequence,
        stamp.commit_us,
        stamp.stamped_us,
        stamp.journal_length,
        stamp.event_count,
        stamp.transaction,
        stamp.catalogue_offset,
    )
    _pwrite(fd, _sector(uuid.bytes, content), STAMP_OFFSET)


def write_commit_mark(fd: int, uuid: UUID, mark: CommitMark, is_unsynced: bool = False) -> None:
    """Write the commit mark of the journal that is open for writing at FD; syncs nothing.

    Ticket 0: the transaction was seen in limbo, and nobody works in it any more. IS_UNSYNCED: see
    the reader's property. Raises OSError.
    """
    flags = _UNSYNCED if is_unsynced else 0
    content = _COMMIT.pack(_COMMIT_MAGIC, flags, mark.ticket, mark.commit_us, mark.transaction)
    _pwrite(fd, _sector(uuid.bytes, content), COMMIT_OFFSET)


def append_catalogue(
    fd: int,
    uuid: UUID,
    seal: Seal,
    completed: Mapping[int, bytes],
    changes: Mapping[int, Sequence[TableChange]] | None = None,
) -> int:
    """Write the catalogue behind the seal of the journal open for writing at FD; syncs nothing.

    ``completed``: the complete definition (``table_body``) of tables that are unresolved in the
    journal, by their number there. ``changes``: what DDL statements did to tables, by the
    number of the event. At least one of either. Returns the length of the journal with it, for
    the stamp, whose ``catalogue_offset`` is ``seal.end``; without such a stamp what was written
    is no part of the journal. Raises OSError, ValueError if there is nothing to write or it is
    larger than a block.
    """
    records = [_RECORD.pack(_TABLE, number, len(body)) + body for number, body in completed.items()]
    written: dict[str, TableState] = {}
    for event, several in (changes or {}).items():
        bodies = [_table_change_body(event, change, written) for change in several]
        if not several:
            bodies = [_TABLE_CHANGE_HEAD.pack(event, 0, 0)]
        records += [_RECORD.pack(_TABLE_CHANGE, 0, len(body)) + body for body in bodies]
    payload = b"".join(records)
    if not 0 < len(payload) <= MAX_PAYLOAD:
        raise ValueError(f"journal {uuid}: a catalogue of {len(payload)} bytes fits no block")
    block, _ = _block(
        uuid.bytes, seal.end, seal.event_count + 1, seal.crc, _CATALOGUE, len(records), payload
    )
    _pwrite(fd, block, seal.end)
    return seal.end + len(block)


def _block(
    uuid: bytes,
    offset: int,
    first_event: int,
    previous_crc: int,
    flags: int,
    records: int,
    payload: bytes,
    half_floor: int = 0,
) -> tuple[bytes, int]:
    """Return the bytes of a block, and its checksum."""
    head = _BLOCK.pack(
        _BLOCK_MAGIC, len(payload), offset, first_event, previous_crc, flags, half_floor, records, 0
    )[:36]
    crc = _crc(uuid, head + payload)
    return head + _CRC.pack(crc) + payload, crc


def _pwrite(fd: int, content: bytes, offset: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written


def _counted(buffer: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the bytes behind a u16 length at AT, and the offset after them."""
    (length,) = _U16.unpack_from(buffer, at)
    start = at + 2
    if start + length > end:
        raise _Malformed("a name or a default is longer than its record")
    return buffer[start : start + length], start + length


def _counted_text(buffer: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the UTF-8 text behind a u16 length at AT, and the offset after it."""
    text, at = _counted(buffer, at, end)
    return text.decode(), at


@functools.lru_cache(maxsize=256)
def _parse_begin(body: bytes) -> tuple[str, str]:
    database, at = _counted_text(body, 0, len(body))
    user, at = _counted_text(body, at, len(body))
    if at != len(body):
        raise _Malformed("the BEGIN record has bytes left over")
    return database, user


@functools.lru_cache(maxsize=256)
def _parse_table(number: int, body: bytes, resolved: bool = True) -> Table:
    """Parse a TABLE record; remembered, as small journals repeat the same few tables."""
    size = len(body)
    name, at = _counted_text(body, 0, size)
    if at + 4 > size:
        raise _Malformed(f"the definition of table {name} ends early")
    key_kind = body[at]
    (count,) = _U16.unpack_from(body, at + 2)
    if key_kind > 2 or count == 0:
        raise _Malformed(f"table {name} has key kind {key_kind} and {count} columns")
    at += 4
    columns = []
    with_defaults = []
    padding = 0
    for index in range(count):
        column_name, at = _counted_text(body, at, size)
        (
            sql_type,
            sub_type,
            scale,
            length,
            charset_id,
            char_length,
            precision,
            flags,
            key_position,
            storage,
            _,
        ) = _COLUMN.unpack_from(body, at)
        at += _COLUMN.size
        if flags & ~_COLUMN_FLAGS:
            raise _Malformed(f"column {name}.{column_name} has unknown flags")
        if flags & _DEFAULTED:
            with_defaults.append(index)
        if not -128 <= scale <= 127:  # the engine's own are of one byte
            raise _Malformed(f"column {name}.{column_name} has the scale {scale}")
        if storage not in _FIXED:
            raise _Malformed(f"column {name}.{column_name} has the unknown storage {storage}")
        if storage == Storage.PADDED_TEXT:
            padding += char_length
        columns.append(
            Column(
                name=column_name,
                sql_type=sql_type,
                sub_type=sub_type,
                scale=scale,
                length=length,
                charset_id=charset_id,
                char_length=char_length,
                precision=precision,
                nullable=not flags & 1,
                identity=bool(flags & 2),
                key_position=key_position,
                storage=Storage(storage),
            )
        )
    order: tuple[int, ...] = ()
    if at != size:
        order = struct.unpack_from(f"<{count}H", body, at)
        at += 2 * count
        if sorted(order) != list(range(count)):
            raise _Malformed(f"the order of the columns of table {name} is not one of them all")
    if at != size:
        for index, column in enumerate(columns):
            if column.storage == Storage.ARRAY:
                element, at = _parse_element(body, at)
                columns[index] = replace(column, element=element)
    for index in with_defaults:
        default, at = _counted(body, at, size)
        columns[index] = replace(columns[index], default=default)
    if at != size:
        raise _Malformed(f"the definition of table {name} has bytes left over")
    if padding > _MAX_PADDING:
        raise _Malformed(f"rows of table {name} would be padded to {padding} characters")
    return Table(number, name, key_kind, tuple(columns), order, resolved)


def _parse_element(body: bytes, at: int) -> tuple[Element | None, int]:
    """Return what an element of an array is, None if that is not known, and the offset after."""
    kind, sub_type, scale, length, charset_id, dimensions = _ELEMENT.unpack_from(body, at)
    at += _ELEMENT.size
    end = at + dimensions * _BOUNDS.size
    if dimensions > _MAX_DIMENSIONS or end > len(body):
        raise _Malformed(f"an array has {dimensions} dimensions")
    bounds = tuple(_BOUNDS.iter_unpack(body[at:end]))
    if not bounds:
        return None, end
    return Element(kind, sub_type, scale, length, charset_id, bounds), end


def _element_body(element: Element | None) -> bytes:
    if element is None:
        return bytes(_ELEMENT.size)
    *fields, bounds = element
    head = _ELEMENT.pack(*fields, len(bounds))
    return head + b"".join(_BOUNDS.pack(*pair) for pair in bounds)


def _parse_table_change(
    body: bytes, states: dict[str, TableState]
) -> tuple[int, TableChange | None]:
    """Return the number of an event, and one change that it made to a table; None: none.

    STATES: the last one of each table in the records before, and then in this one.
    """
    event, code, flags = _TABLE_CHANGE_HEAD.unpack_from(body)
    at = _TABLE_CHANGE_HEAD.size
    if code == 0 and flags == 0 and at == len(body):
        return event, None
    if code not in _CHANGE_KINDS or flags not in (0, _HAS_STATE, _SAME_STATE):
        raise _Malformed(f"a table was changed in the unknown way {code} (flags {flags})")
    kind = _CHANGE_KINDS[code]
    name, at = _counted_text(body, at, len(body))
    state = None
    if flags == _SAME_STATE:
        state = states.get(name)
    elif flags == _HAS_STATE:
        state, at = _parse_table_state(body, at)
    if flags:
        if state is None or state.table.name != name or kind == "DROP":
            raise _Malformed(f"the state after the {kind} of table {name} is not its own")
        states[name] = state
    if at != len(body):
        raise _Malformed(f"the change of table {name} has bytes left over")
    return event, TableChange(kind, name, state)


def _parse_table_state(body: bytes, at: int) -> tuple[TableState, int]:
    charset, at = _counted_text(body, at, len(body))
    (length,) = _U32.unpack_from(body, at)
    at += _U32.size
    if at + length > len(body):
        raise _Malformed("a definition is longer than its record")
    table = _parse_table(0, body[at : at + length])
    at += length
    generated = []
    defaults: list[str | None] = []
    for column in table.columns:
        if at >= len(body) or body[at] & ~(_GENERATED | _HAS_DEFAULT):
            raise _Malformed(f"column {table.name}.{column.name} has unknown flags")
        flags = body[at]
        at += 1
        default = None
        if flags & _HAS_DEFAULT:
            default, at = _counted_text(body, at, len(body))
        generated.append(bool(flags & _GENERATED))
        defaults.append(default)
    return TableState(table, charset, tuple(generated), tuple(defaults)), at


def _table_change_body(event: int, change: TableChange, written: dict[str, TableState]) -> bytes:
    """Return the body of a TABLE_CHANGE; WRITTEN: the last state of each table in those before,
    and then in this one."""
    state = change.state
    flags = 0
    if state is not None:
        flags = _SAME_STATE if written.get(change.name) is state else _HAS_STATE
        written[change.name] = state
    head = _TABLE_CHANGE_HEAD.pack(event, _CHANGE_CODES[change.kind], flags)
    body = [head, _with_length(change.name)]
    if state is not None and flags == _HAS_STATE:
        definition = table_body(state.table)
        body += [_with_length(state.charset), _U32.pack(len(definition)), definition]
        for generated, default in zip(state.generated, state.defaults, strict=True):
            has_default = default is not None
            body.append(bytes([generated * _GENERATED | has_default * _HAS_DEFAULT]))
            if default is not None:
                body.append(_with_length(default))
    return b"".join(body)


def _parse_catalogue(
    payload: bytes,
) -> tuple[int, Mapping[int, bytes], Mapping[int, tuple[TableChange, ...]]]:
    """Return how many records a catalogue has, its definitions and the changes of tables.

    Raises _MalformedRecord.
    """
    bodies: dict[int, bytes] = {}
    changes: dict[int, tuple[TableChange, ...]] = {}
    states: dict[str, TableState] = {}
    records = 0
    at = 0
    try:
        while at < len(payload):
            kind, number, length = _RECORD.unpack_from(payload, at)
            body = payload[at + 8 : at + 8 + length]
            if len(body) < length:
                raise _Malformed("a record is longer than its block")
            if kind == _TABLE and number and number not in bodies:
                bodies[number] = body
                _parse_table(number, body)
            elif kind == _TABLE_CHANGE and number == 0:
                event, change = _parse_table_change(body, states)
                before = changes.get(event, ())
                changes[event] = before if change is None else (*before, change)
            else:
                raise _Malformed("the catalogue has a record that does not belong there")
            records += 1
            at += 8 + length
    except (_Malformed, struct.error, UnicodeDecodeError) as error:
        raise _MalformedRecord(at, str(error)) from error
    return records, bodies, changes


_kept_catalogue = functools.lru_cache(maxsize=256)(_parse_catalogue)


def parse_table(number: int, body: bytes) -> Table:
    """Return the table that the body of a TABLE record defines; ValueError if it makes no sense."""
    try:
        return _parse_table(number, body)
    except (_Malformed, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a definition of {len(body)} bytes: {error}") from error


def table_body(table: Table) -> bytes:
    """Return the body of the TABLE record that defines TABLE; ValueError if it fits none."""
    count = len(table.columns)
    body = [_with_length(table.name), struct.pack("<BBH", table.key_kind, 0, count)]
    for column in table.columns:
        body.append(_with_length(column.name))
        body.append(
            _COLUMN.pack(
                column.sql_type,
                column.sub_type,
                column.scale,
                column.length,
                column.charset_id,
                column.char_length,
                column.precision,
                (not column.nullable)
                | column.identity << 1
                | (column.default is not None) * _DEFAULTED,
                column.key_position,
                column.storage,
                0,
            )
        )
    in_order = list(range(count))
    if sorted(table.order) != in_order:
        raise ValueError(f"{table.name}: the order {table.order} is not one of all columns")
    arrays = [column.element for column in table.columns if column.storage == Storage.ARRAY]
    defaults = [column.default for column in table.columns if column.default is not None]
    has_elements = any(arrays) or bool(defaults)
    if list(table.order) != in_order or has_elements:
        body.append(struct.pack(f"<{count}H", *table.order))
    if has_elements:
        body += map(_element_body, arrays)
    body += [_U16.pack(len(default)) + default for default in defaults]
    return b"".join(body)


def _complete(table: Table, body: bytes) -> Table:
    """Return what the catalogue's BODY says of TABLE, which it has to fit."""
    completed = _parse_table(table.number, body)
    if _stored_shape(completed) != _stored_shape(table):
        raise _Malformed(f"the catalogue has other columns for table {table.name} than the journal")
    return completed


def _stored_shape(table: Table) -> tuple[object, ...]:
    """Return what a row shows of its table; what the catalogue adds has to agree with it."""
    columns = ((c.name, c.sql_type, c.length, c.charset_id, c.storage) for c in table.columns)
    return (table.name, *columns)


# Row images: a decoder is compiled once for each shape of table.

# Compiling takes 30 us and 13 KB of memory a column.
_MAX_COMPILED = 2000
_WRONG_LENGTH = "a row image is not as long as its columns"
_BYTES_FOR_NULL = "a row image has bytes for a NULL"

_BlobLookup: TypeAlias = Callable[[int], Blob]
RowDecoder: TypeAlias = Callable[[bytes, int, int, _BlobLookup], Any]
"""``decode(buffer, at, end, blob)``: what a row image is made into; by default a `Row`."""


class _Field(NamedTuple):
    """What the decoder has to know of a column; tables of equal fields share a decoder."""

    storage: Storage
    codec: str | None
    charset_id: int
    char_length: int


def _fields(table: Table, none_codec: str) -> tuple[_Field, ...]:
    fields = []
    for column in table.columns:
        codec = None
        if column.storage in _TEXTS:
            none = column.charset_id == charsets.NONE
            codec = none_codec if none else charsets.codec_of(column.charset_id)
        padded = column.char_length if column.storage == Storage.PADDED_TEXT else 0
        fields.append(_Field(column.storage, codec, column.charset_id, padded))
    return tuple(fields)


def _decode_text(raw: bytes, field: _Field) -> str | Undecodable:
    if field.codec is None:
        return Undecodable(raw, field.charset_id)
    try:
        if field.charset_id == charsets.NONE:  # its length is in bytes, whatever they stand for
            return raw.ljust(field.char_length).decode(field.codec)
        return raw.decode(field.codec).ljust(field.char_length)
    except UnicodeError:
        return Undecodable(raw, field.charset_id)


def _decode_by_loop(
    layout: struct.Struct,
    fields: tuple[_Field, ...],
    buffer: bytes,
    at: int,
    end: int,
    blob: _BlobLookup,
) -> Row:
    """Decode a row one column after the other, as the compiled decoder does but slower.

    For rows with a text that its codec refuses, and for tables too wide to be compiled.
    """
    _, *stored = layout.unpack_from(buffer, at)
    bitmap = buffer[at : at + (len(fields) + 7) // 8]
    start = at + layout.size
    row: list[Value] = []
    for index, (field, value) in enumerate(zip(fields, stored, strict=True)):
        is_null = bitmap[index >> 3] >> (index & 7) & 1
        if field.storage in _VARIABLE:
            raw = buffer[start : start + value]
            start += value
            if is_null and value:
                raise _Malformed(_BYTES_FOR_NULL)
            value = _decode_text(raw, field) if field.storage in _TEXTS else raw
        elif field.storage == Storage.INT128:
            value = int.from_bytes(value, "little", signed=True)
        elif field.storage in _BLOBS and not is_null:
            value = blob(value)
        row.append(None if is_null else value)
    if start != end:
        raise _Malformed(_WRONG_LENGTH)
    if bitmap[-1] >> ((len(fields) - 1) % 8 + 1):
        raise _Malformed(_BYTES_FOR_NULL)
    return tuple(row)


def _image_layout(fields: Sequence[_Field]) -> struct.Struct:
    """Return the layout of the null bitmap and the fixed part of a row."""
    count = len(fields)
    bitmap = "B" if count <= 8 else f"{(count + 7) // 8}s"
    return struct.Struct("<" + bitmap + "".join(_FIXED[field.storage] for field in fields))


def _charmap_of(codec: str) -> object | None:
    """Return the decoding table of a single-byte codec, None if it is built in otherwise."""
    name = codecs.lookup(codec).name
    if name in ("utf-8", "ascii", "iso8859-1"):
        return None
    with contextlib.suppress(ImportError):  # of more bytes than one: Python has no such module
        module = importlib.import_module("encodings." + name.replace("-", "_"))
        table: object = getattr(module, "decoding_table", None)
        return table
    return None


def _null_test(index: int) -> str:
    """Return source that tests a column's bit; a mask is faster, but long for wide tables."""
    return f"bits & {1 << index}" if index < 64 else f"bits >> {index} & 1"


@functools.lru_cache(maxsize=256)
def _compile_decoder(fields: tuple[_Field, ...]) -> RowDecoder:
    """Return ``decode(buffer, at, end, blob)`` for the row images of a shape of table.

    The function is written out as source, column by column, since that is twice as fast as
    a loop. Nothing that was read from a file gets into the source but numbers.
    It raises struct.error or _Malformed if the image doesn't end at END.
    """
    layout = _image_layout(fields)
    by_loop = functools.partial(_decode_by_loop, layout, fields)
    if len(fields) > _MAX_COMPILED:
        return by_loop
    names: dict[str, Any] = {
        "unpack_from": layout.unpack_from,
        "charmap": codecs.charmap_decode,
        "int128": functools.partial(int.from_bytes, byteorder="little", signed=True),
        "Malformed": _Malformed,
        "by_loop": by_loop,
        "wrong_length": _WRONG_LENGTH,
        "bytes_for_null": _BYTES_FOR_NULL,
        "text": _decode_text,
    }
    ends = []
    values = []
    null_has_bytes = []
    previous = "e"
    for index, field in enumerate(fields):
        value = f"c{index}"
        if field.storage in _VARIABLE:
            ends.append(f"e{index} = {previous} + c{index}")
            piece = f"buffer[{previous}:e{index}]"
            previous = f"e{index}"
            null_has_bytes.append(f"({_null_test(index)} and c{index})")
            if field.storage not in _TEXTS:
                value = piece
            elif field.codec is None or (
                field.charset_id == charsets.NONE and field.storage == Storage.PADDED_TEXT
            ):
                names[f"f{index}"] = field
                value = f"text({piece}, f{index})"
            elif (table := _charmap_of(field.codec)) is not None:
                names[f"t{index}"] = table
                value = f"charmap({piece}, 'strict', t{index})[0]"
            else:
                value = f"{piece}.decode({field.codec!r})"
            if field.storage == Storage.PADDED_TEXT and not value.startswith("text("):
                value += f".ljust({field.char_length})"
        elif field.storage == Storage.INT128:
            value = f"int128(c{index})"
        elif field.storage in _BLOBS:
            value = f"blob(c{index})"
        values.append(value)
    count = len(fields)
    nullable = ", ".join(f"None if {_null_test(i)} else {v}" for i, v in enumerate(values))
    if count <= 8:
        has_nulls, bits = "nulls", "nulls"
    else:
        names["none"] = bytes((count + 7) // 8)
        has_nulls, bits = "nulls != none", "int.from_bytes(nulls, 'little')"
    lines = [
        "def decode(buffer, at, end, blob):",
        f"    nulls, {', '.join(f'c{i}' for i in range(count))} = unpack_from(buffer, at)",
        f"    e = at + {layout.size}",
        *(f"    {line}" for line in ends),
        f"    if {previous} != end:",
        "        raise Malformed(wrong_length)",
        "    try:",
        f"        if {has_nulls}:",
        f"            bits = {bits}",
        f"            if bits >> {count}{''.join(' or ' + check for check in null_has_bytes)}:",
        "                raise Malformed(bytes_for_null)",
        f"            return ({nullable},)",
        f"        return ({', '.join(values)},)",
        "    except UnicodeError:",
        "        return by_loop(buffer, at, end, blob)",
    ]
    exec("\n".join(lines), names)  # noqa: S102 (see above: the source is ours)
    decoder: RowDecoder = names["decode"]
    return decoder


def row_decoder(table: Table, none_charset: str = "UTF-8") -> RowDecoder:
    """Return what decodes row images of TABLE into a `Row`; it raises struct.error or ValueError
    if an image is not one of TABLE's. Raises ValueError if ``none_charset`` is unknown."""
    return _compile_decoder(_fields(table, _codec_for_none(none_charset)))


def raw_texts(table: Table) -> RowDecoder:
    """Return what decodes row images of TABLE into a `Row` whose texts are all Undecodable: the
    bytes that the journal holds."""
    return _compile_decoder(tuple(f._replace(codec=None) for f in _fields(table, "utf-8")))


class FieldPlace(NamedTuple):
    """Where the fixed field of a column is in a row image: ``offset``, bytes from its start, and
    ``size``; ``variable``: whether it is the length of bytes in the variable part."""

    offset: int
    size: int
    variable: bool


def image_places(table: Table) -> tuple[list[FieldPlace], int]:
    """Return the place of each column's field, and the offset of the variable part."""
    places = []
    offset = (len(table.columns) + 7) // 8
    for column in table.columns:
        size = struct.calcsize("<" + _FIXED[column.storage])
        places.append(FieldPlace(offset, size, column.storage in _VARIABLE))
        offset += size
    return places, offset


# A larger definition is compiled once more rather than kept here.
_MAX_KEPT_DEFINITION = 16 * 1024


def _definition(
    kind: int, number: int, body: bytes, completion: bytes | None, none_codec: str
) -> tuple[Table, RowDecoder]:
    """Return the table that a TABLE record defines, and the decoder for its rows.

    COMPLETION: what the catalogue has for it.
    """
    table = _parse_table(number, body, kind == _TABLE)
    if completion is not None:
        if table.resolved:
            raise _Malformed(f"the catalogue completes table {table.name}, which is complete")
        table = _complete(table, completion)
    return table, _compile_decoder(_fields(table, none_codec))


_kept_definition = functools.lru_cache(maxsize=256)(_definition)
"""Equal definitions in many journals are one and the same ``Table`` object."""


class _Tables(dict[int, tuple[Table, RowDecoder]]):
    """The tables defined so far, by number, each with its decoder.

    ``completed``: the definitions in the catalogue, by number. ``decoder``: makes the decoder of
    a table, instead of that for whole rows. ``find_earlier``: defines one by its number, if a
    reader has begun behind it.
    """

    __slots__ = ("_completed", "_decoder", "_none_codec", "find_earlier")

    def __init__(
        self,
        none_codec: str,
        completed: Mapping[int, bytes],
        decoder: Callable[[Table], RowDecoder] | None = None,
    ) -> None:
        self._none_codec = none_codec
        self._completed = completed
        self._decoder = decoder
        self.find_earlier: Callable[[int], None] | None = None

    def __missing__(self, number: int) -> tuple[Table, RowDecoder]:
        if self.find_earlier is not None:
            self.find_earlier(number)
            if number in self:
                return self[number]
        raise _Malformed(f"a row refers to table number {number}, which is not defined")

    def define(self, kind: int, number: int, body: bytes) -> None:
        if number == 0 or number in self:
            raise _Malformed(f"table number {number} is not free to be defined")
        define = _kept_definition if len(body) <= _MAX_KEPT_DEFINITION else _definition
        defined = define(kind, number, body, self._completed.get(number), self._none_codec)
        if self._decoder is not None:
            defined = (defined[0], self._decoder(defined[0]))
        self[number] = defined


class _PendingBlobs(dict[int, list[tuple[int, int, int]]]):
    """Blobs whose chunks have been met and whose row is still to come: the chunks by number."""

    __slots__ = ("_finished", "_source")

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._finished: dict[int, bool] = {}

    def add(self, flags: int, payload: bytes, body: int, end: int, file_offset: int) -> None:
        """Note the chunk in PAYLOAD[BODY:END]; FILE_OFFSET: where the payload lies."""
        if end - body < 8 or flags & ~(_LAST_CHUNK | _UNAVAILABLE):
            raise _Malformed("a chunk of a blob has no number, or unknown flags")
        (number,) = _U64.unpack_from(payload, body)
        if number == 0 or number in self._finished:
            raise _Malformed(f"a chunk of blob {number} comes after the last one")
        start = body + 8
        extents = self.setdefault(number, [])
        if end > start:
            crc = crc32c.value(payload[start:end])
            extents.append((file_offset + start, end - start, crc))
        if flags & _LAST_CHUNK:
            self._finished[number] = not flags & _UNAVAILABLE

    def __call__(self, number: int) -> Blob:
        available = self._finished.get(number)
        if available is None:
            raise _Malformed(f"a row refers to blob {number}, which does not come before it")
        return Blob(number, available, self._source, self[number])

    def clear(self) -> None:
        """Forget them: a row has come."""
        super().clear()
        self._finished.clear()


class _BlockHeader(NamedTuple):
    offset: int
    payload_length: int
    first_event: int
    previous_crc: int
    flags: int
    record_count: int
    crc: int
    raw: bytes
    end: int  # offset just behind the block


class _Catalogue(NamedTuple):
    """The block behind the seal: the bodies of its definitions by table number, and the changes
    of tables by the number of the event."""

    block: _BlockHeader
    bodies: Mapping[int, bytes]
    changes: Mapping[int, tuple[TableChange, ...]]


_NO_BODIES: Mapping[int, bytes] = {}
_NO_CHANGES: Mapping[int, tuple[TableChange, ...]] = {}


class UnstampedCatalogue(NamedTuple):
    """What stands behind the seal of a journal without a stamp: ``end``, the file offset after
    it; ``bodies``, definitions by table number; whether it ``tells_of_ddl`` and its tables."""

    end: int
    bodies: dict[int, bytes]
    tells_of_ddl: bool


class JournalReader:
    """Reads one journal, whole or not, in memory for one block; a context manager.

    Checks the three sectors when it is made, and each block with all its records before it
    yields from it. Doesn't look at the file's name: whether a journal without a stamp counts
    is the caller's business. A live journal may be read while it is written; it is torn then
    where the writing has got to. One reader may be asked for changes several times, but
    belongs to one thread.

    ``none_charset``: for texts of CHARACTER SET NONE, a name of Firebird's or of Python's.
    ``content``: all of the file, where the caller has it; ``opener``: opens it, where it is not on
    this machine. PATH is only its name then.
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
    ) -> None:
        self._none_codec = _codec_for_none(none_charset)
        self._begin: tuple[str, str] | None = None
        self._catalogue_read: _Catalogue | None = None
        self._source = source = _Source(path, content, opener)
        if content is not None:
            self._head = content
            self._read_sectors()
            return
        try:
            self._head = source.read(_HEAD, 0)
            self._read_sectors()
        except BaseException:
            source.close()
            raise

    def close(self) -> None:
        """Close the file; blobs that were read from it open it again by its path."""
        self._source.close()

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_unsynced(self) -> bool:
        """Whether a sync of it has failed: it has to be copied before it counts as on disk."""
        if self.commit_mark is None:
            return False
        return bool(_U32.unpack_from(self._head, COMMIT_OFFSET + 4)[0] & _UNSYNCED)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._source.path)

    @property
    def place(self) -> str:
        """The file as the caller named it, which may be by a URI."""
        return str(self._source.path)

    @property
    def size(self) -> int:
        """Bytes of the file, slack included."""
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
            before: _BlockHeader | None
            if self.stamp is not None:
                block = self._block_header(self.stamp.seal_end - SEAL_BLOCK)
                before = self._block_before(block.offset)
            else:
                *earlier, block = deque(self._walk(), maxlen=2)
                before = earlier[0] if earlier else None
            if not block.flags & _SEALS:
                return None
            seal = self._parse_seal(block, self._payload(block))
            return seal._replace(floor=self._floor(before, block))
        except (JournalTorn, JournalCorrupt):
            return None

    def block_offsets(self) -> Iterator[int]:
        """Yield the file offset of every block, the seal's last, from their headers alone.

        Raises JournalTorn or JournalCorrupt where the chain of headers breaks.
        """
        for block in self._walk():
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
        for block in self._walk_to(start):
            if block.offset >= start:
                return block.offset
        return None

    def unresolved_tables(self) -> dict[int, bytes]:
        """Return the bodies of the definitions that are to be completed, by table number.

        For a sealed journal that has no stamp yet; of its blocks, only those with definitions
        are read. Raises as ``changes`` does.
        """
        unresolved = {}
        for block in self._walk():
            if block.flags & _DEFINES:
                for kind, number, payload, body, end in self._records(block):
                    if kind == _UNRESOLVED_TABLE:
                        unresolved[number] = payload[body:end]
        return unresolved

    def statements(self) -> dict[int, str | Undecodable]:
        """Return the DDL statements by the number of their event.

        Of the blocks, only those with definitions or DDL are read. Raises as ``changes`` does.
        """
        found = {}
        for block in self._walk():
            if block.flags & _DEFINES:
                pos = block.first_event
                for kind, _, payload, body, end in self._records(block):
                    if kind == _DDL:
                        found[pos] = self._ddl_text(payload[body:end])
                    pos += kind in _EVENTS
        return found

    def unstamped_catalogue(self) -> UnstampedCatalogue | None:
        """Return the catalogue behind the seal, None if there is none that is intact.

        For a sealed journal that has no stamp yet: the plugin writes the catalogue together with
        the seal if it knows anything by then. Raises as ``changes`` does.
        """
        seal = self.seal
        if seal is None:
            return None
        raw = self._pread(BLOCK_HEADER, seal.end)
        if len(raw) < BLOCK_HEADER:
            return None
        magic, length, own, first_event, previous, flags, _, _, crc = _BLOCK.unpack(raw)
        behind = own + BLOCK_HEADER + length
        block = _BlockHeader(own, length, first_event, previous, flags, 0, crc, raw, behind)
        if (magic, own, flags, previous) != (_BLOCK_MAGIC, seal.end, _CATALOGUE, seal.crc):
            return None
        payload = self._pread(min(length, MAX_PAYLOAD), own + BLOCK_HEADER)
        if _crc(self._uuid, raw[:36] + payload) != crc:
            return None
        bodies = {}
        tells_of_ddl = False
        for kind, number, content, body, end in self._records(block):
            if kind == _TABLE:
                bodies[number] = content[body:end]
            tells_of_ddl = tells_of_ddl or kind == _TABLE_CHANGE
        return UnstampedCatalogue(block.end, bodies, tells_of_ddl)

    def outline(self) -> Iterator[tuple[int, Table] | DdlChange]:
        """Yield the tables' definitions, each with the number of the event that comes next, and
        the DDL statements.

        Of the blocks, only those with definitions or DDL are read. Raises as ``changes`` does.
        """
        catalogue = self._catalogue()
        completed, changed = _NO_BODIES, _NO_CHANGES
        if catalogue is not None:
            _, completed, changed = catalogue
        tables = _Tables(self._none_codec, completed)
        for block in self._walk():
            if not block.flags & _DEFINES:
                continue
            pos = block.first_event
            payload = self._payload(block)
            at, size = 0, len(payload)
            while at + _RECORD.size <= size:
                kind, number, length = _RECORD.unpack_from(payload, at)
                body = at + _RECORD.size
                at = body + length
                if kind in _ROWS:  # mostly
                    pos += 1
                elif kind in (_TABLE, _UNRESOLVED_TABLE):
                    self._define_one(tables, block, kind, number, payload, body, at)
                    yield pos, tables[number][0]
                else:
                    if kind == _DDL:
                        yield DdlChange(pos, self._ddl_text(payload[body:at]), changed.get(pos))
                    pos += kind in _EVENTS
            if at != size:
                self._malformed(block.offset + BLOCK_HEADER, "a record is longer than its block")

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
        tables = _Tables(self._none_codec, completed, decoder)
        blobs = _PendingBlobs(self._source)
        unpack_record = _RECORD.unpack_from
        new_row = _new_tuple
        pos = 0
        unmet: set[int] = set()  # of these, events that were not met yet
        for block, counts in self._blocks_from(start_offset, end_offset, tables, blobs):
            payload = self._payload(block)
            offset, _, first_event, _, flags, record_count, *_ = block
            if pos == 0:
                pos = first_event
                if changed:
                    unmet = {event for event in changed if event >= pos}
            is_first = offset == DATA_OFFSET
            if first_event != pos or pos == 0 or (is_first and pos != 1):
                self._malformed(offset, f"event {first_event} is out of the count")
            if flags & _SEALS:
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
                        raise _Malformed("a record is longer than its block")
                    if kind == _INSERT:
                        table, decode = tables[number]
                        after = decode(payload, body, end, blobs)
                        yield new_row(RowChange, (pos, "c", table, None, after))
                        pos += 1
                        if blobs:
                            blobs.clear()
                    elif kind == _UPDATE:
                        table, decode = tables[number]
                        (old_length,) = _U32.unpack_from(payload, body)
                        middle = body + 4 + old_length
                        if middle > end:
                            raise _Malformed("the old row is longer than its record")
                        before = decode(payload, body + 4, middle, blobs)
                        after = decode(payload, middle, end, blobs)
                        yield new_row(RowChange, (pos, "u", table, before, after))
                        pos += 1
                        if blobs:
                            blobs.clear()
                    elif kind == _DELETE:
                        table, decode = tables[number]
                        before = decode(payload, body, end, blobs)
                        yield new_row(RowChange, (pos, "d", table, before, None))
                        pos += 1
                        if blobs:
                            blobs.clear()
                    elif kind & 0xFF == _BLOB:
                        blobs.add(kind >> 8, payload, body, end, file_offset)
                    elif kind in (_BEGIN, _TABLE, _UNRESOLVED_TABLE):
                        first = is_first and at == 0
                        if not flags & _DEFINES or first != (kind == _BEGIN):
                            raise _Malformed("a definition is where none may be")
                        if kind == _BEGIN:
                            self._begin = _parse_begin(payload[body:end])
                        else:
                            tables.define(kind, number, payload[body:end])
                    elif kind == _SEQUENCE:
                        (value,) = _I64.unpack_from(payload, body)
                        if length < 8:
                            raise _Malformed("a SEQUENCE record ends early")
                        yield SequenceChange(payload[body + 8 : end].decode(), value)
                    elif kind == _DDL:
                        sql = self._ddl_text(payload[body:end])
                        unmet.discard(pos)
                        yield DdlChange(pos, sql, changed.get(pos))
                        pos += 1
                    elif kind == _GAP:
                        yield self._gap(pos, payload[body:end])
                        pos += 1
                    else:
                        raise _Malformed(f"unknown record kind {kind}")
                    if is_first and records == 0 and kind != _BEGIN:
                        raise _Malformed("the first record is not BEGIN")
                    records += 1
                    at = end
            except (_Malformed, struct.error, UnicodeDecodeError) as error:
                self._malformed(file_offset + at, str(error))
            if records != record_count:
                self._malformed(offset, f"the block has {records} records, not {record_count}")

    def _ddl_text(self, body: bytes) -> str | Undecodable:
        (charset_id,) = _U16.unpack_from(body)
        none = charset_id == charsets.NONE
        codec = self._none_codec if none else charsets.codec_of(charset_id)
        return _decode_text(body[2:], _Field(Storage.TEXT, codec, charset_id, 0))

    @staticmethod
    def _gap(pos: int, body: bytes) -> Gap:
        reason, end = _counted_text(body, 0, len(body))
        if end != len(body):
            raise _Malformed("a GAP record has bytes left over")
        return Gap(pos, reason)

    # Sectors and the first block.

    def _read_sectors(self) -> None:
        if len(self._head) < DATA_OFFSET or not self._read_whole_sectors():
            self._read_each_sector()

    def _read_whole_sectors(self) -> bool:
        """Take in the sectors of a journal with a stamp; False if anything isn't as it should."""
        head = self._head
        (
            magic, version, data_offset, epoch, uuid, transaction, started_us, guid, owner, inode,
            header_crc,
            mark_magic, _, ticket, mark_us, marked, mark_crc,
            stamp_magic, stamp_epoch, sequence, commit_us, stamped_us, length, events, stamped,
            catalogue, stamp_crc,
        ) = _SECTORS.unpack_from(head)  # fmt: skip
        uuid_crc = crc32c.value(uuid)
        extend = crc32c.extend
        end = catalogue or length
        if (
            magic != _MAGIC
            or version != VERSION
            or data_offset != DATA_OFFSET
            or mark_magic != _COMMIT_MAGIC
            or stamp_magic != _STAMP_MAGIC
            or not transaction == marked == stamped
            or extend(uuid_crc, head[: SECTOR - 4]) != header_crc
            or extend(uuid_crc, head[SECTOR : 2 * SECTOR - 4]) != mark_crc
            or extend(uuid_crc, head[2 * SECTOR : 3 * SECTOR - 4]) != stamp_crc
            or end < DATA_OFFSET + SEAL_BLOCK
            or length > _MAX_LENGTH
            or (catalogue and end + BLOCK_HEADER >= length)
        ):
            return False
        self._header_crc: int = header_crc
        self._uuid: bytes = uuid
        self._uuid_crc: int = uuid_crc
        self.header = _new_tuple(
            Header,
            (
                fast_uuid(uuid),
                transaction,
                started_us,
                _known_uuid(guid),
                _known_uuid(owner),
                epoch,
                inode,
            ),
        )
        self.commit_mark = _new_tuple(CommitMark, (ticket, mark_us, marked))
        self.stamp = _new_tuple(
            Stamp,
            (stamp_epoch, sequence, commit_us, stamped_us, length, events, stamped, catalogue),
        )
        return True

    def _read_each_sector(self) -> None:
        """Take in the sectors one by one, and say what is wrong with them."""
        head = self._head
        header = head[:SECTOR]
        sectors = head[:DATA_OFFSET]
        if not any(header):
            if any(sectors):
                self._malformed(0, "the header is gone, while later marks are there")
            raise JournalEmpty(self._source.path, 0, "nothing has been written to it yet")
        if not header.startswith(_MAGIC[: len(header)]):
            self._malformed(0, "this is not a journal of firebird-cdc")
        if len(header) < SECTOR:
            raise JournalTorn(self._source.path, len(header), "the file ends inside its header")
        _, version, data_offset, epoch, uuid, transaction, started_us, guid, owner, inode = (
            _HEADER.unpack_from(header)
        )
        if version != VERSION:
            what = f"journal format {version} is not known to this version of firebird-cdc"
            self._malformed(8, f"{what} (it knows {VERSION}); upgrade it")
        (self._header_crc,) = _CRC.unpack_from(header, SECTOR - 4)
        if _crc(uuid, header[:-4]) != self._header_crc or data_offset != DATA_OFFSET:
            self._malformed(0, "the header's checksum is wrong")
        self._uuid = uuid
        self._uuid_crc = crc32c.value(uuid)
        self.header = Header(
            UUID(bytes=uuid),
            transaction,
            started_us,
            UUID(bytes=guid),
            UUID(bytes=owner),
            epoch,
            inode,
        )
        self.commit_mark = None
        mark = self._read_sector(COMMIT_OFFSET, _COMMIT_MAGIC, "commit mark")
        if mark is not None:
            _, _, ticket, commit_us, marked = _COMMIT.unpack_from(mark)
            self.commit_mark = CommitMark(ticket, commit_us, marked)
            self._check_transaction(COMMIT_OFFSET, marked)
        self.stamp = None
        stamp = self._read_sector(STAMP_OFFSET, _STAMP_MAGIC, "stamp")
        if stamp is not None:
            self.stamp = Stamp(*_STAMP.unpack_from(stamp)[1:])
            self._check_transaction(STAMP_OFFSET, self.stamp.transaction)
            length, end = self.stamp.journal_length, self.stamp.seal_end
            if end < DATA_OFFSET + SEAL_BLOCK or length > _MAX_LENGTH:
                what = f"the stamp gives a length of {length} bytes, {end} up to the seal"
                self._malformed(STAMP_OFFSET, what)
            if self.stamp.catalogue_offset and end + BLOCK_HEADER >= length:
                what = f"the stamp has a catalogue at {end}, and the journal end at {length}"
                self._malformed(STAMP_OFFSET, what)

    def _read_sector(self, offset: int, magic: bytes, name: str) -> bytes | None:
        sector = self._head[offset : offset + SECTOR]
        if not any(sector):
            return None
        if len(sector) < SECTOR:
            end = offset + len(sector)
            raise JournalTorn(self._source.path, end, f"the file ends inside its {name}")
        right = _CRC.unpack_from(sector, SECTOR - 4) == (_crc(self._uuid, sector[:-4]),)
        if not right or not sector.startswith(magic):
            self._malformed(offset, f"the {name}'s checksum is wrong")
        return sector

    def _check_transaction(self, offset: int, transaction: int) -> None:
        if transaction != self.header.transaction:
            mine = self.header.transaction
            self._malformed(offset, f"marked for transaction {transaction}, not for {mine}")

    def _read_begin(self) -> tuple[str, str]:
        if self._begin is None:
            block = self._block_header(DATA_OFFSET)
            self._check_chain(block, self._header_crc)
            payload = self._payload(block)
            try:
                kind, _, length = _RECORD.unpack_from(payload)
                if kind != _BEGIN or 8 + length > len(payload):
                    raise _Malformed("the first record is not BEGIN")
                self._begin = _parse_begin(payload[8 : 8 + length])
            except (_Malformed, struct.error, UnicodeDecodeError) as error:
                self._malformed(DATA_OFFSET + BLOCK_HEADER, str(error))
        return self._begin

    # Blocks.

    def _pread(self, length: int, offset: int) -> bytes:
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        return self._source.read(length, offset)

    def _block_header(self, offset: int) -> _BlockHeader:
        raw = self._head[offset : offset + BLOCK_HEADER]
        if len(raw) < BLOCK_HEADER:
            raw = self._source.read(BLOCK_HEADER, offset)
            if len(raw) < BLOCK_HEADER:
                raise self._broken(offset, raw, "the file ends")
        magic, length, own, first_event, previous, flags, _, count, crc = _BLOCK.unpack(raw)
        if magic != _BLOCK_MAGIC or own != offset or not 0 < length <= MAX_PAYLOAD:
            raise self._broken(offset, raw, "no block begins here")
        stamp = self.stamp
        is_catalogue = stamp is not None and offset == stamp.catalogue_offset
        if flags != _CATALOGUE if is_catalogue else flags & ~(_DEFINES | _SEALS):
            raise self._broken(offset, raw, "the block has unknown flags")
        end = offset + BLOCK_HEADER + length
        if stamp is not None:
            limit = stamp.journal_length if is_catalogue else stamp.seal_end
            if end > limit:
                raise self._broken(offset, raw, "the block is longer than the journal")
        return _new_tuple(
            _BlockHeader, (offset, length, first_event, previous, flags, count, crc, raw, end)
        )

    def _payload(self, block: _BlockHeader) -> bytes:
        """Return the block's payload after its checksum was found right."""
        offset, length, _, _, _, _, crc, raw, end = block
        payload = self._head[offset + BLOCK_HEADER : end]
        if len(payload) < length:
            payload = self._source.read(length, offset + BLOCK_HEADER)
            if len(payload) < length:
                raise self._broken(offset, raw + payload, "the file ends inside the block")
        extend = crc32c.extend
        if extend(extend(self._uuid_crc, raw[:36]), payload) != crc:
            raise self._broken(offset, raw + payload, "the block's checksum is wrong")
        return payload

    def _check_chain(self, block: _BlockHeader, previous_crc: int) -> None:
        if block.previous_crc != previous_crc:
            what = "the block does not continue the one before it"
            raise self._broken(block.offset, block.raw, what)

    def _walk(self, end_offset: int | None = None) -> Iterator[_BlockHeader]:
        """Yield the header of every block up to the seal; checks their chain, no payload."""
        offset = DATA_OFFSET
        previous_crc = self._header_crc
        while end_offset is None or offset < end_offset:
            block = self._block_header(offset)
            self._check_chain(block, previous_crc)
            yield block
            if block.flags & _SEALS:
                return
            offset = block.end
            previous_crc = block.crc

    def _blocks_from(
        self, start_offset: int, end_offset: int | None, tables: _Tables, blobs: _PendingBlobs
    ) -> Iterator[tuple[_BlockHeader, tuple[int, int] | None]]:
        """Yield the blocks from START_OFFSET on, each with the counts of those before it.

        The counts are (records, blocks), None if it was not walked past all of them. Fills TABLES
        and BLOBS with what the blocks before START_OFFSET leave open.
        """
        if end_offset is not None and start_offset >= end_offset:
            return
        counts: tuple[int, int] | None = (0, 0)
        if start_offset > DATA_OFFSET:
            counts = None
            offset, previous_crc = start_offset, self._begin_within(start_offset, tables, blobs)
        else:
            offset, previous_crc = DATA_OFFSET, self._header_crc
        while end_offset is None or offset < end_offset:
            block = self._block_header(offset)
            if block.previous_crc != previous_crc:
                self._check_chain(block, previous_crc)
            yield block, counts
            if block.flags & _SEALS:
                break
            if counts is not None:
                counts = (counts[0] + block.record_count, counts[1] + 1)
            offset = block.end
            previous_crc = block.crc

    def _begin_within(self, start: int, tables: _Tables, blobs: _PendingBlobs) -> int:
        """Return the checksum of the block before the one at START, whose chunks go to BLOBS.

        Of TABLES, those that the first block doesn't define are looked for when a row has one.
        """
        before = None
        for block in self._walk_to(start):
            if block.offset >= start:
                break
            before = block
        if before is None or before.end != start:
            self._malformed(start, "no block begins here")
        self._collect_blobs(before, blobs)
        (first,) = self._walk(DATA_OFFSET + 1)
        if first.flags & _DEFINES:
            self._define(first, tables)
        tables.find_earlier = functools.partial(self._define_earlier, start, tables)
        return before.crc

    def _define_earlier(self, start: int, tables: _Tables, number: int) -> None:
        """Look for the definition of table NUMBER between the first block and START."""
        for block in self._walk(start):
            if block.flags & _DEFINES and block.offset > DATA_OFFSET:
                for kind, defined, payload, body, end in self._records(block):
                    if kind in (_TABLE, _UNRESOLVED_TABLE) and defined == number:
                        tables.define(kind, number, payload[body:end])
                        return

    def _walk_to(self, offset: int) -> Iterator[_BlockHeader]:
        """Yield the headers of the blocks from the last intact one before OFFSET up to the seal;
        checks their chain. Of a journal without a stamp, of all blocks."""
        before = self._block_before(offset) if self.stamp is not None else None
        if before is None:
            yield from self._walk()
            return
        while not before.flags & _SEALS:
            yield before
            block = self._block_header(before.end)
            self._check_chain(block, before.crc)
            before = block
        yield before

    def _block_before(self, offset: int) -> _BlockHeader | None:
        """Return the last intact block that begins before OFFSET; None: none but the first may.

        See `first_block` on why it is one of the chain.
        """
        assert self.stamp is not None
        end = min(offset, self.stamp.seal_end)
        size = _BACKWARD_WINDOW
        while end > DATA_OFFSET:
            start = max(DATA_OFFSET, end - size)
            window = self._pread(end - start + len(_BLOCK_MAGIC) - 1, start)
            at = window.rfind(_BLOCK_MAGIC, 0, end - start + len(_BLOCK_MAGIC) - 1)
            while at >= 0:
                try:
                    block = self._block_header(start + at)
                    self._payload(block)
                    return block
                except JournalCorrupt:
                    at = window.rfind(_BLOCK_MAGIC, 0, at + len(_BLOCK_MAGIC) - 1)
            end = start
            size = min(2 * size, _SCAN_WINDOW)
        return None

    def _records(self, block: _BlockHeader) -> Iterator[tuple[int, int, bytes, int, int]]:
        """Yield (kind and flags, table number, payload, body's start, its end) of a block."""
        payload = self._payload(block)
        at = 0
        try:
            while at < len(payload):
                kind, number, length = _RECORD.unpack_from(payload, at)
                end = at + 8 + length
                if end > len(payload):
                    raise _Malformed("a record is longer than its block")
                yield kind, number, payload, at + 8, end
                at = end
        except (_Malformed, struct.error) as error:
            self._malformed(block.offset + BLOCK_HEADER + at, str(error))

    def _define(self, block: _BlockHeader, tables: _Tables) -> None:
        for kind, number, payload, body, end in self._records(block):
            if kind in (_TABLE, _UNRESOLVED_TABLE):
                self._define_one(tables, block, kind, number, payload, body, end)

    def _define_one(
        self,
        tables: _Tables,
        block: _BlockHeader,
        kind: int,
        number: int,
        payload: bytes,
        body: int,
        end: int,
    ) -> None:
        try:
            tables.define(kind, number, payload[body:end])
        except (_Malformed, struct.error, UnicodeDecodeError) as error:
            self._malformed(block.offset + BLOCK_HEADER + body - 8, str(error))

    def _collect_blobs(self, block: _BlockHeader, blobs: _PendingBlobs) -> None:
        """Note the chunks behind the last row of what comes up to the end of BLOCK."""
        groups = []
        while True:
            chunks: list[tuple[int, bytes, int, int, int]] = []
            rows = 0
            for kind, _, payload, body, end in self._records(block):
                if kind & 0xFF == _BLOB:
                    chunks.append((kind >> 8, payload, body, end, block.offset + BLOCK_HEADER))
                elif kind in (_INSERT, _UPDATE, _DELETE):
                    chunks.clear()
                    rows += 1
            groups.append(chunks)
            if rows or block.offset == DATA_OFFSET:
                break
            start = block.offset
            for before in self._walk_to(start):
                if before.offset >= start:
                    break
                block = before
        for chunks in reversed(groups):
            for chunk in chunks:
                try:
                    blobs.add(*chunk)
                except _Malformed as error:
                    self._malformed(chunk[4] + chunk[2] - 8, str(error))

    def _parse_seal(self, block: _BlockHeader, payload: bytes) -> Seal:
        if len(payload) != _SEAL.size or block.record_count:
            self._malformed(block.offset, "the seal has a wrong size")
        events, records, blocks, sealed_us = _SEAL.unpack(payload)
        seal = Seal(events, records, blocks, sealed_us, block.end, block.crc)
        stamp = self.stamp
        if stamp is not None and (stamp.seal_end, stamp.event_count) != (
            seal.end,
            seal.event_count,
        ):
            self._malformed(block.offset, "seal and stamp differ in length or number of events")
        return seal

    def _floor(self, before: _BlockHeader | None, seal: _BlockHeader) -> int | None:
        """Return the floor of the journal, None if it has none or the block BEFORE its seal, where
        one half of it is, is damaged."""
        if before is None or before.crc != seal.previous_crc:
            return None
        high, low = (_U16.unpack_from(block.raw, _HALF_FLOOR)[0] for block in (before, seal))
        stored: int = high << 16 | low
        if not stored:
            return None
        payload = self._pread(before.payload_length, before.offset + BLOCK_HEADER)
        is_intact = _crc(self._uuid, before.raw[:36] + payload) == before.crc
        return (stored - 1) % _FLOORS if is_intact else None

    def _check_seal(
        self, block: _BlockHeader, payload: bytes, events: int, counts: tuple[int, int] | None
    ) -> None:
        """Check the seal. COUNTS: of the records and blocks before it, None if not all were met."""
        if len(payload) == _SEAL.size and not block.record_count and counts is not None:
            stamp = self.stamp
            stamped = stamp is None or (stamp.event_count == events and stamp.seal_end == block.end)
            if stamped and _SEAL.unpack(payload)[:3] == (events, *counts):
                return
        seal = self._parse_seal(block, payload)
        records, blocks = counts or (seal.record_count, seal.block_count)
        if (seal.event_count, seal.record_count, seal.block_count) != (events, records, blocks):
            what = f"{events} events, {records} records and {blocks} blocks are here"
            says = f"{seal.event_count}, {seal.record_count} and {seal.block_count}"
            self._malformed(block.offset, f"{what}; the seal says {says}")

    def _catalogue(self) -> _Catalogue | None:
        """The completed definitions, None if the journal has no catalogue.

        Read before any definition, since a reader may begin behind all of them.
        """
        stamp = self.stamp
        if stamp is None or not stamp.catalogue_offset:
            return None
        if self._catalogue_read is None:
            block = self._block_header(stamp.catalogue_offset)
            payload = self._payload(block)
            parse = _kept_catalogue if len(payload) <= _MAX_KEPT_DEFINITION else _parse_catalogue
            try:
                records, bodies, changes = parse(payload)
            except _MalformedRecord as error:
                self._malformed(block.offset + BLOCK_HEADER + error.at, str(error))
            if (block.end, block.first_event, block.record_count) != (
                stamp.journal_length,
                stamp.event_count + 1,
                records,
            ):
                self._malformed(block.offset, "the catalogue and the stamp, or its records, differ")
            self._catalogue_read = _Catalogue(block, bodies, changes)
        return self._catalogue_read

    def _check_catalogue(
        self,
        catalogue: _Catalogue,
        seal: _BlockHeader,
        defined: Set[int],
        unmet: Iterable[int],
    ) -> None:
        """Check what only a reader that has come to the seal knows. UNMET: events that changed
        tables, and were none of the DDL statements that were read."""
        offset = catalogue.block.offset
        if catalogue.block.previous_crc != seal.crc:
            self._malformed(offset, "the catalogue does not continue the seal")
        if unknown := catalogue.bodies.keys() - defined:
            what = f"the catalogue completes table number {min(unknown)}, which is not defined"
            self._malformed(offset, what)
        for event in unmet:
            self._malformed(offset, f"the catalogue says of event {event} that it is a DDL")

    # Verdicts.

    def _malformed(self, offset: int, what: str) -> NoReturn:
        raise JournalCorrupt(self._source.path, offset, what)

    def _broken(self, offset: int, seen: bytes, what: str) -> JournalError:
        """Return the error for a block that is not right at OFFSET, where SEEN was read.

        Torn if the journal may simply end here: nobody has marked it as committed and nothing
        of it follows. Corrupt if more of it was there once.
        """
        if self.stamp is not None:
            end = self.stamp.journal_length  # the catalogue's, if there is one
            return JournalCorrupt(
                self._source.path, offset, f"{what}; the stamp says it ends at {end}"
            )
        if self.commit_mark is not None:
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
            length = min(_BLOCK.unpack(broken)[1], MAX_PAYLOAD)
            payload = self._source.read(length, offset + BLOCK_HEADER)
            links = {_BLOCK.unpack(broken)[8], _crc(self._uuid, broken[:36] + payload)}
            if len(links) == 1:
                links = set()
        position = offset + 1
        while window := self._source.read(_SCAN_WINDOW, position):
            at = window.find(_BLOCK_MAGIC)
            while at >= 0:
                raw = self._source.read(BLOCK_HEADER, position + at)
                if len(raw) == BLOCK_HEADER:
                    _, length, own, _, previous, flags, _, _, crc = _BLOCK.unpack(raw)
                    is_seal = flags == _SEALS and length == _SEAL.size
                    if own == position + at and (is_seal or previous in links):
                        length = min(length, MAX_PAYLOAD)
                        payload = self._source.read(length, own + BLOCK_HEADER)
                        if _crc(self._uuid, raw[:36] + payload) == crc:
                            return position + at
                        if not is_seal:
                            links.clear()
                at = window.find(_BLOCK_MAGIC, at + 1)
            if len(window) < _SCAN_WINDOW:
                return None
            position += _SCAN_WINDOW - len(_BLOCK_MAGIC) + 1
        return None


@functools.lru_cache(maxsize=16)
def _codec_for_none(charset: str) -> str:
    codec = charsets.find_codec(charset)
    if codec is None:
        raise ValueError(f"unknown character set {charset!r} for texts of NONE")
    return codec


def read_envelope(path: Path | str) -> tuple[Header, Stamp | None, str]:
    """Return header, stamp and database path: all that is needed to order journals.

    Costs one small read unless the first block is larger than 6 KiB. Raises as JournalReader
    and its ``database`` do.
    """
    with JournalReader(path) as reader:
        return reader.header, reader.stamp, reader.database


class Remains(NamedTuple):
    """What is still intact of the envelope of a damaged journal; None where nothing is."""

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
        sector
        if len(sector) == SECTOR
        and sector.startswith(magic)
        and _CRC.unpack_from(sector, SECTOR - 4) == (_crc(raw, sector[:-4]),)
        else None
        for sector, magic in (
            (head[:SECTOR], _MAGIC),
            (head[COMMIT_OFFSET : COMMIT_OFFSET + SECTOR], _COMMIT_MAGIC),
            (head[STAMP_OFFSET : STAMP_OFFSET + SECTOR], _STAMP_MAGIC),
        )
    )
    remains = Remains(database=_remaining_database(read, raw))
    if header is not None:
        remains = remains._replace(transaction=_HEADER.unpack_from(header)[5])
    if mark is not None:
        *_, commit_us, transaction = _COMMIT.unpack_from(mark)
        remains = remains._replace(commit_us=commit_us, transaction=transaction)
    if stamp is not None:
        held = Stamp(*_STAMP.unpack_from(stamp)[1:])
        remains = remains._replace(
            commit_us=held.commit_us, transaction=held.transaction, stamp=held
        )
    return remains


def _remaining_database(read: Callable[[int, int], bytes], uuid: bytes) -> str | None:
    """The database's path in the first block, None if that is not intact."""
    raw = read(BLOCK_HEADER, DATA_OFFSET)
    if len(raw) < BLOCK_HEADER:
        return None
    magic, length, own, *_, crc = _BLOCK.unpack(raw)
    if magic != _BLOCK_MAGIC or own != DATA_OFFSET or not 0 < length <= MAX_PAYLOAD:
        return None
    payload = read(length, DATA_OFFSET + BLOCK_HEADER)
    if _crc(uuid, raw[:36] + payload) != crc:
        return None
    try:
        kind, _, size = _RECORD.unpack_from(payload)
        return _parse_begin(payload[8 : 8 + size])[0] if kind == _BEGIN else None
    except (_Malformed, struct.error, UnicodeDecodeError):
        return None


class JournalWriter:
    """Writes a journal as the plugin does, for gap journals and tests; a context manager.

    Creates the file (mode 0600); raises FileExistsError if it is there, OSError from writing.
    A block is written before its payload would grow beyond ``block_bytes``. ``seal`` and the
    marks after it are synced, the folder is not: that is for whoever gives the file its name.
    Times are microseconds since 1970, UTC; ``started_us`` and ``uuid`` default to now and to a
    random one. Values are given as the reader yields them, but blobs by the number that
    ``blob`` returned; ``ValueError`` names the column of one that doesn't fit.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        uuid: UUID | None = None,
        transaction: int = 0,
        database: str = "",
        user: str = "",
        database_guid: UUID = _NIL,
        owner: UUID = _NIL,
        database_inode: int = 0,
        epoch: int = 0,
        started_us: int | None = None,
        block_bytes: int = _BLOCK_TARGET,
    ) -> None:
        self.path = Path(path)
        self.uuid = uuid if uuid is not None else uuids.uuid4()
        self.event_count = 0
        self.journal_length: int | None = None
        self._transaction = transaction
        self._epoch = epoch
        self._block_bytes = block_bytes
        self._commit_us: int | None = None
        self._seal: Seal | None = None
        self._catalogue_offset = 0
        self._records: list[bytes] = []
        self._size = 0
        self._flags = 0
        self._first_event = 1
        self._offset = DATA_OFFSET
        self._record_count = 0
        self._block_count = 0
        self._tables = 0
        self._blobs = 0
        header = _sector(
            self.uuid.bytes,
            _HEADER.pack(
                _MAGIC,
                VERSION,
                DATA_OFFSET,
                epoch,
                self.uuid.bytes,
                transaction,
                started_us if started_us is not None else now_us(),
                database_guid.bytes,
                owner.bytes,
                database_inode,
            ),
        )
        (self._previous_crc,) = _CRC.unpack_from(header, SECTOR - 4)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _pwrite(self._fd, header + bytes(DATA_OFFSET - SECTOR), 0)
            self._flags = _DEFINES
            self._add(_BEGIN, 0, _with_length(database) + _with_length(user))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was not sealed leaves a torn journal."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def table(
        self,
        name: str,
        columns: Sequence[Column],
        key_kind: int = 1,
        *,
        resolved: bool = True,
        order: Sequence[int] | None = None,
    ) -> Table:
        """Define a table, or a new shape of one, and return it for the rows that follow.

        ``order`` and ``resolved`` as in `Table`; the columns are written as they are given.
        """
        self._tables += 1
        table = Table(self._tables, name, key_kind, tuple(columns), tuple(order or ()), resolved)
        kind = _TABLE if resolved else _UNRESOLVED_TABLE
        self._add(kind, table.number, table_body(table), flags=_DEFINES)
        return table

    def insert(self, table: Table, values: Sequence[Value]) -> None:
        """Record an inserted row."""
        self._add(_INSERT, table.number, _row_image(table, values), event=True)

    def update(self, table: Table, old: Sequence[Value], new: Sequence[Value]) -> None:
        """Record an updated row."""
        image = _row_image(table, old)
        body = _U32.pack(len(image)) + image + _row_image(table, new)
        self._add(_UPDATE, table.number, body, event=True)

    def delete(self, table: Table, old: Sequence[Value]) -> None:
        """Record a deleted row."""
        self._add(_DELETE, table.number, _row_image(table, old), event=True)

    def ddl(self, sql: str | bytes, charset_id: int = charsets.UTF8) -> None:
        """Record a DDL statement; bytes are taken as they are."""
        raw = sql if isinstance(sql, bytes) else _encode_text(sql, charset_id)
        self._add(_DDL, 0, _U16.pack(charset_id) + raw, event=True, flags=_DEFINES)

    def sequence(self, name: str, value: int) -> None:
        """Record the last value of a generator."""
        self._add(_SEQUENCE, 0, _I64.pack(value) + name.encode())

    def gap(self, reason: str) -> None:
        """Record that something could not be captured."""
        self._add(_GAP, 0, _with_length(reason), event=True)

    def blob(self, content: bytes, available: bool = True, chunk_bytes: int = _BLOB_CHUNK) -> int:
        """Record the content of a blob of the next row; returns its number for that row.

        ``available``: False if this is all of the content that could be read.
        """
        self._blobs += 1
        number = _U64.pack(self._blobs)
        last = _LAST_CHUNK if available else _LAST_CHUNK | _UNAVAILABLE
        for start in range(0, max(len(content), 1), chunk_bytes):
            end = start + chunk_bytes
            flags = last if end >= len(content) else 0
            self._add(_BLOB | flags << 8, 0, number + content[start:end])
        return self._blobs

    def flush(self) -> None:
        """Write the block begun so far, as if it were full."""
        self._flush(0)

    def _flush(self, half_floor: int) -> None:
        if self._records:
            payload = b"".join(self._records)
            self._write_block(payload, self._flags, len(self._records), half_floor)
            self._block_count += 1
            self._first_event = self.event_count + 1
            self._records = []
            self._size = 0
            self._flags = 0

    def seal(self, sealed_us: int | None = None, floor: int | None = None) -> None:
        """Write what is left and the seal, and sync; nothing can be recorded any more.

        FLOOR: the last ticket drawn so far; not recorded where no block is left to be written.
        """
        stored = (floor + 1) % _FLOORS if floor is not None and self._records else 0
        self._flush(stored >> 16)
        when = sealed_us if sealed_us is not None else now_us()
        seal = _SEAL.pack(self.event_count, self._record_count, self._block_count, when)
        self._write_block(seal, _SEALS, 0, stored & 0xFFFF)
        self.journal_length = self._offset
        self._seal = Seal(
            self.event_count,
            self._record_count,
            self._block_count,
            when,
            self._offset,
            self._previous_crc,
            (stored - 1) % _FLOORS if stored else None,
        )
        os.fsync(self._fd)

    def complete(
        self,
        tables: Sequence[Table],
        changes: Mapping[int, Sequence[TableChange]] | None = None,
    ) -> None:
        """Append the catalogue with the definitions of TABLES, as the confirmer does; syncs.

        Once, between the seal and the stamp; ``number`` says which definition each completes.
        CHANGES: what DDL events did to tables, by their numbers.
        """
        if self._seal is None or self._catalogue_offset:
            raise ValueError(f"{self.path}: a catalogue follows the seal, and only once")
        bodies = {table.number: table_body(table) for table in tables}
        self.journal_length = append_catalogue(self._fd, self.uuid, self._seal, bodies, changes)
        self._catalogue_offset = self._seal.end
        os.fsync(self._fd)

    def commit(self, ticket: int, commit_us: int) -> None:
        """Write the commit mark, and sync."""
        self._commit_us = commit_us
        write_commit_mark(self._fd, self.uuid, CommitMark(ticket, commit_us, self._transaction))
        os.fsync(self._fd)

    def stamp(self, sequence: int, stamped_us: int | None = None) -> None:
        """Write the stamp of the sealed and committed journal, and sync."""
        if self.journal_length is None or self._commit_us is None:
            raise ValueError(f"{self.path}: seal and commit the journal before its stamp")
        stamp = Stamp(
            epoch=self._epoch,
            sequence=sequence,
            commit_us=self._commit_us,
            stamped_us=stamped_us if stamped_us is not None else now_us(),
            journal_length=self.journal_length,
            event_count=self.event_count,
            transaction=self._transaction,
            catalogue_offset=self._catalogue_offset,
        )
        write_stamp(self._fd, self.uuid, stamp)
        os.fsync(self._fd)

    def _add(
        self, kind: int, number: int, body: bytes, event: bool = False, flags: int = 0
    ) -> None:
        if self.journal_length is not None:
            raise ValueError(f"{self.path}: the journal is sealed")
        record = _RECORD.pack(kind, number, len(body)) + body
        if len(record) > MAX_PAYLOAD:
            raise ValueError(f"{self.path}: a record of {len(record)} bytes fits no block")
        if self._size + len(record) > self._block_bytes:
            self.flush()
        self._records.append(record)
        self._size += len(record)
        self._flags |= flags
        self._record_count += 1
        self.event_count += event

    def _write_block(self, payload: bytes, flags: int, records: int, half_floor: int) -> None:
        block, self._previous_crc = _block(
            self.uuid.bytes,
            self._offset,
            self._first_event,
            self._previous_crc,
            flags,
            records,
            payload,
            half_floor,
        )
        _pwrite(self._fd, block, self._offset)
        self._offset += len(block)


def _with_length(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 0xFFFF:
        raise ValueError(f"{text[:40]!r}... is longer than 65535 bytes")
    return _U16.pack(len(raw)) + raw


def _encode_text(text: str, charset_id: int) -> bytes:
    codec = "utf-8" if charset_id == charsets.NONE else charsets.codec_of(charset_id)
    if codec is None:
        raise ValueError(f"no codec for {charsets.name_of(charset_id)}; give bytes")
    return text.encode(codec)


def _row_image(table: Table, values: Sequence[Value]) -> bytes:
    """Return the row image of VALUES, one for each column of TABLE."""
    if len(values) != len(table.columns):
        raise ValueError(f"{table.name}: {len(values)} values, {len(table.columns)} columns")
    bits = 0
    fixed = []
    variable = []
    for index, (column, value) in enumerate(zip(table.columns, values, strict=True)):
        field: object = value
        code = _FIXED[column.storage]
        try:
            if value is None:
                bits |= 1 << index
                fixed.append(bytes(struct.calcsize("<" + code)))
                continue
            if column.storage in _VARIABLE:
                raw = _variable_bytes(column, value)
                variable.append(raw)
                field = len(raw)
            elif column.storage == Storage.INT128 and isinstance(value, int):
                field = value.to_bytes(16, "little", signed=True)
            elif code.endswith("s") and len(value) != int(code[:-1]):  # type: ignore[arg-type]
                raise ValueError(f"{len(value)} bytes, not {code[:-1]}")  # type: ignore[arg-type]
            fixed.append(struct.pack("<" + code, field))
        except (struct.error, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{table.name}.{column.name}: {value!r}: {error}") from error
    bitmap = bits.to_bytes((len(values) + 7) // 8, "little")
    return bitmap + b"".join(fixed) + b"".join(variable)


def _variable_bytes(column: Column, value: Value) -> bytes:
    if isinstance(value, Undecodable):
        return value.raw
    if isinstance(value, str):
        raw = value.rstrip(" ") if column.storage == Storage.PADDED_TEXT else value
        return _encode_text(raw, column.charset_id)
    if isinstance(value, bytes):
        return value
    raise TypeError("a text or bytes are expected")
