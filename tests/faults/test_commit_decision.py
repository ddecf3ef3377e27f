"""Decision about a transaction whose commit mark did not reach the inventory page in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture import Attachment, Capture, Client, fold, until
from harness import HERE, Libraries
from shared_folder import heads_in, is_shared
from transaction_pages import ACTIVE, COMMITTED, give_twice, given_twice, on_disk

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.journal.folder.shared_page import page_in
from firebird_cdc.journal.format import Gap

pytestmark = pytest.mark.engine

_POINTS = HERE / "points.py"
_TABLE = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)"


def _start_held(capture: Capture, libraries: Libraries) -> Client:
    """Start a server process whose writes of inventory pages wait while ``hold`` exists."""
    environment = capture.environment() | {
        "LD_PRELOAD": str(libraries.hold),
        "FBC_HOLD_DATABASE": str(capture.database),
        "FBC_HOLD_WHILE": str(_hold(capture)),
    }
    client = Client(capture.root.client_library, environment, capture.directory / "held.log")
    capture.clients.append(client)
    return client


def _hold(capture: Capture) -> Path:
    return capture.directory / "hold"


def _state(capture: Capture) -> Path:
    return capture.journal_directory / ".firebird-cdc"


def _undecided(capture: Capture) -> int:
    return int(page_in((_state(capture) / "tickets/page").read_bytes()).undecided)


def _kill(capture: Capture, client: Client) -> None:
    capture.clients.remove(client)
    client.kill()


def _insert(attachment: Attachment, key: int) -> None:
    attachment.execute("INSERT INTO T VALUES (?, 7)", key)
    attachment.commit()


def _keys(capture: Capture) -> list[int]:
    """Return the keys that the visible journals insert."""
    found = (row for journal in capture.read_all() for _, _, row in journal.brief())
    return sorted(row["ID"] for row in found if row)


def _assert_journals_are_the_table(capture: Capture, attachment: Attachment) -> None:
    assert fold(capture.journals())["T"] == attachment.rows("T")


def _recover(capture: Capture) -> None:
    """Do what a shipper does when it starts, with no server there."""
    recovery = Recovery(capture.journal_directory, fsync=True)
    until("the recovery", lambda: recovery.look() or not capture.live())


# ---- One server --------------------------------------------------------------------------------


def _overtaken(capture: Capture, libraries: Libraries, is_undone: bool = False) -> None:
    """Kill a server while a commit mark waits that the OIT in the header has passed, before
    any journal was decided."""
    capture.create(_TABLE)
    server = _start_held(capture, libraries)
    server.perform(_POINTS, "stall", "ask.before")
    arguments = str(capture.database), str(_hold(capture)), is_undone
    transaction = server.perform(HERE / "held_commit.py", "overtake", *arguments)
    _kill(capture, server)
    assert not capture.committed()
    state, oldest = on_disk(capture.database, transaction)
    assert (state, oldest > transaction) == (ACTIVE, True), "the kill came at another moment"


@pytest.mark.parametrize("recovery", ["server", "shipper"])
def test_a_transaction_below_the_oit_is_published_without_its_commit_mark(
    capture: Capture, libraries: Libraries, recovery: str
) -> None:
    _overtaken(capture, libraries)
    if recovery == "shipper":
        _recover(capture)
        assert _keys(capture) == [101, 102, 103]
    attachment = capture.attach()
    _insert(attachment, 104)
    assert {row["ID"] for row in attachment.execute("SELECT ID FROM T")} == {101, 102, 103, 104}
    _assert_journals_are_the_table(capture, attachment)


def test_a_rolled_back_transaction_below_the_oit_is_not_published(
    capture: Capture, libraries: Libraries
) -> None:
    _overtaken(capture, libraries, is_undone=True)
    attachment = capture.attach()
    _insert(attachment, 104)
    assert {row["ID"] for row in attachment.execute("SELECT ID FROM T")} == {102, 103, 104}
    _assert_journals_are_the_table(capture, attachment)


def test_transaction_with_a_number_that_a_reader_had_becomes_a_gap(capture: Capture) -> None:
    """Its rows may be in the table for good, so that nothing less would be true."""
    capture.create(_TABLE)
    server = capture.client()
    _insert(server.attach(capture.database), 101)
    until("the first journal to be published", lambda: _keys(capture) == [101])
    _kill(capture, server)
    number = give_twice(capture.database)
    assert given_twice(capture.database) == {number}

    server = capture.client()
    attachment = server.attach(capture.database)
    attachment.execute("INSERT INTO T VALUES (102, 7)")
    [row] = attachment.execute("SELECT CURRENT_TRANSACTION AS N FROM RDB$DATABASE")
    assert row["N"] == number
    _kill(capture, server)
    assert on_disk(capture.database, number)[0] == COMMITTED

    _insert(capture.attach(), 103)
    until("all journals to be published", lambda: not capture.live())
    _, gap, last = capture.journals()
    assert gap.header.transaction == number
    assert [type(change) for change in gap.changes] == [Gap]
    assert [change.op for change in last.rows] == ["c"]


# ---- Several processes -------------------------------------------------------------------------


class _Survived:
    """A process that dies at the write of a commit mark, and one that goes on with its work.

    The OIT can't pass the dead one's transaction while ``oldest`` is open: it is older.
    """

    def __init__(self, capture: Capture, libraries: Libraries) -> None:
        self._capture = capture
        capture.create(_TABLE)
        self.survivor = capture.client()
        self.oldest = self.survivor.attach(capture.database)
        self.oldest.execute("INSERT INTO T VALUES (100, 7)")
        self.other = self.survivor.attach(capture.database)
        dying = _start_held(capture, libraries)
        attachment = dying.attach(capture.database)
        attachment.execute("INSERT INTO T VALUES (101, 7)")
        [row] = attachment.execute("SELECT CURRENT_TRANSACTION AS N FROM RDB$DATABASE")
        self.transaction: int = row["N"]
        _insert(self.other, 102)
        until("the survivor's commit to be published", lambda: _keys(capture) == [102])
        number = _hold(capture).with_suffix(".number")
        number.write_text(str(self.transaction))
        number.rename(_hold(capture))  # at once: an empty file holds any write
        dying.start("commit", attachment.number, False)
        until("the commit mark to be held back", Path(f"{_hold(capture)}.held").exists)
        [self.journal] = [path for path in capture.live() if is_shared(path) and self._wrote(path)]
        _kill(capture, dying)
        state, oldest = on_disk(capture.database, self.transaction)
        assert (state, oldest <= self.transaction) == (ACTIVE, True)

    def _wrote(self, journal: Path) -> bool:
        numbers = [head.header.transaction for head in heads_in(journal)]
        return self.transaction in numbers

    def await_look(self) -> None:
        """Wait until the survivor has looked at what the dead process left."""
        until(
            "the survivor to look at the dead one's journal",
            lambda: _undecided(self._capture) or not self.journal.exists(),
        )
        state, oldest = on_disk(self._capture.database, self.transaction)
        assert self.journal.exists(), (
            f"gone, though state {state} of {self.transaction} with OIT {oldest} proves nothing"
        )


@pytest.fixture
def survived(classic: Capture, libraries: Libraries) -> _Survived:
    return _Survived(classic, libraries)


def test_a_journal_is_kept_while_another_process_may_take_it_for_committed(
    classic: Capture, survived: _Survived
) -> None:
    survived.await_look()
    assert _undecided(classic) == 1
    for key in (103, 104):
        _insert(survived.other, key)
        until("others' journals to be published", lambda: key in _keys(classic))  # noqa: B023
    assert 101 not in _keys(classic)


def test_a_kept_journal_is_published_once_the_oit_has_passed_it(
    classic: Capture, survived: _Survived
) -> None:
    survived.await_look()
    survived.oldest.commit()
    key = 102

    def has_passed() -> bool:
        nonlocal key
        key += 1
        _insert(survived.other, key)
        return on_disk(classic.database, survived.transaction)[1] > survived.transaction

    until("the OIT to pass it", has_passed)
    assert 101 in {row["ID"] for row in survived.other.execute("SELECT ID FROM T")}
    _assert_journals_are_the_table(classic, survived.other)


@pytest.mark.parametrize("recovery", ["server", "shipper"])
def test_a_kept_journal_is_decided_once_no_process_has_the_database_open(
    classic: Capture, survived: _Survived, recovery: str
) -> None:
    survived.await_look()
    _kill(classic, survived.survivor)
    if recovery == "shipper":
        _recover(classic)
        assert _keys(classic) == [102]
    attachment = classic.attach()
    _insert(attachment, 105)
    assert {row["ID"] for row in attachment.execute("SELECT ID FROM T")} == {102, 105}
    _assert_journals_are_the_table(classic, attachment)
