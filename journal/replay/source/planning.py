"""Listing of the journals, and division of their reading into tasks of even size.

Planning runs on the driver and reads names and sizes only: of folders, and of the tables of
contents of segments. It keeps 24 bytes a journal. A task gets a `JournalPartition`, a small value,
and reads with `open_partition`.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from firebird_cdc.errors import JournalCorrupt, JournalError, ReplayError
from firebird_cdc.journal.folder.segments import close_segments, is_segment_name
from firebird_cdc.journal.format import (
    Entry,
    JournalReader,
    Place,
    Remains,
    SharedJournal,
    Stamp,
    crc32c,
    read_remains,
)
from firebird_cdc.journal.format.sectors import MAX_LENGTH
from firebird_cdc.journal.replay.source.bounds import microseconds_of
from firebird_cdc.journal.replay.source.filters import EVERYTHING, Condition, Wanted
from firebird_cdc.journal.replay.source.finder import JournalFinder
from firebird_cdc.journal.replay.source.storage import (
    JOURNAL_SUFFIX,
    NOTE_SUFFIX,
    OPEN_SUFFIX,
    Folder,
    describe_empty,
    folder_at,
    name_in,
    open_folder,
    split_name,
)

DEFAULT_BYTES = 32 * 1024 * 1024
DEFAULT_JOURNALS = 2000

# What opening a journal costs, in bytes that could be decoded meanwhile; and how much is worth a
# task, or a piece of a journal, of its own. Guesses.
_OPENING = 8 * 1024
_LEAST_BYTES = 1024 * 1024
_LOOKED_THROUGH = 1024 * 1024  # for headers, in the time in which one more is opened
_LEAST_JOURNALS = 100
_LISTED_AT_ONCE = 16  # segments of a remote store

# Shared journals that a task keeps open, and their bytes in memory; bytes of one place are a guess.
_MOST_KEPT = 100
_KEPT_BYTES = 64 * 1024 * 1024
_PLACE_BYTES = 1024

_UUID_BYTES = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The options of the sources, checked; `firebird_cdc.journal.replay.source.datasource` has a
    table."""

    folders: tuple[str, ...]
    partition_bytes: int = DEFAULT_BYTES
    partition_journals: int = DEFAULT_JOURNALS
    min_partitions: int = 1
    none_charset: str = "UTF-8"
    rows: str = "text"
    report_damage: bool = False
    fail_on_missing: bool = False
    fail_on_empty: bool = True
    database: str | None = None
    table: str | None = None
    wanted: Wanted = EVERYTHING
    take_filters: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> JournalOptions:
        """Read what Spark hands over. Raises ReplayError naming option and allowed values."""
        given = OptionTexts(options)
        return cls(
            folders=given.folders(),
            partition_bytes=given.number("partitionBytes", DEFAULT_BYTES),
            partition_journals=given.number("partitionJournals", DEFAULT_JOURNALS),
            min_partitions=given.number("minPartitions", 2 * len(os.sched_getaffinity(0))),
            none_charset=given.text("noneCharset") or "UTF-8",
            rows=given.choice("rows", "text", "digest", "state"),
            report_damage=given.choice("onDamage", "fail", "report") == "report",
            fail_on_missing=given.choice("onMissing", "report", "fail") == "fail",
            fail_on_empty=given.choice("onEmpty", "fail", "accept") == "fail",
            database=given.text("database"),
            table=given.text("table"),
            wanted=given.wanted(),
            take_filters=given.choice("pushFilters", "false", "true") == "true",
        )


