"""Changes that can't be recorded: who is told, what goes on working, and how it ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import instruments
import pytest
from capture import Capture, SqlError, own_journals, until
from server import Server, SmallDisk, compile_server

from firebird_cdc.cli import main
from firebird_cdc.journal.folder.locks import shipper_present
from firebird_cdc.journal.format import SequenceChange

pytestmark = pytest.mark.engine

StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from firebird_cdc.demo.engine import EmbeddedRoot

    directory = tmp_path_factory.mktemp("bare-server")
    compile_server(EmbeddedRoot(directory / "root").client_library, directory / "server")
    return directory / "server"


@pytest.fixture
def start_server(capture: Capture, program: Path) -> Iterator[StartServer]:
    """Starts a server that obeys file permissions, on a database with a published table T."""
    capture.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    servers: list[Server] = []
    # Root may write everywhere, servers are not run by root.
    plainly = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]

    def start() -> Server:
        servers.append(Server(capture, program, plainly if os.geteuid() == 0 else ()))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@dataclass(frozen=True)
class Fault:
    """Something wrong, what an error has to say of it, and its remedy."""

    cause: Callable[[Capture], None]
    words: str
    mend: Callable[[Capture], None]


def _set_plugin_option(capture: Capture, name: str, value: str) -> None:
    conf = capture.root.path / "plugins.conf"
    text, count = re.subn(rf"(?m)^(\s*{name} =).*", rf"\1 {value}", conf.read_text())
    assert count == 1
    conf.write_text(text)


def _plugin_option(capture: Capture, name: str) -> str:
    text = (capture.root.path / "plugins.conf.good").read_text()
    found = re.search(rf"(?m)^\s*{name} =\s*(.*)$", text)
    assert found
    return found[1]


def _misplace(capture: Capture, name: str) -> None:
    """Give an option of plugins.conf paths that do not exist yet."""
    conf = capture.root.path / "plugins.conf"
    shutil.copy(conf, conf.with_name("plugins.conf.good"))
    count = len(_plugin_option(capture, name).split(":"))
    paths = [str(_misplaced(capture, name, number)) for number in range(count)]
    _set_plugin_option(capture, name, ":".join(paths))


def _put_in_place(capture: Capture, name: str) -> None:
    for number, real in enumerate(_plugin_option(capture, name).split(":")):
        _misplaced(capture, name, number).symlink_to(real)


def _misplaced(capture: Capture, name: str, number: int) -> Path:
    return capture.directory / f"{name}-{number}"


def _shadow_file(capture: Capture) -> Path:
    return capture.directory / "shadow" / "yaml.py"


def _shadow(capture: Capture, code: str) -> None:
    """Put a module of that CODE before the one that the bridge needs."""
    conf = capture.root.path / "plugins.conf"
    shutil.copy(conf, conf.with_name("plugins.conf.good"))
    _shadow_file(capture).parent.mkdir()
    _shadow_file(capture).write_text(code)
    dirs = _plugin_option(capture, "PythonDirs")
    _set_plugin_option(capture, "PythonDirs", f"{_shadow_file(capture).parent}:{dirs}")


FAULTS = {
    "folder not writable": Fault(
        lambda capture: capture.journal_directory.chmod(0o500),
        "journals.*Permission denied",
        lambda capture: capture.journal_directory.chmod(0o700),
    ),
    "folder is a file": Fault(
        lambda capture: (capture.journal_directory.rmdir(), capture.journal_directory.touch())[0],
        "journals can't be used: (File exists|Not a directory)",
        lambda capture: capture.journal_directory.unlink(),
    ),
    "wrong option": Fault(
        lambda capture: capture.write_config(connector_journal_fsync="perhaps"),
        r"connector\.yaml.*connector\.journal\.fsync.*perhaps",
        lambda capture: capture.write_config(),
    ),
    "wrong filter": Fault(
        lambda capture: capture.write_config(table_exclude_list='"(("'),
        r"connector\.yaml.*table\.exclude\.list",
        lambda capture: capture.write_config(),
    ),
    "no YAML": Fault(
        lambda capture: capture.config.write_text("connector.name: 'test\n"),
        r"connector\.yaml.*not YAML",
        lambda capture: capture.write_config(),
    ),
    "missing option": Fault(
        lambda capture: capture.write_config(connector_journal_directory=None),
        r"connector\.yaml.*connector\.journal\.directory",
        lambda capture: capture.write_config(),
    ),
    "no configuration file": Fault(
        lambda capture: capture.config.unlink(),
        r"connector\.yaml",
        lambda capture: capture.write_config(),
    ),
    "Python modules missing": Fault(
        lambda capture: _misplace(capture, "PythonDirs"),
        "PythonDirs",
        lambda capture: _put_in_place(capture, "PythonDirs"),
    ),
    "bridge fails": Fault(
        lambda capture: _shadow(capture, "raise RuntimeError('out of luck')"),
        "out of luck",
        lambda capture: (_shadow_file(capture).unlink(), None)[1],
    ),
    "Python library missing": Fault(
        lambda capture: _misplace(capture, "Python"),
        r"Python-0.*No such file",
        lambda capture: _put_in_place(capture, "Python"),
    ),
    "Python's own modules missing": Fault(
        lambda capture: _misplace(capture, "PythonHome"),
        "PythonHome",
        lambda capture: _put_in_place(capture, "PythonHome"),
    ),
}


def _assert_refused(capture: Capture, server: Server, words: str, rows: int = 1) -> None:
    with pytest.raises(SqlError, match=f"(?s)firebird-cdc.*{words}"):
        server.write(1, rows)
    server.read()
    written = capture.replication_log.read_text()
    assert re.search(f"firebird-cdc: [^\n]*{words}", written), written


def _assert_captured(capture: Capture, expected: list[int]) -> None:
    """The journals and the table hold rows with these numbers and no others."""
    assert [row["ID"] for j in capture.journals() for _, _, row in j.brief() if row] == expected
    reader = capture.attach()
    assert sorted(row["ID"] for row in reader.execute("SELECT ID FROM T")) == expected


@pytest.mark.parametrize("name", FAULTS)
def test_writes_are_refused_with_the_cause_until_it_is_mended(
    capture: Capture, start_server: StartServer, name: str
) -> None:
    fault = FAULTS[name]
    fault.cause(capture)
    server = start_server()
    server.read()
    _assert_refused(capture, server, fault.words)
    fault.mend(capture)
    until(f"writes to work after: {name}", lambda: server.can_write(2))
    server.end()
    _assert_captured(capture, [2])


@pytest.mark.plain
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kafka_producer_acks": "some"}, "kafka.producer.acks is 'some'"),
        ({"kafka_topic_prefix": None}, "kafka.topic.prefix is missing"),
        ({"connector_jurnal_fsync": "true"}, "connector.jurnal.fsync: no such option"),
        ({"table_exclude_lsit": ".*T"}, "table.exclude.lsit: no such option"),
        ({"transforms": "none"}, "transforms.none"),
    ],
)
def test_an_option_of_the_shipper_that_is_wrong_stops_the_shipper_alone(
    capture: Capture,
    start_server: StartServer,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str | None],
    said: str,
) -> None:
    """And `status` is not green, whether or not a server runs, until it is corrected."""

    def status(*where: str | Path) -> str:
        assert main(["status", *map(str, where)]) == 1
        return capsys.readouterr().out

    embedded = {"connector_shipper": "embedded", "kafka_producer_close_timeout_ms": "1000"}
    capture.write_config(**embedded, **changed)
    server = start_server()
    server.write(1)
    words = capture.journal_directory / ".firebird-cdc" / "shipper.last-words"
    until("the shipper to end", words.exists, 120)
    assert f"none is sent until this is corrected: {capture.config}" in capture.log.read_text()
    server.write(2)
    until("two journals", lambda: len(capture.committed()) == 2)
    for where in (("--config", capture.config), ("--directory", capture.journal_directory)):
        shown = status(*where)
        assert said in shown
        assert "ACTION REQUIRED" in shown
    server.end()
    assert said in status("--config", capture.config)
    _assert_captured(capture, [1, 2])
    for path in capture.journal_directory.glob("*.log*"):
        path.unlink()  # now nothing waits, and nobody captures
    assert said in status("--config", capture.config)
    assert said in status("--directory", capture.journal_directory)


@pytest.mark.plain
def test_a_corrected_file_starts_the_shipper_without_a_restart_of_the_server(
    capture: Capture, start_server: StartServer
) -> None:
    embedded = {"connector_shipper": "embedded", "kafka_producer_close_timeout_ms": "1000"}
    capture.write_config(**embedded, kafka_producer_acks="some")
    server = start_server()
    server.write(1)
    state = capture.journal_directory / ".firebird-cdc"
    until("the shipper to end", (state / "shipper.last-words").exists, 120)
    capture.write_config(**embedded)
    until("a shipper at work", lambda: shipper_present(capture.journal_directory), 120)
    assert not (state / "shipper.last-words").exists()
    server.write(2)
    server.end()


def test_wrong_home_of_python_in_the_environment_refuses_writes(
    capture: Capture, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would end the whole process."""
    capture.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    conf = capture.root.path / "plugins.conf"
    text, count = re.subn(r"(?m)^\s*PythonHome =.*\n", "", conf.read_text())
    assert count == 1
    conf.write_text(text)
    environment = capture.environment() | {"PYTHONHOME": f"{capture.directory}:/usr"}
    monkeypatch.setattr(capture, "environment", lambda: environment)
    server = Server(capture, program)
    _assert_refused(capture, server, "PYTHONHOME")
    server.end()


