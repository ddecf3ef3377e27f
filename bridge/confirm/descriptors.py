"""Limits the descriptors that the bridge has open at once, as a server's are few.

A server opens any number of databases, one after the other. What is open of one that nobody works
in saves some microseconds the next time, and is closed once it was not used for a while, or as soon
as there is more of it than a share of the process's limit.
"""

from __future__ import annotations

import resource

IDLE_S = 60.0
"""For how long what is not used stays open."""

_SHARE = 16  # of the process's limit, for each kind
_LEAST, _MOST = 4, 256


def most_open() -> int:
    """Return how many files of one kind may be open at once: of databases that nobody uses now, or
    of journals that are being closed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if limit == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, limit // _SHARE))
