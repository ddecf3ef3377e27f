"""Limits the descriptors that the bridge keeps for work that may come, as a server's are few.

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


def most_idle() -> int:
    """Return how many databases may have something of one kind open that nobody uses now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if limit == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, limit // _SHARE))
