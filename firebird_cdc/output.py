"""Standard output, whose reader may have seen enough, as ``head`` has, or lack letters."""

from __future__ import annotations

import io
import os
import select
import sys

_STDOUT = 1


def printable(line: str) -> str:
    """Return LINE without what could command a terminal or begin another line: names and messages
    come from elsewhere."""
    return "".join(c if c.isprintable() else "?" for c in line)


def tell(line: str) -> None:
    """Print LINE, which stays one."""
    print(printable(line))


def take_all_letters() -> None:
    """Have standard output and error show letters that their encoding lacks as ``\\u2026``."""
    for stream in (sys.stdout, sys.stderr):
        # The process may have none; and bytes of names that are no text stay as they are.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def is_unread() -> bool:
    """Tell whether standard output is a pipe that nobody reads any more."""
    ready = select.poll()
    ready.register(_STDOUT, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in ready.poll(0))


def discard() -> None:
    """Have standard output lead nowhere: Python complains at exit of what it can't write."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)
