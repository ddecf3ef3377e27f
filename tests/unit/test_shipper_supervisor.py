"""The supervisor of embedded shippers: what it starts, and when it does not start another."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import logbook
import pytest

from firebird_cdc.bridge import shipper
from firebird_cdc.bridge.host import Host
from firebird_cdc.bridge.restarts import MOST_PAUSE_S, SHORT_LIFE_S, Restarts
from firebird_cdc.bridge.shipper import ShipperSupervisor
from firebird_cdc.config.reading import begin_reading
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import CaptureError, ConfigError, ShipError, ShipperFenced
from firebird_cdc.journal.folder import exit_status, processes
from firebird_cdc.journal.folder.exit_status import LastWords
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.folder.locks import ShipperLock, try_lock
from firebird_cdc.journal.folder.processes import this_process
from firebird_cdc.journal.shipper.commands.status import read_status

_PAUSE_AFTER = Restarts.pause_after

_LIFE_OF_A_PROCESS = """
import os, subprocess
from firebird_cdc.bridge.shipper import is_alive

process = subprocess.Popen(["sleep", "60"])
print("runs", is_alive(process.pid))
process.kill()
os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
print("is a zombie", is_alive(process.pid))
process.wait()
print("is gone", is_alive(process.pid))
"""


class _Host:
    """Starts nothing: notes what it was to start, which has ended at once."""

    def __init__(self) -> None:
        self.started: list[tuple[list[str], dict[str, str]]] = []

    def spawn(self, _: Path, arguments: Sequence[str], environment: dict[str, str]) -> int:
        self.started.append((list(arguments), environment))
        with subprocess.Popen(["/bin/true"]) as ended:
            return ended.pid


class _Server:
    """A server process with a supervisor whose looks the test takes itself."""

    def __init__(self, directory: Path, config: Path) -> None:
        self.host = _Host()
        self.folder = JournalFolder(directory)
        self.config = config
        self.words = self.folder.state / "shipper.last-words"
        self.supervisor = ShipperSupervisor(
            cast(Host, self.host), self.folder, begin_reading(config), None
        )

    def look(self) -> int:
        """Have the supervisor look once; return how many shippers it has started so far."""
        self.supervisor._turn()
        return len(self.host.started)

    def end_shipper(self, code: int, ago_s: float = 0.0) -> None:
        """Leave the exit status of a shipper that ends with CODE."""
        changed = exit_status.changed_ns(self.config)
        exit_status.leave(self.words, LastWords(code, "why", changed, time.time() - ago_s))

    def close(self) -> None:
        if self.supervisor._bridge_lock is not None:
            os.close(self.supervisor._bridge_lock)
        self.folder.close()


@pytest.fixture
def server(
    journal_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[_Server]:
    monkeypatch.setattr(Restarts, "pause_after", lambda _self, _lived_s: 0.0)
    config = tmp_path / "connector.yaml"
    config.write_text("connector.name: test\n")
    made = _Server(journal_directory, config)
    yield made
    made.close()


def test_a_shipper_gets_the_configuration_and_nothing_that_is_the_servers(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISC_PASSWORD", "masterkey")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("LANG", "C.UTF-8")
    assert server.look() == 1
    arguments, environment = server.host.started[0]
    assert arguments[1] == "-I"
    assert arguments[arguments.index("--config") + 1] == str(server.config)
    assert "--embedded" in arguments
    assert environment["LANG"] == "C.UTF-8"
    assert not {"ISC_PASSWORD", "NOTIFY_SOCKET"} & environment.keys()


def test_no_shipper_is_started_beside_a_running_or_starting_one(
    server: _Server,
) -> None:
    for name in ("shipper.lock", "starting.lock"):
        held = try_lock(server.folder.state / name, fcntl.LOCK_EX)
        assert held is not None
        assert server.look() == 0
        os.close(held)
    assert server.look() == 1


def test_killed_shipper_is_restarted(server: _Server) -> None:
    assert [server.look() for _ in range(3)] == [1, 2, 3]


class _Clock:
    """The time, which goes on by pauses of the supervisor, and as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        """In the place of the event of a retired supervisor, which this one is not."""
        self.pauses.append(seconds)
        self.now += seconds
        return False


