"""Databases in use for rounds of snapshots: tables with rows from before, and who writes into them.

``BORN`` is a number that a row keeps as long as it lives, whatever becomes of its key.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from capture import Attachment, Capture, Client, SqlError

_SCHEMA = (
    "CREATE SEQUENCE BIRTHS",
    "CREATE SEQUENCE KEYS START WITH 1000000",
    "CREATE TABLE ITEM (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(40), BORN BIGINT,"
    " NOTE BLOB SUB_TYPE TEXT)",
    "CREATE TABLE PAIR (A INTEGER NOT NULL, B VARCHAR(10) NOT NULL, C INTEGER, BORN BIGINT,"
    " PRIMARY KEY (B, A))",
    "CREATE TABLE KEYLESS (X INTEGER, Y VARCHAR(10))",
    "CREATE TABLE NOTHING (ID INTEGER NOT NULL PRIMARY KEY)",
)
_FILL = """EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN
 WHILE (I < {rows}) DO BEGIN
  INSERT INTO ITEM VALUES (:I, 'item ' || :I, GEN_ID(BIRTHS, 1),
   IIF(MOD(:I, 10) = 0, 'note ' || :I, NULL));
  IF (MOD(I, 4) = 0) THEN INSERT INTO KEYLESS VALUES (MOD(:I, 50), 'y');
  IF (MOD(I, 4) = 1) THEN
   INSERT INTO PAIR VALUES (:I, 'b' || MOD(:I, 7), :I, GEN_ID(BIRTHS, 1));
  I = I + 1;
 END END"""

COLUMNS = {
    "ITEM": ("ID", "NAME", "BORN"),
    "PAIR": ("A", "B", "C", "BORN"),
    "KEYLESS": ("X", "Y"),
    "NOTHING": ("ID",),
}
"""Columns by which rows are compared, by table."""

_PATIENCE_S = 90.0

_NEW = "GEN_ID(KEYS, 1)"
_BORN = "GEN_ID(BIRTHS, 1)"
# Often, and rarely: statements on a KEY of before, or a KEY that came later.
_SMALL = (
    f"INSERT INTO ITEM (ID, NAME, BORN) VALUES ({_NEW}, 'new', {_BORN})",
    "UPDATE ITEM SET NAME = 'changed {number}' WHERE ID = {key}",
    "UPDATE ITEM SET NAME = 'changed {number}' WHERE ID = {key}",
    "DELETE FROM ITEM WHERE ID = {key}",
    f"UPDATE ITEM SET ID = {_NEW} WHERE ID = {{key}}",
    f"UPDATE OR INSERT INTO ITEM (ID, NAME, BORN) VALUES ({{key}}, 'back', {_BORN}) MATCHING (ID)",
    "UPDATE PAIR SET C = {number} WHERE A = {key}",
    "UPDATE PAIR SET B = 'c' || {number} WHERE A = {key}",
    "DELETE FROM PAIR WHERE A = {key} AND MOD(A, 3) = 0",
    f"INSERT INTO PAIR VALUES ({{key}}, 'n' || {{number}}, 0, {_BORN})",
    "INSERT INTO KEYLESS VALUES ({number}, 'new')",
    "UPDATE KEYLESS SET Y = 'z' WHERE X = MOD({key}, 50) ROWS 1",
    "DELETE FROM KEYLESS WHERE X = MOD({key}, 50) ROWS 1",
)
_LARGE = (
    "UPDATE ITEM SET NAME = 'all {number}' WHERE MOD(ID, 5) = MOD({number}, 5)",
    f"INSERT INTO ITEM (ID, NAME, BORN) SELECT {_NEW}, 'copy', {_BORN} FROM ITEM ROWS 300",
    "UPDATE PAIR SET C = -C",
    "INSERT INTO KEYLESS SELECT X, 'more' FROM KEYLESS ROWS 50",
    "DELETE FROM ITEM WHERE NAME = 'copy'",
)


def shown(table: str, row: dict[str, Any]) -> str:
    """Return ROW as it is compared."""
    return json.dumps([row[name] for name in COLUMNS[table]])


class Database:
    """A database of a round: ``before`` are the rows that it had when it was published."""

    def __init__(self, capture: Capture, path: Path, rows: int) -> None:
        self.path = path
        self.rows = rows
        self._capture = capture
        self._client = capture.client()
        self._attachment = self._client.attach(path, create=True)
        self._attachment.script(*_SCHEMA)
        self._attachment.immediate(_FILL.format(rows=rows))
        self._attachment.commit()
        self.before = self.tables()
        self._attachment.script(
            "ALTER DATABASE INCLUDE ALL TO PUBLICATION", "ALTER DATABASE ENABLE PUBLICATION"
        )

    def tables(self) -> dict[str, Counter[str]]:
        """Return the rows that it has."""
        found: dict[str, Counter[str]] = {}
        for table, columns in COLUMNS.items():
            rows = self._attachment.execute(f"SELECT {', '.join(columns)} FROM {table}")
            found[table] = Counter(shown(table, row) for row in rows)
        self._attachment.commit()
        return found


class Writer(Thread):
    """Works in a process of its own until it is told to end, and begins anew where that is killed.

    ``written``: transactions that were committed; ``trouble``: what it did not expect.
    """

    def __init__(self, capture: Capture, database: Database, chance: random.Random) -> None:
        super().__init__(name=f"writer {chance.random()}", daemon=True)
        self.written = self.kills = 0
        self.trouble: BaseException | None = None
        self._capture = capture
        self._database = database
        self._chance = chance
        self._pause_s = chance.choice((0.001, 0.005, 0.02))
        self._ending = Event()
        self._client: Client | None = None

    def run(self) -> None:
        """Write, whoever dies."""
        try:
            while not self._ending.is_set():
                self._live()
        except BaseException as error:
            self.trouble = error

    def kill(self) -> None:
        """Kill the process, as a crash of the server would."""
        if self._client is not None:
            with suppress(ProcessLookupError):
                os.kill(self._client.pid, signal.SIGKILL)

    def end(self) -> None:
        """Have it end, and its process."""
        self._ending.set()
        self.join(_PATIENCE_S)
        if self.is_alive():
            self.kill()
            self.join()
            raise AssertionError("the engine does not answer a writer")
        if self.trouble is not None:
            raise self.trouble

    def _live(self) -> None:
        client = self._client = self._capture.client()
        try:
            attachment = client.attach(self._database.path)
            while not self._ending.wait(self._pause_s):
                self._write(attachment)
            attachment.close()
        except (AssertionError, BrokenPipeError):
            if client.process.wait() != -signal.SIGKILL:
                raise
            self.kills += 1
            self._capture.clients.remove(client)
            for pipe in (client.process.stdin, client.process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()

    def _write(self, attachment: Attachment) -> None:
        chance = self._chance
        large = chance.random() < 0.03
        count = 1 if large or chance.random() < 0.7 else chance.randint(2, 12)
        try:
            for _ in range(count):
                statement = chance.choice(_LARGE if large else _SMALL)
                number = chance.randrange(1_000_000)
                key = chance.randrange(self._database.rows)
                attachment.immediate(statement.format(number=number, key=key))
            if chance.random() < 0.08:
                attachment.rollback()
            else:
                attachment.commit()
                self.written += 1
        except SqlError:  # another writer was first
            attachment.rollback()
