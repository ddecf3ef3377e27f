"""Looks at running things for ``check``: accounts, locks, Kafka, databases. Changes nothing."""

from __future__ import annotations

import ctypes.util
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from firebird_cdc.config.attachment import Attachment, find_client_library
from firebird_cdc.packaging.ddl_triggers import DdlTrigger, ddl_triggers
from firebird_cdc.packaging.server.conf import ConfFile, find
from firebird_cdc.packaging.server.layout import Server

_KAFKA_TIMEOUT_S = 10.0
_DEFAULT_PORT = 3050
_SYSDBA = "SYSDBA"
# Where the packages of Debian and of the Firebird project leave the password that they have made.
_PASSWORD_FILE = "SYSDBA.password"  # noqa: S105
_ISC_PASSWORD = re.compile(r"""^\s*ISC_PASSWORD=["']?([^"'\s]+)""", re.MULTILINE)
_LOCAL = re.compile(r"/|(?:127\.0\.0\.1|localhost)[/:]")


def is_locked(path: Path) -> bool:
    """Tell whether a process holds a flock on PATH, without touching the lock.

    Source: proc(5), /proc/locks: kind, and device and inode of the locked file.
    """
    try:
        status = path.stat()
        locks = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(" FLOCK " in line and f" {device} " in line for line in locks)


def kafka_problem(producer: Mapping[str, str]) -> str | None:
    """Ask the cluster for its metadata; return why it didn't answer, or None."""
    from confluent_kafka import KafkaError, KafkaException, Producer

    errors: list[Any] = []
    aside = {"transactional.id", "enable.idempotence"}  # those would make it look for more
    settings: dict[str, Any] = {k: v for k, v in producer.items() if k not in aside}
    settings.update(error_cb=errors.append, log_level=0)
    try:
        client = Producer(settings)
    except KafkaException as error:
        return str(error.args[0].str())
    deadline = time.monotonic() + _KAFKA_TIMEOUT_S
    while True:
        try:
            return None if client.list_topics(timeout=1).brokers else "it names no broker"
        except KafkaException as error:
            client.poll(0)
            refused = any(e.code() == KafkaError._ALL_BROKERS_DOWN for e in errors)
            if refused or time.monotonic() > deadline:
                # What happened to the connections says more than that the time is up.
                return str((errors or [error.args[0]])[0].str())


class Publication(NamedTuple):
    """Publication of a database: whether it is on, its tables, and those of them without a key.

    ``outside``: the other tables of the user that hold data for good; ``forced_writes``: whether
    the engine waits until a commit is on disk; ``engine``: its version, such as 5.0.4;
    ``ddl_triggers``: those on DDL that may write.
    """

    enabled: bool
    tables: list[str]
    without_key: list[str]
    outside: list[str]
    forced_writes: bool
    engine: str
    ddl_triggers: Sequence[DdlTrigger] = ()