@pytest.fixture
def clock(server: _Server, monkeypatch: pytest.MonkeyPatch) -> _Clock:
    monkeypatch.setattr(Restarts, "pause_after", _PAUSE_AFTER)
    made = _Clock()
    monkeypatch.setattr(shipper, "time", made)
    monkeypatch.setattr(server.supervisor, "_retired", made)
    monkeypatch.setattr(server.supervisor, "_await_lock", lambda _process: None)
    assert server.look() == 1
    return made


def _pause_after(server: _Server, clock: _Clock, lived_s: float) -> float:
    """Return for how long no shipper is started after one that ran for LIVED_S."""
    clock.pauses.clear()
    clock.now += lived_s
    started = server.look()
    assert started == len(server.host.started) > 1
    return sum(clock.pauses)


def test_restart_pauses_grow_with_short_runs_and_end_after_a_long_one(
    server: _Server, clock: _Clock
) -> None:
    pauses = [_pause_after(server, clock, 0.5) for _ in range(8)]
    assert pauses == [2, 4, 8, 16, 32, MOST_PAUSE_S, MOST_PAUSE_S, MOST_PAUSE_S]
    # It works again, and is killed after a while: at once there is another one.
    assert _pause_after(server, clock, MOST_PAUSE_S) == 0
    assert _pause_after(server, clock, 3600.0) == 0
    assert _pause_after(server, clock, 0.5) == 2


def test_the_time_that_a_shipper_works_counts_as_a_part_of_the_pause(
    server: _Server, clock: _Clock
) -> None:
    for _ in range(8):
        _pause_after(server, clock, 0.5)
    assert _pause_after(server, clock, 45.0) == MOST_PAUSE_S - 45.0
    assert _pause_after(server, clock, 59.0) == 1
    assert _pause_after(server, clock, SHORT_LIFE_S - 1) == MOST_PAUSE_S
    assert _pause_after(server, clock, MOST_PAUSE_S) == 0


def test_rarely_killed_shipper_is_restarted_at_once(server: _Server, clock: _Clock) -> None:
    assert [_pause_after(server, clock, SHORT_LIFE_S) for _ in range(20)] == [0] * 20


@pytest.mark.parametrize("error", [ConfigError, ShipperFenced])
def test_misconfigured_or_fenced_shipper_waits_for_a_configuration_change(
    server: _Server, error: type[ConfigError | ShipperFenced]
) -> None:
    assert server.look() == 1
    server.end_shipper(error.exit_code)
    with logbook.TestHandler() as log:
        assert [server.look() for _ in range(3)] == [1, 1, 1]
        told = [
            record.message for record in log.records if "is started again when" in record.message
        ]
    assert len(told) == 1
    assert str(server.config) in told[0]
    os.utime(server.config, ns=(0, 1))
    assert server.look() == 2


def test_other_exit_statuses_and_old_ones_do_not_prevent_a_restart(server: _Server) -> None:
    assert server.look() == 1
    server.end_shipper(ShipError.exit_code)
    assert server.look() == 2
    server.end_shipper(ShipperFenced.exit_code, ago_s=3600)
    assert server.look() == 3
    server.words.write_text("{not whole")
    assert server.look() == 4


def test_shipper_with_older_options_is_asked_to_end_once(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper, "_END_S", 0.0)
    reading = replace(begin_reading(server.config), read_ns=1, stamp="of before")
    request = server.folder.state / "shipper.end"
    for embedded in (False, True):
        record = this_process(reading, embedded=embedded)
        with (
            ShipperLock(server.folder.path, record.as_json()),
            logbook.TestHandler() as log,
        ):
            assert [server.look() for _ in range(3)] == [0, 0, 0]
        told = [record.message for record in log.records if "was to end" in record.message]
        assert len(told) == embedded
        assert request.exists() == embedded
    assert request.read_text() == record.identity
    assert server.look() == 1  # what is left of the request ends no other one


