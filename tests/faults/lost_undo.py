"""Changes of rows that the engine makes by itself when several connections are at the same one.

It keeps changes that it undid. Undoing takes a version of a row away in VIO_backout (the engine's
vio.cpp). If that does not get a lock of the row at once, it returns, with the version in place and
no error, and nobody asks. Whoever meets a row that is being undone waits for that lock, and then
has it until his thread runs. If meanwhile the row is changed and undone again, that change stays,
and is committed: after a ROLLBACK TO SAVEPOINT, a ROLLBACK or a statement that failed.

And it takes back committed changes. Whoever checks a key for being unique (VIO_get_current), and
meets a row that is being undone, takes its transaction for dead if it has ended undoing by then,
and backs the version out. If the transaction has changed the row once more, that change is gone.

No plugin can be told of either. python tests/faults/lost_undo.py [--seconds 30] shows both on an
engine with nothing captured. How the tests tell it from what the plugin lost is in effects.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any


def _work(database: str, end: float, step: Callable[[Any, Any], None], wait_s: int) -> None:
    """Have one connection do STEP in transaction after transaction."""
    from firebird.driver import DatabaseError, Isolation, connect, tpb

    with connect(database, user="SYSDBA", charset="UTF8") as connection:
        transaction = connection.transaction_manager()
        while time.monotonic() < end:
            transaction.begin(tpb(Isolation.READ_COMMITTED_RECORD_VERSION, lock_timeout=wait_s))
            try:
                with transaction.cursor() as cursor:
                    step(transaction, cursor)
            except DatabaseError:
                pass  # a conflict
            finally:
                if transaction.is_active():
                    transaction.rollback()


def _together(
    database: str, seconds: float, *steps: tuple[Callable[[Any, Any], None], int]
) -> None:
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=_work, args=(database, end, *each)) for each in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _keeps_undone(database: str, seconds: float) -> list[str]:
    """Change rows and undo it, and return what is kept of that; runs in a server process."""
    from firebird.driver import connect

    def undo_to_savepoint(transaction: Any, cursor: Any) -> None:
        for _ in range(2):
            transaction.savepoint("S")
            cursor.execute("UPDATE ITEM SET N = N + 1 WHERE ID BETWEEN 11 AND 13")
            transaction.rollback(savepoint="S")
        transaction.commit()

    def roll_back(_transaction: Any, cursor: Any) -> None:
        cursor.execute("UPDATE ITEM SET N = N + 100 WHERE ID = 12")

    _together(database, seconds, (undo_to_savepoint, 1), (roll_back, 0), (roll_back, 0))
    with (
        connect(database, user="SYSDBA", charset="UTF8") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT ID, N, RDB$RECORD_VERSION FROM ITEM WHERE N <> ID * 1000")
        return [
            f"row {key} is {value} by transaction {number}, not {key}000, though all was undone"
            for key, value, number in cursor
        ]


def _takes_back(database: str, seconds: float) -> list[str]:
    """Commit changes, and return which of them are gone; runs in a server process."""
    found = []
    committed = count()

    def change(transaction: Any, cursor: Any) -> None:
        value, number = next(committed), transaction.info.id
        transaction.savepoint("S")
        cursor.execute("UPDATE ITEM SET N = -1, NOTE = 'blobs make undoing longer' WHERE ID = 12")
        transaction.rollback(savepoint="S")
        cursor.execute("UPDATE ITEM SET N = ?, NOTE = 'committed' WHERE ID = 12", (value,))
        transaction.commit()
        transaction.begin()
        cursor.execute("SELECT N, RDB$RECORD_VERSION FROM ITEM WHERE ID = 12")
        is_value, by = cursor.fetchone()
        if is_value != value:
            found.append(
                f"transaction {number} gave row 12 the value {value} and committed, and it is "
                f"{is_value} by transaction {by}"
            )

    def insert(_transaction: Any, cursor: Any) -> None:
        cursor.execute("INSERT INTO ITEM (ID) VALUES (12)")

    _together(database, seconds, (change, 1), *[(insert, 0)] * 4)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Show what the engine makes of rows by itself.")
    parser.add_argument("--seconds", type=float, default=30, help="of each of the two")
    seconds = parser.parse_args().seconds
    here = Path(__file__)
    sys.path[:0] = [str(here.parent), str(here.parents[1] / "engine"), str(here.parents[1])]
    import workload
    from capture import Client

    from firebird_cdc.demo.engine import EmbeddedRoot

    findings = []
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-lost-undo-") as temporary:
        directory = Path(temporary)
        root = EmbeddedRoot(directory / "engine", {"ServerMode": "Super", "DeadlockTimeout": "1"})
        for name in ("_keeps_undone", "_takes_back"):
            database = directory / f"{name}.fdb"
            client = Client(root.client_library, root.environment(), directory / "server.log")
            attachment = client.attach(database, create=True)
            attachment.script(
                *workload.TABLES,
                *(f"INSERT INTO ITEM (ID, N) VALUES ({key}, {key}000)" for key in (11, 12, 13)),
            )
            attachment.close()
            findings += client.perform(here, name, str(database), seconds)
            client.end()
    print("\n".join(findings) or "nothing found")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
