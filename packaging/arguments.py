"""Arguments that several commands of this package take."""

from __future__ import annotations

import argparse
from pathlib import Path

LOGIN_HELP = (
    "User and password come from ISC_USER and ISC_PASSWORD, else from the options "
    "(database.user), else from SYSDBA.password, which the server's package has placed"
)

_SERVER_HELP = (
    "directory of the server or engine: it holds plugins.conf and plugins/ (/opt/firebird, an "
    "engine root); / stands for a Debian server (default: $FIREBIRD, else the one server that "
    "this machine has)"
)


def add_server_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--server``, which `packaging.server.locating` finds without it."""
    parser.add_argument("--server", type=Path, metavar="ROOT", help=_SERVER_HELP)


def add_dry_run_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--dry-run``."""
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
