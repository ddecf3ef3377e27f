"""Tables in the text of DDL, and the records where the journal says no more."""

from __future__ import annotations

from uuid import UUID

import pytest

from firebird_cdc.journal.events.schema_changes import KEY, SchemaChanges, value_schema
from firebird_cdc.journal.events.versions import TODAY
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    Header,
    Stamp,
    Storage,
    Table,
    TableChange,
    TableState,
    Undecodable,
)
from firebird_cdc.journal.format.ddl_text import (
    PublicationClause,
    Statement,
    parse,
    publication_clauses,
)
from firebird_cdc.journal.replay.source.ddl import read_statement

HEADER = Header(UUID(int=9), 47, 1, UUID(int=7), UUID(int=5))
STAMP = Stamp(0, 3, 1_772_438_412_004_000, 2, 2000, 1, 47)


@pytest.mark.parametrize(
    ("sql", "statement"),
    [
        ("create table a(b int)", Statement("CREATE", "TABLE", "A")),
        (
            '/* x */ -- y "\n RECREATE GLOBAL TEMPORARY TABLE "a ""b  " (x int)',
            Statement("CREATE", "TABLE", 'a "b', is_recreated=True),
        ),
        ("ALTER\tTABLE\tT$1\tADD X INT", Statement("ALTER", "TABLE", "T$1")),
        ("drop/**/table if exists x", Statement("DROP", "TABLE", "X")),
        ("CREATE TABLE IF NOT EXISTS x (A INT)", Statement("CREATE", "TABLE", "X")),
        ("DROP TABLE IF", Statement("DROP", "TABLE", "IF")),
        (
            'CREATE UNIQUE DESCENDING INDEX I ON "t"(a)',
            Statement("CREATE", "INDEX", "I", table="t"),
        ),
        ("alter index i inactive", Statement("ALTER", "INDEX", "I")),
        ("DROP INDEX I", Statement("DROP", "INDEX", "I")),
        ("ALTER DOMAIN D TYPE BIGINT", Statement("ALTER", "DOMAIN", "D")),
        ("ALTER DOMAIN D SET DEFAULT 'TO X'", Statement("ALTER", "DOMAIN", "D")),
        (
            'alter domain d to "e" drop not null',
            Statement("ALTER", "DOMAIN", "D", renamed="e"),
        ),
        ("ALTER DOMAIN D TO E", None),
        ("ALTER DOMAIN D ADD CHECK (VALUE > 0 AND (SET DEFAULT TYPE))", None),
        ("ALTER DOMAIN D DROP CONSTRAINT", None),
        ("CREATE DOMAIN D AS INTEGER", None),
        ("CREATE OR ALTER VIEW V AS SELECT * FROM T", None),
        ("GRANT SELECT ON TABLE T TO PUBLIC", None),
        ("COMMENT ON TABLE T IS 'DROP TABLE T'", None),
        ("CREATE TABLE", None),
        ("/* DROP TABLE T", None),
        ("", None),
    ],
)
def test_table_of_a_statement_is_recognised(sql: str, statement: Statement | None) -> None:
    assert parse(sql) == statement


def _entries(change: DdlChange, *left_out: str) -> list[tuple[str, str]] | None:
    """Type and id of the entries of the record of CHANGE; None: there is no record."""
    maker = SchemaChanges("p", "p", lambda _, table: table not in left_out)
    record = maker.record(change, HEADER, STAMP, "/d/x.fdb")
    if record is None:
        return None
    assert (record.key_schema, record.value_schema) == (KEY, value_schema(TODAY))
    return [(entry["type"], entry["id"]) for entry in record.value["tableChanges"]]


