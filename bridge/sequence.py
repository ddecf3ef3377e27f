"""The dense sequence of a database's journals, and the ledger that keeps it.

The ledger is a file that only grows: one record for each group of journals that were given
their numbers together, on disk before any of them becomes visible. So one sync serves a whole
group: what a journal's own stamp loses in a power cut is written again from the ledger. Once it
is long, all stamped journals are synced and a new ledger begins.

    record:  4s magic, u32 epoch, u32 entries, u32 reserved, u64 last number before the group,
             u64 highest transaction so far, 16s GUID, i32 i32 creation time and u64 inode of the
             database file, then per journal 16s uuid, i64 commit_us, i64 stamped_us, u64 length,
             u64 events, u64 transaction, u64 catalogue_offset; u32 CRC-32C of all that
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import google_crc32c

from firebird_cdc.bridge.inventory import Incarnation
from firebird_cdc.journal.dispose import sync_directory
from firebird_cdc.journal.format import Stamp

_HEAD = struct.Struct("<4sIIIQQ16siiQ")
_ENTRY = struct.Struct("<16sqqQQQQ")
_CRC = struct.Struct("<I")
_MAGIC = b"FBCL"
_UNKNOWN = Incarnation(UUID(int=0), (0, 0), 0)
_LEDGER_LIMIT = 4 * 1024 * 1024  # bytes; about 70,000 journals


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
    incarnation: Incarnation | None
    given: list[tuple[UUID, Stamp]]
    end: int


def _records(content: bytes) -> Iterator[_Record]:
    """Yield the records of a ledger; a torn one ends it."""
    at = 0
    while at + _HEAD.size + _CRC.size <= len(content):
        magic, epoch, entries, _, before, highest, guid, *created, inode = _HEAD.unpack_from(
            content, at
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
        yield _Record(epoch, before + entries, highest, incarnation, given, at)


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
        self, directory: Path, key: str, fsync: bool, sync_stamps: Callable[[], None]
    ) -> None:
        """``key``: of the database (``database_key``); ``sync_stamps`` puts every stamp written
        so far on disk."""
        self._fsync = fsync
        self._sync_stamps = sync_stamps
        self._directory = directory
        self._path = directory / f"{key}.ledger"
        self._fd = -1
        self._end = 0
        self.epoch = 0
        self.last = 0
        self.highest_transaction = 0
        self.incarnation: Incarnation | None = None  # None: not known yet
        self._lock = os.open(
            self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    @property
    def is_new(self) -> bool:
        """Tell, inside ``exclusive``, whether no number was ever recorded here."""
        return self._end == 0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from giving numbers meanwhile, and learn what they gave."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._catch_up()
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._fd >= 0 and self._path.stat().st_ino != os.fstat(self._fd).st_ino:
                os.close(self._fd)  # another process began a new ledger
                self._fd = -1
        if self._fd < 0:
            self._end = 0
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            sync_directory(self._directory)
        known = self._end
        for _ in self._read(known):
            pass
        if self._end > known and self._fsync:
            os.fdatasync(self._fd)  # another process gave these, and may have died before its sync

    def _read(self, start: int) -> Iterator[tuple[UUID, Stamp]]:
        """Yield what was given from byte ``start`` on; a torn record ends the ledger."""
        content = os.pread(self._fd, max(0, os.fstat(self._fd).st_size - start), start)
        end = 0
        for record in _records(content):
            yield from record.given
            self.epoch, self.last = record.epoch, record.last
            self.highest_transaction = record.highest_transaction
            self.incarnation = record.incarnation
            end = record.end
        self._end = start + end

    def close(self) -> None:
        """Close the ledger's files."""
        if self._fd >= 0:
            os.close(self._fd)
        os.close(self._lock)

    def entries(self) -> Iterator[tuple[UUID, Stamp]]:
        """Yield all numbers that the ledger still holds; call it inside ``exclusive``."""
        yield from self._read(0)

    def record(self, group: Sequence[tuple[UUID, Stamp]], last: int) -> None:
        """Make the numbers of ``group`` durable, ending at ``last``, before anybody can see
        them. Call it inside ``exclusive``."""
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
        _write(self._fd, body, self._end)
        if self._fsync:
            os.fdatasync(self._fd)
        self._end += len(body)
        self.last = last
        self.highest_transaction = highest

    def begin_epoch(self, incarnation: Incarnation) -> None:
        """Another database lies at the path: number its journals from 1, in an epoch of their own.
        Call it inside ``exclusive``."""
        self.epoch += 1
        self.last = self.highest_transaction = 0
        self.incarnation = incarnation
        self.record([], 0)

    def _head(self, entries: int, before: int, highest: int) -> bytes:
        guid, created, inode = self.incarnation or _UNKNOWN
        return _HEAD.pack(
            _MAGIC, self.epoch, entries, 0, before, highest, guid.bytes, *created, inode
        )

    def _begin_anew(self) -> None:
        """Replace a long ledger by one that only knows the last number. All stamps written so
        far are put on disk first: nothing could write them again."""
        self._sync_stamps()
        temporary = self._path.with_suffix(".new")
        head = self._head(0, self.last, self.highest_transaction)
        head += _CRC.pack(google_crc32c.value(head))
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, head, 0)
            os.fsync(fd)
            temporary.rename(self._path)
            sync_directory(self._directory)
        except BaseException:  # where it has its name already, it is opened anew
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd = fd
        self._end = len(head)
