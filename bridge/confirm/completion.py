"""Adds what committed journals still lack before they get their numbers: definitions that records
could not show, and what DDL made of tables.

Both are asked of the engine, which has to be left alone at times (structures), and may not answer
for long: a journal waits for it, and nothing of its database passes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import Protocol
from uuid import UUID

import logbook

from firebird_cdc.bridge.confirm.pending import Pending
from firebird_cdc.bridge.confirm.transaction_states import TransactionStates
from firebird_cdc.bridge.host import OwnAttachment
from firebird_cdc.bridge.structures import (
    Job,
    JournalStatements,
    KeyIndexFile,
    StructureReader,
    Structures,
)
from firebird_cdc.clock import now_us
from firebird_cdc.errors import CaptureError, JournalError
from firebird_cdc.journal.folder.inventory import DatabaseReplaced, InventoryUnreadable
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format import (
    Seal,
    TableChange,
    append_catalogue,
    own_reader,
)
from firebird_cdc.journal.format.ddl_text import parse, text_of
from firebird_cdc.journal.format.layout import FILE_BLOCK, pwrite

_log = logbook.Logger("firebird_cdc.bridge.confirm.completion")

_STRUCTURES_MOMENT_S = 0.1  # to read what DDL made of tables takes some milliseconds
_QUIET_S = 0.3  # after a commit of this process; DDL waits longer (native/transaction.c)
_STRUCTURES_PATIENCE_S = 30.0  # after the commit, while nobody can be asked
_MOST_DEFINITIONS = 4096


class Server(Protocol):
    """The plugin of this process, as far as it is needed; ``Host`` tells more."""

    def store_definition(
        self, database: int, generation: int, shown: bytes, complete: bytes
    ) -> None: ...


class Completion:
    """Completes committed journals. Belongs to one thread."""

    def __init__(
        self,
        open_attachment: Callable[[str], OwnAttachment],
        server: Server | None,
        folder: JournalFolder,
        fsync: bool,
        states: TransactionStates,
        tell_trouble: Callable[[str, Sequence[Pending], Exception], None],
    ) -> None:
        """``open_attachment``: opens an attachment of ours to a database; raises CaptureError.
        ``server``: None where no transaction writes. ``tell_trouble``: hears which
        journals of a database wait, as it can't be asked."""
        self._server = server
        self._states = states
        self._tell_trouble = tell_trouble
        self._numbers: dict[str, list[int]] = {}  # of databases in the plugin, by path
        # completed table definitions by database and shown form, with their generation
        self._definitions: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        self._structures = StructureReader(open_attachment)
        self._jobs: dict[str, Job] = {}  # what is asked about DDL that is committed, by database
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._fsync = fsync

    def meet(self, database: str, number: int) -> None:
        """Remember that the plugin knows DATABASE by NUMBER."""
        numbers = self._numbers.setdefault(database, [])
        if number not in numbers:
            numbers.append(number)

    def complete(self, database: str, committed: list[Pending], is_left: bool) -> list[Pending]:
        """Complete journals, and return those up to the first one that has to wait. Raises OSError.

        ``is_left``: the last session of this process is gone, so that no DROP DATABASE is near.
        """
        committed = self._with_definitions(database, committed)
        return self._with_structures(database, committed, is_left)

    def _with_definitions(self, database: str, committed: list[Pending]) -> list[Pending]:
        """Complete what the records could not show of their tables, where the plugin did not
        learn it in time. Return the journals up to the first for which nobody can be asked."""
        for index, pending in enumerate(committed):
            if not pending.has_own_journal:
                continue  # complete, or it would have one
            if not pending.definitions.is_unresolved:
                if pending.header and pending.definitions.catalogue_offset:
                    self._keep_found(pending)
                continue
            try:
                self._complete_definitions(database, pending)
            except JournalError as error:
                self._tell_damage(pending, error)
                pending.definitions.is_unresolved = False
            except CaptureError as error:
                if not self._is_gone(database, pending.guid):
                    self._tell_trouble(database, committed[index:], error)
                    return committed[:index]
                self._states.close_attachment(database)
                self._tell_keyless(pending, f"{database} was dropped or replaced before their keys")
                pending.definitions.is_unresolved = False
        return committed

    def _tell_keyless(self, pending: Pending, what: str) -> None:
        _log.warning(
            "journal {journal}: {what} were read; events of the tables have no key",
            journal=pending.uuid,
            what=what,
            database=pending.database,
        )

    def _tell_damage(self, pending: Pending, error: JournalError) -> None:
        """Tell of a journal that can't be read: it is published, and the shipper quarantines it."""
        _log.error(
            "journal {journal}: {cause}",
            journal=pending.uuid,
            cause=error,
            database=pending.database,
        )

    def _sync(self, pending: Pending, fd: int) -> None:
        """Wait until all of a journal is on disk. Raises OSError; then it is copied before it
        counts."""
        if not self._fsync:
            return
        try:
            os.fdatasync(fd)
        except OSError:
            pending.is_unsynced = True
            raise

    def _keep_found(self, pending: Pending) -> None:
        """Have the catalogue on disk that a leader before us left, by writing it again: where his
        sync failed, ours alone would pass over it. Raises OSError."""
        start = FILE_BLOCK + pending.definitions.catalogue_offset
        with self._folder.live(pending.uuid).open("r+b", buffering=0) as journal:
            fd = journal.fileno()
            pwrite(fd, os.pread(fd, FILE_BLOCK + pending.length - start, start), start)
            self._sync(pending, fd)

    def _append(
        self,
        pending: Pending,
        seal: Seal,
        at: int,
        bodies: Mapping[int, bytes],
        changes: Mapping[int, Sequence[TableChange]] | None = None,
    ) -> None:
        """Write a catalogue behind the seal of a journal, and wait until it is on disk. Raises
        ValueError if it is too large, OSError."""
        with self._folder.live(pending.uuid).open("r+b", buffering=0) as journal:
            fd = journal.fileno()
            end = append_catalogue(fd, pending.uuid, seal, at, bodies, changes)
            pending.definitions.catalogue_offset, pending.length = at, end
            self._sync(pending, fd)

    def _complete_definitions(self, database: str, pending: Pending) -> None:
        with own_reader(self._folder.live(pending.uuid), pending.uuid) as reader:
            unresolved, seal = reader.unresolved_tables(), reader.seal
            catalogue = reader.unstamped_catalogue()
            at = reader.late_catalogue_offset() if seal is not None else 0
        completed = {} if catalogue is None else dict(catalogue.bodies)
        unresolved = {n: shown for n, shown in unresolved.items() if n not in completed}
        if not unresolved or seal is None:
            return
        generation = self._folder.generation
        with self._reading(database, pending.guid, generation, unresolved.values()):
            for number, shown in unresolved.items():
                if complete := self._described(database, generation, shown):
                    completed[number] = complete
                else:
                    self._tell_keyless(pending, "tables that it changes were dropped before keys")
        if not completed:
            return
        self._append(pending, seal, at, completed)

    def _with_structures(
        self, database: str, committed: list[Pending], is_left: bool
    ) -> list[Pending]:
        """Add to journals what their DDL made of tables. Return those up to the first for which
        that is still being read, or nobody can be asked yet."""
        for pending in committed:
            self._read_statements(pending)
        wanted = [each for each in committed if not each.definitions.is_described]
        if not wanted:
            return committed
        try:
            job = self._jobs.get(database) or self._begin_job(database, wanted, is_left)
            for pending in wanted:
                pending.definitions.is_unread = True
            if job is None:
                for pending in wanted:
                    pending.is_stuck = True  # nobody is to wait for it to be quiet
            elif job.done.wait(_STRUCTURES_MOMENT_S):
                del self._jobs[database]
                self._add_structures(database, wanted, job.result())
            else:
                self._give_up(database, wanted, "the engine does not answer")
        except OSError:
            raise  # half of it may be where definitions were; the disk has to work for all else too
        except Exception as error:  # of any kind: the journals wait for it so long and no longer
            if not isinstance(error, CaptureError):
                _log.exception(
                    "adding the structure of tables after DDL in {database} failed",
                    database=database,
                )
            if not self._give_up(database, wanted, str(error)):
                self._tell_trouble(database, wanted, error)
        return list(takewhile(lambda each: each.definitions.is_described, committed))

    def _begin_job(self, database: str, wanted: list[Pending], is_left: bool) -> Job | None:
        """Have read what those journals' DDL made of tables. None where it is too early to
        attach: a DROP DATABASE of this process may be on its way (structures)."""
        quiet_since = time.monotonic() - _QUIET_S
        own = [each for each in wanted if each.serial]
        is_awaited = any(self._folder.awaited == each.ticket for each in wanted)
        is_quiet = all(each.met_at <= quiet_since for each in own)
        if not (is_awaited or is_quiet or is_left):
            return None
        if self._is_gone(database, wanted[0].guid):
            raise CaptureError("it was dropped or replaced")
        statements = (each.definitions.statements for each in wanted)
        journals = [each for each in statements if each is not None]
        before = self.key_indexes(database, wanted[0].guid).read()
        job = self._structures.start(Job(database, journals, before))
        self._jobs[database] = job
        return job

    def _read_statements(self, pending: Pending) -> None:
        """Find out whether a journal has DDL of tables, once."""
        if not pending.definitions.has_ddl:
            pending.definitions.is_described = True
        if pending.definitions.is_described or pending.definitions.statements is not None:
            return
        try:
            with own_reader(self._folder.live(pending.uuid), pending.uuid) as reader:
                parsed = {pos: parse(text_of(sql)) for pos, sql in reader.statements().items()}
                seal, catalogue = reader.seal, reader.unstamped_catalogue()
        except JournalError as error:
            self._tell_damage(pending, error)
            pending.definitions.is_described = True
            return
        statements = {pos: each for pos, each in parsed.items() if each is not None}
        pending.definitions.statements = JournalStatements(pending.uuid, statements)
        pending.definitions.is_described = not statements
        if seal is not None and catalogue is not None and catalogue.tells_of_ddl:
            # By a leader before us, which did not come to the ledger, perhaps not to a sync.
            pending.definitions.catalogue_offset = catalogue.start
            pending.length = catalogue.end
            pending.definitions.is_described = True
            self.key_indexes(pending.database, pending.guid).remove()
            self._keep_found(pending)

    def _add_structures(self, database: str, wanted: list[Pending], found: Structures) -> None:
        """Write what was found into the journals that it was asked for."""
        if self._is_gone(database, wanted[0].guid):
            raise CaptureError("it was dropped or replaced")
        for pending in wanted:
            if pending.uuid in found.changes:
                self._append_changes(pending, found.changes[pending.uuid])
                pending.definitions.is_described = True
        try:
            self.key_indexes(database, wanted[0].guid).write(found.indexes)
        except OSError as error:
            _log.warning(
                "cannot save which indexes of {database} are keys: {cause}",
                database=database,
                cause=error,
            )

    def _append_changes(
        self, pending: Pending, changes: dict[int, tuple[TableChange, ...]]
    ) -> None:
        with own_reader(self._folder.live(pending.uuid), pending.uuid) as reader:
            seal, catalogue = reader.seal, reader.unstamped_catalogue()
            at = reader.late_catalogue_offset() if seal is not None else 0
        if seal is None:
            return
        bodies = catalogue.bodies if catalogue is not None else {}
        try:
            self._append(pending, seal, at, bodies, changes)
        except ValueError as error:
            _log.warning("{}: it gets no structure of the tables that its DDL changed", error)

    def _give_up(self, database: str, wanted: list[Pending], why: str) -> bool:
        """Let those journals go whose tables could not be read for long, or never will be; tell
        whether these are all."""
        is_gone = self._is_gone(database, wanted[0].guid)
        latest_us = now_us() - int(_STRUCTURES_PATIENCE_S * 1_000_000)
        latest = time.monotonic() - _STRUCTURES_PATIENCE_S
        for pending in wanted:
            if is_gone or pending.commit_us < latest_us or pending.met_at < latest:
                _log.warning(
                    "journal {journal}: its schema change events have no structure of the tables, "
                    "which could not be read from {database}: {cause}",
                    journal=pending.uuid,
                    database=database,
                    cause=why.replace("\n", " "),
                )
                pending.definitions.is_described = True
                self._jobs.pop(database, None)
                self.key_indexes(database, pending.guid).remove()  # it may have changed them
        return all(each.definitions.is_described for each in wanted)

    def _is_gone(self, database: str, guid: UUID) -> bool:
        """Tell whether the file at the path is not the database any more that a journal is of."""
        try:
            inventory = self._states.inventory(database, guid)
            return inventory.is_being_dropped or inventory.is_gone
        except (DatabaseReplaced, FileNotFoundError):
            return True
        except (InventoryUnreadable, OSError):
            return False

    def key_indexes(self, database: str, guid: UUID) -> KeyIndexFile:
        """Return where it is kept which unique indexes of a database are keys."""
        return KeyIndexFile(self._folder.databases, database, guid)

    def _known(self, database: str, generation: int, shown: bytes) -> bytes | None:
        """Return the complete form of a definition if it was asked for in this generation."""
        known = self._definitions.get((database, shown))
        return known[1] if known is not None and known[0] == generation else None

    def _reading(
        self, database: str, guid: UUID, generation: int, definitions: Iterable[bytes]
    ) -> AbstractContextManager[None]:
        """Have the engine be asked for DEFINITIONS in one transaction, if for any. Raises
        CaptureError."""
        if all(self._known(database, generation, shown) is not None for shown in definitions):
            return nullcontext()
        if self._is_gone(database, guid):
            raise CaptureError("it was dropped or replaced")
        return self._states.attachment_to(database).reading()

    def _described(self, database: str, generation: int, shown: bytes) -> bytes:
        """Return the complete form of a definition, and let later transactions know it."""
        known = self._known(database, generation, shown)
        if known is not None:
            return known
        complete = self._states.attachment_to(database).describe(shown)
        if not complete:
            return complete
        self._definitions[database, shown] = (generation, complete)
        if len(self._definitions) > _MOST_DEFINITIONS:
            self._definitions.pop(next(iter(self._definitions)))
        for number in self._numbers.get(database, ()):
            if self._server is not None:
                self._server.store_definition(number, generation, shown, complete)
        return complete
