"""Undecided transactions in the live journals of processes that have ended.

They are found by going through each journal that nobody has locked any more, and through the slots
of what was in memory alone. docs/architecture.md has the rules (S1 to S11).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import UUID, uuid5

from firebird_cdc.bridge.confirm.closing import Closing, Ledgers, given_in
from firebird_cdc.bridge.confirm.entries import Entries
from firebird_cdc.bridge.confirm.live_content import (
    Content,
    found_at,
    place_of,
    read_content,
)
from firebird_cdc.bridge.confirm.pending import Pending, PendingJournals, found
from firebird_cdc.errors import CaptureError, JournalEmpty, JournalError, JournalTorn
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import is_held
from firebird_cdc.journal.folder.slots import OpenTransaction, read_slots
from firebird_cdc.journal.format import Header, OwnJournalWriter, own_reader, read_file_header
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader

Reading = Callable[[Path], AbstractContextManager[None]]
GiveUp = Callable[[Path, UUID | None, JournalError], None]

_Known = tuple[UUID, str, UUID, int]  # owner, database (a copy has the same UUID), transaction


class Undecided:
    """Finds transactions in the live journals of one folder. Belongs to one thread, and to whoever
    leads."""

    def __init__(
        self,
        folder: JournalFolder,
        fsync: bool,
        pending: PendingJournals,
        closing: Closing,
        entries: Entries,
    ) -> None:
        self._pending = pending
        self._closing = closing
        self._known = closing.known
        self._entries = entries
        self._reading: Reading
        self._give_up: GiveUp
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._fsync = fsync

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
        self._known.unread = 0
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
        self._entries.take(last + 1, self._folder.last_ticket)
        known = {
            _known(each.header, each.database) for each in self._pending if each.header is not None
        }
        for content in left:
            self._closing.watch(content.header.uuid)
            # One that is void may have been changed since, in memory.
            known |= {
                _known(head.header, content.header.database)
                for head in content.heads
                if place_of(head) not in voids
            }
            # Else it has entries, unless it was let go.
            if content.header.is_own or self._folder.owners.is_gone(content.header.owner):
                yield from self._undecided_in(content, voids, ledger)
        if not self._known.unread:
            for owner in ended:
                yield from self._open_in(owner, known)

    def _content_before(self, path: Path) -> Content | None:
        """Return what was undecided in a journal that was left when it was last gone through;
        nothing came to it since. None: it was not, or is needed whole."""
        content = self._known.gone_through.get(UUID(path.name[:36]))
        if content is None or (self._folder.slots / str(content.header.owner)).exists():
            return None
        return content

    def _content(self, path: Path) -> Content | None:
        with self._reading(path):
            owner = None
            try:
                header = read_file_header(path)
                owner = header.owner if header.is_own else None
                content = read_content(path, header)
                if not header.is_own or not content.heads or is_held(path):
                    return content
                return content._replace(
                    own=found_at(path, content.header.database, content.heads[0])
                )
            except JournalError as error:
                if is_held(path):
                    return None  # its process is just writing it
                if owner is not None or isinstance(error, JournalEmpty | JournalTorn):
                    self._give_up(path, owner, error)
                else:
                    self._known.tell_unread(UUID(path.name[:36]), error)
        return None

    def _undecided_in(
        self, content: Content, voids: set[tuple[bytes, int]], ledger: Ledgers
    ) -> Iterator[Pending]:
        journal = content.header.uuid
        if all(head.header.uuid in self._pending for head in content.heads):
            return
        try:
            of_database = ledger(content.header.database)
            given = {each.uuid for each in given_in(journal, of_database)}
            lost = of_database.numbered_before()
        except (CaptureError, OSError) as error:
            # Nothing of this database is numbered before that is mended: then it is seen.
            if not content.header.is_own:
                self._known.tell_unread(journal, error)
                return
            given, lost = set(), set()
        undecided, undone = [], self._known.undone[journal]
        for head in content.heads:
            is_void = place_of(head) in voids
            if is_void or head.header.uuid.bytes in given or head.offset in undone:
                continue
            undecided.append(head)
            if head.header.uuid in self._pending:
                continue
            if head.header.uuid in lost:
                self._known.doubt(journal)
                continue
            try:
                pending = content.own or found_at(content.path, content.header.database, head)
            except OSError as error:
                self._known.tell_unread(journal, error)
                return
            if pending is not None:
                yield pending
        if not content.header.is_own:
            self._known.gone_through[journal] = content._replace(heads=undecided)

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


def _known(header: Header, database: str) -> _Known:
    return (header.owner, database, header.database_guid, header.transaction)
