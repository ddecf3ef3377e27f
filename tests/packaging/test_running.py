"""Processes that have an engine loaded, and whether they have what was installed since."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from firebird_cdc.cli import main
from firebird_cdc.packaging.server import running
from firebird_cdc.packaging.server.findings import Severity
from firebird_cdc.packaging.server.layout import find_server
from firebird_cdc.packaging.server.procfs import MappedFile
from firebird_cdc.packaging.server.running import restart_findings

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine

# Loads the plugin as a server does, once it commits.
_HOLDS = """
import sys
from firebird import driver
library, database = sys.argv[1:]
driver.driver_config.fb_client_library.value = library
with driver.connect(database, user="SYSDBA") as connection:
    print("attached", flush=True)
    for line in sys.stdin:
        connection.execute_immediate(f"INSERT INTO T VALUES ({line})")
        connection.commit()
        print("committed", flush=True)
"""

Work = Callable[[Path, Sequence[str]], None]


@contextmanager
def holding(root: EmbeddedRoot, database: Path) -> Iterator[subprocess.Popen[str]]:
    """Have a process hold DATABASE open, which reads nothing, and commits a row of T for each
    number that it is told."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _HOLDS, str(root.client_library), str(database)],
        env=root.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "attached\n"
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def install(root: EmbeddedRoot, options: Path, *more: str) -> None:
    server = ["--server", str(root.path)]
    assert main(["install", *server, "--config", str(options), *more]) == 0


@pytest.mark.parametrize("databases", ["all", "named", "another"])
def test_process_without_plugin_on_a_captured_database_is_an_error(
    engine_root: EmbeddedRoot, options_file: Path, work: Work, tmp_path: Path, databases: str
) -> None:
    database = tmp_path / "shop.fdb"
    work(database, ["CREATE TABLE T (ID INTEGER PRIMARY KEY)"])
    chosen = {"all": [], "named": ["--database", str(database)]}.get(
        databases, ["--database", str(tmp_path / "other.fdb")]
    )
    server = find_server(engine_root.path)
    with holding(engine_root, database) as process:
        install(engine_root, options_file, *chosen)
        [finding] = restart_findings(server)
        assert f"process {process.pid} (" in finding.what
        assert finding.remedy.startswith("restart ")
        is_blind = databases != "another"
        assert finding.severity is (Severity.ERROR if is_blind else Severity.WARNING)
        assert (f"with {database} open and without the plugin" in finding.what) == is_blind
    with holding(engine_root, database):
        assert list(restart_findings(server)) == []


@pytest.mark.parametrize("change", ["# changed\n", ""], ids=["appended", "emptied"])
def test_a_change_of_an_included_file_counts_too(
    engine_root: EmbeddedRoot, options_file: Path, work: Work, tmp_path: Path, change: str
) -> None:
    database = tmp_path / "shop.fdb"
    work(database, ["CREATE TABLE T (ID INTEGER PRIMARY KEY)"])
    install(engine_root, options_file)
    server = find_server(engine_root.path)
    included = engine_root.path / "more.conf"
    included.write_text("database = /data/other.fdb\n{\n    verbose_logging = true\n}\n")
    with server.replication_conf.open("a") as conf:
        conf.write("include more.conf\n")
    with holding(engine_root, database):
        assert not list(restart_findings(server))
        included.write_text(change and included.read_text() + change)
        [finding] = restart_findings(server)
    assert (
        f"{included} changed" in finding.what and str(server.replication_conf) not in finding.what
    )


def test_processes_of_another_root_with_the_same_engine_are_not_the_servers(
    engine_root: EmbeddedRoot, options_file: Path, work: Work, tmp_path: Path
) -> None:
    from firebird_cdc.demo.engine import EmbeddedRoot

    database = tmp_path / "shop.fdb"
    other = EmbeddedRoot(tmp_path / "other")
    work(database, ["CREATE TABLE T (ID INTEGER PRIMARY KEY)"])
    with holding(other, database):
        install(engine_root, options_file)
        assert list(restart_findings(find_server(engine_root.path))) == []


@pytest.mark.parametrize("is_late", [True, False])
def test_a_server_that_cannot_be_looked_at_is_not_called_well(
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    tmp_path: Path,
    is_late: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = tmp_path / "shop.fdb"
    work(database, ["CREATE TABLE T (ID INTEGER PRIMARY KEY)"])
    if not is_late:
        install(engine_root, options_file)
    with holding(engine_root, database) as process:
        if is_late:
            install(engine_root, options_file)
        mapped = running.mapped_files

        def refuse(folder: Path) -> Iterator[MappedFile]:
            if folder.name == str(process.pid):
                raise PermissionError(folder)
            return mapped(folder)

        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        monkeypatch.setattr(running, "mapped_files", refuse)
        monkeypatch.setattr(running, "SERVER_PROGRAMS", (name,))
        found = [
            finding
            for finding in restart_findings(find_server(engine_root.path))
            if f" {process.pid} (" in finding.what
        ]
    [finding] = found
    assert finding.severity is (Severity.WARNING if is_late else Severity.NOTE)
    assert "can't be looked at" in finding.what
    assert "run this as root" in finding.remedy
    assert ("restart the server" in finding.remedy) == is_late
