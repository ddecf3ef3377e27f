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
Where nothing is synced it tells of epochs alone, and after a power cut perhaps of one that the
ledger lacks, which then counts as lost.

    record:  4s magic, u32 epoch, u32 entries, u32 attachments that the database had had, modulo
             2^32 (0: not known), u64 last number before the group, u64 highest transaction so far,
             16s GUID, i32 i32 creation time and u64 inode of the database file, then per journal
             16s uuid, i64 commit_us, i64 stamped_us, u64 length, u64 events, u64 transaction, u64
             catalogue_offset; u32 CRC-32C of all that
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import google_crc32c
import logbook

from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.inventory import Incarnation, Seen
from firebird_cdc.journal.durable import sync_directory
from firebird_cdc.journal.format import Stamp, write_stamp

_log = logbook.Logger("firebird_cdc.bridge.sequence")

_HEAD = struct.Struct("<4sIIIQQ16siiQ")
_ENTRY = struct.Struct("<16sqqQQQQ")
_CRC = struct.Struct("<I")
_NOTED = struct.Struct("<QQQQI")  # in the lock file; earlier versions wrote the first three only
_MAGIC = b"FBCL"
_UNKNOWN = Incarnation(UUID(int=0), (0, 0), 0)
_LEDGER_LIMIT = 4 * 1024 * 1024  # bytes; about 70,000 journals
_DAY_S = 86_400
_DISK_ERRORS = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)


class _NumbersLost(OSError):
    """A ledger lacks numbers that were given."""


class _Noted(NamedTuple):
    """What the lock file says: inode and length of what a sync has covered, how many syncs of the
    folder's file system had failed when stamps were last sure to be on disk, and the last number
    that is on disk, with its epoch."""

    inode: int = 0
    end: int = 0
    failed: int = 0
    last: int = 0
    epoch: int = 0

    @property
    def number(self) -> tuple[int, int]:
        """Epoch and number, which only go up."""
        return self.epoch, self.last


