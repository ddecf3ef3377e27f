"""The journal folder as the bridge uses it: our state inside it, its locks, its names.

<folder>/<uuid>.log.live          a transaction that has not been confirmed
<folder>/<uuid>.log               confirmed and stamped
<folder>/.firebird-cdc/           our state, out of the watcher's sight
    pool/<uuid>                   journals made beforehand
    owners/<uuid>                 one per bridge process, locked while it lives
    databases/<key>               the sequence of a database
    quarantine/                   what could not be decided or read, with the reason
    tickets                       the counter of commits, shared by all processes
    bridge.lock, confirmer.lock, shipper.lock     who is at work on this folder
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from uuid import UUID, uuid4

from firebird_cdc.errors import CaptureError

STATE = ".firebird-cdc"
_TICKETS_BYTES = 4096


def try_lock(path: Path, kind: int) -> int | None:
    """Return a descriptor that holds ``kind`` of flock on ``path``, or None if another does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


class JournalFolder:
    """One opened journal folder. Descriptors stay open for the life of the process, because
    the plugin uses them; a folder that went away is opened anew as another object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / STATE
        self.pool = self.state / "pool"
        self.owners = self.state / "owners"
        self.databases = self.state / "databases"
        self.quarantine = self.state / "quarantine"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (self.state, self.pool, self.owners, self.databases, self.quarantine):
                part.mkdir(mode=0o700, exist_ok=True)
            self.owner = uuid4()
            owner_lock = try_lock(self.owners / str(self.owner), fcntl.LOCK_EX)
            assert owner_lock is not None  # the name is new
            self._owner_lock = owner_lock
            self.journal_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.pool_fd = os.open(self.pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.tickets_fd = os.open(
                self.state / "tickets", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            os.posix_fallocate(self.tickets_fd, 0, _TICKETS_BYTES)
            self.tickets = mmap.mmap(self.tickets_fd, _TICKETS_BYTES)
        except OSError as error:
            raise CaptureError(
                f"connector.journal.directory {path} can't be used: {error.strerror} "
                f"({error.filename or path}); make it a folder that the server's system user "
                "may write to"
            ) from error

    def live(self, uuid: UUID) -> Path:
        """Return the path of a journal that is not confirmed."""
        return self.path / f"{uuid}.log.live"

    def committed(self, uuid: UUID) -> Path:
        """Return the path of a confirmed journal."""
        return self.path / f"{uuid}.log"

    @property
    def accounted(self) -> int:
        """The ticket up to which every commit was decided or is known to no longer exist."""
        return int.from_bytes(self.tickets[8:16], "little")

    @accounted.setter
    def accounted(self, ticket: int) -> None:
        self.tickets[8:16] = ticket.to_bytes(8, "little")

    def owner_is_gone(self, owner: UUID) -> bool:
        """Tell whether the bridge process that wrote a journal has ended, and forget it."""
        if owner == self.owner:
            return False
        lock = self.owners / str(owner)
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def dead_owners(self) -> list[Path]:
        """Return the marks of bridge processes that have ended."""
        marks = [Path(entry.path) for entry in os.scandir(self.owners)]
        return [mark for mark in marks if self.owner_is_gone(UUID(mark.name))]

    def set_aside(self, uuid: UUID, reason: str) -> None:
        """Move an unconfirmed journal to the quarantine, with one sentence why."""
        (self.quarantine / f"{uuid}.reason").write_text(reason + "\n", encoding="utf-8")
        self.live(uuid).rename(self.quarantine / f"{uuid}.log")

    def is_in_place(self) -> bool:
        """Tell whether the path still leads to the folder that was opened."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        then = os.fstat(self.journal_fd)
        return (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)
