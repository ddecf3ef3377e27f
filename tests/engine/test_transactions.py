"""Work that becomes a journal, and work that doesn't: commits, rollbacks, savepoints, handlers."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest
from capture import GIVES_UP_S, Capture, SqlError, either_form, fold, until
from effects import EFFECTS, assert_adds_up
from random_work import TABLES

pytestmark = [pytest.mark.engine, either_form]

_RANDOM_WORK = Path(__file__).with_name("random_work.py")


@pytest.fixture
def published(capture: Capture) -> Capture:
    """A published table T, whose key has to be positive, and a log that a trigger fills."""
    capture.create(
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY CHECK (ID > 0), N INTEGER)",
        "CREATE TABLE LOG_ (ID INTEGER)",
        "CREATE TRIGGER T_LOG FOR T BEFORE INSERT AS"
        " BEGIN IF (NEW.N = 99) THEN INSERT INTO LOG_ VALUES (NEW.ID); END",
    )
    return capture


def _keys(capture: Capture) -> list[list[tuple[str, int]]]:
    """Return operation and ID of each change, transaction by transaction."""
    return [
        [(op, (new or old or {})["ID"]) for op, old, new in journal.brief()]
        for journal in capture.journals()
    ]


def test_a_transaction_rolled_back_leaves_nothing(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    assert len(published.live()) == 1
    attachment.rollback()
    assert not published.live()
    attachment.execute("INSERT INTO T VALUES (2, 2)")
    attachment.commit()
    assert _keys(published) == [[("c", 2)]]


def test_a_savepoint_rolled_back_takes_its_changes_with_it(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    attachment.immediate("SAVEPOINT A")
    attachment.execute("INSERT INTO T VALUES (2, 2)")
    attachment.immediate("SAVEPOINT B")
    attachment.execute("UPDATE T SET N = 7")
    attachment.immediate("ROLLBACK TO SAVEPOINT B")
    attachment.execute("INSERT INTO T VALUES (3, 3)")
    attachment.immediate("RELEASE SAVEPOINT B ONLY")
    attachment.immediate("ROLLBACK TO SAVEPOINT A")
    attachment.execute("INSERT INTO T VALUES (4, 4)")
    attachment.immediate("SAVEPOINT C")
    attachment.execute("DELETE FROM T WHERE ID = 1")
    attachment.immediate("RELEASE SAVEPOINT A")
    attachment.commit()
    assert _keys(published) == [[("c", 1), ("c", 4), ("d", 1)]]
    assert fold(published.journals())["T"] == attachment.rows("T")


def test_a_table_first_seen_in_a_savepoint_rolled_back(published: Capture) -> None:
    attachment = published.attach()
    attachment.immediate("SAVEPOINT A")
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    attachment.immediate("ROLLBACK TO SAVEPOINT A")
    attachment.execute("INSERT INTO LOG_ VALUES (2)")
    attachment.execute("INSERT INTO T VALUES (3, 3)")
    attachment.commit()
    assert _keys(published) == [[("c", 2), ("c", 3)]]


def test_only_rolled_back_savepoints_make_no_journal(published: Capture) -> None:
    attachment = published.attach()
    attachment.immediate("SAVEPOINT A")
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    attachment.immediate("ROLLBACK TO SAVEPOINT A")
    attachment.commit()
    assert _keys(published) == []


def test_a_failing_statement_leaves_nothing_but_the_others_stay(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    with pytest.raises(SqlError, match="CHECK constraint"):
        attachment.execute("UPDATE T SET ID = ID - 1, N = 5")
    with pytest.raises(SqlError, match="PRIMARY or UNIQUE KEY"):
        attachment.execute(
            "INSERT INTO T SELECT 3 - RDB$RELATION_ID, 99 FROM RDB$RELATIONS"
            " WHERE RDB$RELATION_ID BETWEEN 0 AND 2 ORDER BY RDB$RELATION_ID"
        )
    attachment.execute("INSERT INTO T VALUES (5, 5)")
    attachment.commit()
    assert _keys(published) == [[("c", 1), ("c", 5)]]


def test_block_with_a_handled_error_captures_the_surviving_changes(published: Capture) -> None:
    attachment = published.attach()
    attachment.immediate(
        """EXECUTE BLOCK AS
        BEGIN
            INSERT INTO T VALUES (1, 99);
            BEGIN
                INSERT INTO T VALUES (2, 2);
                BEGIN
                    INSERT INTO T VALUES (3, 99);
                    INSERT INTO T VALUES (1, 1);
                END
            WHEN ANY DO
                INSERT INTO T VALUES (4, 4);
            END
            INSERT INTO T VALUES (5, 5);
        END"""
    )
    attachment.commit()
    [changes] = _keys(published)
    assert changes == [("c", 1), ("c", 1), ("c", 2), ("c", 4), ("c", 5)]  # the trigger's first
    assert fold(published.journals()) == {
        "T": attachment.rows("T"),
        "LOG_": attachment.rows("LOG_"),
    }


def test_commit_retaining_makes_two_journals(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    attachment.commit(retaining=True)
    attachment.execute("INSERT INTO T VALUES (2, 2)")
    attachment.commit()
    assert _keys(published) == [[("c", 1)], [("c", 2)]]
    first, second = published.journals()
    assert first.header.transaction < second.header.transaction


def test_changes_after_a_rollback_retaining_are_captured(published: Capture) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    attachment.rollback(retaining=True)
    attachment.execute("INSERT INTO T VALUES (2, 2)")
    attachment.commit(retaining=True)
    attachment.execute("INSERT INTO T VALUES (3, 3)")
    attachment.rollback(retaining=True)
    attachment.commit()
    assert _keys(published) == [[("c", 2)]]


def test_an_autonomous_transaction_is_one_of_its_own(published: Capture) -> None:
    attachment = published.attach()
    attachment.immediate(
        """EXECUTE BLOCK AS
        BEGIN
            INSERT INTO T VALUES (1, 1);
            IN AUTONOMOUS TRANSACTION DO INSERT INTO T VALUES (2, 2);
            INSERT INTO T VALUES (3, 3);
        END"""
    )
    attachment.rollback()
    attachment.immediate(
        """EXECUTE BLOCK AS
        BEGIN
            INSERT INTO T VALUES (4, 4);
            BEGIN
                IN AUTONOMOUS TRANSACTION DO
                BEGIN
                    INSERT INTO T VALUES (5, 5);
                    INSERT INTO T VALUES (-1, 0);
                END
            WHEN ANY DO INSERT INTO T VALUES (6, 6);
            END
        END"""
    )
    attachment.commit()
    assert _keys(published) == [[("c", 2)], [("c", 4), ("c", 6)]]
    assert fold(published.journals())["T"] == attachment.rows("T")


def test_a_commit_that_fails_leaves_nothing_until_it_works(published: Capture) -> None:
    attachment = published.attach()
    attachment.script("CREATE TABLE DOUBLE_ (ID INTEGER)")
    attachment.execute("INSERT INTO DOUBLE_ VALUES (1)")
    attachment.execute("INSERT INTO DOUBLE_ VALUES (1)")
    attachment.commit()
    done = len(published.journals())
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    attachment.immediate("CREATE UNIQUE INDEX DOUBLE_X ON DOUBLE_ (ID)")
    with pytest.raises(SqlError, match="duplicate"):
        attachment.commit()
    assert len(published.committed()) == done
    attachment.rollback()
    attachment.execute("INSERT INTO T VALUES (2, 2)")
    attachment.commit()
    last = published.journals()[done:]
    assert [(j.statements, j.brief()) for j in last] == [([], [("c", None, {"ID": 2, "N": 2})])]


def test_a_commit_that_fails_and_works_when_tried_again(published: Capture) -> None:
    attachment = published.attach()
    attachment.script("CREATE TABLE DOUBLE_ (ID INTEGER)")
    attachment.execute("INSERT INTO DOUBLE_ VALUES (1)")
    attachment.execute("INSERT INTO DOUBLE_ VALUES (1)")
    attachment.commit()
    done = len(published.journals())
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    index = "CREATE UNIQUE INDEX DOUBLE_X ON DOUBLE_ (ID)"
    attachment.immediate(index)
    with pytest.raises(SqlError, match="duplicate"):
        attachment.commit()
    attachment.execute("DELETE FROM DOUBLE_ ROWS 1")
    attachment.execute("INSERT INTO T VALUES (2, 2)")
    attachment.commit()
    [journal] = published.journals()[done:]
    assert journal.statements == [index]
    assert [row.op for row in journal.rows] == ["c", "d", "c"]
    folded = fold(published.journals())
    assert folded == {"T": attachment.rows("T"), "DOUBLE_": attachment.rows("DOUBLE_")}


def test_the_database_is_let_go_soon_after_a_commit_and_can_be_dropped(
    published: Capture,
) -> None:
    attachment = published.attach()
    attachment.execute("INSERT INTO T VALUES (1, 1)")
    attachment.commit()
    published.journals()  # awaits that all are confirmed

    def is_alone() -> bool:
        query = "SELECT COUNT(*) AS N FROM MON$ATTACHMENTS WHERE MON$SYSTEM_FLAG = 0"
        [row] = attachment.execute(query)
        attachment.commit()
        return bool(row["N"] == 1)

    until("our own attachment to be gone", is_alone)
    attachment.drop_database()
    assert not published.database.exists()
    published.end_clients()


def test_connections_that_come_and_go_leave_nothing_open(published: Capture) -> None:
    client = published.client()

    def files(end: str) -> list[str]:
        found = []
        for entry in Path(f"/proc/{client.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed between listing and reading
                found.append(str(entry.readlink()))
        own = [path for path in found if path.startswith(str(published.directory))]
        return [path for path in own if path.removesuffix(" (deleted)").endswith(end)]

    for number in range(1, 31):
        attachment = client.attach(published.database)
        attachment.execute("INSERT INTO T VALUES (?, 0)", number)
        if number % 3:
            attachment.commit()
        else:
            attachment.rollback()
        attachment.close()
    assert len(published.journals()) == 20
    until("no database to be open", lambda: not files(".fdb"))
    until("no journal to be open but those for later", lambda: len(files(".log.live")) <= 2)


def test_all_is_confirmed_when_an_attachment_leaves_right_after_its_commit(
    published: Capture,
) -> None:
    proven = 0
    for number in range(1, 21):
        client = published.client()
        attachment = client.attach(published.database)
        attachment.execute("INSERT INTO T VALUES (?, 0)", number)
        attachment.commit()
        published.clients.remove(client)
        began = time.monotonic()
        client.end()
        if published.live():  # promised is only to wait while something is done
            assert time.monotonic() - began >= GIVES_UP_S
            published.recover()
        else:
            proven += 1
        assert not published.live()
        assert len(published.committed()) == number
        if proven == 3:
            break
    assert proven == 3


def test_values_of_sequences_come_with_the_transaction(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (ID INTEGER GENERATED BY DEFAULT AS IDENTITY, N INTEGER)",
        "CREATE SEQUENCE S",
    )
    attachment = capture.attach()
    for _ in range(3):
        attachment.execute("INSERT INTO T (N) VALUES (NEXT VALUE FOR S)")
    attachment.commit()
    [journal] = capture.journals()
    values = [(c.name, c.value) for c in journal.changes if hasattr(c, "value")]
    assert ("S", 3) in values
    assert len(values) == 2  # S, and the identity column's own


def test_random_work_of_several_connections_adds_up(capture: Capture) -> None:
    capture.create(*TABLES, *EFFECTS)
    client = capture.client()
    committed = client.perform(_RANDOM_WORK, "work", str(capture.database), "s", 4, 40)
    assert committed == 4 * 40
    attachment = client.attach(capture.database)
    journals = capture.journals()
    assert 0 < len(journals) <= committed  # some change nothing in the end
    tables = ("ITEM", "LOG_", "EFFECTS")
    assert_adds_up(journals, {name: attachment.rows(name) for name in tables})


def test_random_work_of_several_processes_adds_up(classic: Capture) -> None:
    classic.create(*TABLES, *EFFECTS)
    clients = [classic.client() for _ in range(3)]
    for number, client in enumerate(clients):
        arguments = (str(classic.database), f"p{number}", 2, 15)
        client.start("perform", str(_RANDOM_WORK), "work", arguments)
    assert [client.finish() for client in clients] == [2 * 15] * 3
    attachment = classic.attach()
    journals = classic.journals()
    assert len({journal.header.owner for journal in journals}) == 3
    tables = ("ITEM", "LOG_", "EFFECTS")
    assert_adds_up(journals, {name: attachment.rows(name) for name in tables})


def test_processes_that_come_and_go_keep_one_sequence(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER)")
    chance = random.Random(3)
    open_ = []
    for number in range(6):
        if open_ and chance.random() < 0.5:
            leaving = open_.pop(0)
            classic.clients.remove(leaving)
            leaving.end()
        client = classic.client()
        attachment = client.attach(classic.database)
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
        open_.append(client)
    until("6 journals", lambda: len(classic.committed()) == 6)
    assert [keys for [(_, keys)] in _keys(classic)] == list(range(6))