class OptionTexts:
    """Options as Spark hands them over: names in any case, all values as text."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}

    def folders(self) -> tuple[str, ...]:
        """The folders of ``load``."""
        if "paths" in self._given:
            return tuple(json.loads(self._given["paths"]))
        if "path" in self._given:
            return (self._given["path"],)
        raise ReplayError("firebird_journal needs a folder of journals: load(FOLDER)")

    def text(self, name: str) -> str | None:
        """The option, None if it is not given."""
        return self._given.get(name.lower())

    def number(self, name: str, default: int, least: int = 1) -> int:
        """The option as a number. Raises ReplayError if it is none, or below LEAST."""
        text = self._given.get(name.lower(), str(default))
        if not text.isdecimal() or int(text) < least:
            raise ReplayError(
                f"option {name} of firebird_journal is {text!r};"
                f" give a whole number above {least - 1}"
            )
        return int(text)

    def wanted(self) -> Wanted:
        """The range of the history that is asked for."""
        conditions = []
        for name, column, comparison in (
            ("epoch", "epoch", "eq"),
            ("fromSequence", "sequence", "ge"),
            ("toSequence", "sequence", "le"),
            ("fromTime", "commit_time", "ge"),
            ("toTime", "commit_time", "le"),
        ):
            text = self.text(name)
            if text is not None:
                value = (
                    self._time(name, text)
                    if column == "commit_time"
                    else self.number(name, 0, least=0)
                )
                conditions.append(Condition(column, comparison, value))
        return Wanted(tuple(conditions))

    @staticmethod
    def _time(name: str, text: str) -> int:
        try:
            return microseconds_of(text)
        except ValueError:
            raise ReplayError(
                f"option {name} of firebird_journal is {text!r};"
                " give a time as ISO 8601 has it, such as 2024-02-29T23:59:59.123456Z"
            ) from None

    def choice(self, name: str, *allowed: str) -> str:
        """The option, by default the first of ALLOWED. Raises ReplayError if it is none of them."""
        text = self._given.get(name.lower(), allowed[0])
        if text not in allowed:
            raise ReplayError(
                f"option {name} of firebird_journal is {text!r}; allowed: {', '.join(allowed)}"
            )
        return text


Run = tuple[int, str, bytes | str]
"""Journals that lie in one place: the index of the folder, the segment in it or an empty text, and
the names: 16 bytes for each, its uuid; or a text, the name of one that is called otherwise."""


class JournalPartition:
    """Journals that one task reads, the first and last of which may be read in part.

    ``start``: byte of the first journal; ``end``: byte of the last one, or None. A block belongs to
    the range in which it starts. ``copied``: uuids of the transactions in the quarantine, which are
    read there and in no journal that they share with others.
    """

    def __init__(self, runs: Iterable[Run], start: int = 0, end: int | None = None) -> None:
        self.runs = tuple(runs)
        self.start = start
        self.end = end
        self.copied: frozenset[bytes] = frozenset()

    @classmethod
    def of_journals(cls, journals: Iterable[tuple[int, str]]) -> JournalPartition:
        """Return the task that reads these journals, whole and in this order: the index of the
        folder, and the name there, ``SEGMENT.zip/<uuid>.log`` in a segment."""
        group = _Group()
        for folder, name in journals:
            segment, _, journal = name.rpartition("/")
            group.add(_Place(folder, segment), _short(journal), 0)
        return group.close()

    def journals(self) -> Iterator[tuple[int, str]]:
        """Yield the index of its folder, and the name there, of each journal."""
        for folder, segment, names in self.runs:
            prefix = f"{segment}/" if segment else ""
            for name in _spelt(names):
                yield folder, prefix + name


def _spelt(names: bytes | str) -> Iterator[str]:
    if isinstance(names, str):
        yield names
        return
    for at in range(0, len(names), _UUID_BYTES):
        yield f"{UUID(bytes=names[at : at + _UUID_BYTES])}{JOURNAL_SUFFIX}"


def _short(name: str) -> bytes | str:
    """Return the 16 bytes of the uuid that NAME is made of, else NAME."""
    uuid = name[:-4]
    if len(uuid) == 36 and uuid[8] + uuid[13] + uuid[18] + uuid[23] == "----":
        try:
            raw = bytes.fromhex(uuid.replace("-", ""))
        except ValueError:
            return name
        if len(raw) == _UUID_BYTES and name.endswith(JOURNAL_SUFFIX) and uuid == uuid.lower():
            return raw
    return name


# Listing.


@dataclass
class _Place:
    """Journals that were found in one folder or segment."""

    folder: int
    segment: str
    uuids: bytearray = field(default_factory=bytearray)
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    others: list[tuple[str, int]] = field(default_factory=list)

    def journals(self) -> Iterator[tuple[bytes | str, int]]:
        yield from self.others
        for index, size in enumerate(self.sizes):
            at = index * _UUID_BYTES
            yield bytes(self.uuids[at : at + _UUID_BYTES]), size


class Listing:
    """All journals of the folders, each once; raises as `plan_partitions` does.

    A journal on its way into the archive, or into a segment there, may for a moment be seen in two
    places. Segments come last: what was packed since the folder was read is found there. Of a
    shared journal the quarantine has copies of single transactions, which stay in it as well.
    """

    def __init__(self, options: JournalOptions, wanted: Wanted = EVERYTHING) -> None:
        self._options = options
        self._places: list[_Place] = []
        self._seen: set[bytes | str] = set()
        self._copied: set[bytes] = set()
        self._wanted = wanted
        self._skipped = False
        folders = [open_folder(url) for url in options.folders]
        # First: what is closed meanwhile is found under its other name.
        still_open = [list(folder.open_journals()) for folder in folders]
        for index, folder in enumerate(folders):
            self._list(index, folder)
        for index, journals in enumerate(still_open):
            self._add_open(index, journals)
        if options.fail_on_empty and not self._skipped and not any(self._all()):
            raise ReplayError(
                f"there is nothing to read: {describe_empty(options.folders)};"
                " give the folder of the journals or their archive"
            )

    def tasks(self, *, split: bool, headers_only: bool = False) -> list[JournalPartition]:
        """Divide the journals; SPLIT and HEADERS_ONLY as for `plan_partitions`."""
        tasks = _divide(self._all, self._options, split, headers_only)
        for task in tasks:
            task.copied = frozenset(self._copied)
        return tasks

    @property
    def total_bytes(self) -> int:
        """Bytes of all journals."""
        return sum(size for _, _, size in self._all())

    def _all(self) -> Iterator[tuple[_Place, bytes | str, int]]:
        """Yield where each journal lies, its name and size in bytes."""
        for place in self._places:
            for name, size in place.journals():
                yield place, name, size

    def _list(self, index: int, folder: Folder) -> None:
        place = _Place(index, "")
        self._places.append(place)
        notes: set[bytes] = set()
        for name, size in folder.entries():
            if name.endswith(JOURNAL_SUFFIX):
                self._add(place, name, size)
            elif name.endswith(NOTE_SUFFIX):
                noted = _short(name.removesuffix(NOTE_SUFFIX) + JOURNAL_SUFFIX)
                if isinstance(noted, bytes):
                    notes.add(noted)
        self._copied |= notes.intersection(self._seen)
        segments = [name for name, _ in folder.entries() if is_segment_name(name)]
        wanted = [name for name in sorted(segments) if self._wanted.admits_segment(name)]
        self._skipped |= len(wanted) < len(segments)
        for segment, members in _tables_of_contents(folder, wanted):
            if members is None:
                place.others.append((segment, 0))  # whoever reads it reports what is wrong with it
                continue
            within = _Place(index, segment)
            self._places.append(within)
            for name, size in members:
                self._add(within, name, size)

    def _add_open(self, index: int, journals: list[tuple[str, list[Place]]]) -> None:
        """Add the transactions of journals that were open, one by one: more may come to them."""
        place = _Place(index, "")
        self._places.append(place)
        for name, given in journals:
            if _short(name.removesuffix(OPEN_SUFFIX)) in self._seen:
                continue
            for each in given:
                if each.uuid.bytes not in self._copied:
                    self._add(place, name_in(name, each), each.stamp.journal_length)

    def _add(self, place: _Place, name: str, size: int) -> None:
        short = _short(name)
        if short in self._seen:
            return
        self._seen.add(short)
        if isinstance(short, bytes):
            place.uuids += short
            place.sizes.append(size)
        else:
            place.others.append((name, size))


def _tables_of_contents(
    folder: Folder, segments: list[str]
) -> Iterator[tuple[str, list[tuple[str, int]] | None]]:
    """Yield what is in each of SEGMENTS; None: it is damaged."""

    def look(segment: str) -> list[tuple[str, int]] | None:
        try:
            return folder.members(segment)
        except FileNotFoundError:
            return []  # it was too old to be kept
        except JournalCorrupt:
            return None

    if not folder.is_remote:
        yield from ((segment, look(segment)) for segment in segments)
        return
    names = iter(segments)
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
        while some := list(islice(names, _LISTED_AT_ONCE)):
            yield from zip(some, threads.map(look, some), strict=True)


# Planning.


class _Group:
    """The journals of the task that is being put together."""

    def __init__(self) -> None:
        self.runs: list[list[Any]] = []
        self.start = 0
        self.cost = 0
        self.journals = 0

    def add(self, place: _Place, name: bytes | str, cost: int) -> None:
        last = self.runs[-1] if self.runs else None
        here = [place.folder, place.segment]
        if last and last[:2] == here and isinstance(name, bytes) and isinstance(last[2], bytearray):
            last[2] += name
        else:
            self.runs.append([*here, bytearray(name) if isinstance(name, bytes) else name])
        self.cost += cost
        self.journals += 1

    def close(self, end: int | None = None) -> JournalPartition:
        runs = [(at, seg, bytes(n) if isinstance(n, bytearray) else n) for at, seg, n in self.runs]
        return JournalPartition(runs, self.start, end)


def plan_partitions(
    options: JournalOptions,
    *,
    split: bool,
    headers_only: bool = False,
    wanted: Wanted = EVERYTHING,
) -> list[JournalPartition]:
    """Divide the journals of the folders into tasks of even size.

    split: a large journal may be read by several tasks. headers_only: tasks read little more of a
    journal than its beginning, or that of each transaction in it, so they are mostly even by their
    number of journals. Raises ReplayError if
    a folder can't be read, or if all are empty and the options don't accept that.
    """
    return Listing(options, wanted).tasks(split=split, headers_only=headers_only)


def history_bytes(folders: Sequence[str]) -> int:
    """Return the bytes of the journals in FOLDERS. Raises as `plan_partitions` does, but not for
    folders without any."""
    return Listing(JournalOptions(tuple(folders), fail_on_empty=False)).total_bytes


def divide_journals(
    journals: Iterable[tuple[int, str, int]], options: JournalOptions
) -> list[JournalPartition]:
    """Divide these journals, in this order, into tasks of even size: the index of the folder, the
    name there, ``SEGMENT.zip/<uuid>.log`` in a segment, and the size in bytes."""
    found = []
    for folder, name, size in journals:
        segment, _, journal = name.rpartition("/")
        found.append((_Place(folder, segment), _short(journal), size))
    return _divide(lambda: found, options, split=True)


def count_tasks(size: int, options: JournalOptions) -> int:
    """Return into how many tasks so many bytes are divided, if nothing is in the way."""
    most = options.partition_bytes
    return _count_tasks(size, most, min(most, _LEAST_BYTES), options)


def _count_tasks(total: int, most: int, least: int, options: JournalOptions) -> int:
    return max(-(-total // most), min(options.min_partitions, -(-total // least)), 1)


def _divide(
    journals: Callable[[], Iterable[tuple[_Place, bytes | str, int]]],
    options: JournalOptions,
    split: bool,
    headers_only: bool = False,
) -> list[JournalPartition]:
    def cost_of(size: int) -> int:
        return 1 + size // _LOOKED_THROUGH if headers_only else size + _OPENING

    total = sum(cost_of(size) for _, _, size in journals())
    most, least = (
        (options.partition_journals, _LEAST_JOURNALS)
        if headers_only
        else (options.partition_bytes, _LEAST_BYTES)
    )
    least = min(most, least)
    tasks = _count_tasks(total, most, least, options)
    partitions: list[JournalPartition] = []
    group = _Group()
    left = total

    def close_group(end: int | None = None) -> None:
        nonlocal group, left
        partitions.append(group.close(end))
        left -= group.cost
        group = _Group()

    for place, name, size in journals():
        cost = cost_of(size)
        # What is left, shared by the tasks that are left: the last one is no smaller than others.
        target = max(1, -(-left // max(tasks - len(partitions), 1)))
        full = group.journals >= options.partition_journals
        cut_here = split and not place.segment and size > 2 * least
        if group.journals and (full or (not cut_here and group.cost + cost / 2 > target)):
            close_group()
        at = 0
        while cut_here and group.cost + size - at > target + least:
            cut = at + max(target - group.cost, least)  # no crumbs
            group.add(place, name, cut - at)
            close_group(cut)
            group.start = at = cut
            target = max(1, -(-left // max(tasks - len(partitions), 1)))
        group.add(place, name, cost_of(size - at))
    if group.journals:
        close_group()
    return partitions


# Reading.


class Found(NamedTuple):
    """A journal of a task: ``name`` in ``folder``, where it was found.

    ``reader``: open until the next one is asked for; or the JournalError or FileNotFoundError that
    came of opening it. ``start``: byte from which on blocks are read, 0: all; ``end``: byte before
    which they begin, or None. ``at``: of a transaction in a shared journal, and the ``database``
    that this says it is of, None where its first block is damaged.
    """

    folder: Folder
    name: str
    reader: JournalReader | JournalError | FileNotFoundError
    start: int = 0
    end: int | None = None
    at: Place | None = None
    database: str | None = None

    @property
    def place(self) -> str:
        """The journal's full name."""
        return self.folder.place(self.name)

    def stamped(self) -> tuple[JournalReader, Stamp]:
        """Return the reader and the stamp; raises what came of opening it, and as `stamp_of`."""
        if not isinstance(self.reader, JournalReader):
            raise self.reader
        return self.reader, stamp_of(self.reader)

    def at_block(self) -> Found | None:
        """Return this with ``start`` at the first block of the range, None if none begins in it.
        Raises JournalError."""
        if not isinstance(self.reader, JournalReader) or self.start <= self.reader.data_offset:
            return self
        block = self.reader.first_block(self.start)
        if block is None or (self.end is not None and block >= self.end):
            return None
        return self._replace(start=block)

    def salvage(self) -> tuple[int, Remains]:
        """Return the size in bytes, and what is still intact of a damaged journal.

        Raises ValueError if its name is no uuid, which its checksums begin with, and as
        `Folder.open` does, or JournalError in a damaged segment.
        """
        uuid = UUID(PurePosixPath(self.name).stem)
        if self.at is not None:
            stamp = self.at.stamp
            told = Remains(stamp.transaction, stamp.commit_us, stamp, self.database)
            return stamp.journal_length, told
        with closing(self.folder.open(self.name)) as file:
            return file.size(), read_remains(file.read_at, uuid)


