"""The lock file of a database's ledger: its lock, what is known of the ledger, and of which
database it is.

Behind what is noted of the ledger it has the path of its database, and since when no file is there.
Who locks the file looks whether it still has its name: whoever retires a ledger removes it.

    u64 inode (all bits set: nothing is synced) and u64 length of what a sync has covered, u64
    failed syncs, u64 last number, u32 epoch; from byte 40 u64 seconds since 1970 (0: the database
    is there), then the path, to the end
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from pathlib import Path
from typing import NamedTuple

from firebird_cdc import access
from firebird_cdc.journal.format.layout import pwrite

_NOTED = struct.Struct("<QQQQI")  # earlier versions wrote the first three only
_GONE, _GONE_AT = struct.Struct("<Q"), 40
_DATABASE_AT = _GONE_AT + _GONE.size
_UNSYNCED = 2**64 - 1  # no file has this inode, so earlier versions take nothing for synced


class Noted(NamedTuple):
    """Content of the lock file: inode and length of what a sync has covered, how many syncs of the
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

    @property
    def is_synced(self) -> bool:
        """Tell whether numbers count only as far as they are known to be on disk: whoever gives
        them waits for that."""
        return self.inode != _UNSYNCED

    def unsynced(self, epoch: int) -> Noted:
        """Return what whoever syncs nothing has it say, in EPOCH."""
        last = self.last if self.epoch == epoch else 0
        return self._replace(inode=_UNSYNCED, last=last, epoch=epoch)

    @classmethod
    def parse(cls, content: bytes) -> Noted:
        """Return what a lock file's CONTENT says."""
        return cls(*_NOTED.unpack(content[: _NOTED.size].ljust(_NOTED.size, b"\0")))


def read_noted(lock: Path) -> Noted:
    """Read the lock file of a ledger; one that is missing says nothing. Raises OSError."""
    try:
        return Noted.parse(lock.read_bytes())
    except FileNotFoundError:
        return Noted()


def database_key(path: str) -> str:
    """Return the file name that stands for a database path."""
    return hashlib.sha256(path.encode()).hexdigest()[:32]


class DatabaseFiles(NamedTuple):
    """A lock file's words on its database; ``gone_since``: seconds since 1970, 0: it was there when
    somebody looked."""

    path: str
    gone_since: int


def read_database(lock: Path) -> DatabaseFiles:
    """Read which database a lock file is of, "" where an earlier version has made it. Raises
    OSError."""
    content = lock.read_bytes()
    if len(content) <= _DATABASE_AT:
        return DatabaseFiles("", 0)
    (gone,) = _GONE.unpack_from(content, _GONE_AT)
    return DatabaseFiles(os.fsdecode(content[_DATABASE_AT:]), gone)


def note_gone(lock: Path, since: int) -> None:
    """Keep in a lock file since when no file is at the path of its database, in seconds since 1970;
    0: one is. Raises OSError."""
    fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        pwrite(fd, _GONE.pack(since), _GONE_AT)
    finally:
        os.close(fd)


class LedgerLock:
    """The lock file at PATH, open until ``close``; ``database``: its path, "" if it is unknown."""

    def __init__(self, path: Path, database: str) -> None:
        self._path = path
        self._database = os.fsencode(database)
        self._is_named = False  # the database, in the file
        self._fd = self._open()

    def _open(self) -> int:
        return access.open_file(self._path, os.O_RDWR | os.O_CREAT)

    def take(self) -> bool:
        """Lock the file that has its name, and have it say which database it is of. Return whether
        it is another one than before, which was retired. Raises OSError."""
        is_another = False
        while True:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                named, own = self._path.stat(), os.fstat(self._fd)
            except FileNotFoundError:
                named = None
            if named is not None and (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino):
                break
            before, self._fd = self._fd, self._open()
            os.close(before)
            self._is_named = False
            is_another = True
        self._name_database()
        return is_another

    def _name_database(self) -> None:
        if self._database and not self._is_named:
            if os.pread(self._fd, len(self._database) + 1, _DATABASE_AT) != self._database:
                os.ftruncate(self._fd, _DATABASE_AT)
                pwrite(self._fd, self._database, _DATABASE_AT)
            self._is_named = True

    def release(self) -> None:
        """Let other processes take it."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @property
    def noted(self) -> Noted:
        """Return what is on disk of the ledger, as far as anybody knows."""
        return Noted.parse(os.pread(self._fd, _NOTED.size, 0))

    def note(self, noted: Noted) -> None:
        """Have it say NOTED, in the page cache; see ``sync``. Raises OSError."""
        pwrite(self._fd, _NOTED.pack(*noted), 0)

    def sync(self) -> None:
        """Have what was noted on disk. Raises OSError."""
        os.fdatasync(self._fd)

    def remove(self) -> None:
        """Remove the file, which stays locked until it is closed. Raises OSError."""
        self._path.unlink()

    def close(self) -> None:
        """Close it, which releases the lock."""
        os.close(self._fd)