@pytest.mark.parametrize(
    ("sql", "clauses"),
    [
        ("ALTER DATABASE ENABLE PUBLICATION", [("ENABLE",)]),
        ("/* a */ alter database -- b\n disable/**/publication", [("DISABLE",)]),
        ("ALTER DATABASE INCLUDE ALL TO PUBLICATION", [("INCLUDE",)]),
        (
            'ALTER DATABASE INCLUDE TABLE A, "b, ""c" /* , D */ TO PUBLICATION',
            [("INCLUDE", ("A", 'b, "c'))],
        ),
        (
            "ALTER DATABASE EXCLUDE TABLE ENABLE FROM PUBLICATION SET LINGER TO 5"
            " EXCLUDE TABLE B FROM PUBLICATION DISABLE PUBLICATION",
            [("EXCLUDE", ("ENABLE",)), ("EXCLUDE", ("B",)), ("DISABLE",)],
        ),
        ("ALTER TABLE t ENABLE PUBLICATION", [("INCLUDE", ("T",))]),
        ('alter table "t" add n int, disable  publication', [("EXCLUDE", ("t",))]),
        (
            "CREATE TABLE T (A INT) SQL SECURITY INVOKER DISABLE PUBLICATION",
            [("EXCLUDE", ("T",))],
        ),
        ("RECREATE TABLE T (A INT) ENABLE PUBLICATION", [("INCLUDE", ("T",))]),
        ("ALTER TABLE T ALTER PUBLICATION TO ENABLE", []),
        ('ALTER TABLE T ADD ENABLE INT DEFAULT 5, DROP "ENABLE PUBLICATION"', []),
        ("ALTER TABLE T ADD N INT /* ENABLE PUBLICATION */", []),
        ("ALTER DATABASE SET LINGER TO 5 -- disable publication", []),
        ("ALTER DATABASE ADD FILE 'disable publication'", []),
        ("COMMENT ON TABLE T IS 'alter database disable publication'", []),
        ("CREATE PROCEDURE P AS BEGIN EXECUTE STATEMENT 'x ENABLE PUBLICATION'; END", []),
        ("ALTER DATABASE", []),
        ("PUBLICATION", []),
    ],
)
def test_publication_clauses_of_a_statement_are_found(
    sql: str, clauses: list[tuple[str] | tuple[str, tuple[str, ...]]]
) -> None:
    assert list(publication_clauses(sql)) == [PublicationClause(*clause) for clause in clauses]


@pytest.mark.parametrize(
    ("sql", "entries"),
    [
        ("DROP TABLE T", [("DROP", '"/d/x.fdb"."T"')]),
        ("ALTER TABLE T ADD N INTEGER", []),  # the statement goes out, no structure is known
        ("DROP INDEX I", None),  # of which table, and was it the key?
        ("ALTER DOMAIN D TYPE BIGINT", None),
        ("GRANT SELECT ON T TO PUBLIC", None),
    ],
)
def test_statement_without_recorded_table_changes_is_read_from_its_text(
    sql: str, entries: list[tuple[str, str]] | None
) -> None:
    assert _entries(DdlChange(1, sql)) == entries
    assert _entries(DdlChange(1, sql), "T") is None
    assert _entries(DdlChange(1, sql, ())) is None


def test_tables_that_are_not_captured_are_left_out() -> None:
    column = Column("N", 496, 0, 0, 4, 0, 0, 0, True, False, 0, Storage.INTEGER)
    changes = tuple(
        TableChange(
            "ALTER", name, TableState(Table(0, name, 0, (column,)), "UTF8", (False,), (None,))
        )
        for name in ('A"', "B")
    )
    ddl = DdlChange(1, "ALTER DOMAIN D TYPE BIGINT", changes)
    first, second = ("ALTER", '"/d/x.fdb"."A"""'), ("ALTER", '"/d/x.fdb"."B"')
    assert _entries(ddl) == [first, second]
    assert _entries(ddl, 'A"') == [second]
    assert _entries(ddl, 'A"', "B") is None


def test_a_text_that_can_not_be_decoded_is_shown_as_far_as_it_goes() -> None:
    maker = SchemaChanges("p", "p", lambda *_: True)
    sql = Undecodable(b"DROP TABLE T -- \xff", 0)
    record = maker.record(DdlChange(1, sql), HEADER, STAMP, "/d/x.fdb")
    assert record is not None
    assert record.value["ddl"] == "DROP TABLE T -- \ufffd"


@pytest.mark.parametrize(
    ("sql", "subject"),
    [
        ('recreate table "a  " (x int)', ("recreate table", "a")),
        ('ALTER TABLE"T"ADD X INT', ("alter table", "T")),
        ("DROP TABLE T", ("drop table", "T")),
        ("ALTER TABLE T ENABLE PUBLICATION", ("publication", "T")),
        ("CREATE TABLE T (A INT) ENABLE PUBLICATION", ("create table", "T")),
        ("ALTER DATABASE INCLUDE TABLE T TO PUBLICATION", ("publication", None)),
        ("CREATE INDEX I ON T (A)", (None, None)),
        ("GRANT SELECT ON T TO PUBLIC", (None, None)),
    ],
)
def test_statement_is_classified_for_a_replay(
    sql: str, subject: tuple[str | None, str | None]
) -> None:
    assert read_statement(sql) == subject
