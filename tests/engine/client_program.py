"""A process with the engine in it that does as it is told: the server process of these tests.

Reads pickled ``(operation, arguments)`` from standard input and answers with ``(None, result)``
or ``(text of the error, None)``; at the end of its input it closes its attachments and ends as
any program does. Started by ``capture.Client``.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
from typing import Any, BinaryIO

from firebird.driver import (
    TPB,
    Connection,
    DatabaseError,
    Isolation,
    connect,
    create_database,
    driver_config,
)
from firebird.driver.fbapi import get_api


class _Server:
    def __init__(self) -> None:
        self._attachments: dict[int, Connection] = {}

    def do(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self, operation)(*arguments)

    def attach(self, database: str, charset: str, create: bool, dialect: int, user: str) -> int:
        number = len(self._attachments) + 1
        open_ = create_database if create else connect
        driver_config.db_defaults.sql_dialect.value = dialect
        driver_config.db_defaults.db_sql_dialect.value = dialect
        self._attachments[number] = open_(database, user=user, charset=charset)
        return number

    def execute(self, number: int, sql: str, parameters: tuple[Any, ...] | None) -> Any:
        connection = self._attachments[number]
        if parameters is None:
            connection.execute_immediate(sql)
            return None
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            if cursor.description is None:
                return None
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, map(_whole, row), strict=True)) for row in cursor.fetchall()]

    def begin(self, number: int, isolation: str, options: dict[str, Any]) -> None:
        parameters = TPB(isolation=Isolation[isolation], **options).get_buffer()
        self._attachments[number].begin(parameters)

    def commit(self, number: int, retaining: bool) -> None:
        self._attachments[number].commit(retaining=retaining)

    def rollback(self, number: int, retaining: bool) -> None:
        connection = self._attachments[number]
        if connection.is_active():  # else there is none: the server was lost when it was to begin
            connection.rollback(retaining=retaining)

    def close(self, number: int) -> None:
        self._attachments.pop(number).close()

    def drop(self, number: int) -> None:
        self._attachments[number].drop_database()
        del self._attachments[number]

    def perform(self, path: str, function: str, arguments: tuple[Any, ...]) -> Any:
        return runpy.run_path(path)[function](*arguments)

    def close_all(self) -> None:
        for connection in self._attachments.values():
            connection.close()


def _whole(value: Any) -> Any:
    """Return a value as it can be pickled: the driver gives long blobs as files."""
    if hasattr(value, "read"):
        with value as blob:
            return blob.read()
    return value


def _serve(commands: BinaryIO, answers: BinaryIO) -> None:
    server = _Server()
    while True:
        try:
            operation, arguments = pickle.load(commands)
        except EOFError:
            server.close_all()
            return
        answer: tuple[str | None, Any]
        try:
            answer = None, server.do(operation, arguments)
        except DatabaseError as error:
            answer = str(error), None
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    driver_config.fb_client_library.value = sys.argv[1]
    get_api()  # on one thread: those of a workload would meet it half made
    # What libraries write to standard output must not get into the answers.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, replies)
