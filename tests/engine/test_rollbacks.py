"""Rollbacks of every kind: what the journals add up to is what the tables hold."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from capture import Attachment, Capture, Journal, SqlError, either_form, fold

pytestmark = [pytest.mark.engine, either_form]

_WORK = Path(__file__).with_name("transaction_work.py")

SCHEMA = (
    "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY CHECK (ID > 0), N INTEGER)",
    "CREATE TABLE LOG_ (ID INTEGER, WHAT VARCHAR(10))",
    "CREATE EXCEPTION UNLUCKY 'unlucky'",
    "CREATE PROCEDURE PUT (ID INTEGER, N INTEGER) AS BEGIN INSERT INTO T VALUES (:ID, :N); END",
    """CREATE PROCEDURE TRY_PUT (ID INTEGER, N INTEGER) AS
    BEGIN
        INSERT INTO LOG_ VALUES (:ID, 'try');
        BEGIN
            INSERT INTO LOG_ VALUES (:ID, 'undone');
            EXECUTE PROCEDURE PUT(:ID, :N);
        WHEN ANY DO
            INSERT INTO LOG_ VALUES (:ID, 'caught');
        END
    END""",
    """CREATE PROCEDURE WALK (FIRST_ INTEGER, LAST_ INTEGER) RETURNS (ID INTEGER) AS
    BEGIN
        ID = FIRST_;
        WHILE (ID <= LAST_) DO
        BEGIN
            INSERT INTO T VALUES (:ID, 0);
            SUSPEND;
            BEGIN
                INSERT INTO LOG_ VALUES (:ID, 'walked');
                IF (MOD(ID, 3) = 0) THEN INSERT INTO T VALUES (-1, 0);
            WHEN ANY DO
                INSERT INTO LOG_ VALUES (:ID, 'stumbled');
            END
            ID = ID + 1;
        END
    END""",
    # 7: a procedure with a handler, called from a trigger; 13: a trigger that raises
    """CREATE TRIGGER T_STORED FOR T AFTER INSERT OR UPDATE AS
    BEGIN
        INSERT INTO LOG_ VALUES (NEW.ID, 'stored');
        IF (NEW.N = 7) THEN
        BEGIN
            EXECUTE PROCEDURE TRY_PUT(NEW.ID + 100, 0);
            EXECUTE PROCEDURE TRY_PUT(NEW.ID + 100, 0);
        END
        IF (NEW.N = 13) THEN EXCEPTION UNLUCKY;
    END""",
    "CREATE TRIGGER T_GONE FOR T BEFORE DELETE AS"
    " BEGIN INSERT INTO LOG_ VALUES (OLD.ID, 'gone'); IF (OLD.N = 12) THEN EXCEPTION UNLUCKY; END",
)


@pytest.fixture
def published(capture: Capture) -> Capture:
    capture.create(*SCHEMA)
    return capture


def play(attachment: Attachment, script: str) -> None:
    """Run statements that are separated by blank lines. One that starts with ``!`` has to fail;
    COMMIT and ROLLBACK, with or without RETAIN, are the driver's."""
    for each in script.split("\n\n"):
        statement = each.strip()
        command, _, how = statement.partition(" ")
        if statement.startswith("!"):
            with pytest.raises(SqlError):
                _run(attachment, statement[1:])
        elif command == "COMMIT":
            attachment.commit(retaining=bool(how))
        elif command == "ROLLBACK" and how in ("", "RETAIN"):
            attachment.rollback(retaining=bool(how))
        elif statement:
            _run(attachment, statement)


def _run(attachment: Attachment, statement: str) -> None:
    if statement.startswith("EXECUTE BLOCK RETURNS"):  # all its rows are fetched
        attachment.execute(statement)
    else:
        attachment.immediate(statement)