def test_newer_shipper_started_meanwhile_is_not_waited_for(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = replace(begin_reading(server.config), read_ns=1, stamp="of before")
    lock = ShipperLock(server.folder.path, this_process(reading, embedded=True).as_json())
    newer = this_process(begin_reading(server.config), embedded=True)
    another = ShipperLock(server.folder.path, newer.as_json())

    def ask_to_end(*_: object) -> None:
        lock.release()
        another.take()

    monkeypatch.setattr(processes, "ask_to_end", ask_to_end)
    lock.take()
    assert server.look() == 0
    another.release()


def test_python_of_the_system_does_not_run_the_shipper_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a server, where Python has no program, it takes what the PATH has for its own."""
    system = tmp_path / "python3"
    system.symlink_to("/bin/true")
    monkeypatch.setattr(sys, "executable", str(system))
    ours = shipper.python_program()
    asked = [ours, "-I", "-c", "import sys; print(*sys.version_info[:2], sys.prefix)"]
    told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    assert told == [*map(str, sys.version_info[:2]), sys.base_prefix]


def test_reason_of_a_failed_shipper_start_is_in_the_status(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def python_program() -> Path:
        raise CaptureError("no python found to run the shipper")

    monkeypatch.setattr(shipper, "python_program", python_program)
    server.supervisor.start()
    try:
        await_condition("its words", server.words.exists, 60)
        status = read_status(server.folder.path)
        assert any("no python found to run the shipper" in need for need in status["needs"])
    finally:
        server.supervisor.retire()
        server.supervisor.join()
        server.supervisor._bridge_lock = None


@pytest.mark.parametrize("namespace", [[], ["unshare", "--pid", "--fork"]])
def test_shipper_is_awaited_until_it_ends_also_in_a_pid_namespace(namespace: list[str]) -> None:
    program = [*namespace, sys.executable, "-c", _LIFE_OF_A_PROCESS]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["runs True", "is a zombie False", "is gone False"]


def test_a_server_that_has_just_started_tries_at_once(server: _Server) -> None:
    server.end_shipper(ShipperFenced.exit_code)
    assert server.look() == 1


def test_another_process_of_the_same_server_does_not_restart_at_once(
    server: _Server, journal_directory: Path
) -> None:
    assert server.look() == 1
    server.end_shipper(ShipperFenced.exit_code)
    other = _Server(journal_directory, server.config)
    assert other.look() == 0
    other.close()


def test_shipper_that_ends_by_itself_leaves_its_reason(tmp_path: Path) -> None:
    config, words = tmp_path / "connector.yaml", tmp_path / "words"
    config.write_text("connector.nam: wrong\n")
    logging = tmp_path / "logging.yaml"
    logging.write_text(f"file: {tmp_path / 'log'}\n")
    argv = [sys.executable, "-P", "-m", "firebird_cdc", "ship", "--embedded", "--config", config]
    ended = subprocess.run(
        [*argv, "--logging", logging, "--last-words", words], capture_output=True
    )
    assert ended.returncode == ConfigError.exit_code
    left = exit_status.read(words)
    assert left is not None
    assert left.code == ConfigError.exit_code
    assert "connector.nam" in left.text
    assert 0 < left.hold_s(config) <= 600
    since_set_back = replace(left, at=left.at + 3600)
    assert since_set_back.hold_s(config) == 0  # not for an hour and ten minutes
    assert "the shipper ends: " in (tmp_path / "log").read_text()


def test_a_refusal_is_shown_until_the_file_that_was_refused_is_changed(tmp_path: Path) -> None:
    state, config = tmp_path / ".firebird-cdc", tmp_path / "connector.yaml"
    state.mkdir()
    config.touch()
    words = LastWords(2, "why", exit_status.changed_ns(config), 1.0, str(config))
    exit_status.leave(exit_status.words_path(tmp_path), words)
    assert any("why" in need for need in read_status(tmp_path)["needs"])
    os.utime(config, ns=(0, 1))
    assert read_status(tmp_path)["needs"] == []
    exit_status.words_path(tmp_path).write_text('[3, "of an earlier version", 0, 1.0]')
    assert any("of an earlier version" in need for need in read_status(tmp_path)["needs"])
