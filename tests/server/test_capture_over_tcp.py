"""The whole way on a Firebird 4 server: a client over TCP, the plugin, journals, Kafka."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from shared_folder import all_readers_in

from firebird_cdc.demo.events import read_topics
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.server, pytest.mark.kafka]


def _work(connection: Any) -> None:
    """Insert, update and delete; roll a savepoint and a whole transaction back."""
    cursor = connection.cursor()
    items = [(n, f"item {n}", Decimal(n) / 4) for n in range(1, 51)]
    cursor.executemany("INSERT INTO ITEM VALUES (?, ?, ?)", items)
    connection.commit()
    cursor.execute("UPDATE ITEM SET PRICE = PRICE * 2 WHERE MOD(ID, 3) = 0")
    connection.savepoint("doubtful")
    cursor.execute("DELETE FROM ITEM WHERE ID > 10")
    connection.rollback(savepoint="doubtful")
    connection.commit()
    cursor.execute("DELETE FROM ITEM WHERE MOD(ID, 5) = 0")
    connection.commit()
    cursor.execute("UPDATE ITEM SET NAME = 'never' WHERE ID = 1")
    cursor.execute("INSERT INTO ITEM VALUES (1000, 'never', 1)")
    connection.rollback()


def _rows_from_events(bootstrap: str, topic: str) -> dict[int, tuple[Any, ...]]:
    """Return the table that a topic's events add up to; an event that can't apply fails."""
    rows: dict[int, tuple[Any, ...]] = {}
    for key, envelope in read_topics(bootstrap, [topic])[topic]:
        payload = envelope["payload"]
        number = key["payload"]["ID"]
        before = payload["before"] and tuple(payload["before"].values())
        assert rows.get(number) == before, payload
        if payload["op"] == "d":
            del rows[number]
        else:
            rows[number] = tuple(payload["after"].values())
    return rows


def test_committed_changes_of_a_tcp_client_reach_kafka_and_add_up_to_the_table(
    firebird4: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    journals, archive = firebird4.install(broker.bootstrap, topic_prefix)
    firebird4.start()
    database = firebird4.create_database(client)
    with client.connect(firebird4.dsn(database)) as connection:
        _work(connection)
        cursor = connection.cursor()
        cursor.execute("SELECT ID, NAME, PRICE FROM ITEM")
        table = {row[0]: (row[0], row[1], str(row[2])) for row in cursor.fetchall()}
        connection.commit()

        topic = topic_of(REPLACE, topic_prefix, str(firebird4.inner(database)), "ITEM")

        def delivered() -> bool:
            return _rows_from_events(broker.bootstrap, topic) == table

        try:
            await_condition(f"the table's rows in {topic}", delivered, 60)
        except SetupError as error:
            pytest.fail(f"{error}\n{firebird4.evidence()}")
        # Acknowledged journals move to the archive, the shared one ten seconds after it was begun.
        await_condition("shipped journals to leave", lambda: not list(journals.glob("*.log*")), 120)
    sequence = []
    for journal in all_readers_in(archive):
        assert journal.stamp is not None
        assert journal.database == str(firebird4.inner(database))
        sequence.append(journal.stamp.sequence)
    assert len(table) == 40
    assert sorted(sequence) == list(range(1, len(sequence) + 1))
    assert len(sequence) >= 3

    asked = str(firebird4.inner(database))
    found = firebird4.command("check", "--server", "/", "--database", asked, check=False)
    findings = [line for line in found.splitlines() if not line.startswith(" ")]
    summary = findings.pop()
    # How full this machine's disk is is not the installation's doing; notes ask for nothing.
    wrong = [
        line for line in findings if not line.startswith("note: ") and "MiB left of" not in line
    ]
    assert not wrong, found
    assert ("warning" if "MiB left of" in found else "nothing is wrong") in summary
