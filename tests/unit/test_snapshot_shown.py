"""Snapshots on a terminal: ``status``, ``snapshot status`` and what follows one."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from observed import DEPOT, make_config

from firebird_cdc.cli import main
from firebird_cdc.clock import now_us
from firebird_cdc.journal.folder.durable import replace_file
from firebird_cdc.journal.folder.locks import ShipperLock
from firebird_cdc.journal.folder.processes import status_path
from firebird_cdc.journal.shipper.commands import terminal
from firebird_cdc.journal.shipper.commands.snapshot_lines import lines_of
from firebird_cdc.journal.shipper.commands.terminal import Follower, Told, bar
from firebird_cdc.journal.shipper.monitoring import snapshot_figures
from firebird_cdc.journal.shipper.monitoring.report import Reporter
from firebird_cdc.journal.shipper.monitoring.snapshot_figures import SnapshotFigures, TableFigures
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.snapshots.figures import figures_of
from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    Snapshot,
    SnapshotState,
    StateFolder,
    Status,
    TableProgress,
)


def _state(status: Status = Status.RUNNING, **fields: object) -> SnapshotState:
    tables = [
        TableProgress("GOODS", rows=1500, status=Status.COMPLETED),
        TableProgress("STOCK", rows=20, status=Status.RUNNING),
        TableProgress("CLIENT"),
    ]
    snapshot = Snapshot("s1", Kind.INITIAL, "command", status=status, tables=tables, started_us=1)
    return SnapshotState(DEPOT, waiting=[snapshot], **fields)  # type: ignore[arg-type]


def _keep(tmp_path: Path, state: SnapshotState) -> list[str]:
    """Write STATE as a shipper does; return how a command names the configuration."""
    config = make_config(tmp_path)
    StateFolder(config.journal_directory).write(state)
    return ["--config", str(config.path)]


def _report(tmp_path: Path, waits_for: str) -> None:
    """Have a status lie there in which the shipper says why the snapshot waits."""
    config, statistics = make_config(tmp_path), Statistics()
    statistics.kafka_at = time.monotonic()
    statistics.database(DEPOT).snapshot = SnapshotFigures(
        "s1", "initial", "owed", 1, waits_for=waits_for, waits_since_us=now_us() - 120_000_000
    )
    report = Reporter(config, statistics).report()
    replace_file(status_path(config.journal_directory), json.dumps(report).encode())


def test_status_without_a_shipper_reads_the_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = _keep(tmp_path, _state(Status.OWED))
    assert main(["status", *where]) == 1
    text = capsys.readouterr().out
    assert f"no shipper runs, and the initial snapshot of {DEPOT} is owed" in text
    assert "  snapshot initial s1: OWED, 1 of 3 tables, 1,520 rows" in text
    assert "           to come: CLIENT" in text
    assert main(["status", *where, "--json"]) == 1
    (database,) = json.loads(capsys.readouterr().out)["databases"]
    assert database["snapshot"]["open_tables"] == 2


def test_status_without_a_shipper_needs_nobody_for_a_paused_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = _keep(tmp_path, _state(is_paused=True))
    assert main(["status", *where]) == 0
    assert "PAUSED" in capsys.readouterr().out


def test_state_that_can_not_be_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = _keep(tmp_path, _state())
    (path,) = (tmp_path / "journals/.firebird-cdc/snapshots").glob("*.json")
    path.write_text("{}")
    assert main(["status", *where]) == 1
    assert "the state of snapshots can't be read" in capsys.readouterr().out


def test_status_of_a_running_shipper_tells_what_a_snapshot_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = _keep(tmp_path, _state(Status.OWED))
    _report(tmp_path, "nobody can attach\x1b[2J")
    with ShipperLock(tmp_path / "journals"):
        assert main(["status", *where]) == 0
        text = capsys.readouterr().out
        assert "  snapshot initial s1: OWED" in text
        assert "           waits for 2 min: nobody can attach?[2J" in text
        assert main(["snapshot", "status", *where]) == 0
        text = capsys.readouterr().out
    assert "    initial s1: OWED, 1 of 3 tables, 1,520 rows, began" in text
    assert "        waits: nobody can attach?[2J" in text
    assert "        STOCK: running, 20 rows" in text


def test_lines_name_what_is_to_come_and_what_is_left_out() -> None:
    names = [f"T{number}" for number in range(8)]
    tables = [TableFigures(name, "waiting", 0, 0, "") for name in names]
    tables += [
        TableFigures("GOODS", "running", 7, 2, ""),
        TableFigures("STOCK", "skipped", 0, 0, "no right to read it"),
    ]
    figures = SnapshotFigures("s1", "blocking", "running", 1, tables=tuple(tables), behind=2)
    assert list(lines_of(figures.as_json(), now_us())) == [
        "blocking s1: running, 1 of 10 tables, 7 rows, 0 rows/s, 2 rows LEFT OUT",
        "to come: T0, T1, T2, T3, T4 and 3 more",
        "STOCK is left out: no right to read it",
        "2 more wait behind it",
    ]


# Who follows


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_on_a_terminal_is_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda: os.terminal_size((20, 5)))
    stream = _Terminal()
    follower = Follower(stream)
    follower.show({"a": Told("x" * 30, (1,)), "b": Told("bell\a", (1,))})
    follower.show({"a": Told("y", (1,)), "b": Told("z", (1,))})
    first = "\r" + "x" * 19 + "\x1b[K\n\rbell?\x1b[K\n"
    assert stream.getvalue() == f"{first}\x1b[2A\ry\x1b[K\n\rz\x1b[K\n"


def test_elsewhere_a_step_is_written_at_once_and_rows_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(terminal, "monotonic", lambda: now[0])
    stream = io.StringIO()
    follower = Follower(stream)
    for text, step, at in (("1", 1, 0), ("2", 1, 1), ("2", 1, 7), ("2", 1, 20), ("3", 2, 21)):
        now[0] = 100.0 + at
        follower.show({"a": Told(text, (step,))})
    assert stream.getvalue().split() == ["1", "2", "3"]


def test_time_left_is_that_of_the_record_numbers_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    key = bytes([128, 0, 0, 0, *(600_000).to_bytes(4, "little")]).hex()
    tables = [
        TableProgress("DONE", extent=400_000, status=Status.COMPLETED),
        TableProgress("STOCK", after=key, extent=1_000_000, status=Status.RUNNING),
        TableProgress("CLIENT", extent=2_000_000),
        TableProgress("SMALL"),
    ]
    snapshot = Snapshot("s1", Kind.INITIAL, "command", status=Status.RUNNING, tables=tables)
    figures = figures_of(SnapshotState(DEPOT, waiting=[snapshot]), snapshot)
    assert (figures.reached, figures.extent) == (1_000_000, 3_400_000)
    assert figures.as_json()["remaining_s"] is None  # nothing is known of its rate
    now = time.monotonic()
    monkeypatch.setattr(snapshot_figures, "monotonic", lambda: now)
    going = replace(figures, recent=((now - 50, 0, 500_000), (now, 70_000, 1_000_000)))
    told = going.as_json()
    assert told["remaining_s"] == pytest.approx(240)
    [line] = lines_of({**told, "by_table": []}, now_us())
    # Time goes on meanwhile.
    assert re.search(r" 1,(?:39\d|400) rows/s, about 4 min left$", line)


def test_bar_is_as_full_as_what_is_done() -> None:
    assert bar(0, 0) == "[" + "." * 20 + "]"
    assert bar(1, 4) == "[" + "#" * 5 + "." * 15 + "]"


def _later(do: Callable[[], None], output: Callable[[], str]) -> threading.Thread:
    """Have DO done once something was printed."""

    def run() -> None:
        while not output():
            pass
        do()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(("status", "code"), [(Status.COMPLETED, 0), (Status.STOPPED, 1)])
def test_following_ends_with_the_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status, code: int
) -> None:
    state = _state()
    where = _keep(tmp_path, state)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)

    def end() -> None:
        state.end(state.waiting[0], status)
        StateFolder(tmp_path / "journals").write(state)

    thread = _later(end, stream.getvalue)
    assert main(["snapshot", "status", "--follow", *where]) == code
    thread.join()
    first, last = stream.getvalue().splitlines()
    begin = re.escape("[######..............] depot.fdb: ")
    assert re.fullmatch(begin + "running, 1 of 3 tables, .*; waits: no shipper runs", first)
    assert re.fullmatch(begin + f"{status}, 1 of 3 tables, 1,520 rows", last)
    assert main(["snapshot", "status", "--follow", *where]) == 0
    assert "no snapshot waits or runs" in stream.getvalue()
