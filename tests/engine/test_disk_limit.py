"""connector.journal.max.bytes: where journals may take no more, with no shipper running."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from capture import Capture, SqlError, until
from server import Server
from test_refusals import StartServer, program, start_server

from firebird_cdc.bridge.counters import DiskCounters, read_counters
from firebird_cdc.journal.disk_watch import measure_folder
from firebird_cdc.journal.format import Gap

__all__ = ["program", "start_server"]

pytestmark = pytest.mark.engine

_LIMIT = 16 * 1024 * 1024
_ROW = 1000
_LARGE = 6_000  # rows of a transaction that takes more than a third of the limit


@pytest.fixture
def limited(capture: Capture) -> Capture:
    capture.options["connector.journal.max.bytes"] = str(_LIMIT)
    capture.options["connector.journal.warn.bytes"] = str(_LIMIT // 2)
    capture.write_config()
    return capture


def _disk(capture: Capture) -> DiskCounters:
    return read_counters(capture.journal_directory).disk


def _fill(capture: Capture, server: Server) -> list[Path]:
    """Write large transactions as long as they fit; return their journals."""
    for number in (1, 2):
        server.write(number, rows=_LARGE)
    return until("both to be confirmed", lambda: (f := capture.committed()) and len(f) == 2 and f)


def test_the_limit_refuses_commits_until_journals_were_shipped(
    limited: Capture, start_server: StartServer
) -> None:
    server = start_server()
    shipped = _fill(limited, server)

    words = (
        rf"firebird-cdc: the journals in {limited.journal_directory} take (\d+) bytes, (\d+) of"
        rf" them this transaction's, and connector\.journal\.max\.bytes is {_LIMIT}: have the"
        r" shipper send them .* or raise the limit; transaction \d+ can't be committed"
    )
    with pytest.raises(SqlError) as refused:  # while it grows, far from its end
        server.write(3, rows=20 * _LARGE)
    found = re.search(words, str(refused.value))
    assert found, refused.value
    assert _LIMIT < int(found[1]) < _LIMIT + 1024 * 1024
    assert int(found[2]) > 3 * 1024 * 1024
    assert not limited.live()

    # It alone was too large: what fits goes on, up to the limit.
    count = 0
    while server.can_write(100 + count, rows=200):
        count += 1
    assert 5 < count < 30
    assert _disk(limited).is_full
    assert not server.can_write(4), "one row is too much now"
    server.read()
    taken = measure_folder(limited.journal_directory)
    assert abs(taken - _LIMIT) < 1024 * 1024
    assert abs(_disk(limited).bytes - taken) < 1024 * 1024

    def log() -> str:
        return limited.log.read_text()

    until("the log to tell", lambda: "are refused until" in log() and "have reached" in log())
    assert "more than connector.journal.warn.bytes" in log()

    until("all to be confirmed", lambda: not limited.live())
    small = [path for path in limited.committed() if path not in shipped]
    small[0].unlink()
    assert not server.can_write(5), "nine tenths of the limit are not reached yet"
    shipped[0].unlink()
    until("writes to work again", lambda: server.can_write(6))
    until("the log to tell", lambda: "connector.journal.max.bytes is kept again" in log())
    assert not _disk(limited).is_full
    server.end()
    shown = [row["ID"] for j in limited.read_all() for _, _, row in j.brief() if row]
    assert {3, 4, 5}.isdisjoint(shown)
    assert shown[-1] == 6


def test_the_limit_leaves_gaps_where_nothing_may_be_refused(
    limited: Capture, start_server: StartServer
) -> None:
    limited.write_config(connector_capture_failure_mode="gap")
    server = start_server()
    shipped = _fill(limited, server)
    server.write(3, rows=20 * _LARGE)
    until("the gap", lambda: not limited.live())
    assert measure_folder(limited.journal_directory) < _LIMIT
    while not _disk(limited).is_full:
        server.write(4, rows=1_000)
    server.write(5)
    until("the gaps", lambda: not limited.live())
    for path in shipped:
        path.unlink()

    def is_captured() -> bool:
        server.write(6)
        until("the commit to be confirmed", lambda: not limited.live())
        return [row["ID"] for _, _, row in limited.read_all()[-1].brief() if row] == [6]

    until("capture to go on", is_captured)
    server.end()
    journals = limited.read_all()
    gaps = [c.reason for j in journals for c in j.changes if isinstance(c, Gap)]
    assert len(gaps) >= 3
    assert all("connector.journal.max.bytes is" in reason for reason in gaps)
    counted = read_counters(limited.journal_directory).databases[str(limited.database)]
    assert (counted.gaps, counted.refused) == (len(gaps), 0)
    assert [journal.sequence for journal in journals] == list(range(3, 3 + len(journals)))
    rows = limited.attach().execute("SELECT ID FROM T GROUP BY ID")
    assert [row["ID"] for row in rows] == [1, 2, 3, 4, 5, 6]
