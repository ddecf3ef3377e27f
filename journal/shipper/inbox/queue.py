"""The journals of one database that wait to be shipped, in the order of its history."""

from __future__ import annotations

import heapq
import struct
import sys
import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from firebird_cdc.journal.format import Place, fast_uuid, unpack_places
from firebird_cdc.journal.format.journal_index import PLACE_BYTES
from firebird_cdc.journal.format.layout import new_tuple

_PACKED = 16 * 1024  # journals that are sorted and packed together
_COMPRESSED = 64  # places in one piece

# Big-endian, so that the packed keys sort as the numbers do.
_KEY = struct.Struct(">IQ16s")


class Entry(NamedTuple):
    """One waiting transaction: in a journal of its name, or at ``place`` in the journal ``home``,
    which transactions share. ``whole_to``: up to where that is known to be on disk."""

    epoch: int
    sequence: int
    uuid: UUID
    home: UUID | None = None
    place: Place | None = None
    whole_to: int = sys.maxsize

    @property
    def number(self) -> tuple[int, int]:
        """Its place in the history of its database."""
        return self[:2]

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.uuid if self.home is None else self.home}.log"

    @property
    def commit_us(self) -> int | None:
        """Time of the commit in microseconds since 1970, where that can be told without a look at
        the file."""
        return None if self.place is None else self.place.stamp.commit_us

    @property
    def shares(self) -> UUID | None:
        """The journal that it shares with others, None if its file has nothing else."""
        return None if self.home == self.uuid else self.home

    @property
    def is_alone(self) -> bool:
        """Tell whether its file has nothing else."""
        return self.shares is None

    @property
    def name(self) -> str:
        """The file, and which transaction in it, as ``journal show`` takes it."""
        return f"{self.uuid}.log" if self.home is None else f"{self.home}.log/{self.uuid}.log"


T = TypeVar("T")


def with_file(folder: str, entry: Entry, use: Callable[[str], T]) -> T:
    """Call USE with the path of the file of ENTRY in FOLDER: a shared one may still grow, and have
    another name then, until it is closed. Raises FileNotFoundError if it has neither."""
    path = f"{folder}{entry.file}"
    if entry.home is not None:
        for name in (path, f"{path}.live"):
            with suppress(FileNotFoundError):
                return use(name)
    return use(path)


class _Run(Protocol):
    """Entries in their order, of which only the first one is an object."""

    def peek(self, limit: int) -> Sequence[Entry]:
        """Return what comes next: at least one entry, LIMIT at most."""

    def advance(self, count: int = 1) -> bytes | None:
        """Go past COUNT entries that ``peek`` gave; return the key of the one behind them, None at
        the end."""


class _PackedRun:
    """Journals of their own names."""

    __slots__ = ("_at", "_keys")

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._at = 0

    def peek(self, limit: int) -> Sequence[Entry]:  # noqa: ARG002 - no two are read together
        """Return what comes next, one alone."""
        epoch, sequence, uuid = _KEY.unpack_from(self._keys, self._at)
        return [Entry(epoch, sequence, fast_uuid(uuid))]

    def advance(self, count: int = 1) -> bytes | None:
        """Go past COUNT entries; return the key of the one behind them, None at the end."""
        self._at += count * _KEY.size
        return self._keys[self._at : self._at + _KEY.size] or None


class _ListedRun:
    """Transactions of journals that may still grow; few, as the ledger has them."""

    __slots__ = ("_at", "_entries")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._at = -1

    def peek(self, limit: int) -> Sequence[Entry]:
        """Return what comes next, LIMIT at most."""
        return self._entries[self._at : self._at + limit]

    def advance(self, count: int = 1) -> bytes | None:
        """Go past COUNT entries; return the key of the one behind them, None at the end."""
        self._at += count
        if self._at == len(self._entries):
            return None
        epoch, sequence, uuid = self._entries[self._at][:3]
        return _KEY.pack(epoch, sequence, uuid.bytes)


class _SharedRun:
    """Transactions of one journal that is closed, some 30 bytes each."""

    __slots__ = ("_at", "_home", "_pieces", "_places")

    def __init__(self, home: UUID, places: bytes) -> None:
        self._home = home
        size = _COMPRESSED * PLACE_BYTES
        self._pieces = [
            zlib.compress(places[start : start + size], 1)
            for start in reversed(range(0, len(places), size))
        ]
        self._places: list[Place] = []
        self._at = -1

    def peek(self, limit: int) -> Sequence[Entry]:
        """Return what comes next, LIMIT at most and none of another piece."""
        home = self._home
        return [
            new_tuple(Entry, (*place.stamp[:2], place.uuid, home, place, sys.maxsize))
            for place in self._places[self._at : self._at + limit]
        ]

    def advance(self, count: int = 1) -> bytes | None:
        """Go past COUNT entries; return the key of the one behind them, None at the end."""
        self._at += count
        if self._at == len(self._places):
            if not self._pieces:
                return None
            self._places = unpack_places(zlib.decompress(self._pieces.pop()))
            self._at = 0
        place = self._places[self._at]
        return _KEY.pack(*place.stamp.number, place.uuid.bytes)


