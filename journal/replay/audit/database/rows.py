"""Reads the rows of a live database in one snapshot, in parallel, as journals would have them.

`open_snapshot` fixes the snapshot and says which transactions are in it. Tasks attach for
themselves and join it by its number (`read_rows`), each for ranges of data pages. They take the
engine's own messages, not the driver's values: those are the bytes that a journal has, zones and
decimals of any size included, and cost less.

What the engine promises of such a snapshot, and what it doesn't (tra.cpp and tpc.cpp of Firebird
4.0 and 5.0, tried on 5.0.4):

- A commit gets a number, counted up; a snapshot sees what has a number up to its own. As long as
  the snapshot is open, `RDB$GET_TRANSACTION_CN` answers with these numbers for every transaction
  that was active when the oldest open snapshot began; for older ones it says 1.
- But a transaction that *joins* a snapshot later takes all numbers below the oldest interesting
  transaction of its own start for committed before it asks: it sees what was committed since by
  those that were active at the snapshot's start, once that mark has moved past them. So a guard is
  opened before: the mark can't pass the guard, and the snapshot is begun once all
  transactions before the guard have ended. Those that won't end in time are told
  (``unguarded``): what they commit in the meantime is not to be judged.
"""

# ruff: noqa: S608  (what is put into statements are numbers, and names that are quoted)

from __future__ import annotations

import contextlib
import ctypes
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.format import Column, Storage, Table, Undecodable
from firebird_cdc.journal.format.charsets import NONE, OCTETS, codec_of
from firebird_cdc.journal.replay.database_connection import DatabaseConnection, attach, one_line
from firebird_cdc.journal.replay.source.arrow import Columns, arrow_schema, record_batch
from firebird_cdc.journal.replay.sql.text import identifier
from firebird_cdc.journal.types.canonical import BLOB_LIMIT, RowText
from firebird_cdc.journal.types.engine_types import OF_STORAGE, type_of_field

if TYPE_CHECKING:
    from firebird.driver import Connection

_POLL_S = 0.05
_DEAD = -2
_MOST_LISTED = 100_000  # transactions that one answer may name
_PERSISTENT = 0  # RDB$RELATION_TYPE
_POINTER_PAGE = 4  # RDB$PAGE_TYPE
_POINTER_PAGE_HEAD, _POINTER_BITS = 32, 40  # its header in bytes; bits for each data page
_BLOB_PIECE = 65_535
_NO_BLOB = ("BLOB not found", "invalid BLOB ID")  # the first has no code of its own
_ROW, _BLOB_END = 0, 1  # StateResult: OK, NO_DATA

# Rows and characters of text after which a batch goes to the JVM; guesses.
_BATCH_ROWS = 8192
_BATCH_CHARACTERS = 4 * 1024 * 1024

_Decoder = Callable[[Any], Any]

_NATIVE = ("TIME ZONE", "DECFLOAT", "INT128")


class DatabaseTable(NamedTuple):
    """A table as tasks read it. ``table``: its stored columns as it shows them, and its key.

    ``relation``: RDB$RELATION_ID. ``pages``: data pages, about, and more than there are.
    """

    table: Table
    relation: int
    pages: int


class PageRange(NamedTuple):
    """Data pages of a table, from ``first`` up to but without ``end``; None: to the last."""

    table: int
    first: int
    end: int | None


@dataclass
class Snapshot:
    """An open snapshot, made by `open_snapshot`.

    ``number``: for `read_rows`; ``transaction``: the one that holds it. ``outside``: all
    transactions with a lower number that are not in it, but for those that failed, which are in
    ``dead``. ``inside``: those with a higher number that are in it. ``unguarded``: those of
    ``outside`` that joined transactions may see once they are committed. ``published``: the tables
    in the publication, with the transaction that put each there.
    """

    connection: Connection
    guid: UUID
    path: str
    number: int
    transaction: int
    outside: frozenset[int]
    inside: frozenset[int]
    dead: frozenset[int]
    unguarded: frozenset[int]
    page_size: int
    is_published: bool
    published: Mapping[str, int] = field(default_factory=dict)
    temporary: frozenset[str] = frozenset()
    _state: Callable[[int], int | None] = field(default=lambda _: None, repr=False)

    def sees(self, transaction: int) -> bool:
        """Tell whether the changes that TRANSACTION committed are in the snapshot."""
        if transaction > self.transaction:
            return transaction in self.inside
        return transaction not in self.outside and transaction not in self.dead

    def committed_unguarded(self) -> frozenset[int]:
        """Those of ``unguarded`` that are committed by now."""
        return frozenset(each for each in self.unguarded if (self._state(each) or 0) > 0)


