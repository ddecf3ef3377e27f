"""What replication.log tells counts when it was written, wherever its server's clock hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from firebird_cdc.cli import main
from firebird_cdc.packaging.engine_log import (
    engine_log,
    last_uncounted,
    plugin_not_found,
    uncounted,
)
from firebird_cdc.packaging.findings import Severity
from firebird_cdc.packaging.layout import Server, find_server

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine

_NOWHERE = "transactions were refused, and that is counted nowhere: the disk is full"


@pytest.fixture
def server(engine_root: EmbeddedRoot, options_file: Path) -> Server:
    """A server with the plugin, and without a log."""
    given = ["--server", str(engine_root.path), "--config", str(options_file)]
    assert main(["install", *given]) == 0
    return find_server(engine_root.path)


def _write(log: Path, *entries: tuple[float, str], zone_h: float = 0, ended: float = 0) -> None:
    """Append ENTRIES, by the clock of a server that is ZONE_H hours ahead of UTC."""
    with log.open("a") as file:
        for moment, text in entries:
            shown = time.asctime(time.gmtime(moment + zone_h * 3600))
            file.write(f"\nhost (primary) {shown}\n\tDatabase: /data/a.fdb\n\tERROR: {text}\n")
    last = ended or entries[-1][0]
    os.utime(log, (last, last))


@pytest.mark.parametrize("zone_h", [-11, 0, 5.75, 13])
def test_entries_of_a_server_in_any_time_zone_are_of_the_moment_when_they_were_written(
    server: Server, zone_h: float
) -> None:
    now = int(time.time())
    told = f"firebird-cdc: {_NOWHERE}"
    _write(server.replication_log, (now - 90, told), zone_h=zone_h)
    assert last_uncounted(server) == now - 90
    assert [said for _, said in uncounted(server, now - 91)]
    assert not list(uncounted(server, now - 90))


@pytest.mark.parametrize("zone_h", [-11, 13])
def test_what_the_engine_said_a_moment_ago_is_an_error_in_any_time_zone(
    server: Server, zone_h: float
) -> None:
    now = time.time()
    _write(server.replication_log, (now - 2, "firebird-cdc: it can't"), zone_h=zone_h)
    assert [each.severity for each in engine_log(server)] == [Severity.ERROR]


def test_what_was_counted_nowhere_is_found_behind_much_else_and_in_the_log_before(
    server: Server,
) -> None:
    now = int(time.time())
    log = server.replication_log
    _write(log, (now - 900, f"firebird-cdc: {_NOWHERE}"))
    log.rename(log.with_name(f"{log.name}.1"))
    _write(log, (now - 600, f"firebird-cdc: {_NOWHERE} too"))
    _write(log, *[(now - 300, "something else " * 20)] * 3000)
    said = [said for _, said in uncounted(server, 0)]
    assert len(said) == 2 and said[0].endswith(" too")
    assert last_uncounted(server) == now - 600


def test_status_tells_of_a_plugin_that_the_engine_does_not_find(
    server: Server,
    options_file: Path,
    work: Callable[[Path, Sequence[str]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FIREBIRD", str(server.root))
    database = tmp_path / "shop.fdb"
    work(database, ["CREATE TABLE T (ID INTEGER PRIMARY KEY)"])
    work(
        database,
        ["ALTER DATABASE INCLUDE ALL TO PUBLICATION", "ALTER DATABASE ENABLE PUBLICATION"],
    )
    plugin = server.plugin_file.read_bytes()
    server.plugin_file.unlink()
    work(database, ["INSERT INTO T VALUES (1)"])
    [finding] = plugin_not_found(server)
    assert finding.severity is Severity.ERROR
    name = "Replication plugin Debezium_Connector is not found"
    assert main(["status", "--config", str(options_file)]) == 1
    assert f"{name}: nothing is captured" in capsys.readouterr().out
    # Mended, and the server restarted since: what was lost stays until somebody knows it.
    server.plugin_file.write_bytes(plugin)
    log = server.replication_log
    said = log.read_text().rpartition("Database: ")[2]
    log.write_text(
        f"\nhost (primary) {time.asctime(time.gmtime(time.time() - 3600))}\n\tDatabase: {said}"
    )
    os.utime(log, (time.time() - 3600,) * 2)
    assert not list(plugin_not_found(server))
    assert main(["status", "--config", str(options_file)]) == 1
    assert f"{database}: {name}, so what was committed" in capsys.readouterr().out
    assert main(["journal", "acknowledge", "--config", str(options_file)]) == 0
    assert f"{database}: {name}" in capsys.readouterr().out
    assert main(["status", "--config", str(options_file)]) == 0
