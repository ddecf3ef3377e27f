"""Reports of refused and lost transactions, and the extent of an acknowledgement."""

from __future__ import annotations

import datetime
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from counter_pages import write_lost

from firebird_cdc.cli import main
from firebird_cdc.config import load_config
from firebird_cdc.journal.folder import failures
from firebird_cdc.journal.folder.counters import ConfirmerCounts
from firebird_cdc.journal.folder.failures import (
    BESIDE,
    acknowledge_failures,
    acknowledged_us,
    page_name,
    pages,
    unacknowledged,
    unreadable,
)
from firebird_cdc.journal.folder.processes import status_path
from firebird_cdc.journal.shipper.monitoring.metrics import make_registry
from firebird_cdc.journal.shipper.monitoring.report import Reporter, needs_somebody
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.failures import FailureWatch
from firebird_cdc.packaging.server import counted, locating

A, B = "/srv/a.fdb", "/srv/b.fdb"
_OPTIONS = """connector.name: test
connector.journal.directory: {}
kafka.producer.bootstrap.servers: 127.0.0.1:9
kafka.topic.prefix: test
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal folder, its connector's file, and a system without state folders."""
    monkeypatch.setattr(failures, "SYSTEM_STATE", tmp_path / "var")
    (tmp_path / "journals/.firebird-cdc").mkdir(parents=True)
    (tmp_path / "connector.yaml").write_text(_OPTIONS.format(tmp_path / "journals"))
    return tmp_path / "journals"


def _config(folder: Path) -> Path:
    return folder.parent / "connector.yaml"


def _named(lost: dict[str, int]) -> dict[str, int]:
    return {f"/srv/{name}.fdb": count for name, count in lost.items()}


def _in_folder(folder: Path, **lost: int) -> Path:
    return write_lost(folder / ".firebird-cdc/counters", _named(lost))


def _in_state(folder: Path, **lost: int) -> Path:
    return write_lost(folder.parent / BESIDE / page_name(_config(folder)), _named(lost))


def _told(folder: Path) -> dict[str, int]:
    found = pages(folder, [_config(folder)])
    return {each.database: each.count for each in unacknowledged(found)}


def test_both_places_count_together_and_are_acknowledged_each_for_itself(folder: Path) -> None:
    _in_folder(folder, a=2)
    _in_state(folder, a=3, b=1)
    assert _told(folder) == {A: 5, B: 1}
    known = acknowledge_failures(pages(folder, [_config(folder)]), [A])
    assert sum(each.count for each in known) == 5
    assert _told(folder) == {B: 1}
    acknowledge_failures(pages(folder, [_config(folder)]))
    assert _told(folder) == {}
    _in_state(folder, a=4, b=1)
    assert _told(folder) == {A: 1}


def test_acknowledging_one_database_leaves_uncounted_losses(folder: Path) -> None:
    _in_folder(folder, a=2, b=1)
    found = pages(folder, [_config(folder)])
    acknowledge_failures(found, [A])
    assert acknowledged_us(found) == 0
    acknowledge_failures(found)
    before = acknowledged_us(found)
    assert before > 0
    _in_folder(folder, a=3, b=1)
    assert [each.database for each in acknowledge_failures(found, [A])] == [A]
    assert acknowledged_us(found) == before


def test_an_acknowledgement_does_not_count_for_a_page_that_was_made_anew(folder: Path) -> None:
    _in_folder(folder, a=5)
    acknowledge_failures(pages(folder, [_config(folder)]))
    write_lost(folder / ".firebird-cdc/counters", {A: 6}, made_us=2)
    assert _told(folder) == {A: 6}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"made_us": 1, "databases": {"/srv/a.fdb": 3}}']
)
def test_an_acknowledgement_that_can_not_be_read_hides_nothing(
    folder: Path, content: bytes
) -> None:
    page = _in_folder(folder, a=5)
    page.with_name("counters.acknowledged").write_bytes(content)
    assert _told(folder) == {A: 5}
    acknowledge_failures(pages(folder, [_config(folder)]))
    assert _told(folder) == {}


