"""The journals that wait to be shipped, each database's in the order of its history.

Kept in memory per journal: its place and its uuid, some 60 bytes where they are many, never
contents; a million waiting journals are a backlog that has to fit.
"""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.format import fast_uuid, read_envelope
from firebird_cdc.native._journal_files import read_envelopes

YOUNG_S = 2.0
"""A journal younger than this that can't be read may still be on its way (a copy by hand)."""

_BATCH = 64  # journals that are read in one call

_RUN = 16 * 1024  # journals that are sorted and packed together

# Big-endian, so that the packed keys sort as the numbers do.
_KEY = struct.Struct(">IQ16s")


class Entry(NamedTuple):
    """One waiting journal."""

    epoch: int
    sequence: int
    uuid: UUID

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.uuid}.log"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A journal whose place can't be told. ``database`` None: not even whose it is."""

    name: str
    database: str | None
    reason: str


class Queue:
    """The waiting journals of one database.

    The newest are a heap; where they get many, they are sorted and packed into a run, of which
    only the first one is an object. What comes next is the least of all these.
    """

    __slots__ = ("_heap", "_length", "_next", "_runs", "_runs_made")

    def __init__(self) -> None:
        self._heap: list[bytes] = []
        self._runs: list[tuple[bytes, int, bytes, int]] = []  # a heap: key, number, run, where
        self._runs_made = 0
        self._length = 0
        self._next: Entry | None = None

    def __len__(self) -> int:
        return self._length

    def push(self, entry: Entry) -> None:
        """Add a journal at its place."""
        self.push_packed(entry.epoch, entry.sequence, entry.uuid.bytes)

    def push_packed(self, epoch: int, sequence: int, uuid: bytes) -> None:
        """The same of an entry's parts."""
        heapq.heappush(self._heap, _KEY.pack(epoch, sequence, uuid))
        self._length += 1
        self._next = None
        if len(self._heap) >= _RUN:
            self._pack()

    def _pack(self) -> None:
        self._heap.sort()
        self._runs_made += 1
        run = b"".join(self._heap)
        heapq.heappush(self._runs, (self._heap[0], self._runs_made, run, 0))
        self._heap.clear()

    def first(self) -> Entry:
        """The journal that comes next; the queue must not be empty."""
        if self._next is None:
            key = self._heap[0] if self._heap else self._runs[0][0]
            if self._runs:
                key = min(key, self._runs[0][0])
            epoch, sequence, uuid = _KEY.unpack(key)
            self._next = Entry(epoch, sequence, fast_uuid(uuid))
        return self._next

    @property
    def first_name(self) -> str | None:
        """The file of that journal, None if there is none; for any thread."""
        try:
            return self.first().name
        except IndexError:
            return None

    def pop(self) -> Entry:
        """Take the journal that comes next."""
        entry = self.first()
        if self._runs and (not self._heap or self._runs[0][0] < self._heap[0]):
            _, number, run, at = self._runs[0]
            at += _KEY.size
            if at < len(run):
                heapq.heapreplace(self._runs, (run[at : at + _KEY.size], number, run, at))
            else:
                heapq.heappop(self._runs)
        else:
            heapq.heappop(self._heap)
        self._next = None
        self._length -= 1
        return entry


def _packed(name: str) -> bytes:
    """Return the uuid in the NAME of a journal. Raises ValueError."""
    return bytes.fromhex(name[:36].replace("-", ""))


class _Uuids:
    """A set of uuids, packed: those with the same first two bytes stand in one string."""

    def __init__(self) -> None:
        self._rests: dict[bytes, bytes] = {}

    def _place(self, uuid: bytes) -> int:
        """Return the index of the rest of UUID in the string of those that begin as it does; -1: it
        is not there."""
        rests = self._rests.get(uuid[:2])
        if rests is None:
            return -1
        rest = uuid[2:]
        at = rests.find(rest)
        while at > 0 and at % 14:
            at = rests.find(rest, at + 1)
        return at

    def __contains__(self, uuid: bytes) -> bool:
        return self._place(uuid) >= 0

    def add(self, uuid: bytes) -> None:
        """Add UUID, which must not be there."""
        start = uuid[:2]
        self._rests[start] = self._rests.get(start, b"") + uuid[2:]

    def discard(self, uuid: bytes) -> None:
        """Remove UUID if it is there."""
        at = self._place(uuid)
        if at >= 0:
            start = uuid[:2]
            rests = self._rests[start]
            if len(rests) == 14:
                del self._rests[start]
            else:
                self._rests[start] = rests[:at] + rests[at + 14 :]