def read_publication(
    server: Server, database: str, attachment: Attachment | None = None
) -> Publication:
    """Return what DATABASE (a path, or HOST[/PORT]:PATH) publishes.

    A bare path of a server is asked over loopback: an attachment of our own beside a running
    server would leave lock files that are not the server's. ATTACHMENT: of the connector
    options, see `attached`. Raises any error of the driver, and ConfigError.
    """
    with attached(server, database, attachment) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT RDB$ACTIVE_FLAG FROM RDB$PUBLICATIONS")
        enabled = any(row[0] for row in cursor.fetchall())
        cursor.execute("SELECT TRIM(RDB$TABLE_NAME) FROM RDB$PUBLICATION_TABLES ORDER BY 1")
        tables = [row[0] for row in cursor.fetchall()]
        cursor.execute(
            # What native/catalogue.c takes for a key is always a unique index, too.
            "SELECT TRIM(T.RDB$TABLE_NAME) FROM RDB$PUBLICATION_TABLES T WHERE NOT EXISTS ("
            " SELECT 1 FROM RDB$INDICES I WHERE I.RDB$RELATION_NAME = T.RDB$TABLE_NAME"
            " AND I.RDB$UNIQUE_FLAG = 1 AND COALESCE(I.RDB$INDEX_INACTIVE, 0) = 0"
            " AND I.RDB$EXPRESSION_BLR IS NULL AND NOT EXISTS ("
            "  SELECT 1 FROM RDB$INDEX_SEGMENTS S JOIN RDB$RELATION_FIELDS R"
            "   ON R.RDB$RELATION_NAME = I.RDB$RELATION_NAME"
            "   AND R.RDB$FIELD_NAME = S.RDB$FIELD_NAME"
            "  JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE"
            "  WHERE S.RDB$INDEX_NAME = I.RDB$INDEX_NAME"
            "   AND COALESCE(R.RDB$NULL_FLAG, F.RDB$NULL_FLAG, 0) = 0)) ORDER BY 1"
        )
        without_key = [row[0] for row in cursor.fetchall()]
        cursor.execute(
            # RDB$RELATION_TYPE: 0 is a persistent table; 2 (external) is never published.
            "SELECT TRIM(R.RDB$RELATION_NAME) FROM RDB$RELATIONS R WHERE R.RDB$SYSTEM_FLAG = 0"
            " AND R.RDB$RELATION_TYPE = 0 AND NOT EXISTS (SELECT 1 FROM RDB$PUBLICATION_TABLES T"
            "  WHERE T.RDB$TABLE_NAME = R.RDB$RELATION_NAME) ORDER BY 1"
        )
        outside = [row[0] for row in cursor.fetchall()]
        cursor.execute("SELECT MON$FORCED_WRITES FROM MON$DATABASE")
        forced_writes = bool(cursor.fetchone()[0])
        cursor.execute("SELECT RDB$GET_CONTEXT('SYSTEM', 'ENGINE_VERSION') FROM RDB$DATABASE")
        (version,) = cursor.fetchone()
        triggers = ddl_triggers(connection)
        return Publication(enabled, tables, without_key, outside, forced_writes, version, triggers)


@contextmanager
def attached(server: Server, database: str, attachment: Attachment | None = None) -> Iterator[Any]:
    """Attach to DATABASE with firebird-driver, as `read_publication` has it.

    As ISC_USER and ISC_PASSWORD say, else as ATTACHMENT does, else, on this machine, with what is
    in SYSDBA.password.
    """
    from firebird import driver

    library = _client_library(server)
    if library is not None:
        driver.driver_config.fb_client_library.value = library
    if server.root == server.conf_directory:
        os.environ.setdefault("FIREBIRD", str(server.root))
    if database.startswith("/") and any(server.root.glob("security*.fdb")):
        database = f"127.0.0.1/{server_port(server)}:{database}"
    user, password = _login(server, database, attachment)
    connection = driver.connect(database, user=user, password=password, no_db_triggers=True)
    try:
        yield connection
    finally:
        connection.close()


def _login(server: Server, database: str, attachment: Attachment | None) -> tuple[str, str | None]:
    """Return user and password for DATABASE. Raises ConfigError if a password can't be read."""
    if not {"ISC_USER", "ISC_PASSWORD"}.isdisjoint(os.environ):
        return os.environ.get("ISC_USER", _SYSDBA), os.environ.get("ISC_PASSWORD")
    if attachment is not None and attachment.user is not None:
        return attachment.user, attachment.password()
    if _LOCAL.match(database):
        for folder in (server.conf_directory, server.root):
            with suppress(OSError):
                found = _ISC_PASSWORD.search((folder / _PASSWORD_FILE).read_text("utf-8"))
                if found is not None:
                    return _SYSDBA, found[1]
    return _SYSDBA, None


def server_port(server: Server) -> int:
    """Return the TCP port that the server's configuration names."""
    configuration = (server.root / "firebird.conf").resolve()
    for entry in reversed(find(ConfFile.read(configuration).expanded(), "RemoteServicePort")):
        if entry.value.isdigit():
            return int(entry.value)
    return _DEFAULT_PORT


def _client_library(server: Server) -> str | None:
    return find_client_library(server.root) or ctypes.util.find_library("fbclient")
