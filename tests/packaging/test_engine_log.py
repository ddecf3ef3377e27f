"""Entries of replication.log: they count from their writing, in any time zone of their server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_running import holding

from firebird_cdc.cli import main
from firebird_cdc.config import load_capture
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.packaging.server import engine_log as engine_log_module
from firebird_cdc.packaging.server.engine_log import (
    PAUSE_S,
    engine_log,
    last_uncounted,
    plugin_not_found,
    uncounted,
)
from firebird_cdc.packaging.server.findings import Severity
from firebird_cdc.packaging.server.layout import Server, find_server

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine

_WRITES = """
import sys
from firebird import driver
library, database = sys.argv[1:]
driver.driver_config.fb_client_library.value = library
def write(connection, number):
    try:
        connection.execute_immediate(f"INSERT INTO T VALUES ({number})")
        connection.commit()
        return "committed"
    except driver.DatabaseError:
        connection.rollback()
        return "failed"
with driver.connect(database, user="SYSDBA") as connection:
    first = write(connection, 1)
with driver.connect(database, user="SYSDBA") as connection:
    print(first, write(connection, 2), flush=True)
    sys.stdin.read()
"""

Work = Callable[[Path, Sequence[str]], None]


def _nowhere(moment: int, more: str = "") -> str:
    """Return what the plugin writes when it can't count."""
    return (
        f"firebird-cdc at {moment}: transactions were refused, and that is counted nowhere: the"
        f" disk is full{more}"
    )


@pytest.fixture
def server(engine_root: EmbeddedRoot, options_file: Path) -> Server:
    """A server with the plugin, and without a log."""
    server = find_server(engine_root.path)
    assert main(["install", *_given(server, options_file)]) == 0
    return server


def _given(server: Server, options: Path) -> list[str]:
    return ["--server", str(server.root), "--config", str(options)]


def _write(log: Path, *entries: tuple[float, str], zone_h: float = 0, ended: float = 0) -> None:
    """Append ENTRIES, by the clock of a server that is ZONE_H hours ahead of UTC."""
    with log.open("a") as file:
        for moment, text in entries:
            shown = time.asctime(time.gmtime(moment + zone_h * 3600))
            file.write(f"\nhost (primary) {shown}\n\tDatabase: /data/a.fdb\n\tERROR: {text}\n")
    last = ended or entries[-1][0]
    os.utime(log, (last, last))


@pytest.mark.parametrize("zone_h", [-11, 0, 5.75, 13])
@pytest.mark.parametrize("copied_s", [0, 7200])
def test_log_entries_of_any_time_zone_have_the_moment_of_their_writing(
    server: Server, zone_h: float, copied_s: int
) -> None:
    """And a copy, as logrotate makes it, does not become younger by being one."""
    moment = int(time.time()) - 9000
    _write(
        server.replication_log,
        (moment, _nowhere(moment)),
        zone_h=zone_h,
        ended=moment + copied_s,
    )
    assert last_uncounted(server) == moment
    assert [said for _, said in uncounted(server, moment - 1)]
    assert not list(uncounted(server, moment + 1 + PAUSE_S))


def test_an_acknowledgement_does_not_count_for_the_pause_behind_an_entry(server: Server) -> None:
    """Report losses in the second of the acknowledgement, or while the plugin says nothing more."""
    moment = int(time.time()) - 60
    _write(server.replication_log, (moment, _nowhere(moment)))
    for since in (moment + 0.5, moment + PAUSE_S + 0.9):
        assert [said for _, said in uncounted(server, since)]


def test_a_log_may_be_truncated_while_it_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, moment, words = server.replication_log, int(time.time()), engine_log_module._WORDS
    _write(log, *[(moment, _nowhere(moment, str(number))) for number in range(20_000)])

    class Truncating:
        def __iter__(self) -> Iterator[bytes]:
            os.truncate(log, 0)
            return iter(words)

    monkeypatch.setattr(engine_log_module, "_WORDS", Truncating())
    assert 0 < len(list(uncounted(server, 0))) < 20_000


