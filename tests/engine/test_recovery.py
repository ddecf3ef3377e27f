"""Files of a server that ends at any point: decided without a server, and without work."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

import pytest
from capture import Attachment, Capture, either_form, fold, until

from firebird_cdc.bridge.recovery import Recovery

pytestmark = [pytest.mark.engine, either_form]

_TABLE = "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)"


# In a process of its own: another test may have loaded a client library into this one.
_LOOK_AS_THE_SHIPPER_DOES = """
import sys
from pathlib import Path
from firebird_cdc.bridge.recovery import Recovery

Recovery(Path(sys.argv[1]), fsync=True).look()
libraries = Path("/proc/self/maps").read_text()
assert "libfbclient" not in libraries and "libEngine" not in libraries
"""


def _recover(capture: Capture) -> None:
    """Look after the folder once, without an engine."""
    program = [sys.executable, "-P", "-c", _LOOK_AS_THE_SHIPPER_DOES]
    capture.stack.run("recovery", [*program, capture.journal_directory])


def _kill(capture: Capture) -> None:
    while capture.clients:
        capture.clients.pop().kill()


def _ids(capture: Capture) -> list[int]:
    return [row["ID"] for journal in capture.journals() for _, _, row in journal.brief() if row]


def _quarantine(capture: Capture) -> list[str]:
    found = (capture.journal_directory / ".firebird-cdc/quarantine").glob("*.reason")
    return [path.read_text() for path in found]


def test_a_commit_followed_by_a_kill_needs_no_further_work(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    for number in range(20):
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
    attachment.execute("INSERT INTO T VALUES (100)")
    _kill(capture)
    _recover(capture)
    assert not capture.live()
    assert _ids(capture) == list(range(20))
    state = capture.journal_directory / ".firebird-cdc"
    assert not list((state / "owners").iterdir())
    assert not list((state / "pool").iterdir())


def test_recovery_leaves_journals_of_a_running_server_alone(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    _recover(capture)
    assert len(capture.live()) == 1
    attachment.commit()
    assert _ids(capture) == [1]


def test_recovery_decides_only_the_journal_of_the_dead_process(classic: Capture) -> None:
    classic.create(_TABLE)
    first, second = classic.attach(), classic.attach()
    first.execute("INSERT INTO T VALUES (1)")
    second.execute("INSERT INTO T VALUES (2)")
    first.commit()
    classic.clients.pop(0).kill()
    _recover(classic)  # or the other process does, which looks as well
    until("one journal to be decided", lambda: len(classic.live()) == 1)
    second.commit()
    assert _ids(classic) == [1, 2]
    assert fold(classic.journals())["T"] == second.rows("T")


def test_restored_copy_begins_an_epoch_and_old_orphans_are_quarantined(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    capture.end_clients()
    copy = capture.directory / "copy.fdb"
    shutil.copy(capture.database, copy)
    attachment = capture.attach()
    for number in (2, 3):
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
    attachment.execute("INSERT INTO T VALUES (4)")
    attachment.commit()
    _kill(capture)
    copy.rename(capture.database)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (5)")
    attachment.commit()
    capture.end_clients()
    _recover(capture)  # what the server did not come to
    journals = capture.read_all()
    epochs = {j.stamp.epoch for j in journals}
    assert epochs == {0, 1}
    new = [j for j in journals if j.stamp.epoch == 1]
    assert [(j.sequence, j.brief()) for j in new] == [(1, [("c", None, {"ID": 5})])]
    old = [j.sequence for j in journals if j.stamp.epoch == 0]
    assert old == list(range(1, len(old) + 1))
    assert len(old) + len(_quarantine(capture)) == 4
    assert all("restored or replaced" in reason for reason in _quarantine(capture))


@pytest.mark.plain
@pytest.mark.parametrize("place", ["same inode", "another inode"])
def test_transaction_numbers_that_go_back_begin_an_epoch(capture: Capture, place: str) -> None:
    capture.create(_TABLE)
    old = capture.database.read_bytes()
    attachment = capture.attach()
    for number in range(10):
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
    capture.end_clients()
    if place == "another inode":
        capture.database.rename(capture.directory / "kept.fdb")
    capture.database.write_bytes(old)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (100)")
    attachment.commit()
    capture.end_clients()
    numbers = [(j.stamp.epoch, j.sequence) for j in capture.read_all()]
    assert sorted(numbers) == [*((0, n) for n in range(1, 11)), (1, 1)]


def _current(attachment: Attachment) -> int:
    [row] = attachment.execute("SELECT CURRENT_TRANSACTION N FROM RDB$DATABASE")
    return int(row["N"])


def _pass_in_one_attachment(capture: Capture, number: int) -> None:
    """Have the database give NUMBER, and more, to transactions that change nothing."""
    attachment = capture.attach()
    while _current(attachment) <= number:
        attachment.commit()
    attachment.commit()


def _die_in_it(capture: Capture, number: int) -> None:
    """Have a process die in transaction NUMBER, and many come after it."""
    attachment = capture.attach()
    while _current(attachment) < number:
        attachment.commit()
    _kill(capture)
    for _ in range(10):
        attachment = capture.attach()
        _current(attachment)
        attachment.commit()
        capture.end_clients()


@pytest.mark.plain
@pytest.mark.parametrize("hide", [_pass_in_one_attachment, _die_in_it])
def test_an_older_copy_is_noticed_though_its_numbers_went_on(
    capture: Capture, hide: Callable[[Capture, int], None]
) -> None:
    capture.create(_TABLE)
    old = capture.database.read_bytes()
    last = 0
    for number in range(5):
        attachment = capture.attach()
        attachment.execute("INSERT INTO T VALUES (?)", number)
        last = _current(attachment)
        attachment.commit()
        capture.end_clients()
    capture.database.write_bytes(old)
    hide(capture, last)
    capture.end_clients()
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (100)")
    assert _current(attachment) > last
    attachment.commit()
    capture.end_clients()
    numbers = [(j.stamp.epoch, j.sequence) for j in capture.read_all()]
    assert sorted(numbers) == [*((0, n) for n in range(1, 6)), (1, 1)]


@pytest.mark.plain
def test_the_numbers_go_on_when_all_journals_are_gone(capture: Capture) -> None:
    capture.create(_TABLE)
    for number in range(1, 4):
        attachment = capture.attach()
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
        capture.end_clients()
        (journal,) = capture.read_all()
        assert journal.sequence == number
        journal.file.unlink()


@pytest.mark.plain
def test_a_folder_of_another_user_is_not_touched(capture: Capture) -> None:
    capture.create(_TABLE)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    capture.end_clients()
    state = capture.journal_directory / ".firebird-cdc"
    before = sorted(path for path in state.rglob("*"))
    shutil.chown(capture.journal_directory, 12345)
    Recovery(capture.journal_directory, fsync=True).look()
    shutil.chown(capture.journal_directory, 0)
    assert sorted(path for path in state.rglob("*")) == before
