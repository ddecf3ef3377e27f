"""Engine processes, each fresh, for the disks that power cuts left.

A line on standard input, ``DATABASE MARK``, makes this process fork: the child loads the engine,
attaches, commits a transaction with that mark, and answers; with the line ``rows`` it answers with
the rows of all tables and how many of them the engine hides (hidden_rows.py); with an empty one it
ends in peace, and this process answers. Answers are pickled: (error, rows, hidden). What takes time
to import is imported before, once.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import firebird.driver.core  # noqa: F401
import google_crc32c  # noqa: F401
from firebird.driver import Connection, DatabaseError, connect, driver_config

import firebird_cdc.bridge.embedded
import firebird_cdc.bridge.service  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from hidden_rows import WITHOUT_BLOBS, Row, all_rows

_TABLES = ("ITEM", "LOG_", "EFFECTS", "MARK", "DOUBLE_")


def _line() -> str:
    """Read a line, and nothing of what comes after it."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def _answer(stream: int, what: Any) -> None:
    with os.fdopen(os.dup(stream), "wb") as replies:
        pickle.dump(what, replies)


class _Attachment:
    """Part of a connection that hidden_rows needs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *parameters: object) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [
                {name: _whole(value) for name, value in zip(names, row, strict=True)}
                for row in cursor.fetchall()
            ]

    def commit(self) -> None:
        self._connection.commit()


def _serve(database: str, mark: int, stream: int) -> None:
    connection = connect(database, user="SYSDBA", charset="UTF8")
    connection.execute_immediate(f"INSERT INTO MARK VALUES ({mark})")
    connection.commit()
    _answer(stream, (None, {}, 0))
    if _line():
        found = {
            table: all_rows(
                _Attachment(connection), Path(database), table, WITHOUT_BLOBS.get(table, "T.*")
            )
            for table in _TABLES
        }
        rows = {table: rows for table, (rows, _) in found.items()}
        _answer(stream, (None, rows, sum(hidden for _, hidden in found.values())))
        _line()  # and the parent answers when this process has ended
    connection.close()


def _whole(value: Any) -> Any:
    """Return a value as it can be pickled: the driver gives long blobs as files."""
    if hasattr(value, "read"):
        with value as blob:
            return blob.read()
    return value


def main() -> None:
    driver_config.fb_client_library.value = sys.argv[1]
    stream = os.dup(1)
    os.dup2(2, 1)  # what libraries write to standard output must not get into the answers
    while line := _line():
        database, _, mark = line.rpartition(" ")
        child = os.fork()
        if child == 0:
            try:
                _serve(database, int(mark), stream)
            except DatabaseError as error:
                sys.stderr.write(f"{error}\n")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        _answer(stream, (f"its process ended with status {status}" if status else None, {}, 0))


if __name__ == "__main__":
    main()
