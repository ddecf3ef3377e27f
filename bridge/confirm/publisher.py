"""Numbers and names for journals whose transactions are committed.

Guarantees: a number of the sequence is on disk before the journal that bears it is visible, and is
never given twice.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import logbook

from firebird_cdc.bridge.confirm.completion import Completion
from firebird_cdc.bridge.confirm.history import History
from firebird_cdc.bridge.confirm.pending import Pending, PendingJournals
from firebird_cdc.bridge.confirm.rewriting import Rewriting
from firebird_cdc.bridge.confirm.shared_journals import SharedJournals
from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.counters import ConfirmerCounts
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import Stamp, write_stamp

_log = logbook.Logger("firebird_cdc.bridge.confirm.publisher")


def _given_in_journals_of(shared: list[Pending], ledger: SequenceLedger) -> list[LedgerEntry]:
    """Return the numbers of all transactions in the journals that those of SHARED lie in."""
    homes = {each.home for each in shared if each.home is not None}
    return [entry for home in homes for entry in ledger.entries_in(home)]


class Publisher:
    """Publishes or removes pending journals of one folder. Belongs to one thread, and its calls to
    whoever leads. They raise OSError; what is not finished then, a later call finishes."""

    def __init__(
        self,
        folder: JournalFolder,
        pending: PendingJournals,
        history: History,
        rewriting: Rewriting,
        completion: Completion,
        shared: SharedJournals,
        on_ddl: Callable[[], None],
    ) -> None:
        """``on_ddl``: hears of published DDL, which the engine shows only now."""
        self.unfinished: set[str] = set()
        """Databases whose ledger may be ahead of their journals."""
        self.published = 0
        """Number of journals since ``begin_turn``."""
        self.has_published_ddl = False
        """True if one of them has DDL."""
        self._pending = pending
        self._history = history
        self._rewriting = rewriting
        self._completion = completion
        self._shared = shared
        self._on_ddl = on_ddl
        self.use(folder)

    def use(self, folder: JournalFolder) -> None:
        """Go on with the journals of another folder."""
        self._folder = folder
        self._times = ConfirmerCounts(folder.state)

    def begin_turn(self) -> None:
        """Count anew."""
        self.published, self.has_published_ddl = 0, False

    def publish(
        self, database: str, committed: list[Pending], led_from: int, is_left: bool
    ) -> bool:
        """Give COMMITTED, all of one incarnation, numbers and names; return whether any got one.

        LED_FROM: ticket up to which the leader before us may have published them. IS_LEFT: the last
        session of this process is gone."""
        self._folder.tell_progress()
        self.unfinished.add(database)
        ledger = self._history.ledger(database)
        with ledger.exclusive():
            self.unfinished.discard(database)  # nothing is cut off that is not in the ledger yet
            self._forget_given(committed, ledger)
            self._deal_with_removed(committed, ledger, led_from)
            for pending in committed:
                if not pending.is_sealed:
                    self._rewriting.replace_by_gap(pending)
                if pending.is_unsynced:
                    self._rewriting.copy_anew(pending)
            committed = self._completion.complete(database, committed, is_left)
            if not committed:
                return False
            self.unfinished.add(database)
            self._history.begin_epoch_if_replaced(database, committed[0].guid, ledger)
            self._folder.is_publishing = True
            self.stamp(committed, ledger)
            for pending in committed:
                self._show(pending)
            self.unfinished.discard(database)
        self.published += len(committed)
        shown_us = now_us()
        self._times.add(database, ((shown_us - each.commit_us) / 1e6 for each in committed))
        return True

    def _forget_given(self, committed: list[Pending], ledger: SequenceLedger) -> None:
        """Forget those of COMMITTED that a leader before us has numbered in shared journals, which
        do not show it."""
        shared = [each for each in committed if each.home is not None and each.has_ticket]
        if all(each.ticket > ledger.highest_ticket for each in shared):
            return
        given = {entry.uuid for entry in _given_in_journals_of(shared, ledger)}
        for pending in shared:
            if pending.uuid in given:
                committed.remove(pending)
                self._pending.forget(pending)

    def _deal_with_removed(
        self, committed: list[Pending], ledger: SequenceLedger, led_from: int
    ) -> None:
        """Forget those of COMMITTED that the leader before us has published, and have a gap in the
        place of those that somebody removed."""
        has_live = functools.cache(self._folder.has_live)
        removed = [each for each in committed if not has_live(each.journal)]
        if not removed:
            return
        given = {entry.uuid for entry in ledger.entries()}
        for pending in removed:
            if pending.ticket <= led_from or pending.uuid in given:
                committed.remove(pending)
                self._pending.forget(pending)
            else:
                self._rewriting.replace_by_gap(pending, "its journal was removed")

    def _show(self, pending: Pending) -> None:
        if pending.home is None:
            os.rename(
                f"{pending.uuid}.log.live",
                f"{pending.uuid}.log",
                src_dir_fd=self._folder.journal_fd,
                dst_dir_fd=self._folder.journal_fd,
            )
        if pending.definitions.has_ddl:
            self._on_ddl()
            self.has_published_ddl = True
        self._pending.forget(pending)

    def stamp(self, committed: list[Pending], ledger: SequenceLedger) -> None:
        """Give each its number, on disk before any of them is visible."""
        stamped_us = now_us()
        group = [
            LedgerEntry(
                pending.uuid,
                Stamp(
                    epoch=ledger.epoch,
                    sequence=number,
                    commit_us=pending.commit_us,
                    stamped_us=stamped_us,
                    journal_length=pending.length,
                    event_count=pending.events,
                    transaction=pending.transaction,
                    catalogue_offset=pending.definitions.catalogue_offset,
                ),
                pending.home,
                pending.offset,
                pending.ticket if pending.home and pending.has_ticket else 0,
                pending.seal_end,
            )
            for number, pending in enumerate(committed, ledger.last + 1)
        ]
        for pending, entry in zip(committed, group, strict=True):
            if pending.home is None:
                write_stamp(pending.fd, entry.uuid, entry.stamp)
        ledger.record(group, group[-1].stamp.sequence)

    def finish(self, database: str) -> bool:
        """Finish what was cut off after the ledger of a database had it: stamps and names; return
        whether there was any."""
        if database not in self.unfinished:
            return False
        ledger = self._history.ledger(database)
        waiting = [each for each in self._pending if each.database == database]
        with ledger.exclusive():
            if any(each.home is None for each in waiting):
                entries = list(ledger.entries())
            else:
                entries = _given_in_journals_of(waiting, ledger)
        given = {entry.uuid: entry.stamp for entry in entries}
        found = [each for each in waiting if each.uuid in given]
        for pending in found:
            # Else it has its name already, or needs none.
            if pending.home is None and self._folder.has_live(pending.uuid):
                self._finish_one(pending, given[pending.uuid])
            self._pending.forget(pending)
        self.unfinished.discard(database)
        return bool(found)

    def _finish_one(self, pending: Pending, stamp: Stamp) -> None:
        if not pending.is_sealed:  # never synced, and a power cut took it
            self._rewriting.replace_by_gap(pending)
            length = pending.length
            stamp = stamp._replace(journal_length=length, event_count=1, catalogue_offset=0)
        self._history.write_stamp(self._folder.live(pending.uuid), pending.uuid, stamp)
        self._folder.live(pending.uuid).rename(self._folder.committed(pending.uuid))

    def remove(self, pending: Pending) -> None:
        """Remove a dead transaction's journal: the server died before its commit mark was set."""
        _log.info(
            "transaction {transaction} of {database} did not commit; its journal {journal} is "
            "removed",
            transaction=pending.transaction,
            database=pending.database,
            journal=pending.uuid,
        )
        if pending.home is None:
            self._folder.live(pending.uuid).unlink(missing_ok=True)
        else:
            self._shared.note_undone(pending)
        self._pending.forget(pending)

    def quarantine(self, pending: Pending) -> None:
        """Move a journal of another database than the present one at that path to the
        quarantine."""
        reason = (
            f"transaction {pending.transaction} is not one of {pending.database} as it is now: the "
            "journal belongs to what was there before it was restored or replaced"
        )
        _log.error(
            "journal {journal} is moved to the quarantine: {reason}",
            journal=pending.uuid,
            reason=reason,
            database=pending.database,
            transaction=pending.transaction,
        )
        try:
            if pending.home is None:
                self._folder.set_aside(pending.uuid, reason)
            else:
                self._shared.set_aside(pending, reason)
        except FileNotFoundError:
            _log.error("journal {journal} was removed by somebody", journal=pending.uuid)
        self._pending.forget(pending)
