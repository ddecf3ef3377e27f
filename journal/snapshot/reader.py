"""Reader of a table's rows in a snapshot, with the values that journals have.

It takes the engine's own messages (`cursor`), not the driver's values: those are the bytes that a
journal has, zones and decimals of any size included, and cost a tenth of the time. Rows lie in the
order of their DB_KEY, which a row keeps as long as it lives; so any table, with a key or without,
can be read in ranges of data pages side by side, or in chunks, each behind the last row of the one
before.
"""

# ruff: noqa: S608  (what is put into statements are numbers, quoted names, and checked conditions)

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from firebird_cdc.errors import DatabaseUnreadable, QueryRefused
from firebird_cdc.journal.format import Value
from firebird_cdc.journal.format.model import BLOB_STORAGES
from firebird_cdc.journal.format.row_decoder import fields_of
from firebird_cdc.journal.snapshot.attachment import (
    DatabaseConnection,
    attach,
    have_types_as_stored,
    one_line,
)
from firebird_cdc.journal.snapshot.catalogue import (
    MOST_NUMBERS,
    DatabaseTable,
    PageRange,
    db_key_of,
    record_number,
)
from firebird_cdc.journal.snapshot.cursor import (
    BIGINT,
    TEXT,
    Cursor,
    Field,
    column_field,
    difference,
    same_value,
)
from firebird_cdc.journal.snapshot.queries import in_case, in_where, is_select, with_character_set
from firebird_cdc.journal.snapshot.statements import (
    Shown,
    Statements,
    read_only_snapshot,
    statements_of,
)
from firebird_cdc.journal.snapshot.stored_blobs import StoredBlob
from firebird_cdc.journal.types.canonical import BLOB_LIMIT
from firebird_cdc.journal.types.identifiers import identifier

CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of messages and contents of BLOBs after which a chunk ends, by default."""

_VERSION = "RDB$RECORD_VERSION"
_DB_KEY_BYTES = 8
# isc_cancelled, also by a timeout, isc_deadlock, isc_lock_conflict, isc_obj_in_use and
# isc_lock_timeout: the same SQL may do another time.
_OF_OTHERS = frozenset({335544794, 335544336, 335544345, 335544453, 335544510})
_ANY_SQL = "SELECT 1 FROM RDB$DATABASE"
_UNTOLD = 0  # version of a row of whose writer nothing is known


class StoredRow(NamedTuple):
    """A row. ``values``: of the stored columns in the table's order, as `JournalReader` has them;
    BLOBs can be read while the reader is in the snapshot. ``version``: the transaction that wrote
    it; 0: it is not known."""

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
    SET NONE. blob_bytes: up to which the contents of a row's BLOBs are kept; what is longer is read
    again, piece by piece, when it is asked for. Raises DatabaseUnreadable, also if the snapshot has
    ended; QueryRefused for conditions and SELECTs that can't be used.

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
        self._left = 0  # of blob_bytes, for the row that is read
        self._conditions: set[tuple[str, str]] = set()  # of tables, that were looked at
        self._connection: Any = attach(how)
        self._statements: Statements
        try:
            self.join(number)
            with self._explained():
                have_types_as_stored(self._connection)
                if number is None:
                    self._connection.rollback()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SnapshotReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def join(self, number: int | None) -> None:
        """Leave the snapshot, and join another one. BLOBs of before can't be read any more.

        number: None: one of its own. Raises DatabaseUnreadable if there is none of that NUMBER.
        """
        self._number = number
        self._conditions.clear()
        with self._explained():
            self._connection.begin(read_only_snapshot(number))
            self._statements = statements_of(self._connection)
            self.oldest = int(self._connection.main_transaction.info.oit)

    def leave(self) -> None:
        """Leave the snapshot, which the engine may forget then. BLOBs can't be read any more."""
        with self._explained():
            if self._connection.main_transaction.is_active():
                self._connection.rollback()

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
        with self._explained(), self._open(sql, partial(self._in_order, table)) as cursor:
            while cursor.fetch():
                values = self.values_of(cursor)
                version: Any = values.pop()
                yield StoredRow(values, version)

    def chunk(
        self,
        table: DatabaseTable,
        after: bytes | None,
        most_rows: int,
        most_bytes: int = CHUNK_BYTES,
        condition: str | None = None,
    ) -> Chunk:
        """Return the rows of TABLE behind the DB_KEY AFTER, or the first ones.

        They end after MOST_ROWS, or with the row by which they come to MOST_BYTES. condition: SQL
        of the user's that they fulfil. Raises DatabaseUnreadable; QueryRefused if CONDITION is none
        of this table, or fails at one of its rows.
        """
        has_blobs = any(column.storage in BLOB_STORAGES for column in table.table.columns)
        rows: list[StoredRow] = []
        last, size = after, 0
        with self.opened(table, after, most_rows, condition) as cursor:
            while cursor.fetch():
                if len(rows) == most_rows or size >= most_bytes:
                    return Chunk(rows, last, is_end=False)
                values = self.values_of(cursor)
                last = values.pop()
                version: Any = values.pop()
                rows.append(StoredRow(values, version))
                size += cursor.message_bytes
                if has_blobs:
                    size += sum(each.kept for each in values if isinstance(each, StoredBlob))
        return Chunk(rows, last, is_end=True)

    @contextlib.contextmanager
    def opened(
        self,
        table: DatabaseTable,
        after: bytes | None,
        most_rows: int,
        condition: str | None,
        numbers: int | None = None,
    ) -> Iterator[Cursor]:
        """Open the cursor of `chunk`: of each row it has values, version and DB_KEY. It has one row
        more than MOST_ROWS, which tells whether there is one. numbers: so many record numbers
        behind AFTER are looked through, and `beyond` tells what is there. Raises as `chunk`."""
        rows = self._rows_behind(table, after, condition, numbers)
        sql = (
            f"SELECT {_names(table)}, {_VERSION}, RDB$DB_KEY {rows}"
            f" FETCH FIRST {most_rows + 1} ROWS ONLY"
        )
        with (
            self._explained(_about(table, condition)),
            self._open(sql, partial(self._in_order, table)) as cursor,
        ):
            yield cursor

    def has_rows(self, table: DatabaseTable) -> bool:
        """Tell whether TABLE has any. Raises DatabaseUnreadable."""
        sql = f"SELECT CAST(1 AS INTEGER), RDB$DB_KEY FROM {_from(table)} FETCH FIRST ROW ONLY"
        with self._explained(), self._open(sql, _measures) as cursor:
            return cursor.fetch()

    def measured(
        self, table: DatabaseTable, after: bytes | None, most_rows: int, condition: str | None
    ) -> tuple[int, bytes | None]:
        """Return how many rows a `chunk` has that ends by MOST_ROWS alone, and the DB_KEY of the
        last one, None: it has none. A tenth of the time of reading them. Raises as `chunk`."""
        rows = self._rows_behind(table, after, condition)
        # The name is none that a condition can mean: it stands outside of this SELECT.
        sql = (
            "SELECT CAST(COUNT(*) AS INTEGER), MAX(K) FROM"
            f" (SELECT RDB$DB_KEY K {rows} FETCH FIRST {most_rows} ROWS ONLY)"
        )
        with self._explained(_about(table, condition)), self._open(sql, _measures) as cursor:
            cursor.fetch()
            count, last = cursor.values()
        return count, last

    def beyond(self, table: DatabaseTable, after: bytes | None, numbers: int) -> bytes | None:
        """Return the DB_KEY behind which rows go on beyond so many NUMBERS behind AFTER, whatever
        they fulfil; None: there is none. Raises DatabaseUnreadable."""
        end = _key_behind(table, after, numbers)
        sql = (
            f"SELECT CAST(1 AS INTEGER), RDB$DB_KEY FROM {_from(table)}"
            f" WHERE RDB$DB_KEY >= x'{end.hex()}' FETCH FIRST ROW ONLY"
        )
        with self._explained(), self._open(sql, _measures) as cursor:
            if not cursor.fetch():
                return None
            _, found = cursor.values()
        return db_key_of(table.relation, record_number(found) - 1)

    def _rows_behind(
        self,
        table: DatabaseTable,
        after: bytes | None,
        condition: str | None,
        numbers: int | None = None,
    ) -> str:
        """Return the FROM and the WHERE of rows of TABLE."""
        wanted = [] if after is None else [f"RDB$DB_KEY > x'{after.hex()}'"]
        if numbers is not None:
            wanted.append(f"RDB$DB_KEY < x'{_key_behind(table, after, numbers).hex()}'")
        if condition is not None:
            wanted.append(in_where(self._checked(table, condition)))
        return f"FROM {_from(table)}{' WHERE ' if wanted else ''}{' AND '.join(wanted)}"

    def selected(self, table: DatabaseTable, sql: str) -> Iterator[StoredRow]:
        """Yield the rows that SQL, a SELECT of the user's, gives for TABLE, one after the other.

        It has each stored column of TABLE by its name, with its type, in any order; other columns
        are passed over. Raises DatabaseUnreadable; QueryRefused if SQL is not so, if it fails at a
        row, or if a column that is NOT NULL is null.
        """
        name = table.table.name
        if not is_select(sql):
            raise QueryRefused(f"table {name}: this is not a SELECT: {sql}")
        required = [place for place, each in enumerate(table.table.columns) if not each.nullable]
        with (
            self._explained(f"the SELECT for table {name}: "),
            self._open(with_character_set(sql), partial(self._find, table)) as cursor,
        ):
            while cursor.fetch():
                values = self.values_of(cursor)
                for place in required:
                    if values[place] is None:
                        raise QueryRefused(
                            f"table {name}: the SELECT gives a null for"
                            f" {table.table.columns[place].name}, which is NOT NULL"
                        )
                yield StoredRow(values, _UNTOLD)

    def _checked(self, table: DatabaseTable, condition: str) -> str:
        """Return CONDITION as the engine needs it. Raises QueryRefused if it is none of TABLE by
        itself."""
        name = table.table.name
        told = with_character_set(condition)
        if (name, told) not in self._conditions:
            with self._explained(_about(table, condition)):
                statement = self._statements.prepare(in_case(_from(table), told))
                has_parameters = statement.parameters > 0
                statement.close()
            if has_parameters:
                raise QueryRefused(
                    f"table {name} where {condition}: parameters have no values here"
                )
            self._conditions.add((name, told))
        return told

    def _open(
        self, sql: str, bind: Callable[[Sequence[Shown]], list[Field]]
    ) -> contextlib.closing[Cursor]:
        return contextlib.closing(Cursor(self._statements.prepare(sql), sql, bind))

    def values_of(self, cursor: Cursor) -> list[Any]:
        """Return the values of the row that CURSOR has at hand."""
        self._left = self._blob_bytes
        return cursor.values()

    def _in_order(self, table: DatabaseTable, shown: Sequence[Shown]) -> list[Field]:
        """Return the fields of the columns of TABLE, and of what follows them."""
        count = len(table.table.columns)
        return [
            *self._fields(table, shown, range(count), DatabaseUnreadable, "it has been altered"),
            *(_extra_field(count + place, each) for place, each in enumerate(shown[count:])),
        ]

    def _find(self, table: DatabaseTable, shown: Sequence[Shown]) -> list[Field]:
        """Return the fields of the columns of TABLE by their names."""
        name = table.table.name
        names = [each.name for each in shown]
        columns = [column.name for column in table.table.columns]
        if missing := [column for column in columns if column not in names]:
            raise QueryRefused(f"table {name}: the SELECT lacks the columns {', '.join(missing)}")
        if doubled := [column for column in columns if names.count(column) > 1]:
            raise QueryRefused(f"table {name}: the SELECT has several columns {', '.join(doubled)}")
        numbers = [names.index(column) for column in columns]
        return self._fields(table, shown, numbers, QueryRefused, "CAST it to that")

    def _fields(
        self,
        table: DatabaseTable,
        shown: Sequence[Shown],
        numbers: Sequence[int],
        refusal: type[DatabaseUnreadable],
        why: str,
    ) -> list[Field]:
        """Return the fields of the columns of TABLE, which have these NUMBERS in messages."""
        fields = []
        for number, column, field in zip(
            numbers, table.table.columns, fields_of(table.table, self._none_charset), strict=True
        ):
            if (other := difference(shown[number], column)) is not None:
                raise refusal(
                    f"{table.table.name}.{column.name}: what is selected is {other}: {why}"
                )
            fields.append(column_field(number, column, field, self._blob))
        return fields

    def _blob(self, raw: bytes) -> StoredBlob:
        blob = StoredBlob(self._statements.blob(raw), self._left)
        self._left -= blob.kept
        return blob

    @contextlib.contextmanager
    def _explained(self, about: str = "") -> Iterator[None]:
        """Make errors of the driver's our own. ABOUT: SQL of the user's, which would fail again if
        it is to blame: if others work at the same time."""
        from firebird.driver import Error

        try:
            yield
        except Error as error:
            is_refused = bool(about) and _OF_OTHERS.isdisjoint(error.gds_codes) and self._works()
            raise (QueryRefused if is_refused else DatabaseUnreadable)(
                f"reading {self._dsn} in snapshot {self._number} failed: {about}{one_line(error)}"
            ) from error

    def _works(self) -> bool:
        """Tell whether the attachment still takes SQL in its snapshot."""
        from firebird.driver import Error

        try:
            self._statements.prepare(_ANY_SQL).close()
        except Error:
            return False
        return True


