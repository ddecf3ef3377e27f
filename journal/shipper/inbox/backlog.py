"""The journals of a folder that wait to be shipped, each database's in the order of its history.

Kept in memory per transaction: its place and its uuid, some 60 bytes where they are many, never
contents; a million waiting journals are a backlog that has to fit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from time import time
from uuid import UUID

from firebird_cdc.errors import JournalError, JournalShared
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import SharedJournal, read_envelope
from firebird_cdc.journal.format.journal_index import PLACE_BYTES
from firebird_cdc.journal.shipper.inbox.queue import Entry, Queue
from firebird_cdc.journal.shipper.shared_offsets import EVERYTHING, NOTHING, Number
from firebird_cdc.native._journal_files import read_envelopes

YOUNG_S = 2.0
"""A journal younger than this that can't be read may still be on its way (a copy by hand)."""

_BATCH = 64  # journals that are read in one call


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A journal whose place can't be told. ``database`` None: not even whose it is."""

    name: str
    database: str | None
    reason: str


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


@dataclass(slots=True)
class _Home:
    """A shared journal: how many of its transactions wait or are under way, up to which number the
    ledger was read, and up to where it is known to be on disk. ``uuid``: one object for all of its
    transactions, as to compare two takes its time."""

    uuid: UUID
    left: int = 0
    is_closed: bool = False
    last: Number = NOTHING
    whole_to: int = 0


