"""Work of several connections that collide, change their minds and give up, from a seed.

Runs in a client process. Which transactions collide is chance, so what is asked for is a number of
them that are committed, and not a number of tries.
"""

from __future__ import annotations

import random
import threading

from firebird.driver import (
    Connection,
    Cursor,
    DatabaseError,
    Isolation,
    TransactionManager,
    connect,
    load_api,
    tpb,
)

TABLES = (
    "CREATE TABLE ITEM (ID INTEGER NOT NULL PRIMARY KEY, N BIGINT, PRICE NUMERIC(9, 2),"
    " NAME VARCHAR(40) CHARACTER SET UTF8, NOTE BLOB SUB_TYPE TEXT CHARACTER SET UTF8)",
    "CREATE TABLE LOG_ (N INTEGER, TEXT CHAR(12))",
)
_KEYS = 30
_NAMES = ("Łódź", "жук", "", "a" * 40, None)
_READ_COMMITTED = Isolation.READ_COMMITTED_RECORD_VERSION


def work(database: str, seed: str, connections: int, commits: int) -> int:
    """Have CONNECTIONS threads commit COMMITS transactions each; return how many that were."""
    committed = [0] * connections

    def run(number: int) -> None:
        connection = connect(database, user="SYSDBA", charset="UTF8")
        try:
            committed[number] = _work_alone(connection, random.Random(f"{seed}/{number}"), commits)
        finally:
            connection.close()

    load_api()  # else the first of several threads does, and the others find half of it
    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(committed)


def _work_alone(connection: Connection, chance: random.Random, commits: int) -> int:
    committed = 0
    transaction = connection.transaction_manager()
    while committed < commits:
        # Seconds; 0: give up at once where another connection is at work.
        transaction.begin(tpb(_READ_COMMITTED, lock_timeout=chance.choice((0, 0, 0, 1))))
        try:
            with transaction.cursor() as cursor:
                for _ in range(chance.randint(1, 6)):
                    _change(cursor, transaction, chance)
            if chance.random() < 0.2:
                transaction.rollback()
            else:
                transaction.commit()
                committed += 1
        except DatabaseError:  # a collision, or a key that is there already
            transaction.rollback()
    return committed


def _change(cursor: Cursor, transaction: TransactionManager, chance: random.Random) -> None:
    key = chance.randrange(_KEYS)
    inside = chance.random() < 0.3
    if inside:
        transaction.savepoint("S")
    kind = chance.random()
    if kind < 0.4:
        values = (key, chance.randrange(10**12), chance.randrange(10**6) / 100)
        note = "заметка " * chance.randrange(40)
        cursor.execute(
            "UPDATE OR INSERT INTO ITEM VALUES (?, ?, ?, ?, ?)",
            (*values, chance.choice(_NAMES), chance.choice((None, note))),
        )
    elif kind < 0.6:
        cursor.execute("UPDATE ITEM SET N = N + 1 WHERE ID BETWEEN ? AND ?", (key, key + 5))
    elif kind < 0.75:
        cursor.execute("DELETE FROM ITEM WHERE ID = ?", (key,))
    else:
        cursor.execute("INSERT INTO LOG_ VALUES (?, ?)", (key, f"turn {key}"))
    if inside and chance.random() < 0.6:
        transaction.rollback(savepoint="S")
