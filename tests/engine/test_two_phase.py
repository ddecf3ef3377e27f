"""Two-phase commit: what is in limbo is neither published nor forgotten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from capture import Capture, Client, Journal, either_form, fold, until

from firebird_cdc.journal.folder.failures import pages, unacknowledged
from firebird_cdc.journal.format import Gap

pytestmark = [pytest.mark.engine, either_form]

_DBA = Path(__file__).with_name("dba_work.py")

# Of what comes behind that, the engine does not report what ROLLBACK TO C undoes.
_OUT_OF_TURN = [
    "SAVEPOINT A",
    "INSERT INTO T VALUES (2, 0)",
    "SAVEPOINT B",
    "INSERT INTO T VALUES (3, 0)",
    "RELEASE SAVEPOINT A ONLY",
    "INSERT INTO T VALUES (4, 0)",
    "SAVEPOINT C",
]


class Pair:
    """Two captured databases with a table T each, and a process at work in both."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.databases = [capture.directory / name for name in ("test.fdb", "other.fdb")]
        for database in self.databases:
            capture.database = database
            capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)")
        self.decision = capture.directory / "decision"
        os.mkfifo(self.decision)

    def start(self, *statements: str) -> Client:
        """Have a process do statements in both, and the first phase; it awaits ``decide``."""
        client = self.capture.client()
        arguments = ([str(each) for each in self.databases], list(statements), str(self.decision))
        client.start("perform", str(_DBA), "two_phases", arguments)
        return client

    def decide(self, what: str) -> None:
        """Tell the process, once it is through with the first phase."""
        self.decision.write_text(what)

    def run(self, what: str, *statements: str) -> None:
        client = self.start(*statements)
        self.decide(what)
        client.finish()
        client.end()
        self.capture.clients.remove(client)

    def leave_in_limbo(self, *statements: str) -> None:
        """Kill the process between the phases."""
        client = self.start(*statements)
        with self.decision.open("w"):  # it is through with the first phase
            client.kill()
        self.capture.clients.remove(client)

    def limbo(self) -> list[list[int]]:
        client = self.capture.client()
        found = [client.perform(_DBA, "limbo", str(each)) for each in self.databases]
        client.end()
        self.capture.clients.remove(client)
        return found

    def resolve(self, commit: bool) -> None:
        """Resolve what is in limbo in each database for itself."""
        client = self.capture.client()
        for database in self.databases:
            for number in client.perform(_DBA, "limbo", str(database)):
                client.perform(_DBA, "end_limbo", str(database), number, commit)
        client.end()
        self.capture.clients.remove(client)

    def journals(self) -> list[list[Journal]]:
        """Return the committed journals of each database, in order, once no other is left."""
        self.capture.await_decided()
        aside = self.capture.journal_directory / ".firebird-cdc/quarantine"
        assert not list(aside.glob("*.reason"))
        found = self.capture.read_all()
        each = [[j for j in found if j.database == str(path)] for path in self.databases]
        for own in each:
            assert [journal.sequence for journal in own] == list(range(1, len(own) + 1))
        return each

    def balance(self) -> list[list[Journal]]:
        """Assert that journals and tables agree; return the journals."""
        each = self.journals()
        for database, own in zip(self.databases, each, strict=True):
            client = self.capture.client()
            assert fold(own).get("T", {}) == client.attach(database).rows("T")
            client.end()
            self.capture.clients.remove(client)
        return each


def _gaps(journals: list[Journal]) -> list[str]:
    return [
        change.reason
        for journal in journals
        for change in journal.changes
        if isinstance(change, Gap)
    ]


@pytest.fixture
def pair(classic: Capture) -> Pair:
    return Pair(classic)


def test_commit_after_both_phases_is_published_for_both_databases(pair: Pair) -> None:
    pair.run("commit", "INSERT INTO T VALUES (1, 0)", "UPDATE T SET N = 1")
    pair.run("commit", "INSERT INTO T VALUES (2, 0)")
    for journals in pair.balance():
        assert [[row.op for row in journal.rows] for journal in journals] == [["c", "u"], ["c"]]


