"""A transaction whose commit mark is held back while others go on, within one server process.

Run in a client process (``Client.perform``) with hold_mark.c preloaded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from firebird.driver import Connection, DatabaseError, TransactionManager, connect, tpb
from firebird.driver.types import Isolation

sys.path.insert(0, str(Path(__file__).parent))

from transaction_pages import oldest_interesting

_FAILS = "CREATE UNIQUE INDEX T_N ON T (N)"  # in its commit, after the plugin's prepare
_MOST_STARTS = 20
_kept: list[object] = []  # open to the end of the process


def overtake(database: str, hold: str, is_undone: bool) -> int:
    """Have a transaction come to the write of its commit mark, which stays there, and the OIT
    in the file's header pass it; return its number.

    It inserts 101, and two that are committed before it 102 and 103. IS_UNDONE: its commit fails
    after the plugin's prepare, and what is held is the mark of its rollback.
    """
    held, *others = (connect(database, user="SYSDBA", charset="UTF8") for _ in range(3))
    transaction = _insert(held, 101)
    with transaction.cursor() as cursor:
        (number,) = cursor.execute("SELECT CURRENT_TRANSACTION FROM RDB$DATABASE").fetchone()
    for key, other in enumerate(others, 102):
        _insert(other, key).commit()
    end: Callable[[], None] = transaction.commit
    if is_undone:
        transaction.execute_immediate(_FAILS)
        _fail(transaction)
        end = transaction.rollback
    Path(hold).touch()
    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    _kept.extend((held, others, transaction, thread))
    while not Path(f"{hold}.held").exists():
        thread.join(0.001)
    # A start computes the OIT from what the engine has in memory; the next one writes it.
    for _ in range(_MOST_STARTS):
        later = others[0].transaction_manager()
        later.begin(tpb(Isolation.READ_COMMITTED_RECORD_VERSION))
        _kept.append(later)
        with Path(database).open("rb") as file:
            if oldest_interesting(file.read(1024)) > number:
                break
    return int(number)


def _insert(connection: Connection, key: int) -> TransactionManager:
    transaction = connection.transaction_manager()
    transaction.begin(tpb(Isolation.READ_COMMITTED_RECORD_VERSION))
    with transaction.cursor() as cursor:
        cursor.execute("INSERT INTO T VALUES (?, 7)", (key,))
    return transaction


def _fail(transaction: TransactionManager) -> None:
    try:
        transaction.commit()
    except DatabaseError:
        return
    raise AssertionError("the commit did not fail")
