"""Two servers of one machine share what the system has once: uninstall leaves it to the other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firebird_cdc.cli import main
from firebird_cdc.journal.folder import failures
from firebird_cdc.packaging import install as packaging_install
from firebird_cdc.packaging import services
from firebird_cdc.packaging.server import locating


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return two servers below /opt of a system of the test's own, each with options of its own."""
    monkeypatch.delenv("FIREBIRD", raising=False)
    monkeypatch.setattr(locating, "_SYSTEM", tmp_path)
    monkeypatch.setattr(failures, "SYSTEM_STATE", tmp_path / "var/lib/firebird-cdc")
    monkeypatch.setattr(services, "UNITS", tmp_path / "units")
    monkeypatch.setattr(services, "is_packaged", lambda: False)
    monkeypatch.setattr(packaging_install, "_is_of_system", lambda path: True)
    (tmp_path / "units").mkdir()
    made = tmp_path / "opt/one", tmp_path / "opt/two"
    for root in made:
        (root / "plugins").mkdir(parents=True)
        (root / "firebird.conf").touch()
        (root / "reddatabase.connector.yaml").write_text(
            f"connector.name: {root.name}\n"
            f"connector.journal.directory: {root}/journals\n"
            "connector.shipper: external\n"
            "kafka.producer.bootstrap.servers: 127.0.0.1:9\n"
            "kafka.topic.prefix: test\n"
        )
    return made


def test_files_of_two_servers_go_with_the_last_of_them(
    roots: tuple[Path, Path], logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for root in roots:
        assert main(["install", "--server", str(root)]) == 0
    unit, state = tmp_path / "units" / services.UNIT, tmp_path / "var/lib/firebird-cdc/state"
    drop_ins = [tmp_path / f"units/firebird-cdc-shipper@{root.name}.service.d" for root in roots]
    shared = (unit, state, logs)
    assert all(path.exists() for path in (*shared, *drop_ins))
    (logs / "server.log").write_text("of both\n")
    capsys.readouterr()

    assert main(["uninstall", "--server", str(roots[0]), "--purge"]) == 0
    assert (logs / "server.log").exists()
    assert [path for path in shared if not path.exists()] == [], "the other server needs them"
    assert [path.exists() for path in drop_ins] == [False, True]
    said = capsys.readouterr().out
    assert f"{unit} stays: the server in {roots[1]} uses it, too" in said
    assert f"{state} stays: the server in {roots[1]} uses it, too" in said

    assert main(["uninstall", "--server", str(roots[1]), "--purge"]) == 0
    assert [path for path in (*shared, *drop_ins) if path.exists()] == []


@pytest.mark.parametrize("content", ["[]", "[1]", '{"files": {}, "links": [1]}', "{"])
def test_a_damaged_manifest_of_the_other_is_in_nobodys_way(
    roots: tuple[Path, Path], content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for root in roots:
        assert main(["install", "--server", str(root)]) == 0
    (roots[1] / "plugins/firebird_cdc/installed.json").write_text(content)
    assert main(["uninstall", "--server", str(roots[0])]) == 0
    assert main(["uninstall", "--server", str(roots[1])]) == 1
    assert "installed.json can't be read" in capsys.readouterr().err


def test_a_copy_of_a_server_keeps_nothing_of_the_original(
    roots: tuple[Path, Path], tmp_path: Path
) -> None:
    (roots[0] / "reddatabase.connector.yaml").unlink()
    assert main(["install", "--server", str(roots[0])]) == 0
    assert (roots[0] / "reddatabase.connector.yaml").exists()  # the sample
    shutil.copytree(roots[0], tmp_path / "opt/copy")
    assert main(["uninstall", "--server", str(roots[0])]) == 0
    assert sorted(path.name for path in roots[0].iterdir()) == ["firebird.conf", "plugins"]
