"""Reads the page of counters that all server processes of a journal folder share.

The plugin lays it out and counts in it (native/counters.h); only the time until a journal has its
final name, and journals that a gap replaces, are counted here, by whoever confirms. What is missing
or no such page reads as nothing; ``is_damaged`` tells the one from the other.
"""

from __future__ import annotations

import os
import stat
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from firebird_cdc.journal.folder.locks import STATE_DIRECTORY

TIMINGS: Final = ("start", "rows", "prepare", "commit", "rollback", "detach", "confirm")
"""Names of what is timed: calls of the server, except for the last one, which is none."""

_COUNTED = (
    "captured", "gaps", "refused", "rolled_back", "journals_opened", "journals_rolled_back",
    "changes", "bytes", "gaps_first_us", "gaps_last_us", "refused_first_us", "refused_last_us",
    "replaced",
)  # fmt: skip
_FILE = "counters"
_MAGIC = b"FBCDCCTR"
_VERSION = 1
_HEAD = struct.Struct("<8s6I")
_MADE_AT = 184
_DISK_AT = 256
_DISK = struct.Struct("<qqQQQQQ")
_SLOTS_AT = 2048
_PATH_BYTES = 256
_NUMBER = struct.Struct("<Q")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distribution of durations. ``counts``: one for each of ``bounds_s`` and one for what took
    longer than the last; not summed up."""

    bounds_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class DatabaseCounters:
    """Counters of one database since the journal folder was made.

    ``timings``, by name: seconds that our callbacks added to the server's calls, one observation
    for each ``start`` of a transaction, ``prepare``, ``commit``, ``rollback`` and ``detach``, and
    for all ``rows``, statements and savepoints of a transaction together (from the 17th on one in
    16 is timed); ``confirm``: from commit to the journal's final name.
    """

    captured: int = 0  # transactions whose changes are in a journal
    gaps: int = 0  # transactions that committed and left a marked gap instead
    refused: int = 0  # transactions that were told that they can't be committed
    rolled_back: int = 0  # transactions with changes
    journals_opened: int = 0
    journals_rolled_back: int = 0
    changes: int = 0  # in the journals of ``captured``
    bytes: int = 0  # of those journals
    gaps_first_us: int = 0  # since 1970, UTC; 0: there was none, or an older version counted it
    gaps_last_us: int = 0
    refused_first_us: int = 0
    refused_last_us: int = 0
    replaced: int = 0  # committed journals that were damaged or gone, each replaced by a gap
    timings: dict[str, Histogram] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Transactions that are committed and whose changes are in no journal."""
        return self.gaps + self.replaced


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Disk usage of journals that wait, as the server's processes see it."""

    bytes: int = 0
    is_full: bool = False  # connector.journal.max.bytes was reached, and not left since
    measured_ms: int = 0  # since 1970, UTC; 0: never
    refused: int = 0  # how often the limit refused something
    limit: int = 0  # connector.journal.max.bytes as the server applies it; 0: no limit


@dataclass(frozen=True, slots=True)
class Counters:
    """All that was counted. ``databases``: by path; the empty one has what found no place. Bytes
    of a path that are no UTF-8 are written as ``\\xNN``, so that it can be sent to others.

    ``made_us``: when the page was made, which tells it from the one before it; 0: by an older
    version. ``config``: the connector's file, of a page in a state folder.
    """

    databases: dict[str, DatabaseCounters] = field(default_factory=dict)
    disk: DiskCounters = field(default_factory=DiskCounters)
    made_us: int = 0
    config: str = ""


@dataclass(frozen=True, slots=True)
class _Layout:
    slots: int
    slot_bytes: int
    counters: int
    histograms: int
    bounds_ns: tuple[int, ...]

    @property
    def histogram_bytes(self) -> int:
        return _NUMBER.size * (len(self.bounds_ns) + 2)  # what took longer, and the sum

    @property
    def histograms_at(self) -> int:
        return _NUMBER.size + _PATH_BYTES + _NUMBER.size * self.counters

    @property
    def needed(self) -> int:
        return self.histograms_at + self.histogram_bytes * self.histograms

    def slot_at(self, slot: int) -> int:
        return _SLOTS_AT + slot * self.slot_bytes


def _layout(page: bytes) -> _Layout | None:
    """Return how a page is laid out; None: it is no such page."""
    if len(page) < _SLOTS_AT:
        return None
    magic, version, slots, slot_bytes, counters, histograms, buckets = _HEAD.unpack_from(page)
    if (
        magic != _MAGIC
        or version != _VERSION
        or not 2 <= buckets <= 1 + (_MADE_AT - _HEAD.size) // 8
    ):
        return None
    bounds = struct.unpack_from(f"<{buckets - 1}Q", page, _HEAD.size)
    layout = _Layout(slots, slot_bytes, counters, histograms, bounds)
    is_whole = (
        counters >= len(_COUNTED) and histograms >= len(TIMINGS) and slot_bytes >= layout.needed
    )
    is_ordered = all(one < other for one, other in pairwise(bounds))
    return layout if is_whole and is_ordered and layout.slot_at(slots) <= len(page) else None


def _histogram(page: bytes, at: int, layout: _Layout) -> Histogram:
    *counts, total = struct.unpack_from(f"<{len(layout.bounds_ns) + 2}Q", page, at)
    return Histogram(tuple(ns / 1e9 for ns in layout.bounds_ns), tuple(counts), total / 1e9)


