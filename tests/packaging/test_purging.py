"""Uninstalling with --purge: all goes but what nobody else has."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from counter_pages import write_lost

from firebird_cdc.cli import main
from firebird_cdc.journal.folder.counters import page_of
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.format import JournalWriter

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot


def purge(root: EmbeddedRoot) -> None:
    """Uninstall from an engine's root, with --purge."""
    assert main(["uninstall", "--purge", "--server", str(root.path)]) == 0


def journal(folder: Path) -> Path:
    """Write a committed journal."""
    identity = uuid.uuid4()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{identity}.log"
    with JournalWriter(path, uuid=identity, transaction=1, database="/d", user="U") as writer:
        writer.ddl("GRANT SELECT ON T TO U")
        writer.seal()
        writer.commit(1, 1)
        writer.stamp(1)
    return path


@pytest.fixture
def installed(engine_root: EmbeddedRoot, options_file: Path, logs: Path) -> EmbeddedRoot:
    """A root into which the plugin was put, where it has written logs and journals."""
    server = ["--server", str(engine_root.path)]
    assert main(["install", *server, "--config", str(options_file)]) == 0
    for name in ("server.log", "shipper.log.1"):
        (logs / name).write_text("a line\n")
    journals = options_file.parent / "new/journals"
    (journals / STATE_DIRECTORY / "databases").mkdir(parents=True)
    with (engine_root.path / "firebird_cdc_logging.yaml").open("a") as file:
        file.write("# edited\n")
    return engine_root


def test_nothing_is_left_once_all_is_delivered(
    installed: EmbeddedRoot, options_file: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    purge(installed)
    assert not (options_file.parent / "new/journals").exists()
    assert not logs.exists()
    assert not (installed.path / "firebird_cdc_logging.yaml").exists()
    assert options_file.exists()  # the user's own
    assert "stays" not in capsys.readouterr().out


@pytest.mark.parametrize("what", ["waiting", "quarantined", "lost"])
def test_work_stays_and_is_named_until_it_is_done(
    installed: EmbeddedRoot, options_file: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journals = options_file.parent / "new/journals"
    if what == "waiting":
        done = journal(journals)
    elif what == "quarantined":
        done = journal(journals / STATE_DIRECTORY / QUARANTINE)
    else:
        done = write_lost(page_of(journals), {"/d": 3})
    purge(installed)
    said = capsys.readouterr().out
    assert f"{journals} stays: " in said
    assert {"waiting": "to be delivered", "quarantined": "quarantine", "lost": "3"}[what] in said
    assert done.exists()
