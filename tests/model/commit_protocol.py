"""The commit protocol as an executable model, explored exhaustively.

Every state that the engine, the plugin, the leader and crashes can bring about is visited, breadth
first: the steps to a fault are as few as can be. docs/architecture.md states the rules in words.
Here each is a switch, as a rule is worth stating only if a fault appears without it.

What is on disk has two values: as the system shows it (``bits``), and as a power cut leaves it if
the last write did not arrive (``bits_d``). A cut takes one of them, of each write by itself; a kill
takes nothing back. Transactions count from 0, and those below ``header`` are below the OIT.

Left out: writes that fail, which is the tests' that make them fail; and which process leads, as a
leader knows only what files say, and another may follow after any of its steps. A client gets its
answer once the inventory page is on disk, so what was acknowledged is among what is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import permutations, product
from typing import Any, NamedTuple


class Rule(Enum):
    """Rule of the protocol."""

    BELOW_OIT = "ACTIVE bits and a number below the header's OIT mean committed"
    FROM_FILE = "while an engine process has the database open, only the file decides an orphan"
    ALONE = "once no engine process has the database open, an orphan is decided"
    NOT_ON_WORD = "the engine's word alone publishes nothing"
    LOOK_FIRST = "whether a process lives is looked at before the file is read"
    STATE_DURABLE = "a state is on disk before anybody acts on it"
    COMMIT_DURABLE = "a journal is on disk before commit() returns"
    UNSEAL = "a seal is broken on disk before anything but commit() follows"
    VOID_FIRST = "rollback() is called before the engine marks the end"
    VOID_DURABLE = "a journal is void on disk before rollback() returns"
    LEDGER_DURABLE = "a number is on disk in the ledger before its journal is visible"
    LEDGER_FIRST = "a leader first finishes what the ledger has"
    TICKET_ORDER = "numbers are given in the order of tickets"
    NEVER_PAST = "no number passes a journal that may still be committed by a living process"
    ORPHANS_FIRST = "journals without a ticket are looked for before the first number is given"
    FLOORS = "where a ticket is missing, the floors in the seals are the order"
    LIMBO_TICKET = "a journal that is let go in limbo uses up a ticket"
    COUNTER_ABOVE = "after a power cut the counter is above all tickets and floors in the folder"
    STAMPS_RESTORED = "a stamp that a power cut took is written again from the ledger"


class Setting(NamedTuple):
    """The size of what is explored."""

    processes: int  # 1: Super, 2: Classic
    transactions: int
    crashes: int
    has_limbo: bool = False  # two-phase commits, and transactions that go on after prepare


# A transaction's phase: SEALED is behind prepare(), MARKED behind commit(), SHOWN committed in the
# engine's memory; LEFT: no process works in it any more.
IDLE, OPEN, SEALED, MARKED, SHOWN, LIMBO, LEFT = range(7)
ACTIVE, IN_LIMBO, DEAD, COMMITTED = "active", "in limbo", "dead", "committed"
UNDECIDED = "undecided"
NOTHING, WHOLE, STALE, VOIDED, GAP = "nothing", "whole", "stale", "void", "gap"
LIVE, LOG, GONE = ".log.live", ".log", "gone"


class Txn(NamedTuple):
    """A transaction, its journal, and what readers have seen of it."""

    phase: int = IDLE
    home: int = 0  # the process that it runs in
    base: int = -1  # the transaction whose version of a row it changed
    is_wanted: bool = False  # the engine has committed it, whether or not that will last
    is_torn: bool = False  # its process died between showing and writing that, and others live
    was_limbo: bool = False
    was_active: bool = False  # as the leader read; used without LOOK_FIRST only
    memory: str = ACTIVE  # its state in the memory that the engine's processes share
    bits: str = ACTIVE
    bits_d: str = ACTIVE
    floor: int = 0  # the counter of tickets when it was sealed
    seal: str = NOTHING
    seal_d: str = NOTHING
    ticket: int = 0
    ticket_d: int = 0
    name: str = LIVE
    name_d: str = LIVE
    stamp: bool = False
    stamp_d: bool = False
    number: int = 0  # under which readers saw it; -1: they saw two


class State(NamedTuple):
    """All there is at a moment."""

    txns: tuple[Txn, ...]
    up: tuple[int, ...]  # the engine's processes that have the database open
    header: int = 0
    header_d: int = 0
    counter: int = 0  # of tickets
    ledger: tuple[int, ...] = ()
    ledger_d: int = 0  # how many of its entries are on disk
    crashes: int = 0

    def put(self, index: int, **changed: Any) -> State:
        """Return the state with one transaction changed."""
        return self.having(index, self.txns[index]._replace(**changed))

    def having(self, index: int, txn: Txn) -> State:
        """Return the state with one transaction replaced."""
        before = self.txns
        return self._replace(txns=(*before[:index], txn, *before[index + 1 :]))

    def is_committed(self, index: int) -> bool:
        """Tell whether the file shows a transaction as committed."""
        bits = self.txns[index].bits
        return bits == COMMITTED or (bits == ACTIVE and index < self.header)

    def is_committed_for_good(self, index: int) -> bool:
        """Tell whether it does so after any power cut."""
        bits = self.txns[index].bits_d
        return bits == COMMITTED or (bits == ACTIVE and index < self.header_d)


class Fault(NamedTuple):
    """Fault, and the steps to it."""

    what: str
    steps: list[str]

    def __str__(self) -> str:
        return "\n".join([*(f"{n:3}. {step}" for n, step in enumerate(self.steps, 1)), self.what])


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
        queue = deque([start])
        while queue:
            state = queue.popleft()
            of_leader = list(self._leader(state))
            what = self._fault(state) or ("" if of_leader else self._unfinished(state))
            if what and wanted in what:
                return len(came_from), Fault(what, path_to(state, came_from))
            for label, following in (*of_leader, *self._engine(state), *self._crashes(state)):
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
        if state.crashes == self._setting.crashes:
            needs_floors = self._setting.has_limbo or any(map(_is_without_ticket, txns))
            txns = tuple(_uncut(txn, needs_floors) for txn in txns)
        # Of tickets, floors and the counter it is only the order that counts.
        waiting = [txn for txn in txns if txn.seal == WHOLE and not txn.number]
        values = {
            counter,
            *(value for txn in waiting for value in (txn.floor, txn.ticket or counter)),
        }
        if max(values) >= len(values):
            rank = {value: number for number, value in enumerate(sorted(values))}
            counter = rank[counter]
            txns = tuple(
                txn._replace(
                    floor=rank[txn.floor],
                    ticket=txn.ticket and rank[txn.ticket],
                    ticket_d=txn.ticket_d and rank[txn.ticket_d],
                )
                if txn in waiting
                else txn
                for txn in txns
            )
        return state._replace(txns=txns, header=header, header_d=header_d, counter=counter)

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

    def _begin(self, state: State, i: int) -> Iterator[Step]:
        homes = set(state.up[:1])  # which one matters only to a crash
        if state.crashes < self._setting.crashes:
            used = {txn.home for txn in state.txns if txn.phase not in (IDLE, LEFT)}
            fresh = [home for home in state.up if home not in used]
            homes = used.intersection(state.up).union(fresh[:1])  # those are all alike
        for home in sorted(homes):
            yield f"T{i + 1}: begins, in process {home + 1}", state.put(i, phase=OPEN, home=home)

    def _steps_of(self, state: State, i: int, txn: Txn) -> Iterator[Step]:
        if txn.phase == OPEN:
            for base in (-1, *self._visible(state)):
                row = f", with a row of T{base + 1}" if base >= 0 else ""
                sealed = {"phase": SEALED, "seal": WHOLE, "floor": state.counter}
                yield f"prepare(){row}", state.put(i, base=max(base, txn.base), **sealed)
            if self._setting.has_limbo:
                limbo = {"phase": LIMBO, "was_limbo": True, **_all_say(IN_LIMBO)}
                yield "first phase of a two-phase commit", state.put(i, **limbo)
        elif txn.phase == SEALED:
            ticket = state.counter + 1
            seal_d = WHOLE if Rule.COMMIT_DURABLE in self._rules else txn.seal_d
            marked = state.put(i, phase=MARKED, ticket=ticket, seal_d=seal_d)
            yield f"commit(), ticket {ticket}", marked._replace(counter=ticket)
            if self._setting.has_limbo:
                seal = NOTHING if Rule.UNSEAL in self._rules else STALE
                broken = {"phase": OPEN, "seal": seal, "seal_d": seal, "floor": 0}
                yield "is changed further", state.put(i, **broken)
        elif txn.phase == MARKED:
            shown = {"phase": SHOWN, "memory": COMMITTED, "is_wanted": True}
            yield "the engine shows the commit", state.put(i, **shown)
        elif txn.phase == SHOWN:
            written = {"phase": LEFT, "home": 0, "bits": COMMITTED}
            yield "the engine writes the inventory page", state.put(i, **written)
        elif txn.phase == LIMBO:
            sealed = {"seal": WHOLE, "seal_d": WHOLE, "floor": state.counter}
            let_go = state.put(i, phase=LEFT, home=0, **sealed)
            counter = state.counter + (Rule.LIMBO_TICKET in self._rules)
            yield "is let go in limbo, with a seal", let_go._replace(counter=counter)
        elif txn.bits == IN_LIMBO:
            resolved = state.put(i, is_wanted=True, **_all_say(COMMITTED))
            yield "is committed from limbo", resolved
        if txn.phase in (OPEN, SEALED):
            yield self._rolled_back(state, i, txn)
        # Of one that is torn, the engine's processes may think this or that.
        is_open = txn.bits == IN_LIMBO or (txn.bits == ACTIVE and i >= state.header)
        if txn.phase == LEFT and is_open:
            yield "the engine takes it for dead", state.having(i, _dead(txn, DEAD))

    def _rolled_back(self, state: State, i: int, txn: Txn) -> Step:
        over = Txn(LEFT, floor=txn.floor, seal=txn.seal, seal_d=txn.seal_d, **_all_say(COMMITTED))
        if Rule.VOID_FIRST not in self._rules:
            return "the engine ends a rollback before rollback()", state.having(i, over)
        if Rule.VOID_DURABLE in self._rules:
            over = over._replace(seal_d=VOIDED, name_d=GONE, floor=0)
        over = over._replace(seal=VOIDED, name=GONE)
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
                if txn.phase == LEFT and txn.seal == WHOLE and not txn.number
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

    # -- the leader -------------------------------------------------------------------------------

    def _leader(self, state: State) -> Iterator[Step]:
        unfinished = [i for i in state.ledger if state.txns[i].name == LIVE]
        for i in unfinished:
            yield f"T{i + 1}: the leader renames the journal", self._renamed(state, i)
        if unfinished and Rule.LEDGER_FIRST in self._rules:
            return
        for number, i in enumerate(state.ledger, 1):
            if (
                state.txns[i].name == LOG
                and not state.txns[i].stamp
                and Rule.STAMPS_RESTORED in self._rules
            ):
                yield f"T{i + 1}: the leader restores the stamp {number}", state.put(i, stamp=True)
                return
        found = [i for i, txn in enumerate(state.txns) if self._is_found(state, i, txn)]
        states = {i: self._state(state, i) for i in found}
        for i in found:
            if states[i] == DEAD:
                yield f"T{i + 1}: the leader removes the journal", state.put(i, name=GONE)
                return
        if Rule.LOOK_FIRST not in self._rules:
            yield from self._careless_reading(state, states)
        orders = list(self._orders(state, found))
        if Rule.ORPHANS_FIRST not in self._rules:
            orders += self._orders(state, [i for i in found if state.txns[i].ticket])
        for following in {self._next(order, states) for order in orders} - {None}:
            assert following is not None
            label = f"T{following + 1}: the leader gives number {len(state.ledger) + 1}"
            yield label, self._numbered(state, following)

    def _is_found(self, state: State, i: int, txn: Txn) -> bool:
        most = 0 if Rule.LEDGER_FIRST in self._rules else 1
        is_waiting = txn.name == LIVE and state.ledger.count(i) <= most
        return is_waiting and (txn.ticket > 0 or txn.phase == LEFT)

    def _state(self, state: State, i: int) -> str:
        txn = state.txns[i]
        if txn.seal == VOIDED:
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
        if state.txns[i].seal == NOTHING:
            state = state.put(i, seal=GAP, seal_d=GAP)
        return state._replace(ledger=(*state.ledger, i))

    def _renamed(self, state: State, i: int) -> State:
        number = len(state.ledger) - state.ledger[::-1].index(i)
        if Rule.LEDGER_DURABLE in self._rules:
            state = state._replace(ledger_d=len(state.ledger))
        for other, txn in enumerate(state.txns):  # readers remember
            if txn.number and (other == i) != (txn.number == number):
                number = -1
        txn = state.txns[i]
        is_base_first = txn.base >= 0 and state.txns[txn.base].number
        is_final = state.is_committed_for_good(i)
        named = txn._replace(
            phase=LEFT,
            home=0,
            base=-1 if is_base_first else txn.base,
            memory=COMMITTED,
            bits=COMMITTED if is_final else txn.bits,
            bits_d=COMMITTED if is_final else txn.bits_d,
            floor=0,
            ticket=0,
            ticket_d=0,
            name=LOG,
            stamp=True,
            number=number,
        )
        return state.having(i, named)

    def _careless_reading(self, state: State, states: dict[int, str]) -> Iterator[Step]:
        """Yield the steps of a leader that reads first, and then looks whether processes live."""
        for i, known in states.items():
            if state.txns[i].was_active and not state.up:
                yield f"T{i + 1}: the leader removes the journal", state.put(i, name=GONE)
            elif known == ACTIVE and not state.txns[i].was_active:
                yield f"T{i + 1}: the leader reads: active", state.put(i, was_active=True)

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
        return state._replace(txns=txns, up=tuple(each for each in state.up if each != home))

    @staticmethod
    def _stopped(state: State) -> State:
        txns = tuple(_stopped(txn, i < state.header) for i, txn in enumerate(state.txns))
        return state._replace(txns=txns, up=())

    def _cuts(self, state: State) -> Iterator[State]:
        """Yield what a power cut may leave: of each write that was not synced, all or nothing."""
        state = state._replace(txns=tuple(map(_left, state.txns)), up=(), counter=0)
        if state in self._before_cut:
            return  # another one differed from it only in what a cut takes anyway
        self._before_cut.add(state)
        survivors = [_survivors(txn) for txn in state.txns]
        for header in dict.fromkeys((state.header, state.header_d)):
            for entries in range(state.ledger_d, len(state.ledger) + 1):
                ledger = state.ledger[:entries]
                for txns in product(*survivors):
                    left = tuple(_stopped(txn, i < header) for i, txn in enumerate(txns))
                    cut = State(left, (), header, header, 0, ledger, entries, state.crashes)
                    if cut not in self._after_cut:
                        self._after_cut.add(cut)
                        yield cut

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
                if txn.seal != WHOLE and not (txn.seal == GAP and txn.was_limbo):
                    return f"{name} is published without all of its changes"
                base = state.txns[txn.base] if txn.base >= 0 else txn
                if base.number > txn.number and base.seal == txn.seal == WHOLE and not base.is_torn:
                    return f"{name} is published before T{txn.base + 1}, whose row it changed"
            elif (
                txn.name == GONE
                and txn.is_wanted
                and (state.is_committed(i) or state.is_committed_for_good(i))
            ):
                return f"{name} is lost: it is committed, and its journal removed"
        return ""

    @staticmethod
    def _unfinished(state: State) -> str:
        """Return what is wrong with a state in which the leader has nothing more to do."""
        if any(txn.phase not in (IDLE, LEFT) for txn in state.txns):
            return ""  # one of them may be waited for
        for i, txn in enumerate(state.txns):
            if txn.name == LOG and not txn.stamp:
                return f"T{i + 1} is published without a stamp"
            is_kept = txn.bits == IN_LIMBO or (
                state.up and txn.bits == ACTIVE and i >= state.header
            )
            if txn.phase == LEFT and txn.name == LIVE and not is_kept:
                return f"T{i + 1} is decided, and its journal stays for ever"
        numbers = sorted(txn.number for txn in state.txns if txn.number)
        if numbers != list(range(1, len(numbers) + 1)):
            return f"the numbers have a hole: {numbers}"
        return ""


def _is_without_ticket(txn: Txn) -> bool:
    return txn.phase == LEFT and txn.name == LIVE and not txn.ticket


def _all_say(state: str) -> dict[str, Any]:
    """Return a state of a transaction that is in the engine's memory and on disk."""
    return {"memory": state, "bits": state, "bits_d": state}


