"""Existing rows of a Firebird 4 server, read over TCP by the shipper that the server started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from firebird_cdc.demo.events import read_topics
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.server, pytest.mark.kafka]

_ROWS = 500

_T = TypeVar("_T")


def _configure(firebird4: Firebird4, *lines: str) -> None:
    file = firebird4.folder / "connector.yaml"
    text = file.read_text().replace("snapshot.mode: never\n", "")
    file.write_text(text + "".join(f"{line}\n" for line in lines))


def _credentials(firebird4: Firebird4) -> list[str]:
    password = firebird4.folder / "password"
    password.write_text("cage 7\n", "utf-8")
    firebird4.give_to_server(password)
    return [
        "database.hostname: localhost",
        f"database.port: {firebird4.port}",
        "database.user: CDC",
        f"database.password.file: {firebird4.inner(password)}",
    ]


def _fill(firebird4: Firebird4, client: Any) -> Path:
    """Make a database with rows that were there before its publication."""
    database = firebird4.folder / "shop.fdb"
    with client.create_database(firebird4.dsn(database)) as connection:
        for statement in (
            "CREATE TABLE ITEM (ID INTEGER PRIMARY KEY, NAME VARCHAR(40))",
            f"EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < {_ROWS}) DO"
            " BEGIN INSERT INTO ITEM VALUES (:I, 'old'); I = I + 1; END END",
            "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
            "ALTER DATABASE ENABLE PUBLICATION",
            "CREATE OR ALTER USER CDC PASSWORD 'cage 7'",
            "GRANT SELECT ON ITEM TO USER CDC",
        ):
            connection.execute_immediate(statement)
            connection.commit()
    return database


def _change(firebird4: Firebird4, client: Any, database: Path, first: int) -> None:
    with client.connect(firebird4.dsn(database), charset="UTF8") as connection:
        for number in range(first, first + 5):
            connection.execute_immediate(f"UPDATE ITEM SET NAME = 'new' WHERE ID = {number}")
            connection.commit()


def _await(firebird4: Firebird4, what: str, condition: Callable[[], _T]) -> _T:
    try:
        return await_condition(what, condition, 120)
    except SetupError as error:
        pytest.fail(f"{error}\n{firebird4.evidence()}")


def _states(journals: Path) -> list[dict[str, Any]]:
    found = (journals / ".firebird-cdc/snapshots").glob("*.json")
    return [json.loads(path.read_bytes()) for path in found]


def _table(bootstrap: str, topic: str) -> tuple[dict[int, str], list[str]]:
    """Return the last state of each row, and the operations."""
    rows, operations = {}, []
    for key, envelope in read_topics(bootstrap, [topic])[topic]:
        payload = envelope["payload"]
        rows[key["payload"]["ID"]] = payload["after"]["NAME"]
        operations.append(payload["op"])
    return rows, operations


@pytest.mark.parametrize("server_mode", ["Super", "Classic"])
def test_three_readers_of_a_user_with_select_alone_take_an_initial_snapshot(
    firebird4: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    journals, _ = firebird4.install(broker.bootstrap, topic_prefix)
    several = ("snapshot.max.threads: 3", "snapshot.fetch.size: 40")
    _configure(firebird4, *_credentials(firebird4), *several)
    firebird4.start()
    database = _fill(firebird4, client)
    _change(firebird4, client, database, 0)
    _await(
        firebird4,
        "the initial snapshot to end",
        lambda: any(state["past"] for state in _states(journals)),
    )
    _change(firebird4, client, database, 10)
    topic = topic_of(REPLACE, topic_prefix, str(firebird4.inner(database)), "ITEM")
    changed = {*range(5), *range(10, 15)}
    wanted = {number: "new" if number in changed else "old" for number in range(_ROWS)}
    _await(
        firebird4,
        f"all rows in {topic}",
        lambda: _table(broker.bootstrap, topic)[0] == wanted,
    )
    _, operations = _table(broker.bootstrap, topic)
    assert operations.count("r") == _ROWS
    assert operations.index("r") == 0
    [state] = _states(journals)
    assert [each["kind"] for each in state["past"]] == ["initial"]


def test_snapshot_is_owed_until_somebody_can_attach(
    firebird4: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    journals, _ = firebird4.install(broker.bootstrap, topic_prefix)
    # Without credentials the server itself reads, but runs no statements of the user's.
    _configure(firebird4, "database.initial.statements: SET BIND OF INT128 TO NATIVE")
    firebird4.start()
    database = _fill(firebird4, client)
    _change(firebird4, client, database, 0)
    topic = topic_of(REPLACE, topic_prefix, str(firebird4.inner(database)), "ITEM")
    _await(
        firebird4,
        "changes without the snapshot",
        lambda: set(_table(broker.bootstrap, topic)[0]) == set(range(5)),
    )
    [state] = _states(journals)
    assert [each["status"] for each in state["waiting"]] == ["owed"]
    config = str(firebird4.inner(firebird4.folder / "connector.yaml"))

    def status() -> str:
        told = firebird4.command("status", "--config", config, check=False)
        return told if "the initial snapshot is owed" in told else ""

    told = _await(firebird4, "the status to tell of it", status)
    assert "  snapshot initial " in told
    assert ": OWED, 0 rows" in told
    assert "all is well" not in told
    firebird4.stop()
    _configure(firebird4, *_credentials(firebird4))
    firebird4.start()
    _change(firebird4, client, database, 10)
    _await(
        firebird4,
        "the owed snapshot to end",
        lambda: any(state["past"] for state in _states(journals)),
    )
    wanted = {n: "new" if n in {*range(5), *range(10, 15)} else "old" for n in range(_ROWS)}
    _await(  # changes may come behind it
        firebird4, f"all rows in {topic}", lambda: _table(broker.bootstrap, topic)[0] == wanted
    )
    _, operations = _table(broker.bootstrap, topic)
    assert operations.count("r") == _ROWS
