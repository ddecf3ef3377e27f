"""Keys of tables are known as of the change, and nobody has to wait for us to let go of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # a client runs a function of this file, and has no such module
    from capture import Capture, Journal

pytestmark = pytest.mark.engine

TABLE = "CREATE TABLE T (ID INTEGER CONSTRAINT K PRIMARY KEY, TEXT CHAR(5))"


def _key(journal: Journal) -> list[str]:
    table = journal.rows[0].table
    return [table.columns[index].name for index in table.key_columns]


@pytest.mark.parametrize("mode", ["capture", "classic"])
def test_the_database_can_be_dropped_right_after_the_first_commit(
    mode: str, request: pytest.FixtureRequest
) -> None:
    capture: Capture = request.getfixturevalue(mode)
    capture.create(TABLE)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.commit()
    attachment.drop_database()
    assert not capture.database.exists()


def test_the_database_can_be_dropped_right_after_a_first_rollback(capture: Capture) -> None:
    capture.create(TABLE)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.rollback()
    attachment.drop_database()
    assert not capture.database.exists()
    assert not capture.committed()


@pytest.mark.parametrize(
    "ddl", ["ALTER TABLE T DROP CONSTRAINT K", "DROP TABLE T", "ALTER TABLE T ADD MORE INTEGER"]
)
def test_a_key_is_that_of_the_time_of_the_change(capture: Capture, ddl: str) -> None:
    capture.create(TABLE)
    client = capture.client()
    attachment, other = client.attach(capture.database), client.attach(capture.database)
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.commit()
    attachment.close()
    other.script(ddl)
    first = capture.journals()[0]
    assert _key(first) == ["ID"]
    assert first.brief() == [("c", None, {"ID": 1, "TEXT": "a    "})]


def test_row_before_an_alter_in_its_transaction_keeps_the_old_definition(capture: Capture) -> None:
    capture.create(TABLE, "CREATE TABLE U (ID INTEGER)")
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.immediate("ALTER TABLE T DROP CONSTRAINT K")
    attachment.commit()
    attachment.execute("INSERT INTO T VALUES (1, 'b')")
    attachment.commit()
    changed, after = capture.journals()
    assert (_key(changed), _key(after)) == (["ID"], [])


def test_many_tables_in_one_transaction_are_all_described(capture: Capture) -> None:
    tables = [f"T{number}" for number in range(150)]
    capture.create(*(f"CREATE TABLE {name} (ID INTEGER PRIMARY KEY)" for name in tables))
    attachment = capture.attach()
    for name in tables:
        attachment.execute(f"INSERT INTO {name} VALUES (1)")
    attachment.commit()
    [journal] = capture.journals()
    assert [change.table.name for change in journal.rows] == tables
    assert all(change.table.key_columns == (0,) for change in journal.rows)


def test_a_definition_that_was_cut_off_with_its_savepoint_is_asked_for_again(
    capture: Capture,
) -> None:
    capture.create(TABLE, "CREATE TABLE U (A INTEGER, B INTEGER PRIMARY KEY)")
    attachment = capture.attach()
    attachment.immediate("SAVEPOINT S")
    attachment.execute("INSERT INTO T VALUES (1, 'a')")
    attachment.immediate("ROLLBACK TO S")
    attachment.execute("INSERT INTO U VALUES (2, 3)")
    attachment.execute("INSERT INTO T VALUES (4, 'b')")
    attachment.commit()
    [journal] = capture.journals()
    assert journal.brief() == [
        ("c", None, {"A": 2, "B": 3}),
        ("c", None, {"ID": 4, "TEXT": "b    "}),
    ]
    assert [change.table.key_columns for change in journal.rows] == [(1,), (0,)]


def test_commit_in_an_exclusively_used_database_ends_without_a_wait(capture: Capture) -> None:
    capture.create(TABLE)
    tries = 0
    waited_s = 1.0
    # Refused at once, not waited for: that would take each time what a busy machine takes once.
    while waited_s >= 0.4 and tries < 20:
        tries += 1
        client = capture.client()
        waited_s = client.perform(Path(__file__), "_write_alone", str(capture.database), tries)
        journals = capture.journals()
        capture.end_clients()  # it would let no other in
    assert waited_s < 0.4
    assert [(_key(journal), journal.brief()) for journal in journals] == [
        (["ID"], [("c", None, {"ID": number + 1, "TEXT": "a    "})]) for number in range(tries)
    ]


def test_commit_before_a_drop_in_single_user_mode_is_published_without_keys(
    capture: Capture,
) -> None:
    """Nobody else could attach to read them, or how long a CHAR is, and nobody can any more."""
    capture.create(TABLE)
    capture.client().perform(Path(__file__), "_drop_alone", str(capture.database))
    [journal] = capture.journals()
    assert (_key(journal), journal.brief()) == ([], [("c", None, {"ID": 1, "TEXT": "a"})])


def _drop_alone(database: str) -> None:
    """Write in single-user mode, in the client's process, and drop the database."""
    from firebird.driver import ShutdownMethod, ShutdownMode, connect, connect_server

    with connect_server("", user="SYSDBA") as service:
        service.database.shutdown(
            database=database,
            mode=ShutdownMode.SINGLE,
            method=ShutdownMethod.DENY_ATTACHMENTS,
            timeout=0,
        )
        connection = connect(database, user="SYSDBA", charset="UTF8")
        connection.execute_immediate("INSERT INTO T VALUES (1, 'a')")
        connection.commit()
        connection.drop_database()


def _write_alone(database: str, number: int) -> float:
    """Write in single-user mode, in the client's process; return how long a commit took."""
    import time

    from firebird.driver import ShutdownMethod, ShutdownMode, connect, connect_server

    with connect_server("", user="SYSDBA") as service:
        service.database.shutdown(
            database=database,
            mode=ShutdownMode.SINGLE,
            method=ShutdownMethod.DENY_ATTACHMENTS,
            timeout=0,
        )
        connection = connect(database, user="SYSDBA", charset="UTF8")
        connection.execute_immediate(f"INSERT INTO T VALUES ({number}, 'a')")
        before = time.monotonic()
        connection.commit()
        waited_s = time.monotonic() - before
        connection.close()
        service.database.bring_online(database=database)
    return waited_s
