"""Follows what is committed in a journal folder, for whoever only looks: takes no lock, and holds
no file open beyond the reading of it, so that nothing stays that the shipper deletes.

The ledgers tell what was given a number, in that order; what waits from before is found by a scan.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from firebird_cdc.errors import JournalError, ShipError
from firebird_cdc.journal.folder.ledger_lock import read_database
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.folder.ledger_tail import LedgerTail, ledgers_of
from firebird_cdc.journal.format import Change, JournalReader, Stamp
from firebird_cdc.journal.shipper.inbox.backlog import Backlog
from firebird_cdc.journal.shipper.inbox.opening import JournalOpener
from firebird_cdc.journal.shipper.inbox.queue import Entry, Queue
from firebird_cdc.journal.shipper.inbox.watcher import JournalWatcher, list_journals

_LOOK_S = 0.5
_TELL_S = 1.0  # between two sentences about what was missed
_RENAMED_WITHIN_S = 5.0  # after its number was given; a guess well above
_LOOK_AGAIN_S = 0.005


class CommittedChange(NamedTuple):
    """A change and the transaction that it is of."""

    database: str
    stamp: Stamp
    transaction: int
    user: str
    change: Change


class JournalFollower:
    """Reads the journals of the folder DIRECTORY; of ARCHIVE, if there is one, what was shipped
    before it could be read. NONE_CHARSET: Python's codec for texts of CHARACTER SET NONE.
    IS_SYNCED: numbers count once they are on disk. TELL: is given sentences about what can't be
    read.
    """

    def __init__(
        self,
        directory: Path,
        archive: Path | None,
        none_charset: str,
        tell: Callable[[str], None],
        *,
        is_synced: bool,
    ) -> None:
        self._directory = directory
        self._folder = ledgers_of(directory)
        self._openers = [JournalOpener(directory, none_charset)]
        if archive is not None:
            self._openers.append(JournalOpener(archive, none_charset))
        self._tell = tell
        self._is_synced = is_synced
        self._tails: dict[str, tuple[str, LedgerTail]] = {}
        self._since_us = 0
        self._watcher = JournalWatcher(directory, 0, _LOOK_S)

    def close(self) -> None:
        """Give back what it holds."""
        self._watcher.close()
        for _, tail in self._tails.values():
            tail.close()

    def waiting(self, since_us: int) -> Iterator[CommittedChange]:
        """Yield the changes that wait in the folder, of commits since SINCE_US, microseconds since
        1970; each database's in its order. What comes later, `following` has."""
        self._since_us = since_us
        listed: dict[str, list[Entry]] = {}
        for database, entry in self._given():
            listed.setdefault(database, []).append(entry)
        read_to = {
            database: tail.last for database, tail in self._tails.values() if tail.last[1] >= 0
        }
        backlog = Backlog(self._directory)
        for _ in backlog.offer_all(list_journals(self._directory)):
            pass
        for each in backlog.unreadable.values():
            self._tell(f"{self._directory / each.name} can't be read: {each.reason}")
        for database in sorted(backlog.queues.keys() | listed.keys()):
            found = _taken(backlog.queues.get(database, Queue()), read_to.get(database))
            merged = heapq.merge(found, listed.get(database, ()), key=attrgetter("number"))
            last = None
            for entry in merged:
                if entry.number != last:  # else it is in both
                    with suppress(FileNotFoundError):  # it was shipped
                        yield from self._changes(database, entry)
                last = entry.number

    def skip(self) -> None:
        """Leave out all that is there now."""
        for _ in self._given():
            pass

    def following(self) -> Iterator[CommittedChange | None]:
        """Yield the changes of what is committed from now on, without an end; None where there is
        nothing more for the moment."""
        try:
            self._watcher.attach()
        except OSError as error:
            raise ShipError(f"{self._directory} can't be read: {error.strerror}") from error
        missed, tell_at = 0, 0.0
        while True:
            for database, entry in self._given():
                try:
                    yield from self._changes(database, entry)
                except FileNotFoundError:
                    missed += 1
            if missed and time.monotonic() >= tell_at:
                self._tell(
                    f"transactions that were shipped before they could be read here: {missed}; look"
                    " at the topics, or keep an archive"
                )
                missed, tell_at = 0, time.monotonic() + _TELL_S
            yield None
            self._watcher.take()
            self._watcher.take_ledgers()
            self._watcher.wait(_LOOK_S)

    def _given(self) -> Iterator[tuple[str, Entry]]:
        """Yield what was given since the last call. Raises ShipError."""
        for path in sorted(self._folder.glob("*.ledger")):
            key = path.stem
            try:
                if key not in self._tails:
                    database = read_database(path.with_suffix(".lock")).path
                    tail = LedgerTail(
                        self._folder, key, is_synced=self._is_synced, only_shared=False
                    )
                    self._tails[key] = database, tail
                    self._watcher.followed.add(key)
                database, tail = self._tails[key]
                while (given := tail.read()) is not None:
                    yield from ((database, _entry(each)) for each in given)
            except FileNotFoundError:  # of a database that is gone
                continue
            except OSError as error:
                raise ShipError(f"{path} can't be read: {error.strerror or error}") from error

    def _changes(self, database: str, entry: Entry) -> Iterator[CommittedChange]:
        """Yield the changes of ENTRY. Raises FileNotFoundError if it is gone."""
        if entry.commit_us is not None and entry.commit_us < self._since_us:
            return
        try:
            with self._opened(entry) as reader:
                stamp = reader.stamp
                if stamp is None or stamp.commit_us < self._since_us:
                    return
                head, of, user = reader.header, reader.database or database, reader.user
                for change in reader.changes():
                    yield CommittedChange(of, stamp, head.transaction, user, change)
        except FileNotFoundError:
            raise
        except JournalError as error:
            self._tell(f"{error}; firebird-cdc journal show tells more")
        except OSError as error:
            self._tell(f"{self._directory / entry.file} can't be read: {error.strerror or error}")

    def _opened(self, entry: Entry) -> JournalReader:
        open_journal = f"{entry.file}.live"
        give_up_at = time.monotonic() + _RENAMED_WITHIN_S
        while True:
            was_open = (self._directory / open_journal).exists()
            for opener in self._openers:
                with suppress(FileNotFoundError):
                    return opener.open(entry)
            if not was_open or time.monotonic() > give_up_at:
                raise FileNotFoundError(entry.file)
            time.sleep(_LOOK_AGAIN_S)  # it gets its name just now


def _entry(given: LedgerEntry) -> Entry:
    number = given.stamp.number
    if given.home is None:
        return Entry(*number, given.uuid)
    end = given.offset + given.stamp.journal_length
    return Entry(*number, given.uuid, given.home, given.place, end)


def _taken(queue: Queue, read_to: tuple[int, int] | None) -> Iterator[Entry]:
    """Yield what is in QUEUE, up to the number READ_TO, behind which the ledger tells; None: there
    is no ledger."""
    while queue and (read_to is None or queue.first().number <= read_to):
        yield queue.pop()
