"""``firebird-cdc status``, with and without a shipper."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from observed import (
    DEPOT,
    await_that,
)

from firebird_cdc.cli import main
from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.folder import locks
from firebird_cdc.journal.folder.ledger_lock import database_key
from firebird_cdc.journal.folder.locks import ShipperLock
from firebird_cdc.journal.folder.processes import status_path
from firebird_cdc.journal.shipper.local_offsets import Memory, Shipped, acknowledge, notices
from firebird_cdc.journal.shipper.monitoring.observer import Observer
from firebird_cdc.journal.shipper.monitoring.report import Reporter
from firebird_cdc.journal.shipper.monitoring.statistics import (
    LastEvent,
    Statistics,
)
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["status", *arguments])
    return code, capsys.readouterr().out


def test_status_without_a_shipper_counts_backlog_and_quarantine(
    config: ConnectorConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(config.journal_directory)
    code, text = told(capsys, "--directory", directory)
    assert code == 0 and "not running, and none has written a status" in text
    (config.journal_directory / f"{uuid4()}.log").write_bytes(b"\x1b]0;x" * 100)
    aside = config.journal_directory / ".firebird-cdc" / "quarantine"
    aside.mkdir()
    set_aside = uuid4()
    (aside / f"{set_aside}.log").write_bytes(b"")
    (aside / f"{set_aside}.reason").write_text("its events\x1b[2J can't be sent\n")
    code, text = told(capsys, "--config", str(config.path))
    assert code == 1 and "no shipper runs, and 1 transaction waits" in text
    assert f"{set_aside}.log: its events?[2J can't be sent" in text and "\x1b" not in text
    code, text = told(capsys, "--directory", directory, "--json")
    status = json.loads(text)
    assert code == 1 and status["backlog"]["pending"] == 1 and not status["running"]


def test_status_reports_unresolved_troubles_of_the_last_shipper(
    config: ConnectorConfig,
    statistics: Statistics,
    observe: Callable[[ConnectorConfig], Observer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory = Shipped(config.journal_directory, "positions")
    memory.databases[DEPOT] = Memory(DEPOT, "positions", (0, 9))
    memory.lose(memory.databases[DEPOT], (0, 3))
    memory.write()
    lost = f"Kafka no longer has journals 4 to 9 (epoch 0) of {DEPOT}"
    statistics.trouble(f"lost:{DEPOT}", "warning", lost)
    with ShipperLock(config.journal_directory):
        observer = observe(config)
        await_that("a status", status_path(config.journal_directory).exists)
        code, text = told(capsys, "--directory", str(config.journal_directory))
        assert code == 1 and lost in text
        assert "GOODS" in text and "2 inserts" in text
        observer.stop()
    code, text = told(capsys, "--directory", str(config.journal_directory))
    assert code == 1 and "not running, ended" in text and lost in text
    acknowledge(config.journal_directory, DEPOT)
    code, text = told(capsys, "--directory", str(config.journal_directory))
    assert code == 0 and lost not in text


def test_status_reports_unreadable_local_offsets_until_acknowledged(
    config: ConnectorConfig,
    observe: Callable[[ConnectorConfig], Observer],
    statistics: Statistics,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(config.journal_directory)
    memory = Shipped(config.journal_directory, "positions")
    memory.databases[DEPOT] = Memory(DEPOT, "positions", (0, 9))
    memory.lose(memory.databases[DEPOT], (0, 3))
    memory.write()
    (path,) = (config.journal_directory / ".firebird-cdc/shipped").glob("*.json")
    path.write_bytes(path.read_bytes()[:30])
    code, text = told(capsys, "--directory", folder)
    assert code == 1 and f"can't be read in {path}" in text
    link: Any = None
    with ShipperLock(config.journal_directory):
        offsets = OffsetTracker(config.journal_directory, "positions", link, statistics)
        observer = observe(config)
        await_that("a status", status_path(config.journal_directory).exists)
        code, text = told(capsys, "--directory", folder)
        aside = path.with_suffix(".unreadable")
        assert code == 1 and f"can't be read in {aside}" in text and aside.exists()
        assert main(["journal", "acknowledge", "--config", str(config.path)]) == 0
        assert "acknowledged: what was shipped of a database" in capsys.readouterr().out
        offsets.turn()
        assert not statistics.troubles and not aside.exists()
        observer.stop()
    code, text = told(capsys, "--directory", folder)
    assert code == 0 and "all is well" in text


def test_status_tells_of_losses_that_could_not_be_saved_until_they_are(
    config: ConnectorConfig,
    observe: Callable[[ConnectorConfig], Observer],
    statistics: Statistics,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = config.journal_directory
    link: Any = None
    with ShipperLock(directory):
        offsets = OffsetTracker(directory, "positions", link, statistics)
        in_the_way = directory / f".firebird-cdc/shipped/{database_key(DEPOT)}.json"
        in_the_way.mkdir()
        offsets.miss(DEPOT, ((0, 3), (0, 4)))
        offsets.turn()
        observer = observe(config)
        await_that("a status", status_path(directory).exists)
        code, text = told(capsys, "--directory", str(directory))
        assert code == 1 and "what was shipped, lost or left out can't be saved: [Errno 21]" in text
        in_the_way.rmdir()
        offsets.close()
        offsets.turn()
        assert [notice.subject for notice in notices(directory)] == [f"missing:{DEPOT}"]
        assert [*statistics.troubles] == [f"missing:{DEPOT}"]
        observer.stop()


def test_status_of_a_folder_that_is_not_there_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--directory", str(tmp_path / "x")]) == 1
    assert "no journal folder" in capsys.readouterr().err
    assert main(["status", "--directory", str(tmp_path / "x"), "--json"]) == 1
    [need] = json.loads(capsys.readouterr().out)["needs"]
    assert "no journal folder" in need


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"5", b'{"version": 1}', b'{"version": 1, "running": true, "written_us": "x"}'],
)
@pytest.mark.parametrize("runs", [False, True])
def test_a_status_file_that_holds_something_else_is_none(
    config: ConnectorConfig, capsys: pytest.CaptureFixture[str], content: bytes, runs: bool
) -> None:
    directory = config.journal_directory
    status_path(directory).write_bytes(content)
    with ShipperLock(directory) if runs else nullcontext():
        code, text = told(capsys, "--directory", str(directory))
    told_of = "it runs, and has written no status yet" if runs else "not running"
    assert code == 0 and told_of in text
    # Whether it will reach Kafka, nobody knows yet.
    assert ("degraded, retrying automatically" if runs else "all is well") in text


def test_many_databases_that_are_well_hide_no_other(
    config: ConnectorConfig,
    statistics: Statistics,
    observe: Callable[[ConnectorConfig], Observer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = now_us()
    for number in range(300):
        database = statistics.database(f"/srv/{number:03}.fdb")
        database.handled(LastEvent("T", UUID(int=number), 1, 1, 5, now))
        database.handled_us = now + number
    statistics.database("/srv/000.fdb").tables.add("T")
    statistics.database("/srv/003.fdb").placeholders = 1
    statistics.trouble("/srv/007.fdb", "halted", "journal 3 of /srv/007.fdb can't be read")
    with ShipperLock(config.journal_directory):
        observer = observe(config)
        await_that("a status", status_path(config.journal_directory).exists)
        directory = str(config.journal_directory)
        _, text = told(capsys, "--directory", directory)
        _, whole = told(capsys, "--directory", directory, "--json")
        observer.stop()
    paths = [line for line in text.splitlines() if line.startswith("/srv/")]
    assert paths == [
        "/srv/003.fdb",
        "/srv/007.fdb",
        *(f"/srv/{number}.fdb" for number in range(280, 300)),
    ]
    assert "and 279 more databases that are well, with nothing waiting (all: --json)" in text
    assert len(json.loads(whole)["databases"]) == 301


def test_shipper_without_a_writable_status_is_not_taken_for_a_starting_one(
    config: ConnectorConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = config.journal_directory
    memory = Shipped(directory, "positions")
    memory.databases[DEPOT] = Memory(DEPOT, "positions", (0, 9))
    memory.lose(memory.databases[DEPOT], (0, 3))
    memory.write()
    with ShipperLock(directory):
        code, text = told(capsys, "--directory", str(directory))
        assert code == 1 and f"Kafka no longer has journals 4 to 9 (epoch 0) of {DEPOT}" in text
        acknowledge(directory, DEPOT)
        assert told(capsys, "--directory", str(directory))[0] == 0
        os.utime(directory / ".firebird-cdc" / "shipper.lock", (1_700_000_000, 1_700_000_000))
        code, text = told(capsys, "--directory", str(directory))
        assert code == 1 and "has written no status that this version can read" in text


def test_a_shipper_that_hangs_is_not_well_because_the_clock_was_set_back(
    config: ConnectorConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    statistics = Statistics()
    statistics.kafka_at = statistics.loop_at
    report = Reporter(config, statistics).report()
    for seconds, said in ((0, None), (-60, "no status for 60 s"), (3600, "is yet to come")):
        written = report | {"written_us": now_us() + seconds * 1_000_000}
        status_path(config.journal_directory).write_text(json.dumps(written))
        with ShipperLock(config.journal_directory):
            code, text = told(capsys, "--directory", str(config.journal_directory))
        assert code == (0 if said is None else 1), text
        assert said is None or said in text


def test_asking_for_the_status_does_not_keep_a_shipper_from_beginning(
    config: ConnectorConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()

    def pester() -> None:
        while not stop.is_set():
            main(["status", "--directory", str(config.journal_directory), "--json"])

    thread = threading.Thread(target=pester)
    thread.start()
    try:
        for _ in range(200):
            with ShipperLock(config.journal_directory):
                pass
    except ShipError as error:
        pytest.fail(str(error))
    finally:
        stop.set()
        thread.join()
    capsys.readouterr()


def test_starting_shipper_waits_for_a_stalled_status_request(
    config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = ShipperLock(config.journal_directory)
    asking.take()
    waited_s = 0.0

    def stand_still(seconds: float) -> None:
        nonlocal waited_s
        waited_s += seconds
        if waited_s >= 0.5:
            asking.release()

    monkeypatch.setattr(locks, "sleep", stand_still)
    with ShipperLock(config.journal_directory):
        assert waited_s >= 0.5
