"""Changes that are captured, and changes that are none of our business."""

from __future__ import annotations

import subprocess
import sys

import pytest
from capture import Capture

pytestmark = pytest.mark.engine


def test_tables_outside_the_publication_leave_nothing(capture: Capture) -> None:
    capture.create("CREATE TABLE IN_ (ID INTEGER)", "CREATE TABLE OUT_ (ID INTEGER)", publish=False)
    attachment = capture.attach()
    attachment.script(
        "ALTER DATABASE INCLUDE TABLE IN_ TO PUBLICATION", "ALTER DATABASE ENABLE PUBLICATION"
    )
    before = len(capture.journals())
    attachment.execute("INSERT INTO OUT_ VALUES (1)")
    attachment.commit()
    attachment.execute("INSERT INTO OUT_ VALUES (2)")
    attachment.execute("INSERT INTO IN_ VALUES (3)")
    attachment.commit()
    assert [journal.brief() for journal in capture.journals()[before:]] == [
        [("c", None, {"ID": 3})]
    ]


def test_system_and_temporary_tables_leave_nothing(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (ID INTEGER)",
        "CREATE GLOBAL TEMPORARY TABLE G (ID INTEGER) ON COMMIT PRESERVE ROWS",
        "CREATE EXCEPTION E 'x'",
    )
    attachment = capture.attach()
    attachment.execute("INSERT INTO G VALUES (1)")
    attachment.commit()
    attachment.execute("UPDATE G SET ID = 2")
    attachment.commit()
    assert capture.journals() == []
    attachment.script("COMMENT ON TABLE T IS 'x'")
    attachment.execute("DELETE FROM G")
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    assert [change.table.name for j in capture.journals() for change in j.rows] == ["T"]


def test_a_database_without_publication_is_left_alone(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER)", publish=False)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    attachment.script("CREATE TABLE U (ID INTEGER)")
    capture.end_clients()
    assert not list(capture.journal_directory.iterdir())
    assert not capture.log.exists()


def test_work_that_only_reads_makes_no_journal(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER)")
    attachment = capture.attach()
    attachment.execute("SELECT * FROM T")
    attachment.execute("UPDATE T SET ID = 1")
    attachment.execute("SELECT * FROM T WITH LOCK")
    attachment.commit()
    capture.end_clients()
    assert not capture.live()
    assert not capture.committed()


def test_two_databases_have_a_sequence_each(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER)")
    first = capture.database
    capture.database = first.with_name("другая.fdb")
    capture.create("CREATE TABLE T (ID INTEGER)")
    client = capture.client()
    attachments = {path: client.attach(path) for path in (first, capture.database)}
    for number in range(3):
        for attachment in attachments.values():
            attachment.execute("INSERT INTO T VALUES (?)", number)
            attachment.commit()
    capture.end_clients()
    found = capture.read_all()
    for path in attachments:
        own = [journal for journal in found if journal.database == str(path)]
        assert [journal.sequence for journal in own] == [1, 2, 3]
        assert [row["ID"] for j in own for _, _, row in j.brief() if row] == [0, 1, 2]


def test_the_statements_of_the_manual_choose_tables(capture: Capture) -> None:
    tables = ("T1", "T2", "T3", "TEST_TABLE", "TABLE11")
    capture.create(
        *(f"CREATE TABLE {table} (ID INTEGER, NOTE VARCHAR(20))" for table in tables), publish=False
    )
    seen, number = 0, 41
    for statement, captured in (
        ("ALTER DATABASE ENABLE PUBLICATION", ()),
        ("ALTER DATABASE INCLUDE TABLE TEST_TABLE TO PUBLICATION", ("TEST_TABLE",)),
        (
            "ALTER DATABASE INCLUDE TABLE T1, T2, T3 TO PUBLICATION",
            ("T1", "T2", "T3", "TEST_TABLE"),
        ),
        ("ALTER DATABASE EXCLUDE TABLE T1, T2, T3 FROM PUBLICATION", ("TEST_TABLE",)),
        ("ALTER DATABASE INCLUDE ALL TO PUBLICATION", tables),
        (
            "create table table24(f_id integer primary key, f_vchar varchar(100))",
            (*tables, "TABLE24"),
        ),
        ("ALTER DATABASE EXCLUDE ALL FROM PUBLICATION", ()),
    ):
        attachment = capture.attach()
        attachment.script(statement)
        tables = (*tables, "TABLE24") if "table24" in statement else tables
        number += 1
        for table in tables:
            attachment.execute(f"INSERT INTO {table} VALUES({number}, 'NEW VALUE')")
        attachment.commit()
        capture.end_clients()
        journals = capture.journals()
        rows = [change.table.name for journal in journals[seen:] for change in journal.rows]
        assert sorted(rows) == sorted(captured), statement
        seen = len(journals)


@pytest.mark.plain
def test_commands_enable_and_disable_capture_though_they_load_the_plugin_themselves(
    capture: Capture,
) -> None:
    def run(command: str, *words: str) -> str:
        argv = [sys.executable, "-m", "firebird_cdc", command, str(capture.database), *words]
        done = subprocess.run(
            [*argv, "--config", str(capture.config)],
            env=capture.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def insert(table: str, number: int = 1) -> None:
        attachment = capture.attach()
        attachment.execute(f"INSERT INTO {table} VALUES ({number})")
        attachment.commit()
        capture.end_clients()

    capture.create("CREATE TABLE T (ID INTEGER PRIMARY KEY)", publish=False)
    run("enable")
    insert("T")
    assert "T      ID   test." in run("tables")
    capture.client().attach(capture.database).script("CREATE TABLE U (ID INTEGER PRIMARY KEY)")
    capture.end_clients()
    run("disable", "--tables", "T")
    insert("U")
    run("disable")
    insert("T", 2)
    assert [change.table.name for j in capture.journals() for change in j.rows] == ["T", "U"]
