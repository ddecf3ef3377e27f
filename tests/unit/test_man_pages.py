"""Our man pages: one for each command and one for the file of options, which groff takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from firebird_cdc.config.options import OPTIONS, Status

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the pages by name, as the program writes them that the packages are made with."""
    folder = tmp_path_factory.mktemp("man")
    program = ROOT / "scripts/man_pages.py"
    subprocess.run([sys.executable, "-P", program, folder], check=True, capture_output=True)
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


def _shown(page: str) -> str:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou", "-rLL=500n"],
        input=page,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not on this machine")
def test_groff_shows_all_pages_without_a_warning(pages: dict[str, str]) -> None:
    shown = {name: _shown(page) for name, page in pages.items()}
    assert "firebird-cdc-ship - send committed journals to Kafka" in shown["firebird-cdc-ship.1"]
    assert "--once" in shown["firebird-cdc-ship.1"]
    assert "firebird-cdc journal retry" in shown["firebird-cdc-journal.1"]
    options = shown["reddatabase.connector.yaml.5"]
    missing = [each.name for each in OPTIONS if each.status is Status.BUILT]
    assert [name for name in missing if name not in options] == []


def test_each_command_has_a_page(pages: dict[str, str]) -> None:
    named = subprocess.run(
        [sys.executable, "-P", "-m", "firebird_cdc", "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    commands = re.findall(r"^    (\w+)", named, re.MULTILINE)
    assert {f"firebird-cdc-{each}.1" for each in commands} | {
        "firebird-cdc.1",
        "reddatabase.connector.yaml.5",
    } == set(pages)
