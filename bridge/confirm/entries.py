"""Transactions that other processes have committed, as the entries of their tickets name them."""

from __future__ import annotations

import contextlib
from uuid import UUID

from firebird_cdc.bridge.confirm.closing import Closing
from firebird_cdc.bridge.confirm.live_content import complete, unnumbered
from firebird_cdc.bridge.confirm.pending import FoundProcess, Pending, PendingJournals, found
from firebird_cdc.bridge.confirm.troubles import UnreadableFiles
from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.commit_entries import CommitEntry, read_entries
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.shortage import kept
from firebird_cdc.journal.format import own_reader, read_file_header
from firebird_cdc.journal.format.shared import FileHeader


class Entries:
    """Takes up what has an entry in one folder. Belongs to one thread, and to whoever leads."""

    def __init__(
        self,
        folder: JournalFolder,
        pending: PendingJournals,
        closing: Closing,
        unreadable: UnreadableFiles,
    ) -> None:
        self._pending = pending
        self._closing = closing
        self._known = closing.known
        self._unreadable = unreadable
        self.use(folder)

    def use(self, folder: JournalFolder) -> None:
        """Go on with the entries of another folder."""
        self._folder = folder

    def take(self, first: int, last: int) -> set[int]:
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
            self._known.tell_unread(entry.journal, error)
            return
        if header is not None:  # else it is closed: all in it is decided
            pending = self._committed(entry, header)
            self._closing.watch(entry.journal)
            self._pending.add(pending)

    def _header(self, journal: UUID) -> FileHeader | None:
        """Return the header of a live journal; None: there is none. Raises OSError."""
        if not self._folder.has_live(journal):
            self._known.headers.pop(journal, None)
            return None
        known = self._known.headers.get(journal)
        if known is None:
            known = self._known.headers[journal] = read_file_header(self._folder.live(journal))
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
            definitions=complete(entry.catalogue_offset),
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
                if is_plain and reader.has_seal_at(unnumbered(pending)):
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
