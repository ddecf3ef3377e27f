"""DDL: its text, and the shapes that rows have before and after it."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from capture import Attachment, Capture, Row, SqlError, after

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import Element

pytestmark = pytest.mark.engine


@pytest.fixture
def published(capture: Capture) -> Capture:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(10))")
    return capture


def _columns(attachment: Attachment) -> list[str]:
    """Return the names of T's columns that are not computed, in order."""
    found = attachment.execute(
        "SELECT TRIM(R.RDB$FIELD_NAME) AS NAME FROM RDB$RELATION_FIELDS R"
        " JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE"
        " WHERE R.RDB$RELATION_NAME = 'T' AND F.RDB$COMPUTED_BLR IS NULL"
        " ORDER BY R.RDB$FIELD_POSITION"
    )
    attachment.commit()
    return [row["NAME"] for row in found]


def _rows(capture: Capture) -> list[Row | None]:
    return [after(change) for journal in capture.journals() for change in journal.rows]


def test_the_text_of_ddl_comes_as_it_was_written(published: Capture) -> None:
    attachment = published.attach()
    texts = (
        'CREATE  TABLE "Заметки" (ID INTEGER) /* жук */',
        "COMMENT ON TABLE T IS 'it''s one'",
        "CREATE SEQUENCE S START WITH 5",
        'DROP TABLE "Заметки"',
    )
    attachment.script(*texts)
    attachment.immediate("CREATE TABLE GONE (ID INTEGER)")
    attachment.rollback()
    assert [journal.statements for journal in published.journals()] == [[text] for text in texts]


