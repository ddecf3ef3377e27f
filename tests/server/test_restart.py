"""Findings of check and status about a server that runs without what is installed for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder.locks import shipper_present

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = pytest.mark.server

PROGRAM = f"/{debian.VENV}/bin/firebird-cdc"


def run(server: Firebird4, *argv: str, **environment: str) -> tuple[int, str]:
    """Run firebird-cdc inside as root; return the exit code and what it printed."""
    done = server.system.run(PROGRAM, *argv, check=False, environment=environment)
    return done.returncode, done.stdout


def as_user(server: Firebird4, user: str, *argv: str) -> tuple[int, str]:
    """Run firebird-cdc inside as a user of that system; return exit code and output."""
    switch = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    if user == "nobody":
        switch[2] = "--regid=nogroup"
    done = server.system.run(*switch, PROGRAM, *argv, check=False)
    return done.returncode, done.stdout


def about_restart(server: Firebird4) -> list[str]:
    """The findings of check that ask for a restart."""
    _, said = run(server, "check")
    lines = said.splitlines()
    return [lines[n - 1] for n, line in enumerate(lines) if "-> restart the server" in line]


def insert(connection: Any, identity: int) -> None:
    connection.execute_immediate(f"INSERT INTO ITEM VALUES ({identity}, 'x', 1)")
    connection.commit()


def test_a_server_that_was_not_restarted_after_install_is_an_error(
    firebird4: Firebird4, client: Any
) -> None:
    firebird4.start()
    database = firebird4.create_database(client)
    name = str(firebird4.inner(database))
    with client.connect(firebird4.dsn(database)) as connection:
        insert(connection, 1)
        journals, _ = firebird4.install("127.0.0.1:9", "nowhere")
        insert(connection, 2)  # captured by nobody, and nobody tells the client
        [finding] = about_restart(firebird4)
        assert finding.startswith("error: ")
        assert f"process {firebird4.process_id} (firebird, since " in finding
        assert f"with {name} open and without the plugin" in finding
        assert "plugins.conf changed" in finding
        assert run(firebird4, "check")[0] == 2
        code, said = run(firebird4, "status", "--directory", str(firebird4.inner(journals)))
        assert code == 1
        assert "ACTION REQUIRED" in said
        assert f"with {name} open and without the plugin" in said
        assert "; restart the server" in said
    firebird4.stop()
    firebird4.start()
    with client.connect(firebird4.dsn(database)) as connection:
        # It has the database open and no reason yet to load the plugin: that is no fault.
        assert about_restart(firebird4) == []
        insert(connection, 3)
        assert about_restart(firebird4) == []


def test_file_changed_under_a_capturing_server_is_a_warning(
    firebird4: Firebird4, client: Any
) -> None:
    firebird4.install("127.0.0.1:9", "nowhere")
    firebird4.start()
    database = firebird4.create_database(client)
    with client.connect(firebird4.dsn(database)) as connection:
        insert(connection, 1)
        assert about_restart(firebird4) == []
        conf = firebird4.configuration / "replication.conf"
        conf.write_text(conf.read_text() + "# looked at\n")
        # An old time of its content, as from an archive, makes it no older than the server.
        os.utime(conf, (1, 1))
        [finding] = about_restart(firebird4)
        assert finding.startswith("warning: ")
        assert "by files as they were before" in finding
        assert "replication.conf changed" in finding
        assert "plugins.conf" not in finding

        plugin = firebird4.server_directory / "plugins/libfirebird_cdc.so"
        copy = plugin.with_name("copy")
        copy.write_bytes(plugin.read_bytes())
        copy.replace(plugin)
        assert sorted(finding.partition(" with ")[2] for finding in about_restart(firebird4)) == [
            "",
            "the plugin as it was before it was replaced",
        ]


@pytest.mark.parametrize("server_mode", ["Classic"])
def test_only_classic_processes_older_than_the_change_are_reported(
    firebird4: Firebird4, client: Any
) -> None:
    firebird4.start()
    database = firebird4.create_database(client)
    before = client.connect(firebird4.dsn(database))
    insert(before, 1)
    # That of the connection that made the database is older than the change, too.
    await_condition("its end", lambda: len(firebird4.processes()) == 2, 120)
    firebird4.install("127.0.0.1:9", "nowhere")
    with client.connect(firebird4.dsn(database)) as after:
        insert(after, 2)
        [finding] = about_restart(firebird4)
        assert finding.startswith("error: ")
        assert finding.count("(firebird, since ") == 1
        served = [
            number
            for number in firebird4.processes()
            if "libfirebird_cdc" in Path(f"/proc/{number}/maps").read_text()
        ]
        assert len(served) == 1
        assert f"process {served[0]} " not in finding
        before.close()
        ended = int(finding.partition("process ")[2].split()[0])
        await_condition("the end of it", lambda: ended not in firebird4.processes(), 120)
        assert about_restart(firebird4) == []


@pytest.mark.kafka
def test_check_is_green_on_a_healthy_machine_and_finds_all_by_itself(
    firebird4: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str
) -> None:
    journals, _ = firebird4.install(broker.bootstrap, topic_prefix)
    firebird4.start()
    database = firebird4.create_database(client)
    with client.connect(firebird4.dsn(database)) as connection:
        insert(connection, 1)
    # Until it runs, nobody sends what waits.
    await_condition("the shipper", lambda: shipper_present(journals), 120)
    # Neither a server nor a user is named: Debian's package left SYSDBA's password.
    code, said = run(firebird4, "check", "--database", str(firebird4.inner(database)))
    assert code == 0, said
    assert "nothing is wrong" in said
    code, said = run(firebird4, "check", "--strict")
    assert code == 0, said
    # The server's user may look, too, and sees as much.
    as_server = as_user(firebird4, "firebird", "check")
    assert as_server[0] == 0, as_server
    assert "nothing is wrong" in as_server[1]
    for command in (["journal", "quarantine"], ["journal", "retry"], ["journal", "acknowledge"]):
        assert run(firebird4, *command)[0] == 0
    elsewhere = str(firebird4.inner(firebird4.folder / "elsewhere.yaml"))
    for command in (["check"], ["status"], ["ship", "--once"], ["journal", "quarantine"]):
        code, said = run(firebird4, *command, FIREBIRD_CONNECTOR_CONFIG=elsewhere)
        assert code != 0, said
        assert f"{elsewhere}: the connector configuration does not exist" in said


@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("install",),
        ("uninstall",),
        ("status",),
        ("ship", "--once"),
        ("journal", "quarantine"),
        ("journal", "retry"),
        ("journal", "discard", "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa"),
        ("journal", "acknowledge"),
        ("replay", "audit"),
    ],
    ids=" ".join,
)
def test_another_user_is_told_to_run_it_as_root(
    firebird4: Firebird4, command: tuple[str, ...]
) -> None:
    firebird4.install("127.0.0.1:9", "nowhere")
    code, said = as_user(firebird4, "nobody", *command)
    assert code in (1, 2)
    assert "Traceback" not in said
    assert "root" in said.splitlines()[-1], said


def test_another_user_is_told_to_be_root_for_a_named_folder(firebird4: Firebird4) -> None:
    journals, _ = firebird4.install("127.0.0.1:9", "nowhere")
    inner = firebird4.inner(journals)
    journal = str(inner / "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa.log")
    config = str(firebird4.inner(firebird4.folder / "connector.yaml"))
    (firebird4.folder / "connector.yaml").chmod(0o640)
    for command in (
        ("status", "--directory", str(inner)),
        ("status", "--config", config),
        ("ship", "--once", "--config", config),
        ("journal", "show", journal),
        ("replay", "state", "--config", config, "--output", "/tmp/none"),
    ):
        code, said = as_user(firebird4, "nobody", *command)
        assert code in (1, 2)
        assert "Traceback" not in said
        assert "root" in said.splitlines()[-1], said
