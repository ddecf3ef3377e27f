"""Reader of a table's rows in a snapshot, with the values that journals have.

It takes the engine's own messages, not the driver's values: those are the bytes that a journal has,
zones and decimals of any size included, and cost a tenth of the time. Rows lie in the order of
their DB_KEY, which a row keeps as long as it lives; so any table, with a key or without, can be
read in ranges of data pages side by side, or in chunks, each behind the last row of the one before.
"""

# ruff: noqa: S608  (what is put into statements are numbers, and names that are quoted)

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from firebird_cdc.errors import DatabaseUnreadable
from firebird_cdc.journal.format import Blob, Column, Storage, Undecodable, Value
from firebird_cdc.journal.format.charsets import NONE
from firebird_cdc.journal.format.model import BLOB_STORAGES
from firebird_cdc.journal.format.row_decoder import ImageField, decode_text, fields_of
from firebird_cdc.journal.snapshot.attachment import (
    DatabaseConnection,
    attach,
    one_line,
    read_only_snapshot,
)
from firebird_cdc.journal.snapshot.catalogue import DatabaseTable, PageRange
from firebird_cdc.journal.types.canonical import BLOB_LIMIT
from firebird_cdc.journal.types.engine_types import OF_STORAGE
from firebird_cdc.journal.types.identifiers import identifier

CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of messages and contents of BLOBs after which a chunk ends, by default."""

_NATIVE = ("TIME ZONE", "DECFLOAT", "INT128")
_VERSION = "RDB$RECORD_VERSION"
_DB_KEY_BYTES = 8
_VARYING, _TEXT, _BIGINT = 448, 452, 580  # SQL types
_BLOB_PIECE = 65_535
_NO_BLOB = ("BLOB not found", "invalid BLOB ID")  # the first has no code of its own
_ROW, _BLOB_END = 0, 1  # StateResult: OK, NO_DATA

_Decoder = Callable[[Any], Any]


class StoredRow(NamedTuple):
    """A row. ``values``: of the stored columns in the table's order, as `JournalReader` has them;
    BLOBs can be read while the reader is open. ``version``: the transaction that wrote it."""

    values: Sequence[Value]
    version: int


class Chunk(NamedTuple):
    """Rows that lie one behind the other.

    ``last``: DB_KEY of the last one, or if there is none of where they would begin, by which the
    next chunk goes on. ``is_end``: no row lies behind them.
    """

    rows: list[StoredRow]
    last: bytes | None
    is_end: bool


class SnapshotReader:
    """An attachment that joins snapshots by their numbers. Not for several threads.

    number: of the first one, None: none yet. none_charset: Python's codec for texts of CHARACTER
    SET NONE. blob_bytes: up to which the content of a BLOB is kept; a longer one is read again when
    it is asked for. Raises DatabaseUnreadable, also if the snapshot has ended.

    ``oldest``: the oldest interesting transaction when it joined, for `Window.find_flaws`.
    """

    def __init__(
        self,
        how: DatabaseConnection,
        number: int | None,
        none_charset: str = "UTF-8",
        blob_bytes: int = BLOB_LIMIT,
    ) -> None:
        self._dsn = how.dsn
        self._number = number
        self._none_charset = none_charset
        self._blob_bytes = blob_bytes
        self.oldest = 0
        self._message_bytes = 0  # of the table that was read last
        self._connection = attach(how)
        try:
            self._attachment = self._connection._att
            self.join(number)
            with self._explained():
                for what in _NATIVE:
                    self._connection.execute_immediate(f"SET BIND OF {what} TO NATIVE")
                if number is None:
                    self._connection.rollback()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SnapshotReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def join(self, number: int | None) -> None:
        """Leave the snapshot, and join another one. BLOBs of before can't be read any more.

        number: None: one of its own. Raises DatabaseUnreadable if there is none of that NUMBER.
        """
        self._number = number
        with self._explained():
            self._connection.begin(read_only_snapshot(number))
            self._transaction = self._connection.main_transaction._tra
            self.oldest = int(self._connection.main_transaction.info.oit)

    def close(self) -> None:
        """Leave the snapshot and the database."""
        from firebird.driver import Error

        with contextlib.suppress(Error):
            self._connection.close()

    def rows(self, table: DatabaseTable, pages: PageRange) -> Iterator[StoredRow]:
        """Yield the rows of TABLE on PAGES. Raises DatabaseUnreadable."""
        within = f"RDB$DB_KEY >= MAKE_DBKEY({table.relation}, 0, {pages.first})"
        if pages.end is not None:
            within += f" AND RDB$DB_KEY < MAKE_DBKEY({table.relation}, 0, {pages.end})"
        sql = f"SELECT {_names(table)}, {_VERSION} FROM {_from(table)} WHERE {within}"
        with self._explained():
            for values in self._fetch(table, sql, [_version_form]):
                version: Any = values.pop()
                yield StoredRow(values, version)

    def chunk(
        self,
        table: DatabaseTable,
        after: bytes | None,
        most_rows: int,
        most_bytes: int = CHUNK_BYTES,
    ) -> Chunk:
        """Return the rows of TABLE behind the DB_KEY AFTER, or the first ones.

        They end after MOST_ROWS, or with the row by which they come to MOST_BYTES. Raises
        DatabaseUnreadable.
        """
        behind = "" if after is None else f" WHERE RDB$DB_KEY > x'{after.hex()}'"
        sql = (
            f"SELECT {_names(table)}, {_VERSION}, RDB$DB_KEY FROM {_from(table)}{behind}"
            f" FETCH FIRST {most_rows} ROWS ONLY"
        )
        has_blobs = any(column.storage in BLOB_STORAGES for column in table.table.columns)
        rows: list[StoredRow] = []
        last, size = after, 0
        with (
            self._explained(),
            contextlib.closing(self._fetch(table, sql, [_version_form, _db_key_form])) as found,
        ):
            for values in found:
                last = values.pop()
                version: Any = values.pop()
                rows.append(StoredRow(values, version))
                size += self._message_bytes
                if has_blobs:
                    size += sum(each.kept for each in values if isinstance(each, StoredBlob))
                if size >= most_bytes:
                    return Chunk(rows, last, is_end=False)
        return Chunk(rows, last, is_end=len(rows) < most_rows)

    def _fetch(
        self, table: DatabaseTable, sql: str, extra: Sequence[_ExtraForm]
    ) -> Generator[list[Any], None, None]:
        from firebird.driver.types import CursorFlag

        statement = self._attachment.prepare(self._transaction, sql, 3)
        try:
            with statement.get_output_metadata() as meta:
                layout, decoders = self._layout(meta, table, extra)
                self._message_bytes = meta.get_message_length()
                buffer = ctypes.create_string_buffer(self._message_bytes)
                cursor = statement.open_cursor(self._transaction, None, None, meta, CursorFlag.NONE)
            try:
                unpack = layout.unpack_from
                # Not by fetch_next: to look at the status of each row costs a fifth of the time.
                fetch, status = cursor.vtable.fetchNext, cursor.status
                while fetch(cursor, status, buffer) == _ROW:
                    raw = unpack(buffer)
                    yield [
                        None if raw[null] else decode(raw[place])
                        for place, null, decode in decoders
                    ]
                cursor._check()
            finally:
                cursor.close()
        finally:
            statement.free()

    def _layout(
        self, meta: Any, table: DatabaseTable, extra: Sequence[_ExtraForm]
    ) -> tuple[struct.Struct, list[tuple[int, int, _Decoder]]]:
        """Return how a message is laid out, and (value, null flag, decoder) of each column."""
        columns = table.table.columns
        if meta.get_count() != len(columns) + len(extra):
            raise DatabaseUnreadable(
                f"{table.table.name}: the server sends other columns than asked"
            )
        fields = fields_of(table.table, self._none_charset)
        pieces: list[tuple[int, str, int, bool]] = []  # offset, form, column, is value
        decode: list[_Decoder] = []
        for index in range(meta.get_count()):
            sql_type = int(meta.get_type(index)) & ~1
            length = meta.get_length(index)
            if index < len(columns):
                form, decoder = self._form(
                    table.table.name, sql_type, length, columns[index], fields[index]
                )
            else:
                form, decoder = extra[index - len(columns)](sql_type, length)
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
            for index in range(len(decode))
        ]

    def _form(
        self, table: str, sql_type: int, length: int, column: Column, field: ImageField
    ) -> tuple[str, _Decoder]:
        storage = column.storage
        if sql_type != column.sql_type:
            raise DatabaseUnreadable(
                f"{table}.{column.name}: the server sends type {sql_type} where"
                f" the column is of type {column.sql_type}"
            )
        if sql_type == _VARYING:
            return f"{length + 2}s", _varying(field)
        if sql_type == _TEXT:
            return f"{length}s", _fixed_text(field)
        if storage in BLOB_STORAGES:
            return "8s", self._blob
        kind = OF_STORAGE[storage]
        return kind.form, kind.decode or _same

    def _blob(self, raw: bytes) -> StoredBlob:
        return StoredBlob(self._attachment, self._transaction, raw, self._blob_bytes)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        from firebird.driver import Error

        try:
            yield
        except Error as error:
            raise DatabaseUnreadable(
                f"reading {self._dsn} in snapshot {self._number} failed: {one_line(error)}"
            ) from error


class StoredBlob(Blob):
    """The content of a BLOB or an ARRAY in the database, read at once to know its length.

    ``kept``: bytes of it in memory: all, or none if it is longer than is to be kept. ``available``
    False: the engine does not find it, which is the row's fault and not the reader's.
    """

    __slots__ = ("_pieces", "_place", "kept")

    def __init__(self, attachment: Any, transaction: Any, number: bytes, most_kept: int) -> None:
        from firebird.driver import DatabaseError

        super().__init__(0, True, None, ())
        self._place = attachment, transaction, number
        pieces: list[bytes] | None = []
        try:
            for piece in _pieces(*self._place):
                self.length += len(piece)
                if self.length > most_kept:
                    pieces = None
                if pieces is not None:
                    pieces.append(piece)
        except DatabaseError as error:
            if not any(words in str(error) for words in _NO_BLOB):
                raise
            self.available = False
        self._pieces = pieces
        self.kept = 0 if pieces is None else self.length

    def chunks(self) -> Iterator[bytes]:
        """Yield the content piece by piece. Raises the driver's error if it is read anew and can't
        be."""
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


def _names(table: DatabaseTable) -> str:
    return ", ".join(identifier(column.name) for column in table.table.columns)


def _from(table: DatabaseTable) -> str:
    return identifier(table.table.name)


_ExtraForm = Callable[[int, int], tuple[str, _Decoder]]


def _version_form(sql_type: int, length: int) -> tuple[str, _Decoder]:
    if (sql_type, length) != (_BIGINT, 8):
        raise DatabaseUnreadable(f"the server sends record versions as type {sql_type}")
    return "q", _same


def _db_key_form(sql_type: int, length: int) -> tuple[str, _Decoder]:
    if (sql_type, length) != (_TEXT, _DB_KEY_BYTES):
        raise DatabaseUnreadable(f"the server sends DB_KEYs of {length} bytes as type {sql_type}")
    return f"{length}s", _same


def _varying(field: ImageField) -> _Decoder:
    if field.storage is Storage.OCTETS:
        return lambda raw: raw[2 : 2 + (raw[0] | raw[1] << 8)]
    codec = field.codec
    if codec is None:
        return lambda raw: decode_text(raw[2 : 2 + (raw[0] | raw[1] << 8)], field)

    # One function, as this is called for each text: most are valid in their character set.
    def decode(raw: bytes) -> str | Undecodable:
        raw = raw[2 : 2 + (raw[0] | raw[1] << 8)]
        try:
            return raw.decode(codec)
        except UnicodeError:
            return decode_text(raw, field)

    return decode


def _fixed_text(field: ImageField) -> _Decoder:
    if field.storage is Storage.OCTETS:
        return _same
    codec, length = field.codec, field.char_length
    if codec is None or field.charset_id == NONE:  # whose length is in bytes
        return lambda raw: decode_text(raw.rstrip(b" "), field)

    def decode(raw: bytes) -> str | Undecodable:
        raw = raw.rstrip(b" ")
        try:
            return raw.decode(codec).ljust(length)
        except UnicodeError:
            return decode_text(raw, field)

    return decode


def _same(value: Any) -> Any:
    return value
