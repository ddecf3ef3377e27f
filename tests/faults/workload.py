"""The work of 8 connections: collisions, second thoughts and DDL, from a seed, until killed.

Runs in a server process. Every transaction leaves its number in MARK, so that which were
committed can be read from the database. Names of columns and side tables are never given twice.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

from firebird.driver import (
    Connection,
    Cursor,
    DatabaseError,
    Isolation,
    TransactionManager,
    connect,
    tpb,
)

TABLES = (
    "CREATE TABLE MARK (N BIGINT NOT NULL)",
    "CREATE TABLE ITEM (ID INTEGER NOT NULL PRIMARY KEY, N BIGINT, PRICE NUMERIC(9, 2),"
    " NAME VARCHAR(40) CHARACTER SET UTF8, NOTE BLOB SUB_TYPE TEXT CHARACTER SET UTF8)",
    "CREATE TABLE LOG_ (N INTEGER, TEXT VARCHAR(1000))",
    "CREATE TABLE WIDE (ID INTEGER NOT NULL PRIMARY KEY, V VARCHAR(20))",
    "CREATE SEQUENCE COUNTER",
)
MARK = "INSERT INTO MARK VALUES (CURRENT_TRANSACTION)"
_KEYS = 30
_NAMES = ("Łódź", "жук", "", "a" * 40, None)
_ISOLATIONS = (
    Isolation.READ_COMMITTED_RECORD_VERSION,
    Isolation.READ_COMMITTED_RECORD_VERSION,
    Isolation.SNAPSHOT,
)
_MOST_SIDE_TABLES = 4


def work(database: str, seed: str, connections: int, has_ddl: bool, stop: str) -> None:
    """Have CONNECTIONS threads work until the file STOP exists; the first one does DDL."""

    def run(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        connection = connect(database, user="SYSDBA", charset="UTF8")
        try:
            ddl = _Ddl(connection, f"{seed}_{number}".upper()) if has_ddl and not number else None
            while not Path(stop).exists():
                _transact(connection, chance, ddl)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _transact(connection: Connection, chance: random.Random, ddl: _Ddl | None) -> None:
    transaction = connection.transaction_manager()
    # Seconds; 0: give up at once where another connection is at work.
    patience = chance.choice((0, 0, 0, 1))
    transaction.begin(tpb(chance.choice(_ISOLATIONS), lock_timeout=patience))
    try:
        with transaction.cursor() as cursor:
            _fill(cursor, transaction, chance, ddl)
            while chance.random() < 0.1:
                transaction.commit(retaining=True)  # the transaction gets a new number
                _fill(cursor, transaction, chance, None)
        end = chance.random()
        if end < 0.15:
            transaction.rollback()
        elif end < 0.2:
            transaction.rollback(retaining=True)
            with transaction.cursor() as cursor:
                _fill(cursor, transaction, chance, None)
            transaction.commit()
        else:
            _commit(transaction, chance)
    except DatabaseError:  # a collision, or a key that is there already
        transaction.rollback()


def _commit(transaction: TransactionManager, chance: random.Random) -> None:
    """Commit; where that fails after the plugin's prepare, sometimes change more and try again."""
    try:
        transaction.commit()
    except DatabaseError:
        if chance.random() < 0.5:
            raise
        with transaction.cursor() as cursor:
            cursor.execute("INSERT INTO LOG_ VALUES (-2, 'once more')")
        transaction.commit()


def _fill(
    cursor: Cursor, transaction: TransactionManager, chance: random.Random, ddl: _Ddl | None
) -> None:
    cursor.execute(MARK)
    if ddl is not None and chance.random() < 0.6:
        ddl.change(cursor, chance)
    for _ in range(chance.randint(1, 5)):
        _change(cursor, transaction, chance)


