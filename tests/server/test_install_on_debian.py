"""Install, upgrade, check and uninstall on Debian's Firebird 4, running and stopped."""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shared_folder import all_readers_in

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = pytest.mark.server

Picture = dict[str, tuple[int, int, int, bytes]]


def picture(system: debian.Trixie) -> Picture:
    """The server's configuration and library folders: modes, owners and contents."""
    found = {}
    for folder in (debian.CONFIGURATION, debian.SERVER_DIRECTORY, Path("var/log/firebird")):
        for path in (system.path / folder).rglob("*"):
            status = path.lstat()
            content = b""
            if path.is_symlink():
                content = str(path.readlink()).encode()
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            found[str(path)] = (status.st_mode, status.st_uid, status.st_gid, content)
    return found


def test_install_and_uninstall_follow_debians_folders_and_links(
    firebird4: Firebird4,
) -> None:
    home = firebird4.system.path / "var/lib/firebird-cdc"
    before = picture(firebird4.system)
    try:
        first = firebird4.command("install", "--server", "/")
        installed = picture(firebird4.system)
        assert "Nothing to do" in firebird4.command("install", "--server", "/")
        assert picture(firebird4.system) == installed

        # The server looks for replication.conf in its library folder; people look in /etc.
        link = firebird4.server_directory / "replication.conf"
        assert str(link.readlink()) == "/etc/firebird/4.0/replication.conf"
        sample = firebird4.configuration / "reddatabase.connector.yaml"
        database = firebird4.system.path / "var/lib/firebird/4.0/system/security4.fdb"
        assert sample.stat().st_mode & 0o777 == 0o640
        assert sample.stat().st_gid == database.stat().st_gid
        for name in ("journal", "archive"):
            status = (home / name).stat()
            assert (status.st_uid, status.st_mode & 0o777) == (database.stat().st_uid, 0o700)
        state = (home / "state").stat()
        assert (state.st_uid, state.st_mode & 0o777) == (database.stat().st_uid, 0o750)
        logs = (firebird4.system.path / debian.OUR_LOGS).stat()
        assert (logs.st_uid, logs.st_mode & 0o777) == (database.stat().st_uid, 0o750)
        assert "reddatabase.connector.yaml is a sample" in first

        said = firebird4.command("uninstall", "--server", "/")
        assert picture(firebird4.system) == before
        assert "/var/lib/firebird-cdc/journal stays" in said
        assert not (home / "state").exists()
        assert "Nothing to do" in firebird4.command("uninstall", "--server", "/")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_refused_transaction_is_reported_in_its_system_until_acknowledged(
    firebird4: Firebird4, client: Any
) -> None:
    journals, _ = firebird4.install("127.0.0.1:9", "test")
    options = ("--config", str(firebird4.inner(firebird4.folder / "connector.yaml")))
    firebird4.system.run("chown", "root:root", str(firebird4.inner(journals)))
    firebird4.start()
    database = firebird4.create_database(client)
    insert = "INSERT INTO ITEM (ID) VALUES (1)"
    with client.connect(firebird4.dsn(database)) as connection:
        with pytest.raises(client.DatabaseError, match="capture can't start"):
            connection.execute_immediate(insert)
        connection.rollback()
        told = rf"1 transaction of {firebird4.inner(database)} was refused"
        assert re.search(told, firebird4.command("status", *options, check=False))
        assert re.search(f"error: .*{told}", firebird4.command("check", check=False))
        [page] = (firebird4.system.path / debian.OUR_STATE).iterdir()
        assert page.stat().st_uid == (firebird4.folder / "connector.yaml").stat().st_uid

        firebird4.give_to_server(journals)

        def works() -> bool:
            try:
                connection.execute_immediate(insert)
            except client.DatabaseError:
                connection.rollback()
                return False
            connection.commit()
            return True

        await_condition("writes to work", works, 120)
    assert re.search(r"\d+ transactions? of", firebird4.command("journal", "acknowledge", *options))
    # A broker that is not there refuses a connection.
    assert not re.search("(was|were) refused", firebird4.command("status", *options, check=False))


