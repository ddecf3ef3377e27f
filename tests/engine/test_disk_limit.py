"""connector.journal.max.bytes: where journals may take no more, with no shipper running."""

from __future__ import annotations

import re
import sys

import forked
import pytest
from capture import Attachment, Capture, SqlError, until
from test_refusals import StartServer, program, start_server

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.folder.counters import DiskCounters, read_counters
from firebird_cdc.journal.folder.disk_usage import measure_folder
from firebird_cdc.journal.format import Gap

__all__ = ["program", "start_server"]

pytestmark = pytest.mark.engine

_LIMIT = 16 * 1024 * 1024
_LARGE = 6_000  # rows of a transaction that takes more than a third of the limit


@pytest.fixture
def limited(capture: Capture) -> Capture:
    capture.options["connector.journal.max.bytes"] = str(_LIMIT)
    capture.options["connector.journal.warn.bytes"] = str(_LIMIT // 2)
    capture.write_config()
    return capture


def _disk(capture: Capture) -> DiskCounters:
    return read_counters(capture.journal_directory).disk


def _ship(capture: Capture, broker: KafkaBroker) -> None:
    capture.write_config(kafka_producer_bootstrap_servers=broker.bootstrap)
    program = [sys.executable, "-P", "-m", "firebird_cdc", "ship", "--once"]
    files = ["--config", capture.config, "--logging", capture.logging]
    environment = {**capture.environment(), "LD_PRELOAD": ""}  # it is not what is looked at here
    done = forked.run([*program, *files], env=environment, check=False, timeout=240)
    assert done.returncode == 0, capture.log.read_text()[-2000:]


def test_the_limit_refuses_commits_until_journals_were_shipped(
    limited: Capture, start_server: StartServer, broker: KafkaBroker
) -> None:
    server = start_server()
    for number in (1, 2):
        server.write(number, rows=_LARGE)

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
    until("it to be gone, and those before to be decided", lambda: not limited.live())

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

    told = ("have reached", "are refused until", "more than connector.journal.warn.bytes")
    until("the log to tell", lambda: all(words in log() for words in told))

    until("all to be decided", lambda: not limited.live())
    _ship(limited, broker)
    assert not limited.committed()
    until("writes to work again", lambda: server.can_write(6))
    until("the log to tell", lambda: "connector.journal.max.bytes is kept again" in log())
    assert not _disk(limited).is_full
    server.end()
    limited.await_decided()
    [journal] = limited.read_all()
    assert [row["ID"] for _, _, row in journal.brief() if row] == [6]
    assert journal.sequence == 2 + count + 1, "what was refused has no number"


def _rows(attachment: Attachment, number: int, rows: int) -> None:
    attachment.execute(
        f"EXECUTE BLOCK AS DECLARE I INT = 0; BEGIN WHILE (I < {rows}) DO BEGIN"
        f" INSERT INTO T VALUES ({number}, LPAD('', 1000, 'x')); I = I + 1; END END"
    )
    attachment.commit()


def test_processes_share_the_limit_and_leave_gaps_where_nothing_may_be_refused(
    classic: Capture,
) -> None:
    classic.write_config(
        connector_capture_failure_mode="gap", connector_journal_max_bytes=str(_LIMIT)
    )
    classic.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    one, other = classic.attach(), classic.attach()
    _rows(one, 1, _LARGE)
    _rows(other, 2, _LARGE)
    _rows(one, 3, 2 * _LARGE)
    until("the gap", lambda: not classic.live())
    assert measure_folder(classic.journal_directory) < _LIMIT
    while not _disk(classic).is_full:
        _rows(one, 4, 500)
    _rows(other, 5, 1)
    until("the gap", lambda: not classic.live())
    large = [path for path in classic.committed() if path.stat().st_size > 1024 * 1024]
    assert len(large) == 2
    # Gaps are smaller.
    small = [path for path in classic.committed() if 65536 < path.stat().st_size < 1024 * 1024]
    small[0].unlink()
    _rows(other, 6, 1)  # nine tenths of the limit are not reached yet
    for path in large:
        path.unlink()

    def is_captured() -> bool:
        _rows(other, 7, 1)
        until("the commit to be confirmed", lambda: not classic.live())
        return [row["ID"] for _, _, row in classic.read_all()[-1].brief() if row] == [7]

    until("capture to go on", is_captured)
    rows = one.execute("SELECT ID FROM T GROUP BY ID")
    assert [row["ID"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    one.commit()
    classic.end_clients()
    journals = classic.read_all()
    gaps = [c.reason for j in journals for c in j.changes if isinstance(c, Gap)]
    assert len(gaps) >= 4
    assert all("connector.journal.max.bytes is" in reason for reason in gaps)
    shown = {row["ID"] for j in journals for _, _, row in j.brief() if row}
    assert shown == {4, 7}
    counted = read_counters(classic.journal_directory).databases[str(classic.database)]
    assert (counted.gaps, counted.refused) == (len(gaps), 0)