class Queue:
    """The waiting journals of one database.

    The newest are a heap; where they get many, they are sorted and packed into a run. What comes
    next is the least of all these.
    """

    __slots__ = ("_heap", "_length", "_next", "_runs", "_runs_made")

    def __init__(self) -> None:
        self._heap: list[bytes] = []
        self._runs: list[tuple[bytes, int, _Run]] = []  # a heap: key, number, run
        self._runs_made = 0
        self._length = 0
        self._next: Entry | None = None

    def __len__(self) -> int:
        return self._length

    def push(self, entry: Entry) -> None:
        """Add a journal at its place."""
        if entry.home is None:
            self.push_packed(entry.epoch, entry.sequence, entry.uuid.bytes)
        else:
            self.push_listed([entry])

    def push_packed(self, epoch: int, sequence: int, uuid: bytes) -> None:
        """The same of an entry's parts, for one in a journal of its name."""
        heapq.heappush(self._heap, _KEY.pack(epoch, sequence, uuid))
        self._length += 1
        self._next = None
        if len(self._heap) >= _PACKED:
            self._heap.sort()
            self._add(self._heap[0], _PackedRun(b"".join(self._heap)))
            self._heap.clear()

    def push_shared(self, home: UUID, places: bytes) -> None:
        """Add transactions of the journal HOME, which is closed: PLACES, in the order of their
        numbers, packed."""
        self._add_run(_SharedRun(home, places), len(places) // PLACE_BYTES)

    def push_listed(self, entries: Sequence[Entry]) -> None:
        """Add transactions of shared journals, in the order of their numbers."""
        self._add_run(_ListedRun(entries), len(entries))

    def _add_run(self, run: _Run, length: int) -> None:
        key = run.advance()
        if key is not None:
            self._add(key, run)
            self._length += length
            self._next = None

    def _add(self, key: bytes, run: _Run) -> None:
        self._runs_made += 1
        heapq.heappush(self._runs, (key, self._runs_made, run))

    @property
    def _is_run_next(self) -> bool:
        return bool(self._runs) and (not self._heap or self._runs[0][0] < self._heap[0])

    def first(self) -> Entry:
        """The journal that comes next; the queue must not be empty."""
        if self._next is None:
            self._next = self._find_first()
        return self._next

    def _find_first(self) -> Entry:
        if self._is_run_next:
            return self._runs[0][2].peek(1)[0]
        epoch, sequence, uuid = _KEY.unpack(self._heap[0])
        return Entry(epoch, sequence, fast_uuid(uuid))

    @property
    def first_or_none(self) -> Entry | None:
        """That journal, None if there is none; for any thread, so nothing is kept."""
        try:
            return self._find_first()
        except IndexError:
            return None

    def pop(self) -> Entry:
        """Take the journal that comes next."""
        entry = self.first()
        if self._is_run_next:
            self.skip(1)
        else:
            heapq.heappop(self._heap)
            self._next = None
            self._length -= 1
        return entry

    def peek(self, limit: int) -> Sequence[Entry]:
        """Return transactions of shared journals that come next, in their order, LIMIT at most:
        such as lie together. None of them: something else comes next."""
        if not self._is_run_next:
            return []
        entries = self._runs[0][2].peek(limit)
        others = [self._heap[0]] if self._heap else []
        others += [key for key, *_ in self._runs[1:3]]  # a heap: one of these is the next
        if others and len(entries) > 1:
            epoch, sequence, _ = _KEY.unpack(min(others))
            before = bisect_left(entries, (epoch, sequence), key=_number)
            entries = entries[: max(before, 1)]
        return entries

    def skip(self, count: int) -> None:
        """Take COUNT of those out that ``peek`` gave."""
        if not count:
            return
        _, number, run = self._runs[0]
        key = run.advance(count)
        if key is None:
            heapq.heappop(self._runs)
        else:
            heapq.heapreplace(self._runs, (key, number, run))
        self._next = None
        self._length -= count


def _number(entry: Entry) -> tuple[int, int]:
    return entry[:2]