def test_writes_into_a_deleted_folder_are_refused_until_it_can_be_made(
    capture: Capture, start_server: StartServer
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    capture.delete_folder()
    capture.journal_directory.write_text("in the way")
    _assert_refused(capture, server, "journal")
    capture.journal_directory.unlink()
    until("writes to work in a new folder", lambda: server.can_write(2))
    server.end()
    [(_, _, row)] = capture.last_rows()
    assert row == {"ID": 2, "TEXT": "x" * 1000}


def test_writes_into_a_folder_moved_away_are_refused_until_it_is_back(
    capture: Capture, start_server: StartServer
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    capture.move_folder()
    _assert_refused(capture, server, "journal")
    capture.put_folder_back()
    until("writes to work again", lambda: server.can_write(2))
    server.end()
    _assert_captured(capture, [0, 2])


@own_journals
def test_writes_without_permissions_are_refused_until_they_are_back(
    capture: Capture, start_server: StartServer
) -> None:
    server = start_server()
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    capture.journal_directory.chmod(0o500)
    _assert_refused(capture, server, "Permission denied")
    capture.journal_directory.chmod(0o700)
    until("writes to work again", lambda: server.can_write(2))
    server.end()
    _assert_captured(capture, [0, 2])


@pytest.fixture(scope="session")
def failing_sync(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("preload") / "failing_sync.so"
    source = Path(__file__).with_name("failing_sync.c")
    argv = ["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1", "-o", library, source]
    subprocess.run(argv, check=True)
    return library


def test_commit_with_a_failed_sync_is_copied_and_the_next_write_refused(
    capture: Capture, program: Path, failing_sync: Path
) -> None:
    capture.create("CREATE TABLE T (ID INTEGER, TEXT VARCHAR(1000))")
    flag = capture.directory / "failing"
    environment = ["env", f"LD_PRELOAD={instruments.preload(failing_sync)}", f"FAILING_SYNC={flag}"]
    server = Server(capture, program, environment)
    server.write(0)
    until("the journal to be confirmed", capture.committed)
    flag.touch()
    server.write(1)  # nobody can refuse this one, and it is not published until it is on disk
    _assert_refused(capture, server, "(cannot sync|can't be written).*(EIO|Input/output error)")
    assert len(capture.committed()) == 1
    flag.unlink()
    until("writes to work again", lambda: server.can_write(3))
    server.end()
    _assert_captured(capture, [0, 1, 3])
    assert "was copied" in capture.log.read_text()


def test_sequence_values_survive_rolled_back_and_refused_transactions(
    capture: Capture, start_server: StartServer, small_disk: SmallDisk
) -> None:
    server = start_server()
    server.execute("CREATE SEQUENCE S")
    server.commit()
    advance = "EXECUTE BLOCK AS DECLARE N BIGINT; BEGIN N = NEXT VALUE FOR S; END"
    server.execute("INSERT INTO T VALUES (1, NULL)")
    server.execute(advance)
    server.call("rollback")
    server.write(2)
    server.execute(advance)
    with pytest.raises(SqlError, match="No space"):
        server.write(3, rows=8_000)
    server.write(4)
    server.write(5)
    server.end()
    values = [
        [change.value for change in journal.changes if isinstance(change, SequenceChange)]
        for journal in capture.journals()
        if journal.rows
    ]
    assert values == [[1], [2], []]


@pytest.fixture
def small_disk(capture: Capture) -> Iterator[SmallDisk]:
    """3 MiB for the journals."""
    disk = SmallDisk(capture.directory / "disk", 3)
    capture.options["connector.journal.directory"] = str(disk.path / "journals")
    capture.journal_directory = disk.path / "journals"
    capture.write_config()
    yield disk
    disk.unmount()


def test_full_disk_refuses_a_transaction_that_does_not_fit(
    capture: Capture, start_server: StartServer, small_disk: SmallDisk
) -> None:
    server = start_server()
    server.write(0)
    _assert_refused(capture, server, "No space left on device", rows=8_000)
    until("the refused journal to be gone", lambda: not capture.live())
    server.write(2)  # the space of the one that was refused is free again
    small_disk.resize(64)
    until("the large one to fit", lambda: server.can_write(3, rows=8_000))
    server.end()
    _assert_captured(capture, [0, 2, *[3] * 8_000])


def test_writes_on_a_full_disk_are_refused_until_there_is_space(
    capture: Capture, start_server: StartServer, small_disk: SmallDisk
) -> None:
    filler = small_disk.fill(4096)
    server = start_server()
    _assert_refused(capture, server, "No space left on device")
    filler.unlink()
    until("writes to work with space", lambda: server.can_write(2))
    server.end()
    _assert_captured(capture, [2])
