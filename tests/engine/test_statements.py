"""Changes that come about otherwise than by a plain statement on the table itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from capture import Attachment, Capture
from exact import net, read

from firebird_cdc.journal.format import SequenceChange

pytestmark = pytest.mark.engine

TABLES = (
    "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(20), N INTEGER DEFAULT 7,"
    " TWICE COMPUTED BY (N * 2))",
    "CREATE TABLE CHILD (ID INTEGER NOT NULL PRIMARY KEY,"
    " C INTEGER REFERENCES T ON DELETE CASCADE ON UPDATE CASCADE,"
    " S INTEGER REFERENCES T ON DELETE SET NULL ON UPDATE CASCADE,"
    " D INTEGER DEFAULT 1 REFERENCES T ON UPDATE CASCADE"
    " ON DELETE SET DEFAULT)",
    "CREATE TABLE LOG (ID BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, TEXT VARCHAR(50))",
    "CREATE VIEW BY_TRIGGER AS SELECT ID, NAME FROM T",
    "CREATE TRIGGER V FOR BY_TRIGGER BEFORE INSERT OR UPDATE OR DELETE AS BEGIN"
    " IF (DELETING) THEN UPDATE T SET NAME = 'gone' WHERE ID = OLD.ID;"
    " ELSE UPDATE OR INSERT INTO T (ID, NAME) VALUES (NEW.ID, UPPER(NEW.NAME)); END",
    "CREATE VIEW PLAIN_VIEW AS SELECT ID, N FROM T WHERE N > 0 WITH CHECK OPTION",
    "CREATE TRIGGER L FOR T AFTER INSERT OR UPDATE OR DELETE AS BEGIN"
    " INSERT INTO LOG (TEXT) VALUES (COALESCE(OLD.NAME, '-') || ' ' || COALESCE(NEW.NAME, '-'));"
    " END",
    "CREATE GLOBAL TEMPORARY TABLE G (ID INTEGER, NAME VARCHAR(20)) ON COMMIT PRESERVE ROWS",
)
SHOWN = {
    "T": "SELECT ID, NAME, N FROM T",
    "CHILD": "SELECT * FROM CHILD",
    "LOG": "SELECT * FROM LOG",
}
STATEMENTS: dict[str, Sequence[str]] = {
    "merge": (
        "MERGE INTO T USING (SELECT 1 AS K FROM RDB$DATABASE UNION ALL"
        " SELECT 2 FROM RDB$DATABASE UNION ALL SELECT 50 FROM RDB$DATABASE) S ON T.ID = S.K"
        " WHEN MATCHED AND S.K = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET NAME = 'merged'"
        " WHEN NOT MATCHED THEN INSERT (ID, NAME) VALUES (S.K, 'new')"
        " WHEN NOT MATCHED BY SOURCE AND T.ID > 8 THEN UPDATE SET N = NULL",
    ),
    "update or insert": (
        "UPDATE OR INSERT INTO T (ID, NAME) VALUES (1, 'one')",
        "UPDATE OR INSERT INTO T (ID, NAME) VALUES (60, 'sixty')",
    ),
    "returning": (
        "INSERT INTO T (ID) VALUES (70) RETURNING N",
        "UPDATE T SET N = N + 1 WHERE ID < 4 RETURNING OLD.N, NEW.N",
        "DELETE FROM T WHERE ID > 5 RETURNING ID",
    ),
    "cascades": (
        "INSERT INTO CHILD SELECT ID, ID, ID, ID FROM T",
        "UPDATE T SET ID = 100 WHERE ID = 3",
        "UPDATE CHILD SET C = 1 WHERE MOD(ID, 2) = 0",
        "DELETE FROM T WHERE ID IN (4, 5, 6)",
    ),
    "many rows": ("INSERT INTO T SELECT A.ID * 10 + B.ID + 1000, A.NAME, B.N FROM T A, T B",),
    "views": (
        "INSERT INTO BY_TRIGGER VALUES (80, 'eighty')",
        "UPDATE BY_TRIGGER SET NAME = 'x' WHERE ID = 1",
        "DELETE FROM BY_TRIGGER WHERE ID = 2",
        "INSERT INTO PLAIN_VIEW VALUES (81, 1)",
        "UPDATE PLAIN_VIEW SET N = 5 WHERE ID = 3",
        "DELETE FROM PLAIN_VIEW WHERE ID = 4",
    ),
    "execute statement": (
        "EXECUTE BLOCK AS DECLARE I INT = 200; BEGIN WHILE (I < 205) DO BEGIN"
        " EXECUTE STATEMENT ('INSERT INTO T (ID, N) VALUES (?, ?)') (:I, :I * 2); I = I + 1; END"
        " EXECUTE STATEMENT 'DELETE FROM T WHERE ID = 202'; END",
    ),
    "cursor": (
        "EXECUTE BLOCK AS DECLARE I INT; BEGIN FOR SELECT ID FROM T INTO :I AS CURSOR K DO"
        " BEGIN IF (MOD(I, 3) = 0) THEN DELETE FROM T WHERE CURRENT OF K;"
        " ELSE UPDATE T SET N = :I WHERE CURRENT OF K; END END",
    ),
    "the same row again and again": (
        "INSERT INTO T (ID, N) VALUES (90, 0)",
        "UPDATE T SET N = 1, NAME = 'a' WHERE ID = 90",
        "UPDATE T SET N = 2, NAME = 'a' WHERE ID = 90",
        "DELETE FROM T WHERE ID = 90",
        "INSERT INTO T (ID, N) VALUES (90, 3)",
    ),
    "temporary tables": (
        "INSERT INTO G SELECT ID, NAME FROM T",
        "UPDATE G SET NAME = 'temporary'",
        "DELETE FROM G WHERE ID < 5",
        "INSERT INTO T (ID, NAME) SELECT ID + 300, NAME FROM G",
    ),
}


@pytest.fixture
def tables(capture: Capture) -> Attachment:
    capture.create(*TABLES)
    attachment = capture.attach()
    attachment.execute(
        "INSERT INTO T (ID, NAME) SELECT FIRST 10 ROW_NUMBER() OVER (), 'first' FROM RDB$TYPES"
    )
    attachment.commit()
    return attachment


@pytest.mark.leaks
def test_journals_add_up_to_the_tables(capture: Capture, tables: Attachment) -> None:
    for name, statements in STATEMENTS.items():
        before = len(capture.journals())
        for sql in statements:
            tables.execute(sql)
        tables.commit()
        journals = capture.journals()
        assert len(journals) == before + 1, name
        assert {c.table.name for c in journals[-1].rows} <= SHOWN.keys(), name
        for table, select in SHOWN.items():
            assert net(journals, table) == read(tables, select), (name, table)


def test_cascades_and_triggers_are_captured_as_row_changes(
    capture: Capture, tables: Attachment
) -> None:
    for row in ("1, 2, NULL, NULL", "2, NULL, 2, NULL", "3, NULL, NULL, 2"):
        tables.execute(f"INSERT INTO CHILD VALUES ({row})")
    tables.commit()
    tables.execute("DELETE FROM T WHERE ID = 2")
    tables.commit()
    changes = [(c.table.name, c.op, c.after and c.after[1:]) for c in capture.journals()[-1].rows]
    assert sorted(changes, key=str) == [
        ("CHILD", "d", None),
        ("CHILD", "u", (None, None, 1)),
        ("CHILD", "u", (None, None, None)),
        ("LOG", "c", ("first -",)),
        ("T", "d", None),
    ]


@pytest.mark.leaks
def test_values_of_sequences_and_identity_columns_are_captured(
    capture: Capture, tables: Attachment
) -> None:
    tables.script("CREATE SEQUENCE S", 'CREATE SEQUENCE "Счётчик" START WITH -5 INCREMENT BY -2')
    first = len(capture.journals())
    for sql in (
        "SELECT NEXT VALUE FOR S FROM RDB$DATABASE",
        "SELECT GEN_ID(S, 9223372036854775000) FROM RDB$DATABASE",
        'SELECT NEXT VALUE FOR "Счётчик" FROM RDB$DATABASE',
        "INSERT INTO LOG (TEXT) VALUES ('x')",
    ):
        tables.execute(sql)
        tables.commit()
    tables.script("ALTER SEQUENCE S RESTART WITH 40", "SET GENERATOR S TO 41")
    tables.execute(
        "EXECUTE BLOCK AS DECLARE I BIGINT; BEGIN I = GEN_ID(S, 1); I = GEN_ID(S, 1); END"
    )
    tables.commit()
    [last] = tables.execute("SELECT GEN_ID(S, 0) AS S FROM RDB$DATABASE")
    journals = capture.journals()[first:]
    values = [
        [(c.name, c.value) for c in journal.changes if isinstance(c, SequenceChange)]
        for journal in journals
    ]
    identity = values[3][0][0]
    assert identity.startswith("RDB$")
    assert values == [
        [("S", 1)],
        [("S", 9223372036854775001)],
        [("Счётчик", -5)],
        [(identity, 11)],
        [],
        [],
        [("S", last["S"])],
    ]
    assert [journal.statements for journal in journals[4:6]] == [
        ["ALTER SEQUENCE S RESTART WITH 40"],
        ["SET GENERATOR S TO 41"],
    ]
