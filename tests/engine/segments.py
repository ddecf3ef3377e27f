"""Has the driver write BLOBs in small segments; run in a client process by ``Client.perform``."""

from __future__ import annotations

from firebird.driver import core


def limit(size: int) -> None:
    """Write segments of at most SIZE bytes."""
    core.MAX_BLOB_SEGMENT_SIZE = size
