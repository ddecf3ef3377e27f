"""Versions beside each other: switched by one rename, kept while a process has one, and going back
only where nothing newer waits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_install import picture
from test_running import holding
from versions_beside import Prefix

from firebird_cdc.journal.folder.folder_format import FORMAT, FORMAT_FILE
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    made = Prefix(tmp_path / "prefix")
    made.add("1.0.0")
    return made


def commit(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    print(number, file=process.stdin, flush=True)
    assert process.stdout.readline() == "committed\n"


def loaded(process: subprocess.Popen[str], prefix: Prefix) -> set[str]:
    """Return the versions of which PROCESS has something mapped."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return set(re.findall(rf"{re.escape(str(prefix.path))}/versions/([^/]+)/", maps))


def test_a_server_keeps_its_version_until_it_is_started_again(
    prefix: Prefix, engine_root: EmbeddedRoot, options_file: Path, work, published, tmp_path: Path
) -> None:
    database = tmp_path / "shop.fdb"
    work(database, published)
    before = picture(engine_root.path)
    server = ["--server", engine_root.path]
    done = prefix.run("1.0.0", "install", *server, "--config", options_file)
    assert done.returncode == 0, done.stderr
    conf = (engine_root.path / "plugins.conf").read_text()
    assert f"{prefix.path}/current/lib/packages" in conf
    assert not (engine_root.path / "plugins/libfirebird_cdc.so").is_symlink()
    assert "versions" not in conf
    prefix.add("1.1.0")
    with holding(engine_root, database) as first:
        commit(first, 1)
        installed = picture(engine_root.path)
        assert loaded(first, prefix) == {"1.0.0"}
        done = prefix.run("1.1.0", "upgrade", *server)
        assert done.returncode == 0, done.stderr
        assert "to use 1.1.0: until then it goes on with 1.0.0" in done.stdout
        changed = picture(engine_root.path).items() ^ installed.items()
        assert {name for name, _ in changed} <= {"plugins/firebird_cdc/installed.json"}
        commit(first, 2)
        assert loaded(first, prefix) == {"1.0.0"}
        checked = prefix.run("1.1.0", "check", *server)
        assert "restart python" in checked.stdout
        assert "to use 1.1.0" in checked.stdout
        status = prefix.run("1.1.0", "status", "--config", options_file)
        assert "runs version 1.0.0, and 1.1.0 is installed; restart the server to use 1.1.0" in (
            status.stdout
        )
        with holding(engine_root, database) as second:
            commit(second, 3)
            assert loaded(second, prefix) == {"1.1.0"}
        done = prefix.run("1.1.0", "prune")
        assert f"versions/1.0.0 stays while processes run with it ({first.pid})" in done.stdout
    assert "removed" in prefix.run("1.1.0", "prune").stdout
    assert [path.name for path in (prefix.path / "versions").iterdir()] == ["1.1.0"]
    assert prefix.run("1.1.0", "uninstall", *server).returncode == 0
    assert picture(engine_root.path) == before


def test_plugin_that_meets_the_bridge_of_another_version_says_so(
    prefix: Prefix, engine_root: EmbeddedRoot, options_file: Path, work, published, tmp_path: Path
) -> None:
    database = tmp_path / "shop.fdb"
    work(database, published)
    prefix.run("1.0.0", "install", "--server", engine_root.path, "--config", options_file)
    page = prefix.path / "versions/1.0.0/packages/firebird_cdc/native/_shared_page.py"
    page.write_text(re.sub(r"BRIDGE_ABI = \d+", "BRIDGE_ABI = 1", page.read_text()))
    with pytest.raises(AssertionError, match=r"1\.0\.0 in .* is another version than the plugin"):
        work(database, ["INSERT INTO T VALUES (1)"])


def test_plugin_that_is_to_hand_over_to_itself_says_so(
    prefix: Prefix, engine_root: EmbeddedRoot, options_file: Path, work, published, tmp_path: Path
) -> None:
    database = tmp_path / "shop.fdb"
    work(database, published)
    prefix.run("1.0.0", "install", "--server", engine_root.path, "--config", options_file)
    link = engine_root.path / "plugins/firebird_cdc/libfirebird_cdc.so"
    assert link.is_symlink()
    link.unlink()
    link.symlink_to(engine_root.path / "plugins/libfirebird_cdc.so")
    with pytest.raises(AssertionError, match=r"version in use can't be opened"):
        work(database, ["INSERT INTO T VALUES (1)"])