class Backlog:
    """All journals of one folder that are known and not yet disposed of.

    ``finished``: shared journals that are closed and in which nothing waits any more; whether
    anything was committed there. ``behind``: by database, how many numbers a ledger has that are
    not sorted in yet; ``unread``: databases that share journals and whose ledger can't be read.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.queues: dict[str, Queue] = {}
        self.unreadable: dict[str, Unreadable] = {}
        self._folder = f"{directory}{os.sep}"
        self._known = _Uuids()
        self._young: set[str] = set()
        self._homes: dict[UUID, _Home] = {}
        self.finished: dict[str, bool] = {}
        self.behind: dict[str, int] = {}
        self.unread: set[str] = set()

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    @property
    def young(self) -> bool:
        """Tell whether journals wait that could not be read yet because they have just appeared."""
        return bool(self._young)

    def offer_all(self, names: Iterable[str]) -> Iterator[None]:
        """Take up each of NAMES, many at a time, as ``offer``; yield now and then."""
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

    def sorted_to(self, name: str) -> Number:
        """Tell up to which number what is in the journal NAME was sorted in; for any thread. All of
        it also where it could not be read, and for what is no name of a journal (<uuid>.log)."""
        try:
            uuid = _packed(name)
        except ValueError:
            return EVERYTHING
        if len(uuid) != 16 or uuid in self._known or name in self.unreadable:
            return EVERYTHING
        home = self._homes.get(UUID(bytes=uuid))
        return NOTHING if home is None else home.last

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
        except JournalShared:
            self._offer_shared(path, uuid)
            return
        except (JournalError, OSError) as error:
            self._cannot_read(path, database, str(error))
            return
        self._know(uuid, name)
        queue = self.queues.setdefault(database, Queue())
        queue.push(Entry(*stamp.number, uuid))

    def _offer_shared(self, path: Path, uuid: UUID) -> None:
        """Sort in the transactions of a journal that is shared, as ``offer`` does with one."""
        database = None
        try:
            with SharedJournal(path) as journal:
                database = journal.database
                if journal.index.journal != uuid:
                    what = f"it is journal {journal.index.journal} under another's name"
                    raise JournalError(path, 0, what)
        except FileNotFoundError:
            return
        except (JournalError, OSError) as error:
            self._cannot_read(path, database, str(error))
            return
        self._know(uuid, path.name)
        is_one = len(journal.packed_places(NOTHING)) == PLACE_BYTES
        if is_one and uuid not in self._homes and journal.places[0].uuid == uuid:
            entry = Entry(*journal.places[0].stamp.number, uuid)  # it takes the least room
            self.queues.setdefault(database, Queue()).push(entry)
            return
        home = self._homes.setdefault(uuid, _Home(uuid))
        home.is_closed = True
        places = journal.packed_places(home.last)
        home.left += len(places) // PLACE_BYTES
        self.queues.setdefault(database, Queue()).push_shared(home.uuid, places)
        if not home.left:
            self.finished[path.name] = bool(journal.packed_places(NOTHING))

    def take_given(self, database: str, given: Sequence[LedgerEntry]) -> None:
        """Sort in those of GIVEN, which the ledger of DATABASE has in this order, that lie in
        journals that are not closed yet. Where one is, its index says what is in it."""
        taken: list[tuple[_Home, LedgerEntry]] = []
        found: dict[UUID, _Home | None] = {}
        for entry in given:
            if entry.home is None:
                continue
            if entry.home not in found:
                found[entry.home] = self._homes.get(entry.home) or self._find_home(entry.home)
            home = found[entry.home]
            if home is None or home.is_closed or entry.stamp.number <= home.last:
                continue
            home.left += 1
            home.last = entry.stamp.number
            home.whole_to = max(home.whole_to, entry.offset + entry.stamp.journal_length)
            taken.append((home, entry))
        if taken:
            entries = [
                Entry(*each.stamp.number, each.uuid, home.uuid, each.place, home.whole_to)
                for home, each in taken
            ]
            self.queues.setdefault(database, Queue()).push_listed(entries)

    def _find_home(self, uuid: UUID) -> _Home | None:
        """Return a shared journal that may still grow; sort in one that is closed. None: it is not
        here any more."""
        name = f"{uuid}.log"
        if not (self.directory / f"{name}.live").exists():
            self.offer(name)
        else:
            self._homes[uuid] = _Home(uuid)
        return self._homes.get(uuid)

    def _know(self, uuid: UUID, name: str) -> None:
        self._known.add(uuid.bytes)
        self.unreadable.pop(name, None)

    def _cannot_read(self, path: Path, database: str | None, reason: str) -> None:
        try:
            age = time() - path.stat().st_mtime
        except FileNotFoundError:
            return
        if 0 <= age < YOUNG_S:  # one of the future would be young for long
            self._young.add(path.name)
        else:
            self.unreadable[path.name] = Unreadable(path.name, database, reason)

    def offer_young(self) -> None:
        """Try again those that had just appeared."""
        for name in list(self._young):
            self.offer(name)

    def files_without(self, entries: Sequence[Entry]) -> list[str]:
        """Return the names of the files in which nothing waits any more once ENTRIES are gone, in
        that order."""
        names = []
        gone = Counter[UUID]()
        for uuid, of_one in groupby(entries, attrgetter("home")):
            each = list(of_one)
            if uuid is None:
                names += [entry.file for entry in each]
                continue
            gone[uuid] += len(each)
            home = self._homes.get(uuid)
            if home is None or (home.is_closed and gone[uuid] >= home.left):
                names.append(each[0].file)
        return names

    def forget_finished(self) -> None:
        """The files in ``finished`` were disposed of."""
        for name in self.finished:
            self._forget_home(UUID(name.removesuffix(".log")))
        self.finished.clear()

    def _forget_home(self, uuid: UUID) -> None:
        self._homes.pop(uuid, None)
        self._known.discard(uuid.bytes)

    def forget_gone(self) -> None:
        """Forget shared journals that are not in the folder, as that is another one now. They may
        come back with the former one, and all in them has to be sorted in then."""
        for uuid in list(self._homes):
            name = f"{self._folder}{uuid}.log"
            if not os.path.lexists(name) and not os.path.lexists(f"{name}.live"):
                self._forget_home(uuid)

    def holds(self, home: UUID) -> bool:
        """Tell whether the shared journal HOME is still there."""
        return home in self._homes

    def forget(self, *entries: Entry) -> None:
        """ENTRIES were disposed of; should their files come again, they are new journals."""
        for uuid, of_one in groupby(entries, attrgetter("home")):
            if uuid is None:
                for entry in of_one:
                    self._known.discard(entry.uuid.bytes)
            elif (home := self._homes.get(uuid)) is not None:
                home.left -= len(list(of_one))
                if home.is_closed and not home.left:
                    self._forget_home(uuid)

    def recheck_unreadable(self) -> Iterator[Unreadable]:
        """Yield the unreadable journals that are still there, still unreadable."""
        for name in list(self.unreadable):
            if not os.path.lexists(self.directory / name):
                del self.unreadable[name]
                continue
            self.offer(name)
            if name in self.unreadable:
                yield self.unreadable[name]
