"""Failures that say more of the process than of the file: it lacks descriptors or memory."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_shortage(error: Exception) -> bool:
    """Tell whether ERROR is of what this process lacks for anything that it tries."""
    return getattr(error, "errno", None) in _SHORTAGES


@contextlib.contextmanager
def kept(failed: list[OSError]) -> Iterator[None]:
    """Add an OSError to FAILED in place of raising it, unless no other file would do better."""
    try:
        yield
    except OSError as error:
        if is_shortage(error):
            raise
        failed.append(error)