def _tpb(number: int | None = None) -> bytes:
    from firebird.driver import TPB, Isolation, TraAccessMode

    buffer: bytes = TPB(
        isolation=Isolation.SNAPSHOT, access_mode=TraAccessMode.READ, at_snapshot_number=number
    ).get_buffer()
    return buffer


@contextlib.contextmanager
def open_snapshot(how: DatabaseConnection, patience_s: float) -> Iterator[Snapshot]:
    """Fix a snapshot and hold it while the context lasts.

    patience_s: how long to wait for transactions that were begun before. Raises ReplayError.
    """
    connection = attach(how)
    from firebird.driver import Error

    try:
        try:
            yield _fixed(connection, patience_s)
        except Error as error:
            raise ReplayError(f"{how.dsn}: {one_line(error)}") from error
    finally:
        with contextlib.suppress(Error):
            connection.close()


def _fixed(connection: Connection, patience_s: float) -> Snapshot:
    from firebird.driver import DbInfoCode

    guard = connection.transaction_manager(_tpb())
    guard.begin()
    bar = guard.info.id
    oldest = connection.info.get_info(DbInfoCode.OLDEST_TRANSACTION)
    states = _States(guard)
    waiting = [number for number, state in states.unsettled(oldest, bar) if state == 0]
    deadline = time.monotonic() + patience_s
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        waiting = [number for number in waiting if states.of(number) == 0]
    connection.begin(_tpb())
    number = int(
        _rows(connection, "SELECT RDB$GET_CONTEXT('SYSTEM', 'SNAPSHOT_NUMBER') FROM RDB$DATABASE")[
            0
        ][0]
    )
    own = connection.main_transaction.info.id
    # Asked at once: what is committed later gets a higher number than the snapshot's.
    following = connection.info.get_info(DbInfoCode.NEXT_TRANSACTION)
    unsettled = states.unsettled(oldest, own, number)
    outside = frozenset(each for each, state in unsettled if state != _DEAD)
    [(guid, path, page_size)] = _rows(
        connection,
        "SELECT RDB$GET_CONTEXT('SYSTEM', 'DB_GUID'), RDB$GET_CONTEXT('SYSTEM', 'DB_NAME'),"
        " (SELECT MON$PAGE_SIZE FROM MON$DATABASE) FROM RDB$DATABASE",
    )
    return Snapshot(
        connection=connection,
        guid=UUID(_text(guid).strip("{}")) if guid else UUID(int=0),
        path=_text(path),
        number=number,
        transaction=own,
        outside=outside,
        inside=frozenset(states.settled(own + 1, following + 1, number)),
        dead=frozenset(each for each, state in unsettled if state == _DEAD),
        unguarded=frozenset(each for each in outside if each < bar),
        page_size=page_size,
        is_published=bool(
            _rows(connection, "SELECT 1 FROM RDB$PUBLICATIONS WHERE RDB$ACTIVE_FLAG = 1")
        ),
        published={_text(name): by for name, by in _rows(connection, _PUBLISHED)},
        temporary=frozenset(_text(name) for (name,) in _rows(connection, _TEMPORARY)),
        _state=states.of,
    )