def test_ddl_and_rows_of_one_transaction_keep_their_order(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.immediate("ALTER TABLE T ADD N INTEGER DEFAULT 7")
    attachment.execute("INSERT INTO T (ID) VALUES (2)")
    attachment.immediate("ALTER TABLE T DROP NAME")
    attachment.execute("INSERT INTO T (ID) VALUES (3)")
    attachment.commit()
    attachment.execute("INSERT INTO T (ID) VALUES (4)")
    attachment.commit()
    first, second = published.journals()
    assert [getattr(change, "op", "ddl") for change in first.changes] == [
        *("c", "ddl", "c", "ddl", "c")
    ]
    assert [change.pos for change in first.changes] == [1, 2, 3, 4, 5]
    assert second.brief() == [("c", None, {"ID": 4, "N": 7})]


def test_columns_added_renamed_retyped_and_dropped_between_transactions(
    published: Capture,
) -> None:
    attachment = published.attach()
    other = published.clients[0].attach(published.database)
    for number, (ddl, sql, row) in enumerate(
        (
            ("ALTER TABLE T ADD N INTEGER", "(ID, N)", {"NAME": None, "N": 5}),
            ("ALTER TABLE T ALTER N TO M", "(ID, M)", {"NAME": None, "M": 5}),
            ("ALTER TABLE T ALTER M TYPE BIGINT", "(ID, M)", {"NAME": None, "M": 5}),
            ("ALTER TABLE T ALTER M TYPE VARCHAR(20)", "(ID, M)", {"NAME": None, "M": "5"}),
            ("ALTER TABLE T DROP NAME", "(ID, M)", {"M": "5"}),
            ("ALTER TABLE T ADD NAME BOOLEAN", "(ID, M)", {"M": "5", "NAME": None}),
        )
    ):
        # The writer has seen the table as it was, the DDL is another attachment's.
        attachment.execute("INSERT INTO T (ID) VALUES (?)", 100 + number)
        attachment.commit()
        other.script(ddl)
        attachment.execute(f"INSERT INTO T {sql} VALUES (?, 5)", number)
        attachment.commit()
        assert _rows(published)[-1] == {"ID": number, **row}


def test_rows_from_before_a_new_column_have_its_default(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.commit()
    attachment.script("ALTER TABLE T ADD N INTEGER DEFAULT 7 NOT NULL")
    attachment.execute("UPDATE T SET NAME = 'b'")
    attachment.commit()
    assert published.last_rows() == [
        ("u", {"ID": 1, "NAME": "a", "N": 7}, {"ID": 1, "NAME": "b", "N": 7})
    ]


def test_ddl_of_another_process_is_seen(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER, NAME VARCHAR(10))")
    writer = classic.attach()
    writer.execute("INSERT INTO T VALUES (1, 'a')")
    writer.commit()
    changer = classic.attach()
    changer.script("ALTER TABLE T ALTER NAME TO TITLE")
    writer.execute("INSERT INTO T (ID, TITLE) VALUES (2, 'b')")
    writer.commit()
    assert _rows(classic) == [{"ID": 1, "NAME": "a"}, {"ID": 2, "TITLE": "b"}]


def test_a_key_added_later_is_known_at_the_next_change(published: Capture) -> None:
    attachment = published.attach()
    attachment.script("CREATE TABLE U (ID INTEGER NOT NULL, N INTEGER NOT NULL)")
    for ddl in (
        "ALTER TABLE U ADD CONSTRAINT K UNIQUE (N)",
        "ALTER TABLE U ADD CONSTRAINT P PRIMARY KEY (ID)",
        "ALTER TABLE U DROP CONSTRAINT P",
    ):
        attachment.execute("INSERT INTO U SELECT COUNT(*), COUNT(*) FROM U")
        attachment.commit()
        attachment.script(ddl)
    attachment.execute("INSERT INTO U SELECT COUNT(*), COUNT(*) FROM U")
    attachment.commit()
    tables = [change.table for journal in published.journals() for change in journal.rows]
    keys = [[table.columns[index].name for index in table.key_columns] for table in tables]
    assert keys == [[], ["N"], ["ID"], ["N"]]


def test_a_table_made_and_written_by_a_second_connection(published: Capture) -> None:
    published.attach()
    other = published.clients[0].attach(published.database)
    other.script("CREATE TABLE NEW_ (ID INTEGER NOT NULL PRIMARY KEY, X DOUBLE PRECISION)")
    other.execute("INSERT INTO NEW_ VALUES (1, 0.5)")
    other.commit()
    made, written = published.journals()
    assert made.statements == [
        "CREATE TABLE NEW_ (ID INTEGER NOT NULL PRIMARY KEY, X DOUBLE PRECISION)"
    ]
    assert [(c.table.name, c.table.key_columns, after(c)) for c in written.rows] == [
        ("NEW_", (0,), {"ID": 1, "X": 0.5})
    ]


def test_a_table_dropped_and_made_anew_under_its_name(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.commit()
    attachment.script("DROP TABLE T", "CREATE TABLE T (NAME INTEGER, ID VARCHAR(10))")
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.commit()
    assert _rows(published) == [{"ID": 1, "NAME": "a"}, {"NAME": 1, "ID": "a"}]


def test_ddl_that_is_rolled_back_leaves_rows_as_they_were(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.commit()
    row: Row | None = None
    for ddl in (
        "ALTER TABLE T ADD N INTEGER",
        "ALTER TABLE T ALTER NAME TYPE VARCHAR(20)",
        "DROP TABLE T",
    ):
        attachment.immediate(ddl)
        attachment.rollback()
        attachment.immediate(ddl)
        with suppress(SqlError):  # after a DROP, say
            attachment.execute("INSERT INTO T (ID) VALUES (2)")
        attachment.rollback()
        attachment.execute("UPDATE T SET NAME = NAME || 'b'")
        attachment.commit()
        [(op, _, row)] = published.last_rows()
        assert (op, row and row["ID"], row and len(row)) == ("u", 1, 2)
    assert row == {"ID": 1, "NAME": "abbb"}
    assert [journal.statements for journal in published.journals()] == [[], [], [], []]


# Each changes the format of new rows; those on disk stay as they were written.
ALTERATIONS = (
    "ALTER TABLE T ADD N SMALLINT",
    "ALTER TABLE T ALTER N TYPE INTEGER",
    "ALTER TABLE T ALTER N TYPE NUMERIC(18, 4)",
    "ALTER TABLE T ALTER NAME TYPE VARCHAR(300)",
    "ALTER TABLE T ADD D DATE DEFAULT DATE '2001-02-03' NOT NULL, ADD B BLOB",
    'ALTER TABLE T ALTER D TO "день"',
    "ALTER TABLE T ADD C CHAR(3) DEFAULT 'c' NOT NULL, ADD TWICE COMPUTED BY (N * 2)",
    "ALTER TABLE T DROP B",
    "ALTER DOMAIN WORDS TYPE VARCHAR(9)",
    "ALTER TABLE T ALTER N TYPE VARCHAR(30)",
)


def test_rows_in_old_formats_are_changed_and_deleted(capture: Capture) -> None:
    capture.create(
        "CREATE DOMAIN WORDS AS VARCHAR(5) CHARACTER SET UTF8",
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(10), W WORDS)",
    )
    attachment = capture.attach()
    other = capture.clients[0].attach(capture.database)
    for number, ddl in enumerate(("COMMENT ON TABLE T IS ''", *ALTERATIONS)):
        other.script(ddl)
        for i in range(3):
            attachment.execute(f"INSERT INTO T (ID, NAME, W) VALUES ({3 * number + i}, 'y', 'жук')")
            if number > 1:
                attachment.execute("UPDATE T SET N = ID WHERE N IS NULL AND ID > 2")
        attachment.commit()
    columns = ", ".join(f'"{name}"' for name in _columns(attachment))
    select = f"SELECT {columns} FROM T ORDER BY ID"
    seen = {row["ID"]: row for row in attachment.execute(select)}
    attachment.execute("UPDATE T SET NAME = NAME || 'z' WHERE MOD(ID, 3) < 2")
    changed = {row["ID"]: row for row in attachment.execute(select)}
    attachment.execute("DELETE FROM T")
    attachment.commit()
    found = capture.last_rows()
    updates = {old["ID"]: (old, new) for op, old, new in found if old and op == "u"}
    deletes = {old["ID"]: old for op, old, _ in found if old and op == "d"}
    assert len(updates) == 2 * (len(ALTERATIONS) + 1)
    assert updates == {number: (seen[number], changed[number]) for number in updates}
    assert deletes == changed


def test_a_change_that_another_process_makes_is_seen_at_once(classic: Capture) -> None:
    """Nothing but the record itself tells of these in time: types and lengths stay."""
    classic.create("CREATE TABLE T (ID INTEGER, A NUMERIC(9, 2), B NUMERIC(9, 2))")
    writer, changer = classic.attach(), classic.attach()
    writer.execute("INSERT INTO T VALUES (0, 1, 2)")
    writer.commit()
    changer.script("ALTER TABLE T ALTER A TO X, ALTER B TO A, ALTER X TO B")
    writer.execute("INSERT INTO T (ID, A, B) VALUES (1, 1, 2)")
    writer.commit()
    changer.script("ALTER TABLE T ALTER A TYPE NUMERIC(9, 1)")
    writer.execute("INSERT INTO T (ID, A, B) VALUES (2, 1, 2)")
    writer.commit()
    rows = [row for row in _rows(classic) if row]
    assert [(str(row["A"]), str(row["B"])) for row in rows] == [
        ("1.00", "2.00"),
        ("1.00", "2.00"),
        ("1.0", "2.00"),
    ]


@pytest.mark.parametrize("client", ["UTF8", "WIN1251", "NONE"])
def test_the_text_of_ddl_in_the_clients_character_set(published: Capture, client: str) -> None:
    attachment = published.client().attach(published.database, charset=client)
    name = "СПИСОК" if client != "NONE" else "PLAIN"
    texts = (
        f'RECREATE TABLE "{name}" ("{name}" VARCHAR(3) DEFAULT \'{name[:3]}\') -- {name}',
        f'CREATE OR ALTER VIEW "V{name}" AS\n\n\tSELECT * FROM "{name}"',
        f'ALTER TABLE "{name}" ADD N INTEGER',
        f'DROP VIEW "V{name}"',
        f'RECREATE TABLE "{name}" (N INTEGER)',
        "GRANT SELECT ON T TO PUBLIC",
    )
    attachment.script(*texts)
    nested = f'CREATE TABLE "{name}2" (ID INTEGER)'
    attachment.execute(f"EXECUTE BLOCK AS BEGIN EXECUTE STATEMENT '{nested}'; END")
    attachment.commit()
    attachment.execute(f'INSERT INTO "{name}2" VALUES (1)')
    attachment.commit()
    *journals, written = published.journals()
    assert [journal.statements for journal in journals] == [[text] for text in (*texts, nested)]
    assert [change.table.name for change in written.rows] == [f"{name}2"]


def test_ddl_of_400_kib_is_captured_whole(published: Capture) -> None:
    client = published.client()
    attachment = client.attach(published.database)
    body = "\n".join(f"  X = 'строка {number}';" for number in range(16_000))
    text = f"CREATE PROCEDURE P AS DECLARE X VARCHAR(50); BEGIN\n{body}\nEND"
    assert len(text.encode()) > 400 * 1024
    attachment.script(text, "ALTER PROCEDURE P AS BEGIN END")
    assert [journal.statements for journal in published.journals()] == [
        [text],
        ["ALTER PROCEDURE P AS BEGIN END"],
    ]


def test_rows_right_after_ddl_have_the_new_key(capture: Capture) -> None:
    capture.create("CREATE TABLE OTHER (ID INTEGER)")
    attachment = capture.attach()
    expected = []
    for ddl, key in (
        ("CREATE TABLE T (A INTEGER NOT NULL, B INTEGER NOT NULL, N INTEGER)", ""),
        ("ALTER TABLE T ADD CONSTRAINT K PRIMARY KEY (B, A)", "BA"),
        ("ALTER TABLE T DROP CONSTRAINT K, ADD CONSTRAINT K PRIMARY KEY (A)", "A"),
        ("ALTER TABLE T DROP CONSTRAINT K, ADD CONSTRAINT U UNIQUE (B)", "B"),
        ("ALTER TABLE T DROP CONSTRAINT U", ""),
        ("RECREATE TABLE T (A INTEGER NOT NULL PRIMARY KEY)", "A"),
    ):
        attachment.script(ddl)
        columns = _columns(attachment)
        marks = ", ".join("?" * len(columns))
        numbers = [len(expected)] * len(columns)
        attachment.execute(f"INSERT INTO T ({', '.join(columns)}) VALUES ({marks})", *numbers)
        attachment.commit()
        expected.append(list(key))
    tables = [c.table for j in capture.journals() for c in j.rows if c.table.name == "T"]
    assert [[t.columns[i].name for i in t.key_columns] for t in tables] == expected


def test_a_unique_index_is_the_key_of_a_table_that_has_no_other(capture: Capture) -> None:
    """The rule is that of Debezium: the first by name, active, of columns that are NOT NULL."""
    capture.create("CREATE TABLE OTHER (ID INTEGER)")
    attachment = capture.attach()
    expected = []
    for ddl, key in (
        ("CREATE TABLE T (A INTEGER NOT NULL, B INTEGER NOT NULL, N INTEGER)", ""),
        ("CREATE INDEX I0 ON T (A)", ""),
        ("CREATE UNIQUE INDEX I1 ON T (N)", ""),
        ("CREATE UNIQUE INDEX I2 ON T COMPUTED BY (A + 1)", ""),
        ("CREATE UNIQUE INDEX I3 ON T (B) WHERE B > 1000", ""),
        ("CREATE UNIQUE DESCENDING INDEX I5 ON T (B, A)", "BA"),
        ("CREATE UNIQUE INDEX I4 ON T (A)", "A"),
        ("ALTER INDEX I4 INACTIVE", "BA"),
        ("ALTER INDEX I4 ACTIVE", "A"),
        ("DROP INDEX I4", "BA"),
        ("ALTER TABLE T ADD CONSTRAINT U UNIQUE (A)", "A"),
        ("ALTER TABLE T DROP CONSTRAINT U", "BA"),
        ("ALTER TABLE T ALTER A DROP NOT NULL", ""),
    ):
        attachment.script(ddl)
        number = len(expected) + 1
        attachment.execute("INSERT INTO T VALUES (?, ?, ?)", number, number, number)
        attachment.commit()
        expected.append(list(key))
    tables = [c.table for j in capture.journals() for c in j.rows if c.table.name == "T"]
    assert [[t.columns[i].name for i in t.key_columns] for t in tables] == expected
    assert {t.key_kind for t in tables} == {0, 2}


def test_null_follows_what_another_transaction_made_of_a_column(published: Capture) -> None:
    """Nothing that a record shows of its table tells of that."""
    attachment = published.attach()
    other = published.clients[0].attach(published.database)
    attachment.script("ALTER TABLE T ADD N INTEGER DEFAULT 1 NOT NULL")
    attachment.execute("INSERT INTO T VALUES (1, 'a', 5)")
    other.script("ALTER TABLE T ALTER N DROP NOT NULL")
    attachment.execute("INSERT INTO T VALUES (2, 'b', NULL)")
    attachment.commit()
    published.end_clients()
    journal = published.journals()[-1]
    assert [after(change) for change in journal.rows] == [
        {"ID": 1, "NAME": "a", "N": 5},
        {"ID": 2, "NAME": "b", "N": None},
    ]
    assert [change.table.columns[2].nullable for change in journal.rows] == [False, True]
    published.write_config()
    rendered = Renderer(load_config(published.config), 1_000_000).journal(
        journal.header, journal.stamp, journal.database
    )
    told = []
    for change in journal.rows:
        (message,) = rendered.messages(change)
        event = json.loads(message.value or b"")
        row = next(field for field in event["schema"]["fields"] if field["field"] == "after")
        field = next(field for field in row["fields"] if field["field"] == "N")
        told.append((field["optional"], event["payload"]["after"]["N"]))
    assert told == [(False, 5), (True, None)]


def test_a_definition_tells_the_elements_of_arrays(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (A VARCHAR(3) [1:2, -1:4] CHARACTER SET UTF8, ID INTEGER PRIMARY KEY,"
        " N NUMERIC(9, 2) [5])",
        "ALTER TABLE T ALTER ID POSITION 1",
    )
    attachment = capture.attach()
    attachment.execute("INSERT INTO T (ID) VALUES (1)")
    attachment.commit()
    [change] = capture.journals()[0].rows
    assert [change.table.columns[i].name for i in change.table.order] == ["ID", "A", "N"]
    assert {column.name: column.element for column in change.table.columns} == {
        "A": Element(37, 0, 0, 12, 4, ((1, 2), (-1, 4))),
        "ID": None,
        "N": Element(8, 1, -2, 4, 0, ((1, 5),)),
    }
