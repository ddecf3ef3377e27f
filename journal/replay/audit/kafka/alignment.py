"""Lays what should be in a topic for one key beside what is there, and says what differs.

Both are lists in their order. What is common to both in the same order is right; of the rest,
what is in both came in the wrong order, and so on. No Spark in here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

MOST_PAIRS = 2_000_000
"""Pairs of equal messages of one key that are looked at to find the best match; above that the
n-th of equal messages is taken for the n-th. Only where messages don't tell where they are from."""


class Wanted(NamedTuple):
    """A message that the journals ask for. ``database``: whose order it belongs to, its database.
    ``place``: journal and number of the event; ``is_due``: whether its absence is a fault."""

    digest: bytes
    block: int
    op: str
    database: str | None
    place: tuple[bytes, int]
    is_due: bool = True


class Seen(NamedTuple):
    """A message of the topic. ``is_loose``: it says itself that it came out of its order."""

    digest: bytes
    block: int
    op: str
    partition: int
    place: tuple[bytes, int] | None
    is_loose: bool = False


class Difference(NamedTuple):
    """One difference: ``wanted`` and ``seen`` are indexes, -1 for none.

    ``kind``: missing; doubled: from the message ``other`` to ``seen`` one more is equal than there
    should be; altered; block: only its number in its transaction is another one; extra; order:
    ``wanted`` came behind ``other``; loose: it came late, and says so.
    """

    kind: str
    wanted: int
    seen: int
    other: int = -1


class Alignment(NamedTuple):
    """``pairs``: the index in the first list for each of the second, -1 for none."""

    pairs: list[int]
    differences: list[Difference]


def align(wanted: Sequence[Wanted], seen: Sequence[Seen]) -> Alignment:
    """Compare the messages of one key of one topic. SEEN: by partition and offset."""
    left = _in_context([(each.digest, each.op, 0) for each in wanted])
    right = _in_context([(each.digest, each.op, each.partition) for each in seen])
    strict = [index for index, each in enumerate(seen) if not each.is_loose]
    pairs = [-1] * len(seen)
    for place, found in zip(strict, _common(left, [right[index] for index in strict]), strict=True):
        pairs[place] = found
    free = set(range(len(wanted))).difference(pairs)
    _pair_equal(left, right, pairs, free)
    differences = [
        Difference("loose", pairs[index], index) for index, each in enumerate(seen) if each.is_loose
    ]
    known = {token: index for index, token in reversed(list(enumerate(left)))}
    # A tombstone says nothing but its key: any that is left will do.
    tombs = [index for index, each in enumerate(seen) if pairs[index] < 0 and each.op == "t"]
    tombs = [index for index in tombs if right[index] not in known] + [
        index for index in tombs if right[index] in known
    ]
    open_tombs = deque(index for index in sorted(free) if wanted[index].op == "t")
    for index in tombs:
        if open_tombs:
            pairs[index] = found = open_tombs.popleft()
            free.discard(found)
    altered = _altered(wanted, seen, pairs, free, known, right)
    differences += [Difference("altered", each, index) for index, each in altered.items()]
    for index, each in enumerate(seen):
        if pairs[index] >= 0:
            block = wanted[pairs[index]].block
            if block != each.block and not each.is_loose:
                differences.append(Difference("block", pairs[index], index))
        elif index not in altered:
            original = known.get(right[index], -1)
            kind = "extra" if original < 0 else "doubled"
            if not each.is_loose or (kind == "doubled" and each.op != "t"):
                differences.append(Difference(kind, original, index))
    differences += [
        Difference("missing", index, -1) for index in sorted(free) if wanted[index].is_due
    ]
    _stretch_doubled(seen, right, differences)
    for index, found in altered.items():
        pairs[index] = found
    differences += _disorder(wanted, seen, pairs)
    return Alignment(pairs, differences)


def _in_context(messages: Iterable[tuple[bytes, str, int]]) -> list[bytes]:
    """Return what tells each message apart: its digest, of a tombstone with the one before it."""
    before: dict[int, bytes] = {}
    tokens = []
    for digest, op, partition in messages:
        tokens.append(digest + before.get(partition, b"") if op == "t" else digest)
        before[partition] = digest
    return tokens


def _common(left: Sequence[bytes], right: Sequence[bytes]) -> list[int]:
    """Return for each of RIGHT its partner in LEFT, -1: none: a longest common subsequence."""
    pairs = [-1] * len(right)
    start, shorter = 0, min(len(left), len(right))
    while start < shorter and left[start] == right[start]:
        pairs[start] = start
        start += 1
    end = 0
    while end < shorter - start and left[-1 - end] == right[-1 - end]:
        pairs[len(right) - 1 - end] = len(left) - 1 - end
        end += 1
    places: dict[bytes, list[int]] = defaultdict(list)
    for index in range(start, len(left) - end):
        places[left[index]].append(index)
    middle = range(start, len(right) - end)
    if sum(len(places.get(right[index], ())) for index in middle) > MOST_PAIRS:
        queues = {token: deque(found) for token, found in places.items()}
        candidates = [
            (index, [queue.popleft()] if (queue := queues.get(right[index])) else [])
            for index in middle
        ]
    else:
        candidates = [(index, places.get(right[index], [])) for index in middle]
    for index, found in _increasing(candidates):
        pairs[index] = found
    return pairs


