"""Completion of our commands, by what `firebird-cdc completion` prints, in a real bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from firebird_cdc.cli import main

# As readline does with the words of a line, of which the last is to be completed.
_COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function="$(complete -p firebird-cdc | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script for bash."""
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "firebird-cdc"
    path.write_text(capsys.readouterr().out, "utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sn"], {"snapshot"}),
        (["snapshot", "p"], {"pause"}),
        (["journal", "ret"], {"retry"}),
        (["status", "--js"], {"--json"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes_commands_and_options(
    script: Path, words: list[str], found: set[str]
) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", _COMPLETE, "bash", str(script), "firebird-cdc", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found <= set(done.stdout.split())


def test_bash_completes_paths(script: Path, tmp_path: Path) -> None:
    (tmp_path / "connector.yaml").touch()
    words = ["firebird-cdc", "status", "--config", f"{tmp_path}/conn"]
    done = subprocess.run(
        ["bash", "--norc", "-c", _COMPLETE, "bash", str(script), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"{tmp_path}/connector.yaml"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_have_all_commands(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for command in ("ship", "snapshot", "replay", "install", "enable", "tail"):
        assert command in text
