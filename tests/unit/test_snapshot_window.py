"""Windows over a model of the engine's transactions: each trap, and that it would be fallen into.

The model has what the engine has: numbers, a counter of commits, the oldest interesting
transaction, snapshots that see commits up to their number, and a database file.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from firebird_cdc.errors import SnapshotVoid
from firebird_cdc.journal.folder.inventory import TransactionState
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.claims import Claims, read_claims
from firebird_cdc.journal.snapshot.holder import SnapshotBegun
from firebird_cdc.journal.snapshot.publication import (
    DATABASE,
    Barrier,
    Monitored,
    OlderTransaction,
    Publication,
    raise_barriers,
)
from firebird_cdc.journal.snapshot.visibility import (
    ACTIVE,
    FAILED,
    IN_LIMBO,
    VisibleSet,
    read_visible_set,
)
from firebird_cdc.journal.snapshot.window import (
    begin_window,
    find_older,
    join_window,
    meet_publication,
)

_TABLE = "T"


class _Engine:
    """Model of an engine with the transactions 1 to 4 committed; is holder and states in one.

    ``after``: what happens right after a step of the holder, by the step's name.
    """

    connection: Any = None
    guid = UUID(int=1)
    path = "/data/test.fdb"
    page_size = 8192

    def __init__(self) -> None:
        self.state: dict[int, int] = dict.fromkeys(range(1, 5), 1)
        self.commits = 10
        self.snapshots: list[int] = []
        self.readers: set[int] = set()
        self.published: dict[str, int] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.in_file: set[int] = set()
        self.states = self

    # The engine.

    def begin(self) -> int:
        number = max(self.state) + 1
        self.state[number] = ACTIVE
        return number

    def commit(self, transaction: int) -> None:
        self.take_number()
        self.store(transaction, self.commits)

    def take_number(self) -> None:
        self.commits += 1

    def store(self, transaction: int, number: int) -> None:
        self.state[transaction] = number
        self.in_file.add(transaction)

    def _mark(self) -> int:
        open_ = [each for each, state in self.state.items() if state < 1]
        return min(open_, default=max(self.state) + 1)

    # What the window asks.

    def _step(self, name: str) -> None:
        self.after.pop(name, lambda: None)()

    def begin_guard(self) -> int:
        guard = self.begin()
        self.readers.add(guard)
        self.snapshots.append(self._mark())
        self._step("guard")
        return guard

    def oldest(self) -> int:
        found = self._mark()
        self._step("oldest")
        return found

    def following(self) -> int:
        return max(self.state)

    def claims(self, first: int) -> Claims:
        kept = frozenset(each for each in self.in_file if each >= first)

        def state(transaction: int) -> TransactionState:
            in_file = transaction in kept
            return TransactionState.COMMITTED if in_file else TransactionState.ACTIVE

        self._step("claims")
        return Claims(state)

    def begin_snapshot(self) -> SnapshotBegun:
        transaction = self.begin()
        self.readers.add(transaction)
        self._step("transaction")
        begun = SnapshotBegun(self.commits, transaction)
        self._step("snapshot")
        return begun

    def join_snapshot(self, number: int) -> int:
        assert number <= self.commits
        return self._mark()

    def end(self) -> None:
        self.snapshots.clear()

    def publication(self) -> Publication:
        self._step("publication")
        return Publication(3 if self.published else None, self.published)

    def undecided(self, first: int, end: int) -> list[int]:
        return [each for each in range(first, end) if self.of(each) in (ACTIVE, IN_LIMBO)]

    def monitored(self, before: int) -> Monitored:
        running = {each for each, state in self.state.items() if state == ACTIVE and each < before}
        writers = {
            each: OlderTransaction(each, 70 + each, "ANN", "isql", datetime(2026, 1, 2, 3, 4, 5))
            for each in running - self.readers
        }
        return Monitored(frozenset(running & self.readers), writers)

    def of(self, transaction: int) -> int | None:
        # The engine does not look up what is before the mark and all snapshots.
        if transaction < min([self._mark(), *self.snapshots]):
            return 1
        return self.state.get(transaction)

    def unsettled(self, first: int, end: int, number: int) -> list[tuple[int, int]]:
        found = [(each, self.of(each)) for each in range(first, end)]
        return [
            (each, state) for each, state in found if state is not None and not 1 <= state <= number
        ]

    def settled(self, first: int, end: int, number: int) -> list[int]:
        return [each for each in range(first, end) if 1 <= (self.of(each) or 0) <= number]


@pytest.fixture
def engine() -> _Engine:
    return _Engine()


def test_quiet_window_sees_what_was_committed_before_and_has_no_flaw(engine: _Engine) -> None:
    committed, open_, failed = engine.begin(), engine.begin(), engine.begin()
    engine.commit(committed)
    engine.state[failed] = FAILED
    window = begin_window(engine)
    engine.commit(open_)
    later = engine.begin()
    engine.commit(later)
    assert [window.sees(each) for each in (1, committed, open_, failed, later)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert window.visible.dead == {failed}
    assert not window.find_flaws().torn


def test_later_transaction_committed_before_the_snapshot_is_seen(engine: _Engine) -> None:
    """The transaction that holds the snapshot has its number before the snapshot has its own."""
    later: list[int] = []

    def overtake() -> None:
        later.append(engine.begin())
        engine.commit(later[0])

    engine.after["transaction"] = overtake
    window = begin_window(engine)
    assert later[0] > window.transaction
    assert window.sees(later[0])
    assert not window.find_flaws()


# Trap 1.


def test_transaction_committed_right_after_the_snapshot_is_not_seen(engine: _Engine) -> None:
    writer = engine.begin()
    engine.after["snapshot"] = lambda: engine.commit(writer)
    window = begin_window(engine)
    assert not window.sees(writer)
    # The fault that the order of steps is there against.
    late = read_visible_set(
        engine,
        number=window.number,
        transaction=window.transaction,
        oldest=engine.oldest(),
        following=engine.following(),
    )
    assert late.sees(writer)


# Trap 2.


def test_transaction_begun_before_the_publication_is_named_until_it_ends(engine: _Engine) -> None:
    writer, reader = engine.begin(), engine.begin()
    engine.readers.add(reader)
    publisher = engine.begin()
    engine.commit(publisher)
    engine.published[_TABLE] = publisher
    barriers = meet_publication(engine, {})
    assert barriers[_TABLE] == Barrier(publisher, publisher + 1)
    engine.begin()  # sees the publication
    [older] = find_older(engine, barriers)
    assert older.number == writer
    assert str(older) == (
        f"transaction {writer} of ANN, attachment {70 + writer}, isql, since 2026-01-02 03:04:05"
    )
    window = begin_window(engine, barriers)
    assert window.unpublished == window.find_flaws().unpublished == {writer}
    assert not begin_window(engine, None).find_flaws().unpublished  # the fault: nobody asks
    engine.commit(writer)
    assert find_older(engine, barriers) == []
    sound = begin_window(engine, barriers)
    assert sound.sees(writer)
    assert sound.unpublished == frozenset()


def test_older_transaction_that_ends_just_after_the_snapshot_is_a_flaw(engine: _Engine) -> None:
    writer = engine.begin()
    engine.published[_TABLE] = 4
    barriers = meet_publication(engine, {})
    engine.after["snapshot"] = lambda: engine.commit(writer)
    assert begin_window(engine, barriers).unpublished == {writer}


def test_older_transaction_in_limbo_is_waited_for_though_nobody_runs_it(engine: _Engine) -> None:
    prepared = engine.begin()
    engine.state[prepared] = IN_LIMBO
    engine.published[_TABLE] = 4
    [older] = find_older(engine, meet_publication(engine, {}))
    assert str(older) == f"transaction {prepared} (in limbo, or of another user)"


def test_table_met_by_the_snapshot_alone_makes_all_open_transactions_suspects(
    engine: _Engine,
) -> None:
    writers = [engine.begin()]

    def publish() -> None:
        writers.append(engine.begin())  # later than the one that will hold the snapshot
        engine.published[_TABLE] = 4

    engine.after["transaction"] = publish
    window = begin_window(engine, {})
    assert window.unpublished == set(writers)
    assert window.barriers[_TABLE].before > max(writers)


def test_transaction_begun_while_the_publication_is_read_is_below_the_barrier(
    engine: _Engine,
) -> None:
    begun: list[int] = []

    def publish() -> None:
        begun.append(engine.begin())
        engine.published[_TABLE] = 4

    engine.after["publication"] = publish
    barriers = meet_publication(engine, {})
    assert [each.number for each in find_older(engine, barriers)] == begun


def test_table_published_anew_gets_another_barrier() -> None:
    known = raise_barriers(Publication(5, {"A": 6, "B": 7}), {}, 10)
    assert known == {DATABASE: Barrier(5, 10), "A": Barrier(6, 10), "B": Barrier(7, 10)}
    again = raise_barriers(Publication(5, {"A": 6, "B": 17, "C": 18}), known, 20)
    assert again["A"] == known["A"]
    assert again["B"] == Barrier(17, 20)
    assert again["C"] == Barrier(18, 20)
    switched = raise_barriers(Publication(25, {"A": 6}), again, 30)
    assert switched == {DATABASE: Barrier(25, 30), "A": known["A"]}
    assert raise_barriers(Publication(None, {"A": 6}), again, 40) == {}


# Trap 3.


def test_transaction_that_the_mark_has_passed_may_be_seen_by_joiners(engine: _Engine) -> None:
    writer = engine.begin()
    window = begin_window(engine)
    assert not window.find_flaws()
    engine.commit(writer)  # and the mark moves on to the guard
    assert window.find_flaws().passed == {writer}
    assert window.find_flaws([writer, writer + 1]).passed == {writer}
    assert not window.find_flaws([writer])  # all had joined before
    with pytest.raises(SnapshotVoid, match=rf"transactions {writer} were open when it began"):
        window.require_sound()


def test_process_that_joins_finds_by_itself_whom_the_mark_has_passed(engine: _Engine) -> None:
    writer = engine.begin()
    window = begin_window(engine)
    told = VisibleSet.of(window.visible.told)
    assert told == window.visible
    early = join_window(engine, told, window.barriers)
    assert not early.sees(writer)
    engine.commit(writer)
    early.require_sound([writer])  # whose reader has joined as early
    late = join_window(engine, told, window.barriers)
    assert late.find_flaws([writer]).passed == {writer}
    with pytest.raises(SnapshotVoid, match=rf"transactions {writer} were open when it began"):
        late.require_sound([])


def test_process_that_joins_finds_by_itself_that_the_set_has_grown(engine: _Engine) -> None:
    writer = engine.begin()
    engine.take_number()
    number = engine.commits
    engine.commit(engine.begin())
    joined = join_window(engine, begin_window(engine).visible, {})
    assert not joined.find_flaws([])
    engine.store(writer, number)
    assert joined.find_flaws([]).torn == {writer}


def test_transaction_behind_the_guard_is_never_seen_by_joiners(engine: _Engine) -> None:
    begun: list[int] = []
    engine.after["guard"] = lambda: begun.append(engine.begin())
    window = begin_window(engine)
    engine.commit(begun[0])
    assert begun[0] in window.visible.outside
    assert not window.find_flaws()


# Trap 4.


def test_commit_stored_only_after_the_snapshot_began_voids_the_window(engine: _Engine) -> None:
    writer = engine.begin()
    engine.take_number()  # and the thread is preempted
    number = engine.commits
    engine.commit(engine.begin())
    window = begin_window(engine)
    assert not window.sees(writer)
    assert not window.find_flaws()
    engine.store(writer, number)
    assert window.find_flaws().torn == {writer}
    with pytest.raises(SnapshotVoid, match="were being committed when it began"):
        window.require_sound()


def test_later_commit_stored_only_after_the_snapshot_began_voids_it_too(engine: _Engine) -> None:
    later: list[tuple[int, int]] = []

    def overtake() -> None:
        engine.take_number()
        later.append((engine.begin(), engine.commits))

    engine.after["transaction"] = overtake
    window = begin_window(engine)
    engine.store(*later[0])
    assert window.find_flaws().torn == {later[0][0]}


def test_commit_after_the_snapshot_and_swept_failure_are_not_torn(engine: _Engine) -> None:
    failed, writer = engine.begin(), engine.begin()
    engine.state[failed] = FAILED
    window = begin_window(engine)
    engine.commit(writer)
    # A sweep: the mark passes it. All before the oldest transaction that was active when the
    # snapshots began, which is the writer, counts as committed then.
    engine.snapshots = [writer]
    del engine.state[failed]
    assert window.visible.read_again(engine).sees(failed)
    assert window.find_flaws().torn == frozenset()


# Trap 5.


def test_commit_in_the_file_that_the_snapshot_lacks_voids_the_window(engine: _Engine) -> None:
    open_, long_ago = engine.begin(), engine.begin()
    engine.commit(long_ago)

    def clear_block() -> None:
        engine.take_number()
        engine.state[long_ago] = engine.commits + 5

    engine.after["oldest"] = clear_block
    window = begin_window(engine)
    assert not window.sees(long_ago)
    assert window.not_seen == {long_ago}
    engine.commit(open_)
    with pytest.raises(SnapshotVoid, match=r"memory of transactions is damaged \(Firebird issue"):
        window.require_sound()


def test_commit_in_the_file_after_the_snapshot_is_no_claim(engine: _Engine) -> None:
    """The fault would be to read the file too late: it then has more than the snapshot."""
    writer = engine.begin()
    engine.after["snapshot"] = lambda: engine.commit(writer)
    window = begin_window(engine)
    assert window.not_seen == frozenset()
    assert engine.claims(1).not_seen(window.visible) == {writer}


def test_commit_that_the_engine_forgets_within_the_window_voids_it(engine: _Engine) -> None:
    engine.begin()
    long_ago = engine.begin()
    engine.commit(long_ago)
    window = begin_window(engine)
    assert not window.find_flaws()
    engine.state[long_ago] = engine.commits + 1
    flaws = window.find_flaws()
    assert flaws.forgotten == flaws.damaged == {long_ago}


def test_file_that_is_not_read_is_no_flaw_and_is_told(tmp_path: Path) -> None:
    nothing = read_claims(None, UUID(int=1), 1)
    assert nothing.unread == "the database is on another machine"
    missing = read_claims(tmp_path / "none.fdb", UUID(int=1), 1)
    assert missing.unread == f"{tmp_path}/none.fdb can't be read here: No such file or directory"
    (tmp_path / "text").write_bytes(bytes(5000))
    assert "on-disk structure 0" in str(read_claims(tmp_path / "text", UUID(int=1), 1).unread)
    assert nothing.not_seen(begin_window(_Engine()).visible) == frozenset()


@pytest.mark.parametrize(
    ("dsn", "is_here"),
    [
        ("/data/test.fdb", True),
        ("alias", True),
        ("localhost:/data/test.fdb", True),
        ("127.0.0.1/3051:/data/test.fdb", True),
        ("[::1]/3050:/data/test.fdb", True),
        ("inet://localhost:3050//data/test.fdb", True),
        ("db.example.com/3050:/data/test.fdb", False),
        ("[fe80::1]/3050:/data/test.fdb", False),
        ("inet4://10.0.0.1/data/test.fdb", False),
        ("inet://db.example.com:3050//data/test.fdb", False),
    ],
)
def test_database_of_this_machine_is_told_by_its_host(dsn: str, is_here: bool) -> None:
    assert DatabaseConnection(dsn).is_of_this_machine is is_here
