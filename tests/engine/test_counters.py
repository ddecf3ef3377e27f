"""Counts of the server's processes, for whoever reads the journal folder's page."""

from __future__ import annotations

import pytest
from capture import Capture, SqlError, own_journals, until

from firebird_cdc.journal.folder.counters import TIMINGS, DatabaseCounters, read_counters

pytestmark = pytest.mark.engine

_MOST_US = 100.0  # of a row
_TRIES = 5


def _counted(capture: Capture) -> DatabaseCounters:
    return read_counters(capture.journal_directory).databases[str(capture.database)]


def test_transaction_outcomes_are_counted_across_processes(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, TEXT VARCHAR(100))")
    page = classic.journal_directory / ".firebird-cdc" / "counters"
    page.parent.mkdir(parents=True)
    page.write_bytes(b"FBCDCCTR" + bytes(65528))  # no page of ours: it is replaced
    assert read_counters(classic.journal_directory).databases == {}
    first, second = classic.attach(), classic.attach()
    for number in range(3):
        first.execute(f"INSERT INTO T VALUES ({number}, 'x')")
        first.commit()
    second.execute("INSERT INTO T VALUES (10, 'x')")
    second.rollback()
    for attachment in (first, second):
        attachment.execute("SELECT ID FROM T")
        attachment.commit()
    classic.clients[1].kill()
    del classic.clients[1]
    third = classic.attach()
    third.execute(
        "EXECUTE BLOCK AS DECLARE N INTEGER = 100; BEGIN WHILE (N < 1100) DO BEGIN"
        " INSERT INTO T VALUES (:N, 'x'); N = N + 1; END END"
    )
    third.commit()
    classic.end_clients()
    journals = classic.journals()

    counted = _counted(classic)
    assert page.stat().st_mode & 0o777 == 0o600
    assert counted.captured == len(journals)
    assert counted.captured == 4
    assert counted.changes == 3 + 1000
    assert 1000 < counted.bytes <= sum(journal.stamp.journal_length for journal in journals)
    assert (counted.rolled_back, counted.journals_rolled_back) == (1, 1)
    assert counted.journals_opened == 5
    assert (counted.refused, counted.gaps) == (0, 0)

    observed = {name: counted.timings[name].count for name in TIMINGS}
    assert observed == {
        "start": 5, "rows": 5, "prepare": 4, "commit": 4, "rollback": 1,
        "detach": 2,  # the third was killed
        "confirm": 4,
    }  # fmt: skip
    for name, timing in counted.timings.items():
        assert 0 < timing.sum_s < 60, name


@own_journals
def test_refusals_are_counted_and_row_time_is_extrapolated_from_a_sample(
    capture: Capture,
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(100))")
    attachment = capture.attach()
    spent_us, each_us = 0.0, _MOST_US
    for number in range(1, _TRIES + 1):
        attachment.execute(
            "EXECUTE BLOCK AS DECLARE N INTEGER = 0; BEGIN WHILE (N < 20000) DO BEGIN"
            " INSERT INTO T VALUES (:N, 'x'); N = N + 1; END END"
        )
        attachment.commit()
        until("the journal to be confirmed", lambda: len(capture.committed()) == number)  # noqa: B023
        before_us, spent_us = spent_us, _counted(capture).timings["rows"].sum_s * 1e6
        each_us = (spent_us - before_us) / 20_000
        if each_us < _MOST_US:  # else the machine did other work amid a row that was timed
            break
    attachment.execute("INSERT INTO T VALUES (2, NULL)")
    until("the last one to have its name", lambda: len(capture.live()) == 1)
    [live] = capture.live()
    live.unlink()
    with pytest.raises(SqlError, match="is no longer in"):
        attachment.commit()
    attachment.rollback()
    capture.end_clients()
    counted = _counted(capture)
    assert (counted.refused, counted.rolled_back) == (1, 1)
    assert 0.05 < each_us < _MOST_US
