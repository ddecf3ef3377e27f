"""Install, upgrade and uninstall on an engine's root: twice, half-way, and over users' edits."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from counter_pages import write_lost
from red_database import RED_DATABASE_PLUGINS, RED_DATABASE_REPLICATION

from firebird_cdc.cli import main
from firebird_cdc.journal.folder import failures
from firebird_cdc.packaging import install as packaging_install
from firebird_cdc.packaging.server.conf import ConfFile, find

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

Picture = dict[str, tuple[int, bytes]]


def picture(root: Path) -> Picture:
    """Every name below ROOT with mode and content (of a link: its target)."""
    return {
        str(path.relative_to(root)): (
            stat.S_IFMT(path.lstat().st_mode) | path.lstat().st_mode & 0o777,
            str(path.readlink()).encode()
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b"",
        )
        for path in root.rglob("*")
    }


def install(root: EmbeddedRoot, *options: object) -> int:
    return main(["install", "--server", str(root.path), *map(str, options)])


def uninstall(root: EmbeddedRoot, *options: object) -> int:
    return main(["uninstall", "--server", str(root.path), *map(str, options)])


def inodes(root: EmbeddedRoot) -> dict[str, int]:
    return {str(path): path.lstat().st_ino for path in root.path.rglob("*")}


@pytest.mark.parametrize("edited", [False, True])
def test_installed_and_uninstalled_twice_the_root_is_as_it_was(
    engine_root: EmbeddedRoot,
    options_file: Path,
    edited: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if edited:
        (engine_root.path / "plugins.conf").write_text(RED_DATABASE_PLUGINS)
        (engine_root.path / "replication.conf").write_text(
            "database\n{\n  # report_errors = false\n  report_errors = false # old\n}\n"
            "database = /data/other.fdb {\n  plugin = Other }"
        )
    before = picture(engine_root.path)

    assert install(engine_root, "--config", options_file) == 0
    installed = inodes(engine_root)
    assert (engine_root.path / "plugins/libfirebird_cdc.so").stat().st_mode & 0o555 == 0o555
    assert install(engine_root, "--config", options_file) == 0
    assert "Nothing to do" in capsys.readouterr().out
    assert inodes(engine_root) == installed

    assert uninstall(engine_root) == 0
    assert picture(engine_root.path) == before
    assert uninstall(engine_root) == 0
    assert "Nothing to do" in capsys.readouterr().out
    assert picture(engine_root.path) == before


def test_the_journal_directory_is_made_for_the_servers_user_alone(
    engine_root: EmbeddedRoot,
    options_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    journals = tmp_path / "new/journals"
    (engine_root.path / "security5.fdb").touch()
    os.chown(engine_root.path / "security5.fdb", 4711, 4712)
    install(engine_root, "--config", options_file)
    status = journals.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (4711, 4712, 0o700)
    # The folders of a test are closed to others, as a home directory is.
    said = capsys.readouterr().out
    assert re.search(rf"runs as 4711, which can't read .*{re.escape(str(options_file))}", said)


def _state_of(root: EmbeddedRoot) -> str | None:
    (section,) = find(ConfFile.read(root.path / "plugins.conf").entries, "Config")[-1:]
    return section.last("StateDirectory")


def test_state_folder_of_the_servers_user_stays_with_unacknowledged_counts(
    engine_root: EmbeddedRoot,
    options_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (engine_root.path / "security5.fdb").touch()
    os.chown(engine_root.path / "security5.fdb", 4711, 4712)
    monkeypatch.setattr(failures, "SYSTEM_STATE", tmp_path / "var")
    monkeypatch.setattr("firebird_cdc.packaging.install._is_of_system", lambda path: True)
    state = tmp_path / "var/state"
    install(engine_root, "--config", options_file)
    status = state.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (4711, 4712, 0o750)
    assert _state_of(engine_root) == str(state)
    write_lost(state / failures.page_name(options_file), {"/srv/a.fdb": 3})
    uninstall(engine_root)
    assert re.search(f"{state} stays: 3 transactions of /srv/a.fdb", capsys.readouterr().out)
    # A server of another user does not get it.
    os.chown(engine_root.path / "security5.fdb", 4713, 4712)
    install(engine_root, "--config", options_file)
    assert _state_of(engine_root) == str(tmp_path / "var/state-4713")


def test_uninstall_removes_a_state_folder_with_acknowledged_counts(
    engine_root: EmbeddedRoot, options_file: Path
) -> None:
    install(engine_root, "--config", options_file)
    state = options_file.parent / failures.BESIDE
    page = write_lost(state / failures.page_name(options_file), {"/srv/a.fdb": 3})
    failures.acknowledge_failures([page])
    assert len(list(state.iterdir())) == 2
    uninstall(engine_root)
    assert not state.exists()


def test_a_state_folder_with_a_damaged_page_stays_at_uninstall(
    engine_root: EmbeddedRoot, options_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(engine_root, "--config", options_file)
    state = options_file.parent / failures.BESIDE
    page = write_lost(state / failures.page_name(options_file), {})
    damaged = page.rename(page.with_name(page.name + ".damaged"))
    uninstall(engine_root)
    assert f"{state} stays: {damaged} is damaged" in capsys.readouterr().out
    assert damaged.exists()


def test_another_connectors_file_gets_a_state_folder_that_commands_find(
    engine_root: EmbeddedRoot, options_file: Path, tmp_path: Path
) -> None:
    install(engine_root, "--config", options_file)
    other = tmp_path / "other" / options_file.name
    other.parent.mkdir()
    other.write_bytes(options_file.read_bytes())
    install(engine_root, "--config", other)
    assert _state_of(engine_root) == str(other.parent / failures.BESIDE)
    uninstall(engine_root)
    assert not list(tmp_path.rglob(failures.BESIDE))


def test_a_dry_run_shows_the_edits_and_touches_nothing(
    engine_root: EmbeddedRoot,
    options_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = picture(tmp_path)
    assert install(engine_root, "--config", options_file, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "+\tplugin = Debezium_Connector\n" in shown
    assert f"would write {engine_root.path}/plugins/libfirebird_cdc.so" in shown
    assert picture(tmp_path) == before


def test_a_red_database_server_moves_over_by_its_module_path(
    engine_root: EmbeddedRoot, options_file: Path
) -> None:
    plugins = engine_root.path / "plugins.conf"
    plugins.write_text(RED_DATABASE_PLUGINS)
    (engine_root.path / "replication.conf").write_text(RED_DATABASE_REPLICATION)
    (engine_root.path / "reddatabase.connector.yaml").write_bytes(options_file.read_bytes())
    assert install(engine_root) == 0

    entries = ConfFile.read(plugins).entries
    assert find(entries, "Plugin", "UDR")[0].last("Module") == "$(dir_plugins)/udr_engine"
    (connector,) = find(entries, "Plugin", "Debezium_Connector")
    assert connector.last("Module") == "$(dir_plugins)/firebird_cdc"
    (section,) = find(entries, "Config", "Debezium_Connector_config")
    assert section.last("JarDirs") == "$(this)/debezium"
    assert section.last("ConnectorConfig") == "$(this)/reddatabase.connector.yaml"
    (database,) = find(ConfFile.read(engine_root.path / "replication.conf").entries, "database")
    assert [(e.name, e.value) for e in database.entries or []] == [
        ("plugin", "Debezium_Connector"),
        ("report_errors", "true"),
        ("disable_on_error", "false"),
    ]
    # Every line that was there still is, in its order; the Module is kept as a comment.
    kept = (line.removeprefix("# firebird-cdc was: ") for line in plugins.read_text().splitlines())
    assert all(line in kept for line in RED_DATABASE_PLUGINS.splitlines())


def test_a_jvm_args_file_keeps_naming_the_options(
    engine_root: EmbeddedRoot, options_file: Path
) -> None:
    (engine_root.path / "jvm.args").write_text(f"-Dfirebird.connector.config={options_file}\n")
    assert install(engine_root) == 0
    (section,) = find(ConfFile.read(engine_root.path / "plugins.conf").entries, "Config")[-1:]
    assert section.last("ConnectorConfig") == str(options_file)
    assert not (engine_root.path / "reddatabase.connector.yaml").exists()


def test_an_upgrade_replaces_changed_files_by_rename_and_nothing_else(
    engine_root: EmbeddedRoot, options_file: Path
) -> None:
    plugin = engine_root.path / "plugins/libfirebird_cdc.so"
    install(engine_root, "--config", options_file)
    current = plugin.read_bytes()
    plugin.write_bytes(b"an older build")
    stale = engine_root.path / "plugins/firebird_cdc/_embedding.cpython-310-x86_64-linux-gnu.so"
    stale.write_bytes(b"for a Python of before")
    before = inodes(engine_root)
    with plugin.open("rb") as mapped:  # as a running server has it
        assert install(engine_root, "--config", options_file) == 0
        assert mapped.read() == b"an older build"
    after = inodes(engine_root)
    assert plugin.read_bytes() == current
    assert not stale.exists()
    manifest = str(engine_root.path / "plugins/firebird_cdc/installed.json")
    changed = {path for path in after if after[path] != before[path]}
    assert changed == {str(plugin)}
    assert str(plugin) in json.loads(Path(manifest).read_text())["files"]


@pytest.fixture
def immutable(engine_root: EmbeddedRoot) -> Iterator[Path]:
    """A replication.conf that even root can't replace."""
    path = engine_root.path / "replication.conf"
    path.write_text("# protected\n")
    subprocess.run(["chattr", "+i", path], check=True)
    yield path
    subprocess.run(["chattr", "-i", path], check=True)