def _increasing(candidates: Iterable[tuple[int, Sequence[int]]]) -> Iterator[tuple[int, int]]:
    """The longest choice of one candidate of some of the rows, growing from row to row."""
    tails: list[int] = []
    chains: list[tuple[int, int, int]] = []  # row, candidate, chain before it
    heads: list[int] = []
    for row, found in candidates:
        for candidate in reversed(found):
            at = bisect_left(tails, candidate)
            chains.append((row, candidate, heads[at - 1] if at else -1))
            if at == len(tails):
                tails.append(candidate)
                heads.append(len(chains) - 1)
            else:
                tails[at] = candidate
                heads[at] = len(chains) - 1
    chain = heads[-1] if heads else -1
    while chain >= 0:
        row, candidate, chain = chains[chain]
        yield row, candidate


def _pair_equal(
    left: Sequence[bytes], right: Sequence[bytes], pairs: list[int], free: set[int]
) -> None:
    """Pair what is left on both sides and equal."""
    places: dict[bytes, deque[int]] = defaultdict(deque)
    for index in sorted(free):
        places[left[index]].append(index)
    for index, token in enumerate(right):
        if pairs[index] < 0 and (queue := places.get(token)):
            pairs[index] = queue.popleft()
            free.discard(pairs[index])


def _altered(
    wanted: Sequence[Wanted],
    seen: Sequence[Seen],
    pairs: Sequence[int],
    free: set[int],
    known: Mapping[bytes, int],
    right: Sequence[bytes],
) -> dict[int, int]:
    """Return the index in WANTED for each of SEEN that stands for it with another content; take
    these out of FREE."""
    found: dict[int, int] = {}
    open_ = [
        index
        for index, each in enumerate(seen)
        if pairs[index] < 0 and each.op != "t" and right[index] not in known
    ]
    if not open_ or not free:
        return found
    places = {
        (*wanted[index].place, wanted[index].op): index for index in sorted(free, reverse=True)
    }
    for index in open_:
        place = seen[index].place
        if place is not None:
            partner = places.pop((*place, seen[index].op), None)
            if partner is not None:
                found[index] = partner
                free.discard(partner)
    # Without a place of its own: between the same neighbours, for one that has to be there.
    gaps: dict[int, deque[int]] = defaultdict(deque)
    paired = sorted(index for index in pairs if index >= 0)
    for index in sorted(free):
        if wanted[index].is_due:
            gaps[bisect_left(paired, index)].append(index)
    below = 0
    unplaced = {index for index in open_ if index not in found and seen[index].place is None}
    for index in range(len(seen)):
        if pairs[index] >= 0:
            below = bisect_left(paired, pairs[index]) + 1
        elif index in unplaced and (queue := gaps.get(below)):
            found[index] = queue.popleft()
            free.discard(found[index])
    return found


def _stretch_doubled(
    seen: Sequence[Seen], right: Sequence[bytes], differences: list[Difference]
) -> None:
    """Have each of the doubled DIFFERENCES name a stretch of equal messages that is too long by
    one: of five where two are right, the first to the third, the second to the fourth and so on.

    So as many stretches lie within any part of the partition as there are too many in that part.
    """
    places: dict[bytes, list[int]] = defaultdict(list)
    for place, each in enumerate(differences):
        if each.kind == "doubled" and not seen[each.seen].is_loose:
            places[right[each.seen]].append(place)
    if not places:
        return
    copies: dict[bytes, list[int]] = defaultdict(list)
    for index, token in enumerate(right):
        if token in places and not seen[index].is_loose:
            copies[token].append(index)
    for token, found in places.items():
        equal = copies[token]
        wanted = len(equal) - len(found)
        for first, place in enumerate(found):
            differences[place] = differences[place]._replace(
                seen=equal[first + wanted], other=equal[first]
            )


def _disorder(
    wanted: Sequence[Wanted], seen: Sequence[Seen], pairs: Sequence[int]
) -> Iterator[Difference]:
    """One difference for each stretch of a partition whose messages are not in their order."""
    by_database: dict[tuple[int, str | None], list[tuple[int, int]]] = defaultdict(list)
    for index, found in enumerate(pairs):
        if found >= 0 and not seen[index].is_loose:
            by_database[seen[index].partition, wanted[found].database].append((found, index))
    for database in by_database.values():
        ranks = {found: rank for rank, (found, _) in enumerate(sorted(database))}
        start, highest = 0, -1
        for at, (found, _) in enumerate(database):
            highest = max(highest, ranks[found])
            if highest == at:  # all up to here are in the stretches up to here
                if at > start:
                    late, index = min(database[start : at + 1])
                    yield Difference("order", late, index, database[start][0])
                start = at + 1
