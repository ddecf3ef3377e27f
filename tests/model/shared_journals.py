"""The protocol of shared journals as an executable model, explored exhaustively.

docs/architecture.md states it in words; ``commit_protocol`` is the same for one transaction in each
journal, and says what is on disk and what a power cut leaves. Each rule is a switch, as a rule is
worth stating only if a fault appears without it.

A journal is of one process, which has it locked while it appends. In ``unit`` is what the journal
shows of a transaction, in ``unit_d`` what a power cut leaves of that. The ring of commits
(``ticket``) and the slots of open transactions are in memory that outlives processes, and that a
power cut clears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import permutations, product
from typing import Any

from commit_protocol import Fault, path_to
from shared_state import (
    ACTIVE,
    COMMITTED,
    DEAD,
    GAP,
    GONE,
    IDLE,
    IN_LIMBO,
    LEFT,
    LIMBO,
    LIVE,
    LOG,
    MARKED,
    NOTHING,
    OPEN,
    SEALED,
    SHOWN,
    STALE,
    TORN,
    UNDECIDED,
    WHOLE,
    Journal,
    Rule,
    Setting,
    State,
    Txn,
)

Step = tuple[str, State]


class Protocol:
    """The protocol in a setting, without some of its rules."""

    def __init__(self, setting: Setting, without: frozenset[Rule] = frozenset()) -> None:
        self._setting = setting
        self._all = tuple(range(setting.processes))
        self._rules = frozenset(Rule) - without
        self._before_cut: set[State] = set()
        self._after_cut: set[State] = set()

    def explore(self, wanted: str = "") -> tuple[int, Fault | None]:
        """Visit every state up to the first fault that is described by WANTED; return how many
        states there were, and that fault."""
        start = State((Txn(),) * self._setting.transactions, self._all)
        came_from: dict[State, tuple[State, str] | None] = {start: None}
        met = {start}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            of_leader = [*self._leader(state), *self._closing(state), *self._shipper(state)]
            what = self._fault(state) or ("" if of_leader else self._unfinished(state))
            if what and wanted in what:
                return len(came_from), Fault(what, path_to(state, came_from))
            for label, following in (*of_leader, *self._engine(state), *self._crashes(state)):
                if following in met:
                    continue
                met.add(following)
                following = self._without_traces(following)
                if following not in came_from:
                    came_from[following] = state, label
                    queue.append(following)
        return len(came_from), None

    def _without_traces(self, state: State) -> State:
        """Return the state without what can make no difference any more."""
        txns, header, header_d, counter = state.txns, state.header, state.header_d, state.counter
        if header and all(txn.bits_d in (COMMITTED, DEAD) for txn in txns[:header]):
            header = header_d = 0
        keeps_at = Rule.FRESH_BLOCK not in self._rules
        is_uncut = state.crashes == self._setting.crashes
        # Of tickets, floors and the counter it is only the order that counts.
        waiting = [txn for txn in txns if txn.unit == WHOLE and not txn.number]
        values = {
            counter,
            *(value for txn in waiting for value in (txn.floor, txn.ticket or counter)),
        }
        rank = {value: number for number, value in enumerate(sorted(values))}
        txns = tuple(
            _plain(
                txn,
                rank[txn.floor] if txn in waiting else 0,
                rank[txn.ticket] if txn in waiting and txn.ticket else txn.ticket,
                is_uncut,
                keeps_at,
            )
            for txn in txns
        )
        txns, journals = self._without_empty(txns, state.journals)
        where = {"header": header, "header_d": header_d, "counter": rank[counter]}
        return state._replace(txns=txns, journals=journals, **where)

    def _without_empty(
        self, txns: tuple[Txn, ...], journals: tuple[Journal, ...]
    ) -> tuple[tuple[Txn, ...], tuple[Journal, ...]]:
        """Return both without journals that nothing is in any more."""
        kept: list[Journal] = []
        places: dict[int, int] = {-1: -1}
        left = []
        for txn in txns:
            found = []
            txn = self._without_past(txn, journals)
            for at in (txn.journal, txn.former, txn.void_in, txn.void_of):
                if at not in places:
                    places[at] = len(kept)
                    journal = journals[at]
                    if not journal.is_open:
                        journal = journal._replace(home=0, length=1, is_poisoned=False, covers=())
                    elif Rule.FRESH_BLOCK in self._rules:
                        journal = journal._replace(length=1)
                    kept.append(journal)
                found.append(places[at])
            names = ("journal", "former", "void_in", "void_of")
            left.append(txn._replace(**dict(zip(names, found, strict=True))))
        return tuple(left), tuple(kept)

    @staticmethod
    def _without_past(txn: Txn, journals: tuple[Journal, ...]) -> Txn:
        """Return a transaction without places that nobody can look at any more."""
        if txn.former >= 0 and journals[txn.former].state != LIVE:
            txn = txn._replace(former=-1)
        is_gone = txn.number > 0 and txn.journal >= 0 and journals[txn.journal].state == GONE
        if txn.void_in == txn.void_of == txn.journal >= 0 and txn.void_d:
            txn = txn._replace(unit=NOTHING, unit_d=NOTHING)
        if is_gone or _is_over(txn):
            txn = txn._replace(journal=-1)
        if txn.void_of not in (txn.former, txn.journal) or (
            txn.void_of >= 0 and journals[txn.void_of].state != LIVE
        ):
            txn = txn._replace(void_of=-1)
        if txn.void_of < 0:
            txn = txn._replace(void_in=-1, void_d=False)
        return txn

    # -- the engine and the plugin in it ----------------------------------------------------------

    def _engine(self, state: State) -> Iterator[Step]:
        if not state.up:
            yield "the engine starts", self._started(state)
            return
        for i, txn in enumerate(state.txns):
            if txn.phase == IDLE:
                yield from self._begin(state, i)
                break  # numbers are given in order
            for label, following in self._steps_of(state, i, txn):
                yield f"T{i + 1}: {label}", following
        yield from self._headers(state)
        yield from self._journal_steps(state)

    def _begin(self, state: State, i: int) -> Iterator[Step]:
        homes = set(state.up[:1])  # which one matters only to a crash
        if state.crashes < self._setting.crashes:
            used = {txn.home for txn in state.txns if txn.phase not in (IDLE, LEFT)}
            fresh = [home for home in state.up if home not in used]
            homes = used.intersection(state.up).union(fresh[:1])  # those are all alike
        for home in sorted(homes):
            begun = state.put(i, phase=OPEN, home=home, has_slot=True)
            yield f"T{i + 1}: begins, in process {home + 1}", begun

    def _appended(self, state: State, home: int) -> tuple[State, int, int]:
        """Return the state with one more place in the journal of a process, that journal, and the
        place."""
        for index, journal in enumerate(state.journals):
            if journal.is_open and journal.home == home and not journal.is_poisoned:
                return state.journal(index, length=journal.length + 1), index, journal.length
        journals = (*state.journals, Journal(home, length=1))
        return state._replace(journals=journals), len(journals) - 1, 0

    def _steps_of(self, state: State, i: int, txn: Txn) -> Iterator[Step]:
        if txn.phase == OPEN:
            appended, journal, at = self._appended(state, txn.home)
            for base in (-1, *self._visible(state)):
                row = f", with a row of T{base + 1}" if base >= 0 else ""
                sealed: dict[str, Any] = {"phase": SEALED, "unit": WHOLE, "floor": state.counter}
                sealed |= {"journal": journal, "at": at, "base": max(base, txn.base)}
                yield f"prepare(){row}", appended.put(i, **sealed)
            if self._setting.has_limbo:
                limbo = {"phase": LIMBO, "was_limbo": True, **_all_say(IN_LIMBO)}
                yield "first phase of a two-phase commit", state.put(i, **limbo)
        elif txn.phase == SEALED:
            yield from self._sealed_steps(state, i, txn)
        elif txn.phase == MARKED:
            shown = {"phase": SHOWN, "memory": COMMITTED, "is_wanted": True}
            yield "the engine shows the commit", state.put(i, **shown)
        elif txn.phase == SHOWN:
            written = {"phase": LEFT, "home": 0, "bits": COMMITTED}
            yield "the engine writes the inventory page", state.put(i, **written)
        elif txn.phase == LIMBO:
            own = Journal(0, is_open=False, length=1)
            let_go = state.put(
                i,
                phase=LEFT,
                home=0,
                unit=WHOLE,
                unit_d=WHOLE,
                floor=state.counter,
                journal=len(state.journals),
                has_slot=False,
            )
            counter = state.counter + (Rule.LIMBO_TICKET in self._rules)
            let_go = let_go._replace(counter=counter, journals=(*state.journals, own))
            yield "is let go in limbo, in a journal of its own", let_go
        elif txn.bits == IN_LIMBO:
            resolved = state.put(i, is_wanted=True, **_all_say(COMMITTED))
            yield "is committed from limbo", resolved
        if txn.phase in (OPEN, SEALED):
            yield self._rolled_back(state, i, txn)
        # Of one that is torn, the engine's processes may think this or that.
        is_open = txn.bits == IN_LIMBO or (txn.bits == ACTIVE and i >= state.header)
        if txn.phase == LEFT and is_open:
            yield "the engine takes it for dead", state.having(i, _dead(txn, DEAD))

    def _sealed_steps(self, state: State, i: int, txn: Txn) -> Iterator[Step]:
        is_synced = txn.unit_d == WHOLE or txn.is_claimed
        if is_synced:
            ticket = state.counter + 1
            marked = state.put(i, phase=MARKED, ticket=ticket, has_slot=False)
            yield f"commit(), ticket {ticket}", marked._replace(counter=ticket)
        if (
            not is_synced
            and state.journals[txn.journal].is_poisoned
            and Rule.REWRITE_FROM_MEMORY in self._rules
        ):
            appended, journal, at = self._appended(state, txn.home)
            has_void = Rule.VOID_FORMER in self._rules
            moved = appended.put(
                i,
                journal=journal,
                at=at,
                unit_d=WHOLE,
                former=txn.journal,
                void_in=journal if has_void else -1,
                void_of=txn.journal if has_void else -1,
                void_d=has_void,
            )
            yield "is written from memory into another journal, synced", moved
        if self._setting.has_limbo:
            unit = STALE if Rule.VOID_DURABLE not in self._rules else NOTHING
            broken: dict[str, Any] = {"phase": OPEN, "unit": unit, "unit_d": unit, "floor": 0}
            yield "is changed further", state.put(i, **broken, is_claimed=False)

    def _rolled_back(self, state: State, i: int, txn: Txn) -> Step:
        over = Txn(
            LEFT,
            floor=txn.floor,
            journal=txn.journal,
            at=txn.at,
            unit=txn.unit,
            unit_d=txn.unit_d,
            **_all_say(COMMITTED),
        )
        if Rule.VOID_FIRST not in self._rules:
            return "the engine ends a rollback before rollback()", state.having(i, over)
        if txn.unit == WHOLE:
            void_in = txn.journal
            is_lost = state.journals[txn.journal].is_poisoned
            if Rule.VOID_STAYS not in self._rules or is_lost:
                state, void_in, _ = self._appended(state, txn.home)
            is_durable = Rule.VOID_DURABLE in self._rules
            over = over._replace(void_in=void_in, void_of=txn.journal, void_d=is_durable)
        return "rollback(), and the engine ends it", state.having(i, over)

    @staticmethod
    def _visible(state: State) -> list[int]:
        """Return whose rows can be changed; those that have a number come first in any case."""
        return [
            i
            for i, txn in enumerate(state.txns)
            if txn.memory == COMMITTED and txn.is_wanted and not txn.number
        ]

    def _headers(self, state: State) -> Iterator[Step]:
        """The header that a start of some other transaction writes: with the OIT by the engine's
        memory, behind a sweep, too, which passes those that are dead on disk."""
        for is_swept in (False, True):
            oit = 0
            for txn in state.txns:
                if txn.memory != COMMITTED and not (is_swept and txn.bits_d == DEAD):
                    break
                oit += 1
            passed = state.txns[state.header : oit]
            if any(txn.bits_d not in (COMMITTED, DEAD) for txn in passed):  # all else is no news
                # Writes of one page are synced one after the other.
                written = state._replace(header=oit, header_d=state.header)
                yield f"the engine writes a header whose OIT is above T{oit}", written

    def _started(self, state: State) -> State:
        """Return the state after a start, with what it finds in the file and makes of the counter
        of tickets."""
        counter = state.counter
        if Rule.COUNTER_ABOVE in self._rules:
            left = [
                txn
                for txn in state.txns
                if txn.phase == LEFT and txn.unit == WHOLE and not txn.number
            ]
            counter = max([counter, *(max(txn.ticket, txn.floor + 1) for txn in left)])
        txns = []
        for i, txn in enumerate(state.txns):
            if txn.phase == LEFT and state.is_committed(i):
                txn = txn._replace(memory=COMMITTED)
            elif txn.phase == LEFT:
                txn = txn._replace(memory=IN_LIMBO) if txn.bits == IN_LIMBO else _dead(txn, DEAD)
            txns.append(txn)
        return state._replace(txns=tuple(txns), up=self._all, counter=counter)

    # -- journals ---------------------------------------------------------------------------------

    def _journal_steps(self, state: State) -> Iterator[Step]:
        for index, journal in enumerate(state.journals):
            if not journal.is_open:
                continue
            waiting = [
                i
                for i, txn in enumerate(state.txns)
                if txn.journal == index
                and txn.phase == SEALED
                and txn.unit == WHOLE != txn.unit_d
                and not txn.is_claimed
            ]
            if waiting and not journal.is_poisoned and not journal.covers:
                begun = state.journal(index, covers=tuple(waiting))
                yield f"a sync of journal {index + 1} begins", begun
            if journal.covers and not journal.is_poisoned:
                yield f"the sync of journal {index + 1} ends", self._synced(state, index, waiting)
            if waiting and state.failed_syncs < self._setting.failed_syncs:
                failed = state.journal(index, is_poisoned=True, covers=())
                failed = failed._replace(failed_syncs=state.failed_syncs + 1)
                yield f"the sync of journal {index + 1} fails", failed
            if waiting and journal.is_poisoned and Rule.REWRITE_FROM_MEMORY not in self._rules:
                for i in waiting:
                    state = state.put(i, is_claimed=True)
                yield f"journal {index + 1} is synced again, without an error", state
            is_needed = Rule.VOID_STAYS in self._rules and any(
                (txn.journal == index and txn.phase == SEALED)
                or (txn.void_of == index != txn.void_in and state.journals[txn.void_in].is_open)
                for txn in state.txns
            )
            if journal.length and not is_needed:
                let_go = state.journal(index, is_open=False, covers=())
                yield f"nobody appends to journal {index + 1} any more", let_go

    def _synced(self, state: State, index: int, waiting: list[int]) -> State:
        """Return the state after a sync of a journal: all is on disk that was appended before it
        began, and who waits hears of it."""
        covered = state.journals[index].covers
        for i, txn in enumerate(state.txns):
            if txn.journal == index and i in covered and txn.unit == WHOLE:
                state = state.put(i, unit_d=txn.unit)
            elif i in waiting and Rule.SYNC_COVERS not in self._rules:
                state = state.put(i, is_claimed=True)
        return state.journal(index, covers=())

    def _closing(self, state: State) -> Iterator[Step]:
        """Yield what who confirms does with whole journals."""
        for index, journal in enumerate(state.journals):
            if journal.state != LIVE or (journal.is_open and Rule.LOCKED in self._rules):
                continue
            inside = [i for i, txn in enumerate(state.txns) if txn.journal == index]
            if Rule.CLOSE_DECIDED in self._rules and not all(
                self._is_decided(state, i) for i in inside
            ):
                continue
            is_void_needed = any(
                txn.void_in == index != txn.void_of >= 0
                and state.journals[txn.void_of].state == LIVE
                for txn in state.txns
            )
            if is_void_needed and Rule.VOID_KEPT in self._rules:
                continue
            closed = state.journal(index, state=LOG, is_indexed_d=Rule.INDEX_DURABLE in self._rules)
            if Rule.LEDGER_DURABLE in self._rules:
                closed = closed._replace(ledger_d=len(state.ledger))
            yield f"journal {index + 1} gets its index and its name", closed
        is_whole = all(
            state.txns[i].journal < 0 or state.journals[state.txns[i].journal].state in (LOG, GONE)
            for i in state.ledger
        )
        if len(state.ledger) > state.dropped and is_whole and state.ledger_d == len(state.ledger):
            yield "a new ledger begins", state._replace(dropped=len(state.ledger))

    def _is_decided(self, state: State, i: int) -> bool:
        txn = state.txns[i]
        return (
            state.has_number(i)
            or txn.unit not in (WHOLE, GAP)
            or txn.bits == DEAD
            or (txn.phase == LEFT and self._state(state, i) == DEAD)
            or (txn.was_active and not state.up)
        )

    # -- who confirms -----------------------------------------------------------------------------

    def _leader(self, state: State) -> Iterator[Step]:
        for i, txn in enumerate(state.txns):
            if txn.ticket and state.has_number(i):
                yield f"T{i + 1}: its ticket's entry is done with", state.put(i, ticket=0)
        found = [i for i, txn in enumerate(state.txns) if self._is_found(state, i, txn)]
        states = {i: self._state(state, i) for i in found}
        orders = list(self._orders(state, found))
        if Rule.WALK_FIRST not in self._rules:
            orders += self._orders(state, [i for i in found if state.txns[i].ticket])
        for following in {self._next(order, states) for order in orders} - {None}:
            assert following is not None
            label = f"T{following + 1}: is given number {len(state.ledger) + 1}"
            yield label, self._numbered(state, following)
        for i in found:
            is_read = Rule.LOOK_FIRST not in self._rules and states[i] == ACTIVE
            if is_read and not state.txns[i].was_active:
                yield f"T{i + 1}: is read as active", state.put(i, was_active=True)
        for i, txn in enumerate(state.txns):
            if txn.phase != LEFT or not state.is_readable(txn.former):
                continue
            if self._is_void(state, i, txn.former):
                continue
            is_known = i in state.ledger[state.dropped :] and Rule.KNOWN_BY_UUID in self._rules
            if not is_known and state.ledger.count(i) == 1 and state.is_committed(i):
                yield f"T{i + 1}: is found at its former place", self._numbered(state, i)

    def _is_found(self, state: State, i: int, txn: Txn) -> bool:
        if state.has_number(i):
            is_again = Rule.KNOWN_BY_UUID not in self._rules and txn.ticket > 0
            return is_again and state.ledger.count(i) == 1
        if txn.ticket:
            return True
        if txn.phase != LEFT:
            return False
        if txn.unit in (WHOLE, GAP):
            return state.is_readable(txn.journal)
        return txn.has_slot and Rule.GAP_FOR_SLOT in self._rules

    def _state(self, state: State, i: int) -> str:
        txn = state.txns[i]
        if not txn.ticket and self._is_void(state, i, txn.journal):
            return DEAD
        if txn.bits != ACTIVE:
            return txn.bits
        if i < state.header and Rule.BELOW_OIT in self._rules:
            return COMMITTED
        if txn.phase != LEFT:
            return ACTIVE
        if state.up and txn.memory == COMMITTED and Rule.NOT_ON_WORD not in self._rules:
            return COMMITTED
        is_kept = state.up or Rule.ALONE not in self._rules
        return UNDECIDED if is_kept and Rule.FROM_FILE in self._rules else DEAD

    @staticmethod
    def _is_void(state: State, i: int, place: int) -> bool:
        """Tell whether who goes through a journal knows of a void for a transaction in it."""
        txn = state.txns[i]
        is_known = txn.void_in == place or state.is_readable(txn.void_in)
        return place >= 0 and txn.void_of == place and txn.void_in >= 0 and is_known

    def _orders(self, state: State, found: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield the orders in which numbers may be given. What ties comes in any order."""
        txns = state.txns
        by_clocks = Rule.FLOORS not in self._rules and not all(txns[i].ticket for i in found)
        for order in permutations(found):
            # Between the floor that is the ticket before, and the ticket.
            keys = [txns[i].ticket - 0.5 if txns[i].ticket else txns[i].floor for i in order]
            if by_clocks or Rule.TICKET_ORDER not in self._rules or keys == sorted(keys):
                yield order

    def _next(self, order: tuple[int, ...], states: dict[int, str]) -> int | None:
        """Return what gets the next number. What is undecided is waited for some seconds, or not:
        as any other step may come first, both are explored."""
        for i in order:
            if states[i] == COMMITTED:
                return i
            if states[i] == ACTIVE and Rule.NEVER_PAST in self._rules:
                return None
        return None

    def _numbered(self, state: State, i: int) -> State:
        if Rule.STATE_DURABLE in self._rules:
            txns = tuple(txn._replace(bits_d=txn.bits) for txn in state.txns)
            state = state._replace(txns=txns, header_d=state.header)
        if state.txns[i].unit not in (WHOLE, GAP):  # a gap has a journal of its own
            gap = Journal(0, is_open=False, length=1)
            where = {"journal": len(state.journals), "unit": GAP, "unit_d": GAP}
            state = state.put(i, **where, has_slot=False)
            state = state._replace(journals=(*state.journals, gap))
        return state._replace(ledger=(*state.ledger, i))

    # -- the shipper ------------------------------------------------------------------------------

    def _shipper(self, state: State) -> Iterator[Step]:
        for number, i in enumerate(state.ledger, 1):
            if not state.txns[i].number:
                yield f"T{i + 1}: number {number} is shipped", self._shipped(state, i, number)
                break
        else:
            twice = {i for i in state.ledger if state.ledger.count(i) > 1}
            for i in twice:
                if state.txns[i].number > 0:
                    yield f"T{i + 1}: is shipped again", state.put(i, number=-1)
        for index, journal in enumerate(state.journals):
            inside = [i for i in state.ledger if state.txns[i].journal == index]
            if journal.state == LOG and all(state.txns[i].number for i in inside):
                yield f"journal {index + 1} is removed", state.journal(index, state=GONE)

    def _shipped(self, state: State, i: int, number: int) -> State:
        if Rule.LEDGER_DURABLE in self._rules:
            state = state._replace(ledger_d=len(state.ledger))
        txn = state.txns[i]
        for other in state.txns:  # readers remember
            if other.number == number:
                number = -1
        is_base_first = txn.base >= 0 and state.txns[txn.base].number
        is_final = state.is_committed_for_good(i)
        named = txn._replace(
            phase=LEFT,
            home=0,
            base=-1 if is_base_first else txn.base,
            memory=COMMITTED,
            bits=COMMITTED if is_final else txn.bits,
            bits_d=COMMITTED if is_final else txn.bits_d,
            number=number,
        )
        return state.having(i, named)

    # -- crashes ----------------------------------------------------------------------------------

    def _crashes(self, state: State) -> Iterator[Step]:
        if state.crashes == self._setting.crashes:
            return
        state = state._replace(crashes=state.crashes + 1)
        if len(state.up) > 1:
            for home in state.up:
                if any(txn.home == home and txn.phase not in (IDLE, LEFT) for txn in state.txns):
                    yield f"process {home + 1} is killed", self._killed(state, home)
        if state.up:
            yield "all processes of the engine are killed", self._stopped(state)
        for cut in self._cuts(state):
            yield "power cut", cut

    @staticmethod
    def _killed(state: State, home: int) -> State:
        """One process dies under Classic; the others keep what is in the engine's memory."""
        txns = tuple(
            txn
            if txn.home != home or txn.phase in (IDLE, LEFT)
            else txn._replace(phase=LEFT, home=0, is_torn=txn.phase == SHOWN)
            if txn.phase in (SHOWN, LIMBO)
            else _dead(txn, ACTIVE)
            for txn in state.txns
        )
        journals = tuple(
            each._replace(is_open=False, covers=()) if each.home == home else each
            for each in state.journals
        )
        up = tuple(each for each in state.up if each != home)
        return state._replace(txns=txns, journals=journals, up=up)

    @staticmethod
    def _stopped(state: State) -> State:
        txns = tuple(_stopped(txn, i < state.header) for i, txn in enumerate(state.txns))
        return state._replace(txns=txns, journals=_let_go(state.journals), up=())

    def _cuts(self, state: State) -> Iterator[State]:
        """Yield what a power cut may leave: of each write that was not synced, all or nothing."""
        journals = _let_go(state.journals)
        left = tuple(map(_left, state.txns))
        state = state._replace(txns=left, journals=journals, up=(), counter=0)
        if state in self._before_cut:
            return  # another one differed from it only in what a cut takes anyway
        self._before_cut.add(state)
        survivors = [self._survivors(state, txn) for txn in state.txns]
        kept = [
            dict.fromkeys((each, each if each.is_indexed_d else _without_index(each)))
            for each in journals
        ]
        for header in dict.fromkeys((state.header, state.header_d)):
            for entries in range(state.ledger_d, len(state.ledger) + 1):
                ledger = state.ledger[:entries]
                for txns, indexed in product(product(*survivors), product(*kept)):
                    dead = tuple(_stopped(txn, i < header) for i, txn in enumerate(txns))
                    cut = state._replace(
                        txns=dead,
                        journals=indexed,
                        ledger=ledger,
                        ledger_d=entries,
                        header=header,
                        header_d=header,
                    )
                    if cut not in self._after_cut:
                        self._after_cut.add(cut)
                        yield cut

    def _survivors(self, state: State, txn: Txn) -> list[Txn]:
        """Return what a power cut may leave of a transaction."""
        units = dict.fromkeys((txn.unit, txn.unit_d))
        if Rule.FRESH_BLOCK not in self._rules and txn.unit_d == WHOLE:
            is_written_beside = any(
                other.journal == txn.journal
                and other.at == txn.at + 1
                and other.unit == WHOLE != other.unit_d
                for other in state.txns
            )
            if is_written_beside:
                units[TORN] = None
        lost: dict[str, Any] = {"ticket": 0, "has_slot": False}
        lost["lost_slot"] = txn.has_slot or txn.lost_slot
        voids = [txn.void_in] if txn.void_d or txn.void_in < 0 else [txn.void_in, -1]
        found = [
            txn._replace(
                bits=bits,
                bits_d=bits,
                unit=unit,
                unit_d=unit,
                void_in=void,
                void_of=txn.void_of if void >= 0 else -1,
                void_d=void >= 0,
                **lost,
            )
            for bits, unit, void in product((txn.bits, txn.bits_d), units, voids)
        ]
        return list(dict.fromkeys(found))

    # -- what must hold ---------------------------------------------------------------------------

    @staticmethod
    def _fault(state: State) -> str:
        """Return what is wrong with a state."""
        for i, txn in enumerate(state.txns):
            name = f"T{i + 1}"
            if txn.number < 0:
                return f"a number is given twice, or {name} has two"
            if txn.number:
                if not txn.is_wanted or not state.is_committed_for_good(i):
                    return f"a phantom: {name} is published and not committed"
                if txn.unit != WHOLE and not (txn.unit == GAP and txn.was_limbo):
                    return f"{name} is published without all of its changes"
                base = state.txns[txn.base] if txn.base >= 0 else txn
                is_late = base.number > txn.number if base.number else state.is_committed(txn.base)
                is_known = base.unit == txn.unit == WHOLE and not base.is_torn
                if base is not txn and is_late and is_known:
                    return f"{name} is published before T{txn.base + 1}, whose row it changed"
            elif (
                txn.journal >= 0
                and txn.unit == WHOLE
                and state.journals[txn.journal].state == GONE
                and txn.is_wanted
                and (state.is_committed(i) or state.is_committed_for_good(i))
            ):
                return f"{name} is lost: it is committed, and its journal removed"
        return ""

    @staticmethod
    def _unfinished(state: State) -> str:
        """Return what is wrong with a state in which nothing more is to be done."""
        if any(txn.phase not in (IDLE, LEFT) for txn in state.txns):
            return ""  # one of them may be waited for
        for i, txn in enumerate(state.txns):
            is_due = txn.is_wanted and state.is_committed(i) and not txn.number
            if is_due and not (txn.was_limbo and txn.lost_slot):
                return f"T{i + 1} is lost: it is committed, and nobody looks for it"
        numbers = sorted(txn.number for txn in state.txns if txn.number)
        if numbers != list(range(1, len(numbers) + 1)):
            return f"the numbers have a hole: {numbers}"
        if not state.up:
            for index, journal in enumerate(state.journals):
                has_limbo = any(t.bits == IN_LIMBO and t.journal == index for t in state.txns)
                if journal.state != GONE and not has_limbo:
                    return f"journal {index + 1} stays for ever"
        return ""


