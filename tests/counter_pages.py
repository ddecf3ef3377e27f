"""Pages of counters as the plugin writes them (native/counters.h), for tests without an engine."""

from __future__ import annotations

import struct
from pathlib import Path

BOUNDS = tuple(1000 * 2**n for n in range(19))
SLOT = 2048


def counters_page(*paths: str) -> bytearray:
    """Return a page in which each of the databases PATHS has counted 1, 2, 3 and so on."""
    page = bytearray(65536)
    struct.pack_into("<8s6I", page, 0, b"FBCDCCTR", 1, 31, SLOT, 16, 7, len(BOUNDS) + 1)
    struct.pack_into(f"<{len(BOUNDS)}Q", page, 32, *BOUNDS)
    for number, path in enumerate(paths, 1):
        struct.pack_into("<Q256s8Q", page, 2048 + number * SLOT, 1, path.encode(), *range(1, 9))
    return page


def write_lost(path: Path, lost: dict[str, int], made_us: int = 1, config: str = "") -> Path:
    """Write the page PATH, made at a time for a connector's file, that has counted LOST
    transactions by database, and no refused ones."""
    page = counters_page(*lost)
    struct.pack_into("<Q", page, 184, made_us)
    struct.pack_into("<256s", page, 2048 + 8, config.encode())
    for number, count in enumerate(lost.values(), 1):
        struct.pack_into("<8Q", page, 2048 + number * SLOT + 264, 0, count, *[0] * 6)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page)
    return path
