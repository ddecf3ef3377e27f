"""The two kinds of database page that tell what became of a transaction, read as bytes.

Read here once more, apart from the bridge's own reading (journal/folder/inventory.py), so that a
test can say what is on disk without asking the code under test. On-disk structure 13; the engine's
ods.h.
"""

from __future__ import annotations

import struct
from pathlib import Path

HEADER, INVENTORY = 1, 3  # kinds of page, in their first byte
ACTIVE, LIMBO, DEAD, COMMITTED = range(4)
_SIZE = struct.Struct("<16xH")
_OLDEST = struct.Struct("<28xI")
_HIGH_OLDEST = struct.Struct("<122xH")
INVENTORY_HEAD = 20  # bytes before the states


def oldest_interesting(header: bytes) -> int:
    """Return the OIT: the engine takes every transaction below it for committed."""
    return int(_HIGH_OLDEST.unpack_from(header)[0] << 32 | _OLDEST.unpack_from(header)[0])


def states(page: bytes) -> list[int]:
    """Return the state of each transaction of an inventory page."""
    return [byte >> shift & 3 for byte in page[INVENTORY_HEAD:] for shift in (0, 2, 4, 6)]


def on_disk(database: Path, transaction: int) -> tuple[int, int]:
    """Return the state of a transaction of the first inventory page, and the OIT."""
    content = database.read_bytes()
    (size,) = _SIZE.unpack_from(content)
    pages = (content[at : at + size] for at in range(size, len(content), size))
    first = next(page for page in pages if page[0] == INVENTORY)
    return states(first)[transaction], oldest_interesting(content)
