"""Transactions in a journal folder that wait or are open, told from its files and at little cost.

A file has one transaction, or many share it. What is committed in a closed one (``.log``) its index
says, in an open one (``.log.live``) the ledger of its database. Files may be renamed or removed at
any time: what is gone counts as none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from firebird_cdc.errors import JournalCorrupt, JournalEmpty, JournalError, JournalShared
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.folder.ledger_tail import LedgerTail, ledgers_of
from firebird_cdc.journal.folder.locks import OWNERS, STATE_DIRECTORY, is_held
from firebird_cdc.journal.folder.shared_page import read_confirmer
from firebird_cdc.journal.folder.slots import read_slots
from firebird_cdc.journal.format import (
    count_above,
    database_of,
    read_envelope,
    read_file_header,
)
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import Void, walk
from firebird_cdc.journal.shipper.shared_offsets import EVERYTHING, NOTHING, Number

READ_AT_ONCE = 500
"""Files that are opened in one count; the others' turn comes later."""

_WALKED = 64 * 1024 * 1024
"""Bytes of journals left by ended servers that are gone through for what is undecided."""


class Pending(NamedTuple):
    """Committed transactions that wait. ``oldest_us``: when the first of them was committed
    (microseconds since 1970); None: there is none, or nobody knows."""

    transactions: int = 0
    oldest_us: int | None = None

    def plus(self, other: Pending) -> Pending:
        """Return both together."""
        times = [each for each in (self.oldest_us, other.oldest_us) if each is not None]
        return Pending(self.transactions + other.transactions, min(times, default=None))


class _Closed(NamedTuple):
    """Transactions of a file above the number ``last``. ``is_read``: else it may be read later."""

    last: Number
    database: str
    pending: Pending
    is_read: bool = True


_UNREAD = _Closed(NOTHING, "", Pending(1), is_read=False)


class ClosedJournals:
    """Journals whose names say committed. Each is opened once, AT_ONCE of them in one count: until
    then, and if it can't be read, it counts as one transaction."""

    def __init__(self, at_once: int = READ_AT_ONCE) -> None:
        self._at_once = at_once
        self._known: dict[str, _Closed] = {}

    def count(self, folder: Path, names: Mapping[str, Number]) -> dict[str, Pending]:
        """Count the transactions of the journals NAMES in FOLDER by database, "" for those whose
        database is unknown; of each journal that is shared, those above a number."""
        left = self._at_once
        known: dict[str, _Closed] = {}
        counted: defaultdict[str, Pending] = defaultdict(Pending)
        for name, last in names.items():
            found: _Closed | None = self._known.get(name)
            if found is None or found.last != last:
                found = _look(folder / name, last) if left else _UNREAD
                left = max(left - 1, 0)
                if found is None:
                    continue
            if found.is_read:
                known[name] = found
            counted[found.database] = counted[found.database].plus(found.pending)
        self._known = known
        return counted


def _look(path: Path, last: Number) -> _Closed | None:
    """Return what the journal at PATH has above LAST; None: it is gone."""
    try:
        try:
            _, stamp, database = read_envelope(path)
        except (JournalShared, JournalEmpty, JournalCorrupt):  # whose first block is damaged
            database, count, first = count_above(path, last)
            return _Closed(last, database, Pending(count, first and first.stamp.commit_us))
        if stamp is not None:
            return _Closed(last, database, Pending(1, stamp.commit_us))
    except FileNotFoundError:
        return None
    except (JournalError, OSError):
        database = ""
        with suppress(JournalError, OSError):
            database = database_of(path)
    try:
        written_us = path.stat().st_mtime_ns // 1000
    except OSError:
        return None
    return _UNREAD._replace(database=database, pending=Pending(1, written_us))


def committed_us(path: Path) -> int | None:
    """Return when the first transaction in journal PATH was committed (microseconds since 1970),
    None if it is gone; if it does not say so, when it was last written."""
    found = _look(path, NOTHING)
    return None if found is None else found.pending.oldest_us


class _Live(NamedTuple):
    """A journal that is not closed. ``owner``: its process; ``home``: its uuid, None if it is of a
    former version; ``is_own``: it is of one transaction."""

    database: str
    owner: UUID
    home: UUID | None = None
    is_own: bool = True


class _Given(NamedTuple):
    """A committed transaction, and where it lies in its journal."""

    number: Number
    commit_us: int
    offset: int


Last = Callable[[UUID], Number]
"""Returns up to which number the transactions of a shared journal are not to be counted."""


