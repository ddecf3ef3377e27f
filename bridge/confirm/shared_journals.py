"""Live journals of one folder: what lies in them undecided, and their end.

Number and place of a transaction go into the ledger, and nothing is written to its journal. Those
of processes that live are known by the entries of their tickets; what others left is found by going
through each journal that nobody has locked any more. A journal is closed once each transaction in
it is in the ledger, void or dead: its index, then its name. docs/architecture.md has the rules
(S1 to S11).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid5

import logbook

from firebird_cdc.bridge.confirm.descriptors import most_open
from firebird_cdc.bridge.confirm.pending import (
    Definitions,
    FoundProcess,
    Pending,
    PendingJournals,
    found,
)
from firebird_cdc.bridge.confirm.troubles import UnreadableFiles
from firebird_cdc.bridge.host import JournalLeft
from firebird_cdc.errors import (
    CaptureError,
    JournalCorrupt,
    JournalEmpty,
    JournalError,
    JournalTorn,
)
from firebird_cdc.journal.folder.commit_entries import CommitEntry, read_entries
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.locks import is_held
from firebird_cdc.journal.folder.shortage import kept
from firebird_cdc.journal.folder.slots import OpenTransaction, read_slots
from firebird_cdc.journal.format import (
    Header,
    JournalReader,
    OwnJournalWriter,
    Place,
    Stamp,
    own_journal,
    own_reader,
    read_file_header,
)
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.journal_index import (
    Entry,
    find_index,
    pack_index,
    unpack_entries,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK, HEAD, pwrite
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import (
    FileHeader,
    Void,
    aligned,
    own_head,
    walk,
)

_log = logbook.Logger("firebird_cdc.bridge.confirm.shared_journals")

_LOOK_S = 1.0  # how often to look whether journals were left by their processes
_AGAIN_S = 15.0  # the same for one that could not be closed
_MOST_AT_ONCE = 256  # that are closed before others have their turn
_THREADS, _WORTH_THREADS = 8, 4  # for syncs, which the file system does together

Ledgers = Callable[[str], SequenceLedger]
"""Returns the ledger of a database. Raises OSError."""

Reading = Callable[[Path], AbstractContextManager[None]]
GiveUp = Callable[[Path, UUID | None, JournalError], None]

_Known = tuple[UUID, str, UUID, int]  # owner, database (a copy has the same UUID), transaction


class _Content(NamedTuple):
    """Things that lie in a journal; ``damaged``: the offset of something that should be intact,
    -1: there is none; ``end``: of all of them; ``own``: the transaction that a journal is of alone,
    as it was found there."""

    path: Path
    header: FileHeader
    heads: list[Head]
    voids: set[tuple[bytes, int]]
    damaged: int
    end: int
    own: Pending | None = None


def _read(path: Path, header: FileHeader) -> _Content:
    """Go through a journal that begins with HEADER. Raises JournalCorrupt if it is another one's,
    or the head of a transaction that is alone in it is damaged, OSError."""
    heads, voids, damage, end = [], set(), [], FILE_BLOCK
    if f"{header.uuid}.log.live" != path.name:
        raise JournalCorrupt(path, 0, f"it is journal {header.uuid} under another's name")
    with closing(Source(path)) as source:
        if header.is_own:
            head = own_head(source.read)
            if head is not None and head.header.uuid == header.uuid:
                heads = [head]
            elif any(source.read(HEAD.size, FILE_BLOCK)):  # zeros: it was rolled back
                raise JournalCorrupt(path, FILE_BLOCK, "the head of its transaction is damaged")
            return _Content(path, header, heads, set(), -1, end)
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
    """The live journals of one folder. Belongs to one thread; all but ``watch`` and
    ``is_any_left`` to whoever leads."""

    def __init__(
        self,
        folder: JournalFolder,
        fsync: bool,
        pending: PendingJournals,
        unreadable: UnreadableFiles,
    ) -> None:
        self._pending = pending
        self._unreadable = unreadable
        self._reading: Reading
        self._give_up: GiveUp
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._fsync = fsync
        self._watched: dict[UUID, float] = {}  # not closed: when to try, monotonic
        self._ends: dict[UUID, tuple[int, int]] = {}  # of those left: bytes, how many are committed
        self._numbered: dict[UUID, Entry] = {}  # of journals of one transaction
        self._look_at = 0.0  # when to look for journals that were left, monotonic
        self._ended: list[tuple[UUID, int]] = []  # with an index, and descriptors
        self._headers: dict[UUID, FileHeader] = {}
        self._undone: defaultdict[UUID, set[int]] = defaultdict(set)  # offsets of dead ones
        self._gone_through: dict[UUID, _Content] = {}  # only heads of what is undecided
        self._doubted: set[UUID] = set()  # that have something whose number was lost
        self.unread = 0
        """Number of journals that could not be gone through; what is in them waits."""

    def watch(self, journal: UUID) -> None:
        """Close JOURNAL once it is time."""
        self._watched.setdefault(journal, 0.0)

    @property
    def doubted(self) -> int:
        """Number of journals that can't be closed, as numbers of what is in them were lost."""
        return len(self._doubted)

    def _doubt(self, journal: UUID) -> None:
        """Leave what is in JOURNAL to somebody who can see what was sent."""
        if journal not in self._doubted:
            self._doubted.add(journal)
            _log.error(
                "{journal}.log.live stays: it has transactions that were published before the "
                "ledger of their database was lost, and would be published again",
                journal=journal,
            )

    def left(self, event: JournalLeft) -> None:
        """Close a journal that a process of ours has left, by what it says of it."""
        self.watch(event.journal)
        if event.end:
            self._ends[event.journal] = event.end, event.committed

    def has_number(self, place: Place) -> None:
        """Close the journal of the transaction at PLACE alone, which is in the ledger."""
        self.watch(place.uuid)
        self._numbered[place.uuid] = Entry.of(place)
        self.look_soon()  # whoever looks at the folder waits for its name

    def look_soon(self) -> None:
        """Look for journals to be closed as soon as there is time: one has become decided."""
        self._look_at = 0.0

    def note_undone(self, pending: Pending) -> None:
        """Remember that the transaction of PENDING is dead, or kept elsewhere."""
        self._undone[pending.journal].add(pending.offset)
        self.look_soon()

    def set_aside(self, pending: Pending, reason: str) -> None:
        """Bring the transaction of PENDING into the quarantine, in a journal of its own. Raises
        OSError."""
        place = _unnumbered(pending)
        entries = [Entry.of(place)]
        if pending.has_own_journal:
            if pending.is_sealed:
                fd = self.write_index(pending.journal, _end_of(entries), entries)
                try:
                    if self._fsync:
                        os.fdatasync(fd)
                finally:
                    os.close(fd)
            self._folder.set_aside(pending.uuid, reason)
            return
        content = own_journal(self._folder.live(pending.journal), place)
        self._folder.keep_copy(pending.uuid, reason, content)
        self.note_undone(pending)

    # -- what is undecided ----------------------------------------------------------------------

    def take_entries(self, first: int, last: int) -> set[int]:
        """Take up what was committed under the tickets FIRST to LAST, and return those of which
        there are entries. Raises OSError, also of a journal that others wait for."""
        tickets, failed = set(), list[OSError]()
        for entry in read_entries(self._folder.commits_fd, first, last):
            # Nothing passes a file that can't be read, but for some seconds.
            with (
                kept(failed),
                contextlib.suppress(FileNotFoundError),  # closed meanwhile
                self._unreadable.passing_over(self._folder.live(entry.journal)),
            ):
                if entry.uuid not in self._pending:
                    self._take(entry)
                tickets.add(entry.ticket)
        if failed:
            raise failed[0]
        return tickets

    def _take(self, entry: CommitEntry) -> None:
        """Take up what ENTRY names. Raises OSError."""
        try:
            header = self._header(entry.journal)
        except JournalError as error:
            self._tell_unread(entry.journal, error)
            return
        if header is not None:  # else it is closed: all in it is decided
            pending = self._committed(entry, header)
            self.watch(entry.journal)
            self._pending.add(pending)

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
            known = self._headers[journal] = read_file_header(self._folder.live(journal))
        return known

    def _committed(self, entry: CommitEntry, home: FileHeader) -> Pending:
        pending = Pending(
            entry.uuid,
            entry.journal,
            entry.offset,
            home.database,
            entry.transaction,
            entry.ticket,
            entry.commit_us,
            entry.length,
            entry.seal_end,
            entry.events,
            is_unsynced=entry.is_unsynced,
            guid=home.database_guid,
            process=FoundProcess(
                home.of_transaction(entry.uuid, entry.transaction, entry.commit_us),
                is_orphan=self._folder.owners.is_gone(home.owner),
            ),
            definitions=_complete(entry.catalogue_offset),
            floor=entry.ticket - 1,
        )
        if pending.has_own_journal:
            self._look_again(pending, entry)
        return pending

    def _look_again(self, pending: Pending, entry: CommitEntry) -> None:
        """Take over what was made of a journal of PENDING's own since ENTRY was written: a leader
        before us may have put a gap there, or a catalogue."""
        try:
            with own_reader(self._folder.live(pending.uuid), pending.uuid) as reader:
                is_plain = not (entry.has_ddl or entry.is_unresolved or entry.catalogue_offset)
                if is_plain and reader.has_seal_at(_unnumbered(pending)):
                    return
                now = found(reader, pending.database, pending.journal, pending.offset)
        except JournalError:  # its head is damaged: a gap takes its place
            pending.is_sealed = False
            return
        pending.length, pending.seal_end, pending.events = now.length, now.seal_end, now.events
        pending.is_sealed, pending.definitions = now.is_sealed, now.definitions
        pending.definitions.has_ddl = entry.has_ddl
        if not (entry.is_unresolved or entry.catalogue_offset):
            pending.definitions.is_unresolved = False  # it was complete without a catalogue

    def found_in(
        self,
        paths: Sequence[Path],
        ended: Sequence[UUID],
        last: int,
        ledger: Ledgers,
        reading: Reading,
        give_up: GiveUp,
    ) -> Iterator[Pending]:
        """Yield what is undecided in those of the live journals at PATHS whose processes have
        ended, and what the slots of ENDED ones name. LAST: the ticket up to which entries were
        taken up; READING: deals with an OSError at a path; GIVE_UP: gets a path, its owner and the
        damage of what can't be read at all."""
        self.unread = 0
        self._reading, self._give_up = reading, give_up
        paths = [path for path in paths if UUID(path.name[:36]) not in self._pending]
        unlocked = {path for path in paths if not is_held(path)}
        before = {path: self._content_before(path) for path in unlocked}
        left = [content for content in before.values() if content is not None]
        voids = {void for content in left for void in content.voids}
        # Of those that are locked only voids count, for places in those that are new to us.
        is_new = False
        for path in sorted(paths, key=unlocked.__contains__, reverse=True):
            if path not in unlocked and not is_new:
                break
            self._folder.tell_progress()
            content = self._content(path) if before.get(path) is None else None
            if content is not None:
                voids |= content.voids
                left += [content] if path in unlocked else []
                is_new = is_new or not content.header.is_own
        # A process that had the lock of its journal a moment ago may have drawn more since: what
        # has a ticket must be known by that.
        self.take_entries(last + 1, self._folder.last_ticket)
        known = {
            _known(each.header, each.database) for each in self._pending if each.header is not None
        }
        for content in left:
            self.watch(content.header.uuid)
            # One that is void may have been changed since, in memory.
            known |= {
                _known(head.header, content.header.database)
                for head in content.heads
                if _place(head) not in voids
            }
            # Else it has entries, unless it was let go.
            if content.header.is_own or self._folder.owners.is_gone(content.header.owner):
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
        with self._reading(path):
            owner = None
            try:
                header = read_file_header(path)
                owner = header.owner if header.is_own else None
                content = _read(path, header)
                if not header.is_own or not content.heads or is_held(path):
                    return content
                return content._replace(own=_found(path, content.header.database, content.heads[0]))
            except JournalError as error:
                if is_held(path):
                    return None  # its process is just writing it
                if owner is not None or isinstance(error, JournalEmpty | JournalTorn):
                    self._give_up(path, owner, error)
                else:
                    self._tell_unread(UUID(path.name[:36]), error)
        return None

    def _undecided_in(
        self, content: _Content, voids: set[tuple[bytes, int]], ledger: Ledgers
    ) -> Iterator[Pending]:
        journal = content.header.uuid
        if all(head.header.uuid in self._pending for head in content.heads):
            return
        try:
            of_database = ledger(content.header.database)
            given = {each.uuid for each in _given_in(journal, of_database)}
            lost = of_database.numbered_before()
        except (CaptureError, OSError) as error:
            # Nothing of this database is numbered before that is mended: then it is seen.
            if not content.header.is_own:
                self._tell_unread(journal, error)
                return
            given, lost = set(), set()
        undecided = []
        for head in content.heads:
            is_void = _place(head) in voids
            if is_void or head.header.uuid.bytes in given or head.offset in self._undone[journal]:
                continue
            undecided.append(head)
            if head.header.uuid in self._pending:
                continue
            if head.header.uuid in lost:
                self._doubt(journal)
                continue
            try:
                pending = content.own or _found(content.path, content.header.database, head)
            except OSError as error:
                self._tell_unread(journal, error)
                return
            if pending is not None:
                yield pending
        if not content.header.is_own:
            self._gone_through[journal] = content._replace(heads=undecided)

    def _open_in(self, owner: UUID, known: set[_Known]) -> Iterator[Pending]:
        """Yield the transactions that an ended process had in memory alone: each gets a journal
        without a seal, which goes, waits or becomes a gap as any other."""
        slots = self._folder.slots / str(owner)
        for each in read_slots(slots):
            if (owner, each.database, each.database_guid, each.transaction) in known:
                continue
            uuid = uuid5(owner, f"{each.database} {each.database_guid} {each.transaction}")
            if uuid in self._pending:
                continue
            if not self._folder.has_live(uuid):
                self._note_open(owner, uuid, each)
            try:
                with own_reader(self._folder.live(uuid), uuid) as reader:
                    noted = found(reader, each.database, uuid, FILE_BLOCK)
            except JournalError as error:
                self._give_up(self._folder.live(uuid), owner, error)
                continue
            yield noted
        slots.unlink(missing_ok=True)

    def _note_open(self, owner: UUID, uuid: UUID, transaction: OpenTransaction) -> None:
        temporary = self._folder.state / f"open-{uuid}"
        temporary.unlink(missing_ok=True)
        header = FileHeader(
            uuid, owner, transaction.database_guid, transaction.database_inode, boot_uuid(),
            transaction.begun_us, transaction.transaction, True, transaction.database,
        )  # fmt: skip
        with OwnJournalWriter(temporary, header) as writer:
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
        found, busy = [], self._pending.journals()
        for journal, try_at in list(self._watched.items()):
            if journal in busy:
                continue
            if not self._folder.has_live(journal):
                self._forget(journal)
            elif now >= try_at and not is_held(self._folder.live(journal)):
                found.append(journal)
        return found

    def _forget(self, journal: UUID) -> None:
        for known in (
            self._watched, self._ends, self._numbered, self._headers, self._undone,
            self._gone_through,
        ):  # fmt: skip
            known.pop(journal, None)
        self._doubted.discard(journal)

    def close_left(self, ledger: Ledgers) -> None:
        """Close the journals that are to be. One that can't be closed is tried again."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        left, most = self._left(now)[:_MOST_AT_ONCE], most_open()
        for first in range(0, len(left), most):
            self._close_all(left[first : first + most], ledger)

    def _close_all(self, journals: Sequence[UUID], ledger: Ledgers) -> None:
        """Close JOURNALS, each of which is open until all have been synced."""
        for journal in journals:
            self._folder.tell_progress()
            try:
                if not self._close(journal, ledger):
                    self._watched[journal] = time.monotonic() + _AGAIN_S
            except (JournalError, OSError) as error:
                self._try_again(journal, error)
        for journal in self._name_ended():
            self._forget(journal)

    def _try_again(self, journal: UUID, error: Exception) -> None:
        _log.error(
            "{journal}.log.live can't be closed, and is tried again: {cause}",
            journal=journal,
            cause=error,
        )
        self._watched[journal] = time.monotonic() + _AGAIN_S

    def _name_ended(self) -> list[UUID]:
        """Give those that have their index their names, once that is on disk; return them. Raises
        OSError."""
        ended, self._ended = self._ended, []
        if not ended:
            return []
        # From before they get these: of a failed sync each opening is told, but only once.
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder.journal_fd)
        try:
            return self._name(ended, folder)
        finally:
            os.close(folder)

    def _name(self, ended: list[tuple[UUID, int]], folder: int) -> list[UUID]:
        named = []
        for (journal, fd), error in zip(ended, self._sync([fd for _, fd in ended]), strict=True):
            os.close(fd)
            if error is not None:
                self._try_again(journal, error)
                continue
            with contextlib.suppress(FileNotFoundError):  # removed by somebody
                self._folder.live(journal).rename(self._folder.committed(journal))
            named.append(journal)
        self._sync_names(named, folder)
        return named

    def _sync(self, files: list[int]) -> list[OSError | None]:
        """Wait until FILES are on disk, several at a time; return what came of each."""
        if not self._fsync:
            return [None] * len(files)
        if len(files) < _WORTH_THREADS:
            return [_sync_file(fd) for fd in files]
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(_sync_file, files))

    def _sync_names(self, closed: Sequence[UUID], folder: int) -> None:
        """Wait until the names of CLOSED journals in FOLDER are on disk. Raises OSError; then they
        have their former ones, to be named again: another sync would pass over them."""
        if not closed or not self._fsync:
            return
        try:
            os.fsync(folder)
        except OSError:
            for journal in closed:
                with contextlib.suppress(FileNotFoundError):  # removed, or archived already
                    self._folder.committed(journal).rename(self._folder.live(journal))
            raise

    def _close(self, journal: UUID, ledger: Ledgers) -> bool:
        """Close a journal; return whether that can be done."""
        path = self._folder.live(journal)
        if (entry := self._numbered.get(journal)) is not None:
            self._finish(journal, _end_of([entry]), [entry])
            return True
        header = read_file_header(path)
        if journal in self._ends:
            end, committed = self._ends.pop(journal)
            entries = _given_in(journal, ledger(header.database))
            if len(entries) + len(self._undone[journal]) == committed:
                self._finish(journal, end, entries)
                return True
        index = self._index_of(path, journal)
        if index is not None:  # by one that died before the journal had its name
            self._end(journal, *index)
            return True
        content = _read(path, header)
        entries = _given_in(journal, ledger(header.database))
        given = {entry.offset for entry in entries}
        voids = content.voids if header.is_own else self._voids_for(content)
        for head in content.heads:
            is_void = _place(head) in voids
            is_decided = head.offset in given or head.offset in self._undone[journal]
            if is_void or is_decided:
                continue
            if _found(path, header.database, head) is not None:
                if head.header.uuid in ledger(header.database).numbered_before():
                    self._doubt(journal)
                return False  # a scan takes it up
        if content.damaged >= 0:
            raise JournalCorrupt(path, content.damaged, "it is damaged where it was synced")
        for other, _ in content.voids:
            if other != journal.bytes and self._folder.has_live(UUID(bytes=other)):
                return False  # which needs these voids
        self._finish(journal, max(content.end, _end_of(entries)), entries)
        return True

    def _finish(self, journal: UUID, end: int, entries: list[Entry]) -> None:
        """Close a journal whose content ends at byte END, or remove it if nothing of that was
        committed."""
        if entries:
            self._end(journal, aligned(end, FILE_BLOCK), entries)
        else:
            self._folder.live(journal).unlink(missing_ok=True)

    def _voids_for(self, content: _Content) -> set[tuple[bytes, int]]:
        """Return the voids for places in a journal, also those that lie in others of its database:
        its process may have another name there, if its bridge was started anew."""
        journal, header, found = content.header.uuid, content.header, set(content.voids)
        for path in self._folder.path.glob("*.log.live"):
            with contextlib.suppress(JournalError, FileNotFoundError):
                if path.name.startswith(str(journal)):
                    continue
                other = read_file_header(path)
                if not other.is_own and other.database_guid == header.database_guid:
                    voids = _read(path, other).voids
                    found |= {each for each in voids if each[0] == journal.bytes}
        return found

    @staticmethod
    def _index_of(path: Path, journal: UUID) -> tuple[int, list[Entry]] | None:
        """Return where the index of a live journal begins, and what it names; None: it has none
        that is whole. Raises OSError."""
        with closing(Source(path)) as source:
            index = find_index(path, source.read, source.size, journal.bytes)
            if index is None or index.end != source.size:
                return None
            try:
                entries = unpack_entries(index.packed(source.read))
            except JournalCorrupt:
                return None
        # One without numbers was on its way to the quarantine.
        return (index.start, entries) if all(each.sequence for each in entries) else None

    def _end(self, journal: UUID, start: int, entries: list[Entry]) -> None:
        """Have a journal end with its index, which begins at byte START; ``_name_ended`` names it.
        The index is written also where it is there: a sync of it may have failed. Raises
        OSError."""
        self._ended.append((journal, self.write_index(journal, start, entries)))

    def write_index(self, journal: UUID, start: int, entries: list[Entry]) -> int:
        """Return a descriptor of the file, of which nothing is synced."""
        index = pack_index(entries, journal, start)
        fd = os.open(self._folder.live(journal), os.O_RDWR | os.O_CLOEXEC)
        try:
            pwrite(fd, index, start)
            os.ftruncate(fd, start + len(index))
        except BaseException:
            os.close(fd)
            raise
        return fd


def _found(path: Path, database: str, head: Head) -> Pending | None:
    """Return what lies at HEAD; None: it is not whole, so its ``prepare`` never ended, and it is
    not alone in its journal, so that nothing tells of it any more."""
    if not head.length:
        with own_reader(path, head.header.uuid) as reader:
            return found(reader, database, UUID(bytes=head.journal), head.offset)
    with closing(Source(path)) as source:
        content = source.read(head.length, head.offset)
    name = f"{path}/{head.header.uuid}.log"
    with contextlib.suppress(JournalError), JournalReader(name, content=content) as reader:
        for _ in reader.changes():
            pass
        if reader.seal is None:
            return None
        pending = found(reader, database, UUID(bytes=head.journal), head.offset)
        pending.length = head.length
        is_complete = head.length == pending.seal_end
        pending.definitions = _complete(0 if is_complete else pending.seal_end)
        return pending
    return None


def _sync_file(fd: int) -> OSError | None:
    try:
        os.fsync(fd)
    except OSError as error:
        return error
    return None


def _end_of(entries: Sequence[Entry]) -> int:
    """Return the first byte behind what ENTRIES name where an index may begin."""
    ends = (entry.offset + entry.length for entry in entries)
    return aligned(max(ends, default=0), FILE_BLOCK)


def _unnumbered(pending: Pending) -> Place:
    """Return the place of PENDING, without a number."""
    stamp = Stamp(
        0, 0, pending.commit_us, 0, pending.length, pending.events, pending.transaction,
        pending.definitions.catalogue_offset,
    )  # fmt: skip
    return Place(pending.uuid, pending.offset, 0, pending.seal_end, stamp)


def _given_in(journal: UUID, ledger: SequenceLedger) -> list[Entry]:
    """Return the entries of the index of JOURNAL. Raises OSError."""
    with ledger.exclusive():
        return ledger.entries_in(journal)


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


def _known(header: Header, database: str) -> _Known:
    return (header.owner, database, header.database_guid, header.transaction)