def _confirmed_by_another(pair: Pair) -> Client:
    """Start a process that knows the tables of both databases, and confirms for others."""
    client = pair.capture.client()
    for database in pair.databases:
        attachment = client.attach(database)
        attachment.execute("INSERT INTO T VALUES (9, 9)")
        attachment.commit()
    until("what it wrote", lambda: len(pair.capture.committed()) == 2)
    return client


@pytest.mark.parametrize("is_committed", [True, False])
def test_limbo_of_a_process_without_a_bridge_is_decided_as_it_is_resolved(
    pair: Pair, is_committed: bool
) -> None:
    _confirmed_by_another(pair)
    client = pair.capture.client()
    databases = [str(each) for each in pair.databases]
    client.perform(_DBA, "two_phases", databases, ["INSERT INTO T VALUES (1, 0)"], "leave")
    pair.resolve(commit=is_committed)
    client.end()
    pair.capture.clients.remove(client)
    for journals in pair.balance():
        assert len(journals) == 1 + is_committed


def test_limbo_of_a_killed_process_without_a_bridge_is_a_gap_once_it_is_committed(
    pair: Pair,
) -> None:
    _confirmed_by_another(pair)
    pair.leave_in_limbo("INSERT INTO T VALUES (1, 0)")
    pair.resolve(commit=True)
    for journals in pair.journals():
        assert len(_gaps(journals)) == 1


def test_rollback_after_the_first_phase_publishes_nothing(pair: Pair) -> None:
    pair.run("rollback", "INSERT INTO T VALUES (1, 0)")
    pair.run("commit", "INSERT INTO T VALUES (2, 0)")
    for journals in pair.balance():
        assert [journal.brief() for journal in journals] == [[("c", None, {"ID": 2, "N": 0})]]


def test_other_transactions_are_published_beside_a_prepared_one(pair: Pair) -> None:
    client = pair.start("INSERT INTO T VALUES (1, 0)")
    with pair.decision.open("w") as decision:
        other = pair.capture.client().attach(pair.databases[0])
        other.execute("INSERT INTO T VALUES (2, 0)")
        other.commit()
        until("the other's journal", lambda: len(pair.capture.committed()) == 1)
        assert len(pair.capture.live()) >= 1
        decision.write("commit")
    client.finish()
    one, two = pair.balance()
    assert [len(one), len(two)] == [2, 1]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
def test_prepared_transaction_outlives_its_attachments(pair: Pair, commit: bool) -> None:
    pair.run("leave", "INSERT INTO T VALUES (1, 0)", "UPDATE T SET N = 1")
    assert [len(each) for each in pair.limbo()] == [1, 1]
    other = pair.capture.client().attach(pair.databases[0])
    other.execute("INSERT INTO T VALUES (2, 0)")
    other.commit()
    until("the other's journal", lambda: len(pair.capture.committed()) == 1)
    until("no other journal to be live", lambda: len(pair.capture.live()) == 2)
    other.close()
    pair.resolve(commit)
    one, two = pair.balance()
    kinds = [[row.op for row in journal.rows] for journal in one]
    assert kinds == ([["c"], ["c", "u"]] if commit else [["c"]])
    assert len(two) == commit
    assert not _gaps(one + two)


def test_transaction_changing_rows_from_limbo_is_ordered_after_that_one(pair: Pair) -> None:
    for number in range(5):
        pair.run("leave", f"INSERT INTO T VALUES ({number}, 0)")
        pair.resolve(commit=True)
        other = pair.capture.client()
        attachment = other.attach(pair.databases[0])
        attachment.execute("UPDATE T SET N = N + 1")
        attachment.commit()
        pair.capture.clients.remove(other)
        other.end()
    one, two = pair.balance()
    assert [len(one), len(two)] == [10, 5]