def _names(table: DatabaseTable) -> str:
    return ", ".join(identifier(column.name) for column in table.table.columns)


def _from(table: DatabaseTable) -> str:
    return identifier(table.table.name)


def _key_behind(table: DatabaseTable, after: bytes | None, numbers: int) -> bytes:
    """Return the DB_KEY that lies NUMBERS, and one, behind AFTER, or the beginning of TABLE."""
    before = 0 if after is None else record_number(after)
    return db_key_of(table.relation, min(before + numbers + 1, MOST_NUMBERS))


def _about(table: DatabaseTable, condition: str | None) -> str:
    return "" if condition is None else f"table {table.table.name} where {condition}: "


def _measures(shown: Sequence[Shown]) -> list[Field]:
    return [Field(0, "i", same_value), _extra_field(1, shown[1])]


def _extra_field(number: int, shown: Shown) -> Field:
    """Return the field of a version or a DB_KEY."""
    if (shown.sql_type, shown.length) == (BIGINT, 8):
        return Field(number, "q", same_value)
    if (shown.sql_type, shown.length) == (TEXT, _DB_KEY_BYTES):
        return Field(number, f"{_DB_KEY_BYTES}s", same_value)
    raise DatabaseUnreadable(
        f"the server sends {shown.name} of {shown.length} bytes as type {shown.sql_type}"
    )
