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
_LAST = struct.Struct("<36xI")
_HIGH_LAST = struct.Struct("<120xH")
INVENTORY_HEAD = 20  # bytes before the states


def oldest_interesting(header: bytes) -> int:
    """Return the OIT: the engine takes every transaction below it for committed."""
    return int(_HIGH_OLDEST.unpack_from(header)[0] << 32 | _OLDEST.unpack_from(header)[0])


def states(page: bytes) -> list[int]:
    """Return the state of each transaction of an inventory page."""
    return [byte >> shift & 3 for byte in page[INVENTORY_HEAD:] for shift in (0, 2, 4, 6)]


def last_transaction(header: bytes) -> int:
    """Return the number that was given last."""
    return int(_HIGH_LAST.unpack_from(header)[0] << 32 | _LAST.unpack_from(header)[0])


def on_disk(database: Path, transaction: int) -> tuple[int, int]:
    """Return the state of a transaction of the first inventory page, and the OIT."""
    content = database.read_bytes()
    at, size = _first_inventory(content)
    return states(content[at : at + size])[transaction], oldest_interesting(content)


def given_twice(database: Path) -> set[int]:
    """Return numbers that the engine has still to give, and that count as committed already.

    Under Super a transaction that only reads writes neither its number into the header nor its
    state into the inventory (tra.cpp: bump_transaction_id, TRA_set_state); a commit beside it
    writes the page with both states. If the server is killed then, the next one gives the number
    to another transaction. One in 60 kills of a server without our plugin left such a number.
    """
    content = database.read_bytes()
    at, size = _first_inventory(content)
    following = last_transaction(content) + 1
    found = states(content[at : at + size])[following:]
    return {following + index for index, state in enumerate(found) if state == COMMITTED}


def give_twice(database: Path) -> int:
    """Leave a database as in `given_twice`, with no server there; return the number."""
    content = bytearray(database.read_bytes())
    at, _ = _first_inventory(content)
    number = last_transaction(content) + 1
    content[at + INVENTORY_HEAD + number // 4] |= COMMITTED << number % 4 * 2
    database.write_bytes(content)
    return number


def _first_inventory(content: bytes) -> tuple[int, int]:
    """Return where the first inventory page begins, and its size."""
    (size,) = _SIZE.unpack_from(content)
    return next(at for at in range(size, len(content), size) if content[at] == INVENTORY), size
