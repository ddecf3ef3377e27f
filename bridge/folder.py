"""The journal folder as the bridge uses it: our state inside it, its locks, its names.

<folder>/<uuid>.log.live          a transaction that has not been confirmed
<folder>/<uuid>.log               confirmed and stamped
<folder>/.firebird-cdc/           our state, out of the watcher's sight
    pool/<owner>/<uuid>           journals made beforehand, by each process its own
    owners/<uuid>                 one per bridge process, locked while it lives
    databases/<key>               the sequence of a database
    quarantine/                   what could not be decided or read, with the reason
    tickets                       the counter of commits, shared by all processes
    bridge.lock, confirmer.lock, shipper.lock     who is at work on this folder
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
from pathlib import Path
from uuid import UUID, uuid4

from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.lock import STATE_DIRECTORY, is_held

_TICKETS_BYTES = 4096


class JournalFolder:
    """One opened journal folder. Descriptors stay open for the life of the process, because
    the plugin uses them; a folder that went away is opened anew as another object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / STATE_DIRECTORY
        self.owners = self.state / "owners"
        self.pools = self.state / "pool"
        self.databases = self.state / "databases"
        self.quarantine = self.state / "quarantine"
        self.owner = uuid4()
        self.pool = self.pools / str(self.owner)
        with contextlib.ExitStack() as undo:
            try:
                self._open(undo)
            except OSError as error:
                raise CaptureError(
                    f"connector.journal.directory {path} can't be used: {error.strerror} "
                    f"({error.filename or path}); make it a folder that the server's system user "
                    "may write to"
                ) from error
            undo.pop_all()

    def _open(self, undo: contextlib.ExitStack) -> None:
        folders = (self.state, self.owners, self.pools, self.databases, self.quarantine)
        for folder in (self.path, *folders):
            folder.mkdir(mode=0o700, exist_ok=True)
        # Locked before it has its name: whoever finds the mark finds it locked.
        nameless = self.state / f"owner-{self.owner}"
        owner_fd = os.open(nameless, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, owner_fd)
        fcntl.flock(owner_fd, fcntl.LOCK_EX)
        mark = nameless.rename(self.owners / str(self.owner))
        undo.callback(mark.unlink, missing_ok=True)
        self.pool.mkdir(mode=0o700)
        undo.callback(shutil.rmtree, self.pool, ignore_errors=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.journal_fd = os.open(self.path, flags)
        undo.callback(os.close, self.journal_fd)
        self.pool_fd = os.open(self.pool, flags)
        undo.callback(os.close, self.pool_fd)
        self.tickets_fd = os.open(
            self.state / "tickets", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        undo.callback(os.close, self.tickets_fd)
        os.posix_fallocate(self.tickets_fd, 0, _TICKETS_BYTES)
        self.tickets = mmap.mmap(self.tickets_fd, _TICKETS_BYTES)

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

    @property
    def generation(self) -> int:
        """How often the system tables changed, in all databases of the folder together."""
        return int.from_bytes(self.tickets[16:24], "little")

    def owner_is_gone(self, owner: UUID) -> bool:
        """Tell whether the bridge process that wrote a journal has ended, and forget it."""
        if owner == self.owner:
            return False
        return not is_held(self.owners / str(owner))

    def dead_owners(self) -> list[UUID]:
        """Return the bridge processes that have ended and left their mark."""
        owners = []
        for entry in os.scandir(self.owners):
            with contextlib.suppress(ValueError):
                owners.append(UUID(entry.name))
        return [owner for owner in owners if self.owner_is_gone(owner)]

    def forget(self, owner: UUID) -> None:
        """Remove what an ended process left beside its journals: its pool and its mark."""
        shutil.rmtree(self.pools / str(owner), ignore_errors=True)
        (self.owners / str(owner)).unlink(missing_ok=True)

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
