"""Journals that are written anew: gaps in the place of what could not be recorded, and copies of
what could not be synced. Each is whole on disk before it takes its place."""

from __future__ import annotations

import os
from uuid import UUID, uuid4

import logbook

from firebird_cdc.bridge.confirm.pending import LIMBO_TICKET, Definitions, Pending
from firebird_cdc.errors import JournalCorrupt, JournalError
from firebird_cdc.journal.folder.counters import ConfirmerCounts
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.shortage import is_shortage
from firebird_cdc.journal.format import CommitMark, JournalReader, JournalWriter, write_commit_mark

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
        """Put a gap in the place of a journal that was not recorded to its end, or is gone, though
        the engine committed its transaction. One that is damaged is kept in the quarantine."""
        damage = self._damage(pending.uuid)
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

    def _damage(self, uuid: UUID) -> Exception | None:
        """Return what is damaged in an unconfirmed journal; None: nothing, or it just ends too
        early. Raises OSError of what this process lacks."""
        try:
            with JournalReader(self._folder.live(uuid)) as reader:
                for _ in reader.changes():
                    self._folder.tell_progress()  # it may be large
        except JournalCorrupt as error:
            return error
        except (FileNotFoundError, JournalError):
            return None
        except OSError as error:  # what the disk does not give back holds up nothing
            if is_shortage(error):
                raise
            return error
        return None

    def copy_anew(self, pending: Pending) -> None:
        """Put a copy in the place of a journal of which a sync failed: after that the system may
        take bytes for written that are not. One that can't be read back becomes a gap."""
        try:
            self._folder.copy_anew(pending.uuid, pending.length)
        except JournalError as error:
            why = f"a sync of its journal failed, and it can't be read back as a whole: {error}"
            self.replace_by_gap(pending, why)
            return
        pending.close()
        pending.is_unsynced = False
        _log.warning(
            "journal {journal} could not be synced at first and was copied",
            journal=pending.uuid,
            database=pending.database,
        )

    def mark_limbo(self, pending: Pending) -> None:
        """Mark a journal that its process let go of: its transaction may still be committed."""
        fd = os.open(self._folder.live(pending.uuid), os.O_RDWR | os.O_CLOEXEC)
        try:
            mark = CommitMark(LIMBO_TICKET, pending.commit_us, pending.transaction)
            write_commit_mark(fd, pending.uuid, mark)
            if self._fsync:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def _write_gap(self, pending: Pending, reason: str) -> None:
        """Make PENDING's journal one gap, whole on disk before it takes its place."""
        temporary = self._folder.state / f"gap-{pending.uuid}"
        temporary.unlink(missing_ok=True)
        header = pending.header
        with JournalWriter(
            temporary,
            uuid=pending.uuid,
            transaction=pending.transaction,
            database=pending.database,
            user="",
            database_guid=header.database_guid if header else pending.guid,
            owner=header.owner if header else self._folder.owner,
            database_inode=header.database_inode if header else 0,
        ) as writer:
            writer.gap(reason)
            writer.seal(floor=pending.floor)
            pending.length = writer.journal_length or 0
        temporary.rename(self._folder.live(pending.uuid))
        if self._fsync:
            os.fsync(self._folder.journal_fd)  # where the journal was removed there is no other
        pending.close()
        pending.home, pending.offset, pending.seal_end = None, 0, 0
        pending.events, pending.is_sealed, pending.is_unsynced = 1, True, False
        pending.definitions = Definitions(
            pending.definitions.has_ddl, is_unresolved=False, is_described=True
        )

    def new_gap(
        self, database: str, guid: UUID, reason: str, commit_us: int, number: int
    ) -> Pending:
        """Return a gap of no transaction, of which event NUMBER told, committed now."""
        uuid = uuid4()
        temporary = self._folder.state / f"gap-{uuid}"
        try:
            with JournalWriter(
                temporary,
                uuid=uuid,
                database=database,
                database_guid=guid,
                owner=self._folder.owner,
            ) as writer:
                writer.gap(reason)
                writer.seal(floor=self._folder.last_ticket)
                length = writer.journal_length or 0
                with self._folder.locked_tickets():
                    ticket = self._folder.last_ticket + 1
                    writer.commit(ticket, commit_us)
                    temporary.rename(self._folder.live(uuid))
                    self._folder.page.fields.ticket = ticket
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if self._fsync:
            try:
                os.fsync(self._folder.journal_fd)  # the counters are cleared next
            except BaseException:
                self._folder.live(uuid).unlink(missing_ok=True)  # they are marked once more
                raise
        return Pending(
            uuid,
            database,
            0,
            ticket,
            commit_us,
            length,
            1,
            number=number,
            guid=guid,
            definitions=Definitions(has_ddl=False, is_unresolved=False),
            floor=ticket - 1,
        )
