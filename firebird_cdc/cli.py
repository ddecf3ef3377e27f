"""The command ``firebird-cdc``: finds the room a subcommand lives in and calls it.

Every room with commands has a module ``commands`` that defines
``register(subparsers)``; each parser it adds sets ``run`` to a function that takes the
parsed arguments and returns the exit code. Exit codes: 0 done, 1 the work failed,
2 wrong usage or configuration, 141 whoever reads the output has left, as shells have it for
SIGPIPE; ``check`` has its own (packaging/findings.py).
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence

from firebird_cdc import __version__
from firebird_cdc.errors import FirebirdCdcError, refused


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with the subcommands of all rooms."""
    from firebird_cdc.demo import commands as demo
    from firebird_cdc.journal import commands as journal
    from firebird_cdc.packaging import commands as packaging

    parser = argparse.ArgumentParser(
        prog="firebird-cdc",
        description="Change data capture for Firebird and RED Database servers.",
    )
    parser.add_argument("--version", action="version", version=f"firebird-cdc {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for room in (demo, journal, packaging):
        room.register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error of ours, or of rights, ends in one sentence on stderr."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except FirebirdCdcError as error:
        print(f"firebird-cdc: {error}", file=sys.stderr)
        return error.exit_code
    except PermissionError as error:
        print(f"firebird-cdc: {refused(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        if not _is_left_alone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush
        return 141
    except KeyboardInterrupt:
        return 130
    return code


def _is_left_alone() -> bool:
    """Tell whether nobody reads standard output any more."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))
