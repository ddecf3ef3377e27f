"""Work of a process with the engine for the tests of SQL: backups, and reading a whole database.

Run by ``Client.perform``: what the module imports is there in that process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firebird.driver import connect, connect_server

_TYPES = {
    "as text": (24, 25, 26, 28, 29, 30, 31),  # DECFLOAT, INT128, WITH TIME ZONE
    "numeric": (7, 8, 16),
}


def backup(database: str, file: str) -> None:
    """Back up by gbak's service."""
    with connect_server("", user="SYSDBA") as server, Path(file).open("wb") as stream:
        server.database.local_backup(database=database, backup_stream=stream)


def restore(file: str, database: str) -> None:
    with connect_server("", user="SYSDBA") as server, Path(file).open("rb") as stream:
        server.database.local_restore(backup_stream=stream, database=database)


def copy_physically(database: str, file: str, copy: str) -> None:
    """Back up by nbackup's service, and restore that."""
    with connect_server("", user="SYSDBA") as server:
        server.database.nbackup(database=database, backup=file, level=0)
        server.database.nrestore(backups=[file], database=copy)


def ask(copy: str) -> Any:
    """Ask a restored copy what it holds."""
    from dataclasses import astuple

    from firebird_cdc.journal.replay.sql.restored import ask_copy
    from firebird_cdc.journal.snapshot.attachment import DatabaseConnection

    return astuple(ask_copy(DatabaseConnection(copy, "SYSDBA")))


def contents(database: str) -> dict[str, Any]:
    """Return the rows of all tables as exact texts, sequences, triggers and identity columns."""
    with connect(database, user="SYSDBA", charset="UTF8", no_db_triggers=True) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT TRIM(F.RDB$RELATION_NAME), TRIM(F.RDB$FIELD_NAME), T.RDB$FIELD_TYPE,"
            " T.RDB$FIELD_SCALE, T.RDB$DIMENSIONS, T.RDB$FIELD_LENGTH"
            " FROM RDB$RELATION_FIELDS F JOIN RDB$FIELDS T ON T.RDB$FIELD_NAME=F.RDB$FIELD_SOURCE"
            " JOIN RDB$RELATIONS R ON R.RDB$RELATION_NAME=F.RDB$RELATION_NAME"
            " WHERE R.RDB$SYSTEM_FLAG=0 AND R.RDB$VIEW_BLR IS NULL ORDER BY 1, F.RDB$FIELD_POSITION"
        )
        tables: dict[str, list[str]] = {}
        for table, name, kind, scale, dimensions, length in cursor.fetchall():
            column = '"' + name.replace('"', '""') + '"'
            if dimensions:
                continue
            if kind in _TYPES["as text"] or (kind in _TYPES["numeric"] and scale):
                column = f"CAST({column} AS VARCHAR(90))"
            elif kind in (14, 37):
                column = f"CAST({column} AS VARCHAR({length}) CHARACTER SET OCTETS)"
            elif kind == 261:
                column = f"OCTET_LENGTH({column}), CRYPT_HASH({column} USING SHA256)"
            tables.setdefault(table, []).append(column)
        found: dict[str, Any] = {}
        for table, columns in tables.items():
            name = table.replace('"', '""')
            cursor.execute(f'SELECT {", ".join(columns)} FROM "{name}"')
            found[table] = sorted(repr(tuple(map(_whole, row))) for row in cursor.fetchall())
        for what, sql in {
            "triggers": "SELECT TRIM(RDB$TRIGGER_NAME), RDB$TRIGGER_INACTIVE FROM RDB$TRIGGERS"
            " WHERE RDB$SYSTEM_FLAG=0",
            "identities": "SELECT TRIM(RDB$RELATION_NAME), RDB$IDENTITY_TYPE"
            " FROM RDB$RELATION_FIELDS WHERE RDB$IDENTITY_TYPE IS NOT NULL",
            "publication": "SELECT RDB$ACTIVE_FLAG FROM RDB$PUBLICATIONS",
            "published": "SELECT TRIM(RDB$TABLE_NAME) FROM RDB$PUBLICATION_TABLES",
            "procedures": "SELECT TRIM(RDB$PROCEDURE_NAME), RDB$PROCEDURE_SOURCE"
            " FROM RDB$PROCEDURES WHERE RDB$SYSTEM_FLAG=0",
            "exceptions": "SELECT TRIM(RDB$EXCEPTION_NAME) FROM RDB$EXCEPTIONS",
        }.items():
            cursor.execute(sql)
            found[f"({what})"] = sorted(repr(tuple(map(_whole, row))) for row in cursor.fetchall())
        cursor.execute(
            "SELECT TRIM(RDB$GENERATOR_NAME) FROM RDB$GENERATORS WHERE RDB$SYSTEM_FLAG<>1"
        )
        names = [name for (name,) in cursor.fetchall()]
        found["(sequences)"] = [
            (name, cursor.execute(f'SELECT GEN_ID("{name}",0) FROM RDB$DATABASE').fetchone()[0])
            for name in sorted(names)
        ]
        return found


def _whole(value: Any) -> Any:
    if hasattr(value, "read"):
        with value as blob:
            return blob.read()
    return value
