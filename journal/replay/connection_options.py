"""Options of commands that attach to a database; without Spark."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from firebird_cdc.config.arguments import positive
from firebird_cdc.config.attachment import read_password
from firebird_cdc.errors import UsageError
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firebird_cdc.config import ConnectorConfig

_PASSWORD_VARIABLE = "ISC_PASSWORD"  # noqa: S105  (the variable's name)


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--connect``, ``--against-database`` and what belongs to them."""
    group = parser.add_argument_group("the live database")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--connect",
        metavar="[HOST[/PORT]:]PATH",
        help="compare the journals with this database, which may be in use",
    )
    where.add_argument(
        "--against-database",
        action="store_true",
        help="the same with the database of the journals, attached to as --config says"
        " (database.hostname and so on)",
    )
    add_login_options(group, user="who attaches")
    group.add_argument(
        "--parallel",
        metavar="N",
        type=positive,
        default=0,
        help="attachments that read at a time (default: as many as Spark has cores)",
    )


def add_login_options(group: argparse._ArgumentGroup, *, user: str) -> None:
    """Add who attaches, and with which library. USER: what ``--user`` says of itself."""
    group.add_argument("--user", metavar="NAME", help=user)
    group.add_argument(
        "--password-file",
        metavar="FILE",
        type=Path,
        help=f"file with the password alone (default: ${_PASSWORD_VARIABLE})",
    )
    group.add_argument("--client-library", metavar="FILE", help="path of libfbclient.so.2")


def connection_of(
    arguments: argparse.Namespace, config: ConnectorConfig | None, databases: Sequence[str]
) -> DatabaseConnection:
    """Return what the options of `add_connection_options` say.

    databases: those of the journals, for ``--against-database``. Raises UsageError for what is
    missing, ConfigError if the password can't be read.
    """
    attachment = None if config is None else config.attachment
    library = arguments.client_library
    if library is None and attachment is not None and attachment.client_library is not None:
        library = str(attachment.client_library)
    if arguments.connect is not None:
        dsn = arguments.connect
    elif attachment is None:
        raise UsageError(
            "--against-database needs --config, which says how to attach; or give --connect"
        )
    elif len(set(databases)) != 1:
        raise UsageError(
            "the journals are of several databases; say with --database PATH which one is compared"
        )
    else:
        dsn = attachment.target(databases[0])
    user, password = arguments.user, password_of(arguments)
    if user is None and attachment is not None:
        user = attachment.user
        if password is None:
            password = attachment.password()
    return DatabaseConnection(dsn, user, password, library)


def password_of(arguments: argparse.Namespace) -> str | None:
    """Return the password of ``--password-file`` or of the environment, None if there is none."""
    if arguments.password_file is None:
        return os.environ.get(_PASSWORD_VARIABLE)
    return read_password("--password-file", arguments.password_file)
