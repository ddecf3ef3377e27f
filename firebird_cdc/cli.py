"""The command ``firebird-cdc``: finds the module of a subcommand and calls it.

Every module with commands defines ``register(subparsers)``; each parser it adds sets ``run`` to a
function that takes the parsed arguments and returns the exit code. Exit codes: 0 done, 1 the work
failed, 2 wrong usage or configuration, 130 Ctrl-C, 141 nobody reads what is printed, both as shells
have them; ``check`` has its own (packaging/server/findings.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from firebird_cdc import __version__, output
from firebird_cdc.errors import FirebirdCdcError, refused

MODULES = {
    "ship": "journal.shipper.commands.ship",
    "status": "journal.shipper.commands.status",
    "tail": "journal.shipper.commands.tail",
    "journal": "journal.shipper.commands.journal",
    "snapshot": "journal.shipper.commands.snapshot",
    "replay": "journal.replay.commands",
    "install": "packaging.commands",
    "uninstall": "packaging.commands",
    "check": "packaging.commands",
    "upgrade": "packaging.upgrading",
    "prune": "packaging.upgrading",
    "init": "packaging.init_options",
    "tables": "packaging.enabling",
    "enable": "packaging.enabling",
    "disable": "packaging.enabling",
    "completion": "completion",
}
"""The module of each subcommand, in the order of ``--help``."""

_VERSION = "--version"


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of COMMAND, or of all if that is no subcommand, and of none for the
    version. The others are not imported, which would take longer than most commands do."""
    parser = argparse.ArgumentParser(
        prog="firebird-cdc",
        description="Change data capture for Firebird and RED Database servers.",
    )
    parser.add_argument(_VERSION, action="version", version=f"firebird-cdc {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if command in MODULES:
        modules = [MODULES[command]]
    else:
        modules = [] if command == _VERSION else list(MODULES.values())
    for module in dict.fromkeys(modules):
        import_module(f"firebird_cdc.{module}").register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error of ours, or of rights, ends in one sentence on stderr."""
    output.take_all_letters()
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:  # the process may have none
                sys.stdout.flush()
    except BrokenPipeError:
        if not output.is_unread():
            raise
        output.discard()
        return 141


def _run(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser(*words[:1]).parse_args(words)
    try:
        code: int = arguments.run(arguments)
    except FirebirdCdcError as error:
        print(f"firebird-cdc: {error}", file=sys.stderr)
        return error.exit_code
    except PermissionError as error:
        print(f"firebird-cdc: {refused(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code