class LiveJournals:
    """Journals of one folder that are not closed, and what the ledgers have of shared ones.

    Ledgers are read without regard to what is synced: a transaction may count a moment before its
    number holds, and none is passed over where nothing is synced.
    """

    def __init__(self, directory: Path, at_once: int = READ_AT_ONCE) -> None:
        self._directory = directory
        self._state = directory / STATE_DIRECTORY
        self._at_once = at_once
        self._known: dict[str, _Live] = {}
        self._unknown = 0
        self._tails: dict[str, LedgerTail] = {}
        self._given: dict[UUID, list[_Given]] = {}

    def close(self) -> None:
        """Close the ledgers."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def look(self, names: Iterable[str], last: Last) -> None:
        """Take it that the journals NAMES are there, and read on in the ledgers, of which only what
        is above LAST is kept."""
        before, self._known, self._unknown = self._known, {}, 0
        left = self._at_once
        for name in names:
            live = before.get(name)
            if live is None and left:
                left -= 1
                try:
                    live = _read_live(self._directory / name)
                except FileNotFoundError:
                    continue
                except (JournalError, OSError):
                    live = None
            if live is None:
                self._unknown += 1
            else:
                self._known[name] = live
        homes = {live.home for live in self._known.values()}
        # What the ledger has of one that came since that look stays until the next.
        self._given = {home: given for home, given in self._given.items() if home in homes}
        self._follow({live.database for live in self._shared()}, last)

    def _shared(self) -> list[_Live]:
        return [live for live in self._known.values() if live.home is not None]

    def _follow(self, databases: Iterable[str], last: Last) -> None:
        keys = {database_key(database) for database in databases}
        for key in self._tails.keys() - keys:
            self._tails.pop(key).close()
        for key in keys:
            tail = self._tails.get(key)
            if tail is None:
                tail = LedgerTail(ledgers_of(self._directory), key, is_synced=False)
                self._tails[key] = tail
            with suppress(OSError):  # the shipper tells of it
                while (given := tail.read()) is not None:
                    self._take(given, last)

    def _take(self, given: Iterable[LedgerEntry], last: Last) -> None:
        passed: dict[UUID, Number] = {}
        for entry in given:
            home, number = entry.home, entry.stamp.number
            if home is None:
                continue
            if home not in passed:
                is_there = home in self._given or self._live(home).exists()
                passed[home] = last(home) if is_there else EVERYTHING
                if is_there and (held := self._given.setdefault(home, [])):
                    passed[home] = max(passed[home], held[-1].number)
            if number > passed[home]:
                self._given[home].append(_Given(number, entry.stamp.commit_us, entry.offset))

    def _live(self, home: UUID) -> Path:
        return self._directory / f"{home}.log.live"

    @property
    def homes(self) -> list[UUID]:
        """Return the shared journals."""
        return [live.home for live in self._shared() if live.home is not None]

    def pending(self, last: Last) -> dict[str, Pending]:
        """Count the committed transactions in shared journals above LAST, by database; those below
        are never asked for again."""
        counted: defaultdict[str, Pending] = defaultdict(Pending)
        for live in self._shared():
            assert live.home is not None
            held = self._given.get(live.home, [])
            del held[: bisect_right(held, last(live.home), key=attrgetter("number"))]
            if held:
                pending = Pending(len(held), held[0].commit_us)
                counted[live.database] = counted[live.database].plus(pending)
        return counted

    def open(self, *, is_left: bool) -> Counter[str]:
        """Count the transactions that have changed something and are not decided, by database; ""
        for those whose database is unknown.

        IS_LEFT: no process works on the folder. Then journals are gone through for what is
        undecided in them, so all that was given has to be known; else who confirms tells how many
        there are.
        """
        own = {
            name: live
            for name, live in self._known.items()
            if live.is_own and live.home not in self._given
        }
        counted = Counter(live.database for live in own.values())
        if self._unknown:
            counted[""] += self._unknown
        counted.update(self._in_memory())
        if is_left:
            counted.update(self._left_undecided())
            return counted
        undecided = read_confirmer(self._directory).undecided
        if undecided:  # those in journals of their own are among these
            undecided -= sum(map(self._is_let_go, own, own.values()))
            databases = {live.database for live in self._shared()}
            if undecided > 0:
                counted[databases.pop() if len(databases) == 1 else ""] += undecided
        return counted

    def _is_let_go(self, name: str, live: _Live) -> bool:
        """Tell whether nobody works any more in the transaction of a journal."""
        owner = self._state / OWNERS / str(live.owner)
        with suppress(OSError):
            return not is_held(owner if live.home is None else self._directory / name)
        return False

    def _in_memory(self) -> Iterator[str]:
        """Yield the database of each transaction that a living process has in memory alone."""
        with suppress(OSError):
            for slots in (self._state / "slots").iterdir():
                with suppress(OSError):
                    if is_held(self._state / OWNERS / slots.name):
                        for each in read_slots(slots):
                            yield each.database

    def _left_undecided(self) -> Iterator[str]:
        """Yield the database of each transaction in a shared journal that is neither committed nor
        rolled back, as far as is known."""
        left = _WALKED
        decided: set[tuple[bytes, int]] = set()
        found: list[tuple[str, bytes, int]] = []
        for name, live in self._known.items():
            if live.home is None or live.is_own:
                continue
            given = self._given.get(live.home, ())
            decided.update((live.home.bytes, entry.offset) for entry in given)
            with suppress(JournalError, OSError), closing(Source(self._directory / name)) as source:
                size = min(source.size, left)
                left -= size
                for each in walk(source.read, size, live.home):
                    if isinstance(each.what, Void):
                        decided.add((each.what.journal, each.what.offset))
                    elif isinstance(each.what, Head):
                        found.append((live.database, live.home.bytes, each.offset))
        yield from (database for database, *place in found if tuple(place) not in decided)


def _read_live(path: Path) -> _Live:
    """Read whose a journal is. Raises JournalError if it doesn't say so, or not yet, OSError."""
    try:
        header, _, database = read_envelope(path)
        return _Live(database, header.owner)
    except JournalShared:
        first = read_file_header(path)
        return _Live(first.database, first.owner, first.uuid, first.is_own)
