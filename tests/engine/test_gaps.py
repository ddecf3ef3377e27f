"""Commits where nothing may be refused: they go through, and what is missing is marked as a gap."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import instruments
import pytest
from capture import Capture, SqlError, own_journals, until
from server import Server, SmallDisk
from test_refusals import (
    FAULTS,
    StartServer,
    failing_sync,
    program,
    small_disk,
    start_server,
)

from firebird_cdc.cli import main
from firebird_cdc.journal.format import Gap

__all__ = ["failing_sync", "program", "small_disk", "start_server"]

pytestmark = pytest.mark.engine


def _choose_gap(capture: Capture) -> None:
    capture.options["connector.capture.failure.mode"] = "gap"
    capture.write_config()


def _leave_engine_defaults(capture: Capture) -> None:
    conf = capture.root.path / "replication.conf"
    text, count = re.subn(r"(?m)^\s*(report_errors|disable_on_error) =.*\n", "", conf.read_text())
    assert count == 2
    conf.write_text(text)


MODES: dict[str, Callable[[Capture], None]] = {
    "gap": _choose_gap,
    "engine's defaults": _leave_engine_defaults,
}


@pytest.fixture(params=MODES)
def lenient(capture: Capture, request: pytest.FixtureRequest) -> Capture:
    MODES[request.param](capture)
    return capture


def _gaps(capture: Capture) -> list[tuple[Path, str]]:
    return [
        (journal.path, change.reason)
        for journal in capture.journals()
        for change in journal.changes
        if isinstance(change, Gap)
    ]


def _captured(capture: Capture) -> list[int]:
    return [row["ID"] for j in capture.journals() for _, _, row in j.brief() if row]


def _captured_so_far(capture: Capture) -> list[int]:
    return [row["ID"] for j in capture.read_all() for _, _, row in j.brief() if row]


def _assert_one_gap(capture: Capture, words: str, captured: list[int]) -> None:
    """One gap, with the cause, which ``journal show`` prints; all else is captured."""
    [(path, reason)] = until("the gap to be marked", lambda: _gaps(capture))
    assert re.search(f"(?s)committed.*could not be recorded: .*{words}", reason), reason
    assert _captured(capture) == captured
    with redirect_stdout(StringIO()) as shown:
        main(["journal", "show", str(path)])
    assert re.search(f"(?si)gap.*{words}", shown.getvalue()), shown.getvalue()


def _rows(capture: Capture) -> list[int]:
    reader = capture.attach()
    rows = sorted({row["ID"] for row in reader.execute("SELECT ID FROM T")})
    capture.end_clients()
    return rows


def _has_no_error(capture: Capture) -> bool:
    log = capture.replication_log
    return not log.exists() or "firebird-cdc" not in log.read_text()


def _await_bridge(capture: Capture, server: Server) -> None:
    """Have a bridge start by transactions that are rolled back, and so leave nothing."""

    def is_capturing() -> bool:
        server.execute("INSERT INTO T VALUES (99, NULL)")
        server.call("rollback")
        return capture.log.exists() and " capturing into " in capture.log.read_text()

    until("the bridge to start", is_capturing)


# In each mode they are the same to the plugin's C but for these; all are met in test_refusals.py.
_TOLD_APART_IN_C = ("folder not writable", "bridge fails", "Python library missing")
STARTS = [
    pytest.param(mode, name, marks=() if name in _TOLD_APART_IN_C else pytest.mark.plain)
    for mode in MODES
    for name in FAULTS
    if mode != "gap" or name not in ("no configuration file", "no YAML")  # it would say so
]


@pytest.mark.parametrize(("lenient", "name"), STARTS, indirect=["lenient"])
def test_a_bridge_that_cannot_start_lets_commits_through_and_leaves_a_gap(
    lenient: Capture, start_server: StartServer, name: str
) -> None:
    fault = FAULTS[name]
    fault.cause(lenient)
    server = start_server()
    server.read()
    server.execute("INSERT INTO T VALUES (98, NULL)")
    server.call("rollback")
    server.write(1)
    told = (lenient.directory / "server.log").read_text()
    assert re.search(
        f"(?s)firebird-cdc: transactions .* could not be recorded: .*{fault.words}", told
    )
    fault.mend(lenient)
    _await_bridge(lenient, server)
    server.write(2)
    server.end()
    _assert_one_gap(lenient, fault.words, [2])
    assert _rows(lenient) == [1, 2]
    assert _has_no_error(lenient)


def test_a_gap_outlives_a_process_that_never_had_a_bridge(
    lenient: Capture, start_server: StartServer
) -> None:
    fault = FAULTS["Python library missing"]
    fault.cause(lenient)
    server = start_server()
    server.write(1)
    server.end()
    fault.mend(lenient)
    server = start_server()
    server.write(2)
    server.end()
    _assert_one_gap(lenient, fault.words, [2])


def test_commits_while_the_folder_was_deleted_are_one_gap(
    lenient: Capture, start_server: StartServer
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", lenient.committed)
    lenient.delete_folder()
    lenient.journal_directory.write_text("in the way")
    for number in (1, 2, 3):
        server.write(number)
    server.execute("INSERT INTO T VALUES (98, NULL)")
    server.call("rollback")
    lenient.journal_directory.unlink()
    lenient.log.unlink()
    _await_bridge(lenient, server)
    server.write(4)
    server.end()
    _assert_one_gap(lenient, "journal", [4])
    [(_, reason)] = _gaps(lenient)
    assert reason.startswith("3 transactions were committed from ")
    assert _rows(lenient) == [0, 1, 2, 3, 4]
    assert _has_no_error(lenient)


@own_journals
def test_commit_without_permissions_becomes_a_gap(
    lenient: Capture, start_server: StartServer
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", lenient.committed)
    lenient.journal_directory.chmod(0o500)
    server.write(1)
    lenient.journal_directory.chmod(0o700)
    lenient.log.unlink()
    _await_bridge(lenient, server)
    server.write(2)
    server.end()
    _assert_one_gap(lenient, "Permission denied", [0, 2])
    assert _has_no_error(lenient)


def test_sync_failed_after_commit_becomes_a_gap_only_for_what_could_not_be_written(
    lenient: Capture, program: Path, failing_sync: Path
) -> None:
    lenient.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    flag = lenient.directory / "failing"
    environment = ["env", f"LD_PRELOAD={instruments.preload(failing_sync)}", f"FAILING_SYNC={flag}"]
    server = Server(lenient, program, environment)
    server.write(0)
    until("the journal to be confirmed", lenient.committed)
    flag.touch()
    server.write(1)
    server.write(2)  # after that nothing is trusted before it has been tried
    assert _captured_so_far(lenient) == [0]
    flag.unlink()
    lenient.log.unlink()
    _await_bridge(lenient, server)
    server.write(3)
    server.end()
    _assert_one_gap(lenient, "(cannot sync|can't be written)", [0, 1, 3])
    assert _has_no_error(lenient)


def test_full_disk_leaves_a_gap_for_a_transaction_that_does_not_fit(
    lenient: Capture, start_server: StartServer, small_disk: SmallDisk
) -> None:
    server = start_server()
    server.write(0)
    server.write(1, rows=8_000)
    server.write(2)  # the space of the one that did not fit is free again
    small_disk.resize(64)
    server.write(3, rows=8_000)
    server.end()
    _assert_one_gap(lenient, "No space left on device", [0, 2, *[3] * 8_000])
    assert [journal.sequence for journal in lenient.journals()] == [1, 2, 3, 4]
    assert _has_no_error(lenient)


def test_a_disk_without_a_byte_left(
    lenient: Capture, start_server: StartServer, small_disk: SmallDisk
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", lenient.committed)
    filler = small_disk.fill(4096)
    server.write(1, rows=100)
    assert _captured(lenient) == [0]
    filler.unlink()
    _await_bridge(lenient, server)
    server.write(2, rows=100)
    server.end()
    _assert_one_gap(lenient, "No space left on device", [0, *[2] * 100])
    assert _has_no_error(lenient)


@own_journals
def test_transactions_without_room_for_a_gap_are_counted_for_the_next_process(
    lenient: Capture, start_server: StartServer, small_disk: SmallDisk
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", lenient.committed)
    filler = small_disk.fill(512)
    for _ in range(3):
        server.write(1_000)
    server.end()
    filler.unlink()
    server = start_server()
    server.write(1_001)
    server.end()
    _assert_one_gap(lenient, "their process has ended", [0, 1_001])
    [(_, reason)] = _gaps(lenient)
    assert reason.startswith("3 transactions were committed from ")


def test_database_path_longer_than_254_bytes_leaves_a_gap(lenient: Capture) -> None:
    lenient.database = lenient.directory / ("d" * 100) / ("e" * 100) / "test.fdb"
    lenient.database.parent.mkdir(parents=True)
    assert len(str(lenient.database)) > 254
    lenient.create("CREATE TABLE T (ID INTEGER)")
    attachment = lenient.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    lenient.end_clients()
    _assert_one_gap(lenient, "longer than 254 bytes", [])
    [journal] = lenient.journals()
    assert str(lenient.database).startswith(journal.database)
    assert _has_no_error(lenient)


def test_rollback_to_a_savepoint_released_out_of_turn_becomes_a_gap(lenient: Capture) -> None:
    lenient.create("CREATE TABLE T (ID INTEGER)")
    attachment = lenient.attach()
    for sql in ("SAVEPOINT A", "SAVEPOINT B", "RELEASE SAVEPOINT A ONLY", "SAVEPOINT C"):
        attachment.immediate(sql)
        attachment.execute("INSERT INTO T VALUES (1)")
    attachment.immediate("ROLLBACK TO C")
    attachment.commit()
    attachment.execute("INSERT INTO T VALUES (2)")
    attachment.commit()
    lenient.end_clients()
    _assert_one_gap(lenient, "released out of turn", [2])
    assert _has_no_error(lenient)


def test_edited_replication_conf_counts_only_once_the_engine_rereads_it(capture: Capture) -> None:
    """It would still stop asking at the first error, whatever replication.conf says now."""
    conf = capture.root.path / "replication.conf"
    strict = conf.read_text()
    _leave_engine_defaults(capture)
    capture.create("CREATE TABLE T (ID INTEGER)")
    client = capture.client()
    first, second = client.attach(capture.database), client.attach(capture.database)
    first.execute("INSERT INTO T VALUES (1)")
    first.commit()
    conf.write_text(strict)
    capture.move_folder()
    second.execute("INSERT INTO T VALUES (2)")
    second.commit()
    capture.put_folder_back()

    def is_captured() -> bool:
        second.execute("INSERT INTO T VALUES (3)")
        second.commit()
        return 3 in _captured_so_far(capture)

    until("capture to go on", is_captured)
    client.end()
    capture.clients.remove(client)
    until("the gap to be marked", lambda: _gaps(capture))
    assert 2 not in _captured(capture)
    assert _has_no_error(capture)


def test_replication_conf_that_cannot_be_read_for_a_moment_lets_nothing_through(
    capture: Capture,
) -> None:
    conf = capture.root.path / "replication.conf"
    capture.create("CREATE TABLE T (ID INTEGER)")
    client = capture.client()
    first, second = client.attach(capture.database), client.attach(capture.database)
    for attachment, replaced in ((first, False), (second, True)):
        if replaced:
            kept = conf.rename(conf.with_name("kept.conf"))
        attachment.execute("INSERT INTO T VALUES (1)")
        attachment.commit()
    kept.rename(conf)
    capture.move_folder()
    told = "was replaced while the server runs|can't be used: Not a directory"
    with pytest.raises(SqlError, match=told):  # the second once the confirmer has looked
        second.execute("INSERT INTO T VALUES (2)")
        second.commit()