def test_going_back_is_refused_while_something_newer_waits(
    prefix: Prefix, engine_root: EmbeddedRoot, options_file: Path, tmp_path: Path
) -> None:
    arguments = ["--server", engine_root.path]
    environment = {"FIREBIRD": str(engine_root.path)}
    prefix.run("1.0.0", "install", *arguments, "--config", options_file)
    prefix.add("1.1.0")
    assert prefix.run("1.1.0", "upgrade", *arguments).returncode == 0
    journals = tmp_path / "new/journals"
    state = journals / STATE_DIRECTORY
    state.mkdir()

    def go_back() -> subprocess.CompletedProcess[str]:
        command = prefix.command("1.0.0", "upgrade", *arguments)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def may_go_back(*formats: int) -> subprocess.CompletedProcess[str]:
        """Ask the newer version on behalf of the older one, as that one's package does."""
        asked = ["upgrade", "--may-go-back-to", "1.0.0", *formats]
        command = prefix.command("1.1.0", *asked)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    waiting = journals / "00000000-0000-4000-8000-000000000001.log"
    waiting.write_bytes(b"FBCDCJ\r\n" + (3).to_bytes(2, "little") + bytes(1014))
    refused = go_back()
    assert refused.returncode == 1
    assert f"1 journals in {journals} are of a newer version" in refused.stderr
    assert "have 1.1.0 ship them first" in refused.stderr
    assert may_go_back(3, FORMAT).returncode == 0
    refused = may_go_back(2, FORMAT)
    assert refused.returncode == 1
    assert f"1 journals in {journals} are of a newer version, and 1.0.0 can't" in refused.stderr
    waiting.unlink()

    (state / FORMAT_FILE).write_text(f"{FORMAT + 1}\n")
    refused = go_back()
    assert f"{journals} has format {FORMAT + 1}, of a newer version" in refused.stderr
    assert "go on with 1.1.0" in may_go_back(2, FORMAT).stderr
    shown = prefix.run("1.0.0", "status", "--config", options_file)
    assert shown.returncode == 1
    assert f"format {FORMAT + 1}" in shown.stderr
    assert prefix.in_use == "1.1.0"
    (state / FORMAT_FILE).unlink()

    assert go_back().returncode == 0
    assert prefix.in_use == "1.0.0"


def test_upgrade_that_was_killed_is_completed_by_the_next_one(
    prefix: Prefix, engine_root: EmbeddedRoot, options_file: Path, tmp_path: Path
) -> None:
    arguments = ["--server", engine_root.path]
    done = prefix.run("1.0.0", "install", *arguments, "--config", options_file)
    assert done.returncode == 0, done.stderr
    prefix.add("1.1.0")
    dying = tmp_path / "dying.py"
    dying.write_text(_DYING)
    packages = str(prefix.path / "versions/1.1.0/packages")
    for step in (1, 2, 3, 6):
        command = [sys.executable, "-I", str(dying), str(step), packages, "upgrade"]
        died = subprocess.run([*command, *map(str, arguments)], check=False)
        assert died.returncode == -signal.SIGKILL
        assert prefix.in_use in ("1.0.0", "1.1.0")
        assert (engine_root.path / "plugins/libfirebird_cdc.so").exists()
        completed = prefix.run("1.1.0", "upgrade", *arguments)
        assert completed.returncode == 0, completed.stderr
        assert prefix.in_use == "1.1.0"
        assert {path.name for path in prefix.path.iterdir()} == {"versions", "current"}
        assert not list(engine_root.path.rglob("*.tmp"))
        if not (prefix.path / "versions/1.0.0").exists():  # nobody has it
            prefix.add("1.0.0")
        assert prefix.run("1.0.0", "upgrade", *arguments).returncode == 0


# Dies at one of the calls that change names, the first argument says which.
_DYING = """
import os, signal, sys
left = int(sys.argv.pop(1))
sys.path.insert(0, sys.argv.pop(1))
CALLS = {"os.rename", "os.symlink", "os.link", "os.remove", "os.rmdir"}
def watch(event, arguments):
    global left
    if event in CALLS:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
from firebird_cdc.cli import main
sys.exit(main())
"""
