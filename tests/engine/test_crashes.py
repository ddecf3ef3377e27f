"""kill -9 of the process that hosts the engine: nothing lost, nothing that never was."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from capture import Capture, either_form, either_mode, fold, until
from effects import EFFECTS, assert_adds_up, surviving_rows
from random_work import TABLES

pytestmark = [pytest.mark.engine, either_form]

_RANDOM_WORK = Path(__file__).with_name("random_work.py")


def _kill_last(capture: Capture) -> None:
    capture.clients.pop().kill()


def test_kill_in_the_middle_of_a_transaction_publishes_nothing_of_it(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    attachment.execute("INSERT INTO T VALUES (2)")
    assert len(capture.live()) >= 1
    _kill_last(capture)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (3)")
    attachment.commit()
    assert [row["ID"] for j in capture.journals() for _, _, row in j.brief() if row] == [1, 3]
    assert fold(capture.journals())["T"] == attachment.rows("T")


def test_kill_in_the_middle_of_a_large_transaction_leaves_nothing_of_it(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER)")
    attachment = capture.attach()
    attachment.immediate(
        "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < 30000) DO BEGIN"
        " INSERT INTO T VALUES (:I); I = I + 1; END END"
    )
    assert max(path.stat().st_size for path in capture.live()) > 200_000
    _kill_last(capture)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (-1)")
    attachment.commit()
    assert [journal.brief() for journal in capture.journals()] == [[("c", None, {"ID": -1})]]
    state = capture.journal_directory / ".firebird-cdc"
    capture.end_clients()
    attachment = capture.attach()  # and what both left beside the journals is tidied away
    attachment.execute("DELETE FROM T")
    attachment.commit()
    until("marks of ended processes to go", lambda: len(list((state / "owners").iterdir())) == 1)


def test_kill_right_after_a_commit_loses_nothing(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    for number in range(5):
        attachment = capture.attach()
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
        _kill_last(capture)
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (5)")
    attachment.commit()
    until("6 journals", lambda: len(capture.committed()) == 6)
    rows = [row["ID"] for j in capture.journals() for _, _, row in j.brief() if row]
    assert rows == list(range(6))


@either_mode
def test_killed_at_random_during_random_work(request: pytest.FixtureRequest, mode: str) -> None:
    capture: Capture = request.getfixturevalue(mode)
    capture.create(*TABLES, *EFFECTS)
    chance = random.Random(f"kill {mode}")
    processes = 1 if mode == "capture" else 2
    for life in range(4):
        enough = len(capture.committed()) + chance.randint(5, 60)
        for number in range(processes):
            client = capture.client()
            seed = f"life {life} of {number}"
            arguments = (str(capture.database), seed, 3, 10_000)
            client.start("perform", str(_RANDOM_WORK), "work", arguments)
        until(f"{enough} journals", lambda: len(capture.committed()) >= enough)  # noqa: B023
        while capture.clients:
            _kill_last(capture)
    attachment = capture.attach()
    attachment.execute("INSERT INTO LOG_ VALUES (-1, 'last')")
    attachment.commit()
    journals = capture.journals()
    transactions = Counter(journal.header.transaction for journal in journals)
    assert set(transactions.values()) == {1}
    assert_adds_up(journals, surviving_rows(attachment, capture.database), killed=True)
