"""Decisions about what waits, database by database, and what follows from them."""

from __future__ import annotations

from collections import defaultdict

from firebird_cdc.bridge.confirm.decisions import Action
from firebird_cdc.bridge.confirm.leadership import Leadership
from firebird_cdc.bridge.confirm.pending import Pending, PendingJournals, groups, in_order
from firebird_cdc.bridge.confirm.publisher import Publisher
from firebird_cdc.bridge.confirm.transaction_states import TransactionStates
from firebird_cdc.bridge.confirm.troubles import DatabaseTroubles
from firebird_cdc.journal.folder.shortage import is_shortage

_MOST_AT_ONCE = 256  # transactions that are published with one ledger record


class Deciding:
    """Decides about pending transactions of one folder. Belongs to one thread, and to whoever
    leads."""

    def __init__(
        self,
        pending: PendingJournals,
        states: TransactionStates,
        publisher: Publisher,
        leadership: Leadership,
        troubles: DatabaseTroubles,
    ) -> None:
        self.troubles = troubles
        self._pending = pending
        self._states = states
        self._publisher = publisher
        self._leadership = leadership

    def decide(self, last: int, *, is_left: bool) -> tuple[bool, bool, bool]:
        """Decide what was committed up to ticket LAST: later ones may have predecessors in other
        processes that were not looked for yet. Returns whether anything was decided, whether
        anything is still active, and whether something failed that another process may be able to
        do. IS_LEFT: the last session of this process is gone."""
        decided = active = has_failed = False
        ready: defaultdict[str, list[Pending]] = defaultdict(list)
        for each in self._pending:
            if each.ticket <= last or not each.has_ticket:
                ready[each.database].append(each)
                each.is_stuck = each.is_stuck or self.troubles.is_waiting(each.database)
        for database, journals in ready.items():
            if self.troubles.is_waiting(database):
                continue
            try:
                is_decided, is_active = self._decide_in(
                    database, in_order(journals, last), is_left=is_left
                )
            except Exception as error:  # of whatever kind: no other database waits for this one
                self.troubles.tell(database, journals, error)
                if is_shortage(error):
                    has_failed = True
                    self._leadership.stand_back()
                has_failed = has_failed or isinstance(error, PermissionError)
                continue
            if not self.troubles.is_waiting(database):
                self.troubles.end(database)
            decided, active = decided or is_decided, active or is_active
        self.troubles.keep_only({each.database for each in self._pending})
        return decided, active, has_failed

    def _decide_in(
        self, database: str, waiting: list[Pending], *, is_left: bool
    ) -> tuple[bool, bool]:
        """Decide what is WAITING in one database, in its order; return whether anything was
        decided, and is still active. Raises CaptureError, JournalError, OSError."""
        decided = False
        committed: list[Pending] = []
        blocked = False
        for pending, action in zip(waiting, self._states.decide(database, waiting), strict=True):
            pending.is_stuck = action is Action.KEEP
            is_refused = action in (Action.REMOVE, Action.QUARANTINE)
            if is_refused and self._publisher.forget_if_given(pending):
                decided = True  # by the database that was there then
            elif action is Action.REMOVE:
                self._publisher.remove(pending)
                decided = True
            elif action is Action.QUARANTINE:
                self._publisher.quarantine(pending)
                decided = True
            elif action is not Action.KEEP:
                blocked = blocked or action is Action.WAIT
                if not blocked:  # strictly in ticket order
                    committed.append(pending)
        led_from = self._leadership.led_from
        for together in groups(committed, _MOST_AT_ONCE):
            last = together[-1]
            decided = self._publisher.publish(database, together, led_from, is_left) or decided
            if last.uuid in self._pending:
                break  # one of them waits, and nothing passes it
        return decided, blocked