class _States:
    """Asks for the states of transactions, in a transaction that stays open."""

    _LOOP = (
        "EXECUTE BLOCK RETURNS (T BIGINT, CN BIGINT) AS BEGIN T = {first}; WHILE (T < {end}) DO"
        " BEGIN CN = RDB$GET_TRANSACTION_CN(T); IF ({wanted}) THEN SUSPEND; T = T + 1; END END"
    )

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def _ask(self, sql: str) -> list[tuple[int, int]]:
        with self._transaction.cursor() as cursor:
            cursor.execute(sql)
            rows: list[tuple[int, int]] = cursor.fetchmany(_MOST_LISTED + 1)
        if len(rows) > _MOST_LISTED:
            raise ReplayError(
                f"more than {_MOST_LISTED} transactions failed since the database was last swept;"
                " sweep it (gfix -sweep), then run the audit again"
            )
        return rows

    def unsettled(self, first: int, end: int, number: int | None = None) -> list[tuple[int, int]]:
        """Those from FIRST up to END that are not committed, or by more than NUMBER."""
        later = "" if number is None else f" OR CN > {number}"
        return self._ask(self._LOOP.format(first=first, end=end, wanted=f"CN < 1{later}"))

    def settled(self, first: int, end: int, number: int) -> list[int]:
        """Those from FIRST up to END that were committed up to NUMBER."""
        wanted = f"CN BETWEEN 1 AND {number}"
        return [t for t, _ in self._ask(self._LOOP.format(first=first, end=end, wanted=wanted))]

    def of(self, transaction: int) -> int | None:
        """0 active, -1 in limbo, -2 failed, else committed; None: there was none yet."""
        with self._transaction.cursor() as cursor:
            cursor.execute(f"SELECT RDB$GET_TRANSACTION_CN({transaction}) FROM RDB$DATABASE")
            state: int | None = cursor.fetchone()[0]
        return state


_NAME = "CAST(TRIM(TRAILING FROM {}) AS VARCHAR(252) CHARACTER SET OCTETS)"
_PUBLISHED = (
    f"SELECT {_NAME.format('P.RDB$TABLE_NAME')}, P.RDB$RECORD_VERSION FROM RDB$PUBLICATION_TABLES P"
)
_TEMPORARY = (
    f"SELECT {_NAME.format('R.RDB$RELATION_NAME')} FROM RDB$RELATIONS R"
    " WHERE R.RDB$RELATION_TYPE IN (4, 5)"
)
_COLUMNS = f"""
SELECT {_NAME.format("L.RDB$RELATION_NAME")}, L.RDB$RELATION_ID, {_NAME.format("R.RDB$FIELD_NAME")},
  F.RDB$FIELD_TYPE, COALESCE(F.RDB$FIELD_SUB_TYPE, 0), COALESCE(F.RDB$FIELD_SCALE, 0),
  F.RDB$FIELD_LENGTH, COALESCE(F.RDB$CHARACTER_SET_ID, 0), COALESCE(F.RDB$DIMENSIONS, 0),
  COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0), COALESCE(F.RDB$CHARACTER_LENGTH, 0)
 FROM RDB$RELATIONS L
 JOIN RDB$RELATION_FIELDS R ON R.RDB$RELATION_NAME = L.RDB$RELATION_NAME
 JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
 WHERE COALESCE(L.RDB$SYSTEM_FLAG, 0) = 0 AND COALESCE(L.RDB$RELATION_TYPE, 0) = {_PERSISTENT}
  AND L.RDB$VIEW_BLR IS NULL AND F.RDB$COMPUTED_BLR IS NULL
 ORDER BY L.RDB$RELATION_NAME, R.RDB$FIELD_POSITION, R.RDB$FIELD_ID
"""
_INDEXES = f"""
SELECT {_NAME.format("I.RDB$RELATION_NAME")}, {_NAME.format("I.RDB$INDEX_NAME")},
  {_NAME.format("COALESCE(C.RDB$CONSTRAINT_TYPE, '')")},
  {_NAME.format("COALESCE(C.RDB$CONSTRAINT_NAME, '')")}, {_NAME.format("S.RDB$FIELD_NAME")},
  COALESCE(I.RDB$INDEX_INACTIVE, 0), %s
 FROM RDB$INDICES I
 JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = I.RDB$INDEX_NAME
 LEFT JOIN RDB$RELATION_CONSTRAINTS C ON C.RDB$INDEX_NAME = I.RDB$INDEX_NAME
 WHERE I.RDB$UNIQUE_FLAG = 1 AND COALESCE(I.RDB$SYSTEM_FLAG, 0) = 0
 ORDER BY I.RDB$RELATION_NAME, I.RDB$INDEX_NAME, S.RDB$FIELD_POSITION
"""
_HAS_PARTIAL_INDEXES = (
    "SELECT 1 FROM RDB$RELATION_FIELDS"
    " WHERE RDB$RELATION_NAME = 'RDB$INDICES' AND RDB$FIELD_NAME = 'RDB$CONDITION_BLR'"
)
_POINTER_PAGES = (
    "SELECT RDB$RELATION_ID, COUNT(*) FROM RDB$PAGES"
    f" WHERE RDB$PAGE_TYPE = {_POINTER_PAGE} GROUP BY 1"
)


