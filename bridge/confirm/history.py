"""The numbers of each database's journals: its ledger, its epoch, and the stamps that bear them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import logbook

from firebird_cdc import access
from firebird_cdc.bridge.confirm.descriptors import IDLE_S, most_open
from firebird_cdc.bridge.confirm.transaction_states import TransactionStates
from firebird_cdc.errors import CaptureError, JournalEmpty, JournalError
from firebird_cdc.journal.folder.inventory import TransactionInventory, TransactionState
from firebird_cdc.journal.folder.journal_folder import JournalFolder, is_live_name
from firebird_cdc.journal.folder.kept_definitions import forget_definitions
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_lock import database_key, note_gone, read_database
from firebird_cdc.journal.folder.shortage import kept
from firebird_cdc.journal.format import (
    JournalReader,
    SharedJournal,
    Stamp,
    database_of,
    open_any,
    write_stamp,
)

_log = logbook.Logger("firebird_cdc.bridge.confirm.history")

_COMPARE_S = 1.0  # after so long without a commit, a database may have been replaced
_MOST_LOOKED_AT = 1000  # journals, to tell whether one is of a database; takes some 20 ms
_RESTORE_AGAIN_S = 15.0  # when stamps could not be written again
_GONE_S = 7 * 86_400  # after which the files of a database go that was dropped
_LOOK_FOR_GONE_S = 600.0
_LOOKED = "looked"  # the file whose time tells when somebody last did


def _note_gone(lock: Path, now: int) -> bool:
    """Note since when the database of a lock file is gone, NOW in seconds since 1970; return
    whether that is long ago. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        database, since = read_database(lock)
        if not database:
            return False
        is_gone = _is_gone(database)
        if is_gone and since:
            return now - since >= _GONE_S
        if is_gone or since:
            note_gone(lock, now if is_gone else 0)
    return False


def _is_gone(database: str) -> bool:
    """Tell whether a path leads nowhere; not if this process may not look, or can't."""
    try:
        Path(database).lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Log why files of dropped databases can't be removed, in place of raising OSError."""
    try:
        yield
    except OSError as error:
        _log.warning("files of dropped databases can't be removed yet: {cause}", cause=error)


