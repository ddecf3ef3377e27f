"""Locks in the journal folder, between all processes that work on it.

They are flocks on files in ``.firebird-cdc``, so they end with the process that holds them.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from time import sleep

from firebird_cdc import access
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.folder.durable import make_folder

STATE_DIRECTORY = ".firebird-cdc"
"""Our own state inside a journal folder; what lies there is no journal to ship."""

SHIPPER_LOCK = "shipper.lock"
"""The lock of the one shipper of a folder, in that."""

BRIDGE_LOCK = "bridge.lock"
"""The lock that server processes share as long as they need an embedded shipper, in that."""

OWNERS = "owners"
"""The folder of the marks of processes that write journals, in that; each is locked by its own."""

_ATTEMPTS = 100  # whoever asks may have lost its processor for a while
_ATTEMPT_PAUSE_S = 0.01

_WORD_BYTES = 16384
_FLAGS = os.O_RDWR | os.O_CREAT


def try_lock(path: Path, kind: int) -> int | None:
    """Return a descriptor that holds flock KIND on PATH (made if missing), None if another does."""
    fd = access.open_file(path, _FLAGS)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_held(path: Path, kind: int = fcntl.LOCK_SH) -> bool:
    """Tell whether a process holds a lock on PATH that keeps others from one of KIND; a file that
    is missing is not held.

    Who asks takes that lock for a moment. So it is a shared one, or two that ask at once would take
    each other for a holder; one that is held as shared itself shows only to LOCK_EX.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the disk may be read-only by now
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _lock_soon(fd: int) -> None:
    """Take the lock; one that is held for a moment is that of somebody who asks (``is_held``)."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sleep(_ATTEMPT_PAUSE_S)
    return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_holder(fd: int) -> tuple[str, str]:
    """Return what the holder of the shipper's lock has written into it: its process, and its word.

    Both are empty where it has not written them yet, the word also if an earlier version holds it.
    """
    text = os.pread(fd, _WORD_BYTES, 0).decode("utf-8", "replace")
    process, _, word = text.partition("\n")
    return process.strip(), word.strip()


class ShipperLock:
    """The right to ship one journal folder; a context manager.

    Makes the folder if it is missing. Raises ShipError if another process has the right, or
    the folder can't be used. ``word``: what the holder says of itself, one line of text, which
    stands in the file behind the line with its process number (``journal.folder.processes`` reads
    it).
    """

    def __init__(self, directory: Path, word: str = "") -> None:
        self._directory = directory
        self._word = word
        self._fd = -1

    def __enter__(self) -> ShipperLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> None:
        """Take the lock of the folder as it is now; an older one is given back first."""
        self.release()
        state = self._directory / STATE_DIRECTORY
        path = state / SHIPPER_LOCK
        try:
            make_folder(self._directory)
            make_folder(state)
            fd = access.open_file(path, _FLAGS)
        except OSError as error:
            raise ShipError(
                f"connector.journal.directory {self._directory} can't be used: {error};"
                " run the shipper as the user of the database server"
            ) from error
        try:
            _lock_soon(fd)
            content = f"{os.getpid()}\n{self._word}\n".encode()
            os.ftruncate(fd, 0)  # then all of it in one call, so that nobody reads half of it
            os.pwrite(fd, content, 0)
        except BlockingIOError:
            holder = read_holder(fd)[0] or "unknown"
            os.close(fd)
            raise ShipError(
                f"another shipper (process {holder}) already ships {self._directory};"
                " one per journal folder is allowed"
            ) from None
        except OSError as error:  # it is free again: nobody works under it
            os.close(fd)
            raise ShipError(
                f"connector.journal.directory {self._directory} can't be written: {error} ({path});"
                " see that its disk works and has room"
            ) from error
        self._fd = fd

    def release(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def bridge_present(directory: Path) -> bool:
    """Tell whether a server process with a bridge on DIRECTORY lives: it shares bridge.lock
    then."""
    return is_held(directory / STATE_DIRECTORY / BRIDGE_LOCK, fcntl.LOCK_EX)


def shipper_present(directory: Path) -> bool:
    """Tell whether a shipper works on DIRECTORY."""
    return is_held(directory / STATE_DIRECTORY / SHIPPER_LOCK)
