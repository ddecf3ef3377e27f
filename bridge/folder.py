"""The journal folder as the bridge uses it: our state inside it, its locks, its names.

<folder>/<uuid>.log.live          a transaction that has not been confirmed
<folder>/<uuid>.log               confirmed and stamped
<folder>/.firebird-cdc/           our state, out of the watcher's sight
    pool/<owner>/<uuid>           journals made beforehand, by each process its own
    owners/<uuid>                 one per bridge process, locked while it lives
    databases/<key>               the sequence of a database
    quarantine/                   what could not be decided, read or sent, with the reason
    retry/                        what was asked of the shipper, and its answers
    tickets                       the counter of commits, shared by all processes
    counters                      what is counted of the server's side (counters.py)
    bridge.lock, confirmer.lock, shipper.lock     who is at work on this folder
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID, uuid4

from firebird_cdc.errors import CaptureError, JournalError
from firebird_cdc.journal.dispose import sync_directory
from firebird_cdc.journal.format import JournalReader
from firebird_cdc.journal.lock import STATE_DIRECTORY, is_held

_TICKETS_BYTES = 4096
_GENERATIONS_AHEAD = 1 << 16  # more than there can be while one is written

# linux/fs.h: get and set the attributes that chattr shows, and its T
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_TOPDIR_FL = 0x00020000
_FLAGS = struct.Struct("l")


def _make(folder: Path) -> bool:
    """Make a folder for this user alone; return whether it was missing."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _spread(folder: Path) -> None:
    """Ask the file system to place what the subfolders of this one hold far from its neighbours.

    An ext4 without a journal of its own passes over every inode near by that was freed within the
    last minutes when it makes a file. Measured after the removal of some thousand files: 600 us for
    a file rather than 27. A hint: other file systems know none.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(_FLAGS.size)))
        fcntl.ioctl(fd, _FS_IOC_SETFLAGS, _FLAGS.pack(flags | _FS_TOPDIR_FL))
    except OSError:
        pass
    finally:
        os.close(fd)


class JournalFolder:
    """One opened journal folder. Descriptors stay open for the life of the process, because
    the plugin uses them; a folder that went away is opened anew as another object.

    ``writes``: journals are made here (a bridge), so the process has a mark and a pool; a
    process that only decides what others left (the shipper) has neither. Raises CaptureError.
    """

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path = path
        self.state = path / STATE_DIRECTORY
        self.owners = self.state / "owners"
        self.pools = self.state / "pool"
        self.databases = self.state / "databases"
        self.quarantine = self.state / "quarantine"
        self.owner = uuid4()
        self.pool = self.pools / str(self.owner)
        self.began_ns = sys.maxsize  # by the file system's clock; journals of ours are younger
        self.pool_fd = -1
        with contextlib.ExitStack() as undo:
            try:
                self._open(undo, writes)
            except OSError as error:
                raise CaptureError(
                    f"connector.journal.directory {path} can't be used: {error.strerror} "
                    f"({error.filename or path}); make it a folder that the server's system user "
                    "may write to"
                ) from error
            undo.pop_all()

    def _open(self, undo: contextlib.ExitStack, writes: bool) -> None:
        folders = (self.state, self.owners, self.pools, self.databases, self.quarantine)
        made = [folder for folder in (self.path, *folders) if _make(folder)]
        if self.pools in made:
            _spread(self.pools)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.journal_fd = os.open(self.path, flags)
        undo.callback(os.close, self.journal_fd)
        self.tickets_fd = os.open(
            self.state / "tickets", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        undo.callback(os.close, self.tickets_fd)
        os.posix_fallocate(self.tickets_fd, 0, _TICKETS_BYTES)
        self.tickets = mmap.mmap(self.tickets_fd, _TICKETS_BYTES)
        if writes:
            self._join(undo)
        for folder in {folder.parent for folder in made} | {self.state, self.owners, self.pools}:
            sync_directory(folder)
        if writes:
            self._restore_tickets()

    def _join(self, undo: contextlib.ExitStack) -> None:
        """Make this process known as one that writes journals here."""
        # Locked before it has its name: whoever finds the mark finds it locked.
        nameless = self.state / f"owner-{self.owner}"
        owner_fd = os.open(nameless, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, owner_fd)
        self.began_ns = os.fstat(owner_fd).st_ctime_ns
        fcntl.flock(owner_fd, fcntl.LOCK_EX)
        mark = nameless.rename(self.owners / str(self.owner))
        undo.callback(mark.unlink, missing_ok=True)
        self.pool.mkdir(mode=0o700)
        undo.callback(shutil.rmtree, self.pool, ignore_errors=True)
        self.pool_fd = os.open(self.pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, self.pool_fd)

    def _restore_tickets(self) -> None:
        """Go on above every ticket that a journal bears: a power cut may have taken the counter
        back, and then old journals would come after new ones."""
        highest = 0
        for path in self._unconfirmed():  # many, under Classic: nobody's commit waits for that
            with contextlib.suppress(JournalError, OSError), JournalReader(path) as reader:
                mark = reader.commit_mark
                highest = max(highest, mark.ticket if mark is not None else 0)
        with self.locked_tickets():
            if highest > self.last_ticket:
                self.tickets[:8] = highest.to_bytes(8, "little")

    def _unconfirmed(self) -> Iterator[str]:
        """Yield the paths of all journals that may bear a ticket, also of those that a power cut
        took back into the pool; pools first: others may be bringing them to their place."""
        for pool in os.scandir(self.pools):
            with contextlib.suppress(FileNotFoundError):  # tidied up meanwhile
                yield from [entry.path for entry in os.scandir(pool)]
        for entry in os.scandir(self.path):
            if entry.name.endswith(".log.live"):
                yield entry.path

    @contextlib.contextmanager
    def locked_tickets(self) -> Iterator[None]:
        """Keep every process from drawing a ticket, as the plugin itself does (host.c)."""
        fd = os.open(self.state / "tickets", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @property
    def last_ticket(self) -> int:
        """The last ticket drawn by any process; sure to be marked only inside
        ``locked_tickets``."""
        return int.from_bytes(self.tickets[:8], "little")

    def close(self) -> None:
        """Close what is open. Only where no plugin uses it."""
        self.tickets.close()
        os.close(self.tickets_fd)
        os.close(self.journal_fd)

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
    def undecided(self) -> int:
        """How many journals of ended processes the last leader could not decide."""
        return int.from_bytes(self.tickets[24:32], "little")

    @undecided.setter
    def undecided(self, count: int) -> None:
        self.tickets[24:32] = count.to_bytes(8, "little")

    @property
    def is_publishing(self) -> bool:
        """Whether a leader is giving numbers and names just now, or died while it did."""
        return self.tickets[32] != 0

    @is_publishing.setter
    def is_publishing(self, state: bool) -> None:
        self.tickets[32] = state

    @property
    def described(self) -> int:
        """The ticket up to which DDL of tables is described, or can't be: the next one that
        commits waits a moment for that (session.c)."""
        return int.from_bytes(self.tickets[56:64], "little")

    @described.setter
    def described(self, ticket: int) -> None:
        self.tickets[56:64] = ticket.to_bytes(8, "little")

    @property
    def awaited(self) -> int:
        """The ticket of DDL of tables that a transaction waits for, or has waited for, to be
        described (session.c)."""
        return int.from_bytes(self.tickets[64:72], "little")

    @property
    def generation(self) -> int:
        """How often the system tables changed, in all databases of the folder together."""
        return int.from_bytes(self.tickets[16:24], "little")

    def new_generation(self) -> None:
        """Say that the system tables changed, to the servers of the folder. They count by
        themselves meanwhile: take a step that brings none of them back to where it was."""
        following = self.generation + _GENERATIONS_AHEAD
        self.tickets[16:24] = following.to_bytes(8, "little")

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

    def has_dead_owner(self) -> bool:
        """Tell whether a process has ended whose journals were not looked at since."""
        return bool(self.dead_owners())

    def has_other_owner(self) -> bool:
        """Tell whether another process lives that writes journals here."""
        living = len(list(os.scandir(self.owners))) - len(self.dead_owners())
        return living > (self.owners / str(self.owner)).exists()

    def rescue(self, owners: Sequence[UUID]) -> None:
        """Bring back to their place the journals of ended processes that lie under the names
        they had in the pool: a power cut takes back a change of name."""
        for owner in owners:
            pool = self.pools / str(owner)
            with contextlib.suppress(FileNotFoundError):
                for entry in list(os.scandir(pool)):
                    with contextlib.suppress(JournalError, ValueError, FileNotFoundError):
                        JournalReader(entry.path).close()
                        Path(entry.path).rename(self.live(UUID(entry.name)))
                        os.fsync(self.journal_fd)

    def forget(self, owner: UUID) -> None:
        """Remove what an ended process left beside its journals: its pool and its mark."""
        shutil.rmtree(self.pools / str(owner), ignore_errors=True)
        (self.owners / str(owner)).unlink(missing_ok=True)

    def set_aside(self, uuid: UUID, reason: str) -> None:
        """Move an unconfirmed journal to the quarantine, with one sentence why."""
        note = self.quarantine / f"{uuid}.reason"
        note.write_text(reason + "\n", encoding="utf-8")
        note.chmod(0o600)
        self.sync_file(note)
        sync_directory(self.quarantine)
        self.live(uuid).rename(self.quarantine / f"{uuid}.log")

    @staticmethod
    def sync_file(path: Path) -> None:
        """Wait until all of a file is on disk."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def is_in_place(self) -> bool:
        """Tell whether the path still leads to the folder that was opened."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        then = os.fstat(self.journal_fd)
        return (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)