class Backlog:
    """All journals of one folder that are known and not yet disposed of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.queues: dict[str, Queue] = {}
        self.unreadable: dict[str, Unreadable] = {}
        self._folder = f"{directory}{os.sep}"
        self._known = _Uuids()
        self._young: set[str] = set()

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    @property
    def young(self) -> bool:
        """Tell whether journals wait that could not be read yet because they have just appeared."""
        return bool(self._young)

    def offer_all(self, names: Iterable[str]) -> Iterator[None]:
        """As ``offer`` for each of NAMES, many at a time; yields now and then."""
        unknown: list[str] = []
        known = self._known
        for name in names:
            if _packed(name) not in known:
                unknown.append(name)
                if len(unknown) == _BATCH:
                    self._take_in(unknown)
                    unknown = []
                    yield
        self._take_in(unknown)

    def _take_in(self, names: list[str]) -> None:
        for name, found in zip(names, read_envelopes(self._folder, names), strict=True):
            uuid = _packed(name)
            if found is None or found[2] != uuid or uuid in self._known or self._is_odd(name):
                self.offer(name)
                continue
            epoch, sequence, _, database = found
            self._known.add(uuid)
            queue = self.queues.get(database)
            if queue is None:
                queue = self.queues[database] = Queue()
            queue.push_packed(epoch, sequence, uuid)

    def knows(self, name: str) -> bool:
        """Tell whether the journal NAME was sorted in or couldn't be read; for any thread. True
        for what is no name of a journal (<uuid>.log)."""
        try:
            uuid = _packed(name)
        except ValueError:
            return True
        return len(uuid) != 16 or uuid in self._known or name in self.unreadable

    def _is_odd(self, name: str) -> bool:
        """Tell whether NAME could not be read before."""
        return name in self._young or name in self.unreadable

    def offer(self, name: str) -> None:
        """Sort in the journal NAME, unless it is known; notes it as unreadable if it is."""
        uuid = UUID(name.removesuffix(".log"))
        if uuid.bytes in self._known:
            return
        path = self.directory / name
        self._young.discard(name)
        database = None
        try:
            header, stamp, database = read_envelope(path)
            if stamp is None:
                raise JournalError(path, 1024, "it has no stamp, though its name says committed")
            if header.uuid != uuid:
                raise JournalError(path, 0, f"it is journal {header.uuid} under another's name")
        except FileNotFoundError:
            return
        except (JournalError, OSError) as error:
            self._cannot_read(path, database, str(error))
            return
        self._known.add(uuid.bytes)
        self.unreadable.pop(name, None)
        queue = self.queues.setdefault(database, Queue())
        queue.push(Entry(stamp.epoch, stamp.sequence, uuid))

    def _cannot_read(self, path: Path, database: str | None, reason: str) -> None:
        try:
            age = time() - path.stat().st_mtime
        except FileNotFoundError:
            return
        if age < YOUNG_S:
            self._young.add(path.name)
        else:
            self.unreadable[path.name] = Unreadable(path.name, database, reason)

    def offer_young(self) -> None:
        """Try again those that had just appeared."""
        for name in list(self._young):
            self.offer(name)

    def forget(self, entry: Entry) -> None:
        """ENTRY was disposed of; should the name come again, it is a new journal."""
        self._known.discard(entry.uuid.bytes)

    def recheck_unreadable(self) -> Iterator[Unreadable]:
        """Yield the unreadable journals that are still there, still unreadable."""
        for name in list(self.unreadable):
            if not os.path.lexists(self.directory / name):
                del self.unreadable[name]
                continue
            self.offer(name)
            if name in self.unreadable:
                yield self.unreadable[name]
