"""Shared journals of one folder: what lies in them undecided, and their end.

A transaction in a shared journal waits like any other (``Pending``); its number and its place go
into the ledger, and nothing is written to the journal. Those of processes that live are known by
the entries of their tickets; what others left is found by going through each journal that nobody
has locked any more. A journal is closed once each transaction in it is in the ledger, void or dead:
its index, then its name. docs/architecture.md has the rules (S1 to S11).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid5

import logbook

from firebird_cdc.bridge.confirm.pending import Definitions, Pending, PendingJournals, found
from firebird_cdc.bridge.host import JournalLeft
from firebird_cdc.errors import JournalCorrupt, JournalError
from firebird_cdc.journal.folder.commit_entries import CommitEntry, read_entries
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.locks import is_held
from firebird_cdc.journal.folder.slots import OpenTransaction, read_slots
from firebird_cdc.journal.format import (
    Header,
    JournalReader,
    JournalWriter,
    Place,
    Stamp,
    own_journal,
)
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.journal_index import find_index, pack_index
from firebird_cdc.journal.format.layout import FILE_BLOCK, pwrite
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import (
    FileHeader,
    Void,
    aligned,
    parse_file_header,
    walk,
)

_log = logbook.Logger("firebird_cdc.bridge.confirm.shared_journals")

_LOOK_S = 1.0  # how often to look whether journals were left by their processes
_AGAIN_S = 15.0  # the same for one that could not be closed

Ledgers = Callable[[str], SequenceLedger]
"""Returns the ledger of a database. Raises OSError."""

_Known = tuple[UUID, UUID, int]  # owner, database, transaction


class _Content(NamedTuple):
    """Things that lie in a journal; ``damaged``: the offset of something that should be intact,
    -1: there is none; ``end``: of all of them."""

    path: Path
    header: FileHeader
    heads: list[Head]
    voids: set[tuple[bytes, int]]
    damaged: int
    end: int


def _read(path: Path) -> _Content:
    """Go through a journal. Raises JournalCorrupt if its first block is not intact, OSError."""
    heads, voids, damage, end = [], set(), [], FILE_BLOCK
    with closing(Source(path)) as source:
        header = parse_file_header(source.read(FILE_BLOCK, 0))
        if header is None or f"{header.uuid}.log.live" != path.name:
            raise JournalCorrupt(path, 0, "its first block is damaged, or another journal's")
        for offset, behind, what in walk(source.read, source.size, header.uuid):
            if isinstance(what, Void):
                voids.add((what.journal, what.offset))
            elif what is not None:
                heads.append(what)
            else:
                damage.append(offset)
                continue
            end = behind
    # Behind all that was synced bytes may be those of a torn write.
    synced = max((head.synced for head in heads), default=0)
    damaged = next((offset for offset in damage if offset < synced), -1)
    return _Content(path, header, heads, voids, damaged, end)


class SharedJournals:
    """The shared journals of one folder. Belongs to one thread; all but ``watch`` and
    ``is_any_left`` to whoever leads."""

    def __init__(self, folder: JournalFolder, fsync: bool, pending: PendingJournals) -> None:
        self._pending = pending
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._fsync = fsync
        self._watched: dict[UUID, float] = {}  # not closed: when to try, monotonic
        self._ends: dict[UUID, tuple[int, int]] = {}  # of those left: bytes, how many are committed
        self._look_at = 0.0  # when to look for journals that were left, monotonic
        self._headers: dict[UUID, FileHeader] = {}
        self._undone: defaultdict[UUID, set[int]] = defaultdict(set)  # offsets of dead ones
        self._gone_through: dict[UUID, _Content] = {}  # only heads of what is undecided
        self.unread = 0
        """Number of journals that could not be gone through; what is in them waits."""

    def watch(self, journal: UUID) -> None:
        """Close JOURNAL once it is time."""
        self._watched.setdefault(journal, 0.0)

    def left(self, event: JournalLeft) -> None:
        """Close a journal that a process of ours has left, by what it says of it."""
        self.watch(event.journal)
        if event.end:
            self._ends[event.journal] = event.end, event.committed

    def note_undone(self, pending: Pending) -> None:
        """Remember that the transaction of PENDING is dead, or kept elsewhere."""
        self._undone[pending.journal].add(pending.offset)

    def set_aside(self, pending: Pending, reason: str) -> None:
        """Copy the transaction of PENDING into the quarantine, as a journal of its own. Raises
        OSError."""
        stamp = Stamp(
            0, 0, pending.commit_us, 0, pending.length, pending.events, pending.transaction,
            pending.definitions.catalogue_offset,
        )  # fmt: skip
        place = Place(pending.uuid, pending.offset, 0, pending.seal_end, stamp)
        content = own_journal(self._folder.live(pending.journal), place)
        self._folder.keep_copy(pending.uuid, reason, content)
        self.note_undone(pending)

    # -- what is undecided ----------------------------------------------------------------------

    def take_entries(self, first: int, last: int) -> set[int]:
        """Take up what was committed under the tickets FIRST to LAST, and return those of which
        there are entries. Raises OSError."""
        tickets = set()
        for entry in read_entries(self._folder.commits_fd, first, last):
            if entry.uuid not in self._pending and not self._take(entry):
                continue
            tickets.add(entry.ticket)
        return tickets

    def _take(self, entry: CommitEntry) -> bool:
        """Take up what ENTRY names; False: its journal can't be read, and a scan tries again."""
        try:
            header = self._header(entry.journal)
        except (JournalError, OSError) as error:
            self._tell_unread(entry.journal, error)
            return False
        if header is not None:  # else it is closed: all in it is decided
            self.watch(entry.journal)
            self._pending.add(self._committed(entry, header))
        return True

    def _tell_unread(self, journal: UUID, error: Exception) -> None:
        self.unread += 1
        _log.error("{journal}.log.live can't be read: {cause}", journal=journal, cause=error)

    def _header(self, journal: UUID) -> FileHeader | None:
        """Return the header of a live journal; None: there is none. Raises OSError."""
        if not self._folder.has_live(journal):
            self._headers.pop(journal, None)
            return None
        known = self._headers.get(journal)
        if known is None:
            known = self._headers[journal] = _read_header(self._folder.live(journal))
        return known

    def _committed(self, entry: CommitEntry, home: FileHeader) -> Pending:
        header = Header(
            entry.uuid, entry.transaction, entry.commit_us, home.database_guid, home.owner,
            home.database_inode,
        )  # fmt: skip
        return Pending(
            entry.uuid,
            home.database,
            entry.transaction,
            entry.ticket,
            entry.commit_us,
            entry.length,
            entry.events,
            guid=home.database_guid,
            header=header,
            is_orphan=self._folder.owner_is_gone(home.owner),
            definitions=_complete(entry.catalogue_offset),
            floor=entry.ticket - 1,
            home=entry.journal,
            offset=entry.offset,
            seal_end=entry.seal_end,
        )

    def found_in(
        self, paths: Sequence[Path], ended: Sequence[UUID], last: int, ledger: Ledgers
    ) -> Iterator[Pending]:
        """Yield what is undecided in those of the live journals at PATHS whose processes have
        ended, and what the slots of ENDED ones name. LAST: the ticket up to which entries were
        taken up."""
        self.unread = 0
        unlocked = {path for path in paths if not is_held(path)}
        before = {path: self._content_before(path) for path in unlocked}
        left = [content for content in before.values() if content is not None]
        voids = {void for content in left for void in content.voids}
        # Of those that are locked only voids count, for places in those that are new to us.
        for path in paths if len(left) < len(unlocked) else ():
            self._folder.tell_progress()
            with contextlib.suppress(FileNotFoundError):
                content = self._content(path) if before.get(path) is None else None
                if content is not None:
                    voids |= content.voids
                    left += [content] if path in unlocked else []
        # A process that had the lock of its journal a moment ago may have drawn more since: what
        # has a ticket must be known by that.
        self.take_entries(last + 1, self._folder.last_ticket)
        known = {
            (each.header.owner, each.header.database_guid, each.transaction)
            for each in self._pending
            if each.header is not None
        }
        for content in left:
            self.watch(content.header.uuid)
            # One that is void may have been changed since, in memory.
            known |= {_known(head) for head in content.heads if _place(head) not in voids}
            if self._folder.owner_is_gone(content.header.owner):  # else it has entries
                yield from self._undecided_in(content, voids, ledger)
        if not self.unread:
            for owner in ended:
                yield from self._open_in(owner, known)

    def _content_before(self, path: Path) -> _Content | None:
        """Return what was undecided in a journal that was left when it was last gone through;
        nothing came to it since. None: it was not, or is needed whole."""
        content = self._gone_through.get(UUID(path.name[:36]))
        if content is None or (self._folder.slots / str(content.header.owner)).exists():
            return None
        return content

    def _content(self, path: Path) -> _Content | None:
        try:
            return _read(path)
        except (JournalError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            self._tell_unread(UUID(path.name[:36]), error)
            return None

    def _undecided_in(
        self, content: _Content, voids: set[tuple[bytes, int]], ledger: Ledgers
    ) -> Iterator[Pending]:
        journal = content.header.uuid
        try:
            given = {place.uuid for place in _given_in(journal, ledger(content.header.database))}
        except OSError as error:  # nothing of this database is numbered before that is mended
            self._tell_unread(journal, error)
            return
        undecided = []
        for head in content.heads:
            is_void = _place(head) in voids
            if is_void or head.header.uuid in given or head.offset in self._undone[journal]:
                continue
            undecided.append(head)
            if head.header.uuid in self._pending:
                continue
            try:
                pending = self._found(content.path, head)
            except OSError as error:
                self._tell_unread(journal, error)
                return
            if pending is not None:
                yield pending
        self._gone_through[journal] = content._replace(heads=undecided)

    def _found(self, path: Path, head: Head) -> Pending | None:
        """Return what lies at HEAD; None: it is not whole, so its ``prepare`` never ended."""
        with closing(Source(path)) as source:
            content = source.read(head.length, head.offset)
        name = f"{path}/{head.header.uuid}.log"
        with contextlib.suppress(JournalError), JournalReader(name, content=content) as reader:
            for _ in reader.changes():
                pass
            pending = found(reader, is_orphan=True)
            if reader.seal is None:
                return None
            seal_end, pending.length = reader.seal.end, head.length
            pending.definitions = _complete(seal_end if head.length > seal_end else 0)
            pending.home = UUID(bytes=head.journal)
            pending.offset, pending.seal_end = head.offset, seal_end
            return pending
        return None

    def _open_in(self, owner: UUID, known: set[_Known]) -> Iterator[Pending]:
        """Yield the transactions that an ended process had in memory alone: each gets a journal
        without a seal, which goes, waits or becomes a gap as any other."""
        slots = self._folder.slots / str(owner)
        for each in read_slots(slots):
            if (owner, each.database_guid, each.transaction) in known:
                continue
            uuid = uuid5(owner, f"{each.database_guid} {each.transaction}")
            if uuid in self._pending:
                continue
            if not self._folder.has_live(uuid):
                self._note_open(owner, uuid, each)
            with JournalReader(self._folder.live(uuid)) as reader:
                yield found(reader, is_orphan=True)
        slots.unlink(missing_ok=True)

    def _note_open(self, owner: UUID, uuid: UUID, transaction: OpenTransaction) -> None:
        temporary = self._folder.state / f"open-{uuid}"
        temporary.unlink(missing_ok=True)
        with JournalWriter(
            temporary,
            uuid=uuid,
            transaction=transaction.transaction,
            database=transaction.database,
            database_guid=transaction.database_guid,
            owner=owner,
            database_inode=transaction.database_inode,
            started_us=transaction.begun_us,
        ) as writer:
            writer.flush()
            if self._fsync:
                writer.sync()
        live = temporary.rename(self._folder.live(uuid))
        try:
            if self._fsync:
                os.fsync(self._folder.journal_fd)  # its slot goes next
        except OSError:
            live.unlink()  # to be named again: another sync would pass over its name
            raise

    # -- their end ------------------------------------------------------------------------------

    def is_any_left(self) -> bool:
        """Tell whether there is a journal to be closed: nothing is appended any more, and nothing
        of it waits. Looks once a second."""
        now = time.monotonic()
        if now < self._look_at or not self._watched:
            return False
        if self._left(now):
            return True
        self._look_at = now + _LOOK_S
        return False

    def _left(self, now: float) -> list[UUID]:
        found = []
        for journal, try_at in list(self._watched.items()):
            if not self._folder.has_live(journal):
                self._forget(journal)
            elif (
                now >= try_at
                and not is_held(self._folder.live(journal))
                and not self._pending.have_in(journal)
            ):
                found.append(journal)
        return found

    def _forget(self, journal: UUID) -> None:
        for known in (
            self._watched, self._ends, self._headers, self._undone, self._gone_through,
        ):  # fmt: skip
            known.pop(journal, None)

    def close_left(self, ledger: Ledgers) -> None:
        """Close the journals that are to be. One that can't be closed is tried again."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for journal in self._left(now):
            self._folder.tell_progress()
            try:
                is_closed = self._close(journal, ledger)
            except (JournalError, OSError) as error:
                _log.error(
                    "{journal}.log.live can't be closed, and is tried again: {cause}",
                    journal=journal,
                    cause=error,
                )
                is_closed = False
            if is_closed:
                self._forget(journal)
            else:
                self._watched[journal] = now + _AGAIN_S

    def _close(self, journal: UUID, ledger: Ledgers) -> bool:
        """Close a journal; return whether that can be done."""
        path = self._folder.live(journal)
        if journal in self._ends:
            end, committed = self._ends.pop(journal)
            places = _given_in(journal, ledger(_read_header(path).database))
            if len(places) + len(self._undone[journal]) == committed:
                self._finish(journal, end, places)
                return True
        index = self._index_of(path, journal)
        if index is not None:  # by one that died before the journal had its name
            self._end(journal, *index)
            return True
        content = _read(path)
        places = _given_in(journal, ledger(content.header.database))
        given = {place.offset for place in places}
        voids = content.voids | self._voids_for(journal, content.header)
        for head in content.heads:
            is_void = _place(head) in voids
            is_decided = head.offset in given or head.offset in self._undone[journal]
            if not (is_void or is_decided) and self._found(path, head) is not None:
                return False  # a scan takes it up
        if content.damaged >= 0:
            raise JournalCorrupt(path, content.damaged, "it is damaged where it was synced")
        for other, _ in content.voids:
            if other != journal.bytes and self._folder.has_live(UUID(bytes=other)):
                return False  # which needs these voids
        self._finish(journal, content.end, places)
        return True

    def _finish(self, journal: UUID, end: int, places: list[Place]) -> None:
        """Close a journal whose content ends at byte END, or remove it if nothing of that was
        committed."""
        if places:
            self._end(journal, aligned(end, FILE_BLOCK), places)
        else:
            self._folder.live(journal).unlink()

    def _voids_for(self, journal: UUID, header: FileHeader) -> set[tuple[bytes, int]]:
        """Return the voids for places in JOURNAL that lie in others of its database: its process
        may have another name there, if its bridge was started anew."""
        found = set()
        for path in self._folder.path.glob("*.log.live"):
            with contextlib.suppress(JournalError, FileNotFoundError):
                if path.name.startswith(str(journal)):
                    continue
                if _read_header(path).database_guid == header.database_guid:
                    found |= {each for each in _read(path).voids if each[0] == journal.bytes}
        return found

    @staticmethod
    def _index_of(path: Path, journal: UUID) -> tuple[int, list[Place]] | None:
        """Return where the index of a live journal begins, and what it names; None: it has none
        that is whole. Raises OSError."""
        with closing(Source(path)) as source:
            index = find_index(path, source.read, source.size, journal.bytes)
            if index is None or index.end != source.size:
                return None
            try:
                return index.start, list(index.places(source.read))
            except JournalCorrupt:
                return None

    def _end(self, journal: UUID, start: int, places: list[Place]) -> None:
        """Have a journal end with its index, which begins at byte START, and name it. The index is
        written also where it is there: a sync of it may have failed. Raises OSError."""
        live, closed = self._folder.live(journal), self._folder.committed(journal)
        index = pack_index(places, journal, start)
        fd = os.open(live, os.O_RDWR | os.O_CLOEXEC)
        try:
            pwrite(fd, index, start)
            os.ftruncate(fd, start + len(index))
            if self._fsync:
                os.fsync(fd)
        finally:
            os.close(fd)
        live.rename(closed)
        try:
            if self._fsync:
                os.fsync(self._folder.journal_fd)
        except OSError:
            closed.rename(live)  # to be named again: another sync would pass over its name
            raise


def _read_header(path: Path) -> FileHeader:
    with closing(Source(path)) as source:
        header = parse_file_header(source.read(FILE_BLOCK, 0))
    if header is None:
        raise JournalCorrupt(path, 0, "its first block is damaged")
    return header


def _given_in(journal: UUID, ledger: SequenceLedger) -> list[Place]:
    """Return the places of transactions in JOURNAL that have numbers. Raises OSError."""
    with ledger.exclusive():
        return [entry.place for entry in ledger.entries_in(journal)]


def _complete(catalogue_offset: int) -> Definitions:
    """Return the definitions of a transaction that shares its journal: nothing is missing."""
    return Definitions(
        has_ddl=False,
        is_unresolved=False,
        catalogue_offset=catalogue_offset,
        is_described=True,
    )


def _place(head: Head) -> tuple[bytes, int]:
    """Return the place of HEAD, as voids name it."""
    return head.journal, head.offset


def _known(head: Head) -> _Known:
    header = head.header
    return (header.owner, header.database_guid, header.transaction)
