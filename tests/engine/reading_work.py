"""Work of a client process on a database that it reads for others at the same time."""

from __future__ import annotations

from typing import Any

from firebird.driver import (
    DatabaseError,
    ShutdownMethod,
    ShutdownMode,
    connect,
    connect_server,
)

from firebird_cdc.demo.processes import await_condition

_LET_GO_S = 60  # who reads there goes on for ever


def drop(database: str) -> list[str]:
    """Drop DATABASE, tried again and again as people do; return what failed attempts said."""
    connection: Any = connect(database, user="SYSDBA")
    failures: list[str] = []

    def is_dropped() -> bool:
        try:
            connection._att.drop_database()  # its own drop_database forgets the attachment
        except DatabaseError as error:
            failures.append(str(error))
            return False
        connection._att = None
        return True

    await_condition("the database to be dropped", is_dropped, _LET_GO_S, 0.5)
    return failures


def shut_down(database: str, method: str) -> None:
    """Shut DATABASE down as a whole, and bring it online again."""
    with connect_server("", user="SYSDBA") as service:
        service.database.shutdown(
            database=database,
            mode=ShutdownMode.FULL,
            method=ShutdownMethod[method],
            timeout=_LET_GO_S,
        )
        service.database.bring_online(database=database)
