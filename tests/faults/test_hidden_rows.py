"""Effects of a kill of the engine on committed rows, without any plugin at work."""

from __future__ import annotations

import pytest
from capture import Capture
from hidden_rows import all_rows

pytestmark = pytest.mark.engine


def test_rows_that_a_scan_skips_after_a_kill_are_found(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER, V VARCHAR(900))", publish=False)
    client = capture.client()
    writer, other = client.attach(capture.database), client.attach(capture.database)
    fill = "INSERT INTO T VALUES (?, RPAD('x', 900, UUID_TO_CHAR(GEN_UUID())))"
    for number in range(100):  # more than eight pages: from there on they are given in eights
        writer.execute(fill, number)
        writer.commit()
    for number in range(20):
        writer.execute(fill, 1000 + number)  # first on a page, and never committed
        other.execute("INSERT INTO T VALUES (?, 'committed')", 2000 + number)
        other.commit()
    capture.clients.pop().kill()
    attachment = capture.attach()
    shown = [row["ID"] for row in attachment.execute("SELECT ID FROM T")]
    rows, hidden = all_rows(attachment, capture.database, "T")
    assert sorted(row["ID"] for row in rows) == [*range(100), *range(2000, 2020)]
    assert hidden == len(rows) - len(shown) > 0