def _write(fd: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(fd, content, offset)
        content, offset = content[written:], offset + written


def database_key(path: str) -> str:
    """Return the file name that stands for a database path."""
    return hashlib.sha256(path.encode()).hexdigest()[:32]


class _Record(NamedTuple):
    """One record of a ledger; ``end``: the offset behind it."""

    epoch: int
    last: int
    highest_transaction: int
    attachments: int
    incarnation: Incarnation | None
    given: list[tuple[UUID, Stamp]]
    end: int


def _records(content: bytes) -> Iterator[_Record]:
    """Yield the records of a ledger; a torn one ends it."""
    at = 0
    while at + _HEAD.size + _CRC.size <= len(content):
        magic, epoch, entries, attachments, before, highest, guid, *created, inode = (
            _HEAD.unpack_from(content, at)
        )
        end = at + _HEAD.size + entries * _ENTRY.size
        if magic != _MAGIC or end + _CRC.size > len(content):
            return
        if _CRC.unpack_from(content, end)[0] != google_crc32c.value(content[at:end]):
            return
        given = []
        for index in range(entries):
            uuid, commit_us, stamped_us, *rest = _ENTRY.unpack_from(
                content, at + _HEAD.size + index * _ENTRY.size
            )
            stamp = Stamp(epoch, before + 1 + index, commit_us, stamped_us, *rest)
            given.append((UUID(bytes=uuid), stamp))
        known = Incarnation(UUID(bytes=guid), (created[0], created[1]), inode)
        at = end + _CRC.size
        incarnation = known if known != _UNKNOWN else None
        yield _Record(epoch, before + entries, highest, attachments, incarnation, given, at)


class Given(NamedTuple):
    """What a ledger says was given: the last number, and the journals that it still names."""

    epoch: int
    last: int
    journals: dict[UUID, tuple[int, int, int]]  # epoch, number, commit in microseconds since 1970


def read_given(path: Path) -> Given | None:
    """Read a ledger without a lock, for whoever only looks; None if it says nothing (yet).

    A number may be in it whose journal is visible a moment later. Raises OSError.
    """
    given = None
    journals = {}
    for record in _records(path.read_bytes()):
        for uuid, stamp in record.given:
            journals[uuid] = stamp.epoch, stamp.sequence, stamp.commit_us
        given = Given(record.epoch, record.last, journals)
    return given


class SequenceLedger:
    """The numbers given in one database. Several processes may share it: ``exclusive``."""

    def __init__(
        self, folder: JournalFolder, key: str, fsync: bool, sync_stamps: Callable[[], None]
    ) -> None:
        """``key``: of the database (``database_key``); ``sync_stamps`` puts every stamp written
        so far on disk."""
        self._fsync = fsync
        self._sync_stamps = sync_stamps
        self._folder = folder
        self._path = folder.databases / f"{key}.ledger"
        self._known = (0, 0)  # epoch and number that were given, whatever the file has
        self._wish = self._path.with_suffix(".anew")
        self._fd = -1
        self.compared_at = float("-inf")  # with the database, monotonic
        self._reset()
        self._lock = os.open(
            self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def _reset(self) -> None:
        """Know nothing of the ledger."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._end = 0
        self.epoch = 0
        self.last = 0
        self.highest_transaction = 0
        self.attachments = 0  # that the database had had at least; 0: not known
        self.incarnation: Incarnation | None = None  # None: not known yet

    @property
    def is_new(self) -> bool:
        """Tell, inside ``exclusive``, whether no number was ever recorded here."""
        return self._end == 0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from giving numbers meanwhile, and learn what they gave."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._catch_up_or_begin()
            yield
        except BaseException:
            self._reset()  # what was begun may be in the file or not: the file is read anew
            raise
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _catch_up_or_begin(self) -> None:
        """Learn what was given; where that is lost, do as somebody has asked."""
        try:
            self._catch_up()
        except _NumbersLost:
            if not self._wish.exists():
                raise
            self._begin_after_loss()
        else:
            if not self._wish.exists():
                return
            _log.warning(
                "{ledger} lacks no number: no epoch is begun, and {wish} is removed",
                ledger=self._path,
                wish=self._wish,
            )
        self._wish.unlink(missing_ok=True)  # or it would approve a loss to come

    def _catch_up(self) -> None:
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            noted = self._noted()
            is_lost = noted.end or any(noted.number) or any(self._known)
            if is_lost or self._wish.exists():  # or who was asked for an epoch died before it began
                raise self._loss() from None
            self._write_anew(b"")
        else:
            if self._fd >= 0 and inode != os.fstat(self._fd).st_ino:
                self._reset()  # another process began a new ledger
            if self._fd < 0:
                with self._reading():
                    self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        for _ in self._read(self._end):
            pass
        # Whoever wrote what is behind that may have died before its sync, or that may have failed.
        noted = self._noted()
        if self._fsync and (noted.inode, noted.end) != (os.fstat(self._fd).st_ino, self._end):
            self._write_anew(self._content())
        elif self._fsync and noted.number != (self.epoch, self.last):
            self._note_synced(noted.failed)  # an earlier version does not
        elif not self._fsync:
            self._note_epoch(noted)
        self._known = self.epoch, self.last  # only now: it may not have been on disk

    def _read(self, start: int) -> Iterator[tuple[UUID, Stamp]]:
        """Yield what was given from byte ``start`` on; a torn record ends the ledger. Raises
        OSError if it ends before what is known to be on disk: those numbers were given."""
        noted = self._noted()
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
        for record in _records(content):
            yield from record.given
            self.epoch, self.last = record.epoch, record.last
            self.highest_transaction = record.highest_transaction
            self.attachments = record.attachments
            self.incarnation = record.incarnation
            end = record.end
        self._end = start + end
        if self._end < known or (self.epoch, self.last) < max(noted.number, self._known):
            raise self._loss()

    def close(self) -> None:
        """Close the ledger's files."""
        self._reset()
        os.close(self._lock)

    def entries(self) -> Iterator[tuple[UUID, Stamp]]:
        """Yield all numbers that the ledger still holds; call it inside ``exclusive``."""
        yield from self._read(0)

    def record(self, group: Sequence[tuple[UUID, Stamp]], last: int) -> None:
        """Make the numbers of ``group`` durable, ending at ``last``, before anybody can see
        them. Call it inside ``exclusive``. Raises OSError; then nobody may see them yet, though
        the ledger may have them."""
        highest = max([self.highest_transaction, *(stamp.transaction for _, stamp in group)])
        body = self._head(len(group), last - len(group), highest)
        for uuid, stamp in group:
            body += _ENTRY.pack(
                uuid.bytes,
                stamp.commit_us,
                stamp.stamped_us,
                stamp.journal_length,
                stamp.event_count,
                stamp.transaction,
                stamp.catalogue_offset,
            )
        body += _CRC.pack(google_crc32c.value(body))
        if self._end + len(body) > _LEDGER_LIMIT:
            self._begin_anew()
        self.last = last
        self.highest_transaction = highest
        _write(self._fd, body, self._end)
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
            self._end += len(body)
            noted = self._noted()
            if self._fsync:
                self._note_synced(noted.failed)
            else:
                self._note_epoch(noted)
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

    def _head(self, entries: int, before: int, highest: int) -> bytes:
        guid, created, inode = self.incarnation or _UNKNOWN
        return _HEAD.pack(
            _MAGIC,
            self.epoch,
            entries,
            self.attachments,
            before,
            highest,
            guid.bytes,
            *created,
            inode,
        )

    def _begin_anew(self) -> None:
        """Replace a long ledger by one that only knows the last number. All stamps written so
        far are put on disk first: nothing could write them again."""
        failed = self._folder.failed_syncs
        if self._fsync and self._noted().failed != failed:
            self._write_stamps_again()
        self._write_summary(failed)

    def _write_summary(self, failed: int) -> None:
        """Begin a ledger that only knows the last number, once all stamps are on disk. FAILED: how
        many syncs of the file system had failed before."""
        try:
            self._sync_stamps()
        except OSError:
            self._folder.count_failed_sync()
            raise
        head = self._head(0, self.last, self.highest_transaction)
        self._write_anew(head + _CRC.pack(google_crc32c.value(head)), failed)

    def _begin_after_loss(self) -> None:
        """Number from 1 in a new epoch, as nobody knows any more which numbers were given. What is
        left of the ledger is kept beside it."""
        noted = self._noted()
        epoch = max(self.epoch, self._known[0], noted.epoch) + 1
        if not any(noted.number):
            # Nobody noted epochs here: the days since 1970 are more than any database has had.
            epoch = max(epoch, int(time.time() // _DAY_S))
        self._reset()
        self.epoch = epoch
        kept = self._path.with_suffix(".damaged")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(kept)
        self._write_summary(self._folder.failed_syncs)
        _log.warning(
            "{ledger} had lost numbers, and somebody made {wish}: journals are numbered from 1 "
            "again, in epoch {epoch}",
            ledger=self._path,
            wish=self._wish,
            epoch=epoch,
        )

    def _write_stamps_again(self) -> None:
        """Write the stamps of all journals that are here, each synced: a sync of the whole file
        system has failed, and the next one says nothing of what that did not write."""
        given = [each for record in _records(self._content()) for each in record.given]
        for uuid, stamp in given:
            self._folder.tell_progress()
            try:
                fd = os.open(self._folder.committed(uuid), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:  # nearly all are shipped
                continue
            try:
                write_stamp(fd, uuid, stamp)
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def _content(self) -> bytes:
        """Return the records of the ledger as far as they are known. Raises OSError if they can't
        be read any more."""
        with self._reading():
            content = os.pread(self._fd, self._end, 0)
        if self._end and not any(record.end == self._end for record in _records(content)):
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
            f"file {self._wish.name} beside it, and a new epoch begins",
            str(self._path),
        )

    def _write_anew(self, content: bytes, failed: int | None = None) -> None:
        """Have CONTENT in a new ledger, whole on disk before it takes the place of the old one.

        FAILED: how many syncs of the file system had failed before all stamps were on disk.
        """
        noted = self._noted()
        failed = noted.failed if failed is None else failed
        temporary = self._path.with_suffix(".ledger-new")  # of this lock alone
        temporary.unlink(missing_ok=True)  # another file: of that one a sync may have failed
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, content, 0)
            os.fsync(fd)
            # An earlier ledger may have had this inode number: what was synced of that one must
            # not be said of this one, after a kill or a power cut either. Both have its number.
            self._note(noted._replace(inode=0, end=0, failed=failed))
            os.fdatasync(self._lock)
            temporary.rename(self._path)
            sync_directory(self._folder.databases)
        except BaseException:  # where it has its name already, it is opened anew
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._end = len(content)
        self._note_synced(failed)

    def _noted(self) -> _Noted:
        """Return what is on disk, as far as anybody knows."""
        content = os.pread(self._lock, _NOTED.size, 0).ljust(_NOTED.size, b"\0")
        return _Noted(*_NOTED.unpack(content))

    def _note(self, noted: _Noted) -> None:
        _write(self._lock, _NOTED.pack(*noted), 0)

    def _note_epoch(self, noted: _Noted) -> None:
        """Let all processes know of the epoch, where nothing is synced."""
        if noted.epoch != self.epoch:
            self._note(noted._replace(last=0, epoch=self.epoch))

    def _note_synced(self, failed: int) -> None:
        """Let all processes know that the ledger is on disk up to its end. Raises OSError."""
        before = self._noted()
        inode = os.fstat(self._fd).st_ino
        self._note(_Noted(inode, self._end, failed, self.last, self.epoch))
        if (self.epoch, self.last > 0) == (before.epoch, before.last > 0):
            return
        try:
            os.fdatasync(self._lock)
        except OSError:
            self._note(before)  # so that it is synced once more
            raise
