"""Work on the tables of test_rollbacks.py that needs the driver, in a client process."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from firebird.driver import (
    TPB,
    Connection,
    DatabaseError,
    Isolation,
    TransactionManager,
    connect,
)

_READ_CONSISTENCY = Isolation.READ_COMMITTED_READ_CONSISTENCY


@contextmanager
def _attached(database: str) -> Iterator[Connection]:
    connection = connect(database, user="SYSDBA", charset="UTF8")
    with closing(connection):
        yield connection


def several_at_once(database: str) -> None:
    """Four transactions of one attachment, statement by statement in turn."""
    with _attached(database) as connection:
        transactions = [connection.transaction_manager() for _ in range(4)]
        for number, transaction in enumerate(transactions):
            transaction.begin()
            transaction.execute_immediate(f"INSERT INTO T VALUES ({number + 1}, 0)")
        for number, transaction in enumerate(transactions):
            transaction.savepoint("A")
            transaction.execute_immediate(f"UPDATE T SET N = {number} WHERE N = 0")
            transaction.execute_immediate(f"INSERT INTO T VALUES ({number + 11}, 7)")
        for number, transaction in enumerate(transactions):
            if number % 2:
                transaction.rollback(savepoint="A")
        transactions[3].commit()
        transactions[0].rollback()
        transactions[2].commit(retaining=True)
        transactions[1].commit()
        transactions[2].execute_immediate("INSERT INTO T VALUES (21, 0)")
        transactions[2].rollback()


def cursors(database: str) -> None:
    """Positioned changes, and a procedure that changes rows while its rows are fetched."""
    with _attached(database) as connection:
        transaction = connection.transaction_manager()
        transaction.begin()
        for number in range(1, 9):
            transaction.execute_immediate(f"INSERT INTO T VALUES ({number}, 0)")
        with transaction.cursor() as reading, transaction.cursor() as writing:
            reading.execute("SELECT ID FROM T ORDER BY ID FOR UPDATE")
            reading.set_cursor_name("C")
            while row := reading.fetchone():
                if row[0] % 3 == 0:
                    transaction.savepoint("A")
                change = "DELETE FROM T" if row[0] % 2 else "UPDATE T SET N = 1"
                writing.execute(f"{change} WHERE CURRENT OF C")
                if row[0] == 6:
                    transaction.rollback(savepoint="A")
        transaction.commit()
        transaction.begin()
        with transaction.cursor() as walking:
            walking.execute("SELECT ID FROM WALK(31, 40)")
            walking.fetchone()
            transaction.savepoint("A")
            transaction.execute_immediate("INSERT INTO T VALUES (41, 0)")
            transaction.rollback(savepoint="A")
            walking.fetchone()
            transaction.execute_immediate("INSERT INTO T VALUES (42, 0)")
            walking.fetchone()
        transaction.commit()


def savepoint_beneath_a_fetch(database: str) -> list[str]:
    """Roll back to a savepoint that was set before rows of a changing procedure were fetched."""
    with _attached(database) as connection:
        transaction = connection.transaction_manager()
        outcomes = []
        for first in (1, 21, 41):
            transaction.begin()
            transaction.execute_immediate(f"INSERT INTO T VALUES ({first + 10}, 0)")
            with transaction.cursor() as walking:
                walking.execute(f"SELECT ID FROM WALK({first}, {first + 9})")
                if first != 1:
                    walking.fetchone()
                transaction.savepoint("A")
                walking.fetchone()
                transaction.execute_immediate(f"INSERT INTO T VALUES ({first + 11}, 0)")
                walking.fetchone()
                transaction.rollback(savepoint="A")
                if first == 41:
                    walking.fetchone()
            outcomes.append(_commit(transaction))
        return outcomes


def _commit(transaction: TransactionManager) -> str:
    """Return the refusal, or nothing."""
    try:
        transaction.commit()
    except DatabaseError as error:
        transaction.rollback()
        return str(error)
    return ""


def statements_that_restart(database: str) -> int:
    """Updates under READ CONSISTENCY that meet other transactions' rows on their way: the engine
    takes back what they did and does it anew. Returns how many met one."""
    parameters = TPB(isolation=_READ_CONSISTENCY, lock_timeout=10).get_buffer()
    started = [threading.Event() for _ in range(2)]

    def update(number: int) -> None:
        with _attached(database) as connection:
            connection.begin(parameters)
            connection.execute_immediate(f"INSERT INTO LOG_ VALUES ({number}, 'before')")
            started[number].set()
            connection.execute_immediate("UPDATE T SET N = N + 1")
            connection.execute_immediate(f"INSERT INTO LOG_ VALUES ({number}, 'after')")
            connection.commit()

    with _attached(database) as connection:
        for number in range(1, 51):
            connection.execute_immediate(f"INSERT INTO T VALUES ({number}, 20)")
        connection.commit()
        connection.execute_immediate("UPDATE T SET N = 40 WHERE ID IN (20, 40)")
        connection.execute_immediate("DELETE FROM T WHERE ID = 41")
        threads = [threading.Thread(target=update, args=(number,)) for number in range(2)]
        for thread, event in zip(threads, started, strict=True):
            thread.start()
            event.wait()
        with _attached(database) as other, other.cursor() as cursor:
            # both wait for this transaction, or for one that does
            waiting = 0
            while waiting < 2:
                cursor.execute(
                    "SELECT COUNT(*) FROM MON$STATEMENTS WHERE MON$STATE = 1"
                    " AND MON$SQL_TEXT STARTING WITH 'UPDATE T SET N = N + 1'"
                )
                waiting = cursor.fetchone()[0]
                other.commit()
        connection.commit()
        for thread in threads:
            thread.join()
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM T WHERE ID IN (20, 40) AND N = 42")
            return int(cursor.fetchone()[0])


def batch(database: str) -> None:
    """Rows by the batch interface: all of them, and such that some are refused."""
    with _attached(database) as connection:
        transaction = connection.transaction_manager()
        for numbers in (range(1, 41), (41, 42, 43, 44), (51, 1, -1, 52)):
            transaction.begin()
            transaction.execute_immediate(f"INSERT INTO LOG_ VALUES ({numbers[0]}, 'batch')")
            statement = connection._att.prepare(transaction._tra, "INSERT INTO T VALUES (?, ?)", 3)
            metadata = statement.get_input_metadata()
            size, aligned = metadata.get_message_length(), metadata.get_aligned_length()
            rows = bytearray()
            for number in numbers:
                row = bytearray(aligned)
                for column, value in enumerate((number, 0)):
                    struct.pack_into("<i", row, metadata.get_offset(column), value)
                    struct.pack_into("<h", row, metadata.get_null_offset(column), 0)
                rows += row
            assert size <= aligned
            several_errors = struct.pack("<BBIi", 1, 1, 4, 1)  # version 1, TAG_MULTIERROR
            rows_in_batch = statement.create_batch(metadata, several_errors)
            rows_in_batch.add(len(numbers), bytes(rows))
            rows_in_batch.execute(transaction._tra).dispose()
            rows_in_batch.release()
            if numbers[0] == 41:
                transaction.rollback()
            else:
                transaction.commit()
            statement.free()


# ---- From a seed ---------------------------------------------------------------------------------

_KEYS = 24


def gamble(database: str, seed: str, turns: int, unruly: bool) -> tuple[int, int]:
    """Do TURNS transactions of random savepoints, blocks and failures; return how many were
    committed and how many refused. UNRULY: savepoints are released out of turn too."""
    chance = random.Random(seed)
    committed = refused = 0
    with _attached(database) as connection:
        transaction = connection.transaction_manager()
        for _ in range(turns):
            if not transaction.is_active():
                no_auto_undo = chance.random() < 0.4
                transaction.begin(TPB(lock_timeout=0, no_auto_undo=no_auto_undo).get_buffer())
            _gamble_once(transaction, chance, unruly)
            retaining = chance.random() < 0.3
            if chance.random() < 0.2:
                transaction.rollback(retaining=retaining)
                continue
            try:
                transaction.commit(retaining=retaining)
                committed += 1
            except DatabaseError as error:
                assert "out of turn" in str(error), error
                refused += 1
                transaction.rollback()
    return committed, refused


def _gamble_once(transaction: TransactionManager, chance: random.Random, unruly: bool) -> None:
    names: list[str] = []
    for _ in range(chance.randint(2, 14)):
        kind = chance.random()
        try:
            if kind < 0.2:
                name = chance.choice("ABCD")
                if unruly or name not in names[:-1]:
                    transaction.savepoint(name)
                    if name in names:
                        names.remove(name)
                    names.append(name)
            elif kind < 0.35 and names:
                name = chance.choice(names)
                transaction.rollback(savepoint=name)
                del names[names.index(name) + 1 :]
            elif kind < 0.42 and names:
                name = chance.choice(names)
                transaction.execute_immediate(f"RELEASE SAVEPOINT {name}")
                del names[names.index(name) :]
            elif kind < 0.48 and names:
                name = chance.choice(names) if unruly else names[-1]
                transaction.execute_immediate(f"RELEASE SAVEPOINT {name} ONLY")
                names.remove(name)
            elif kind < 0.7:
                transaction.execute_immediate(_statement(chance).rstrip(";"))
            else:
                transaction.execute_immediate(f"EXECUTE BLOCK AS {_block(chance, 0)}")
        except DatabaseError as error:
            if "Unable to find savepoint" in str(error):
                return  # an error in a block can take them with it, in the engine alone too


def _statement(chance: random.Random) -> str:
    key = chance.randint(0, _KEYS)
    value = chance.choice((0, 1, 2, 3, 7, 7, 12, 13))
    return chance.choice(
        (
            f"INSERT INTO T VALUES ({key}, {value});",
            f"UPDATE OR INSERT INTO T VALUES ({key}, {value});",
            f"UPDATE T SET N = {value} WHERE ID BETWEEN {key} AND {key + 4};",
            f"UPDATE T SET N = IIF(ID = {key + 2}, 13, 5) WHERE ID >= {key};",
            f"DELETE FROM T WHERE ID BETWEEN {key} AND {key + 2};",
            f"INSERT INTO LOG_ SELECT ID, 'walk' FROM WALK({key}, {key + 3});",
            f"EXECUTE PROCEDURE TRY_PUT({key}, {value});",
        )
    )


def _block(chance: random.Random, depth: int) -> str:
    parts = []
    for _ in range(chance.randint(1, 4)):
        kind = chance.random()
        if kind < 0.4 or depth == 3:
            parts.append(_statement(chance))
        elif kind < 0.5:
            parts.append("EXCEPTION UNLUCKY;")
        elif kind < 0.65:
            # An error that leaves it may spoil the engine's list of savepoints, and then the
            # process, without any plugin too. test_rollbacks.py has errors that don't.
            inner = _block(chance, depth + 1)
            parts.append(f"IN AUTONOMOUS TRANSACTION DO BEGIN {inner} WHEN ANY DO BEGIN END END")
        else:
            parts.append(_block(chance, depth + 1))
    if chance.random() < 0.6:
        parts.append(f"WHEN ANY DO {_block(chance, min(depth + 2, 3))}")
    return f"BEGIN {' '.join(parts)} END"
