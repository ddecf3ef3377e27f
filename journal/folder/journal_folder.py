"""The journal folder as the bridge uses it: our state inside it, its locks, its names.

<folder>/<uuid>.log.live          a transaction that has not been confirmed
<folder>/<uuid>.log               confirmed and stamped
<folder>/.firebird-cdc/           our state, out of the watcher's sight
    pool/<owner>/<uuid>           journals made beforehand, by each process its own
    owners/<uuid>                 one per process that writes, locked while it lives (owners.py)
    servers/<uuid>                which options that process has read (journal/folder/processes.py)
    slots/<uuid>                  transactions that are open in such a process (slots.py)
    databases/<key>.*             the sequence of a database (sequence.py)
    databases/retired             the highest epoch of those whose files were removed
    databases/looked              made anew whenever dropped ones are looked for (history.py)
    quarantine/                   what could not be decided, read or sent, with the reason
    retry/                        what was asked of the shipper, and its answers
    tickets/page                  the counter of commits, shared by all processes (page_file.py)
    join                          how another process can write without a bridge (join_file.py)
    definitions/                  what was found out of tables, for such (native/definitions.h)
    commits                       by ticket, what was committed in shared journals
                                  (commit_entries.py)
    restored                      since when nothing of a power cut is left to be restored
    counters                      what is counted of the server's side (counters.py)
    counters.damaged              what was in its place, and none (native/counters.h)
    counters.acknowledged         what somebody knows of that (journal/folder/failures.py)
    bridge.lock, confirmer.lock, shipper.lock     who is at work on this folder
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4, uuid5

import logbook

from firebird_cdc import access
from firebird_cdc.errors import (
    CaptureError,
    JournalCorrupt,
    JournalEmpty,
    JournalError,
    JournalShared,
    JournalTorn,
)
from firebird_cdc.journal.folder import processes
from firebird_cdc.journal.folder.commit_entries import read_entries
from firebird_cdc.journal.folder.disposal import copy_file
from firebird_cdc.journal.folder.durable import boot_id, replace_file, sync_directory, sync_names
from firebird_cdc.journal.folder.folder_format import refuse_newer_format
from firebird_cdc.journal.folder.kept_definitions import hold_definitions
from firebird_cdc.journal.folder.ledger_records import read_records
from firebird_cdc.journal.folder.locks import OWNERS, STATE_DIRECTORY
from firebird_cdc.journal.folder.owners import Owners, own_mark
from firebird_cdc.journal.folder.page_file import keep_former_version_out, page_path
from firebird_cdc.journal.folder.shared_page import SharedPage
from firebird_cdc.journal.folder.shortage import kept
from firebird_cdc.journal.format import (
    DATA_OFFSET,
    JournalReader,
    last_tickets,
    own_reader,
)

_FLOORS = 1 << 32
_GENERATIONS_AHEAD = 1 << 16  # more than there can be while one is written

# linux/fs.h: get and set the attributes that chattr shows, and its T
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_TOPDIR_FL = 0x00020000
_FLAGS = struct.Struct("l")

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_COMMITS = "commits"
_RETIRED = "retired"
_RESTORED = "restored"
_UUID_AT = 16  # in a journal's header

_log = logbook.Logger("firebird_cdc.journal.folder.journal_folder")


def nearest_ticket(floor: int, ticket: int) -> int:
    """Return the ticket nearest to another one of which a seal has the lower 32 bits, FLOOR."""
    found = ticket + (floor - ticket + _FLOORS // 2) % _FLOORS - _FLOORS // 2
    return found if found >= 0 else found + _FLOORS


def is_live_name(name: str) -> bool:
    """Tell whether a file of this name is a journal that is not confirmed yet: all else in the
    folder is not ours to touch."""
    uuid, ending = name[:36], name[36:]
    try:
        return ending == ".log.live" and str(UUID(uuid)) == uuid
    except ValueError:
        return False


def is_unfilled(error: JournalError, fsync: bool) -> bool:
    """Tell whether a journal that can't be read is one to which nothing was ever written to the
    end: with FSYNC, a power cut can leave a torn header only of what was never sealed."""
    is_short = isinstance(error, JournalTorn) and error.offset <= DATA_OFFSET
    return isinstance(error, JournalEmpty) or (is_short and fsync)


def check_name(journal: JournalReader, uuid: UUID) -> None:
    """Raise JournalCorrupt unless JOURNAL is the one of its name: a copy, or a file that was used
    again without its header being cleared first, would come a second time."""
    if journal.header.uuid != uuid:
        raise JournalCorrupt(
            journal.path, _UUID_AT, f"it bears the uuid of another journal, {journal.header.uuid}"
        )


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


def _leads_to(path: Path, fd: int) -> bool:
    try:
        now = path.stat()
    except OSError:
        return False
    then = os.fstat(fd)
    return (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)


class Joined(NamedTuple):
    """Descriptors of folders and files that the plugin of this process has opened, as it joined a
    folder without a bridge (native/join.h), and its mark there."""

    path: Path
    owner: UUID
    journal_fd: int
    making_fd: int
    tickets_fd: int
    commits_fd: int
    slots_fd: int
    mark_fd: int


class JournalFolder:
    """One opened journal folder. Descriptors stay open for the life of the process, because
    the plugin uses them; a folder that went away is opened anew as another object.

    ``writes``: journals are made here (a bridge), so the process has a mark and a pool; a
    process that only decides what others left (the shipper) has neither. ``joined``: the plugin
    has made them already; the folder may be another one than is at ``path``. Raises CaptureError.
    """

    def __init__(self, path: Path, writes: bool = True, joined: Joined | None = None) -> None:
        self.path = path
        self.state = path / STATE_DIRECTORY
        self.pools = self.state / "pool"
        self.slots = self.state / "slots"
        self.databases = self.state / "databases"
        self.quarantine = self.state / "quarantine"
        self._knows_restored = False
        self.owner = uuid4() if joined is None else joined.owner
        self.owners = Owners(self.state / OWNERS, self.owner)
        self.began_ns = sys.maxsize  # by the file system's clock; journals of ours are younger
        self.making_fd = self.slots_fd = self._owner_fd = self._definitions_fd = -1
        self.has_left = False  # the tickets to others
        self.is_of_server = writes
        with contextlib.ExitStack() as undo:
            try:
                refuse_newer_format(path)
                self._open(undo, writes) if joined is None else self._adopt(joined)
            except OSError as error:
                raise CaptureError(
                    f"connector.journal.directory {path} can't be used: {error.strerror} "
                    f"({error.filename or path}); make it a folder that the server's system user "
                    "may write to"
                ) from error
            undo.pop_all()

    def _open(self, undo: contextlib.ExitStack, writes: bool) -> None:
        owners = self.owners.directory
        folders = (
            self.state, owners, self.pools, self.slots, self.databases, self.quarantine,
        )  # fmt: skip
        missing = [folder for folder in (self.path, *folders) if access.make_directory(folder)]
        if self.pools in missing:
            _spread(self.pools)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.journal_fd = os.open(self.path, flags)
        undo.callback(os.close, self.journal_fd)
        if writes or not page_path(self.state).exists():
            keep_former_version_out(self.state, self.owners)
        self.tickets_fd = access.open_file(page_path(self.state), os.O_RDWR | os.O_CREAT)
        undo.callback(os.close, self.tickets_fd)
        self.commits_fd = access.open_file(self.state / _COMMITS, os.O_RDWR | os.O_CREAT)
        undo.callback(os.close, self.commits_fd)
        self.page = SharedPage(self.tickets_fd)
        self.page.fields.is_retired = 0  # it has its name, perhaps again
        if writes:
            self._join(undo)
        sync_names(self.path)
        page = page_path(self.state).parent
        for folder in (self.path, self.state, page, owners, self.pools, self.slots):
            sync_directory(folder)  # whoever made what is in it may have died before its own sync
        if writes:
            self._agree_on_tickets()
            self._definitions_fd = hold_definitions(self.state)
            undo.callback(os.close, self._definitions_fd)
        self._restore_tickets()

    def _adopt(self, joined: Joined) -> None:
        """Go on with what the plugin has opened. All is as a bridge has left it that lived by then,
        and what is not in place any more is told like anything that goes later."""
        self.journal_fd, self.making_fd = joined.journal_fd, joined.making_fd
        self.tickets_fd, self.commits_fd = joined.tickets_fd, joined.commits_fd
        self.slots_fd, self._owner_fd = joined.slots_fd, joined.mark_fd
        self.page = SharedPage(self.tickets_fd)
        self.began_ns = os.fstat(self._owner_fd).st_mtime_ns

    def _join(self, undo: contextlib.ExitStack) -> None:
        """Make this process known as one that writes journals here."""
        # Locked before it has its name: whoever finds the mark finds it locked.
        nameless = self.state / f"owner-{self.owner}"
        owner_fd = access.open_file(nameless, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        undo.callback(os.close, owner_fd)
        self.began_ns = os.fstat(owner_fd).st_ctime_ns
        fcntl.flock(owner_fd, fcntl.LOCK_EX)
        os.write(owner_fd, own_mark(self._tickets_name))
        self._owner_fd = owner_fd
        path = nameless.rename(self.owners.mark(self.owner))
        undo.callback(path.unlink, missing_ok=True)
        slots = self.slots / str(self.owner)
        self.slots_fd = access.open_file(slots, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        undo.callback(slots.unlink, missing_ok=True)
        undo.callback(os.close, self.slots_fd)
        pool = self.pools / str(self.owner)
        access.make_directory(pool)
        undo.callback(shutil.rmtree, pool, ignore_errors=True)
        self.making_fd = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, self.making_fd)

    @property
    def _tickets_name(self) -> str:
        """The file that the tickets are in, whatever its path leads to now."""
        opened = os.fstat(self.tickets_fd)
        return f"{opened.st_dev}:{opened.st_ino}"

    def _agree_on_tickets(self) -> None:
        """Assert that all that work here draw their tickets from one file: somebody may have
        removed or replaced it. Those that have the one before let go of it as soon as they
        see that; tickets are drawn from ours only then. Raises CaptureError."""
        # Our own mark is there by now, so of two that begin at the same time one sees the other.
        others = [] if self.has_tickets() else [self._tickets_name]
        others += map(str, self.owners.living(but_for=self._tickets_name))
        if others:
            raise CaptureError(
                f"{page_path(self.state)} was removed or replaced while servers run, and is used by"
                f" {', '.join(others)} as it was before; writes go on when that process has closed"
                " it, which takes a second; if it does not, end it"
            )

    def has_tickets(self) -> bool:
        """Tell whether the tickets' path still leads to the file that was opened."""
        return _leads_to(page_path(self.state), self.tickets_fd)

    def retire_tickets(self) -> None:
        """Have every process that has this file open refuse what wants to draw tickets from it."""
        self.page.fields.is_retired = 1

    def leave_tickets(self) -> None:
        """Say that this process draws no tickets from this file any more; others may begin with
        another one then."""
        if self._owner_fd >= 0:
            os.ftruncate(self._owner_fd, 0)
        self.has_left = True

    def let_tickets_go(self, count_prepared: Callable[[], int]) -> None:
        """Have nobody draw tickets from this file if it was removed or replaced, and say that this
        process draws none any more once COUNT_PREPARED is 0: so many transactions still may."""
        if self.has_left or self.has_tickets():
            return
        self.retire_tickets()
        if count_prepared():
            return
        if _leads_to(self.path, self.journal_fd):
            lost, successor = page_path(self.state), "with the file"
        else:
            lost, successor = self.path, "in the folder"
        _log.error(
            "{lost} was removed or replaced while the server runs; capture starts anew "
            "{successor} that is there then",
            lost=lost,
            successor=successor,
        )
        self.leave_tickets()

    def _restore_tickets(self) -> None:
        """Go on above every ticket that a journal bears, and every floor where a power cut took
        the mark: it may have taken the counter back, too, and then old journals would come after
        new ones."""
        floors = []
        # The file may be new, or a copy put in the place of another: entries tell what was drawn.
        later = read_entries(self.commits_fd, self.last_ticket + 1)
        highest = max((each.ticket for each in later), default=0)
        for path in self._unconfirmed():  # many, under Classic: nobody's commit waits for that
            with (
                kept([]),  # but what this process lacks
                contextlib.suppress(JournalError),
                JournalReader(path) as reader,
            ):
                mark = reader.commit_mark
                if mark is not None and mark.ticket:
                    highest = max(highest, mark.ticket)
                elif self.owners.is_gone(reader.header.owner):  # its seal takes time to be found
                    floors.append(reader.seal.floor if reader.seal is not None else None)
        if not (self.last_ticket and self.is_restored):  # one that is in memory is not lost
            highest = max(highest, *self._tickets_of_shared())
        with self.locked_tickets():
            highest = max(highest, self.last_ticket)
            above = [nearest_ticket(each, highest) + 1 for each in floors if each is not None]
            self.page.fields.ticket = max([highest, *above])

    def _tickets_of_shared(self) -> Iterator[int]:
        """Yield tickets that are not below those of transactions in shared journals, and 0."""
        yield 0
        for journal in self.path.glob("*.log.live"):
            with kept([]), contextlib.suppress(JournalError, FileNotFoundError):
                yield from (floor + 1 for floor in last_tickets(journal))
        for ledger in self.databases.glob("*.ledger"):
            with kept([]), contextlib.suppress(FileNotFoundError):
                for record in read_records(ledger.read_bytes(), only_shared=True):
                    yield from (entry.ticket for entry in record.given)

    def _unconfirmed(self) -> Iterator[str]:
        """Yield the paths of all journals that may bear a ticket, also of those that a power cut
        took back into the pool; pools first: others may be bringing them to their place."""
        for pool in [entry.path for entry in os.scandir(self.pools)]:
            with contextlib.suppress(FileNotFoundError):  # tidied up meanwhile
                yield from [entry.path for entry in os.scandir(pool)]
        yield from [
            entry.path for entry in os.scandir(self.path) if entry.name.endswith(".log.live")
        ]

    @contextlib.contextmanager
    def locked_tickets(self) -> Iterator[None]:
        """Keep every process from drawing a ticket, as the plugin itself does (host.c)."""
        fd = os.open(page_path(self.state), os.O_RDWR | os.O_CLOEXEC)
        try:
            if not os.path.sameopenfile(fd, self.tickets_fd):
                raise OSError(errno.ESTALE, "was replaced", str(page_path(self.state)))
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @property
    def last_ticket(self) -> int:
        """The last ticket drawn by any process; sure to be marked only inside
        ``locked_tickets``."""
        return int(self.page.fields.ticket)

    def close(self) -> None:
        """Close what is open. Only where no plugin uses it."""
        self.page.close()
        for fd in (
            self.tickets_fd, self.commits_fd, self.journal_fd, self.making_fd, self.slots_fd,
            self._owner_fd, self._definitions_fd,
        ):  # fmt: skip
            if fd >= 0:
                os.close(fd)
        self.making_fd = self.slots_fd = self._owner_fd = self._definitions_fd = -1

    def live(self, uuid: UUID) -> Path:
        """Return the path of a journal that is not confirmed."""
        return self.path / f"{uuid}.log.live"

    def has_live(self, uuid: UUID) -> bool:
        """Tell whether a journal is there that is not confirmed. Raises OSError."""
        try:  # a stat would ask for its times, and the next write note a new one (native/folder.c)
            os.close(os.open(f"{uuid}.log.live", _LOOK, dir_fd=self.journal_fd))
        except FileNotFoundError:
            return False
        return True

    def committed(self, uuid: UUID) -> Path:
        """Return the path of a confirmed journal."""
        return self.path / f"{uuid}.log"

    @property
    def accounted(self) -> int:
        """The ticket up to which every commit was decided or is known to no longer exist."""
        return int(self.page.fields.accounted)

    @accounted.setter
    def accounted(self, ticket: int) -> None:
        self.page.fields.accounted = ticket

    @property
    def undecided(self) -> int:
        """Number of journals that the last leader could not decide, or not publish."""
        return int(self.page.fields.undecided)

    @undecided.setter
    def undecided(self, count: int) -> None:
        self.page.fields.undecided = count

    def tell_heartbeat(self, process: int) -> None:
        """Say that PROCESS confirms and came round just now; 0: nobody confirms."""
        self.page.fields.heartbeat_ms = time.monotonic_ns() // 1_000_000
        self.page.fields.confirmer = process

    def tell_progress(self) -> None:
        """Say that this process comes forward in long work, if it is the one that confirms."""
        if self.page.fields.confirmer == os.getpid():
            self.tell_heartbeat(os.getpid())

    @property
    def is_restored(self) -> bool:
        """True once the stamps that a power cut took were written again since the machine began
        to run. Whoever reads journals has to wait for that."""
        with contextlib.suppress(OSError):
            known = self._knows_restored
            self._knows_restored = known or (self.state / _RESTORED).read_bytes() == boot_id()
        return self._knows_restored

    @is_restored.setter
    def is_restored(self, state: bool) -> None:
        if state:
            replace_file(self.state / _RESTORED, boot_id(), is_synced=False)
        else:
            (self.state / _RESTORED).unlink(missing_ok=True)
        self._knows_restored = state

    @property
    def described(self) -> int:
        """The ticket up to which DDL of tables is described, or can't be: the next one that
        commits waits a moment for that (host.c)."""
        return int(self.page.fields.described)

    @described.setter
    def described(self, ticket: int) -> None:
        self.page.fields.described = ticket

    @property
    def awaited(self) -> int:
        """The ticket of DDL of tables that a transaction waits for, or has waited for, to be
        described (host.c)."""
        return int(self.page.fields.awaited)

    @property
    def first_epoch(self) -> int:
        """The epoch of a database whose numbers begin now: above that of any whose ledger was
        removed, as its path may be the same. Raises OSError."""
        try:
            return int((self.databases / _RETIRED).read_bytes()) + 1
        except FileNotFoundError:
            return 0
        except ValueError:
            raise OSError(
                errno.EIO,
                "holds no number: write the highest epoch into it that any database has had "
                "(source.epoch of its latest events), or 100000 if nobody knows",
                str(self.databases / _RETIRED),
            ) from None

    def retire_epoch(self, epoch: int) -> None:
        """Let no database begin in EPOCH, or below it, any more: that is on disk when this returns.
        By whoever holds ``confirmer.lock``. Raises OSError."""
        highest = max(epoch, self.first_epoch - 1)
        replace_file(self.databases / _RETIRED, f"{highest}\n".encode())
        sync_directory(self.databases)

    @property
    def failed_syncs(self) -> int:
        """The number of syncs of the whole file system that failed: what they were to write may not
        be on disk, and no later one says so again (sequence)."""
        return int(self.page.fields.failed_syncs)

    def count_failed_sync(self) -> None:
        """Let all processes know that a sync of the whole file system failed."""
        with self.locked_tickets():
            self.page.fields.failed_syncs += 1

    @property
    def unread_since(self) -> float:
        """The moment at which the last leader met a file that it can't read, monotonic; 0: it
        reads all of them."""
        return float(self.page.fields.unread_ms / 1000)

    @unread_since.setter
    def unread_since(self, moment: float) -> None:
        self.page.fields.unread_ms = int(moment * 1000)

    @property
    def generation(self) -> int:
        """Number that grows when the system tables change, in any database of the folder."""
        return int(self.page.fields.generation)

    def new_generation(self) -> None:
        """Say that the system tables changed, to the servers of the folder. They count by
        themselves meanwhile: take a step that brings none of them back to where it was."""
        self.page.fields.generation += _GENERATIONS_AHEAD

    def left_in_pool(self, owner: UUID) -> list[Path]:
        """Return what the pool of an ended process holds. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            return [Path(entry.path) for entry in os.scandir(self.pools / str(owner))]
        return []

    def rescue(self, path: Path, fsync: bool) -> None:
        """Remove what an ended process did not use of its pool. A journal, whose name a power cut
        has taken back, is brought to its place; what is damaged is quarantined, what is not ours
        left alone. Raises OSError."""
        try:
            uuid = UUID(path.name)
        except ValueError:
            return
        try:
            with JournalReader(path) as reader:
                check_name(reader, uuid)
        except JournalError as error:
            # A shared journal lies here only until it is filled with zeros.
            if is_unfilled(error, fsync) or isinstance(error, JournalShared):
                path.unlink()
                return
            _log.error(
                "journal {journal} is moved to the quarantine: {reason}", journal=uuid, reason=error
            )
            self.set_aside(uuid, str(error), path)
            return
        path.rename(self.live(uuid))
        os.fsync(self.journal_fd)

    def forget(self, owner: UUID) -> None:
        """Remove what an ended process left beside its journals: its mark, and its pool unless
        something lies there that is not ours."""
        try:
            (self.pools / str(owner)).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
        processes.server_path(self.state, owner).unlink(missing_ok=True)
        (self.slots / str(owner)).unlink(missing_ok=True)
        self.owners.mark(owner).unlink(missing_ok=True)

    def set_aside(self, uuid: UUID, reason: str, path: Path | None = None) -> None:
        """Move an unconfirmed journal, at PATH if that is not its own, to the quarantine, with one
        sentence why. Raises OSError; then it may be done again. FileNotFoundError: somebody has
        removed it."""
        path = path or self.live(uuid)
        kept = self._in_quarantine(uuid, reason)
        try:
            path.rename(kept)
        except FileNotFoundError:
            if not kept.exists():  # else done before, up to a sync that failed
                raise
        try:
            sync_directory(self.quarantine)
        except OSError:
            kept.rename(path)  # to be named again: another sync would pass over its name
            raise
        sync_directory(path.parent)

    def keep_damaged(self, uuid: UUID, damage: Exception) -> UUID:
        """Give an unconfirmed journal a second name, in the quarantine, before another file takes
        its place. Return that name: the journal may be quarantined itself. Raises OSError; then it
        may be done again."""
        name = uuid5(uuid, "damaged")
        reason = f"a gap took the place of journal {uuid}, which is damaged: {damage}"
        kept = self._in_quarantine(name, reason)
        kept.unlink(missing_ok=True)  # a sync of its name may have failed
        os.link(self.live(uuid), kept)  # neither reads it nor takes space
        sync_directory(self.quarantine)
        return name

    def keep_copy(self, uuid: UUID, reason: str, content: bytes) -> None:
        """Have CONTENT, one transaction of a shared journal, in the quarantine as a journal of its
        own, with one sentence why. Raises OSError; then it may be done again."""
        replace_file(self._in_quarantine(uuid, reason), content)
        sync_directory(self.quarantine)

    def _in_quarantine(self, uuid: UUID, reason: str) -> Path:
        """Write in the quarantine why a journal comes there; return the path that it is to have."""
        access.make_directory(self.quarantine)  # somebody may have tidied up
        sync_directory(self.state)
        replace_file(self.quarantine / f"{uuid}.reason", f"{reason}\n".encode())
        sync_directory(self.quarantine)
        return self.quarantine / f"{uuid}.log"

    def copy_anew(self, uuid: UUID, length: int) -> None:
        """Put a copy in the place of a journal of one transaction, of LENGTH bytes, of which a sync
        failed: the system may take bytes for written that are not, and later syncs pass over them.

        Raises JournalError if the copy is not whole, OSError.
        """
        copy = self.state / f"copy-{uuid}"
        try:
            copy_file(self.live(uuid), copy)
            with own_reader(copy, uuid) as reader:
                check_name(reader, uuid)
                for _ in reader.changes():
                    self.tell_progress()  # it may be large
                seal, catalogue = reader.seal, reader.unstamped_catalogue()
            end = catalogue.end if catalogue else seal.end if seal else 0
            if end < length:
                raise JournalTorn(copy, end, f"it has to be whole up to byte {length}")
            copy.rename(self.live(uuid))
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        os.fsync(self.journal_fd)  # or the one that failed could come back

    def is_in_place(self) -> bool:
        """Tell whether the paths still lead to the folder and the tickets that were opened."""
        return _leads_to(self.path, self.journal_fd) and self.has_tickets()

    def is_same_place(self, other: JournalFolder) -> bool:
        """Tell whether OTHER has the same folder, and so the same journals."""
        return os.path.sameopenfile(self.journal_fd, other.journal_fd)
