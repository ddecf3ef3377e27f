"""Installed without counting yet, and left without anything behind but what is not delivered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_install import install, picture, uninstall

from firebird_cdc.cli import main
from firebird_cdc.packaging.server.conf import ConfFile, find

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot


@pytest.mark.parametrize("before", ["# mine\n", "# mine, without a line end", ""])
def test_inactive_installation_counts_after_the_next_install_and_leaves_nothing(
    engine_root: EmbeddedRoot, options_file: Path, before: str
) -> None:
    replication = engine_root.path / "replication.conf"
    replication.write_text(before)
    pictured = picture(engine_root.path)

    assert install(engine_root, "--config", options_file, "--inactive") == 0
    assert "#\tplugin = Debezium_Connector\n" in replication.read_text()
    assert not find(ConfFile.read(replication).entries, "database")
    assert uninstall(engine_root) == 0
    assert picture(engine_root.path) == pictured

    assert install(engine_root, "--config", options_file, "--inactive") == 0
    assert install(engine_root, "--config", options_file) == 0
    (section,) = find(ConfFile.read(replication).entries, "database")
    assert section.last("plugin") == "Debezium_Connector"
    assert uninstall(engine_root) == 0
    assert picture(engine_root.path) == pictured


def test_uninstall_lists_what_may_go_but_no_journals_that_wait(
    engine_root: EmbeddedRoot,
    options_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FIREBIRD", str(engine_root.path))
    left = tmp_path / "left"
    journals = tmp_path / "new/journals"

    def leave() -> list[str]:
        left.unlink(missing_ok=True)
        install(engine_root, "--config", options_file)
        (engine_root.path / "firebird_cdc_logging.yaml").write_text("level: debug\n")
        assert main(["uninstall", "--all", "--left", str(left)]) == 0
        return left.read_text().splitlines()

    logging = engine_root.path / "firebird_cdc_logging.yaml"
    assert leave() == [f"file {logging}", f"folder {journals}"]
    logging.unlink()
    aside = journals / ".firebird-cdc/quarantine"
    aside.mkdir(parents=True)
    (aside / "00000000-0000-4000-8000-000000000001.log").write_bytes(b"unreadable")
    capsys.readouterr()
    assert leave() == [f"file {logging}"]
    assert f"{journals} stays" in capsys.readouterr().out
