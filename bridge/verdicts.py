"""Asks the engine what became of transactions, many with one statement.

The question is ``RDB$GET_TRANSACTION_CN(number)``: 0 active, -1 limbo, -2 dead, from 1 on
committed, NULL unknown. An answer may be seen before it is on disk. So it is asked inside a
snapshot transaction that is ended before anybody acts: its own end takes the same inventory
page exclusively, and so waits for the write (``tra.cpp``, ``cch.cpp``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

_QUESTIONS = 64  # in one statement; a guess between statement size and number of statements
_load_lock = threading.Lock()


class Verdict(Enum):
    """What the engine says of a transaction."""

    ACTIVE = "active"
    LIMBO = "in limbo"
    DEAD = "rolled back or dead"
    COMMITTED = "committed"
    UNKNOWN = "unknown to this database"


def _verdict(answer: int | None) -> Verdict:
    if answer is None:
        return Verdict.UNKNOWN
    if answer >= 1:
        return Verdict.COMMITTED
    return {0: Verdict.ACTIVE, -1: Verdict.LIMBO}.get(answer, Verdict.DEAD)


class EngineWitness:
    """An attachment of ours to one database, inside the server process, without a password.

    Used by one thread. Open only while there is something to ask: an open attachment stands
    in the way of DROP DATABASE and of a shutdown.
    """

    def __init__(self, database: str, library: Path) -> None:
        self._database = database
        self._library = library
        self._connection: Any = None
        self._transaction: Any = None
        self._cursor: Any = None
        self._statement: Any = None

    def ask(self, transactions: Sequence[int]) -> list[Verdict]:
        """Return the verdict on each transaction number, in order.

        Raises firebird.driver.DatabaseError when the database can't be reached; the
        attachment is closed then, and the next question opens a new one.
        """
        try:
            if self._connection is None:
                self._open()
            answers: list[int | None] = []
            self._transaction.begin()
            for start in range(0, len(transactions), _QUESTIONS):
                part = list(transactions[start : start + _QUESTIONS])
                padded = part + [part[-1]] * (_QUESTIONS - len(part))
                self._cursor.execute(self._statement, padded)
                answers += self._cursor.fetchone()[: len(part)]
            self._transaction.commit()
        except BaseException:
            self.close()
            raise
        return [_verdict(answer) for answer in answers]

    def _open(self) -> None:
        from firebird import driver
        from firebird.driver import Isolation, TraAccessMode, tpb

        with _load_lock:
            driver.load_api(str(self._library))
        self._connection = driver.connect(
            self._database, user="SYSDBA", charset="UTF8", no_db_triggers=True, no_gc=True
        )
        self._transaction = self._connection.transaction_manager(
            default_tpb=tpb(Isolation.SNAPSHOT, access_mode=TraAccessMode.READ)
        )
        self._transaction.begin()
        self._cursor = self._transaction.cursor()
        questions = ", ".join(["RDB$GET_TRANSACTION_CN(CAST(? AS BIGINT))"] * _QUESTIONS)
        self._statement = self._cursor.prepare(f"SELECT {questions} FROM RDB$DATABASE")  # noqa: S608
        self._transaction.commit()

    @property
    def is_open(self) -> bool:
        """Tell whether the attachment is open."""
        return self._connection is not None

    def close(self) -> None:
        """End the attachment, if there is one; never raises."""
        connection, self._connection = self._connection, None
        statement, self._statement = self._statement, None
        cursor, self._cursor = self._cursor, None
        transaction, self._transaction = self._transaction, None
        for part, method in (
            (statement, "free"),
            (cursor, "close"),
            (transaction, "close"),
            (connection, "close"),
        ):
            if part is None:
                continue
            with contextlib.suppress(Exception):  # a lost connection can't be closed better
                getattr(part, method)()