def read_tables(snapshot: Snapshot) -> dict[str, DatabaseTable]:
    """Return the persistent tables as the snapshot has them, by name.

    Their key is chosen as for journals: the primary key, else the first unique constraint by name,
    else the first unique index, whose columns are all NOT NULL.
    """
    connection = snapshot.connection
    pages = dict(_rows(connection, _POINTER_PAGES))
    per_pointer_page = (snapshot.page_size - _POINTER_PAGE_HEAD) * 8 // _POINTER_BITS
    columns: defaultdict[tuple[str, int], list[Column]] = defaultdict(list)
    for name, relation, *described in _rows(connection, _COLUMNS):
        columns[_text(name), relation].append(_column(*described))
    keys = _keys(connection, {name: found for (name, _), found in columns.items()})
    tables = {}
    for (name, relation), found in columns.items():
        kind, key = keys.get(name, (0, ()))
        places = {column: place for place, column in enumerate(key, 1)}
        table = Table(
            0,
            name,
            kind,
            tuple(replace(column, key_position=places.get(column.name, 0)) for column in found),
        )
        tables[name] = DatabaseTable(table, relation, pages.get(relation, 0) * per_pointer_page)
    return tables


def _column(
    name: bytes,
    field_type: int,
    sub_type: int,
    scale: int,
    length: int,
    charset_id: int,
    dimensions: int,
    not_null: int,
    characters: int,
) -> Column:
    kind = type_of_field(field_type, is_array=bool(dimensions))
    storage = kind.storage
    if storage in (Storage.TEXT, Storage.PADDED_TEXT):
        sub_type = 0
        if charset_id == OCTETS:
            storage = Storage.OCTETS
    elif storage is not Storage.BLOB:
        charset_id = 0
    return Column(
        name=_text(name),
        sql_type=kind.sql_type,
        sub_type=sub_type,
        scale=scale,
        length=length,
        charset_id=charset_id,
        char_length=characters,
        precision=0,
        nullable=not not_null,
        identity=False,
        key_position=0,
        storage=storage,
    )