def test_an_outsider_is_told_to_install_from_inside(
    firebird4: Firebird4, capsys: pytest.CaptureFixture[str]
) -> None:
    from firebird_cdc.cli import main

    root = firebird4.system.path
    for place in (root, root / debian.CONFIGURATION, firebird4.server_directory):
        assert main(["install", "--server", str(place)]) == 1
        assert f"chroot {root} firebird-cdc install --server /" in capsys.readouterr().err


def _sequences(folders: tuple[Path, Path]) -> list[int]:
    found = []
    for folder in folders:
        for journal in all_readers_in(folder):
            assert journal.stamp is not None
            found.append(journal.stamp.sequence)
    return sorted(found)


@pytest.mark.kafka
def test_an_upgrade_under_a_running_server_disturbs_no_client(
    firebird4: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    folders = firebird4.install(broker.bootstrap, topic_prefix)
    plugin = firebird4.server_directory / "plugins/libfirebird_cdc.so"
    current = plugin.read_bytes()
    with plugin.open("ab") as file:
        file.write(b"\0")  # another build, as far as install can tell, and it loads as well
    firebird4.start()
    database = firebird4.create_database(client)
    with client.connect(firebird4.dsn(database)) as connection:
        connection.execute_immediate("INSERT INTO ITEM VALUES (1, 'before', 1)")
        connection.commit()
        log = firebird4.system.path / debian.OUR_LOGS / "server.log"
        assert log.stat().st_uid == log.parent.stat().st_uid != 0
        inode = plugin.stat().st_ino
        options = str(firebird4.inner(firebird4.folder / "connector.yaml"))
        said = firebird4.command("install", "--server", "/", "--config", options)
        assert f"replace /{plugin.relative_to(firebird4.system.path)}" in said
        assert plugin.read_bytes() == current
        assert plugin.stat().st_ino != inode
        connection.execute_immediate("INSERT INTO ITEM VALUES (2, 'after', 1)")
        connection.commit()
    firebird4.stop()
    firebird4.start()
    with client.connect(firebird4.dsn(database)) as connection:
        connection.execute_immediate("INSERT INTO ITEM VALUES (3, 'restarted', 1)")
        connection.commit()
        await_condition("three journals", lambda: _sequences(folders) == [1, 2, 3], 120)


def test_check_finds_missing_rights_of_the_servers_user(firebird4: Firebird4) -> None:
    journals, _ = firebird4.install("127.0.0.1:9", "nowhere")
    firebird4.system.run("chown", "root:root", str(firebird4.inner(journals)))
    firebird4.system.run("chmod", "0600", str(firebird4.inner(firebird4.folder / "connector.yaml")))
    firebird4.system.run(
        "chown", "root:root", str(firebird4.inner(firebird4.folder / "connector.yaml"))
    )
    said = firebird4.command("check", "--server", "/", check=False)
    assert f"firebird can't write to {firebird4.inner(journals)}" in said
    assert "connector.yaml: firebird can't read it" in said
    assert "no answer from 127.0.0.1:9" in said
    about_options = [
        line
        for line in said.splitlines()
        if "connector.yaml" in line and "->" not in line and "MiB left of" not in line
    ]
    assert len(about_options) == 3, said


def test_a_missing_plugin_is_found_in_the_log_that_the_engine_can_write(
    firebird4: Firebird4, client: Any
) -> None:
    firebird4.install("127.0.0.1:9", "nowhere")
    (firebird4.server_directory / "plugins/libfirebird_cdc.so").unlink()
    firebird4.start()
    database = firebird4.create_database(client)
    with client.connect(firebird4.dsn(database)) as connection:
        connection.execute_immediate("INSERT INTO ITEM VALUES (1, 'unseen', 1)")
        connection.commit()  # the engine says nothing to its client
    said = firebird4.command("check", "--server", "/", check=False)
    assert "libfirebird_cdc.so: the plugin is missing" in said
    assert re.search(r"replication\.log: .*plugin Debezium_Connector is not found", said), said

    (firebird4.server_directory / "replication.log").unlink()
    said = firebird4.command("check", "--server", "/", check=False)
    assert "replication.log: firebird can't write to it" in said
