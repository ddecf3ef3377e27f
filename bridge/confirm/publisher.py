"""Numbers for transactions that are committed.

Guarantees: a number of the sequence is on disk before the transaction that bears it is visible, and
is never given twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import logbook

from firebird_cdc.bridge.confirm.closing import Closing
from firebird_cdc.bridge.confirm.completion import Completion
from firebird_cdc.bridge.confirm.history import History
from firebird_cdc.bridge.confirm.pending import Pending, PendingJournals
from firebird_cdc.bridge.confirm.rewriting import Rewriting
from firebird_cdc.bridge.confirm.troubles import DatabaseTroubles
from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.counters import ConfirmerCounts
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.ledger import SequenceLedger
from firebird_cdc.journal.folder.ledger_records import LedgerEntry
from firebird_cdc.journal.format import Stamp

_log = logbook.Logger("firebird_cdc.bridge.confirm.publisher")


def _given_in_journals_of(those: list[Pending], ledger: SequenceLedger) -> set[bytes]:
    """Return the uuids of all transactions with numbers in the journals that THOSE lie in."""
    journals = {each.journal for each in those}
    return {entry.uuid for journal in journals for entry in ledger.entries_in(journal)}


class Publisher:
    """Publishes or removes pending transactions of one folder. Belongs to one thread, and its calls
    to whoever leads. They raise OSError; what is not done then, a later call does."""

    def __init__(
        self,
        folder: JournalFolder,
        pending: PendingJournals,
        history: History,
        rewriting: Rewriting,
        completion: Completion,
        closing: Closing,
        troubles: DatabaseTroubles,
        on_ddl: Callable[[], None],
    ) -> None:
        """``on_ddl``: hears of committed DDL before it is published: only now does the engine
        show it."""
        self.published = 0
        """Number of transactions since ``begin_turn``."""
        self.has_published_ddl = False
        """True if one of them has DDL."""
        self._pending = pending
        self._history = history
        self._rewriting = rewriting
        self._completion = completion
        self._closing = closing
        self._unnumbered = troubles.unnumbered
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
        """Give COMMITTED, all of one incarnation, numbers; return whether any got one.

        LED_FROM: ticket up to which the leader before us may have published them. IS_LEFT: the last
        session of this process is gone."""
        self._folder.tell_progress()
        self._unnumbered.add(database)
        ledger = self._history.ledger(database)
        with ledger.exclusive():
            self._unnumbered.discard(database)
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
            self._unnumbered.add(database)
            self._history.begin_epoch_if_replaced(database, committed[0].guid, ledger)
            if any(each.definitions.has_ddl for each in committed):
                # Before they have numbers: if we die in between, nobody else would tell.
                self._on_ddl()
                self.has_published_ddl = True
            for pending, entry in zip(committed, self.record(committed, ledger), strict=True):
                if pending.has_own_journal:
                    self._closing.has_number(entry.place)
                self._pending.forget(pending)
            self._unnumbered.discard(database)
        self.published += len(committed)
        shown_us = now_us()
        self._times.add(database, ((shown_us - each.commit_us) / 1e6 for each in committed))
        return True

    def _forget_given(self, committed: list[Pending], ledger: SequenceLedger) -> None:
        """Forget those of COMMITTED that a leader before us has numbered."""
        doubtful = [
            each
            for each in committed
            if each.is_unlisted or not each.has_ticket or each.ticket <= ledger.highest_ticket
        ]
        given = _given_in_journals_of(doubtful, ledger)
        for pending in doubtful:
            if pending.uuid.bytes in given:
                committed.remove(pending)
                self._pending.forget(pending)
                self._closing.look_soon()

    def forget_if_given(self, pending: Pending) -> bool:
        """Forget PENDING if a leader before us has numbered it; tell whether that is so. One
        without a ticket was looked for when it was found."""
        if not pending.has_ticket:
            return False
        ledger, those = self._history.ledger(pending.database), [pending]
        with ledger.exclusive():
            self._forget_given(those, ledger)
        return not those

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

    def record(self, committed: list[Pending], ledger: SequenceLedger) -> list[LedgerEntry]:
        """Give each its number, on disk before any of them is visible; return these."""
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
                pending.journal,
                pending.offset,
                pending.ticket if pending.has_ticket else 0,
                pending.seal_end,
            )
            for number, pending in enumerate(committed, ledger.last + 1)
        ]
        ledger.record(group, group[-1].stamp.sequence)
        return group

    def remove(self, pending: Pending) -> None:
        """Remove a dead transaction's journal: the server died before its commit mark was set."""
        _log.info(
            "transaction {transaction} of {database} did not commit; its journal {journal} is "
            "removed",
            transaction=pending.transaction,
            database=pending.database,
            journal=pending.uuid,
        )
        if pending.has_own_journal:
            self._folder.live(pending.uuid).unlink(missing_ok=True)
        else:
            self._closing.note_undone(pending)
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
            self._closing.set_aside(pending, reason)
        except FileNotFoundError:
            _log.error("journal {journal} was removed by somebody", journal=pending.uuid)
        self._pending.forget(pending)