def _database(page: bytes, at: int, layout: _Layout) -> DatabaseCounters:
    numbers = struct.unpack_from(f"<{len(_COUNTED)}Q", page, at + _NUMBER.size + _PATH_BYTES)
    counted: dict[str, int] = dict(zip(_COUNTED, numbers, strict=True))
    timings = {
        name: _histogram(page, at + layout.histograms_at + index * layout.histogram_bytes, layout)
        for index, name in enumerate(TIMINGS)
    }
    return DatabaseCounters(**counted, timings=timings)


def _path_at(page: bytes, at: int) -> str | None:
    """Return the database whose slot is there; None: nobody's."""
    return _name_at(page, at) if _NUMBER.unpack_from(page, at)[0] else None


def _name_at(page: bytes, at: int) -> str:
    name = page[at + _NUMBER.size : at + _NUMBER.size + _PATH_BYTES]
    return os.fsdecode(name.partition(b"\0")[0])


def _disk(page: bytes) -> DiskCounters:
    grown, offset, full, at_ms, _cost, refused, limit = _DISK.unpack_from(page, _DISK_AT)
    return DiskCounters(max(grown + offset, 0), bool(full), at_ms, refused, limit)


def read_counters(directory: Path) -> Counters:
    """Return what was counted in the journal folder ``directory``; nothing where it has no page.

    Never raises. Takes some 100 microseconds.
    """
    return read_page(page_of(directory))


def page_of(directory: Path) -> Path:
    """Return where the page of the journal folder ``directory`` is."""
    return directory / STATE_DIRECTORY / _FILE


def read_page(path: Path) -> Counters:
    """Return what was counted in the page ``path``, as ``read_counters`` does."""
    page = _content(path)
    layout = _layout(page)
    if layout is None:
        return Counters()
    databases: dict[str, DatabaseCounters] = {}
    for slot in range(layout.slots):
        at = layout.slot_at(slot)
        name = "" if slot == 0 else _path_at(page, at)
        if name is None:
            continue
        counted = _database(page, at, layout)
        if slot or counted.captured or counted.refused or counted.lost:
            databases[os.fsencode(name).decode("utf-8", "backslashreplace")] = counted
    made_us = _NUMBER.unpack_from(page, _MADE_AT)[0]
    return Counters(databases, _disk(page), made_us, _name_at(page, layout.slot_at(0)))


def is_damaged(path: Path) -> bool:
    """Tell whether PATH is a file with content that is no page: what it counted nobody knows.

    The plugin makes a page in one step, so nobody finds a part of one. Never raises.
    """
    page = _content(path)
    return bool(page) and _layout(page) is None


def _content(path: Path) -> bytes:
    """Return what is in the file PATH; nothing if it can't be read, or is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.read(fd, _MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)
    except OSError:
        return b""


class ConfirmerCounts:
    """Counts how long journals take from commit to their final name, and those that a gap replaces;
    for whoever holds ``confirmer.lock``: there is no other writer of those numbers. What fails is
    left out."""

    def __init__(self, state: Path) -> None:
        self._path = state / _FILE
        self._places: dict[str, tuple[int, _Layout]] = {}  # of the slots, by database
        self._file = (0, 0)  # device and inode that they are of

    def add(self, database: str, seconds: Iterable[float]) -> None:
        """Count journals of a database that took SECONDS each."""

        def count(fd: int, slot: int, layout: _Layout) -> None:
            at = slot + layout.histograms_at + TIMINGS.index("confirm") * layout.histogram_bytes
            self._count(fd, at, layout, seconds)

        self._change(database, count)

    def add_replaced(self, database: str) -> None:
        """Count a committed journal of a database that is a gap now."""

        def count(fd: int, slot: int, _layout: _Layout) -> None:
            at = slot + _NUMBER.size * (1 + _COUNTED.index("replaced")) + _PATH_BYTES
            (before,) = _NUMBER.unpack(os.pread(fd, _NUMBER.size, at))
            os.pwrite(fd, _NUMBER.pack(before + 1), at)

        self._change(database, count)

    def _change(self, database: str, count: Callable[[int, int, _Layout], None]) -> None:
        """Call COUNT with the file, where the database's slot is in it, and how it is laid out."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            place = self._place(fd, database)
            if place is not None:
                count(fd, *place)
        except (OSError, struct.error):
            pass
        finally:
            os.close(fd)

    def _place(self, fd: int, database: str) -> tuple[int, _Layout] | None:
        found = os.fstat(fd)
        if self._file != (found.st_dev, found.st_ino):
            self._file = (found.st_dev, found.st_ino)
            self._places.clear()
        if database in self._places:
            return self._places[database]
        page = os.pread(fd, _MOST_BYTES, 0)
        layout = _layout(page)
        if layout is None:
            return None
        slots = (layout.slot_at(slot) for slot in range(1, layout.slots))
        path = os.fsdecode(os.fsencode(database)[: _PATH_BYTES - 1])  # as much as a slot has
        own = next((at for at in slots if _path_at(page, at) == path), None)
        place = (layout.slot_at(0) if own is None else own, layout)
        if own is not None:
            self._places[database] = place
        return place

    @staticmethod
    def _count(fd: int, at: int, layout: _Layout, seconds: Iterable[float]) -> None:
        form = struct.Struct(f"<{len(layout.bounds_ns) + 2}Q")
        numbers = list(form.unpack(os.pread(fd, form.size, at)))
        for each in seconds:
            ns = max(0, round(each * 1e9))
            numbers[bisect_left(layout.bounds_ns, ns)] += 1
            numbers[-1] += ns
        os.pwrite(fd, form.pack(*numbers), at)