def stamp_of(reader: JournalReader) -> Stamp:
    """Return the stamp, which says where in the history a journal is. Raises JournalCorrupt."""
    if reader.stamp is None:
        raise JournalCorrupt(
            reader.place, -1, "it has no stamp, so nothing says that its transaction is committed"
        )
    return reader.stamp


class FoundShared(NamedTuple):
    """Transactions of a shared journal that a task reads: ``entries`` in the order of their
    numbers, of the journal NAME in ``folder``, which is open until the next one is asked for.
    ``start``, ``end``: as of `Found`, of the journal."""

    folder: Folder
    name: str
    journal: SharedJournal
    entries: list[Entry]
    start: int
    end: int | None
    none_charset: str

    def found(self, entries: Iterable[Entry]) -> Iterator[Found]:
        """Yield each of ENTRIES, some of these, with a reader of its own."""
        places = (entry.place for entry in entries)
        header = self.journal.header
        database = None if header is None else header.database
        for place, reader in self.journal.readers(places, self.none_charset):
            behind = place.offset + place.stamp.journal_length
            found = Found(
                self.folder,
                name_in(self.name, place),
                reader,
                start=max(self.start - place.offset, 0),
                end=None if self.end is None or self.end >= behind else self.end - place.offset,
                at=place,
                database=database,
            )
            if isinstance(reader, JournalError):
                yield found
                continue
            with reader:
                yield found

    def small(
        self, read: Callable[[bytes, int, list[Entry]], Iterator[T]], left: list[Entry]
    ) -> Iterator[T]:
        """Yield what READ, a method of `SmallTransactions`, yields of the transactions. LEFT gets
        those that are large or lie in the range in part."""
        entries = self.entries
        if self.start or self.end is not None:
            start, end = self.start, MAX_LENGTH if self.end is None else self.end
            entries = [e for e in entries if start <= e.offset and e.offset + e.length <= end]
            left += [e for e in self.entries if e.offset < start or e.offset + e.length > end]
        for run, offset, content in self.journal.runs(entries):
            if content is None:
                left += run
            else:
                yield from read(content, offset, run)


