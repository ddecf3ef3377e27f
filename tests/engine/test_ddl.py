"""DDL: its text, and the shapes that rows have before and after it."""

from __future__ import annotations

import pytest
from capture import Capture, Row, after

pytestmark = pytest.mark.engine


@pytest.fixture
def published(capture: Capture) -> Capture:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(10))")
    return capture


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
