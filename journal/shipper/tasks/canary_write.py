"""Writes one row into a canary table: the program of a process of its own.

A process, because only one can be ended when the client library or a server hangs, because the
shipper needs no engine in itself, and because an attachment without a server brings our plugin
with it. Reads a request as JSON from standard input, and answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from firebird_cdc.clock import now_us
from firebird_cdc.journal.snapshot.attachment import (
    DatabaseConnection,
    attach,
    require_shared_files,
)

_LOCK_WAIT_S = 5


def main() -> None:
    """Serve one request. What goes wrong is in the answer."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get among the answers
    request = json.load(sys.stdin)
    # Whatever hangs, and even if nobody waits for us any more.
    signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
    try:
        answer = write(request)
    except Exception as error:  # whatever it is, whoever asked tells it
        answer = {"error": " ".join(str(error).split()) or type(error).__name__}
    print(json.dumps(answer), file=answers, flush=True)


def write(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the row; return the number of the transaction and when its commit had returned."""
    how = DatabaseConnection(
        request["target"],
        request["user"],
        request["password"],
        request["library"] or None,
        tuple(request["statements"]),
    )
    require_shared_files(how)
    connection = attach(how)
    from firebird.driver import TPB, Isolation  # after what says that it is missing

    # The table's name comes quoted.
    statement = (
        f"UPDATE OR INSERT INTO {request['table']} (ID, WRITTEN_AT)"  # noqa: S608
        " VALUES (1, CURRENT_TIMESTAMP) MATCHING (ID)"
    )
    isolation = Isolation.READ_COMMITTED_RECORD_VERSION
    with closing(connection):
        connection.begin(TPB(isolation=isolation, lock_timeout=_LOCK_WAIT_S).get_buffer())
        transaction = connection.main_transaction.info.id
        with connection.cursor() as cursor:
            cursor.execute(statement)
        began_us = now_us()
        connection.commit()
        return {
            "transaction": transaction,
            "began_us": began_us,
            "written_us": now_us(),
        }


if __name__ == "__main__":
    main()