@pytest.mark.parametrize("failing", [1, 2])  # of the file, of its name
def test_failed_sync_of_an_acknowledgement_is_an_error_and_can_be_retried(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: int
) -> None:
    _in_folder(folder, a=5)
    real, calls = os.fsync, iter(range(1, 100))

    def fails_once(fd: int) -> None:
        if next(calls) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fails_once)
    command = ["journal", "acknowledge", "--config", str(_config(folder))]
    assert main(command) == 1
    assert "can't be saved: [Errno 5]" in capsys.readouterr().err
    assert main(command) == 0
    assert _told(folder) == {}


def test_a_gap_in_the_place_of_a_committed_journal_is_a_loss(folder: Path) -> None:
    page = _in_folder(folder, a=1)
    ConfirmerCounts(page.parent).add_replaced(A)
    assert _told(folder) == {A: 2}
    ConfirmerCounts(page.parent).add_replaced(B)  # has no place of its own
    assert _told(folder) == {A: 2, "": 1}


def test_a_folder_alone_leads_to_the_systems_pages_about_it(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "var/state"
    other = tmp_path / "other.yaml"
    other.write_text(_OPTIONS.format(tmp_path / "elsewhere"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("connector.jurnal.directory: [")
    for number, config in enumerate((_config(folder), other, broken)):
        write_lost(state / page_name(config), {f"/srv/{number}.fdb": 1}, config=str(config))
    told = {each.database for each in unacknowledged(pages(folder, []))}
    assert told == {"/srv/0.fdb", "/srv/2.fdb"}  # of whose file nobody can tell, too


def test_unreadable_counter_page_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = _in_state(folder, a=1)
    found = pages(folder, [_config(folder)])
    assert unreadable(found) == []
    monkeypatch.setattr(os, "access", lambda path, mode: path != page)
    [text] = unreadable(found)
    assert text.startswith(f"{page} can't be read") and "group" in text
    statistics = Statistics()
    FailureWatch(folder, _config(folder), statistics).turn(0.0)
    assert text in {trouble.text for trouble in statistics.troubles.values()}


def test_shipper_reports_a_counted_loss_until_acknowledged(folder: Path) -> None:
    _in_folder(folder, a=1)
    statistics = Statistics()
    statistics.trouble("kafka", "waiting", "away")
    watch = FailureWatch(folder, _config(folder), statistics)
    watch.turn(0.0)
    [text] = [each.text for each in statistics.troubles.values() if each.kind == "warning"]
    assert "1 transaction of /srv/a.fdb was committed" in text
    acknowledge_failures(pages(folder, [_config(folder)]))
    watch.turn(0.0)
    assert set(statistics.troubles) == {"kafka"}


def test_status_without_a_journal_folder_reports_lost_transactions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _in_state(folder, a=7)
    folder.rename(folder.with_name("elsewhere"))
    assert main(["status", "--config", str(_config(folder))]) == 1
    said = capsys.readouterr()
    assert "7 transactions of /srv/a.fdb were committed" in said.out
    assert "there is no journal folder" in said.err


def test_status_with_unloadable_options_reports_lost_transactions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _in_state(folder, a=7)
    _config(folder).write_text("connector.journal.directory: x\n")
    assert main(["status", "--config", str(_config(folder))]) == 2
    said = capsys.readouterr()
    assert "7 transactions of /srv/a.fdb were committed" in said.out
    assert "connector.journal.directory" in said.err


def test_damaged_counter_page_is_reported_until_acknowledged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows what it counted, which is not nothing."""
    page, options = _in_folder(folder, a=7), ["--config", str(_config(folder))]
    in_state = _in_state(folder, b=1)
    in_state.rename(in_state.with_name(in_state.name + ".damaged"))
    content = page.read_bytes()
    page.write_bytes(bytes(len(content)))
    assert main(["status", *options]) == 1
    said = capsys.readouterr().out
    assert f"{page} is damaged, so it is unknown" in said
    assert f"{in_state}.damaged is damaged" in said
    assert main(["journal", "acknowledge", *options, A]) == 0
    assert page.exists()  # it may concern any database
    capsys.readouterr()
    assert main(["journal", "acknowledge", *options]) == 0
    assert f"acknowledged: {page} was damaged" in capsys.readouterr().out
    assert unreadable(pages(folder, [_config(folder)])) == []
    _in_folder(folder, a=1)
    assert _told(folder) == {A: 1}
    page.write_bytes(b"")  # made, and nothing was counted
    assert unreadable([page]) == []


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one server of a machine, which writes into the folder by a file of its own."""
    root = folder.parent / "opt/firebird"
    (root / "plugins").mkdir(parents=True)
    (root / "firebird.conf").touch()
    (root / "reddatabase.connector.yaml").write_text(_OPTIONS.format(folder))
    monkeypatch.setattr(locating, "_SYSTEM", folder.parent)
    for name in ("FIREBIRD", "FIREBIRD_CONNECTOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return root


def _shown(config: Path) -> list[str]:
    """Return the items on the page of a shipper with CONFIG that starts now that somebody has to
    look at."""
    options, statistics = load_config(config), Statistics()
    FailureWatch(options.journal_directory, config, statistics).turn(0.0)
    return needs_somebody(Reporter(options, statistics).report())


def _metric(config: Path, name: str) -> float | None:
    registry = make_registry(Reporter(load_config(config), Statistics()))
    labels = {"server": "test", "connector": "test", "database": A}
    return registry.get_sample_value(f"firebird_cdc_{name}", labels)


@pytest.mark.parametrize("known_by", ["server", "last shipper"])
def test_commands_with_another_file_read_the_pages_of_the_folders_user(
    folder: Path, server: Path, capsys: pytest.CaptureFixture[str], known_by: str
) -> None:
    theirs = server / "reddatabase.connector.yaml"
    write_lost(theirs.parent / BESIDE / page_name(theirs), {A: 2})
    if known_by == "last shipper":
        theirs.write_text(_OPTIONS.format(server))
        status_path(folder).write_text(json.dumps({"config": str(theirs)}))
    words = f"2 transactions of {A} were committed"
    options = ["--config", str(_config(folder))]

    def told(*command: str) -> str:
        capsys.readouterr()
        main([*command, *options])
        return capsys.readouterr().out

    assert words in told("status")
    assert words in told("check", "--server", str(server))
    assert any(words in need for need in _shown(_config(folder)))
    assert _metric(_config(folder), "gap_transactions_total") == 2
    assert _metric(_config(folder), "unacknowledged_lost_transactions") == 2
    assert f"acknowledged: {words}" in told("journal", "acknowledge")
    assert "transactions of" not in told("status") + told("check", "--server", str(server))
    assert _shown(_config(folder)) == []
    assert _metric(_config(folder), "unacknowledged_lost_transactions") == 0


def test_shipper_reports_replication_log_entries_until_acknowledged(
    folder: Path, server: Path
) -> None:
    log, statistics = server / "replication.log", Statistics()
    watch = FailureWatch(folder, _config(folder), statistics)
    watch.turn(0.0)
    assert not statistics.troubles
    moment = datetime.datetime.now() - datetime.timedelta(hours=1)
    log.write_text(
        f"\nhost (replica) {moment:%a %b %d %H:%M:%S %Y}\n\tDatabase: {A}\n\tERROR:"
        f" firebird-cdc at {moment.timestamp():.0f}: transactions were refused, and that is counted"
        " nowhere: no room\n"
    )
    due = watch.turn(60.0)
    assert due < 70.0
    [trouble] = statistics.troubles.values()
    assert trouble.kind == "warning"
    assert f"{A}: transactions were refused, and that is counted nowhere" in trouble.text
    report = Reporter(load_config(_config(folder)), statistics).report()
    assert trouble.text in needs_somebody(report)
    assert main(["journal", "acknowledge", "--config", str(_config(folder))]) == 0
    watch.turn(due)  # which does not wait for the next look at the log
    assert not statistics.troubles


def test_replication_log_unreadable_for_the_shipper_is_reported(
    folder: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Iterator[object]:
        raise PermissionError(errno.EACCES, "Permission denied", str(server / "replication.log"))
        yield

    monkeypatch.setattr(counted, "uncounted", refuse)
    assert any("replication.log can't be read" in need for need in _shown(_config(folder)))
