"""Compares rows that snapshots read, ``r`` events, with changes of their keys. No Spark in here.

No journal has such a row, so there is nothing that it has to be. But its cut says which changes it
has and which it has not: so it stands between them, and its content is what the last one before the
cut has left, or what the first one behind it found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from firebird_cdc.journal.replay.audit.gap_attribution import CLOCKS_DIFFER_US
from firebird_cdc.journal.replay.audit.kafka.message_form import are_comparable, are_equal
from firebird_cdc.journal.replay.audit.kafka.rendered import LEFT_OUT

READ = "read"
"""Kind of what is told of each row that was read, by its window and place there."""
DOUBLED, MISPLACED, ALTERED = "doubled read", "misplaced read", "altered read"
"""Kinds of differences."""
OF_READS = (READ, DOUBLED, MISPLACED, ALTERED)

CONTENT = "content"
"""The ``note`` of a difference that journals which are not there may explain, or a change of the
table: it lies between the cut and the other place that is told."""

_Row = dict[str, Any]
_Number = tuple[int, int]


def compare_reads(
    wanted: Sequence[_Row],
    seen: Sequence[_Row],
    reads: Sequence[_Row],
    are_stored: Callable[[str, str], bool],
) -> Iterator[_Row]:
    """Yield what is to be told of READS, rows of one key and topic, as `topic_diff.DIFFERENCE` has
    it.

    WANTED: the changes of the key in their order, with those that are not sent; SEEN: what else the
    topic has of it. ARE_STORED: whether rows of a database and table that were read are those that
    the table has, under its own key.
    """
    changes = [row for row in wanted if row["op"] in ("c", "u", "d")]
    told = _first_copies(seen)
    windows: dict[bytes, _Row] = {}
    for read in reads:
        yield _difference(READ, read)
        misplaced = _by_place(read, told)
        if misplaced is not None:
            yield misplaced
        if not are_stored(read["database"], read["table"]) or not _is_whole_key(read["key"]):
            continue
        first = windows.setdefault(read["journal"], read)
        if first["d"] != read["d"]:  # the same place twice is found by the window
            yield {
                **_difference(DOUBLED, read),
                "what": f"{_name(read)} is the second one of its key in the window; the first is"
                f" row {first['d']}, at offset {first['b']} of partition {first['a']}",
            }
        if misplaced is None:
            of_table = read["database"], read["table"]
            yield from _by_content(
                read, [row for row in changes if (row["database"], row["table"]) == of_table]
            )


def _first_copies(seen: Iterable[_Row]) -> list[_Row]:
    """Return the changes among SEEN that say where they are from, the first copy of each: a crash
    may repeat them, without a transactional id. Not what came late, and says so, nor what was to be
    left out."""
    found: dict[tuple[Any, ...], _Row] = {}
    for row in seen:
        is_placed = row["journal"] is not None and row["epoch"] is not None and row["note"] is None
        if is_placed and not row.get("is_left_out"):
            found.setdefault((row["a"], row["journal"], row["d"], row["op"]), row)
    return list(found.values())


def _is_whole_key(key: str | None) -> bool:
    """Tell whether a key is one, with no NULL in it: of those there may be several."""
    try:
        values = json.loads(key or "")
    except ValueError:
        return False
    return isinstance(values, dict) and None not in values.values()


def _cut(read: Mapping[str, Any]) -> _Number:
    return (read["epoch"] or 0, read["c"])


def _by_place(read: _Row, told: Sequence[_Row]) -> _Row | None:
    """Return a difference if READ stands on the wrong side of a change."""
    cut = _cut(read)
    for row in told:
        if (row["a"], row["database"]) != (read["a"], read["database"]):
            continue
        is_newer, is_before = (row["epoch"], row["c"]) > cut, row["b"] < read["b"]
        if is_newer is not is_before:
            continue
        where = "behind a change that it can't have" if is_newer else "before a change that it has"
        return {
            **_difference(MISPLACED, read),
            **_other(row["epoch"], row["c"], row["d"], row["transaction"]),
            "what": f"{_name(read)} stands {where}: event {row['d']} of sequence {row['c']}"
            f" (transaction {row['transaction']}), at offset {row['b']}",
        }
    return None


def _by_content(read: _Row, changes: Sequence[_Row]) -> Iterator[_Row]:
    """Yield a difference if READ is not the row that there was at its cut."""
    cut, row = _cut(read), read["row"]
    at = sum(1 for each in changes if each["note"] == LEFT_OUT or (each["a"], each["b"]) <= cut)
    before, behind = changes[:at], changes[at:]
    if before:
        known, due = before[-1], before[-1]["row"]
    elif behind:
        known, due = behind[0], behind[0]["was"]
    else:
        return
    if not are_comparable(row, due) or are_equal(row, due):
        return
    for each in behind:
        # Of two that are committed at one moment, the engine may number the later one first.
        if each["time_us"] > read["time_us"] + CLOCKS_DIFFER_US:
            break
        if not are_comparable(row, each["row"]) or are_equal(row, each["row"]):
            return
    other = next((each for each in reversed(changes) if _is_left_by(row, each)), None)
    if other is None:
        what = "there is no row of its key" if not due else "its content is another one"
        what = f"{what} by {_change(known)}"
    else:
        what = f"its content is what {_change(other)} left, and by {_change(known)} it is another"
    place = known if other is None else other
    yield {
        **_difference(ALTERED if other is None and due else MISPLACED, read),
        **_other(place["a"], place["b"], place["c"], place["transaction"]),
        "note": CONTENT,
        "what": f"{_name(read)} is not the row as of its place: {what}",
    }


def _is_left_by(row: bytes, change: _Row) -> bool:
    return (
        bool(change["row"]) and are_comparable(row, change["row"]) and are_equal(row, change["row"])
    )


def _change(row: _Row) -> str:
    return f"event {row['c']} of sequence {row['b']} (transaction {row['transaction']})"


def _name(read: _Row) -> str:
    """A few words that name a row."""
    words = f"{read['table']}: row {read['d']} of window {UUID(bytes=read['journal'])}"
    return words if read["key"] is None else f"{words}, key {read['key']},"


def _other(epoch: int, sequence: int, position: int, transaction: int | None) -> _Row:
    return {
        "other_epoch": epoch,
        "other_sequence": sequence,
        "other_position": position,
        "other_transaction": transaction,
    }


def _difference(kind: str, read: _Row) -> _Row:
    return {
        "kind": kind,
        "topic": read["topic"],
        "partition": read["a"],
        "offset": read["b"],
        "database": read["database"],
        "epoch": read["epoch"] or 0,
        "sequence": read["c"],
        "position": read["d"],
        "item": read["time_us"],
        "op": read["op"],
        "journal": read["journal"],
        "table": read["table"],
        "key": read["key"],
    }
