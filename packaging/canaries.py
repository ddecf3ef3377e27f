"""Problems of a canary table, for ``check``. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firebird_cdc.config.attachment import CanaryTable

Problem = tuple[str, str]
"""Description of a problem, and the remedy."""

_PRIVILEGES = {"S": "SELECT", "I": "INSERT", "U": "UPDATE"}


def canary_problems(connection: Any, table: CanaryTable, user: str | None) -> Iterator[Problem]:
    """Look into the database of TABLE through CONNECTION, of firebird-driver.

    USER: the one who is to write, ``database.user``. Raises any error of the driver.
    """

    def ask(sql: str, *parameters: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return [row[0] for row in cursor.fetchall()]

    columns = ask(
        "SELECT TRIM(TRAILING FROM RDB$FIELD_NAME) FROM RDB$RELATION_FIELDS"
        " WHERE RDB$RELATION_NAME = ?",
        table.table,
    )
    if not columns:
        yield (
            f"there is no table {table.quoted}",
            f"CREATE TABLE {table.quoted} (ID INTEGER NOT NULL PRIMARY KEY, WRITTEN_AT TIMESTAMP)",
        )
        return
    for column in ("ID", "WRITTEN_AT"):
        if column not in columns:
            yield f"table {table.quoted} has no column {column}", "make it anew, as documented"
    if not ask(
        "SELECT 1 FROM RDB$PUBLICATION_TABLES WHERE RDB$TABLE_NAME = ?",
        table.table,
    ):
        yield (
            f"table {table.quoted} is outside the publication, so its writes are not captured",
            f"ALTER DATABASE INCLUDE TABLE {table.quoted} TO PUBLICATION",
        )
    name = (user or "SYSDBA").upper()
    if name == "SYSDBA":
        return
    # By a role too: which ones the user has on at that moment, is not said here.
    granted = ask(
        "SELECT TRIM(RDB$PRIVILEGE) FROM RDB$USER_PRIVILEGES WHERE RDB$RELATION_NAME = ?"
        " AND RDB$FIELD_NAME IS NULL AND (RDB$USER IN (?, 'PUBLIC') OR RDB$USER_TYPE = 13)",
        table.table,
        name,
    )
    lacking = [word for letter, word in _PRIVILEGES.items() if letter not in granted]
    if lacking:
        yield (
            f"user {name} lacks the right to {', '.join(lacking)} on table {table.quoted}",
            f"GRANT {', '.join(lacking)} ON {table.quoted} TO USER {name}",
        )