@cache
def _plain(txn: Txn, floor: int, ticket: int, is_uncut: bool, keeps_at: bool) -> Txn:
    """Return a transaction with the least that says what can still come of it."""
    if is_uncut:
        lost_slot = txn.lost_slot and not txn.number
        txn = txn._replace(unit_d=txn.unit, lost_slot=lost_slot)
    return txn._replace(floor=floor, ticket=ticket, at=txn.at if keeps_at else 0)


def _is_over(txn: Txn) -> bool:
    """Tell whether nothing of a transaction is in a journal, after a power cut either."""
    return txn.unit == txn.unit_d == NOTHING


def _let_go(journals: tuple[Journal, ...]) -> tuple[Journal, ...]:
    return tuple(journal._replace(is_open=False, covers=()) for journal in journals)


def _without_index(journal: Journal) -> Journal:
    return journal._replace(state=LIVE) if journal.state == LOG else journal


def _all_say(state: str) -> dict[str, Any]:
    """Return a state of a transaction that is in the engine's memory and on disk."""
    return {"memory": state, "bits": state, "bits_d": state}


@cache
def _left(txn: Txn) -> Txn:
    """Return a transaction of which the process is gone, and with it the engine's memory."""
    return txn if txn.phase == IDLE else txn._replace(phase=LEFT, home=0, memory=ACTIVE)


@cache
def _stopped(txn: Txn, is_below_oit: bool) -> Txn:
    """Return what the end of all processes makes of a transaction: what is active is dead."""
    is_dead = txn.phase != IDLE and txn.bits == ACTIVE and not is_below_oit
    return _dead(txn, ACTIVE) if is_dead else _left(txn)


@cache
def _dead(txn: Txn, bits: str) -> Txn:
    """Return a dead transaction with what is left of it: while its bits don't say so, it lies in
    its journal as any other."""
    is_nothing = bits == DEAD or txn.unit == STALE
    return txn._replace(
        phase=LEFT,
        home=0,
        base=-1,
        is_torn=False,
        was_limbo=False,
        memory=bits,
        bits=bits,
        bits_d=bits,
        floor=0,
        unit=NOTHING if is_nothing else txn.unit,
        unit_d=NOTHING if is_nothing else txn.unit_d,
        is_claimed=False,
        former=-1 if bits == DEAD else txn.former,
        void_in=-1 if bits == DEAD else txn.void_in,
        void_of=-1 if bits == DEAD else txn.void_of,
        has_slot=False,
        lost_slot=False,
        ticket=0,
    )