@cache
def _uncut(txn: Txn, needs_floor: bool) -> Txn:
    """Return a transaction that will see no more power cuts."""
    floor = txn.floor if needs_floor else 0
    return txn._replace(
        floor=floor, seal_d=txn.seal, ticket_d=txn.ticket, name_d=txn.name, stamp_d=txn.stamp
    )


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
    """Return a dead transaction with what is left of it."""
    return Txn(
        LEFT,
        is_wanted=txn.is_wanted,
        memory=bits,
        bits=bits,
        bits_d=bits,
        name=txn.name,
        name_d=txn.name_d,
    )


@cache
def _survivors(txn: Txn) -> list[Txn]:
    """Return what a power cut may leave of a transaction."""
    found = []
    for bits, seal, ticket, name, stamp in product(
        (txn.bits, txn.bits_d),
        (txn.seal, txn.seal_d),
        (txn.ticket, txn.ticket_d),
        (txn.name, txn.name_d),
        (txn.stamp, txn.stamp_d),
    ):
        kept: dict[str, Any] = {"bits": bits, "seal": seal, "name": name}
        kept["ticket"] = ticket if name == LIVE else 0  # or nobody asks for it any more
        kept["stamp"] = stamp and name == LOG  # or it is written anew in any case
        found.append(txn._replace(**kept, **{f"{key}_d": value for key, value in kept.items()}))
    return list(dict.fromkeys(found))


def path_to(state: Any, came_from: Mapping[Any, tuple[Any, str] | None]) -> list[str]:
    """Return the steps from the first state to STATE, by where each state was met first."""
    steps = []
    while (before := came_from[state]) is not None:
        state, label = before
        steps.append(label)
    return steps[::-1]