def test_a_night_of_commits_without_the_plugin_is_read_in_seconds(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine says it with every commit, and what works out times need not be run for each."""
    now = int(time.time())
    words = "Replication plugin Debezium_Connector is not found"
    _write(server.replication_log, *[(now - 60, words)] * 20_000)
    looks = []
    shift_of = engine_log_module._shift

    def shift(log: Path, end: str) -> float:
        looks.append(log)
        return shift_of(log, end)

    monkeypatch.setattr(engine_log_module, "_shift", shift)
    [(_, said)] = uncounted(server, 0)
    assert words in said
    assert looks == [server.replication_log]


@pytest.mark.parametrize("zone_h", [-11, 13])
def test_recent_engine_log_entry_is_an_error_in_any_time_zone(
    server: Server, zone_h: float
) -> None:
    now = time.time()
    _write(server.replication_log, (now - 2, "firebird-cdc: it can't"), zone_h=zone_h)
    assert [each.severity for each in engine_log(server)] == [Severity.ERROR]


def test_uncounted_losses_are_found_in_a_long_log_and_the_rotated_one(
    server: Server,
) -> None:
    now = int(time.time())
    log = server.replication_log
    _write(log, (now - 900, _nowhere(now - 900)))
    log.rename(log.with_name(f"{log.name}.1"))
    _write(log, (now - 600, _nowhere(now - 600, " too")))
    _write(log, *[(now - 300, "something else " * 20)] * 3000)
    said = [said for _, said in uncounted(server, 0)]
    assert len(said) == 2 and said[0].endswith(" too")
    assert last_uncounted(server) == now - 600


@contextmanager
def _writing(server: Server, root: EmbeddedRoot, database: Path) -> Iterator[list[str]]:
    """Have a process attach to DATABASE, write, and once more as another connection, which it keeps
    open. Gives what came of both."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _WRITES, str(root.client_library), str(database)],
        env=root.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _remove_file(server: Server) -> None:
    server.plugin_file.unlink()


def _mistype_name(server: Server) -> None:
    text = server.plugins_conf.read_text()
    assert text.count("Plugin = Debezium_Connector") == 1
    server.plugins_conf.write_text(
        text.replace("Plugin = Debezium_Connector", "Plugin = Debezium_Conector")
    )


@pytest.mark.parametrize("spoil", [_remove_file, _mistype_name])
def test_status_is_not_green_until_a_server_without_the_plugin_is_restarted(
    server: Server,
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Server], None],
) -> None:
    monkeypatch.setenv("FIREBIRD", str(server.root))
    database = tmp_path / "shop.fdb"
    work(database, published)
    spoil(server)
    words = "Replication plugin Debezium_Connector is not found"

    def status() -> str:
        capsys.readouterr()
        code = main(["status", "--config", str(options_file)])
        said = capsys.readouterr().out
        assert code == (words in said), said
        return said

    with _writing(server, engine_root, database) as came:
        assert came == ["committed", "committed"]  # which is why somebody has to tell
        assert words in status()
        with monkeypatch.context() as later:  # every entry is old
            later.setattr(engine_log_module, "PRESENT_S", -1)
            later.setattr(engine_log_module, "RECENT_S", -1)
            assert [each.severity for each in plugin_not_found(server)] == [Severity.ERROR]
    said_s = int(time.time())
    await_condition("the second to end", lambda: time.time() >= said_s + 1, 60)
    with holding(engine_root, database):  # of Classic, which has changed nothing yet
        assert words in status()
        assert main(["install", *_given(server, options_file)]) == 0
        server.plugins_conf.write_text(
            server.plugins_conf.read_text().replace("Debezium_Conector", "Debezium_Connector")
        )
        [past] = plugin_not_found(server)
        assert past.severity is Severity.NOTE
    assert f"{database}: {words}, so what was committed was NOT CAPTURED" in status()
    assert main(["journal", "acknowledge", "--config", str(options_file)]) == 0
    assert words not in status()


def test_status_without_a_journal_folder_reports_the_missing_plugin(
    server: Server,
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FIREBIRD", str(server.root))
    database = tmp_path / "shop.fdb"
    work(database, published)
    with holding(engine_root, database):
        os.utime(server.replication_conf)
        load_capture(options_file).journal_directory.rmdir()
        for options in (options_file.read_text(), "connector.name: 'test\n"):
            options_file.write_text(options)
            capsys.readouterr()
            assert main(["status", "--config", str(options_file)]) > 0
            assert "and without the plugin" in capsys.readouterr().out
            assert main(["status", "--config", str(options_file), "--json"]) > 0
            needs = json.loads(capsys.readouterr().out)["needs"]
            assert any("and without the plugin" in need for need in needs), needs


def test_status_reports_a_plugin_that_cannot_be_loaded(
    server: Server,
    options_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FIREBIRD", str(server.root))
    assert main(["status", "--config", str(options_file)]) == 0
    server.plugin_file.write_bytes(b"no library")
    assert main(["status", "--config", str(options_file)]) == 1
    assert f"{server.plugin_file}: the server can't load it: " in capsys.readouterr().out
