"""The dense sequence of a database's journals, kept on disk so that no number comes twice.

The file holds two slots that are written in turn, each with its own checksum, so that a torn
write leaves the other: magic, epoch, last number given, database path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

_SLOT = struct.Struct("<4sIQQ")  # magic, epoch, sequence, generation of the slot
_MAGIC = b"FBCQ"
_SLOT_BYTES = 512


def database_key(path: str) -> str:
    """Return the file name that stands for a database path."""
    return hashlib.sha256(path.encode()).hexdigest()[:32]


class SequenceStore:
    """The last sequence number that was given in one database."""

    def __init__(self, directory: Path, database: str, fsync: bool) -> None:
        self._fsync = fsync
        self._path = directory / database_key(database)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.epoch = 0
        self.last = 0
        self._generation = 0
        with self.exclusive():
            if self._generation == 0:
                os.pwrite(self._fd, bytes(2 * _SLOT_BYTES), 0)
                os.fsync(self._fd)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from giving numbers meanwhile, and know what they gave."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            self._read()
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _read(self) -> None:
        content = os.pread(self._fd, 2 * _SLOT_BYTES, 0)
        for start in (0, _SLOT_BYTES):
            slot = content[start : start + _SLOT_BYTES]
            if len(slot) < _SLOT_BYTES or google_crc32c.value(slot[:-4]) != int.from_bytes(
                slot[-4:], "little"
            ):
                continue
            magic, epoch, sequence, generation = _SLOT.unpack_from(slot)
            if magic == _MAGIC and generation > self._generation:
                self.epoch, self.last, self._generation = epoch, sequence, generation

    @property
    def is_new(self) -> bool:
        """True while no number was ever recorded here."""
        return self._generation == 0

    def record(self, last: int) -> None:
        """Make ``last`` durable as the last number given, before anybody can see it. Call it
        inside ``exclusive``."""
        generation = self._generation + 1
        body = _SLOT.pack(_MAGIC, self.epoch, last, generation)
        body += bytes(_SLOT_BYTES - 4 - len(body))
        slot = body + google_crc32c.value(body).to_bytes(4, "little")
        os.pwrite(self._fd, slot, (generation % 2) * _SLOT_BYTES)
        if self._fsync:
            os.fdatasync(self._fd)
        self._generation = generation
        self.last = last

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