def balance(capture: Capture, attachment: Attachment) -> list[Journal]:
    """Assert that the journals add up to the tables; return them."""
    journals = capture.journals()
    folded = fold(journals)
    for table in ("T", "LOG_"):
        assert folded.get(table, {}) == attachment.rows(table)
    return journals


def _kinds(journals: Iterable[Journal]) -> list[str]:
    """Return the operations of each journal."""
    return ["".join(row.op for row in journal.rows) for journal in journals]


SCRIPTS = {
    "savepoints, one in another": """
        SAVEPOINT A

        INSERT INTO T VALUES (1, 0)

        SAVEPOINT B

        INSERT INTO T VALUES (2, 0)

        SAVEPOINT C

        UPDATE T SET N = 1

        ROLLBACK TO SAVEPOINT B

        INSERT INTO T VALUES (3, 0)

        SAVEPOINT C

        DELETE FROM T WHERE ID = 1

        RELEASE SAVEPOINT C

        SAVEPOINT D

        DELETE FROM T

        ROLLBACK TO SAVEPOINT D

        COMMIT""",
    "rolled back from a depth, again and again": """
        SAVEPOINT A

        INSERT INTO T VALUES (1, 0)

        SAVEPOINT B

        INSERT INTO T VALUES (2, 0)

        SAVEPOINT C

        INSERT INTO T VALUES (3, 0)

        ROLLBACK TO SAVEPOINT A

        INSERT INTO T VALUES (4, 0)

        SAVEPOINT B

        INSERT INTO T VALUES (5, 0)

        SAVEPOINT C

        UPDATE T SET N = 5

        ROLLBACK TO SAVEPOINT A

        !ROLLBACK TO SAVEPOINT B

        INSERT INTO T VALUES (6, 0)

        ROLLBACK TO SAVEPOINT A

        INSERT INTO T VALUES (7, 0)

        COMMIT""",
    "the same name set again": """
        SAVEPOINT A

        INSERT INTO T VALUES (1, 0)

        SAVEPOINT A

        INSERT INTO T VALUES (2, 0)

        ROLLBACK TO SAVEPOINT A

        SAVEPOINT A

        INSERT INTO T VALUES (3, 0)

        SAVEPOINT A

        RELEASE SAVEPOINT A

        INSERT INTO T VALUES (4, 0)

        COMMIT""",
    "the last one released only": """
        SAVEPOINT A

        INSERT INTO T VALUES (1, 0)

        SAVEPOINT B

        INSERT INTO T VALUES (2, 0)

        RELEASE SAVEPOINT B ONLY

        INSERT INTO T VALUES (3, 0)

        !INSERT INTO T VALUES (3, 13)

        ROLLBACK TO SAVEPOINT A

        INSERT INTO T VALUES (4, 0)

        COMMIT""",
    "a middle one released only, and nothing rolled back": """
        SAVEPOINT A

        INSERT INTO T VALUES (1, 0)

        SAVEPOINT B

        INSERT INTO T VALUES (2, 0)

        SAVEPOINT C

        INSERT INTO T VALUES (3, 0)

        RELEASE SAVEPOINT B ONLY

        INSERT INTO T VALUES (4, 0)

        COMMIT""",
    "statements that fail": """
        INSERT INTO T VALUES (1, 0)

        INSERT INTO T VALUES (2, 12)

        !INSERT INTO T VALUES (2, 0)

        !INSERT INTO T VALUES (3, 13)

        !UPDATE T SET ID = ID - 1

        !UPDATE T SET N = ID + 11

        !DELETE FROM T

        !INSERT INTO T SELECT ID + 1, 0 FROM T

        UPDATE T SET N = 2 WHERE ID = 1

        COMMIT""",
    "a trigger's procedure with a handler": """
        INSERT INTO T VALUES (1, 7)

        SAVEPOINT A

        UPDATE T SET N = 7 WHERE ID = 1

        INSERT INTO T VALUES (2, 7)

        !INSERT INTO T VALUES (101, 7)

        ROLLBACK TO SAVEPOINT A

        UPDATE T SET N = 7

        COMMIT""",
    "handlers in handlers in a loop": """
        EXECUTE BLOCK AS DECLARE I INTEGER = 0;
        BEGIN
            WHILE (I < 12) DO
            BEGIN
                I = I + 1;
                BEGIN
                    INSERT INTO LOG_ VALUES (:I, 'outer');
                    BEGIN
                        INSERT INTO T VALUES (:I, IIF(MOD(:I, 2) = 0, 13, 0));
                        IF (MOD(I, 3) = 0) THEN INSERT INTO T VALUES (:I, 0);
                        INSERT INTO LOG_ VALUES (:I, 'both');
                    WHEN GDSCODE UNIQUE_KEY_VIOLATION DO
                    BEGIN
                        INSERT INTO LOG_ VALUES (:I, 'double');
                        IF (I = 9) THEN EXCEPTION UNLUCKY;
                    END
                    WHEN EXCEPTION UNLUCKY DO
                    BEGIN
                        INSERT INTO LOG_ VALUES (:I, 'unlucky');
                        IF (MOD(I, 4) = 0) THEN EXCEPTION;
                    END
                    END
                    INSERT INTO LOG_ VALUES (:I, 'done');
                WHEN ANY DO
                    INSERT INTO LOG_ VALUES (:I, 'last');
                END
            END
        END

        COMMIT""",
    "a loop left by an error in the middle": """
        INSERT INTO T VALUES (5, 0)

        !EXECUTE BLOCK AS DECLARE I INTEGER = 0;
        BEGIN
            WHILE (I < 9) DO
            BEGIN
                I = I + 1;
                INSERT INTO T VALUES (:I, 0);
                BEGIN
                    INSERT INTO T VALUES (:I, 0);
                WHEN GDSCODE UNIQUE_KEY_VIOLATION DO
                    IF (I = 4) THEN INSERT INTO T VALUES (:I, 13);
                END
            END
        END

        EXECUTE BLOCK AS
        BEGIN
            FOR SELECT ID FROM T AS CURSOR C DO
            BEGIN
                UPDATE T SET N = 1 WHERE CURRENT OF C;
                BEGIN
                    UPDATE T SET N = 13 WHERE CURRENT OF C;
                WHEN ANY DO
                    UPDATE T SET N = 2 WHERE CURRENT OF C;
                END
            END
        END

        COMMIT""",
    "a procedure that suspends": """
        EXECUTE BLOCK RETURNS (ID INTEGER) AS
        BEGIN
            FOR SELECT ID FROM WALK(1, 7) INTO :ID DO
            BEGIN
                BEGIN
                    UPDATE T SET N = 1 WHERE ID = :ID;
                    IF (MOD(ID, 2) = 0) THEN EXCEPTION UNLUCKY;
                WHEN ANY DO
                    INSERT INTO LOG_ VALUES (:ID, 'even');
                END
                SUSPEND;
            END
        END

        !INSERT INTO LOG_ SELECT ID, 'copied' FROM WALK(8, 12) WHERE 1 / (ID - 10) > -9

        INSERT INTO LOG_ SELECT ID, 'copied' FROM WALK(8, 12)

        !EXECUTE BLOCK RETURNS (ID INTEGER) AS
        BEGIN
            FOR SELECT ID FROM WALK(13, 15) INTO :ID DO
                IF (ID = 15) THEN EXCEPTION UNLUCKY; ELSE SUSPEND;
        END

        COMMIT""",
    "autonomous transactions": """
        INSERT INTO T VALUES (1, 0)

        SAVEPOINT A

        EXECUTE BLOCK AS
        BEGIN
            INSERT INTO T VALUES (2, 0);
            IN AUTONOMOUS TRANSACTION DO
            BEGIN
                INSERT INTO T VALUES (3, 0);
                IN AUTONOMOUS TRANSACTION DO INSERT INTO T VALUES (4, 7);
                BEGIN
                    IN AUTONOMOUS TRANSACTION DO INSERT INTO T VALUES (5, 13);
                WHEN ANY DO
                    INSERT INTO LOG_ VALUES (5, 'caught');
                END
            END
            BEGIN
                IN AUTONOMOUS TRANSACTION DO
                BEGIN
                    INSERT INTO T VALUES (6, 0);
                    IN AUTONOMOUS TRANSACTION DO INSERT INTO T VALUES (7, 0);
                    EXCEPTION UNLUCKY;
                END
            WHEN ANY DO
                INSERT INTO T VALUES (8, 0);
            END
            EXECUTE STATEMENT 'INSERT INTO T VALUES (9, 7)' WITH AUTONOMOUS TRANSACTION;
        END

        ROLLBACK TO SAVEPOINT A

        !EXECUTE BLOCK AS
        BEGIN
            INSERT INTO T VALUES (10, 0);
            IN AUTONOMOUS TRANSACTION DO INSERT INTO T VALUES (11, 0);
            EXCEPTION UNLUCKY;
        END

        INSERT INTO T VALUES (12, 0)

        ROLLBACK

        EXECUTE BLOCK AS
        BEGIN
            IN AUTONOMOUS TRANSACTION DO INSERT INTO T VALUES (13, 0);
        END

        ROLLBACK""",
    "retained many times": """
        INSERT INTO T VALUES (1, 0)

        COMMIT RETAIN

        COMMIT RETAIN

        SAVEPOINT A

        UPDATE T SET N = 1

        COMMIT RETAIN

        !ROLLBACK TO SAVEPOINT A

        UPDATE T SET N = 2

        ROLLBACK RETAIN

        ROLLBACK RETAIN

        SAVEPOINT A

        UPDATE T SET N = 3

        ROLLBACK TO SAVEPOINT A

        COMMIT RETAIN

        INSERT INTO T VALUES (2, 0)

        !INSERT INTO T VALUES (3, 13)

        COMMIT RETAIN

        DELETE FROM T

        ROLLBACK RETAIN

        UPDATE T SET N = 4

        COMMIT

        UPDATE T SET N = 5

        ROLLBACK RETAIN

        ROLLBACK""",
    "what is undone in its own transaction": """
        INSERT INTO T VALUES (1, 0)

        DELETE FROM T

        INSERT INTO T VALUES (1, 1)

        SAVEPOINT A

        UPDATE T SET N = 2

        UPDATE T SET N = 3

        DELETE FROM T

        INSERT INTO T VALUES (1, 4)

        ROLLBACK TO SAVEPOINT A

        UPDATE T SET N = 5

        !UPDATE T SET N = 13

        MERGE INTO T USING (SELECT 1 AS ID FROM RDB$DATABASE UNION SELECT 2 FROM RDB$DATABASE) S
        ON T.ID = S.ID
        WHEN MATCHED THEN UPDATE SET N = 6
        WHEN NOT MATCHED THEN INSERT VALUES (S.ID, 7)

        COMMIT""",
}


