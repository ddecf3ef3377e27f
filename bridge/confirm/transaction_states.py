"""States of transactions: the database files, and the engine where they can't tell.

A database's file is opened once and kept open while something waits in it, or somebody works there,
so that it can be read after a DROP DATABASE too. Of the others only few are open, and not for long.
An attachment to ask the engine is open only while there is something to
ask: it stands in the way of DROP DATABASE and of a shutdown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from uuid import UUID

from firebird_cdc.bridge.confirm.decisions import Action, Writer, decide
from firebird_cdc.bridge.confirm.descriptors import IDLE_S, most_open
from firebird_cdc.bridge.confirm.orphans import Orphans
from firebird_cdc.bridge.confirm.pending import Pending
from firebird_cdc.bridge.host import OwnAttachment
from firebird_cdc.journal.folder.failed_syncs import Doubt
from firebird_cdc.journal.folder.inventory import (
    DatabaseReplaced,
    InventoryUnreadable,
    TransactionInventory,
    TransactionState,
)
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger_lock import database_key


class TransactionStates:
    """Decides on pending journals by what became of their transactions. Belongs to one thread."""

    def __init__(
        self, folder: JournalFolder, fsync: bool, open_attachment: Callable[[str], OwnAttachment]
    ) -> None:
        """``open_attachment``: opens an attachment of ours to a database; raises CaptureError."""
        self._open_attachment = open_attachment
        self._inventories: dict[tuple[str, UUID], TransactionInventory] = {}  # last used last
        self._used_at: dict[tuple[str, UUID], float] = {}  # each of them, monotonic
        self._entered: set[tuple[str, UUID]] = set()  # databases in which sessions of ours work
        self._attachments: dict[str, OwnAttachment] = {}
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._fsync = fsync
        self._orphans = Orphans(folder, self._open_attachment)

    def is_counting_looks(self) -> bool:
        """Tell whether looking again soon may decide a journal that is kept."""
        return self._orphans.is_counting()

    def decide(self, database: str, journals: list[Pending]) -> list[Action]:
        """Return what becomes of each, by the database file, or by the engine if that can't
        tell. Raises CaptureError, OSError."""
        found: dict[UUID, Action] = {}
        for guid in {pending.guid for pending in journals if pending.transaction}:
            group = [each for each in journals if each.transaction and each.guid == guid]
            states, inode = self._ask_incarnation(database, guid, group)
            if TransactionState.LIMBO in states and TransactionState.COMMITTED in states:
                # One that waited for another's limbo to end may have been committed meanwhile.
                for index, again in enumerate(self._ask_incarnation(database, guid, group)[0]):
                    if states[index] is TransactionState.LIMBO:
                        states[index] = again
            for pending, state in zip(group, states, strict=True):
                found[pending.uuid] = self._decide(pending, state, inode)
        # A gap of ours is of no transaction, and perhaps of a database that can't be opened.
        return [found.get(pending.uuid, Action.PUBLISH) for pending in journals]

    def _ask_incarnation(
        self, database: str, guid: UUID, journals: list[Pending]
    ) -> tuple[list[TransactionState], int | None]:
        """Return what is said of each, and the inode of the file that says it; None: the engine
        alone does."""
        transactions = [pending.transaction for pending in journals]
        try:
            inventory = self.inventory(database, guid)
            states = inventory.states(transactions, self._fsync)
        except DatabaseReplaced:
            return [TransactionState.UNKNOWN] * len(journals), None
        except InventoryUnreadable:
            return self.attachment_to(database).ask(transactions), None
        inode = inventory.inode
        for index, pending in enumerate(journals):
            if pending.header is not None and pending.header.database_inode not in (0, inode):
                states[index] = TransactionState.UNKNOWN
        return states, inode

    def _decide(self, pending: Pending, state: TransactionState, inode: int | None) -> Action:
        """Decide on one, looking at processes and locks where the table asks for it."""
        action = self._by_table(pending, state, inode, pending.writer(state))
        if action is Action.CHECK_WRITER:
            action = self._by_table(pending, state, inode, self._checked_writer(pending))
        if action is Action.LOOK_FOR_OTHERS:
            return self._orphans.look(pending, inode)
        if pending.is_orphan and action in (Action.PUBLISH, Action.MARK_GAP, Action.REMOVE):
            self._orphans.decided(pending, action)
        return action

    def _by_table(
        self, pending: Pending, state: TransactionState, inode: int | None, writer: Writer
    ) -> Action:
        return decide(state, writer, is_sealed=pending.is_sealed, is_on_disk=inode is not None)

    def _checked_writer(self, pending: Pending) -> Writer:
        """Look whether the process of PENDING, which lived when that was found, still does.

        If so, the page with a commit that an engine told of is written: to end its own transaction
        that engine had to wait for it (own_attachment.c)."""
        if pending.process is not None:
            owner = pending.process.header.owner
            pending.process.is_orphan = self._folder.owners.is_gone(owner)
        return Writer.ENDED if pending.is_orphan else Writer.ALIVE

    def inventory(self, database: str, guid: UUID) -> TransactionInventory:
        """Return the inventory of the database with GUID at a path, opened once. Raises
        InventoryUnreadable, OSError."""
        inventory = self._inventories.pop((database, guid), None)
        if inventory is None:
            doubt = Doubt.of(self._folder.databases, database_key(database))
            inventory = TransactionInventory(Path(database), guid, doubt)
        self._inventories[database, guid] = inventory
        self._used_at[database, guid] = time.monotonic()
        return inventory

    def enter(self, database: str, guid: UUID) -> None:
        """Keep the file of a database open from now on: it may be dropped as soon as something was
        committed there. Raises InventoryUnreadable, OSError; then it is opened with the first
        question."""
        self._entered.add((database, guid))
        self.inventory(database, guid)

    def leave(self, database: str, guid: UUID) -> None:
        """Keep the file of a database open no longer than others: nobody works there any more."""
        self._entered.discard((database, guid))

    def attachment_to(self, database: str) -> OwnAttachment:
        """Return our attachment to a database, opened once. Raises CaptureError."""
        attachment = self._attachments.get(database)
        if attachment is None:
            attachment = self._attachments[database] = self._open_attachment(database)
        return attachment

    def close_attachment(self, database: str) -> None:
        """Close the attachment to a database, if there is one."""
        if attachment := self._attachments.pop(database, None):
            attachment.close()

    def close_attachments(self) -> None:
        """Close all attachments."""
        while self._attachments:
            self._attachments.popitem()[1].close()

    def close_inventories(
        self, waiting: Collection[tuple[str, UUID]], only_replaced: bool = False
    ) -> None:
        """Close the files of databases, path and GUID, in which nothing is WAITING: all, or those
        of databases that were dropped or replaced."""
        for key, inventory in list(self._inventories.items()):
            if key not in waiting and not (only_replaced and inventory.is_in_place):
                self._close_inventory(key)

    def close_idle(self, waiting: Callable[[], Collection[tuple[str, UUID]]]) -> None:
        """Close the files of databases, path and GUID, in which nothing is WAITING and nobody
        works: those of which nobody asked lately, and the longest unused of too many."""
        idle = [key for key in self._inventories if key not in self._entered]
        until = time.monotonic() - IDLE_S
        surplus = len(idle) - most_open()
        if surplus <= 0 and all(self._used_at[key] > until for key in idle[:1]):
            return
        busy = waiting()
        for number, key in enumerate(idle):
            if key not in busy and (number < surplus or self._used_at[key] <= until):
                self._close_inventory(key)

    def _close_inventory(self, key: tuple[str, UUID]) -> None:
        del self._used_at[key]
        self._inventories.pop(key).close()