def _change(cursor: Cursor, transaction: TransactionManager, chance: random.Random) -> None:
    key = chance.randrange(_KEYS)
    inside = chance.random() < 0.3
    if inside:
        transaction.savepoint("S")
    kind = chance.random()
    if kind < 0.3:
        values = (key, chance.randrange(10**12), chance.randrange(10**6) / 100)
        note = "заметка " * chance.randrange(40)
        cursor.execute(
            "UPDATE OR INSERT INTO ITEM VALUES (?, ?, ?, ?, ?)",
            (*values, chance.choice(_NAMES), chance.choice((None, note))),
        )
    elif kind < 0.45:
        cursor.execute("UPDATE ITEM SET N = N + 1 WHERE ID BETWEEN ? AND ?", (key, key + 5))
    elif kind < 0.55:
        cursor.execute("DELETE FROM ITEM WHERE ID = ?", (key,))
    elif kind < 0.65:
        cursor.execute("UPDATE OR INSERT INTO WIDE (ID, V) VALUES (?, ?)", (key, f"v{kind:.9f}"))
    elif kind < 0.7:
        cursor.execute("DELETE FROM LOG_ WHERE N = ?", (key,))
    elif kind < 0.73:
        cursor.execute(
            "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < 150) DO BEGIN"
            f" INSERT INTO LOG_ VALUES ({key}, RPAD(:I, 900, 'x')); I = I + 1; END END"
        )
    elif kind < 0.8:  # the second insert fails, and its block takes the first one with it
        cursor.execute(
            "EXECUTE BLOCK AS BEGIN"
            " BEGIN INSERT INTO LOG_ VALUES (-3, 'no'); INSERT INTO ITEM (ID) VALUES (NULL); END"
            f" WHEN ANY DO INSERT INTO LOG_ VALUES ({key}, 'handled'); END"
        )
    elif kind < 0.85:
        cursor.execute(
            f"EXECUTE BLOCK AS BEGIN IN AUTONOMOUS TRANSACTION DO BEGIN {MARK};"
            f" INSERT INTO LOG_ VALUES ({key}, 'autonomous'); END END"
        )
    else:
        cursor.execute("INSERT INTO LOG_ VALUES (?, NEXT VALUE FOR COUNTER)", (key,))
    if inside and chance.random() < 0.6:
        transaction.rollback(savepoint="S")


class _Ddl:
    """The DDL of one connection, and work on what it made."""

    def __init__(self, connection: Connection, suffix: str) -> None:
        self._suffix = suffix
        self._count = 0
        self._tables = _names(
            connection,
            "SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS"
            " WHERE RDB$RELATION_NAME STARTING WITH 'SIDE_'",
        )
        self._columns = _names(
            connection,
            "SELECT TRIM(RDB$FIELD_NAME) FROM RDB$RELATION_FIELDS"
            " WHERE RDB$RELATION_NAME = 'WIDE' AND RDB$FIELD_NAME STARTING WITH 'C_'",
        )

    def change(self, cursor: Cursor, chance: random.Random) -> None:
        """Do one statement. What it makes is used once it is known to be there: an error then
        ends the transaction, as any other does."""
        self._count += 1
        name = f"{self._suffix}_{self._count}"
        kind = chance.random()
        if kind < 0.2 and len(self._tables) < _MOST_SIDE_TABLES:
            self._tables.append(f"SIDE_{name}")
            cursor.execute(
                f"CREATE TABLE SIDE_{name} (ID INTEGER NOT NULL PRIMARY KEY, V VARCHAR(20))"
            )
        elif kind < 0.4 and self._tables:
            table = chance.choice(self._tables)
            cursor.execute(
                f"UPDATE OR INSERT INTO {table} VALUES ({chance.randrange(9)}, '{name}')"
            )
        elif kind < 0.45 and self._tables:
            cursor.execute(f"DROP TABLE {self._tables.pop(0)}")
        elif kind < 0.6:
            self._columns.append(f"C_{name}")
            cursor.execute(f"ALTER TABLE WIDE ADD C_{name} INTEGER")
        elif kind < 0.75 and self._columns:
            column = chance.choice(self._columns)
            cursor.execute(f"UPDATE WIDE SET {column} = {self._count}")
        elif kind < 0.85 and self._columns:
            cursor.execute(f"ALTER TABLE WIDE DROP {self._columns.pop(0)}")
        else:  # fails in the commit, after the plugin's prepare
            cursor.execute("INSERT INTO LOG_ VALUES (-1, 'twice')")
            cursor.execute("INSERT INTO LOG_ VALUES (-1, 'twice')")
            cursor.execute(f"ALTER TABLE LOG_ ADD CONSTRAINT U_{name} UNIQUE (N)")


def _names(connection: Connection, query: str) -> list[str]:
    with connection.cursor() as cursor:
        found = [row[0] for row in cursor.execute(query)]
    connection.commit()
    return sorted(found)