def test_seal_floor_orders_a_transaction_after_the_one_from_limbo(pair: Pair) -> None:
    """It has no ticket: in the files, the order is that of the floors. Its own process goes on, so
    that none that starts takes its journal for one whose ticket was lost."""
    client = pair.start("INSERT INTO T VALUES (1, 0)")
    pair.decide("leave")
    client.finish()
    pair.resolve(commit=True)
    other = pair.capture.client().attach(pair.databases[0])
    other.execute("UPDATE T SET N = N + 1")
    other.commit()
    one, _ = pair.journals()
    floors = [journal.floor for journal in one]
    assert floors[0] is not None and floors[1] is not None
    assert floors[0] < floors[1]


# That a gap can be left in limbo, that it can't, and that no bridge runs that could tell it apart.
@pytest.mark.parametrize("fault", ["savepoints", "no folder", "wrong option"])
def test_unrecorded_transaction_committed_from_limbo_is_counted(pair: Pair, fault: str) -> None:
    capture = pair.capture
    capture.options["connector.capture.failure.mode"] = "gap"
    statements = ["INSERT INTO T VALUES (1, 0)"]
    if fault == "savepoints":
        statements = [*_OUT_OF_TURN, *statements, "ROLLBACK TO C"]
    elif fault == "no folder":
        capture.delete_folder()
        capture.journal_directory.write_text("in the way")
    else:
        capture.options["connector.journal.fsync"] = "perhaps"
    capture.write_config()
    pair.run("leave", *statements)
    pair.resolve(commit=True)
    told = unacknowledged(pages(capture.journal_directory, [capture.config]))
    lost = {(str(database), "lost", 1) for database in pair.databases}
    assert {(each.database, each.kind, each.count) for each in told} == lost
    if fault == "savepoints":
        pair.run("commit", "INSERT INTO T VALUES (9, 0)")  # somebody has to look
        assert all(len(_gaps(own)) == 1 for own in pair.journals())


def test_rollback_of_what_a_kill_left_in_limbo_publishes_nothing(pair: Pair) -> None:
    pair.leave_in_limbo("INSERT INTO T VALUES (1, 0)")
    assert [len(each) for each in pair.limbo()] == [1, 1]
    pair.resolve(commit=False)
    pair.run("commit", "INSERT INTO T VALUES (2, 0)")
    for journals in pair.balance():
        assert [journal.brief() for journal in journals] == [[("c", None, {"ID": 2, "N": 0})]]


def test_killed_between_the_phases_and_committed_leaves_a_gap_not_silence(pair: Pair) -> None:
    pair.leave_in_limbo("INSERT INTO T VALUES (1, 0)")
    [[number], _] = pair.limbo()
    other = pair.capture.client().attach(pair.databases[0])
    other.execute("INSERT INTO T VALUES (2, 0)")
    other.commit()
    until("the other's journal", lambda: len(pair.capture.committed()) == 1)
    until("no other journal to be live", lambda: len(pair.capture.live()) == 2)
    other.close()
    pair.resolve(commit=True)
    one, two = pair.journals()
    assert [len(one), len(two)] == [2, 1]
    for journals in one, two:
        [reason] = _gaps(journals)
        assert "limbo" in reason or "two-phase" in reason
    assert one[1].header.transaction == number


def test_killed_in_limbo_and_committed_before_any_check_leaves_a_gap(pair: Pair) -> None:
    pair.leave_in_limbo("INSERT INTO T VALUES (1, 0)")
    client = pair.capture.client()
    [[number], _] = pair.limbo()
    client.perform(_DBA, "commit_limbo", str(pair.databases[0]), number)
    assert pair.limbo() == [[], []]
    other = pair.capture.client().attach(pair.databases[0])
    other.execute("INSERT INTO T VALUES (2, 0)")
    other.commit()
    one, two = pair.journals()
    assert [len(_gaps(one)), len(_gaps(two))] == [1, 1]
