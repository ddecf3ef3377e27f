"""Crashes that a kill at random seldom makes, each made on purpose."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from capture import Attachment, Capture, Client, SqlError, fold, until
from harness import HERE, Libraries, Plan, Series, Tally

from firebird_cdc.demo.processes import Stack
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.format import own_reader

pytestmark = pytest.mark.engine

_POINTS = HERE / "points.py"
_ENOUGH_S = 1.0  # for a confirmer that asks every few milliseconds


def _never(what: str, condition: Any) -> None:
    with pytest.raises(SetupError, match="in vain"):
        until(what, condition, _ENOUGH_S)


def _keys(capture: Capture) -> list[int]:
    return [row["ID"] for journal in capture.journals() for _, _, row in journal.brief() if row]


def _dies(capture: Capture, end: Callable[[], None]) -> None:
    """Have the last process die in what END asks of it."""
    client = capture.clients.pop()
    with pytest.raises(AssertionError, match="the process ended"):
        end()
    assert client.process.returncode == -signal.SIGKILL
    client.process.communicate()


class _Held:
    """A server process whose commit marks wait while ``hold`` exists."""

    def __init__(self, capture: Capture, libraries: Libraries) -> None:
        self.hold = capture.directory / "hold"
        self.is_held = Path(f"{self.hold}.held")
        environment = capture.environment() | {
            "LD_PRELOAD": str(libraries.hold),
            "FBC_HOLD_DATABASE": str(capture.database),
            "FBC_HOLD_WHILE": str(self.hold),
        }
        self.client = Client(
            capture.root.client_library, environment, capture.directory / "held.log"
        )
        capture.clients.append(self.client)

    def commit_held(self, attachment: Attachment) -> None:
        """Begin a commit, and wait until its mark is all that it lacks."""
        self.hold.touch()
        self.client.start("commit", attachment.number, False)
        until("the commit mark to be held back", self.is_held.exists)


def test_a_commit_mark_that_is_held_back_publishes_nothing(
    capture: Capture, libraries: Libraries
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    held = _Held(capture, libraries)
    attachment = held.client.attach(capture.database)
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    assert _keys(capture) == [1]
    attachment.execute("INSERT INTO T VALUES (2)")
    held.commit_held(attachment)
    _never("a second journal", lambda: len(capture.committed()) > 1)
    capture.clients.pop().kill()
    held.hold.unlink()

    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (3)")
    attachment.commit()
    assert _keys(capture) == [1, 3]
    assert fold(capture.journals())["T"] == attachment.rows("T")


def test_a_commit_mark_that_was_held_back_is_published_once_it_is_written(
    capture: Capture, libraries: Libraries
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    held = _Held(capture, libraries)
    attachment = held.client.attach(capture.database)
    attachment.execute("INSERT INTO T VALUES (1)")
    held.commit_held(attachment)
    _never("a journal", capture.committed)
    held.hold.unlink()
    held.client.finish()
    until("the journal", capture.committed)
    assert _keys(capture) == [1]


def _fail_after_prepare(capture: Capture) -> tuple[Attachment, Path]:
    """Have a commit fail in its deferred work; return the connection and the sealed journal."""
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)")
    attachment = capture.attach()
    for number in (1, 2):
        attachment.execute("INSERT INTO T VALUES (?, 7)", number)
        attachment.commit()
    assert _keys(capture) == [1, 2]
    attachment.execute("INSERT INTO T VALUES (3, 8)")
    attachment.immediate("ALTER TABLE T ADD CONSTRAINT U UNIQUE (N)")
    with pytest.raises(SqlError, match="UNIQUE"):
        attachment.commit()
    [live] = capture.live()
    with own_reader(live, UUID(live.name[:36])) as reader:
        assert reader.seal is not None, "the engine asks for a prepare before its deferred work"
    return attachment, live


def _write_after_restart(capture: Capture) -> None:
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (4, 9)")
    attachment.commit()
    assert _keys(capture) == [1, 2, 4]
    assert fold(capture.journals())["T"] == attachment.rows("T")


def test_a_rolled_back_journal_that_a_power_cut_brings_back_is_not_published(
    capture: Capture,
) -> None:
    attachment, live = _fail_after_prepare(capture)
    saved = capture.directory / "saved"
    os.link(live, saved)
    attachment.rollback()
    assert not live.exists()
    capture.clients.pop().kill()
    saved.rename(live)  # the deletion was not on disk yet
    _write_after_restart(capture)


def test_kill_between_a_failed_commit_and_its_rollback_publishes_nothing(capture: Capture) -> None:
    _, live = _fail_after_prepare(capture)
    capture.clients.pop().kill()
    assert live.exists()
    _write_after_restart(capture)


@pytest.mark.parametrize("point", ["unseal.before", "unseal.written", "unseal.after"])
def test_kill_in_the_rollback_of_a_failed_commit_publishes_nothing(
    capture: Capture, point: str
) -> None:
    attachment, live = _fail_after_prepare(capture)
    capture.clients[-1].perform(_POINTS, "arm", point, 1)
    _dies(capture, attachment.rollback)
    assert live.exists()
    _write_after_restart(capture)


def test_sweep_without_the_plugin_after_a_kill_loses_and_invents_nothing(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (0)")
    attachment.commit()
    assert _keys(capture) == [0]
    client = capture.clients[-1]
    client.perform(_POINTS, "stall", "number.before")
    client.perform(_POINTS, "arm", "commit.end", 2)
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    attachment.execute("INSERT INTO T VALUES (2)")
    [dead] = attachment.execute("SELECT CURRENT_TRANSACTION AS N FROM RDB$DATABASE")
    _dies(capture, attachment.commit)
    assert len(capture.live()) >= 2

    replication = capture.root.path / "replication.conf"
    with_plugin = replication.read_text()
    replication.write_text("")
    bare = capture.client()
    attachment = bare.attach(capture.database)
    for _ in range(2):
        bare.perform(_POINTS, "sweep", str(capture.database))
        for _ in range(5):  # only so many transactions later does the engine forget
            answer = attachment.execute(f"SELECT RDB$GET_TRANSACTION_CN({dead['N']}) AS CN FROM T")
            attachment.commit()
    assert [row["CN"] for row in answer] == [1, 1], "the engine takes it for committed"
    capture.end_clients()
    replication.write_text(with_plugin)

    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (3)")
    attachment.commit()
    assert _keys(capture) == [0, 1, 3]
    assert fold(capture.journals())["T"] == attachment.rows("T")


def test_harness_finds_uncommitted_journals_of_a_confirm_all_confirmer(
    tmp_path: Path, stack: Stack, libraries: Libraries
) -> None:
    tally = Tally()
    for attempt in range(20):  # a kill finds one between its commit and its mark, or not
        home = tmp_path / str(attempt)
        home.mkdir()
        series = Series(home, stack, "Super", libraries, tally, confirms=False)
        series.live(Plan(work_s=0.4, hold_us=20_000), f"U{attempt}")
        series.kill_all()
        # A phantom that was not sealed becomes a gap, which has no rows.
        if any("only in the journals" in fault for fault in tally.faults):
            break
    assert tally.phantoms > 0, str(tally)
    assert any("phantoms" in fault for fault in tally.faults)
    assert any("only in the journals" in fault for fault in tally.faults)