def find_files(
    partition: JournalPartition | None, options: JournalOptions, wanted: Wanted = EVERYTHING
) -> Iterator[Found | FoundShared]:
    """Open the journals of a task one after the other, whole.

    A journal that is not where it was when the tasks were planned, as it was archived or packed
    since, is looked for by its name in all folders. Those that WANTED leaves out by their sectors
    are left out; ``options.database`` is not looked at.
    """
    if not isinstance(partition, JournalPartition):
        return  # the folders hold no journal
    if not crc32c.COMPILED:
        from firebird_cdc.journal.replay.cluster.package import tell_what_is_slow

        tell_what_is_slow()
    folders = [folder_at(url) for url in options.folders]
    files = [*_files(partition)]
    finder = JournalFinder(folders, (name.rpartition("/")[2] for _, name, _ in files))

    def use(folder: Folder, name: str) -> JournalReader | SharedJournal:
        return folder.open_journal(name, options.none_charset)

    kept = _KeptJournals()
    opened: JournalReader | SharedJournal
    try:
        for index, (number, name, only) in enumerate(files):
            start = partition.start if index == 0 else 0
            end = partition.end if index == len(files) - 1 else None
            try:
                if only and (known := kept.get((number, name))) is not None:
                    folder, found, opened = known
                else:
                    folder, found, opened = finder.find(folders[number], name, use)
            except (FileNotFoundError, JournalError) as error:
                yield Found(folders[number], name, error, start, end)
                continue
            if isinstance(opened, SharedJournal) and only:
                kept.put((number, name), (folder, found, opened))
                entries = _admitted(opened.among(only), wanted)
                yield FoundShared(folder, found, opened, entries, 0, None, options.none_charset)
                continue
            with opened:
                if isinstance(opened, SharedJournal):
                    entries = _admitted(_reaching(opened.entries, start, end), wanted)
                    copied = partition.copied - {_short(found.rpartition("/")[2])}
                    if copied:
                        entries = [each for each in entries if each.uuid not in copied]
                    yield FoundShared(
                        folder, found, opened, entries, start, end, options.none_charset
                    )
                elif _is_wanted(opened, wanted):
                    yield Found(folder, found, opened, start, end)
    finally:
        kept.close()
        close_segments()


