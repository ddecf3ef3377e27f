"""Attachments of ordinary clients to a database, by firebird-driver."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firebird_cdc.config.attachment import find_client_library
from firebird_cdc.errors import ClientMissing, DatabaseUnreadable
from firebird_cdc.journal.folder.reading_socket import READING
from firebird_cdc.journal.snapshot.server_attachment import (
    ServerAttachment,
    attach_by_server,
    is_served,
)

_SHARED_MODES = ("superclassic", "threadedshared", "classic", "multiprocess")
_TRIGGERS = "IGNORE_DB_TRIGGERS"  # the system privilege, in the engine's message

NAME = "CAST(TRIM(TRAILING FROM {}) AS VARCHAR(252) CHARACTER SET OCTETS)"
"""SQL for a name of the system tables as its bytes in UTF-8; see `text_of`."""

# host:path, host/port:path, [address]/port:path and inet://host:port/path
_WITH_HOST = re.compile(
    r"(?:inet[46]?://)?(?:\[(?P<address>[^\]]+)\]|(?P<host>[^/:\[\]]+))(?:/\w+)?:"
)


@dataclass(frozen=True, slots=True)
class DatabaseConnection:
    """A database as the client library wants it named, and who attaches.

    ``dsn``: ``host/port:path``, or a path for the engine in this process. ``user`` None: whom the
    client library takes. ``client_library``: path of libfbclient on every machine that reads;
    None leaves it to $FIREBIRD and the system. ``statements``: SQL that is run after each connect.
    ``sockets``: the folder of those of servers, one of which reads the database; see `found_way`.
    The password is never shown.
    """

    dsn: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    client_library: str | None = None
    statements: tuple[str, ...] = ()
    sockets: Path | None = None

    @property
    def is_of_this_machine(self) -> bool:
        """Tell whether the server, or the engine without one, is known to run on this machine."""
        found = _WITH_HOST.match(self.dsn)
        if found is None:
            return True
        host = (found["address"] or found["host"]).lower()
        return (
            host in ("localhost", "::1", socket.gethostname().lower())
            or re.fullmatch(r"127(\.\d+){3}", host) is not None
        )


def has_host(database: str) -> bool:
    """Tell whether DATABASE names a server to attach through."""
    return _WITH_HOST.match(database) is not None


def found_way(how: DatabaseConnection, state: Path, *, by_server: bool) -> DatabaseConnection:
    """Return how to attach: HOW itself, or by a server process without a password.

    With a host it is HOW. Without one, and BY_SERVER, a server that has the database for itself
    reads it; where there is none, the engine in this process opens the file, if it may be shared.
    state: the journal folder's state folder. Raises DatabaseUnreadable.
    """
    if has_host(how.dsn):
        return how
    if by_server and is_served(state / READING, how.dsn):
        return replace(how, sockets=state / READING)
    require_shared_files(
        how,
        ", as soon as one that captures it is in use, or"
        if by_server
        else "; set connector.snapshot.by.server: true and restart the server, or",
    )
    return how


def require_shared_files(how: DatabaseConnection, first: str = ";") -> None:
    """Raise DatabaseUnreadable where attaching would keep a server out of the database; FIRST: what
    is said of how it could be done before that.

    Without a host the engine in this process opens the file, as its firebird.conf says: with
    ServerMode = Super for itself alone, whenever no server has it open just then.
    """
    if has_host(how.dsn):
        return
    conf = _load_library(how).master.get_config_manager().get_firebird_conf()
    mode = str(conf.as_string(conf.get_key("ServerMode")) or "")
    if mode.lower() not in _SHARED_MODES:
        raise DatabaseUnreadable(
            f"nobody may attach to {how.dsn} beside a server with ServerMode = {mode or 'Super'},"
            f" which has the file for itself: it has to be used through the server{first} set"
            " database.hostname, database.user and database.password.file"
        )


def _load_library(how: DatabaseConnection) -> Any:
    """Load the client library of HOW, and return the driver's interface to it. Raises
    ClientMissing."""
    try:
        from firebird.driver import driver_config, get_api
    except ImportError:
        raise ClientMissing(
            "the package firebird-driver is missing where the database is read; get it there:"
            " pip install firebird-driver"
        ) from None
    library = how.client_library
    if library is None and (root := os.environ.get("FIREBIRD")):
        library = find_client_library(Path(root))
    if library is not None:
        driver_config.fb_client_library.value = library
    try:
        return get_api()
    except Exception as error:  # the driver's for a library that it can't find or load
        raise ClientMissing(
            f"cannot load Firebird's client library{f' {library}' if library else ''}, which has to"
            f" be there on every machine that reads the database: {one_line(error)}; install it"
            " (Debian: libfbclient2), or name it in database.client.library of the connector"
            " options (replay commands: --client-library)"
        ) from None


def attach(how: DatabaseConnection) -> Any:
    """Return a connection of firebird-driver, or the `ServerAttachment` in place of one. Raises
    DatabaseUnreadable naming what is missing, or what the server says."""
    if how.sockets is not None:
        return _attach_by_server(how, how.sockets)
    _load_library(how)
    from firebird.driver import Error, connect

    settings: dict[str, Any] = {
        "user": how.user,
        "password": how.password,
        "charset": "NONE",  # texts come as they are stored
        "no_gc": True,
    }
    try:
        try:
            connection = connect(how.dsn, no_db_triggers=True, **settings)
        except Error as error:
            if _TRIGGERS not in str(error):
                raise
            # A user who may not leave the database's triggers out can still read.
            connection = connect(how.dsn, **settings)
    except Error as error:
        raise DatabaseUnreadable(f"cannot attach to {how.dsn}: {one_line(error)}") from None
    # Names in statements are in the system's own character set.
    connection._att.encoding = "utf-8"
    try:
        for statement in how.statements:
            connection.execute_immediate(statement)
            connection.commit()
    except Error as error:
        connection.close()
        what = "a statement of database.initial.statements failed"
        raise DatabaseUnreadable(f"{how.dsn}: {what}: {one_line(error)}") from None
    return connection


def _attach_by_server(how: DatabaseConnection, sockets: Path) -> ServerAttachment:
    from firebird.driver import Error

    if how.statements:
        raise DatabaseUnreadable(
            f"{how.dsn}: database.initial.statements can't be run without credentials; set"
            " database.hostname, database.user and database.password.file"
        )
    try:
        attachment = attach_by_server(sockets, how.dsn)
    except Error as error:
        raise DatabaseUnreadable(f"cannot attach to {how.dsn}: {one_line(error)}") from None
    if attachment is None:
        raise DatabaseUnreadable(f"no server that runs captures {how.dsn} any more")
    return attachment


def have_types_as_stored(connection: Any) -> None:
    """Have values come as the database has them, in the transaction that runs and later; a server's
    attachment has that from the start."""
    if isinstance(connection, ServerAttachment):
        return
    for what in ("TIME ZONE", "DECFLOAT", "INT128"):
        connection.execute_immediate(f"SET BIND OF {what} TO NATIVE")


def fetch_all(transaction: Any, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of SQL, run in TRANSACTION or in a connection's main one."""
    with transaction.cursor() as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def text_of(value: bytes | str) -> str:
    """Return a name that was read from the system tables."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def one_line(error: Exception) -> str:
    """Return what ERROR of the driver's says, which it does in several lines."""
    return " ".join(str(error).split()) or type(error).__name__