def _keys(
    connection: Connection, tables: dict[str, list[Column]]
) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return kind (1 primary, 2 unique) and columns of the keys that tables have."""
    partial = "0"
    if _rows(connection, _HAS_PARTIAL_INDEXES):
        partial = "IIF(I.RDB$CONDITION_BLR IS NULL, 0, 1)"
    found: dict[tuple[str, str], tuple[str, str, bool, list[str]]] = {}
    for table, index, kind, constraint, column, inactive, condition in _rows(
        connection, _INDEXES % partial
    ):
        whole = not inactive and not condition
        entry = found.setdefault(
            (_text(table), _text(index)), (_text(kind), _text(constraint), whole, [])
        )
        entry[3].append(_text(column))
    candidates: defaultdict[str, list[tuple[int, str, list[str]]]] = defaultdict(list)
    for (table, index), (kind, constraint, whole, names) in found.items():
        not_null = {column.name for column in tables.get(table, ()) if not column.nullable}
        if kind == "PRIMARY KEY":
            candidates[table].append((0, constraint, names))
        elif not_null.issuperset(names):
            if kind == "UNIQUE":
                candidates[table].append((1, constraint, names))
            elif whole:
                candidates[table].append((2, index, names))
    keys = {}
    for table, choices in candidates.items():
        rank, _, names = min(choices)
        keys[table] = (1 if rank == 0 else 2, tuple(names))
    return keys


def plan_ranges(
    tables: Sequence[DatabaseTable], page_size: int, range_bytes: int
) -> list[PageRange]:
    """Divide TABLES into ranges of about RANGE_BYTES of data pages each."""
    step = max(range_bytes // page_size, 1)
    ranges = []
    for index, table in enumerate(tables):
        starts = list(range(0, max(table.pages, 1), step))
        ends: list[int | None] = [*starts[1:], None]
        ranges += [PageRange(index, first, end) for first, end in zip(starts, ends, strict=True)]
    return ranges


class DatabaseRow(NamedTuple):
    """``key`` None: the table has none. ``version``: the transaction that wrote the row."""

    table: str
    key: str | None
    row: str
    version: int


ROW_COLUMNS: Columns = (
    ("table", "string"),
    ("key", "string"),
    ("row", "string"),
    ("version", "bigint"),
)
"""Columns that Spark has of a `DatabaseRow`."""


def read_rows(
    how: DatabaseConnection,
    number: int,
    tables: Sequence[DatabaseTable],
    ranges: Iterable[PageRange],
    none_charset: str,
) -> Iterator[DatabaseRow]:
    """Attach, join snapshot NUMBER, and yield the rows of RANGES. Raises ReplayError."""
    connection = attach(how)
    from firebird.driver import Error

    try:
        connection.begin(_tpb(number))
        for what in _NATIVE:
            connection.execute_immediate(f"SET BIND OF {what} TO NATIVE")
        for each in ranges:
            yield from _RangeReader(connection, tables[each.table], none_charset).rows(each)
    except Error as error:
        raise ReplayError(
            f"reading {how.dsn} in snapshot {number} failed: {one_line(error)}"
        ) from error
    finally:
        with contextlib.suppress(Error):
            connection.close()


class _RangeReader:
    """Reads one table's rows from the engine's messages."""

    def __init__(self, connection: Connection, table: DatabaseTable, none_charset: str) -> None:
        self._attachment = connection._att
        self._transaction = connection.main_transaction._tra
        self._table = table
        self._text = RowText(table.table, none_charset=none_charset)
        self._none_charset = none_charset

    def rows(self, pages: PageRange) -> Iterator[DatabaseRow]:
        """Yield the rows on PAGES."""
        from firebird.driver.types import CursorFlag

        names = ", ".join(identifier(column.name) for column in self._table.table.columns)
        relation = self._table.relation
        within = f"RDB$DB_KEY >= MAKE_DBKEY({relation}, 0, {pages.first})"
        if pages.end is not None:
            within += f" AND RDB$DB_KEY < MAKE_DBKEY({relation}, 0, {pages.end})"
        sql = (
            f"SELECT {names}, CAST(RDB$RECORD_VERSION AS BIGINT)"
            f" FROM {identifier(self._table.table.name)} WHERE {within}"
        )
        statement = self._attachment.prepare(self._transaction, sql, 3)
        try:
            with statement.get_output_metadata() as meta:
                layout, decoders = self._layout(meta)
                buffer = ctypes.create_string_buffer(meta.get_message_length())
                cursor = statement.open_cursor(self._transaction, None, None, meta, CursorFlag.NONE)
            try:
                unpack = layout.unpack_from
                name, key_of, row_of = self._table.table.name, self._text.key, self._text.row
                # Not by fetch_next: to look at the status of each row costs a fifth of the time.
                fetch, status = cursor.vtable.fetchNext, cursor.status
                while fetch(cursor, status, buffer) == _ROW:
                    raw = unpack(buffer)
                    values = [
                        None if raw[null] else decode(raw[place])
                        for place, null, decode in decoders
                    ]
                    version: Any = values.pop()
                    yield DatabaseRow(name, key_of(values), row_of(values), version)
                cursor._check()
            finally:
                cursor.close()
        finally:
            statement.free()

    def _layout(self, meta: Any) -> tuple[struct.Struct, list[tuple[int, int, _Decoder]]]:
        """Return how a message is laid out, and (value, null flag, decoder) of each column."""
        columns = [*self._table.table.columns, None]
        if meta.get_count() != len(columns):
            raise ReplayError(
                f"{self._table.table.name}: the server sends other columns than asked"
            )
        pieces: list[tuple[int, str, int, bool]] = []  # offset, form, column, is value
        decode: list[_Decoder] = []
        for index, column in enumerate(columns):
            sql_type = int(meta.get_type(index)) & ~1
            form, decoder = self._form(sql_type, meta.get_length(index), column)
            pieces.append((meta.get_offset(index), form, index, True))
            pieces.append((meta.get_null_offset(index), "h", index, False))
            decode.append(decoder)
        text, at = "=", 0
        places: dict[tuple[int, bool], int] = {}
        for number, (offset, form, index, is_value) in enumerate(sorted(pieces)):
            text += f"{offset - at}x{form}" if offset > at else form
            at = offset + struct.calcsize(f"={form}")
            places[index, is_value] = number
        return struct.Struct(text), [
            (places[index, True], places[index, False], decode[index])
            for index in range(len(columns))
        ]

    def _form(self, sql_type: int, length: int, column: Column | None) -> tuple[str, _Decoder]:
        if column is None:
            return "q", _same
        storage = column.storage
        if sql_type != column.sql_type:
            raise ReplayError(
                f"{self._table.table.name}.{column.name}: the server sends type {sql_type} where"
                f" the column is of type {column.sql_type}"
            )
        if sql_type == _VARYING:
            return f"{length + 2}s", self._varying(column)
        if sql_type == _TEXT:
            return f"{length}s", self._fixed_text(column)
        if storage in (Storage.BLOB, Storage.ARRAY):
            return "8s", self._blob
        kind = OF_STORAGE[storage]
        return kind.form, kind.decode or _same

    def _decoded(self, column: Column) -> _Decoder:
        if column.storage is Storage.OCTETS:
            return _same
        charset = column.charset_id
        codec = self._none_charset if charset == NONE else codec_of(charset)

        def decode(raw: bytes) -> str | Undecodable:
            if codec is not None:
                try:
                    return raw.decode(codec)
                except UnicodeError:
                    pass
            return Undecodable(raw, charset)

        return decode

    def _varying(self, column: Column) -> _Decoder:
        decode = self._decoded(column)

        def take(raw: bytes) -> Any:
            return decode(raw[2 : 2 + (raw[0] | raw[1] << 8)])

        return take

    def _fixed_text(self, column: Column) -> _Decoder:
        decode = self._decoded(column)
        if column.storage is Storage.OCTETS:
            return decode
        return lambda raw: decode(raw.rstrip(b" "))

    def _blob(self, raw: bytes) -> _Content:
        return _Content(self._attachment, self._transaction, raw)


class _Content:
    """The content of a BLOB or an ARRAY, as `canonical` takes it: read when it is asked for.

    ``available`` False: the engine does not find it, which is the row's fault and not the audit's.
    """

    def __init__(self, attachment: Any, transaction: Any, number: bytes) -> None:
        from firebird.driver import DatabaseError

        self._place = attachment, transaction, number
        self._pieces: list[bytes] | None = []
        self.length = 0
        self.available = True
        try:
            for piece in _pieces(*self._place):
                self.length += len(piece)
                if self._pieces is not None:
                    self._pieces.append(piece)
                if self.length > BLOB_LIMIT:
                    self._pieces = None  # only its digest is asked for
        except DatabaseError as error:
            if not any(words in str(error) for words in _NO_BLOB):
                raise
            self.available = False

    def chunks(self) -> Iterator[bytes]:
        """Yield the content."""
        yield from _pieces(*self._place) if self._pieces is None else self._pieces


def _pieces(attachment: Any, transaction: Any, number: bytes) -> Iterator[bytes]:
    from firebird.driver.fbapi import ISC_QUAD, Cardinal

    blob = attachment.open_blob(transaction, ISC_QUAD.from_buffer_copy(number))
    buffer = ctypes.create_string_buffer(_BLOB_PIECE)
    size = Cardinal(0)
    try:
        while True:
            result = int(blob.get_segment(_BLOB_PIECE, buffer, ctypes.byref(size)))
            if result == _BLOB_END:
                return
            yield buffer.raw[: size.value]
    finally:
        blob.close()


_VARYING, _TEXT = 448, 452


def _same(value: Any) -> Any:
    return value


def _rows(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@dataclass(frozen=True)
class RowBatches:
    """Function that a task of the audit runs; a small value that pickles.

    Shows no password: Spark prints the names of functions, not what they hold.
    """

    how: DatabaseConnection
    number: int
    tables: tuple[DatabaseTable, ...]
    none_charset: str

    def __call__(self, ranges: Sequence[PageRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of RANGES, columns `ROW_COLUMNS`."""
        schema = arrow_schema(ROW_COLUMNS)
        gathered: list[DatabaseRow] = []
        characters = 0
        for row in read_rows(self.how, self.number, self.tables, ranges, self.none_charset):
            gathered.append(row)
            characters += len(row.row)
            if len(gathered) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                yield record_batch(gathered, schema)
                gathered, characters = [], 0
        if gathered:
            yield record_batch(gathered, schema)
