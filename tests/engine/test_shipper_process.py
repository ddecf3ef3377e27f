"""The shipper that the plugin starts: none of the server's business, and one per folder."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from capture import PATIENCE_S, Attachment, Capture, Client, until
from server import Server, compile_server

from firebird_cdc.cli import main
from firebird_cdc.demo.processes import members
from firebird_cdc.journal.folder.locks import bridge_present, try_lock
from firebird_cdc.journal.folder.processes import disagreements

pytestmark = pytest.mark.engine

_PATIENCE_S = max(120.0, PATIENCE_S)


def _embedded(capture: Capture) -> Capture:
    capture.write_config(connector_shipper="embedded", kafka_producer_close_timeout_ms="1000")
    capture.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    return capture


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _descriptors(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:
            continue  # closed between listing and reading
    return found


def _shippers(capture: Capture) -> list[int]:
    """Return the living shippers of the folder, ready or not."""
    return [pid for pid in members(capture.stack.mark) if "--embedded" in _command(pid)]


def _holds(pid: int, capture: Capture, lock: str) -> bool:
    path = str(capture.journal_directory / ".firebird-cdc" / lock)
    try:
        return path in _descriptors(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended


def _await_shipper(capture: Capture, but: int = 0) -> int:
    def ready() -> int:
        found = [pid for pid in _shippers(capture) if _holds(pid, capture, "shipper.lock")]
        return next((pid for pid in found if pid != but), 0)

    return until("a shipper at work", ready, _PATIENCE_S)


def _state(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _children(pid: int) -> list[int]:
    """Return the children of a process, zombies too."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(_state(int(entry.name))["PPid"]) == pid:
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile
    return found


