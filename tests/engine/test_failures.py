"""Refused or lost transactions: in status, check and metrics until somebody acknowledges them."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from capture import Capture, SqlError, own_journals, until
from server import Server
from test_gaps import _choose_gap, _leave_engine_defaults
from test_refusals import FAULTS, StartServer, program, start_server

from firebird_cdc.cli import main
from firebird_cdc.config import load_config
from firebird_cdc.journal.folder.counters import read_counters
from firebird_cdc.journal.folder.failures import BESIDE, page_name
from firebird_cdc.journal.shipper.monitoring import metrics
from firebird_cdc.journal.shipper.monitoring.report import Reporter, needs_somebody
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.failures import FailureWatch
from firebird_cdc.packaging.server.engine_log import PAUSE_S

__all__ = ["program", "start_server"]

pytestmark = pytest.mark.engine

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Return a runner of commands; it gives the exit code, and all that was said."""

    def run(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def _refuse(server: Server, times: int) -> None:
    for _ in range(times):
        with pytest.raises(SqlError, match="firebird-cdc"):
            server.write(1)


def _samples(capture: Capture) -> dict[str, float | None]:
    """The metrics about it of a shipper that starts now."""
    registry = metrics.make_registry(Reporter(load_config(capture.config), Statistics()))
    labels = {"server": "test", "connector": "test", "database": str(capture.database)}
    names = (
        "gap_transactions_total",
        "refused_transactions_total",
        "unacknowledged_lost_transactions",
        "unacknowledged_refused_transactions",
    )
    return {name: registry.get_sample_value(f"firebird_cdc_{name}", labels) for name in names}


def _page_shows(capture: Capture) -> list[str]:
    """Return the items on the page of a shipper that starts now that somebody has to look at."""
    config, statistics = load_config(capture.config), Statistics()
    FailureWatch(config.journal_directory, config.path, statistics).turn(0.0)
    return needs_somebody(Reporter(config, statistics).report())


def _acknowledge(capture: Capture, told: Told, *databases: Path) -> str:
    code, said = told("journal", "acknowledge", "--config", capture.config, *databases)
    assert code == 0, said
    return said


LENIENT = {"gap": _choose_gap, "engine's defaults": _leave_engine_defaults}


@pytest.mark.parametrize("mode", LENIENT)
def test_commits_without_a_journal_folder_are_reported_until_acknowledged(
    capture: Capture, start_server: StartServer, told: Told, mode: str
) -> None:
    LENIENT[mode](capture)
    fault = FAULTS["folder not writable"]
    fault.cause(capture)
    server = start_server()
    for number in (1, 2, 3):
        server.write(number)
    server.end()
    words = rf"3 transactions of {re.escape(str(capture.database))} were committed.*NOT CAPTURED"

    def assert_told() -> None:
        code, said = told("status", "--config", capture.config)
        assert code == 1 and re.search(words, said) and "all is well" not in said, said
        code, said = told("status", "--config", capture.config, "--json")
        assert code == 1 and re.search(words, " ".join(json.loads(said)["needs"]))
        code, said = told("check", "--server", capture.root.path)
        assert code == 2 and re.search(f"error: .*{words}", said), said
        assert any(re.search(words, need) for need in _page_shows(capture))
        assert _samples(capture) == {
            "gap_transactions_total": 3,
            "refused_transactions_total": 0,
            "unacknowledged_lost_transactions": 3,
            "unacknowledged_refused_transactions": 0,
        }

    assert_told()
    fault.mend(capture)
    server = start_server()
    server.write(4)  # the bridge runs now, and what was counted before stays
    server.end()
    assert_told()
    said = _acknowledge(capture, told)
    assert re.search(f"acknowledged: {words}", said)
    code, said = told("status", "--config", capture.config)
    assert "NOT CAPTURED" not in said
    assert "NOT CAPTURED" not in told("check", "--server", capture.root.path)[1]
    assert not any("NOT CAPTURED" in need for need in _page_shows(capture))
    found = _samples(capture)
    assert found["gap_transactions_total"] == 3
    assert found["unacknowledged_lost_transactions"] == 0

    fault.cause(capture)
    server = start_server()
    server.write(5)
    server.end()
    fault.mend(capture)
    code, said = told("status", "--config", capture.config)
    assert code == 1 and re.search(r"1 transaction of \S* was committed.*NOT CAPTURED", said), said


# One for each way in which a start ends: in the folder, in the options, before Python.
@pytest.mark.parametrize(
    "name",
    ["folder not writable", "wrong option", "no configuration file", "Python library missing"],
)
def test_writes_refused_by_an_unstarted_bridge_are_reported_until_acknowledged(
    capture: Capture, start_server: StartServer, told: Told, name: str
) -> None:
    fault = FAULTS[name]
    fault.cause(capture)
    server = start_server()
    _refuse(server, 2)
    words = rf"2 transactions of {re.escape(str(capture.database))} were refused"
    _, said = told("status", "--config", capture.config)
    if "option" in name or "file" in name:  # what can't be loaded has an exit code of its own
        assert re.search(words, said), said
    code, said = told("check", "--server", capture.root.path)
    assert code == 2 and re.search(words, said), said
    fault.mend(capture)
    until("writes to work", lambda: server.can_write(2))
    server.end()
    count = re.compile(r"(\d+) transactions of \S+ were refused.*\(from .* to .*\)")
    code, said = told("status", "--config", capture.config)
    found = count.search(said)
    assert code == 1 and found, said
    refused = int(found[1])
    assert refused >= 2  # those that were tried until it was mended, too
    assert _samples(capture)["unacknowledged_refused_transactions"] == refused
    _acknowledge(capture, told, capture.database)
    assert "were refused" not in told("status", "--config", capture.config)[1]
    assert _samples(capture)["refused_transactions_total"] == refused


def test_a_transaction_counts_once_however_often_it_tries_to_write(
    capture: Capture, start_server: StartServer, told: Told
) -> None:
    FAULTS["folder not writable"].cause(capture)
    server = start_server()
    for number in (1, 2, 3):
        with pytest.raises(SqlError, match="capture can't start"):
            server.execute(f"INSERT INTO T VALUES ({number}, NULL)")
    server.call("rollback")
    code, said = told("status", "--config", capture.config)
    assert code == 1 and re.search(r"1 transaction of \S+ was refused", said), said


@pytest.mark.plain
def test_a_write_for_which_a_session_has_no_memory_is_refused_and_counted(
    capture: Capture, program: Path, told: Told
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    preload = capture.directory / "failing_memory.so"
    source = Path(__file__).with_name("failing_memory.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-o", preload, source], check=True)
    flag = capture.directory / "failing"
    flag.touch()
    server = Server(capture, program, ["env", f"LD_PRELOAD={preload}", f"FAILING_MEMORY={flag}"])
    with pytest.raises(SqlError, match="no memory for a session"):
        server.write(1)
    flag.unlink()
    server.write(2)
    server.end()
    assert [row["ID"] for j in capture.journals() for _, _, row in j.brief() if row] == [2]
    code, said = told("status", "--config", capture.config)
    assert code == 1 and re.search("1 transaction of .* was refused", said), said


@own_journals
def test_refusals_counted_in_the_journal_folder_show_until_acknowledged(
    capture: Capture, start_server: StartServer, told: Told
) -> None:
    server = start_server()
    server.execute("INSERT INTO T VALUES (1, NULL)")
    [live] = capture.live()
    live.unlink()
    with pytest.raises(SqlError, match="is no longer in"):
        server.commit()
    server.call("rollback")
    server.end()
    server = start_server()
    server.write(2)
    server.end()
    counted = read_counters(capture.journal_directory).databases[str(capture.database)]
    assert (counted.refused, counted.captured) == (1, 1)
    assert not list((capture.config.parent / BESIDE).iterdir())  # in one place, not in both
    words = r"1 transaction of \S+ was refused"
    code, said = told("status", "--directory", capture.journal_directory)
    assert code == 1 and re.search(words, said), said
    assert re.search(f"acknowledged: {words}", _acknowledge(capture, told))
    assert "refused" not in told("status", "--directory", capture.journal_directory)[1]
    acknowledged = capture.journal_directory / ".firebird-cdc/counters.acknowledged"
    assert acknowledged.stat().st_mode & 0o777 == 0o600


def test_damaged_page_is_reported_and_survives_a_restart_until_acknowledged(
    capture: Capture, start_server: StartServer, told: Told
) -> None:
    server = start_server()
    server.write(1)
    server.end()
    page = capture.journal_directory / ".firebird-cdc/counters"
    page.write_bytes(bytes(page.stat().st_size))
    for name in ("counters", "counters.damaged"):
        for command in (
            ["status", "--config", capture.config],
            ["check", "--server", capture.root.path],
        ):
            code, said = told(*command)
            assert code > 0 and f"{page.with_name(name)} is damaged" in said, said
        assert any("is damaged" in need for need in _page_shows(capture))
        server = start_server()
        server.write(2)
        server.end()
    _acknowledge(capture, told)
    assert "is damaged" not in told("status", "--config", capture.config)[1]
    counted = read_counters(capture.journal_directory).databases[str(capture.database)]
    assert counted.captured == 2


def test_counts_of_lost_transactions_survive_the_loss_of_the_journal_folder(
    capture: Capture, start_server: StartServer, told: Told
) -> None:
    _choose_gap(capture)
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    capture.delete_folder()
    capture.journal_directory.write_text("in the way")
    server.write(1)
    server.write(2)
    server.kill()
    capture.journal_directory.unlink()
    capture.journal_directory.mkdir(mode=0o700)
    code, said = told("status", "--config", capture.config)
    assert code == 1 and re.search(r"2 transactions of \S+ were committed.*NOT CAPTURED", said)


def test_uncounted_losses_are_written_to_and_read_from_replication_log(
    capture: Capture, start_server: StartServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIREBIRD", str(capture.root.path))
    _choose_gap(capture)
    state = capture.config.parent / BESIDE
    state.chmod(0o500)
    FAULTS["folder not writable"].cause(capture)
    server = start_server()
    began = time.monotonic()
    server.write(1)
    server.write(2)
    most = 1 + int((time.monotonic() - began) / PAUSE_S)  # it is silent for a while behind each
    server.end()
    FAULTS["folder not writable"].mend(capture)
    state.chmod(0o750)
    written = capture.replication_log.read_text()
    count = written.count("counted nowhere: cannot count in StateDirectory")
    assert 1 <= count <= most, written
    words = rf"replication\.log: .*{re.escape(str(capture.database))}.*counted nowhere"
    code, said = told("check")
    assert code == 2 and re.search(f"error: .*{words}", said), said
    capture.move_folder()
    code, said = told("status")
    assert code == 1 and re.search(words, said), said
    capture.put_folder_back()
    assert any(re.search(words, need) for need in _page_shows(capture))
    server = start_server()
    server.write(3)
    server.end()
    _acknowledge(capture, told, capture.database)  # of which nothing is counted
    code, said = told("status")
    assert code == 1 and re.search(words, said), said
    assert re.search(f"acknowledged: .*{words}", _acknowledge(capture, told))
    for command in ("status", "check"):
        assert not re.search(words, told(command)[1])
    assert not any(re.search(words, need) for need in _page_shows(capture))


def test_uncounted_loss_after_an_acknowledgement_is_reported(
    capture: Capture, start_server: StartServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin is silent for a while behind each entry, so the acknowledgement waits for it. And
    the server's clock hangs elsewhere than ours."""
    environment = capture.environment() | {"TZ": "Pacific/Auckland"}
    monkeypatch.setattr(capture, "environment", lambda: environment)
    monkeypatch.setenv("FIREBIRD", str(capture.root.path))
    words = "counted nowhere: cannot count in StateDirectory"
    _choose_gap(capture)
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    state = capture.config.parent / BESIDE
    capture.move_folder()
    state.chmod(0o500)
    server.write(1)
    code, said = told("status")
    assert code == 1 and words in said, said
    capture.put_folder_back()
    state.chmod(0o750)
    assert words in _acknowledge(capture, told)
    assert words not in told("status")[1]
    capture.move_folder()
    state.chmod(0o500)
    server.write(2)  # at once, maybe in the second of the acknowledgement
    server.end()
    capture.put_folder_back()
    state.chmod(0o750)
    assert capture.replication_log.read_text().count(words) == 2
    for command in ("status", "check"):
        assert words in told(command)[1]


def test_replication_log_entries_can_be_acknowledged_without_any_counter_page(
    capture: Capture, start_server: StartServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIREBIRD", str(capture.root.path))
    state = capture.config.parent / BESIDE
    state.chmod(0o500)
    FAULTS["folder not writable"].cause(capture)
    server = start_server()
    _refuse(server, 1)
    server.end()
    FAULTS["folder not writable"].mend(capture)
    state.rename(state.with_name("away"))
    assert not (capture.journal_directory / ".firebird-cdc").exists()
    code, said = told("journal", "acknowledge", "--config", capture.config)
    assert code == 1 and "firebird-cdc install" in said, said
    assert not re.search("^acknowledged:", said, re.MULTILINE), said
    state.with_name("away").rename(state)
    state.chmod(0o750)
    assert told("status")[0] == 1
    assert re.search("acknowledged: .*counted nowhere", _acknowledge(capture, told))
    [note] = state.iterdir()
    assert note.stat().st_mode & 0o777 == 0o640
    for command in ("status", "check"):
        assert "counted nowhere" not in told(command)[1]
    assert "acknowledged:" not in _acknowledge(capture, told)


def test_a_state_folder_knows_the_connectors_file_by_its_path_without_links(
    capture: Capture, start_server: StartServer, told: Told
) -> None:
    link = capture.directory / "link"
    link.symlink_to(capture.directory, target_is_directory=True)
    FAULTS["folder not writable"].cause(capture)
    server = start_server()
    _refuse(server, 1)
    server.end()
    FAULTS["folder not writable"].mend(capture)
    [page] = (capture.directory / BESIDE).iterdir()
    assert page.name == page_name(capture.config)
    assert page.stat().st_mode & 0o777 == 0o640
    code, said = told("status", "--config", link / capture.config.name)
    assert code == 1 and "was refused" in said, said
