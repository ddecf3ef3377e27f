"""The demo, as `make demo` runs it: to its end, kept up, interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from soaked import in_turn

from firebird_cdc.demo.processes import await_condition, members

pytestmark = [pytest.mark.engine, pytest.mark.kafka, pytest.mark.spark]

_DEMO = [sys.executable, "-P", "-m", "firebird_cdc.demo"]
_TABLES = ("CUSTOMERS", "ORDERS", "ORDER_LINES", "PRODUCTS", "SHIPMENTS", "SUPPLIERS")
_FILLED = {"PRODUCTS", "SUPPLIERS"}


def _running(directory: Path) -> list[int]:
    return members(str(directory.resolve()))


def _stop(directory: Path) -> None:
    subprocess.run([*_DEMO, "--stop", "--directory", directory], check=True)


def _wait_for(process: subprocess.Popen[bytes], what: str, path: Path) -> None:
    def there() -> bool:
        assert process.poll() is None, f"the demo ended before {what}"
        return path.exists()

    await_condition(what, there, 120)


def test_the_demo_ends_with_equal_rows_everywhere_and_can_be_kept_and_used(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    # What an earlier run left behind must not matter.
    leftover = tmp_path / "leftover"
    with subprocess.Popen([*_DEMO, "--directory", leftover]) as killed:
        _wait_for(killed, "the broker's configuration", leftover / "kafka" / "server.properties")
        killed.kill()
    try:
        done = subprocess.run(
            [*_DEMO, "--keep", "--directory", run], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        rows = dict(re.findall(r"^ *([A-Z_]+) +([\d ]+?) +yes$", done.stdout, re.MULTILINE))
        assert tuple(sorted(rows)) == tuple(sorted(_TABLES))
        for table, counts in rows.items():
            in_database, by_topic, by_replay = map(int, counts.split())
            assert in_database == by_topic > 0
            assert by_replay == in_database or table in _FILLED
        # Of what was there before, journals have what was changed.
        assert rows["SUPPLIERS"].split() == ["196", "196", "10"]
        assert re.search(r"^ *PRODUCTS +read \{SKU ", done.stdout, re.MULTILINE)
        _change_something_and_see_it_arrive(run)
    finally:
        _stop(run)
    assert not run.exists()
    assert _running(run) == []


def _change_something_and_see_it_arrive(run: Path) -> None:
    """Use the two scripts that the demo leaves for its user."""
    statement = "INSERT INTO SHIPMENTS (ID, PARCEL) VALUES (4711, 'by hand')"
    subprocess.run([run / "sql", "--sql", statement], check=True, timeout=240)
    with subprocess.Popen([run / "watch"], stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        try:
            assert any("create {ID 4711}" in line for line in watch.stdout)
        finally:
            watch.send_signal(signal.SIGINT)
        watch.stdout.close()
    assert watch.returncode == 0


@in_turn("number", {each.name: each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)})
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    with subprocess.Popen([*_DEMO, "--directory", run], stdout=subprocess.DEVNULL) as demo:
        # In the middle of the workload: broker, engine and shipper are at work.
        _wait_for(demo, "the workload", run / "warehouse.log")
        os.kill(demo.pid, number)
        code = demo.wait(120)
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    await_condition("the last process to end", lambda: _running(run) == [], 120)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [*_DEMO, "--directory", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{tmp_path} is not empty" in done.stderr
    stopped = subprocess.run(
        [*_DEMO, "--stop", "--directory", tmp_path], capture_output=True, text=True, check=False
    )
    assert stopped.returncode == 1
    assert (tmp_path / "mine").read_text() == "precious"