def test_an_install_that_fails_half_way_leaves_all_files_as_they_were(
    engine_root: EmbeddedRoot,
    options_file: Path,
    immutable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = picture(tmp_path)
    assert install(engine_root, "--config", options_file) == 1
    said = capsys.readouterr().err
    assert f"cannot write {immutable}" in said
    assert "all files are as they were" in said
    assert picture(tmp_path) == before


# Kills its own process just before the n-th change to a file system.
_KILLED = """
import os, signal, sys
from pathlib import Path
from firebird_cdc.cli import main
from firebird_cdc.packaging import install
left, install.SAMPLES = int(sys.argv[1]), Path(sys.argv[2])
def count(event, arguments):
    global left
    if event in ("os.rename", "os.link", "os.remove", "os.mkdir", "os.symlink", "os.chmod"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
sys.exit(main(sys.argv[3:]))
"""


def killed_at(change: int, *argv: object) -> bool:
    """Run a command and kill it before a CHANGE; False if it had ended by itself before."""
    samples = str(packaging_install.SAMPLES)  # those that tests have
    words = [sys.executable, "-P", "-c", _KILLED, str(change), samples, *map(str, argv)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_killed_at_any_change_the_next_run_completes_the_work(
    engine_root: EmbeddedRoot, options_file: Path
) -> None:
    before = picture(engine_root.path)
    server = ("--server", engine_root.path)
    install(engine_root, "--config", options_file)
    installed = picture(engine_root.path)
    uninstall(engine_root)
    change = 0
    while killed_at(change, "install", *server, "--config", options_file):
        assert install(engine_root, "--config", options_file) == 0
        assert picture(engine_root.path) == installed, f"killed at change {change} of install"
        assert uninstall(engine_root) == 0
        change += 1
    assert change > 10
    change = 0
    while killed_at(change, "uninstall", *server):
        assert uninstall(engine_root) == 0
        assert picture(engine_root.path) == before, f"killed at change {change} of uninstall"
        assert install(engine_root, "--config", options_file) == 0
        change += 1
    assert change > 5
    assert picture(engine_root.path) == before


def test_a_link_to_the_version_in_use_that_a_killed_run_left_goes(
    engine_root: EmbeddedRoot, options_file: Path
) -> None:
    install(engine_root, "--config", options_file)
    left = engine_root.path / "plugins/firebird_cdc/.libfirebird_cdc.so.0123456789ab.tmp"
    left.symlink_to("/opt/firebird-cdc/current/lib/libfirebird_cdc.so")
    assert uninstall(engine_root) == 0
    assert not left.parent.exists()


def test_an_uninstall_that_fails_half_way_leaves_all_files_as_they_were(
    engine_root: EmbeddedRoot, options_file: Path, tmp_path: Path
) -> None:
    install(engine_root, "--config", options_file)
    before = picture(tmp_path)
    record = engine_root.path / "plugins/firebird_cdc/installed.json"
    subprocess.run(["chattr", "+i", record], check=True)
    try:
        assert uninstall(engine_root) == 1
    finally:
        subprocess.run(["chattr", "-i", record], check=True)
    assert picture(tmp_path) == before
    assert uninstall(engine_root) == 0


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("database\n{\n\tplugin = Other\n}\n", "plugin = Other already"),
        ("database\n{\n\tjournal_directory = /x\n}\n", "own replication of the database ends"),
        ("database\n{\n}\ndatabase = /a.fdb\n{\n\tsync_replica = x\n}\n", "sync_replica"),
        ("database\n{\n}\ndatabase\n{\n}\n", "more than one default"),
        ("database\n", "'database' without"),
        ("database\n{\n", "has no '}'"),
    ],
)
def test_conflicting_replication_conf_is_named_and_left_alone(
    engine_root: EmbeddedRoot,
    options_file: Path,
    conf: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replication = engine_root.path / "replication.conf"
    replication.write_text(conf)
    before = picture(engine_root.path)
    assert install(engine_root, "--config", options_file) == 1
    error = capsys.readouterr().err
    assert said in error
    assert f"{replication}, line " in error
    assert picture(engine_root.path) == before


def test_replace_takes_the_place_and_uninstall_gives_it_back(
    engine_root: EmbeddedRoot, options_file: Path
) -> None:
    replication = engine_root.path / "replication.conf"
    before = "database\n{\n\tplugin = Other  # since 2020\n\tsync_replica = h:/b.fdb\n}\n"
    replication.write_text(before)
    assert install(engine_root, "--config", options_file, "--replace") == 0
    (section,) = ConfFile.read(replication).sections("database")
    assert section.last("plugin") == "Debezium_Connector"
    assert uninstall(engine_root) == 0
    assert replication.read_text() == before


def test_single_databases_get_sections_of_their_own(
    engine_root: EmbeddedRoot, options_file: Path, tmp_path: Path
) -> None:
    replication = engine_root.path / "replication.conf"
    replication.write_text(f"database = {tmp_path}/a.fdb\n{{\n\tbuffer_size = 1048576\n}}\n")
    options = ["--config", options_file, "--database", tmp_path / "a.fdb"]
    assert install(engine_root, *options, "--database", tmp_path / "b.fdb") == 0
    sections = ConfFile.read(replication).sections("database")
    assert {section.value for section in sections} == {f"{tmp_path}/a.fdb", f"{tmp_path}/b.fdb"}
    assert {section.last("plugin") for section in sections} == {"Debezium_Connector"}
    assert sections[0].last("buffer_size") == "1048576"
    assert install(engine_root, *options, "--database", "an_alias") == 1


def test_files_that_users_edited_stay_behind_and_are_named(
    engine_root: EmbeddedRoot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = engine_root.path / "reddatabase.connector.yaml"
    logging = engine_root.path / "firebird_cdc_logging.yaml"
    # The sample's own folders lie outside of any test's: choose others first.
    sample.write_text(
        f"connector.journal.directory: {tmp_path}/j\nconnector.name: x\n"
        "kafka.producer.bootstrap.servers: k:9092\nkafka.topic.prefix: x\n"
    )
    install(engine_root)
    logging.write_text("level: debug\n")
    foreign = engine_root.path / "plugins/firebird_cdc/notes.txt"
    foreign.write_text("do not lose")
    replication = engine_root.path / "replication.conf"
    mine = "\tinclude_filter = SHOP%\n"
    replication.write_text(replication.read_text().replace("{\n", "{\n" + mine))
    capsys.readouterr()

    assert uninstall(engine_root) == 0
    said = capsys.readouterr().out
    assert logging.read_text() == "level: debug\n"
    assert f"{logging} stays: it was edited" in said
    assert foreign.read_text() == "do not lose"
    assert "it holds notes.txt" in said
    assert "include_filter = SHOP%" in said
    assert mine in replication.read_text()
    assert sample.exists()
    assert str(tmp_path / "j") in said


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nothing", "is no directory"),
        ("empty", "is no server directory"),
        ("chroot", "is the root of another system"),
        ("firebird3", "is a Firebird 3 server"),
    ],
)
def test_a_wrong_root_is_explained(
    tmp_path: Path, place: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / place
    if place != "nothing":
        root.mkdir()
    if place == "chroot":
        (root / "etc/firebird/4.0").mkdir(parents=True)
        (root / "etc/firebird/4.0/firebird.conf").touch()
    if place == "firebird3":
        (root / "plugins").mkdir()
        (root / "plugins/libEngine12.so").touch()
        (root / "firebird.conf").touch()
    assert main(["install", "--server", str(root)]) == 1
    assert said in capsys.readouterr().err


def test_broken_options_are_refused_before_anything_is_touched(
    engine_root: EmbeddedRoot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = tmp_path / "connector.yaml"
    options.write_text("connector.nam: x\nkafka.topic.prefix: 'a b'\n")
    before = picture(engine_root.path)
    assert install(engine_root, "--config", options) == 2
    said = capsys.readouterr().err
    assert "connector.nam" in said
    assert "kafka.topic.prefix" in said
    assert picture(engine_root.path) == before


def test_logs_get_a_folder_that_goes_again_unless_there_are_logs(
    engine_root: EmbeddedRoot,
    options_file: Path,
    logs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server_user = engine_root.path.stat()
    for has_logs in (False, True):
        assert install(engine_root, "--config", options_file) == 0
        made = logs.stat()
        assert stat.S_IMODE(made.st_mode) == 0o750
        assert (made.st_uid, made.st_gid) == (server_user.st_uid, server_user.st_gid)
        if has_logs:
            (logs / "server.log").touch()
        assert install(engine_root, "--config", options_file) == 0  # an upgrade forgets it not
        capsys.readouterr()
        assert uninstall(engine_root) == 0
        assert logs.exists() == has_logs
        assert (f"{logs} stays, with " in capsys.readouterr().out) == has_logs


def test_a_folder_for_logs_that_was_there_stays(
    engine_root: EmbeddedRoot, options_file: Path, logs: Path
) -> None:
    logs.mkdir(parents=True)
    assert install(engine_root, "--config", options_file) == 0
    assert uninstall(engine_root) == 0
    assert logs.exists()


def test_install_without_rights_to_make_the_log_folder_says_so(
    engine_root: EmbeddedRoot,
    options_file: Path,
    logs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != logs.parents[2] and access(path, mode)
    )
    assert install(engine_root, "--config", options_file) == 0
    assert not logs.exists()
    assert f"{logs}, for our logs, is missing, and you may not make it" in capsys.readouterr().out
