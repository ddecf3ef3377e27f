"""Work of a DBA on a database, through the engine's services; in a client process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firebird.driver import (
    Server,
    ShutdownMethod,
    ShutdownMode,
    SrvRestoreFlag,
    connect,
    connect_server,
)
from firebird.driver.core import DistributedTransactionManager
from firebird.driver.types import DbInfoCode


@contextmanager
def _services() -> Iterator[Server]:
    with connect_server("", user="SYSDBA") as server:
        yield server


def shut_down(database: str, mode: str, timeout_s: int) -> None:
    """Shut the database, by force once TIMEOUT_S is over."""
    with _services() as server:
        server.database.shutdown(
            database=database,
            mode=ShutdownMode[mode],
            method=ShutdownMethod.FORCED,
            timeout=timeout_s,
        )


def bring_online(database: str) -> None:
    with _services() as server:
        server.database.bring_online(database=database)


def back_up(database: str, backup: str) -> None:
    with _services() as server:
        server.database.backup(database=database, backup=backup)
        server.wait()


def restore(backup: str, database: str) -> None:
    """Restore in the place of the database."""
    with _services() as server:
        server.database.restore(backup=backup, database=database, flags=SrvRestoreFlag.REPLACE)
        server.wait()


def sweep(database: str) -> None:
    with _services() as server:
        server.database.sweep(database=database)


# ---- Two-phase commit ----------------------------------------------------------------------------


def limbo(database: str) -> list[int]:
    """Return the numbers of the transactions in limbo."""
    with connect(database, user="SYSDBA") as connection:
        return list(connection.info.get_info(DbInfoCode.LIMBO))


def commit_limbo(database: str, transaction: int) -> None:
    """As ``gfix -commit``: it resolves the other databases' parts as well."""
    with _services() as server:
        server.database.commit_limbo_transaction(database=database, transaction_id=transaction)


def end_limbo(database: str, transaction: int, commit: bool) -> None:
    """As a coordinator that comes back, in one database."""
    with connect(database, user="SYSDBA") as connection:
        again = connection._att.reconnect_transaction(transaction.to_bytes(4, "little"))
        if commit:
            again.commit()
        else:
            again.rollback()


def two_phases(databases: list[str], statements: list[str], decision: str) -> None:
    """Run statements in a transaction over several databases, and the first phase of its
    commit; then do what is written to the named pipe DECISION, or at once what it says."""
    connections = [connect(each, user="SYSDBA", charset="UTF8") for each in databases]
    transaction = DistributedTransactionManager(connections)
    transaction.begin()
    for connection in connections:
        with transaction.cursor(connection) as cursor:
            for statement in statements:
                cursor.execute(statement)
    transaction.prepare()
    then = Path(decision).read_text() if decision.startswith("/") else decision
    if then == "commit":
        transaction.commit()
    elif then == "rollback":
        transaction.rollback()
    else:  # leave; the driver must not touch again what is gone then
        for kept in (transaction, connections):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        for connection in connections:
            connection._att.detach()
        return
    for connection in connections:
        connection.close()
