"""Snapshots of a database in use, taken in a client process that has the engine in itself."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from firebird.driver import Connection, Isolation, connect, tpb

from firebird_cdc.config.attachment import split_statements
from firebird_cdc.errors import DatabaseUnreadable, SnapshotVoid
from firebird_cdc.journal.format import Table
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection, attach
from firebird_cdc.journal.snapshot.catalogue import (
    DatabaseTable,
    definition_version,
    plan_ranges,
    read_extents,
    read_tables,
    record_number,
)
from firebird_cdc.journal.snapshot.holder import AttachedHolder, SnapshotBegun, attached_holder
from firebird_cdc.journal.snapshot.reader import SnapshotReader
from firebird_cdc.journal.snapshot.statements import read_only_snapshot
from firebird_cdc.journal.snapshot.stored_blobs import StoredBlob
from firebird_cdc.journal.snapshot.visibility import VisibleSet, read_visible_set
from firebird_cdc.journal.snapshot.window import (
    Window,
    begin_window,
    find_older,
    meet_publication,
    open_window,
)
from firebird_cdc.journal.types.canonical import BLOB_LIMIT, RowText

_READ_COMMITTED = Isolation.READ_COMMITTED_RECORD_VERSION
_KEYS_OF_WRITER = 40
_MOST_WINDOWS = 500


WindowRead = tuple[VisibleSet, dict[str, Counter[str]], set[int], str | None]
"""Set that a window sees, rows of the tables, who wrote these, and why the file was not asked."""


def _how(database: str) -> DatabaseConnection:
    return DatabaseConnection(database, "SYSDBA")


def _commit(connection: Connection, *statements: str) -> int:
    """Run STATEMENTS in a transaction of their own; return its number."""
    connection.begin()
    number = int(connection.main_transaction.info.id)
    for sql in statements:
        connection.execute_immediate(sql)
    connection.commit()
    return number


def _values(connection: Connection, sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]


def _tables(window: Window) -> dict[str, DatabaseTable]:
    return read_tables(window.connection, window.holder.page_size)


# ---- Statements after connecting


def said_after_statements(database: str, text: str) -> str:
    """Return what a session variable has after the statements of TEXT, or why there is no
    attachment."""
    how = DatabaseConnection(database, "SYSDBA", statements=split_statements(text))
    try:
        with closing(attach(how)) as connection:
            asked = "SELECT RDB$GET_CONTEXT('USER_SESSION', 'WHO') FROM RDB$DATABASE"
            return str(_values(connection, asked)[0])
    except DatabaseUnreadable as error:
        return str(error)


# ---- The mark


class _CommitsAfterSnapshot(AttachedHolder):
    """Have an older transaction committed, and the mark move on, right after the snapshot began."""

    def begin_snapshot(self) -> SnapshotBegun:
        begun = super().begin_snapshot()
        self.writer.commit()
        for key in range(20, 25):  # the engine notices what has ended
            _commit(self.other, f"INSERT INTO T VALUES ({key})")
        return begun

    writer: Connection
    other: Connection


def overtaken_mark(database: str) -> dict[str, Any]:
    """Begin a window while the mark passes a transaction that its snapshot does not see."""
    how = _how(database)
    with closing(attach(how)) as writer, closing(attach(how)) as other, closing(attach(how)) as own:
        writer.begin()
        number = writer.main_transaction.info.id
        writer.execute_immediate("INSERT INTO T VALUES (1)")
        _commit(other, "INSERT INTO T VALUES (2)")
        holder = _CommitsAfterSnapshot(own, True)
        holder.writer, holder.other = writer, other
        window = begin_window(holder)
        late = read_visible_set(
            holder.states,
            number=window.number,
            transaction=window.transaction,
            oldest=holder.oldest(),
            following=holder.following(),
        )
        return {
            "rows": _values(window.connection, "SELECT ID FROM T"),
            "sees": window.sees(number),
            "late mark sees": late.sees(number),
            "unchecked": window.unchecked,
        }


# ---- The publication


def older_than_publication(database: str) -> dict[str, Any]:
    """Publish a table while transactions run that were begun before; take windows."""
    how = _how(database)
    with ExitStack() as stack:
        writer, reader, admin, later = (stack.enter_context(closing(attach(how))) for _ in range(4))
        writer.begin()
        number = writer.main_transaction.info.id
        writer.execute_immediate("INSERT INTO T VALUES (1)")
        reader.begin(read_only_snapshot())
        _commit(admin, "ALTER DATABASE INCLUDE TABLE T TO PUBLICATION")
        _commit(admin, "ALTER DATABASE ENABLE PUBLICATION")
        holder = stack.enter_context(attached_holder(how))
        barriers = meet_publication(holder, {})
        later.begin()
        later.execute_immediate("INSERT INTO T VALUES (2)")
        older = find_older(holder, barriers)
        with open_window(how, barriers) as window:
            early = window.find_flaws().unpublished
            unasked = begin_window(stack.enter_context(attached_holder(how))).find_flaws()
        writer.commit()
        after = find_older(holder, barriers)
        with open_window(how, barriers) as window:
            window.require_sound()
            rows = _values(window.connection, "SELECT ID FROM T")
            kept = window.barriers == barriers
        later.commit()
        return {
            "writer": number,
            "older": [(each.number, each.user) for each in older],
            "early": set(early),
            "without barriers": set(unasked.unpublished),
            "after": after,
            "rows": rows,
            "kept": kept,
        }


# ---- Joiners


def late_joiner(database: str) -> dict[str, Any]:
    """Join a snapshot before and after a transaction older than it was committed."""
    how = _how(database)
    with closing(attach(how)) as writer, closing(attach(how)) as other:
        writer.begin()
        number = writer.main_transaction.info.id
        writer.execute_immediate("INSERT INTO T VALUES (1)")
        _commit(other, "INSERT INTO T VALUES (2)")
        with open_window(how) as window:
            table = _tables(window)["T"]
            [pages] = plan_ranges([table], window.holder.page_size, 1 << 30)
            with SnapshotReader(how, window.number) as early:
                writer.commit()
                for key in range(20, 25):
                    _commit(other, f"INSERT INTO T VALUES ({key})")
                with SnapshotReader(how, window.number) as late:
                    found = [
                        sorted(row.values[0] for row in reader.rows(table, pages))
                        for reader in (early, late)
                    ]
            window.require_sound([early.oldest])
            refused = []
            for joined in ([early.oldest, late.oldest], None):
                try:
                    window.require_sound(joined)
                except SnapshotVoid as error:
                    refused.append(str(error))
            return {"writer": number, "early": found[0], "late": found[1], "refused": refused}


# ---- Reading in chunks


def fill(database: str, rows: int) -> None:
    """Put ROWS rows into each table; some notes are long, some rows gone again."""
    with closing(connect(database, user="SYSDBA", charset="UTF8")) as connection:
        with connection.cursor() as cursor:
            for key in range(rows):
                note = None if key % 3 else f"заметка {key} " * (key % 50)
                row = (key * 7919 % 100_003, key, f"имя {key}", note)
                cursor.execute("INSERT INTO KEYED VALUES (?, ?, ?, ?)", row)
                cursor.execute("INSERT INTO KEYLESS VALUES (?, ?)", (key // 3, "x" * (key % 200)))
            cursor.execute("DELETE FROM KEYED WHERE MOD(N, 11) = 0")
            cursor.execute("DELETE FROM KEYLESS WHERE MOD(N, 13) = 0")
        connection.commit()


def read_in_chunks(
    database: str, name: str, most_rows: int, most_bytes: int
) -> tuple[Counter[str], Counter[str], list[tuple[int, bool]]]:
    """Return the rows of table NAME read as a whole at first, and in chunks while others write,
    each chunk by another reader; and the size of each chunk and whether it says to be the end."""
    how = _how(database)
    with open_window(how) as window, closing(attach(how)) as other:
        table = _tables(window)[name]
        text = RowText(table.table)
        with SnapshotReader(how, window.number) as reader:
            whole = Counter(
                text.row(row.values)
                for pages in plan_ranges([table], window.holder.page_size, 1)
                for row in reader.rows(table, pages)
            )
        rows: Counter[str] = Counter()
        sizes, joined = [], []
        last, is_end, turn = None, False, 0
        while not is_end:
            turn += 1
            _commit(
                other,
                f"DELETE FROM {name} WHERE MOD(N, 5) = {turn % 5}",
                f"UPDATE {name} SET N = N + 100000 WHERE MOD(N, 7) = {turn % 7}",
                *(
                    f"INSERT INTO KEYED (ID, N) VALUES ({-1000 * turn - n}, {n})"
                    for n in range(20)
                    if name == "KEYED"
                ),
                *(f"INSERT INTO KEYLESS (N) VALUES ({n})" for n in range(20) if name == "KEYLESS"),
            )
            with SnapshotReader(how, window.number) as reader:
                chunk = reader.chunk(table, last, most_rows, most_bytes)
                rows.update(text.row(row.values) for row in chunk.rows)
            last, is_end = chunk.last, chunk.is_end
            sizes.append((len(chunk.rows), is_end))
            joined.append(reader.oldest)
        window.require_sound(joined)
        return whole, rows, sizes


def join_too_late(database: str) -> str:
    """Return what a reader is told that joins a snapshot which has ended."""
    how = _how(database)
    with SnapshotReader(how, None) as reader:
        with open_window(how) as window:
            reader.join(window.number)
        try:
            reader.join(window.number)
        except DatabaseUnreadable as error:
            return str(error)
    return ""


# ---- Windows beside writers


def write(database: str, number: int, stop: str, seed: str) -> int:
    """Commit transactions of a few changes until there is a file STOP; return how many.

    Writers have keys of their own, and undo nothing but whole transactions: where several change
    and undo the same row, the engine itself loses changes (tests/faults/lost_undo.py).
    """
    chance = random.Random(f"{seed}/{number}")
    begun = committed = 0
    with closing(connect(database, user="SYSDBA", charset="UTF8")) as connection:
        while not Path(stop).exists():
            connection.begin(tpb(_READ_COMMITTED))
            begun += 1
            with connection.cursor() as cursor:
                for _ in range(chance.randint(1, 5)):
                    key = number * _KEYS_OF_WRITER + chance.randrange(_KEYS_OF_WRITER)
                    note = chance.choice((None, "заметка " * chance.randrange(40)))
                    kind = chance.random()
                    if kind < 0.6:
                        cursor.execute(
                            "UPDATE OR INSERT INTO KEYED VALUES (?, ?, ?, ?)",
                            (key, chance.randrange(10**12), f"имя {begun}", note),
                        )
                    elif kind < 0.75:
                        cursor.execute("DELETE FROM KEYED WHERE ID = ?", (key,))
                    elif kind < 0.9:
                        cursor.execute("INSERT INTO KEYLESS VALUES (?, ?)", (number, f"t {begun}"))
                    else:
                        cursor.execute("DELETE FROM KEYLESS WHERE N = ?", (number,))
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                committed += 1
    return committed


def read_windows(database: str, most_rows: int, windows: int, beside: int) -> list[WindowRead]:
    """Return what sound windows have: WINDOWS of them or more, until BESIDE have a transaction
    outside. most_rows: of a chunk."""
    how = _how(database)
    found: list[WindowRead] = []
    with attached_holder(how) as holder, SnapshotReader(how, None) as reader:
        while len(found) < windows or sum(bool(each[0].outside) for each in found) < beside:
            assert len(found) < _MOST_WINDOWS
            window = begin_window(holder)
            reader.join(window.number)
            rows: dict[str, Counter[str]] = {}
            versions: set[int] = set()
            for name, table in _tables(window).items():
                text, rows[name] = RowText(table.table), Counter()
                last, is_end = None, False
                while not is_end:
                    chunk = reader.chunk(table, last, most_rows)
                    rows[name].update(text.row(row.values) for row in chunk.rows)
                    versions.update(row.version for row in chunk.rows)
                    last, is_end = chunk.last, chunk.is_end
            if not window.find_flaws([reader.oldest]):
                found.append((window.visible, rows, versions, window.unchecked))
            holder.end()
    return found


# ---- Definitions


def read_everything(
    database: str, blob_bytes: int
) -> tuple[dict[str, tuple[Table, list[list[Any]]]], list[str]]:
    """Return each table of the database and its rows; and those that differ if they are read by
    their names. blob_bytes: of the reader."""
    how = _how(database)
    found, different = {}, []
    with (
        open_window(how) as window,
        SnapshotReader(how, window.number, blob_bytes=blob_bytes) as reader,
    ):
        tables = _tables(window)
        for name, table in tables.items():
            rows = [row.values for row in reader.chunk(table, None, 1000).rows]
            found[name] = table.table, [pickle.loads(pickle.dumps(list(row))) for row in rows]
        page_size = window.holder.page_size
        for names in ([], ["NOT THERE"], *([name] for name in tables), list(tables)[::2]):
            expected = {name: tables[name] for name in names if name in tables}
            if read_tables(window.connection, page_size, names) != expected:
                different.append(f"{names}")
    return found, different


def follow_definition(
    database: str, name: str, statements: Sequence[str]
) -> list[tuple[str, bool, bool]]:
    """Return of each of STATEMENTS, each committed, whether it changed what is told of table NAME:
    its version, and its definition."""
    how = _how(database)
    told = []
    with closing(attach(how)) as own, closing(attach(how)) as other:

        def look() -> tuple[Any, Any]:
            own.begin(read_only_snapshot())
            version = definition_version(own, name)
            table = read_tables(own, 8192, [name]).get(name)
            own.rollback()
            return version, table

        before = look()
        for sql in statements:
            _commit(other, sql)
            after = look()
            told.append((sql, before[0] != after[0], before[1] != after[1]))
            before = after
    return told


# ---- Conditions and SELECTs of users


def read_where(
    database: str, name: str, conditions: Sequence[str | None], most_rows: int
) -> list[list[Any] | tuple[str, str]]:
    """Return for each of CONDITIONS the first column of the rows of table NAME that fulfil it, by
    chunks of MOST_ROWS; or the class and the text of the error."""
    found: list[list[Any] | tuple[str, str]] = []
    with _reading(database) as (reader, tables):
        for condition in conditions:
            rows: list[Any] = []
            last, is_end = None, False
            try:
                while not is_end:
                    chunk = reader.chunk(tables[name], last, most_rows, condition=condition)
                    last, is_end = chunk.last, chunk.is_end
                    rows += [row.values[0] for row in chunk.rows]
                    assert len(chunk.rows) == most_rows or is_end
                found.append(rows)
            except DatabaseUnreadable as error:
                found.append((type(error).__name__, str(error)))
    return found


def read_in_numbers(
    database: str, name: str, condition: str | None, most_rows: int, numbers: int
) -> tuple[list[Any], int]:
    """Return the first column of the rows of table NAME that fulfil CONDITION, by chunks of
    MOST_ROWS that look through so many record NUMBERS each; and how many there were."""
    found: list[Any] = []
    count = 0
    with _reading(database) as (reader, tables):
        table, after, is_end = tables[name], None, False
        while not is_end:
            count += 1
            rows: list[Any] = []
            with reader.opened(table, after, most_rows, condition, numbers) as cursor:
                while len(rows) < most_rows and cursor.fetch():
                    rows.append(reader.values_of(cursor))
                is_full = len(rows) == most_rows and cursor.look_ahead()
            found += [row[0] for row in rows]
            beyond = None if is_full else reader.beyond(table, after, numbers)
            after = rows[-1][-1] if is_full else beyond
            is_end = after is None
    return found, count


def read_ends(
    database: str, name: str, limits: Sequence[tuple[int, int]]
) -> list[list[tuple[int, bool]]]:
    """Return for each of LIMITS, rows and bytes, the chunks of table NAME: their sizes, and whether
    they say to be the end."""
    found = []
    with _reading(database) as (reader, tables):
        for most_rows, most_bytes in limits:
            chunks: list[tuple[int, bool]] = []
            last, is_end = None, False
            while not is_end:
                chunk = reader.chunk(tables[name], last, most_rows, most_bytes)
                last, is_end = chunk.last, chunk.is_end
                chunks.append((len(chunk.rows), is_end))
            found.append(chunks)
    return found


def read_selected(
    database: str, name: str, selects: Sequence[str]
) -> list[list[list[Any]] | tuple[str, str]]:
    """Return the rows of each of SELECTS for table NAME, or the class and the text of the error."""
    found: list[list[list[Any]] | tuple[str, str]] = []
    with _reading(database) as (reader, tables):
        for sql in selects:
            try:
                rows = [row.values for row in reader.selected(tables[name], sql)]
                found.append([pickle.loads(pickle.dumps(list(row))) for row in rows])
            except DatabaseUnreadable as error:
                found.append((type(error).__name__, str(error)))
    return found


def read_altered(database: str, name: str, alteration: str) -> str:
    """Return what a reader says of table NAME whose definition is from before ALTERATION."""
    with closing(attach(_how(database))) as other:
        with _reading(database) as (_, tables):
            table = tables[name]
        _commit(other, alteration)
        with _reading(database) as (reader, _):
            try:
                reader.chunk(table, None, 10)
            except DatabaseUnreadable as error:
                return f"{type(error).__name__}: {error}"
    return ""


def read_large_blobs(database: str, name: str, blob_bytes: int) -> tuple[list[list[int]], int, int]:
    """Return the lengths and the kept bytes of the BLOBs in each row of table NAME, what their
    contents add up to when they are read, and the most memory that this has taken."""
    with _reading(database, blob_bytes) as (reader, tables):
        table = tables[name]
        reader.chunk(table, None, 1)  # what is imported and remembered
        tracemalloc.start()
        rows = reader.chunk(table, None, 100).rows
        blobs = [[each for each in row.values if isinstance(each, StoredBlob)] for row in rows]
        sizes = [[size for each in row for size in (each.length, each.kept)] for row in blobs]
        total = sum(len(piece) for row in blobs for each in row for piece in each.chunks())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return sizes, total, peak


@contextmanager
def _reading(
    database: str, blob_bytes: int = BLOB_LIMIT
) -> Iterator[tuple[SnapshotReader, dict[str, DatabaseTable]]]:
    how = _how(database)
    with (
        open_window(how) as window,
        SnapshotReader(how, window.number, blob_bytes=blob_bytes) as reader,
    ):
        yield reader, _tables(window)


# ---- Extents


def measure(database: str, table: str) -> tuple[dict[str, int], int]:
    """Return the extents of all tables, and the record number of the last row of TABLE."""
    with closing(attach(_how(database))) as connection:
        extents = read_extents(connection)
        keys = _values(connection, f"SELECT RDB$DB_KEY FROM {table}")
        return extents, max(map(record_number, keys))
