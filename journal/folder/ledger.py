"""The dense sequence of a database's journals, and the ledger that keeps it.

The ledger is a file that only grows: one record for each group of journals that were given
their numbers together, on disk before any of them becomes visible. So one sync serves a whole
group: what a journal's own stamp loses in a power cut is written again from the ledger. Once it
is long, all stamped journals are synced and a new ledger begins.

After a sync that failed, the system may take bytes for written that are not, and says so only
once, to one process. So the lock file says which bytes of which ledger a sync has covered, and
whoever finds records behind them writes the ledger anew, into another file, before anything in
it counts. It also says which number was the last of them: numbers and epochs only go up, whatever
file they are in. So a ledger that ends before it (damaged, cut, an older copy), can't be read
or is missing has lost numbers that were given, and stays as it is, until the latest copy takes its
place or somebody asks for a new epoch: an empty file beside it, ``<key>.anew``.

The lock file is synced itself before a ledger takes the place of another, with the first number,
and with each epoch. Otherwise the system writes it when it likes. So it never tells of more than
is on disk, and after a power cut perhaps of less: then a missing ledger is still noticed, and so is
an older copy as far as the word goes; an old word about bytes costs one more ledger.
Where nothing is synced it says so, so that whoever follows the ledger does not wait for a sync. It
tells of epochs alone then, and after a power cut perhaps of one that the ledger lacks, which then
counts as lost.

The files of a database that was dropped are removed in the end (``retire``). One that is created at
its path later begins in an epoch above all that were removed, of whatever database
(``JournalFolder.first_epoch``), so no number comes twice.

What a record holds is in ``journal.folder.ledger_records``, what the lock file has in
``journal.folder.ledger_lock``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from uuid import UUID

import logbook

from firebird_cdc import access
from firebird_cdc.journal.folder import lost_numbers
from firebird_cdc.journal.folder.durable import sync_directory
from firebird_cdc.journal.folder.inventory import Incarnation, Seen
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger_lock import LedgerLock, Noted
from firebird_cdc.journal.folder.ledger_records import (
    LedgerEntry,
    LedgerRecord,
    highest_ticket_of,
    index_entries,
    places_of_records,
    read_records,
    shared_journals_of,
)
from firebird_cdc.journal.format import Entry, write_stamp
from firebird_cdc.journal.format.layout import pwrite

_log = logbook.Logger("firebird_cdc.journal.folder.ledger")

_ENDINGS = (  # but for the lock file
    ".ledger", ".ledger-new", ".indexes", ".new", ".doubt", lost_numbers.ENDING,
)  # fmt: skip
_LEDGER_LIMIT = 4 * 1024 * 1024  # bytes; about 70,000 journals
_DAY_S = 86_400
_DISK_ERRORS = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)


class _NumbersLost(OSError):
    """A ledger lacks numbers that were given."""


class _JournalIndex:
    """Places of a ledger's records, their start and end bytes, by the shared journals that they
    name; of all records up to byte ``end``."""

    def __init__(self) -> None:
        self.places: dict[UUID, list[tuple[int, int]]] = {}
        self.end = 0

    def add(self, journals: Collection[UUID], record: tuple[int, int]) -> None:
        """Add the next RECORD, which names JOURNALS."""
        for each in journals:
            self.places.setdefault(each, []).append(record)
        self.end = record[1]


class SequenceLedger:
    """The numbers given in one database. Several processes may share it: ``exclusive``."""

    def __init__(
        self,
        folder: JournalFolder,
        key: str,
        fsync: bool,
        sync_stamps: Callable[[], None],
        database: str = "",
        last_stamp: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """``key``: of the database (``database_key``); ``sync_stamps`` puts every stamp written
        so far on disk; ``database``: its path, "" if that is not known; ``last_stamp``: gives epoch
        and number after which a new ledger goes on, None: none is begun here."""
        self._fsync = fsync
        self._sync_stamps = sync_stamps
        self._folder = folder
        self._last_stamp = last_stamp
        self._path = folder.databases / f"{key}.ledger"
        self._known = (0, 0)  # epoch and number that were given, whatever the file has
        self._request = self._path.with_suffix(".anew")
        self._fd = -1
        self._kept = 0  # bytes of what the present ledger goes on with
        self.compared_at = float("-inf")  # with the database, monotonic
        self.used_at = 0.0  # monotonic; by whoever keeps it open
        self._reset()
        self._lock = LedgerLock(self._path.with_suffix(".lock"), database)

    def _reset(self) -> None:
        """Know nothing of the ledger."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._end = 0
        self._index = _JournalIndex()
        self.epoch = 0
        self.last = 0
        self.highest_transaction = 0
        self.highest_ticket = 0  # of those in shared journals
        self.attachments = 0  # that the database had had at least; 0: not known
        self.incarnation: Incarnation | None = None  # None: not known yet

    @property
    def is_new(self) -> bool:
        """Tell, inside ``exclusive``, whether no number was ever recorded here."""
        return self._end == 0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from giving numbers meanwhile, and learn what they gave."""
        try:
            if self._lock.take():
                self._reset()
            self._catch_up_or_begin()
            if self.is_new and self._last_stamp is not None:
                self._begin_first()
            yield
        except BaseException:
            self._reset()  # what was begun may be in the file or not: the file is read anew
            raise
        finally:
            self._lock.release()

    def _begin_first(self) -> None:
        """Record where the numbers of a database begin of which none was ever recorded, or whose
        ledger was retired."""
        assert self._last_stamp is not None
        self.epoch, last = max((self._folder.first_epoch, 0), self._last_stamp())
        self.record([], last)

    def _catch_up_or_begin(self) -> None:
        """Learn what was given; where that is lost, do as somebody has asked."""
        try:
            self._catch_up()
        except _NumbersLost:
            if not self._request.exists():
                raise
            self._begin_after_loss()
        else:
            if not self._request.exists():
                return
            _log.warning(
                "{ledger} is complete, so no new epoch is begun, and {request} is removed",
                ledger=self._path,
                request=self._request,
            )
        self._request.unlink(missing_ok=True)  # or it would approve a loss to come

    def _catch_up(self) -> None:
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            noted = self._lock.noted
            if self._known[0] < self._folder.first_epoch:
                self._known = 0, 0  # retired: no number of that epoch is given again
            is_lost = noted.end or any(noted.number) or any(self._known)
            if (
                is_lost or self._request.exists()
            ):  # or who was asked for an epoch died before it began
                raise self._loss() from None
            self._write_anew(b"")
        else:
            if self._fd >= 0 and inode != os.fstat(self._fd).st_ino:
                self._reset()  # another process began a new ledger
            if self._fd < 0:
                with self._reading():
                    self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        known = self._end
        for _ in self._read(known, only_last=True):
            pass
        # Whoever wrote what is behind that may have died before its sync, or that may have failed.
        noted = self._lock.noted
        if self._fsync and (noted.inode, noted.end) != (os.fstat(self._fd).st_ino, self._end):
            self._write_anew(self._content())
        elif self._fsync and noted.number != (self.epoch, self.last):
            self._note_synced(noted.failed)  # an earlier version does not
        elif not self._fsync:
            self._note_unsynced(noted)
        self._known = self.epoch, self.last  # only now: it may not have been on disk

    def _read(self, start: int, only_last: bool = False) -> Iterator[LedgerEntry]:
        """Yield what was given from byte ``start`` on, or ONLY what the LAST record has; a torn
        record ends the ledger. Raises OSError if it ends before what is known to be on disk: those
        numbers were given."""
        noted = self._lock.noted
        # Of another file the length says nothing, as a new ledger is short; if there is no number,
        # it is an earlier version's, which emptied it before a ledger took another's place.
        is_its = noted.inode == os.fstat(self._fd).st_ino or not any(noted.number)
        known = max(self._end, noted.end if is_its else 0)
        size = os.fstat(self._fd).st_size
        if size < start:
            raise self._loss()
        with self._reading():
            content = os.pread(self._fd, size - start, start)
        end = 0
        places = list(places_of_records(content))
        for at, _ in places:
            self.highest_ticket = max(self.highest_ticket, highest_ticket_of(content, at))
        for record in read_records(content, places[-1:] if only_last else places):
            yield from record.given
            self.epoch, self.last = record.epoch, record.last
            self.highest_transaction = record.highest_transaction
            self.attachments = record.attachments
            self.incarnation = record.incarnation
            end = record.end
        self._end = start + end
        if self._end < known or (self.epoch, self.last) < max(noted.number, self._known):
            raise self._loss()

    def retire(self) -> None:
        """Remove the files of a database that is gone, and let none that comes to its path have an
        epoch again that was given here. Call it inside ``exclusive``. Raises OSError.

        The lock file says nothing of numbers before the ledger goes: ended in between, this leaves
        a ledger that is whole, or none that anybody misses.
        """
        self._folder.retire_epoch(self.epoch)
        self._lock.note(Noted())
        self._lock.sync()
        for ending in _ENDINGS:
            self._path.with_suffix(ending).unlink(missing_ok=True)
        self._lock.remove()
        self._known = 0, 0
        self._reset()

    def close(self) -> None:
        """Close the ledger's files."""
        self._reset()
        self._lock.close()

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield all numbers that the ledger still holds; call it inside ``exclusive``."""
        yield from self._read(0)

    def entries_in(self, journal: UUID) -> list[Entry]:
        """Return the numbers of transactions in a shared journal, as its index is to have them and
        as far as the ledger still holds them; call it inside ``exclusive``."""
        self._sort()
        places = self._index.places.get(journal)
        if not places:
            return []
        first = places[0][0]
        with self._reading():
            content = os.pread(self._fd, places[-1][1] - first, first)
        return list(
            index_entries(content, [(at - first, end - first) for at, end in places], journal)
        )

    def _sort(self) -> None:
        """Note which records name which shared journals, of those that are new since."""
        start = self._index.end
        if start == self._end:
            return
        with self._reading():
            content = os.pread(self._fd, self._end - start, start)
        for at, end in places_of_records(content):
            self._index.add(shared_journals_of(content, at), (start + at, start + end))

    def record(self, group: Sequence[LedgerEntry], last: int) -> None:
        """Make the numbers of ``group`` durable, ending at ``last``, before anybody can see
        them. Call it inside ``exclusive``. Raises OSError; then nobody may see them yet, though
        the ledger may have them."""
        highest = max([self.highest_transaction, *(each.stamp.transaction for each in group)])
        body = self._record(group, last, highest).pack()
        if self._end + len(body) > max(_LEDGER_LIMIT, 2 * self._kept):
            self.begin_anew()
        self.last = last
        self.highest_transaction = highest
        self.highest_ticket = max([self.highest_ticket, *(each.ticket for each in group)])
        pwrite(self._fd, body, self._end)
        try:
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError as error:
            _log.error(
                "{ledger} could not be synced ({cause}): it is written anew",
                ledger=self._path,
                cause=error.strerror,
            )
            self._write_anew(self._content() + body)
        else:
            begin, self._end = self._end, self._end + len(body)
            homes = {entry.home for entry in group if entry.home is not None}
            # Journals of one transaction are many, and hardly ever asked for.
            if self._index.end == begin and homes.isdisjoint(entry.uuid for entry in group):
                self._index.add(homes, (begin, self._end))
            noted = self._lock.noted
            if self._fsync:
                self._note_synced(noted.failed)
            else:
                self._note_unsynced(noted)
        self._known = self.epoch, self.last

    def is_ahead_of(self, seen: Seen) -> bool:
        """Tell whether the numbers here are those of another database than the one that was SEEN,
        or of a later state of it."""
        return bool(
            seen.incarnation != self.incarnation
            or seen.last_transaction < self.highest_transaction
            or (self.attachments and (seen.attachments - self.attachments) % 2**32 >= 2**31)
        )

    def begin_epoch(self, incarnation: Incarnation) -> None:
        """Another database lies at the path: number its journals from 1, in an epoch of their own.
        Call it inside ``exclusive``."""
        self.epoch += 1
        self.last = self.highest_transaction = self.attachments = 0
        self.incarnation = incarnation
        self.record([], 0)

    def _record(self, given: Sequence[LedgerEntry], last: int, highest: int) -> LedgerRecord:
        known = self.attachments, self.incarnation
        return LedgerRecord(self.epoch, last, highest, *known, given)

    def begin_anew(self) -> None:
        """Replace a long ledger by one that only knows the last number, and what lies in journals
        that are not closed yet. All stamps written so far are put on disk first: nothing could
        write them again."""
        failed = self._folder.failed_syncs
        if self._fsync and self._lock.noted.failed != failed:
            self._write_stamps_again()
        kept = self._of_live_journals()
        self._write_summary(failed, kept)
        self._kept = len(kept)

    def _write_summary(self, failed: int, kept: bytes = b"") -> None:
        """Begin a ledger that only knows the last number, once all stamps are on disk. FAILED: how
        many syncs of the file system had failed before; KEPT: records that it goes on with."""
        try:
            self._sync_stamps()
        except OSError:
            self._folder.count_failed_sync()
            raise
        last = self._record([], self.last, self.highest_transaction)
        self._write_anew(kept + last.pack(), failed)

    def _of_live_journals(self) -> bytes:
        """Return the records that name journals which are not closed yet: these have no index."""
        self._sort()
        content = self._content()
        places = {
            place
            for journal, places in self._index.places.items()
            if self._folder.has_live(journal)
            for place in places
        }
        return b"".join(content[at:end] for at, end in sorted(places))

    def _begin_after_loss(self) -> None:
        """Number from 1 in a new epoch, as nobody knows any more which numbers were given. What is
        left of the ledger is kept beside it; what that has of live journals goes on to count."""
        noted = self._lock.noted
        left = self._left_of_live_journals()
        lost_numbers.note_numbered(self._path.with_suffix(lost_numbers.ENDING), self._folder)
        epoch = max(self.epoch, self._known[0], noted.epoch) + 1
        if not any(noted.number):
            # Nobody noted epochs here: the days since 1970 are more than any database has had.
            epoch = max(epoch, int(time.time() // _DAY_S))
        self._reset()
        self.epoch = epoch
        kept = self._path.with_suffix(".damaged")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(kept)
        self._write_summary(self._folder.failed_syncs, left)
        self._kept = len(left)
        _log.warning(
            "{ledger} had lost numbers, and somebody made {request}: journals are numbered from 1 "
            "again, in epoch {epoch}",
            ledger=self._path,
            request=self._request,
            epoch=epoch,
        )

    def _left_of_live_journals(self) -> bytes:
        """Return the records that name live journals, as far as a ledger that has lost numbers can
        be read."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return b""
        return b"".join(
            content[at:end]
            for at, end in places_of_records(content)
            if any(map(self._folder.has_live, shared_journals_of(content, at)))
        )

    def numbered_before(self) -> set[UUID]:
        """Return the transactions of live journals that are known to have had numbers which were
        lost. Raises OSError."""
        return lost_numbers.read_numbered(self._path.with_suffix(lost_numbers.ENDING))

    def _write_stamps_again(self) -> None:
        """Write the stamps of all journals that are here, each synced: a sync of the whole file
        system has failed, and the next one says nothing of what that did not write."""
        given = [each for record in read_records(self._content()) for each in record.given]
        for entry in given:
            self._folder.tell_progress()
            if entry.home is not None:
                continue
            try:
                fd = os.open(self._folder.committed(entry.uuid), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:  # nearly all are shipped
                continue
            try:
                write_stamp(fd, entry.uuid, entry.stamp)
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def _content(self) -> bytes:
        """Return the records of the ledger as far as they are known. Raises OSError if they can't
        be read any more."""
        with self._reading():
            content = os.pread(self._fd, self._end, 0)
        if self._end and not any(end == self._end for _, end in places_of_records(content)):
            raise self._loss()
        return content

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Take what the disk does not give back of the ledger for lost."""
        try:
            yield
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            raise self._loss() from error

    def _loss(self) -> _NumbersLost:
        """Return the error that says that records are lost which were on disk."""
        return _NumbersLost(
            errno.EIO,
            "a disk error, or an older copy of this file, took numbers that were given: no journal "
            "is published until its latest copy is brought back; if there is none, make the empty "
            f"file {self._request.name} beside it, and a new epoch begins",
            str(self._path),
        )

    def _write_anew(self, content: bytes, failed: int | None = None) -> None:
        """Have CONTENT in a new ledger, whole on disk before it takes the place of the old one.

        FAILED: how many syncs of the file system had failed before all stamps were on disk.
        """
        noted = self._lock.noted
        failed = noted.failed if failed is None else failed
        temporary = self._path.with_suffix(".ledger-new")  # of this lock alone
        temporary.unlink(missing_ok=True)  # another file: of that one a sync may have failed
        fd = access.open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            pwrite(fd, content, 0)
            os.fsync(fd)
            # An earlier ledger may have had this inode number: what was synced of that one must
            # not be said of this one, after a kill or a power cut either. Both have its number.
            self._lock.note(noted._replace(inode=0, end=0, failed=failed))
            self._lock.sync()
            temporary.rename(self._path)
            sync_directory(self._folder.databases)
        except BaseException:  # where it has its name already, it is opened anew
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._end = len(content)
        self._index = _JournalIndex()
        self._note_synced(failed)

    def _note_unsynced(self, noted: Noted) -> None:
        """Let all processes know that nothing is synced, and of the epoch."""
        if noted != (unsynced := noted.unsynced(self.epoch)):
            self._lock.note(unsynced)

    def _note_synced(self, failed: int) -> None:
        """Let all processes know that the ledger is on disk up to its end. Raises OSError."""
        before = self._lock.noted
        inode = os.fstat(self._fd).st_ino
        self._lock.note(Noted(inode, self._end, failed, self.last, self.epoch))
        if (self.epoch, self.last > 0) == (before.epoch, before.last > 0):
            return
        try:
            self._lock.sync()
        except OSError:
            self._lock.note(before)  # so that it is synced once more
            raise
