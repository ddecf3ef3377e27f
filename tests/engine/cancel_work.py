"""Cancels what a connection does, in the process that does it; for ``Client.perform``."""

from __future__ import annotations

import time
from threading import Thread

from firebird.driver import Connection, DatabaseError, connect
from firebird.driver.types import CancelType

_BUSY_S = 0.1  # of the thread's CPU time: the statement is at its slow function then
_CANCELLED = 335544794


def cancelled_insert(database: str, is_first: bool) -> int:
    """Cancel the insert of row 2, which must be slow, and insert row 3; each with a BLOB. Return
    how many calls were cancelled. ``is_first``: nothing was written by the connection before."""
    connection = connect(database, user="SYSDBA", charset="UTF8")
    cancelled = 0 if is_first else _insert(connection, 1)
    slow: list[int] = []
    connection.begin()
    thread = Thread(target=lambda: slow.append(_insert(connection, 2)))
    thread.start()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    while time.clock_gettime(clock) < _BUSY_S and thread.is_alive():
        time.sleep(0.001)
    connection._att.cancel_operation(CancelType.RAISE)
    thread.join()
    cancelled += slow[0] + _insert(connection, 3)
    connection.close()
    return cancelled


def _insert(connection: Connection, number: int) -> int:
    """Insert a row and commit; a call that is cancelled is made once more. Return how many were."""
    cancelled = 0
    for call in (
        lambda: connection.execute_immediate(f"INSERT INTO T VALUES ({number}, 'content')"),
        connection.commit,
    ):
        try:
            call()
        except DatabaseError as error:
            if _CANCELLED not in error.gds_codes:
                raise
            cancelled += 1
            call()
    return cancelled
