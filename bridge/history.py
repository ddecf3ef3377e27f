"""The numbers of each database's journals: its ledger, its epoch, and the stamps that bear them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import logbook

from firebird_cdc.bridge.folder import JournalFolder
from firebird_cdc.bridge.host import Verdict
from firebird_cdc.bridge.inventory import TransactionInventory
from firebird_cdc.bridge.sequence import SequenceLedger, database_key
from firebird_cdc.bridge.troubles import kept
from firebird_cdc.bridge.verdicts import Verdicts
from firebird_cdc.errors import CaptureError, JournalError
from firebird_cdc.journal.format import JournalReader, Stamp, read_envelope, write_stamp

_log = logbook.Logger("firebird_cdc.bridge.history")

_COMPARE_S = 1.0  # after so long without a commit, a database may have been replaced
_MOST_LOOKED_AT = 1000  # journals, to tell whether one is of a database; takes some 20 ms
_RESTORE_AGAIN_S = 15.0  # when stamps could not be written again


class History:
    """The numbers that were given in one journal folder. Belongs to one thread."""

    def __init__(
        self,
        folder: JournalFolder,
        fsync: bool,
        verdicts: Verdicts,
        sync_file_system: Callable[[int], None],
    ) -> None:
        """``sync_file_system``: puts all on disk that the descriptor's file system holds."""
        self._verdicts = verdicts
        self._sync_file_system = sync_file_system
        self._ledgers: dict[str, SequenceLedger] = {}
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self.close()
        self._restored: set[str] = set()  # keys of databases whose stamps are whole again
        self._restore_at = 0.0  # when to try again to restore the others', monotonic
        self._told: dict[str, str] = {}  # by key, why the log says that they are not
        self._folder = folder
        self._fsync = fsync

    def close(self) -> None:
        """Close the ledgers."""
        while self._ledgers:
            self._ledgers.popitem()[1].close()

    def ledger(self, database: str) -> SequenceLedger:
        ledger = self._ledgers.get(database)
        if ledger is None:
            ledger = SequenceLedger(
                self._folder, database_key(database), self._fsync, self._sync_stamps
            )
            try:
                with ledger.exclusive():
                    if ledger.is_new:
                        ledger.record([], self._highest_stamp(database))
            except BaseException:
                ledger.close()  # it is tried again, and the server needs its descriptors
                raise
            self._ledgers[database] = ledger
        return ledger

    def _sync_stamps(self) -> None:
        self._sync_file_system(self._folder.journal_fd)

    def _highest_stamp(self, database: str) -> int:
        """The ledger is new: go on after what lies in the folder, if anything does."""
        highest = 0
        for entry in os.scandir(self._folder.path):
            if entry.name.endswith(".log"):
                with contextlib.suppress(JournalError, OSError):
                    _, stamp, its_database = read_envelope(self._folder.path / entry.name)
                    if stamp is not None and its_database == database:
                        highest = max(highest, stamp.sequence)
        return highest

    def begin_epoch_if_replaced(self, database: str, guid: UUID, ledger: SequenceLedger) -> None:
        try:
            inventory = self._verdicts.inventory(database, guid)
            seen = inventory.identify()
            is_other = ledger.incarnation is not None and (
                ledger.is_ahead_of(seen) or self._has_lost_its_last(inventory, ledger)
            )
        except (CaptureError, OSError):
            ledger.compared_at = float("-inf")
            return  # the next time that it can be read
        if is_other:
            _log.warning(
                "{database} was copied, restored or replaced: its journals are numbered from 1 "
                "again, in epoch {epoch}",
                database=database,
                epoch=ledger.epoch + 1,
            )
            ledger.begin_epoch(seen.incarnation)
        ledger.incarnation = seen.incarnation
        ledger.attachments = inventory.durable_attachments or ledger.attachments

    def _has_lost_its_last(self, inventory: TransactionInventory, ledger: SequenceLedger) -> bool:
        """Tell whether a database does not know what it had committed: an older copy of its file
        took its place. That happens while no server has it open, so it is enough to ask when
        somebody begins to work, or comes back to it."""
        now = time.monotonic()
        is_due, ledger.compared_at = now - ledger.compared_at > _COMPARE_S, now
        if not is_due or not ledger.highest_transaction:
            return False
        (verdict,) = inventory.verdicts([ledger.highest_transaction], durable=False)
        return verdict is not Verdict.COMMITTED

    def is_restore_due(self) -> bool:
        """Tell whether the stamps that a power cut took are still to be written again, and that
        did not just fail."""
        return not self._folder.is_restored and time.monotonic() >= self._restore_at

    def restore_stamps(self) -> None:
        """Write again what a power cut took from journals that had their names already; once
        after each start of the machine, as one that stays up loses none."""
        if not self.is_restore_due():
            return
        # One that is missing has its lock: it may be brought back.
        found = [
            each for end in ("ledger", "lock") for each in self._folder.databases.glob(f"*.{end}")
        ]
        keys = {path.stem for path in found}
        for key in sorted(keys - self._restored):
            try:
                self._restore_stamps_of(key)
            except OSError as error:
                if key in self._told or self._has_journals(key):
                    self._tell_unrestored(key, error)
                    continue
            self._restored.add(key)
        is_restored = keys <= self._restored
        try:
            self._folder.is_restored = is_restored
        except OSError as error:  # nothing is lost by doing it once more
            _log.warning("cannot note that stamps are restored: {}", error)
        if not self._folder.is_restored:
            self._restore_at = time.monotonic() + _RESTORE_AGAIN_S

    def _has_journals(self, key: str) -> bool:
        """Tell whether journals wait to be shipped whose database has KEY, or may have it: where
        there are very many, nobody waits until all were looked at."""
        with os.scandir(self._folder.path) as entries:
            waiting = (Path(entry.path) for entry in entries if entry.name.endswith(".log"))
            return any(
                number > _MOST_LOOKED_AT or self._may_have(key, journal)
                for number, journal in enumerate(waiting, 1)
            )

    def _may_have(self, key: str, journal: Path) -> bool:
        self._folder.tell_progress()
        try:
            return database_key(read_envelope(journal)[2]) == key
        except FileNotFoundError:  # shipped meanwhile
            return False
        except (JournalError, OSError):
            return True

    def _tell_unrestored(self, key: str, error: OSError) -> None:
        if self._told.get(key) == str(error):
            return
        self._told[key] = str(error)
        _log.error(
            "cannot restore the stamps that {ledger} names, and is tried again: {cause}",
            ledger=f"{key}.ledger",
            cause=error,
        )

    def _restore_stamps_of(self, key: str) -> None:
        """Write again what stamps the journals of one database lost. Raises OSError of one that
        can't be read or written, when all have been looked at."""
        ledger = SequenceLedger(self._folder, key, self._fsync, self._sync_stamps)
        failed: list[OSError] = []
        with contextlib.closing(ledger), ledger.exclusive():
            for uuid, stamp in dict(ledger.entries()).items():
                self._folder.tell_progress()
                # Nearly all are shipped.
                with kept(failed), contextlib.suppress(FileNotFoundError):
                    self._restore_stamp(self._folder.committed(uuid), uuid, stamp)
        if failed:
            raise failed[0]

    def _restore_stamp(self, journal: Path, uuid: UUID, stamp: Stamp) -> None:
        with contextlib.suppress(JournalError), JournalReader(journal) as reader:
            left, given = reader.stamp, (stamp.epoch, stamp.sequence, stamp.stamped_us)
            # One that is left may be of a process that died before the ledger had it.
            if left is not None and (left.epoch, left.sequence, left.stamped_us) == given:
                return
        _log.info(
            "{journal} lost its stamp: written again, number {sequence}",
            journal=journal.name,
            sequence=stamp.sequence,
        )
        self.write_stamp(journal, uuid, stamp)

    @staticmethod
    def write_stamp(journal: Path, uuid: UUID, stamp: Stamp) -> None:
        """Write the stamp of a journal. It is not synced: what a power cut takes of it, the ledger
        still has, and thousands of syncs would let the shipper wait for longer than it does."""
        fd = os.open(journal, os.O_RDWR | os.O_CLOEXEC)
        try:
            write_stamp(fd, uuid, stamp)
        finally:
            os.close(fd)