class _KeptJournals:
    """Shared journals of which a task reads single transactions: the next ones in the order of the
    history lie in others, and then in these again. Those that were read least lately are closed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, str], tuple[Folder, str, SharedJournal]] = OrderedDict()
        self._sizes: dict[tuple[int, str], int] = {}

    def get(self, key: tuple[int, str]) -> tuple[Folder, str, SharedJournal] | None:
        """Return what was kept of the folder's number and the name there."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: tuple[int, str], found: tuple[Folder, str, SharedJournal]) -> None:
        """Keep a journal, which is closed by `close` or when others take its room."""
        if key in self._kept:
            return
        self._kept[key] = found
        _, name, journal = found
        self._sizes[key] = _PLACE_BYTES * len(journal.entries)
        if "/" in name:  # in a segment, so all of it is in memory
            self._sizes[key] += sum(entry.length for entry in journal.entries)
        while len(self._kept) > 1 and self._is_full():
            oldest, (_, _, former) = self._kept.popitem(last=False)
            del self._sizes[oldest]
            former.close()

    def _is_full(self) -> bool:
        return len(self._kept) > _MOST_KEPT or sum(self._sizes.values()) > _KEPT_BYTES

    def close(self) -> None:
        """Close all of them."""
        for _, _, journal in self._kept.values():
            journal.close()


