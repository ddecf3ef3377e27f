"""The canary of a shipper that the server has started, through the server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import SetupError

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.server, pytest.mark.kafka]

_PATIENCE_S = 120.0  # for a server and its shipper to start on a busy machine


def test_a_user_with_a_password_from_a_file_keeps_the_canary(
    firebird4: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    firebird4.install(broker.bootstrap, topic_prefix)
    database = firebird4.folder / "shop.fdb"
    password = firebird4.folder / "password"
    password.write_text("Käfig 7\n", "utf-8")
    firebird4.give_to_server(password)
    with (firebird4.folder / "connector.yaml").open("a") as options:
        options.write(
            f"connector.canary.tables: {firebird4.inner(database)}.CDC_CANARY\n"
            "connector.canary.interval.ms: 1000\n"
            "database.hostname: localhost\n"
            f"database.port: {firebird4.port}\n"
            "database.user: CDC\n"
            f"database.password.file: {firebird4.inner(password)}\n"
        )
    firebird4.start()
    firebird4.create_database(client)
    with client.connect(firebird4.dsn(database), charset="UTF8") as connection:
        for statement in (
            "CREATE OR ALTER USER CDC PASSWORD 'Käfig 7'",
            "CREATE TABLE CDC_CANARY (ID INTEGER NOT NULL PRIMARY KEY, WRITTEN_AT TIMESTAMP)",
            "ALTER DATABASE INCLUDE TABLE CDC_CANARY TO PUBLICATION",
            "GRANT SELECT, INSERT, UPDATE ON CDC_CANARY TO USER CDC",
            "INSERT INTO ITEM VALUES (1, 'the shipper starts with this', 1)",
        ):
            connection.execute_immediate(statement)
            connection.commit()

        def comes_out() -> bool:
            return "the canary's writes arrive in the journals" in firebird4.evidence()

        try:
            await_condition("the canary to arrive in the journals", comes_out, _PATIENCE_S)
        except SetupError as error:
            pytest.fail(f"{error}\n{firebird4.evidence()}")
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM CDC_CANARY")
        assert cursor.fetchone()[0] == 1
        connection.commit()
        connection.execute_immediate("DROP USER CDC")
        connection.commit()
