"""Follows a ledger without its lock: what was given since the last look, as far as it is on disk.

The lock file says how far that is (``journal.folder.ledger``), or that whoever gives numbers syncs
nothing: then all of them count, whatever its reader's options say, as what is made visible beside
them is no more on disk. A ledger that begins anew has only
what lies in journals that are not closed yet; the index of the others has the rest.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from firebird_cdc.journal.folder.ledger_lock import Noted, read_noted
from firebird_cdc.journal.folder.ledger_records import LedgerEntry, LedgerRecord, read_records
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.format import pread

_CHUNK = 256 * 1024  # some 2,000 entries


def ledgers_of(directory: Path) -> Path:
    """Return where the ledgers of the journal folder DIRECTORY are."""
    return directory / STATE_DIRECTORY / "databases"


class LedgerTail:
    """The ledger KEY of the folder DATABASES. IS_SYNCED: numbers count once they are on disk;
    ONLY_SHARED: leave out what lies in journals of its own.

    ``last``: epoch and number up to which it was read; ``given``: those up to which there are some.
    ``is_shared``: it has named a shared journal.
    """

    def __init__(
        self, databases: Path, key: str, *, is_synced: bool, only_shared: bool = True
    ) -> None:
        self._path = databases / f"{key}.ledger"
        self._lock_path = databases / f"{key}.lock"
        self._is_synced = is_synced
        self._is_noted = is_synced  # how far it counts; else all that is there does
        self._only_shared = only_shared
        self._fd = -1
        self._at = 0
        self.last = self.given = (-1, -1)
        self.is_shared = False

    def close(self) -> None:
        """Close the ledger."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def noted(self) -> Noted:
        """Return what is noted of it now."""
        return read_noted(self._lock_path)

    @property
    def behind(self) -> int:
        """Return how many numbers are given that were not read yet."""
        epoch, number = self.given
        return max(number - (self.last[1] if self.last[0] == epoch else 0), 0)

    def read(self) -> list[LedgerEntry] | None:
        """Return some of what was given since the last call, in that order; None if that was all,
        or the ledger is just being written anew.

        Raises OSError, also where it is damaged.
        """
        limit = self._limit()
        length = _CHUNK
        while self._at < limit:
            content = pread(self._fd, min(length, limit - self._at), self._at)
            read = list(read_records(content, only_shared=self._only_shared))
            if read:
                return self._new_in(read)
            if length >= limit - self._at:
                if not self._is_noted:
                    break  # just being written
                raise OSError(errno.EIO, f"it is damaged at byte {self._at}", str(self._path))
            length *= 2  # a record that is longer
        return None

    def _new_in(self, read: list[LedgerRecord]) -> list[LedgerEntry]:
        before = self.last
        self._at += read[-1].end
        self.is_shared = self.is_shared or any(record.given for record in read)
        self.last = max(before, max((record.epoch, record.last) for record in read))
        return [entry for record in read for entry in record.given if entry.stamp.number > before]

    def _limit(self) -> int:
        """Return up to where the ledger counts; open the one that has its name now."""
        noted = self.noted
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return 0
        if self._fd < 0 or os.fstat(self._fd).st_ino != status.st_ino:
            self.close()
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._at = 0
            status = os.fstat(self._fd)
        self._is_noted = self._is_synced and noted.is_synced
        if not self._is_noted:
            self.given = (-1, -1)
            return status.st_size
        if noted.inode != status.st_ino:
            return 0
        self.given = noted.number
        return noted.end
