"""Values of every type that a client over TCP writes into a Firebird 4 server, in its journals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from default_literals import LITERALS as LITERAL_DEFAULTS
from default_literals import columns_of, table_of
from shared_folder import all_readers_in, live_in

from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import QueryRefused
from firebird_cdc.journal.events.defaults import literal_value
from firebird_cdc.journal.format import (
    Blob,
    DdlChange,
    RowChange,
    SequenceChange,
    Storage,
)
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.catalogue import definition_version, read_tables
from firebird_cdc.journal.snapshot.reader import SnapshotReader
from firebird_cdc.journal.snapshot.window import open_window
from firebird_cdc.journal.types.arrays import decode_array
from firebird_cdc.journal.types.canonical import RowText, canonical_value

pytestmark = pytest.mark.server

# SQL type: the value as SQL or as a parameter, and its canonical text (docs/replay.md).
TYPES: dict[str, tuple[Any, str]] = {
    "SMALLINT": (-32768, "-32768"),
    "BIGINT": (2**63 - 1, "9223372036854775807"),
    "INT128": (Decimal(-(2**127)), f'"{-(2**127)}"'),
    "NUMERIC(4, 1)": (Decimal("-999.9"), '"-999.9"'),
    "DECIMAL(38, 20)": (Decimal("-0.00000000000000000001"), '"-0.00000000000000000001"'),
    "DECFLOAT(16)": (Decimal("-9.999999999999999E+384"), '"-9.999999999999999E+384"'),
    "DECFLOAT(34)": (Decimal("1E-6176"), '"1E-6176"'),
    "DOUBLE PRECISION": (5e-324, "5e-324"),
    "FLOAT": (-0.0, "-0.0"),
    "BOOLEAN": (True, "true"),
    "CHAR(5) CHARACTER SET UTF8": ("жя", '"жя"'),
    "VARCHAR(5) CHARACTER SET WIN1251": ("Ёж ", '"Ёж "'),
    "VARCHAR(5) CHARACTER SET ISO8859_1": ("é", '"é"'),
    "CHAR(2) CHARACTER SET OCTETS": (b"\0\xff", '"AP8="'),
    "BLOB SUB_TYPE TEXT CHARACTER SET WIN1251": ("жук", '"жук"'),
    "BLOB SUB_TYPE BINARY": (b"", '""'),
}
LITERALS = {
    "DATE": ("DATE '0001-01-01'", '"0001-01-01"'),
    "TIME": ("TIME '23:59:59.9999'", '"23:59:59.9999"'),
    "TIMESTAMP": ("TIMESTAMP '9999-12-31 23:59:59.9999'", '"9999-12-31T23:59:59.9999"'),
}


@pytest.fixture
def shop(firebird4: Firebird4, client: Any) -> Iterator[tuple[Any, Path]]:
    """A connection to a new database with nothing in it, and where its journals are."""
    journals, _ = firebird4.install("127.0.0.1:9", "types")
    firebird4.start()
    database = firebird4.create_database(client)
    with client.connect(firebird4.dsn(database), charset="UTF8") as connection:
        yield connection, journals


def _changes(journals: Path) -> list[list[Any]]:
    """Return the changes of each journal in order, once all are committed."""
    await_condition("all journals to be confirmed", lambda: not live_in(journals), 120)
    found = []
    for reader in all_readers_in(journals):
        assert reader.stamp is not None
        changes = [
            (change, _texts(change) if isinstance(change, RowChange) else None)
            for change in reader.changes()
        ]
        found.append((reader.stamp.sequence, changes))
    return [changes for _, changes in sorted(found, key=lambda pair: pair[0])]


def _texts(change: RowChange) -> dict[str, Any]:
    row = change.after or change.before or ()
    return {
        column.name: decode_array(value.read(), column)[1:]
        if isinstance(value, Blob) and column.storage is Storage.ARRAY
        else canonical_value(column, value)
        for column, value in zip(change.table.columns, row, strict=True)
    }


def test_every_type_is_captured_over_tcp(shop: tuple[Any, Path]) -> None:
    connection, journals = shop
    types = [*TYPES, *LITERALS]
    declared = ", ".join(f"C{n} {sql}" for n, sql in enumerate(types))
    connection.execute_immediate(
        f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, {declared}, A INTEGER[2, 0:1])"
    )
    connection.commit()
    array = [[1, -2], [2**31 - 1, 0]]
    marks = ", ".join([*"?" * len(TYPES), *(sql for sql, _ in LITERALS.values())])
    cursor = connection.cursor()
    parameters = [value for value, _ in TYPES.values()]
    cursor.execute(f"INSERT INTO T VALUES (1, {marks}, ?)", (*parameters, array))
    cursor.execute("UPDATE T SET C7 = ?, C8 = ?", (math.nan, -math.inf))
    cursor.execute("INSERT INTO T (ID) VALUES (2)")
    connection.commit()
    texts = [text for _, text in (*TYPES.values(), *LITERALS.values())]
    expected = {f"C{n}": text for n, text in enumerate(texts)} | {"A": (((1, 2), (0, 1)), array)}
    *_, [[made, _]], [(row, inserted), (_, updated), (_, nulls)] = _changes(journals)
    assert isinstance(row, RowChange)
    assert isinstance(made, DdlChange) and made.table_changes is not None
    [(kind, name, state)] = made.table_changes
    assert (kind, name) == ("CREATE", "T") and state is not None
    assert [state.table.columns[i] for i in state.table.order] == [
        row.table.columns[i] for i in row.table.order
    ]
    assert inserted == {"ID": "1", **expected}
    assert updated == inserted | {"C7": '"NaN"', "C8": '"-Infinity"'}
    assert set(nulls.values()) == {"2", "null"}


def test_literal_defaults_of_every_type_are_those_that_the_server_inserts(
    shop: tuple[Any, Path],
) -> None:
    """A Firebird 4 has compiled them to what this code reads, too."""
    connection, journals = shop
    columns = columns_of(LITERAL_DEFAULTS)
    domain = "CREATE DOMAIN WORDS AS VARCHAR(20) DEFAULT 'words' NOT NULL"
    for sql in (domain, table_of("D", columns), "INSERT INTO D (ID) VALUES (1)"):
        connection.execute_immediate(sql)
        connection.commit()
    [(row, inserted)] = _changes(journals)[-1]
    assert isinstance(row, RowChange)
    defaults = {
        column.name: canonical_value(column, literal_value(column, "UTF-8"))
        for column in row.table.columns
        if column.default is not None
    }
    assert defaults == {name: inserted[name] for name in columns}


# What each does to its table: the kind of change, and the key afterwards.
INDEXES = {
    "CREATE TABLE U (A INTEGER NOT NULL, B INTEGER)": [("CREATE", ())],
    "CREATE UNIQUE INDEX U_KEY ON U (A)": [("ALTER", (0,))],
    "CREATE INDEX U_B ON U (B)": [],
    "DROP INDEX U_KEY": [("ALTER", ())],
}


def test_blob_of_20_mib_ddl_and_a_sequence_are_captured(shop: tuple[Any, Path]) -> None:
    connection, journals = shop
    ddl = 'CREATE TABLE "Кружки" ("№" INTEGER NOT NULL PRIMARY KEY, B BLOB)'
    for sql in (ddl, "CREATE SEQUENCE S"):
        connection.execute_immediate(sql)
        connection.commit()
    content = bytes(range(256)) * (20 * 4096)
    cursor = connection.cursor()
    cursor.execute('INSERT INTO "Кружки" VALUES (NEXT VALUE FOR S, ?)', (content,))
    connection.commit()
    [made], [_], written = _changes(journals)[-3:]
    assert isinstance(made[0], DdlChange)
    assert made[0].sql == ddl
    values = {c.name: c.value for c, _ in written if isinstance(c, SequenceChange)}
    assert values == {"S": 1}
    [row] = [change for change, _ in written if isinstance(change, RowChange)]
    assert row.table.name == "Кружки"
    assert row.table.key_columns == (0,)
    assert row.after is not None
    assert isinstance(row.after[1], Blob)
    assert row.after[1].length == len(content)

    for sql in INDEXES:
        connection.execute_immediate(sql)
        connection.commit()
        _changes(journals)  # a DDL waits half a second at most until the one before it is described
    statements = [change for [(change, _)] in _changes(journals)[-len(INDEXES) :]]
    assert {
        str(statement.sql): [
            (kind, state and state.table.key_columns)
            for kind, _, state in statement.table_changes or ()
        ]
        for statement in statements
    } == INDEXES


def test_snapshot_over_tcp_has_the_tables_and_rows_of_the_journals(
    shop: tuple[Any, Path], firebird4: Firebird4, engine_root: EmbeddedRoot
) -> None:
    connection, journals = shop
    types = {**TYPES, **dict.fromkeys(LITERALS, (None, ""))}
    declared = ", ".join(f"C{n} {sql}" for n, sql in enumerate(types))
    made = (
        "CREATE DOMAIN WORDS AS VARCHAR(20) CHARACTER SET UTF8 DEFAULT 'слова' NOT NULL",
        f"CREATE TABLE T (GONE INTEGER, ID INTEGER NOT NULL, {declared}, W WORDS,"
        " N NUMERIC(9, 2) DEFAULT 1.5 NOT NULL, I BIGINT GENERATED BY DEFAULT AS IDENTITY,"
        " TWICE COMPUTED BY (ID * 2), Z TIMESTAMP WITH TIME ZONE, A VARCHAR(3) [2, 0:1])",
        "ALTER TABLE T DROP GONE, ALTER W POSITION 1",
        "CREATE UNIQUE INDEX T_ID ON T (ID)",
    )
    for sql in made:
        connection.execute_immediate(sql)
        connection.commit()
    names = ", ".join(f"C{n}" for n in range(len(TYPES)))
    marks = ", ".join("?" * len(TYPES))
    cursor = connection.cursor()
    moment = "'2026-03-29 02:30 Europe/Prague'"
    cursor.execute(
        f"INSERT INTO T (ID, Z, A, {names}) VALUES (1, {moment}, ?, {marks})",
        ([["a", "b"], ["c", ""]], *(value for value, _ in TYPES.values())),
    )
    cursor.execute("INSERT INTO T (ID) VALUES (2)")
    connection.commit()
    captured = [each for each, _ in _changes(journals)[-1] if isinstance(each, RowChange)]
    how = DatabaseConnection(
        connection.dsn, "SYSDBA", firebird4.password, str(engine_root.client_library)
    )
    with open_window(how, {}) as window, SnapshotReader(how, window.number) as reader:
        found = read_tables(window.connection, window.holder.page_size, ["T"])["T"]
        assert found.table == replace(captured[0].table, number=0)
        assert definition_version(window.connection, "T")
        everything = reader.chunk(found, None, 2)
        assert everything.is_end
        some = reader.chunk(found, None, 1, condition="C11 = 'Ёж ' -- of WIN1251")
        assert (len(some.rows), some.is_end) == (1, True)
        selected = [row.values for row in reader.selected(found, "SELECT * FROM T ORDER BY ID")]
        texts = RowText(found.table)
        expected = [texts.row(change.after or ()) for change in captured]
        assert [texts.row(row.values) for row in everything.rows] == expected
        assert [texts.row(row.values) for row in some.rows] == expected[:1]
        assert [texts.row(row) for row in selected] == expected
        with pytest.raises(QueryRefused, match="table T where C11 ="):
            reader.chunk(found, None, 1, condition="C11 =")
        window.require_sound([reader.oldest])
