"""The command ``firebird-cdc``: finds the package of a subcommand and calls it.

Every package with commands has a module ``commands`` that defines
``register(subparsers)``; each parser it adds sets ``run`` to a function that takes the
parsed arguments and returns the exit code. Exit codes: 0 done, 1 the work failed,
2 wrong usage or configuration, 130 Ctrl-C, 141 nobody reads what is printed, both as shells have
them; ``check`` has its own (packaging/server/findings.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from firebird_cdc import __version__, output
from firebird_cdc.errors import FirebirdCdcError, refused


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with the subcommands of all packages."""
    from firebird_cdc import completion
    from firebird_cdc.journal.replay import commands as replay
    from firebird_cdc.journal.shipper import commands as shipper
    from firebird_cdc.packaging import commands as packaging

    parser = argparse.ArgumentParser(
        prog="firebird-cdc",
        description="Change data capture for Firebird and RED Database servers.",
    )
    parser.add_argument("--version", action="version", version=f"firebird-cdc {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for package in (shipper, replay, packaging):
        package.register(subparsers)
    completion.register(subparsers, parser)
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
    arguments = build_parser().parse_args(argv)
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