@pytest.mark.parametrize("undo", ["auto undo", "no auto undo"])
def test_scripts_of_rollbacks_add_up(published: Capture, undo: str) -> None:
    attachment = published.attach()
    for name, script in SCRIPTS.items():
        before = len(published.journals())
        attachment.begin(no_auto_undo=undo == "no auto undo")
        play(attachment, script)
        assert len(balance(published, attachment)) > before, name
        play(attachment, "UPDATE T SET N = 0\n\nDELETE FROM T\n\nDELETE FROM LOG_\n\nCOMMIT")


def test_transactions_at_once_of_one_attachment_are_captured_one_by_one(published: Capture) -> None:
    client = published.client()
    client.perform(_WORK, "several_at_once", str(published.database))
    attachment = client.attach(published.database)
    assert len(balance(published, attachment)) == 3


def test_changes_through_cursors_are_captured(published: Capture) -> None:
    client = published.client()
    client.perform(_WORK, "cursors", str(published.database))
    balance(published, client.attach(published.database))


def test_rollback_beneath_a_procedure_that_goes_on_is_captured(published: Capture) -> None:
    client = published.client()
    refusals = client.perform(_WORK, "savepoint_beneath_a_fetch", str(published.database))
    assert refusals == ["", "", ""]
    balance(published, client.attach(published.database))


