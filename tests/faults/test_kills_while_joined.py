"""Processes of a Classic server that are killed while they join another one, or record without a
bridge."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture import Attachment, Capture, until
from points import native_points

from firebird_cdc.journal.folder.join_file import is_joinable
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY

pytestmark = pytest.mark.engine

_POINTS = Path(__file__).with_name("points.py")
# The rest is about rollbacks, large transactions and gaps, or comes later in a process's life.
_IN_COMMIT = [point for point in native_points() if point.startswith("commit.")]


def _write(attachment: Attachment, number: int) -> None:
    attachment.execute("INSERT INTO T (ID) VALUES (?)", number)
    attachment.commit()


def _ids(capture: Capture) -> list[int]:
    return [row["ID"] for journal in capture.journals() for _, _, row in journal.brief() if row]


@pytest.mark.parametrize(
    "point", ["join.marked", "join.made", "join.done", "shared.filled", "shared.named", *_IN_COMMIT]
)
def test_killed_process_leaves_nothing_of_what_the_engine_has_not_committed(
    classic: Capture, point: str
) -> None:
    classic.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    first = classic.attach()
    _write(first, 1)
    assert _ids(classic) == [1]
    state = classic.journal_directory / STATE_DIRECTORY
    until("the first process to be one that others can join", lambda: is_joinable(state))
    client = classic.client()
    client.perform(_POINTS, "arm", point, 1)
    second = client.attach(classic.database)
    with pytest.raises(AssertionError, match="the process ended"):
        _write(second, 2)
    client.process.communicate()
    classic.clients.remove(client)
    third = classic.attach()
    _write(third, 3)
    until("the mark of the killed one to go", lambda: len(list(state.glob("owners/*"))) == 2)
    assert len(list(state.glob("slots/*"))) == len(list(state.glob("pool/*"))) == 2
    assert _ids(classic) == [1, 3]
    assert sorted(row["ID"] for row in first.execute("SELECT ID FROM T")) == [1, 3]
    first.commit()
