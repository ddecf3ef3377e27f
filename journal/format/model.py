"""Content of a journal, as values: its sectors, tables, rows, changes."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import IntEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

from firebird_cdc.journal.format.content import Blob


class Storage(IntEnum):
    """Layout of a column's values in a row image; the codes of the format."""

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


FIXED_FORMATS = {
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
VARIABLE_STORAGES = frozenset({Storage.TEXT, Storage.PADDED_TEXT, Storage.OCTETS, Storage.RAW})
TEXT_STORAGES = frozenset({Storage.TEXT, Storage.PADDED_TEXT})
BLOB_STORAGES = frozenset({Storage.BLOB, Storage.ARRAY})


class Element(NamedTuple):
    """Type of the elements of an ARRAY column, as its row in RDB$FIELDS says.

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
    DECIMAL values are unscaled integers to be multiplied by 10**scale. ``char_length``: characters,
    0 if not a text; ``precision``: decimal digits, 0 unknown; ``key_position``: place in the
    table's key from 1, 0 if not in it. ``element``: of an array, None if it is none or not known;
    ``char_length`` and ``precision`` are its own then. ``default``: as the engine has compiled it
    (``journal.events.defaults`` reads it), None if there is none or it isn't known.
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
    database_inode: int = 0  # of the database file when the journal was begun; 0: unknown


class CommitMark(NamedTuple):
    """Sector 1: the engine called commit; ``ticket`` orders the database's commits."""

    ticket: int
    commit_us: int
    transaction: int


class Stamp(NamedTuple):
    """Sector 2: the commit is durable, and this is the journal's place in the history. The fields
    have the order in which they are written.

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
    def number(self) -> tuple[int, int]:
        """Epoch and sequence."""
        return self[:2]

    @property
    def seal_end(self) -> int:
        """File offset just behind the seal."""
        return self.catalogue_offset or self.journal_length


class Place(NamedTuple):
    """Place of a transaction in a shared journal, and in the history; ``seal_end`` and what is in
    ``stamp`` count from its beginning. ``ticket``: 0 where a power cut has taken it."""

    uuid: UUID
    offset: int
    ticket: int
    seal_end: int
    stamp: Stamp


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


Value: TypeAlias = int | float | bool | str | bytes | Blob | Undecodable | None
"""A column's value.

int: integers, unscaled numerics, INT128, DATE (days since 1858-11-17), TIME (1/10000 s),
TIMESTAMP (1/10000 s since 1858-11-17); float: FLOAT, DOUBLE; bool: BOOLEAN; str: texts, CHAR
padded to its length; bytes: OCTETS, RAW, TIME_TZ, TIMESTAMP_TZ and DECFLOAT as stored.
"""
Row: TypeAlias = tuple[Value, ...]


ROW_OPERATIONS = ("c", "u", "d")
"""Codes of what happened to a row: it was inserted, updated or deleted."""


class RowChange(NamedTuple):
    """A row inserted, updated or deleted; ``op``: one of `ROW_OPERATIONS`; ``pos``: event number
    from 1."""

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
    """Change that a DDL statement made to a table: CREATE, ALTER or DROP.

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
