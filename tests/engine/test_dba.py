"""A DBA's work on a captured database: nothing of ours is in the way, right after a commit too."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture import Attachment, Capture, Client, SqlError, either_mode, fold, until

pytestmark = pytest.mark.engine

_DBA = Path(__file__).with_name("dba_work.py")
_TABLE = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)"
_OTHERS = (
    "SELECT COUNT(*) AS N FROM MON$ATTACHMENTS"
    " WHERE MON$SYSTEM_FLAG = 0 AND MON$ATTACHMENT_ID <> CURRENT_CONNECTION"
)

# What works here has to work with the plugin; the database that is not published shows that it
# is no matter of the engine. An instrument learns nothing from that one: none of it reaches us.
both_ways = pytest.mark.parametrize(
    "publish",
    [
        pytest.param(True, id="published"),
        pytest.param(False, id="not published", marks=pytest.mark.plain),
    ],
)


@pytest.fixture
def captured(request: pytest.FixtureRequest, mode: str, publish: bool) -> Capture:
    capture: Capture = request.getfixturevalue(mode)
    capture.create(_TABLE, publish=publish)
    return capture


def _insert(attachment: Attachment, number: int) -> None:
    attachment.execute("INSERT INTO T VALUES (?, 0)", number)
    attachment.commit()


def _neighbour(capture: Capture, client: Client, mode: str) -> Attachment:
    """Attach another time: from another process, where the mode allows it."""
    return (client if mode == "capture" else capture.client()).attach(capture.database)


def _service(client: Client, what: str, *arguments: object) -> None:
    client.perform(_DBA, what, *arguments)


def _decided(capture: Capture, count: int) -> None:
    until(f"{count} journals", lambda: len(capture.committed()) == count and not capture.live())


@both_ways
@either_mode
def test_shutdown_right_after_a_commit_succeeds_and_loses_nothing(
    captured: Capture, mode: str, publish: bool
) -> None:
    client = captured.client()
    for number in range(4):
        attachment = client.attach(captured.database)
        _insert(attachment, number)
        attachment.close()
        how = ("FULL", "SINGLE", "MULTI", "FULL")[number]
        _service(client, "shut_down", str(captured.database), how, 0)
        _service(client, "bring_online", str(captured.database))
    attachment = client.attach(captured.database)
    assert len(attachment.rows("T")) == 4
    _decided(captured, 4 * publish)
    assert not publish or fold(captured.journals())["T"] == attachment.rows("T")


@both_ways
@either_mode
def test_forced_shutdown_publishes_nothing_of_open_transactions(
    captured: Capture, mode: str, publish: bool
) -> None:
    client = captured.client()
    attachment, other = client.attach(captured.database), client.attach(captured.database)
    _insert(attachment, 1)
    attachment.execute("INSERT INTO T VALUES (2, 0)")
    other.execute("INSERT INTO T VALUES (3, 0)")
    _service(client, "shut_down", str(captured.database), "FULL", 0)
    with pytest.raises(SqlError):
        attachment.commit()
    _service(client, "bring_online", str(captured.database))
    attachment = client.attach(captured.database)
    _insert(attachment, 4)
    assert sorted(dict(row)["ID"] for row in attachment.rows("T")) == [1, 4]
    _decided(captured, 2 * publish)
    assert not publish or fold(captured.journals())["T"] == attachment.rows("T")


@both_ways
@either_mode
def test_exclusive_ddl_right_after_anothers_commit_succeeds(
    captured: Capture, mode: str, publish: bool
) -> None:
    client = captured.client()
    attachment = client.attach(captured.database)
    attachment.script("CREATE TABLE U (ID INTEGER NOT NULL)")
    statements = (
        "ALTER TABLE U ADD CONSTRAINT U_K PRIMARY KEY (ID)",
        "ALTER TABLE U ADD N INTEGER",
        "CREATE INDEX U_N ON U (N)",
        "ALTER TABLE U DROP CONSTRAINT U_K",
        "ALTER DATABASE SET LINGER TO 0",
        "DROP TABLE U",
    )
    for number, statement in enumerate(statements):
        other = _neighbour(captured, client, mode)
        other.execute("INSERT INTO U (ID) VALUES (?)", number)
        other.commit()
        other.close()
        attachment.begin(lock_timeout=0)
        attachment.immediate(statement)
        attachment.commit()


@both_ways
@either_mode
def test_backed_up_and_restored_in_its_place(captured: Capture, mode: str, publish: bool) -> None:
    client = captured.client()
    backup = captured.directory / "test.fbk"
    attachment = client.attach(captured.database)
    for number in range(1, 3):
        _insert(attachment, number)
        _service(client, "back_up", str(captured.database), str(backup))
        attachment.close()
        _service(client, "restore", str(backup), str(captured.database))
        attachment = client.attach(captured.database)
        assert len(attachment.rows("T")) == number
    _insert(attachment, 3)
    _decided(captured, 3 * publish)


@both_ways
@either_mode
def test_an_attachment_deleted_by_another(captured: Capture, mode: str, publish: bool) -> None:
    client = captured.client()
    victim = client.attach(captured.database)
    _insert(victim, 1)
    victim.execute("INSERT INTO T VALUES (2, 0)")
    dba = _neighbour(captured, client, mode)
    dba.execute("DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID <> CURRENT_CONNECTION")
    dba.commit()
    with pytest.raises(SqlError):
        victim.commit()

    def alone() -> bool:
        [row] = dba.execute(_OTHERS)
        dba.commit()
        return bool(row["N"] == 0)

    until("the attachment to be gone", alone)
    _insert(dba, 2)
    _decided(captured, 2 * publish)
    assert not publish or fold(captured.journals())["T"] == dba.rows("T")


@both_ways
def test_a_statement_deleted_by_another(classic: Capture, publish: bool) -> None:
    classic.create(_TABLE, publish=publish)
    client = classic.client()
    victim = client.attach(classic.database)
    victim.execute("INSERT INTO T VALUES (1, 0)")
    block = (
        "EXECUTE BLOCK AS DECLARE I INTEGER = 10; BEGIN WHILE (1 = 1) DO"
        " BEGIN INSERT INTO T VALUES (:I, 0); I = I + 1; END END"
    )
    client.start("execute", 1, block, None)
    dba = classic.attach()

    def deleted() -> bool:
        running = "MON$STATE = 1 AND MON$SQL_TEXT STARTING WITH 'EXECUTE BLOCK AS'"
        [row] = dba.execute(f"SELECT COUNT(*) AS N FROM MON$STATEMENTS WHERE {running}")
        dba.execute(f"DELETE FROM MON$STATEMENTS WHERE {running}")
        dba.commit()
        return bool(row["N"])

    until("the statement to run", deleted)
    with pytest.raises(SqlError, match="cancelled"):
        client.finish()
    victim.execute("INSERT INTO T VALUES (2, 0)")
    victim.commit()
    assert sorted(dict(row)["ID"] for row in victim.rows("T")) == [1, 2]
    assert not publish or fold(classic.journals())["T"] == dba.rows("T")


@both_ways
@either_mode
def test_statement_out_of_time_leaves_no_change_in_its_transaction(
    captured: Capture, mode: str, publish: bool
) -> None:
    attachment = captured.attach()
    _insert(attachment, 1)
    attachment.execute("INSERT INTO T VALUES (2, 0)")
    attachment.immediate("SET STATEMENT TIMEOUT 50 MILLISECOND")
    with pytest.raises(SqlError, match=r"timeout|cancelled"):
        attachment.immediate(
            "EXECUTE BLOCK AS DECLARE I INTEGER = 10; BEGIN WHILE (1 = 1) DO"
            " BEGIN INSERT INTO T VALUES (:I, 0); I = I + 1; END END"
        )
    attachment.immediate("SET STATEMENT TIMEOUT 0")
    attachment.execute("INSERT INTO T VALUES (3, 0)")
    attachment.commit()
    assert sorted(dict(row)["ID"] for row in attachment.rows("T")) == [1, 2, 3]
    _decided(captured, 2 * publish)
    assert not publish or fold(captured.journals())["T"] == attachment.rows("T")


@both_ways
@either_mode
def test_transaction_of_an_idle_attachment_is_not_published(
    captured: Capture, mode: str, publish: bool
) -> None:
    client = captured.client()
    idle = client.attach(captured.database)
    _insert(idle, 1)
    idle.execute("INSERT INTO T VALUES (2, 0)")
    idle.immediate("SET SESSION IDLE TIMEOUT 1 SECOND")  # from the end of this call on
    other = _neighbour(captured, client, mode)

    def alone() -> bool:
        [row] = other.execute(_OTHERS)
        other.commit()
        return bool(row["N"] == 0)

    until("the attachment to be gone", alone)
    with pytest.raises(SqlError):
        idle.commit()
    _insert(other, 2)
    _decided(captured, 2 * publish)
    assert not publish or fold(captured.journals())["T"] == other.rows("T")


@either_mode
def test_sweep_between_commits_loses_no_journal(request: pytest.FixtureRequest, mode: str) -> None:
    capture: Capture = request.getfixturevalue(mode)
    capture.create(_TABLE)
    client = capture.client()
    attachment = client.attach(capture.database)
    for number in range(10):
        _insert(attachment, number)
        attachment.execute("UPDATE T SET N = N + 1")
        attachment.rollback()
        _service(client, "sweep", str(capture.database))
    assert fold(capture.journals())["T"] == attachment.rows("T")
    assert len(capture.journals()) == 10


@either_mode
def test_no_attachment_of_the_connector_stays_open(
    request: pytest.FixtureRequest, mode: str
) -> None:
    capture: Capture = request.getfixturevalue(mode)
    capture.create(_TABLE, "CREATE TABLE U (ID INTEGER)")
    client = capture.client()
    attachment = client.attach(capture.database)
    watching = _neighbour(capture, client, mode)
    seen = []

    def others() -> int:
        [row] = watching.execute(_OTHERS)
        watching.commit()
        return int(row["N"])

    for number in range(1, 21):
        attachment.execute("INSERT INTO T VALUES (?, 0)", number)
        attachment.execute("INSERT INTO U VALUES (?)", number)
        attachment.commit()
        seen.append(others())
    assert seen == [1] * 20  # the one that writes
    _decided(capture, 20)
    assert others() == 1
    attachment.close()
    assert others() == 0


def test_commits_of_a_killed_client_are_decided_beside_another(classic: Capture) -> None:
    classic.create(_TABLE)
    stays = classic.attach()
    victim = classic.attach()
    _insert(victim, 1)
    victim.execute("INSERT INTO T VALUES (2, 0)")
    classic.clients.pop().kill()
    # The engine finds that the process holds its locks no more when one waits in vain.
    stays.execute("UPDATE T SET N = N + 1 WHERE ID = 1")
    _insert(stays, 3)
    _decided(classic, 2)
    assert fold(classic.journals())["T"] == stays.rows("T")


@pytest.mark.parametrize("leaves", [False, True], ids=["still attached", "left"])
def test_database_dropped_right_after_a_commit_has_it_published(
    capture: Capture, leaves: bool
) -> None:
    client = capture.client()
    for number in range(8):
        database = capture.directory / f"{number}.fdb"
        attachment = client.attach(database, create=True)
        attachment.script(
            _TABLE,
            "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
            "ALTER DATABASE ENABLE PUBLICATION",
        )
        _insert(attachment, number)
        if leaves:
            attachment.close()
            attachment = client.attach(database)
        attachment.drop_database()
        assert not database.exists()
        _decided(capture, number + 1)
