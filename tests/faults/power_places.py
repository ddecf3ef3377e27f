"""Places of cuts in a record: by chance, preferably where something becomes durable or visible.

A window is a part of a record in which the disk has a header whose OIT is above a transaction that
commits, while the write of the inventory page with its commit has not returned. A cut there can
leave a transaction that the engine takes for committed by its number alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from power_disk import (
    CREATE,
    NOTE,
    RENAME,
    RESIZE,
    SYNC_BEGIN,
    SYNC_END,
    UNLINK,
    WRITE,
    WRITTEN,
    File,
    Record,
)
from transaction_pages import (
    ACTIVE,
    COMMITTED,
    INVENTORY,
    INVENTORY_HEAD,
    oldest_interesting,
    states,
)

_WEIGHTS = {
    CREATE: 2,
    WRITE: 2,
    RENAME: 6,
    UNLINK: 4,
    SYNC_BEGIN: 2,
    SYNC_END: 4,
    WRITTEN: 4,
    NOTE: 6,
}
_IN_WINDOW = 30  # times as likely


def windows(records: Sequence[Record], inode: int, content: bytes, page_size: int) -> set[int]:
    """Return the records after which a cut is in a window.

    INODE: of the database; CONTENT: what it held when the record began.
    """
    database = File(page_size, False, bytearray(content), bytearray(content))
    begun: dict[tuple[int, int], Record] = {}
    found: set[int] = set()
    committing: set[int] = set()
    is_in_window = False
    for record in records:
        key = record.process, record.pair
        if record.kind in (SYNC_BEGIN, WRITE) and record.pair and record.inode in (0, inode):
            begun[key] = record
        if record.kind == WRITE and record.inode == inode:
            database.write(record.order, record.offset, record.content)
        elif record.kind == RESIZE and record.inode == inode:
            database.resize(record.order, record.offset)
        elif record.kind == SYNC_END and record.inode in (0, inode):
            database.settle(begun.pop(key).order)
        elif record.kind == WRITTEN and key in begun:
            write = begun.pop(key)
            last = (write.offset + len(write.content) - 1) // page_size
            database.settle(write.order + 1, write.offset // page_size, last)
        else:
            kind, _, number = record.text.partition(" ") if record.kind == NOTE else ("", "", "")
            committing |= {int(number)} if kind == "number" else set()
            if is_in_window:
                found.add(record.order)
            continue
        is_in_window = _is_window(database, page_size, committing)
        if is_in_window:
            found.add(record.order)
    return found


def _is_window(database: File, page_size: int, committing: set[int]) -> bool:
    oldest = oldest_interesting(database.durable)
    end = INVENTORY_HEAD + oldest // 4  # one byte tells of four; a record has no second such page
    for number, pieces in database.pieces.items():
        written = pieces[-1].content
        if written[0] != INVENTORY:
            continue
        durable = database.durable[number * page_size : (number + 1) * page_size]
        if written[INVENTORY_HEAD:end] == durable[INVENTORY_HEAD:end]:
            continue
        both = enumerate(zip(states(durable[:end]), states(written[:end]), strict=True))
        became = {number for number, pair in both if pair == (ACTIVE, COMMITTED)}
        if any(number < oldest for number in became & committing):
            return True
    return False


def places(
    records: Sequence[Record],
    within: set[int],
    chance: random.Random,
    count: int,
    is_directed: bool = False,
) -> Counter[int]:
    """Return after which records to cut, and how often.

    WITHIN: those that are in a window; IS_DIRECTED: only there, if there is any.
    """
    if is_directed and within:
        return Counter(chance.choices(sorted(within), k=count))
    weights = [
        _WEIGHTS.get(record.kind, 1) * (_IN_WINDOW if record.order in within else 1)
        for record in records
    ]
    found: set[int] = set()
    while len(found) < count:
        place = chance.choices(records, weights)[0].order + chance.choice((-1, 0, 0, 1))
        found.add(min(max(place, 0), len(records) - 1))
    return Counter(found)
