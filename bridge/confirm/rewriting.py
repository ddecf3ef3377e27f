"""Journals that are written anew: gaps in the place of what could not be recorded, and copies of
what could not be synced. Each is whole on disk before it takes its place."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import logbook

from firebird_cdc.bridge.confirm.pending import Definitions, Pending
from firebird_cdc.clock import now_us
from firebird_cdc.errors import JournalCorrupt, JournalError, JournalTorn
from firebird_cdc.journal.folder.commit_entries import CommitEntry, write_entry
from firebird_cdc.journal.folder.counters import ConfirmerCounts
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.shortage import is_shortage
from firebird_cdc.journal.format import OwnJournalWriter, own_reader
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import FileHeader

_log = logbook.Logger("firebird_cdc.bridge.confirm.rewriting")


class Rewriting:
    """Writes journals of one folder anew. Belongs to one thread. Its calls raise OSError, and
    leave all as it was then."""

    def __init__(self, folder: JournalFolder, fsync: bool) -> None:
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._counts = ConfirmerCounts(folder.state)
        self._fsync = fsync

    def replace_by_gap(self, pending: Pending, why: str = "") -> None:
        """Put a gap, in a journal of its own, in the place of a transaction that was not recorded
        to its end, or is gone, though the engine committed it. Its own journal, if that is damaged,
        is kept in the quarantine."""
        damage = self._damage(pending)
        if damage is not None:
            kept = self._folder.keep_damaged(pending.uuid, damage)
            why = why or f"its journal is damaged ({damage})"
            why += f"; what is left of that is kept in the quarantine as {kept}"
        reason = (
            f"transaction {pending.transaction} was committed, but {why}"
            if why
            else f"transaction {pending.transaction} was committed, from limbo or after a power "
            "cut or a kill, but its changes were not on disk"
        )
        _log.error(
            "{database}: a gap: {reason}",
            database=pending.database,
            reason=reason,
            journal=pending.uuid,
            transaction=pending.transaction,
        )
        self._write_gap(pending, reason)
        self._counts.add_replaced(pending.database)

    def _damage(self, pending: Pending) -> Exception | None:
        """Return what is damaged in an unconfirmed journal; None: nothing, or it just ends too
        early, and nobody knows that it was ever whole. Raises OSError of what this process
        lacks."""
        if not pending.has_own_journal:
            return None
        try:
            with own_reader(self._folder.live(pending.uuid), pending.uuid) as reader:
                for _ in reader.changes():
                    self._folder.tell_progress()  # it may be large
        except JournalCorrupt as error:
            return error
        except JournalTorn as error:
            return error if pending.has_ticket else None
        except (FileNotFoundError, JournalError):
            return None
        except OSError as error:  # what the disk does not give back holds up nothing
            if is_shortage(error):
                raise
            return error
        return None

    def copy_anew(self, pending: Pending) -> None:
        """Put a copy in the place of a journal of its own of which a sync failed: after that the
        system may take bytes for written that are not. One that can't be read back becomes a
        gap."""
        try:
            self._folder.copy_anew(pending.uuid, pending.length)
        except JournalError as error:
            why = f"a sync of its journal failed, and it can't be read back as a whole: {error}"
            self.replace_by_gap(pending, why)
            return
        pending.is_unsynced = False
        _log.warning(
            "journal {journal} could not be synced at first and was copied",
            journal=pending.uuid,
            database=pending.database,
        )

    def _write_gap(self, pending: Pending, reason: str) -> None:
        """Make a journal of PENDING's own one gap, whole on disk before it takes its place."""
        header = pending.header
        writer = self._written(
            pending.uuid,
            FileHeader(
                pending.uuid,
                header.owner if header else self._folder.owner,
                pending.guid,
                header.database_inode if header else 0,
                boot_uuid(),
                now_us(),
                pending.transaction,
                True,
                pending.database,
            ),
            reason,
            pending.floor,
        )
        self._path(pending.uuid).rename(self._folder.live(pending.uuid))
        if self._fsync:
            os.fsync(self._folder.journal_fd)  # where the journal was removed there is no other
        pending.journal, pending.offset = pending.uuid, FILE_BLOCK
        pending.length, pending.seal_end = writer.length, writer.seal_end
        pending.events, pending.is_sealed, pending.is_unsynced = 1, True, False
        pending.definitions = Definitions(
            pending.definitions.has_ddl, is_unresolved=False, is_described=True
        )

    def _path(self, uuid: UUID) -> Path:
        return self._folder.state / f"gap-{uuid}"

    def _written(
        self, uuid: UUID, header: FileHeader, reason: str, floor: int | None
    ) -> OwnJournalWriter:
        """Write a gap, whole on disk, at ``_path``."""
        path = self._path(uuid)
        path.unlink(missing_ok=True)
        with closing(OwnJournalWriter(path, header)) as writer:
            writer.gap(reason)
            writer.seal(floor=floor)
            writer.sync()
        return writer

    def new_gap(
        self, database: str, guid: UUID, reason: str, commit_us: int, serial: int
    ) -> Pending:
        """Return a gap of no transaction, of which event SERIAL told, committed now."""
        uuid, floor = uuid4(), self._folder.last_ticket
        header = FileHeader(
            uuid, self._folder.owner, guid, 0, boot_uuid(), now_us(), 0, True, database
        )
        try:
            writer = self._written(uuid, header, reason, floor)
            with self._folder.locked_tickets():
                ticket = self._folder.last_ticket + 1
                entry = CommitEntry(
                    ticket, uuid, uuid, FILE_BLOCK, writer.length, writer.seal_end, 0, 1, 0,
                    commit_us,
                )  # fmt: skip
                write_entry(self._folder.commits_fd, entry)
                self._path(uuid).rename(self._folder.live(uuid))
                self._folder.page.fields.ticket = ticket
        except BaseException:
            self._path(uuid).unlink(missing_ok=True)
            raise
        if self._fsync:
            try:
                os.fsync(self._folder.journal_fd)  # the counters are cleared next
            except BaseException:
                self._folder.live(uuid).unlink(missing_ok=True)  # they are marked once more
                raise
        return Pending(
            uuid,
            uuid,
            FILE_BLOCK,
            database,
            0,
            ticket,
            commit_us,
            writer.length,
            writer.seal_end,
            1,
            serial=serial,
            guid=guid,
            definitions=Definitions(has_ddl=False, is_unresolved=False),
            floor=ticket - 1,
        )
