"""Says how commands attach to the database that they are given, as PATH or HOST[/PORT]:PATH."""

from __future__ import annotations

import ctypes.util
import os
import re
from contextlib import suppress
from pathlib import Path

from firebird_cdc.config.attachment import Attachment, find_client_library
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection, has_host
from firebird_cdc.packaging.server.conf import ConfFile, find
from firebird_cdc.packaging.server.layout import Server

_DEFAULT_PORT = 3050
_SYSDBA = "SYSDBA"
# Where the packages of Debian and of the Firebird project leave the password that they have made.
_PASSWORD_FILE = "SYSDBA.password"  # noqa: S105
_ISC_PASSWORD = re.compile(r"""^\s*ISC_PASSWORD=["']?([^"'\s]+)""", re.MULTILINE)
_LOOPBACK = "127.0.0.1"
_PORT = re.compile(r"[^/:\[\]]+(?:/(\d+))?:")
# What to do, by what the engine says.
_REMEDIES = (
    (
        "user name and password",
        "set ISC_USER and ISC_PASSWORD, or database.user and database.password.file in the"
        " connector options",
    ),
    ("No such file", "there is no such database: correct its path"),
    (
        "network request",
        "see that the server runs, and that host and port (database.hostname, database.port) are"
        " right",
    ),
)
_LOCAL = re.compile(r"/|(?:127\.0\.0\.1|localhost)[/:]")


def connection_to(
    server: Server | None, database: str, attachment: Attachment | None = None
) -> DatabaseConnection:
    """Return how to attach to DATABASE, a path, an alias, or one of these behind HOST[/PORT]:.

    SERVER: of this machine, None: there is none. ATTACHMENT: of the connector options. Without a
    host it is that of ``database.hostname``, else SERVER over loopback: an attachment of our own
    beside a running server would leave lock files that are not the server's, or find the file
    taken. With neither, and with a SERVER that is an engine alone, the engine in this process opens
    the file. User and password are those of ISC_USER and ISC_PASSWORD, else of ATTACHMENT, else,
    on this machine, what is in SYSDBA.password. Raises ConfigError if a password can't be read.
    """
    if server is not None and server.root == server.conf_directory:
        os.environ.setdefault("FIREBIRD", str(server.root))
    target = _target(server, database, attachment)
    user, password = _login(server, target, attachment)
    library = None if attachment is None else attachment.client_library
    return DatabaseConnection(
        target,
        user,
        password,
        str(library) if library else _client_library(server),
        () if attachment is None else attachment.statements,
    )


def remedy_for(error: Exception) -> str:
    """Return what to do about ERROR of an attachment; empty: that is not known."""
    return next((remedy for said, remedy in _REMEDIES if said in str(error)), "")


def is_through(server: Server, how: DatabaseConnection) -> bool:
    """Tell whether HOW is known to attach through SERVER, or without any to a file of its
    machine."""
    if not has_host(how.dsn):
        return True
    found = _PORT.match(how.dsn)
    if found is None or not how.is_of_this_machine:
        return False
    return int(found[1] or _DEFAULT_PORT) == server_port(server)


def _target(server: Server | None, database: str, attachment: Attachment | None) -> str:
    if has_host(database):
        return database
    if not database.startswith("/") and (path := Path(database)).exists():
        database = str(path.resolve())
    if attachment is not None and attachment.hostname is not None:
        return attachment.target(database)
    if server is not None and any(server.root.glob("security*.fdb")):
        return f"{_LOOPBACK}/{server_port(server)}:{database}"
    return database


def _login(
    server: Server | None, target: str, attachment: Attachment | None
) -> tuple[str, str | None]:
    """Return user and password for TARGET. Raises ConfigError if a password can't be read."""
    if not {"ISC_USER", "ISC_PASSWORD"}.isdisjoint(os.environ):
        return os.environ.get("ISC_USER", _SYSDBA), os.environ.get("ISC_PASSWORD")
    if attachment is not None and attachment.user is not None:
        return attachment.user, attachment.password()
    if server is not None and _LOCAL.match(target):
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


def _client_library(server: Server | None) -> str | None:
    own = None if server is None else find_client_library(server.root)
    return own or ctypes.util.find_library("fbclient")
