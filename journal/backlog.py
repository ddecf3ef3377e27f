"""The journals that wait to be shipped, each database's in the order of its history.

Kept in memory per journal: one packed key and its uuid, about 150 bytes, never contents; a
million waiting journals are a backlog that has to fit.
"""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.format import read_envelope

YOUNG_S = 2.0
"""A journal younger than this that can't be read may still be on its way (a copy by hand)."""

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
    """The waiting journals of one database."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[bytes] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, entry: Entry) -> None:
        """Add a journal at its place."""
        heapq.heappush(self._heap, _KEY.pack(entry.epoch, entry.sequence, entry.uuid.bytes))

    def first(self) -> Entry:
        """The journal that comes next; the queue must not be empty."""
        epoch, sequence, uuid = _KEY.unpack(self._heap[0])
        return Entry(epoch, sequence, UUID(bytes=uuid))

    def pop(self) -> Entry:
        """Take the journal that comes next."""
        entry = self.first()
        heapq.heappop(self._heap)
        return entry


class Backlog:
    """All journals of one folder that are known and not yet disposed of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.queues: dict[str, Queue] = {}
        self.unreadable: dict[str, Unreadable] = {}
        self._known: set[bytes] = set()
        self._young: set[str] = set()

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    @property
    def young(self) -> bool:
        """Whether journals wait that could not be read yet because they have just appeared."""
        return bool(self._young)

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