class History:
    """The numbers that were given in one journal folder. Belongs to one thread."""

    def __init__(
        self,
        folder: JournalFolder,
        fsync: bool,
        states: TransactionStates,
        sync_file_system: Callable[[int], None],
    ) -> None:
        """``sync_file_system``: puts all on disk that the descriptor's file system holds."""
        self._states = states
        self._sync_file_system = sync_file_system
        self._ledgers: dict[str, SequenceLedger] = {}  # last used last
        self.use(folder, fsync)

    def use(self, folder: JournalFolder, fsync: bool) -> None:
        """Go on with the journals of another folder."""
        self.close()
        self._restored: set[str] = set()  # keys of databases whose stamps are whole again
        self._restore_at = 0.0  # when to try again to restore the others', monotonic
        self._told: dict[str, str] = {}  # by key, why the log says that they are not
        self._look_for_gone_at = 0.0  # when to see whether it is time, monotonic
        self._folder = folder
        self._fsync = fsync

    def close(self) -> None:
        """Close the ledgers."""
        while self._ledgers:
            self._ledgers.popitem()[1].close()

    def ledger(self, database: str) -> SequenceLedger:
        """Return the ledger of a database, to be used before that of another one. Raises
        OSError."""
        ledger = self._ledgers.pop(database, None)
        if ledger is None:
            self._close_ledgers(len(self._ledgers) - most_open() + 1)
            ledger = SequenceLedger(
                self._folder,
                database_key(database),
                self._fsync,
                self._sync_stamps,
                database,
                partial(self._last_stamp, database),
            )
            try:
                with ledger.exclusive():
                    pass
            except BaseException:
                ledger.close()  # it is tried again, and the server needs its descriptors
                raise
        self._ledgers[database] = ledger
        ledger.used_at = time.monotonic()
        return ledger

    def close_idle(self) -> None:
        """Close the ledgers that were not used lately. They are read anew when they are."""
        until = time.monotonic() - IDLE_S
        idle = 0
        for ledger in self._ledgers.values():
            if ledger.used_at > until:
                break
            idle += 1
        self._close_ledgers(idle)

    def _close_ledgers(self, count: int) -> None:
        """Close so many of the longest unused ones."""
        for database in list(self._ledgers)[: max(count, 0)]:
            self._ledgers.pop(database).close()

    def is_look_for_gone_due(self) -> bool:
        """Tell whether databases that were dropped are to be looked for, now and then. Only a
        server can: the shipper may be elsewhere, where paths lead to other files. Processes share
        the time, as none of them may live for that long."""
        if not self._folder.is_of_server or time.monotonic() < self._look_for_gone_at:
            return False
        try:
            age = time.time() - (self._folder.databases / _LOOKED).stat().st_mtime
        except OSError:
            return True
        if 0 <= age < _LOOK_FOR_GONE_S:
            self._look_for_gone_at = time.monotonic() + _LOOK_FOR_GONE_S - age
            return False
        return True

    def retire_gone(self) -> None:
        """Remove what was kept of databases whose path has led to no file for some days, unless a
        journal of theirs is still here. By whoever confirms alone; never raises OSError."""
        self._look_for_gone_at = time.monotonic() + _LOOK_FOR_GONE_S
        now = int(time.time())
        with _told():
            looked = self._folder.databases / _LOOKED
            looked.unlink(missing_ok=True)  # of another user it could not be given a time
            access.write_file(looked, b"")
            os.utime(looked, (now, now))
            gone = [lock for lock in self._folder.databases.glob("*.lock") if _note_gone(lock, now)]
            if gone and (kept := self._keys_of_journals()) is not None:
                for lock in gone:
                    if lock.stem not in kept:
                        with _told():  # one that has lost numbers is no other's affair
                            self._retire(lock)

    def _retire(self, lock: Path) -> None:
        """Remove the files of a database of which nobody needs a number any more."""
        if any(lock.with_suffix(ending).exists() for ending in (".anew", ".damaged")):
            return  # somebody looks into it
        database = read_database(lock).path
        if (open_one := self._ledgers.pop(database, None)) is not None:
            open_one.close()
        ledger = SequenceLedger(self._folder, lock.stem, self._fsync, self._sync_stamps)
        with contextlib.closing(ledger), ledger.exclusive():
            if not os.path.lexists(database):
                ledger.retire()
                forget_definitions(self._folder.state, database)
                _log.info(
                    "{database} is gone for {days} days: its ledger is removed. One that is "
                    "created there begins in a new epoch",
                    database=database,
                    days=_GONE_S // 86_400,
                )

    def _keys_of_journals(self) -> set[str] | None:
        """Return the keys of all databases of which journals wait here, or lie in the quarantine;
        None if that can't be told, or takes long."""
        keys = set()
        quarantined = self._folder.quarantine.glob("*.log")
        with os.scandir(self._folder.path) as entries:
            names = [entry.name for entry in entries]
        waiting = [name for name in names if name.endswith(".log") or is_live_name(name)]
        journals = [*(self._folder.path / name for name in waiting), *quarantined]
        if len(journals) > _MOST_LOOKED_AT:
            return None
        for number, journal in enumerate(journals):
            try:
                keys.add(database_key(database_of(journal)))
            except (FileNotFoundError, JournalEmpty):  # of a session that is at work
                continue
            except (JournalError, OSError):
                if number < len(waiting):
                    return None
        return keys

    def _sync_stamps(self) -> None:
        self._sync_file_system(self._folder.journal_fd)

    def _last_stamp(self, database: str) -> tuple[int, int]:
        """The ledger is new: go on after what lies in the folder, if anything does."""
        highest = 0, 0
        for entry in os.scandir(self._folder.path):
            if entry.name.endswith(".log"):
                with (
                    contextlib.suppress(JournalError, OSError),
                    open_any(self._folder.path / entry.name) as opened,
                ):
                    if isinstance(opened, SharedJournal):
                        stamp = opened.places[-1].stamp if opened.places else None
                    else:
                        stamp = opened.stamp
                    if stamp is not None and opened.database == database:
                        highest = max(highest, stamp.number)
        return highest

    def begin_epoch_if_replaced(self, database: str, guid: UUID, ledger: SequenceLedger) -> None:
        try:
            inventory = self._states.inventory(database, guid)
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
        (state,) = inventory.states([ledger.highest_transaction], durable=False)
        return state is not TransactionState.COMMITTED

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
            return database_key(database_of(journal)) == key
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
            given = [entry for entry in ledger.entries() if entry.home is None]
            for uuid, stamp in {entry.uuid: entry.stamp for entry in given}.items():
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
