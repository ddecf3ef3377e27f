"""Journals of version 1 of the format, which a server of firebird-cdc 0.1 left undecided.

They become journals of ours, of one transaction each, with all that they say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.history import History
from firebird_cdc.errors import JournalCorrupt, JournalError
from firebird_cdc.journal.folder.durable import boot_uuid
from firebird_cdc.journal.folder.journal_folder import (
    JournalFolder,
    check_name,
    nearest_ticket,
)
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.format import (
    JournalReader,
    JournalWriter,
    OwnJournalWriter,
    Stamp,
)
from firebird_cdc.journal.format.layout import FILE_BLOCK, TRANSACTION_MAGIC
from firebird_cdc.journal.format.shared import FileHeader, is_shared

_log = logbook.Logger("firebird_cdc.bridge.confirm.former_version")

_START = 16  # bytes that tell of which version a journal is


class FormerVersion:
    """The journals of version 1 in one folder. Belongs to one thread, and its calls to whoever
    leads."""

    def __init__(self, folder: JournalFolder, fsync: bool) -> None:
        self._folder = folder
        self._fsync = fsync
        self._known: dict[str, Mapping[UUID, Stamp]] = {}  # by path of the database

    @staticmethod
    def has_written(path: Path) -> bool:
        """Tell whether there is a journal at PATH, and it is not of ours."""
        with suppress(OSError), path.open("rb") as file:
            first = file.read(FILE_BLOCK + len(TRANSACTION_MAGIC))
            is_ours = is_shared(first) or first[FILE_BLOCK:] == TRANSACTION_MAGIC
            return any(first[:_START]) and not is_ours
        return False

    def take_over(self, path: Path, last: int, ledger: Callable[[str], SequenceLedger]) -> None:
        """Put a journal of ours, whole on disk, in the place of one of a process that has ended.
        One that has a number gets its stamp and its name. LAST: a ticket near those that it names;
        LEDGER: returns that of a database. Raises JournalError if it can't be read, OSError; then
        it stays."""
        with JournalReader(path) as reader:
            check_name(reader, UUID(path.name[:36]))
            if not self._folder.owners.is_gone(reader.header.owner):
                return
            database = reader.database
            number = self._numbers(database, ledger(database)).get(reader.header.uuid)
            if number is not None:
                self._finish(reader, path, number)
            else:
                self._rewrite(reader, path, last)

    def _numbers(self, database: str, ledger: SequenceLedger) -> Mapping[UUID, Stamp]:
        """Return what a ledger has of journals of the former version: nothing is added to that."""
        known = self._known.get(database)
        if known is None:
            with ledger.exclusive():
                given = {each.uuid: each.stamp for each in ledger.entries() if each.home is None}
            known = self._known[database] = given
        return known

    def _finish(self, reader: JournalReader, path: Path, stamp: Stamp) -> None:
        """Finish what a leader was cut off from: it had given the number."""
        uuid, seal = reader.header.uuid, reader.seal
        if seal is None:  # never synced, and a power cut took it
            stamp = self._put_gap(reader, path, stamp)
        elif (seal.end, seal.event_count) != (stamp.seal_end, stamp.event_count):
            # A gap that was put there before, up to a crash.
            stamp = stamp._replace(
                journal_length=seal.end, event_count=seal.event_count, catalogue_offset=0
            )
        History.write_stamp(path, uuid, stamp)
        path.rename(self._folder.committed(uuid))

    def _put_gap(self, reader: JournalReader, path: Path, stamp: Stamp) -> Stamp:
        header = reader.header
        reason = (
            f"transaction {header.transaction} was committed, but a power cut or a kill took its "
            "changes"
        )
        _log.error("{database}: a gap: {reason}", database=reader.database, reason=reason)
        temporary = self._temporary(header.uuid)
        with JournalWriter(
            temporary,
            uuid=header.uuid,
            transaction=header.transaction,
            database=reader.database,
            database_guid=header.database_guid,
            owner=header.owner,
            database_inode=header.database_inode,
        ) as writer:
            writer.gap(reason)
            writer.seal()
            writer.commit(reader.commit_mark.ticket if reader.commit_mark else 0, stamp.commit_us)
            length = writer.journal_length or 0
        temporary.rename(path)
        return stamp._replace(journal_length=length, event_count=1, catalogue_offset=0)

    def _temporary(self, uuid: UUID) -> Path:
        temporary = self._folder.state / f"former-{uuid}"
        temporary.unlink(missing_ok=True)
        return temporary

    def _rewrite(self, reader: JournalReader, path: Path, last: int) -> None:
        header, mark, seal = reader.header, reader.commit_mark, reader.seal
        temporary = self._temporary(header.uuid)
        ours = FileHeader.of_own(header, boot_uuid(), reader.database)
        floor = None
        if mark is not None and mark.ticket:
            floor = mark.ticket - 1  # which has the same place in the order
        elif seal is not None and seal.floor is not None:
            floor = nearest_ticket(seal.floor, last)
        sealed_us = mark.commit_us if mark is not None else 0 if seal is None else seal.sealed_us
        try:
            with OwnJournalWriter(temporary, ours, user=None) as writer:
                self._copy(reader, writer)
                writer.end_copy(seal, reader.unstamped_catalogue(), sealed_us, floor)
                writer.sync()
        except JournalError as error:
            if isinstance(error, JournalCorrupt):
                self._folder.keep_damaged(header.uuid, error)
            # What is left is not whole: it goes, or becomes a gap.
            with OwnJournalWriter(self._temporary(header.uuid), ours, user=reader.user) as writer:
                writer.flush()
                writer.sync()
        temporary.rename(path)
        if self._fsync:
            os.fsync(self._folder.journal_fd)
        _log.info("{}: written by version 0.1, it is taken over", path.name)

    def _copy(self, reader: JournalReader, writer: OwnJournalWriter) -> None:
        for first_event, flags, records, payload in reader.blocks():
            self._folder.tell_progress()  # it may be large
            writer.copy(first_event, flags, records, payload)
