"""The end of live journals: each is closed once all in it is in the ledger, void or dead.

Number and place of a transaction go into the ledger, and nothing is written to its journal before
this: its index, then its name. docs/architecture.md has the rules (S1 to S11).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.descriptors import most_open
from firebird_cdc.bridge.confirm.indexing import Indexing, end_of, index_of
from firebird_cdc.bridge.confirm.known_journals import KnownJournals
from firebird_cdc.bridge.confirm.live_content import (
    Content,
    found_at,
    place_of,
    read_content,
    unnumbered,
)
from firebird_cdc.bridge.confirm.pending import Pending, PendingJournals
from firebird_cdc.bridge.host import JournalLeft
from firebird_cdc.errors import JournalCorrupt, JournalError
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.locks import is_held
from firebird_cdc.journal.format import Place, own_journal, read_file_header
from firebird_cdc.journal.format.journal_index import Entry
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import aligned

_log = logbook.Logger("firebird_cdc.bridge.confirm.closing")

_LOOK_S = 1.0  # how often to look whether journals were left by their processes
_AGAIN_S = 15.0  # the same for one that could not be closed
_MOST_AT_ONCE = 256  # that are closed before others have their turn

Ledgers = Callable[[str], SequenceLedger]
"""Returns the ledger of a database. Raises OSError."""


class Closing:
    """Closes the live journals of one folder. Belongs to one thread; all but ``watch`` and
    ``is_any_left`` to whoever leads."""

    def __init__(self, folder: JournalFolder, fsync: bool, pending: PendingJournals) -> None:
        self._pending = pending
        self.known = KnownJournals()
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._fsync = fsync
        self._watched: dict[UUID, float] = {}  # not closed: when to try, monotonic
        self._ends: dict[UUID, tuple[int, int]] = {}  # of those left: bytes, how many are committed
        self._numbered: dict[UUID, Entry] = {}  # of journals of one transaction
        self._look_at = 0.0  # when to look for journals that were left, monotonic
        self._indexing = Indexing(folder, fsync)
        self.known.clear()

    def watch(self, journal: UUID) -> None:
        """Close JOURNAL once it is time."""
        self._watched.setdefault(journal, 0.0)

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
        self.known.undone[pending.journal].add(pending.offset)
        self.look_soon()

    def set_aside(self, pending: Pending, reason: str) -> None:
        """Bring the transaction of PENDING into the quarantine, in a journal of its own. Raises
        OSError."""
        place = unnumbered(pending)
        entries = [Entry.of(place)]
        if pending.has_own_journal:
            if pending.is_sealed:
                fd = self._indexing.write_index(pending.journal, end_of(entries), entries)
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
        for known in (self._watched, self._ends, self._numbered):
            known.pop(journal, None)
        self.known.forget(journal)

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
        for journal in self._indexing.name_ended(self._try_again):
            self._forget(journal)

    def _try_again(self, journal: UUID, error: Exception) -> None:
        _log.error(
            "{journal}.log.live can't be closed, and is tried again: {cause}",
            journal=journal,
            cause=error,
        )
        self._watched[journal] = time.monotonic() + _AGAIN_S

    def _close(self, journal: UUID, ledger: Ledgers) -> bool:
        """Close a journal; return whether that can be done."""
        path = self._folder.live(journal)
        if (entry := self._numbered.get(journal)) is not None:
            self._finish(journal, end_of([entry]), [entry])
            return True
        header = read_file_header(path)
        if journal in self._ends:
            end, committed = self._ends.pop(journal)
            entries = given_in(journal, ledger(header.database))
            if len(entries) + len(self.known.undone[journal]) == committed:
                self._finish(journal, end, entries)
                return True
        index = index_of(path, journal)
        if index is not None:  # by one that died before the journal had its name
            self._indexing.end(journal, *index)
            return True
        content = read_content(path, header)
        entries = given_in(journal, ledger(header.database))
        given = {entry.offset for entry in entries}
        voids = content.voids if header.is_own else self._voids_for(content)
        for head in content.heads:
            is_void = place_of(head) in voids
            is_decided = head.offset in given or head.offset in self.known.undone[journal]
            if is_void or is_decided:
                continue
            if found_at(path, header.database, head) is not None:
                if head.header.uuid in ledger(header.database).numbered_before():
                    self.known.doubt(journal)
                return False  # a scan takes it up
        if content.damaged >= 0:
            raise JournalCorrupt(path, content.damaged, "it is damaged where it was synced")
        for other, _ in content.voids:
            if other != journal.bytes and self._folder.has_live(UUID(bytes=other)):
                return False  # which needs these voids
        self._finish(journal, max(content.end, end_of(entries)), entries)
        return True

    def _finish(self, journal: UUID, end: int, entries: list[Entry]) -> None:
        """Close a journal whose content ends at byte END, or remove it if nothing of that was
        committed."""
        if entries:
            self._indexing.end(journal, aligned(end, FILE_BLOCK), entries)
        else:
            self._folder.live(journal).unlink(missing_ok=True)

    def _voids_for(self, content: Content) -> set[tuple[bytes, int]]:
        """Return the voids for places in a journal, also those that lie in others of its database:
        its process may have another name there, if its bridge was started anew."""
        journal, header, found = content.header.uuid, content.header, set(content.voids)
        for path in self._folder.path.glob("*.log.live"):
            with contextlib.suppress(JournalError, FileNotFoundError):
                if path.name.startswith(str(journal)):
                    continue
                other = read_file_header(path)
                if not other.is_own and other.database_guid == header.database_guid:
                    voids = read_content(path, other).voids
                    found |= {each for each in voids if each[0] == journal.bytes}
        return found


def given_in(journal: UUID, ledger: SequenceLedger) -> list[Entry]:
    """Return the entries of the index of JOURNAL. Raises OSError."""
    with ledger.exclusive():
        return ledger.entries_in(journal)
