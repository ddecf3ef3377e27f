"""Audits against a database, run in a client process that has the engine in itself.

Its Spark, and so the processes that read, have the same engine and environment.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from traceback import format_exc
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from firebird_cdc.errors import FirebirdCdcError
from firebird_cdc.journal.replay.audit.database.rows import read_rows
from firebird_cdc.journal.replay.cluster.session import spark_session
from firebird_cdc.journal.snapshot import holder
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection, attach
from firebird_cdc.journal.snapshot.catalogue import PageRange, read_tables
from firebird_cdc.journal.snapshot.claims import Claims
from firebird_cdc.journal.snapshot.visibility import EngineStates
from firebird_cdc.journal.snapshot.window import Flaws, Window, open_window

if TYPE_CHECKING:
    from firebird.driver import Connection
    from pyspark.sql import SparkSession

_KEPT = "database_audits_kept"
_CONFIRMED_S = 60.0


def _spark() -> SparkSession:
    """The one session of the process: this file is run anew for each call."""
    kept = sys.modules.setdefault(_KEPT, ModuleType(_KEPT))
    if not hasattr(kept, "session"):
        kept.stack = ExitStack()
        kept.session = kept.stack.enter_context(
            spark_session("database audits", "local[2]", progress=False)
        )
        kept.session.conf.set("spark.sql.shuffle.partitions", "2")
    session: SparkSession = kept.session
    return session


def audit(
    dsn: str, library: str, folders: list[str], older_s: float, times: int
) -> list[dict[str, Any]]:
    """Return what audits one after the other say; what is refused, or fails, as ``error``. OLDER_S:
    how long each waits for older transactions."""
    try:
        spark = _spark()
        return [_audit(spark, folders, dsn, library, older_s) for _ in range(times)]
    except Exception:  # else the process would end, and leave its Spark there
        return [{"error": format_exc()}]


def audit_with_faked_state(
    dsn: str,
    library: str,
    folders: list[str],
    transaction: int,
    state: int,
    times: int,
    file: str | None,
    checked: bool = True,
) -> dict[str, Any]:
    """Return what an audit says to which the engine tells STATE of a committed TRANSACTION when the
    states are asked for the first TIMES times.

    file: why that of the database can't be read. checked: False: the window finds no flaw.
    """
    told = 0
    unsettled = EngineStates.unsettled

    def fake(self: EngineStates, first: int, end: int, number: int) -> list[tuple[int, int]]:
        nonlocal told
        told += 1
        found = unsettled(self, first, end, number)
        return [*found, (transaction, state)] if told <= times else found

    with ExitStack() as stack:
        stack.enter_context(patch.object(EngineStates, "unsettled", fake))
        if file is not None:
            claims = Claims(unread=file)
            stack.enter_context(patch.object(holder, "read_claims", lambda *_: claims))
        if not checked:
            stack.enter_context(patch.object(Window, "find_flaws", lambda _: Flaws()))
        return _audit(_spark(), folders, dsn, library, 0)


def _audit(
    spark: SparkSession, folders: list[str], dsn: str, library: str, older_s: float
) -> dict[str, Any]:
    from firebird_cdc.journal.replay.audit.database import against_database
    from firebird_cdc.journal.replay.audit.input import open_input

    def opened(how: DatabaseConnection, *, patience_s: float) -> Any:
        assert patience_s == _CONFIRMED_S
        return open_window(how, patience_s=older_s)

    try:
        changes = open_input(spark, folders)
        # A test may have no time for older transactions; what is committed is confirmed in any
        # case, however slow the machine is.
        with patch.object(against_database, "open_window", opened):
            comparison = against_database.compare(
                spark,
                changes,
                None,
                DatabaseConnection(dsn, "SYSDBA", "never shown", library),
                parallel=2,
                patience_s=_CONFIRMED_S,
            )
    except FirebirdCdcError as error:
        return {"error": str(error)}
    result = {
        "findings": [row.asDict() for row in comparison.findings.collect()],
        "proven": comparison.proven,
        "notes": comparison.notes,
        "counts": comparison.counts,
    }
    comparison.findings.unpersist()
    changes.close()
    return result


def check(database: str, _library: str, folders: list[str]) -> dict[str, int]:
    """Return how many findings of each kind the journals of a database have by themselves."""
    from firebird_cdc.journal.replay.audit.journals import run_audit

    with run_audit(_spark(), folders, database=database) as report:
        return report.kinds


def join_beside(dsn: str, library: str) -> dict[str, Any]:
    """Commit a transaction that is older than a snapshot while that is open, then join it."""
    how = DatabaseConnection(dsn, "SYSDBA", None, library)
    with closing(attach(how)) as writer, closing(attach(how)) as other:
        writer.begin()
        number = writer.main_transaction.info.id
        writer.execute_immediate("INSERT INTO T VALUES (1)")
        for key in range(2, 5):
            _commit(other, f"INSERT INTO T VALUES ({key})")
        with open_window(how) as snapshot:
            before = snapshot.find_flaws()
            writer.commit()
            for key in range(5, 10):  # the engine notices what has ended
                _commit(other, f"INSERT INTO T VALUES ({key})")
            table = read_tables(snapshot.connection, snapshot.holder.page_size)["T"]
            everything = [PageRange(0, 0, None)]
            rows = read_rows(how, snapshot.number, [table], everything, "UTF-8")
            return {
                "writer": number,
                "seen": snapshot.sees(number) or bool(before),
                "rows": [(row.row, row.version) for row in rows],
                "passed": set(snapshot.find_flaws().passed),
            }


def _commit(connection: Connection, sql: str) -> None:
    connection.begin()
    connection.execute_immediate(sql)
    connection.commit()


def stop() -> None:
    """End Spark, if there is one."""
    if _KEPT in sys.modules:
        sys.modules[_KEPT].stack.close()