@pytest.fixture
def server(capture: Capture, tmp_path: Path) -> Iterator[Server]:
    """A server that counts its SIGCHLDs, with an embedded shipper and no broker."""
    program = tmp_path / "server"
    compile_server(capture.root.client_library, program)
    _embedded(capture)
    inherited = os.open(tmp_path / "of the server", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(inherited, True)
    with socket.socket() as listening:
        made = Server(capture, program, pass_fds=(inherited, listening.fileno()))
    os.close(inherited)
    yield made
    made.kill()


def test_the_server_notices_nothing_of_its_shipper(
    server: Server, capture: Capture, tmp_path: Path
) -> None:
    server.write(1)
    shipper = _await_shipper(capture)
    assert server.call("children").split() == ["0", "0"]
    assert _children(server.pid) == []
    assert int(_state(shipper)["PPid"]) != server.pid
    assert os.getsid(shipper) != os.getsid(server.pid)
    assert str(tmp_path / "of the server") in _descriptors(server.pid)
    held = _descriptors(shipper)
    assert str(tmp_path / "of the server") not in held
    assert not set(held) & {path for path in _descriptors(server.pid) if "socket:" in path}
    assert held.count("/dev/null") == 3
    state = str(capture.journal_directory / ".firebird-cdc")
    own = (
        re.escape("/dev/null"),
        re.escape(str(capture.log)),
        re.escape(state) + r"(/(?!pool/).*)?",
        re.escape(str(capture.journal_directory)),
        r"anon_inode:(inotify|\[eventpoll\]|\[eventfd\])",
        r"(pipe|socket):\[\d+\]",
    )

    def has_only_its_own() -> bool:
        """It opens a journal, and blocks signals while it starts a thread, but not for long."""
        foreign = [path for path in _descriptors(shipper) if not re.fullmatch("|".join(own), path)]
        return not foreign and int(_state(shipper)["SigBlk"], 16) == 0

    until("the shipper to have nothing of the server's", has_only_its_own)
    assert Path(f"/proc/{shipper}/cwd").readlink() == Path("/")
    assert int(Path(f"/proc/{shipper}/oom_score_adj").read_text()) == 500
    for limits in ("limits", "cgroup"):
        ours, theirs = (Path(f"/proc/{pid}/{limits}").read_text() for pid in (shipper, server.pid))
        assert ours == theirs
    assert os.getpriority(os.PRIO_PROCESS, shipper) == os.getpriority(os.PRIO_PROCESS, server.pid)

    os.kill(shipper, signal.SIGKILL)
    shipper = _await_shipper(capture, shipper)
    assert server.call("children").split() == ["0", "0"]
    server.write(2)
    server.end()
    until("the shipper to end", lambda: shipper not in members(capture.stack.mark), _PATIENCE_S)
    assert _shippers(capture) == []
    assert len(capture.journals()) == 2  # nothing could be delivered, so nothing is gone


def test_the_first_process_of_a_container_keeps_no_dead_shippers(
    capture: Capture, tmp_path: Path
) -> None:
    program = tmp_path / "server"
    compile_server(capture.root.client_library, program)
    _embedded(capture)
    container = Server(capture, program, ["unshare", "--pid", "--fork", "--kill-child"])
    try:
        container.write(1)
        shipper = _await_shipper(capture)
        [server] = _children(container.pid)
        assert _children(server) == [shipper]
        told = "started the shipper, process"
        until("it to be told", lambda: told in capture.log.read_text())
        assert capture.log.read_text().count(told) == 1
        os.kill(shipper, signal.SIGKILL)
        until("the dead shipper to be gone", lambda: shipper not in _children(server), _PATIENCE_S)
        container.end()
    finally:
        container.kill()


@pytest.mark.plain
def test_one_shipper_serves_all_processes_of_a_folder(classic: Capture) -> None:
    _embedded(classic)
    clients = []
    shipper = 0
    for number in range(3):
        client = classic.client()
        attachment = client.attach(classic.database)
        attachment.execute("INSERT INTO T VALUES (?, '')", number)
        attachment.commit()
        shipper = shipper or _await_shipper(classic)
        # Its supervisor has looked whether there is need for another.
        until("the process to take part", lambda: _holds(client.pid, classic, "bridge.lock"))  # noqa: B023
        clients.append(client)
    assert _shippers(classic) == [shipper]
    for client in clients[:2]:
        classic.clients.remove(client)
        client.end()
    assert _shippers(classic) == [shipper]
    classic.end_clients()
    until("the shipper to end", lambda: not _shippers(classic), _PATIENCE_S)


@pytest.mark.plain
def test_a_killed_server_leaves_no_shipper_behind(classic: Capture) -> None:
    _embedded(classic)
    attachment = classic.attach()
    attachment.execute("INSERT INTO T VALUES (1, '')")
    attachment.commit()
    _await_shipper(classic)
    classic.clients.pop().kill()
    until("the shipper to end", lambda: not _shippers(classic), _PATIENCE_S)


@pytest.mark.plain
def test_server_processes_starting_at_once_start_a_single_shipper(classic: Capture) -> None:
    _embedded(classic)
    clients = [classic.client() for _ in range(5)]
    for client in clients:
        client.start("attach", str(classic.database), "UTF8", False, 3, "SYSDBA")
    attachments = [Attachment(client, client.finish()) for client in clients]
    for number, attachment in enumerate(attachments):
        attachment.execute("INSERT INTO T VALUES (?, '')", number)
        attachment.commit()
    shipper = _await_shipper(classic)
    for client in clients:
        until("all to take part", lambda: _holds(client.pid, classic, "bridge.lock"))  # noqa: B023
    assert _shippers(classic) == [shipper]
    told = "started the shipper, process"
    until("it to be told", lambda: told in classic.log.read_text())
    assert classic.log.read_text().count(told) == 1


def _work(classic: Capture, number: int) -> Client:
    """Have a new server process commit a row, and its supervisor take part; return it."""
    client = classic.client()
    attachment = client.attach(classic.database)
    attachment.execute("INSERT INTO T VALUES (?, '')", number)
    attachment.commit()
    until("the process to take part", lambda: _holds(client.pid, classic, "bridge.lock"))
    return client


def _status(capture: Capture, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["status", "--config", str(capture.config)])
    return code, capsys.readouterr().out


@pytest.mark.plain
@pytest.mark.parametrize(
    "changed",
    [
        {"kafka_topic_prefix": "later"},
        {"kafka_producer_sasl_password": "another secret"},  # which no digest holds
    ],
)
def test_options_that_were_changed_come_with_the_next_server_process_and_once(
    classic: Capture, capsys: pytest.CaptureFixture[str], changed: dict[str, str]
) -> None:
    _embedded(classic)
    settings = {"connector_shipper": "embedded", "kafka_producer_close_timeout_ms": "1000"}
    before = _work(classic, 1)
    old = _await_shipper(classic)
    classic.write_config(**settings, **changed)
    _work(classic, 2)
    new = _await_shipper(classic, old)
    assert classic.log.read_text().count(f"the shipper, process {old}, is replaced") == 1
    before.end()  # as after a quick restart; who had read the older options takes no part any more
    classic.clients.remove(before)
    for number in (3, 4):
        _work(classic, number)

    def is_told() -> str:
        shown = _status(classic, capsys)[1]
        return shown if f"process {new}" in shown and "was changed after" not in shown else ""

    shown = until("the status of the new one", is_told)
    assert f"options   {classic.config}" in shown
    assert _shippers(classic) == [new]
    assert classic.log.read_text().count("is replaced") == 1
    state = classic.journal_directory / ".firebird-cdc"
    for path in (state / "shipper.lock", *(state / "servers").iterdir()):
        assert "secret" not in path.read_text()


def _pose_as_server(capture: Capture) -> int:
    """Hold what tells an embedded shipper that a server lives; return the descriptor."""
    state = capture.journal_directory / ".firebird-cdc"
    state.mkdir(exist_ok=True)
    held = try_lock(state / "bridge.lock", fcntl.LOCK_SH)
    assert held is not None
    return held


@pytest.mark.plain
def test_a_shipper_of_an_earlier_version_is_replaced(classic: Capture) -> None:
    """It says nothing of itself, and hears no request."""
    _embedded(classic)
    until("that of the preparation to end", lambda: not _shippers(classic), _PATIENCE_S)
    program = (
        "import sys; from firebird_cdc.journal.folder import processes\n"
        "import firebird_cdc.journal.shipper.loop\n"
        "processes.CaptureProcess.as_json = lambda self: ''\n"
        "processes.EndRequest.is_made = lambda self, now: False\n"
        "from firebird_cdc.cli import main; sys.exit(main())"
    )
    environment = {k: v for k, v in classic.environment().items() if k != "PYTHONPATH"}
    argv = [sys.executable, "-P", "-c", program, "ship", "--embedded"]
    argv += ["--config", str(classic.config), "--logging", str(classic.logging)]
    bridge = _pose_as_server(classic)
    shipper = subprocess.Popen(argv, env=environment, start_new_session=True)
    try:
        until("it to work", lambda: _holds(shipper.pid, classic, "shipper.lock"), _PATIENCE_S)
        _work(classic, 1)
        os.close(bridge)
        assert shipper.wait(_PATIENCE_S) == 0
        _await_shipper(classic, shipper.pid)
    finally:
        shipper.kill()
        shipper.wait()


@pytest.mark.plain
def test_servers_with_different_options_are_named_and_keep_each_others_shipper(
    classic: Capture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _embedded(classic)
    first = _work(classic, 1)
    shipper = _await_shipper(classic)
    other = classic.directory / "other.yaml"
    other.write_text(classic.config.read_text().replace("topic.prefix: test", "topic.prefix: b"))
    environment = classic.environment() | {"FIREBIRD_CONNECTOR_CONFIG": str(other)}
    with monkeypatch.context() as patch:
        patch.setattr(classic, "environment", lambda: environment)
        second, third = _work(classic, 2), _work(classic, 3)

    def is_told() -> str:
        code, shown = _status(classic, capsys)
        return shown if code == 1 and "different options" in shown else ""

    shown = until("the status to name both", is_told)
    assert f"process {first.pid} those of {classic.config}" in shown
    assert f"those of {other}" in shown
    assert f"the one shipper, process {shipper}, has those of {classic.config}" in shown
    [told] = disagreements(classic.journal_directory)
    assert str(other) in told.what
    assert _shippers(classic) == [shipper]
    assert "is replaced" not in classic.log.read_text()
    # Once no process has the shipper's options any more, those of the others are right.
    first.end()
    classic.clients.remove(first)
    new = _await_shipper(classic, shipper)
    assert second.process.poll() is third.process.poll() is None
    until("nothing to be told", lambda: not disagreements(classic.journal_directory))
    assert _shippers(classic) == [new]


@pytest.mark.plain
def test_manually_started_shipper_is_reported_and_never_ended(classic: Capture) -> None:
    _embedded(classic)
    until("that of the preparation to end", lambda: not _shippers(classic), _PATIENCE_S)
    argv = [sys.executable, "-P", "-m", "firebird_cdc", "ship", "--config", str(classic.config)]
    argv += ["--logging", str(classic.logging)]
    shipper = subprocess.Popen(argv, env=classic.environment(), start_new_session=True)
    try:
        until("it to work", lambda: _holds(shipper.pid, classic, "shipper.lock"), _PATIENCE_S)
        settings = {"connector_shipper": "embedded", "kafka_producer_close_timeout_ms": "1000"}
        classic.write_config(**settings, kafka_topic_prefix="later")
        _work(classic, 1)
        [told] = until(
            "it to be told", lambda: disagreements(classic.journal_directory), _PATIENCE_S
        )
        assert f"was changed after the shipper, process {shipper.pid}, read it" in told.what
        assert told.remedy == "restart the shipper"
        assert shipper.poll() is None
        assert not (classic.journal_directory / ".firebird-cdc/shipper.end").exists()
    finally:
        shipper.terminate()
        shipper.wait()


def test_an_external_shipper_is_left_to_others(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER)")
    attachment = classic.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    until("a journal", lambda: classic.journals())
    until("the server to be known", lambda: bridge_present(classic.journal_directory))
    assert _shippers(classic) == []
    assert "started the shipper" not in classic.log.read_text()
