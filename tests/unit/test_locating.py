"""Subject of a command that names none: from an option, the environment, or the one there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from firebird_cdc.cli import main
from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.server import locating
from firebird_cdc.packaging.server.locating import (
    find_servers,
    locate_config,
    locate_journals,
    locate_server,
    servers_on,
)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without servers."""
    monkeypatch.setattr(locating, "_SYSTEM", tmp_path)
    for name in ("FIREBIRD", "FIREBIRD_CONNECTOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def server(system: Path, name: str, journals: str = "") -> Path:
    """Place a server in /opt, with connector options if JOURNALS names its folder."""
    root = system / "opt" / name
    (root / "plugins").mkdir(parents=True)
    (root / "firebird.conf").touch()
    if journals:
        folder = root / journals
        folder.mkdir()
        (root / "reddatabase.connector.yaml").write_text(
            f"connector.name: {name}\nconnector.journal.directory: {folder}\n"
            "kafka.producer.bootstrap.servers: 127.0.0.1:9\nkafka.topic.prefix: x\n"
        )
    return root


def test_the_one_server_of_a_machine_is_found_with_its_options_and_journals(system: Path) -> None:
    root = server(system, "firebird", "journal")
    (system / "opt/other").mkdir()
    server(system, "firebird3").joinpath("plugins/libEngine12.so").touch()
    assert locate_server().root == root
    assert locate_config() == root / "reddatabase.connector.yaml"
    assert locate_journals() == root / "journal"
    assert [each.root for each in servers_on(root / "journal")] == [root]
    assert servers_on(system) == []


def test_server_of_an_unsupported_version_is_named_where_no_other_is(system: Path) -> None:
    ours = server(system, "firebird3")
    (ours / "plugins/libEngine12.so").touch()
    debians = system / "usr/lib/x86_64-linux-gnu/firebird/3.0"
    debians.mkdir(parents=True)
    (system / "etc/firebird/3.0").mkdir(parents=True)
    (system / "etc/firebird/3.0/firebird.conf").touch()
    with pytest.raises(SetupError, match="no Firebird 4 or 5 server was found") as found:
        locate_server()
    for root in (ours, debians):
        assert f"{root} is a Firebird 3 server" in str(found.value)


def test_several_servers_are_named_with_the_option_to_choose_one(system: Path) -> None:
    a, b = server(system, "a", "journal"), server(system, "b", "journal")
    with pytest.raises(SetupError, match=f"several servers: {a}, {b}. Say .*--server"):
        locate_server()
    with pytest.raises(SetupError) as found:
        locate_config()
    for part in (str(a / "reddatabase.connector.yaml"), str(b), "--config", "FIREBIRD_CONN"):
        assert part in str(found.value)
    assert locate_server(b).root == b
    assert locate_config(b / "reddatabase.connector.yaml").parent == b


def test_options_come_from_the_only_configured_server_of_several(system: Path) -> None:
    server(system, "a")
    b = server(system, "b", "journal")
    assert locate_config().parent == b


def test_environment_ranks_between_options_and_found_servers(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = server(system, "a", "journal"), server(system, "b", "journal")
    monkeypatch.setenv("FIREBIRD", str(a))
    assert [each.root for each in find_servers()] == [a]
    assert locate_server(b).root == b
    assert locate_config().parent == a
    monkeypatch.setenv("FIREBIRD_CONNECTOR_CONFIG", str(b / "reddatabase.connector.yaml"))
    assert locate_config().parent == b
    assert locate_config(a / "x.yaml") == a / "x.yaml"
    monkeypatch.setenv("FIREBIRD_CONNECTOR_CONFIG", "mine.yaml")
    assert locate_config() == a / "mine.yaml"  # where the server looks for it
    monkeypatch.setenv("FIREBIRD", str(system))
    with pytest.raises(SetupError, match=f"FIREBIRD={system}: "):
        locate_server()


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (["check"], 2, "--server"),
        (["install"], 1, "--server"),
        (["uninstall"], 1, "--server"),
        (["status"], 1, "--config"),
        (["ship"], 1, "--config"),
        (["journal", "quarantine"], 1, "--config"),
        (["journal", "acknowledge"], 1, "--config"),
        (["replay", "repair", "--audit", "x"], 1, "--config"),
        (["replay", "audit"], 2, "--config"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("system")
def test_command_without_a_server_names_the_option_to_give(
    argv: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    said = capsys.readouterr().err
    assert part in said
    assert len(said.splitlines()) == 1
