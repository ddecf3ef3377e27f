"""Standard output, whose reader may have seen enough, as ``head`` has."""

from __future__ import annotations

import os
import select

_STDOUT = 1


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