def _files(partition: JournalPartition) -> Iterator[tuple[int, str, set[UUID]]]:
    """Yield the files of a task: the index of the folder, the name there, and of a journal of which
    single transactions are to be read, those."""
    only: set[UUID] = set()
    last: tuple[int, str] | None = None
    for folder, name in partition.journals():
        file, transaction = split_name(name)
        if last is not None and only and (not transaction or last != (folder, file)):
            yield *last, only
            only = set()
        if transaction:
            only.add(UUID(transaction[1:].removesuffix(JOURNAL_SUFFIX)))
            last = folder, file
        else:
            yield folder, name, set()
    if last is not None and only:
        yield *last, only


def _reaching(entries: list[Entry], start: int, end: int | None) -> list[Entry]:
    """Return those of ENTRIES that reach into a range of their journal."""
    if not start and end is None:
        return entries
    most = MAX_LENGTH if end is None else end
    return [each for each in entries if each.offset + each.length > start and each.offset < most]


def _admitted(entries: list[Entry], wanted: Wanted) -> list[Entry]:
    if not wanted.conditions:
        return entries
    places = ((entry, entry.place) for entry in entries)
    return [entry for entry, place in places if _admits(wanted, place.stamp, place.uuid)]


def find_journals(
    partition: JournalPartition | None, options: JournalOptions, wanted: Wanted = EVERYTHING
) -> Iterator[Found]:
    """Open the journals of a task as `find_files` does, and each transaction in them."""
    for found in find_files(partition, options, wanted):
        if isinstance(found, FoundShared):
            yield from found.found(found.entries)
        else:
            yield found


def open_partition(
    partition: JournalPartition | None, options: JournalOptions, wanted: Wanted = EVERYTHING
) -> Iterator[Found]:
    """Open the journals of a task as `find_journals` does, with ``start`` at the first block.

    Ranges in which no block begins are left out.
    """
    for found in find_journals(partition, options, wanted):
        try:
            begun = found.at_block()
        except JournalError as error:
            begun = found._replace(reader=error)
        if begun is not None:
            yield begun


def _is_wanted(reader: JournalReader, wanted: Wanted) -> bool:
    return reader.stamp is None or _admits(wanted, reader.stamp, reader.header.uuid)


def _admits(wanted: Wanted, stamp: Stamp, uuid: UUID) -> bool:
    return not wanted.conditions or wanted.admits(
        epoch=stamp.epoch,
        sequence=stamp.sequence,
        commit_time=stamp.commit_us,
        transaction=stamp.transaction,
        journal=str(uuid),
    )