def test_statements_restarted_by_the_engine_are_captured_once(published: Capture) -> None:
    client = published.client()
    met = client.perform(_WORK, "statements_that_restart", str(published.database))
    assert met == 2
    attachment = client.attach(published.database)
    journals = balance(published, attachment)
    assert len(journals) == 4


def test_rows_of_a_batch_are_captured(published: Capture) -> None:
    client = published.client()
    client.perform(_WORK, "batch", str(published.database))
    journals = balance(published, client.attach(published.database))
    assert [len(journal.rows) for journal in journals] == [81, 5]


@pytest.mark.parametrize("unruly", [False, True], ids=["in turn", "out of turn"])
def test_random_savepoints_add_up(published: Capture, unruly: bool) -> None:
    client = published.client()
    attachment = client.attach(published.database)
    committed = refused = 0
    for number in range(3):
        outcome = client.perform(_WORK, "gamble", str(published.database), f"{number}", 30, unruly)
        committed, refused = committed + outcome[0], refused + outcome[1]
        balance(published, attachment)
    assert committed > 50
    assert refused == 0 or unruly


@pytest.mark.parametrize("ended", ["RELEASE SAVEPOINT B ONLY", "SAVEPOINT B"])
def test_a_savepoint_ended_out_of_turn_is_refused_rather_than_recorded_wrongly(
    published: Capture, ended: str
) -> None:
    attachment = published.attach()
    play(
        attachment,
        f"""SAVEPOINT A

        INSERT INTO LOG_ VALUES (1, 'a')

        SAVEPOINT B

        INSERT INTO LOG_ VALUES (2, 'b')

        SAVEPOINT C

        INSERT INTO LOG_ VALUES (3, 'c')

        {ended}

        ROLLBACK TO SAVEPOINT A

        INSERT INTO LOG_ VALUES (4, 'a')""",
    )
    with pytest.raises(SqlError, match="released out of turn"):
        attachment.commit()
    attachment.rollback()
    play(attachment, "INSERT INTO LOG_ VALUES (5, 'last')\n\nCOMMIT")
    assert _kinds(balance(published, attachment)) == ["c"]


def test_large_transaction_mostly_outside_the_publication_is_captured(capture: Capture) -> None:
    """The engine gives up the transaction's own savepoint then, and tells nobody."""
    capture.create("CREATE TABLE T (ID INTEGER)", "CREATE TABLE UNSEEN (ID INTEGER)", publish=False)
    attachment = capture.attach()
    attachment.script(
        "ALTER DATABASE INCLUDE TABLE T TO PUBLICATION", "ALTER DATABASE ENABLE PUBLICATION"
    )
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.immediate("SAVEPOINT S")
    attachment.execute("INSERT INTO T VALUES (2)")
    attachment.immediate("ROLLBACK TO SAVEPOINT S")
    attachment.immediate(
        "EXECUTE BLOCK AS DECLARE I INT = 0; BEGIN WHILE (I < 200000) DO BEGIN"
        " INSERT INTO UNSEEN VALUES (:I); I = I + 1; END END"
    )
    attachment.execute("UPDATE T SET ID = 3")
    attachment.commit()
    capture.end_clients()
    [journal] = capture.journals()
    assert journal.brief() == [("c", None, {"ID": 1}), ("u", {"ID": 1}, {"ID": 3})]
