"""The command ``firebird-cdc`` as a shell runs it."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from firebird_cdc.cli import MODULES, build_parser, main
from firebird_cdc.journal.format import Column, JournalWriter, Storage

ID = Column("ID", 0, 0, 0, 0, 0, 9, 0, True, False, 0, Storage.BIGINT)
_MAIN = ("-m", "firebird_cdc")


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run Python with WORDS, in a pipe of which nobody reads what it prints."""
    unread, written = os.pipe()
    os.close(unread)
    try:
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            stdout=written,
            stderr=subprocess.PIPE,
            # So it is held back, and may only be missed at the end.
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            check=False,
        )
    finally:
        os.close(written)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of which far more is to be printed than what Python holds back."""
    path = tmp_path / "j.log"
    with JournalWriter(path) as writer:
        table = writer.table("T", [ID])
        for number in range(20_000):
            writer.insert(table, (number,))
        writer.seal()
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("status", "--directory", "."),
        ("status", "--directory", ".", "--json"),
        ("journal", "show", "j.log"),
    ],
    ids=" ".join,
)
def test_closed_output_pipe_ends_a_command_with_exit_status_141(
    tmp_path: Path, journal: Path, words: tuple[str, ...]
) -> None:
    ended = _run(tmp_path, *_MAIN, *words)
    assert (ended.stderr, ended.returncode) == (b"", 141)


def test_error_is_reported_despite_a_closed_output_pipe(tmp_path: Path) -> None:
    ended = _run(tmp_path, *_MAIN, "journal", "show", "absent.log")
    assert ended.stderr.startswith(b"firebird-cdc: ")
    assert ended.returncode == 1


_PRINTS_ON_SPARK = """
import sys
from firebird_cdc import cli
from firebird_cdc.journal.replay.cluster.session import plain_errors
def run(_):
    with plain_errors():
        if sys.argv[1:]:
            raise BrokenPipeError("of another one")
        print("x" * 100_000)
cli._run = run
sys.exit(cli.main())
"""


def test_closed_output_pipe_is_not_taken_for_a_lost_spark(tmp_path: Path) -> None:
    ended = _run(tmp_path, "-c", _PRINTS_ON_SPARK)
    assert (ended.stderr, ended.returncode) == (b"", 141)


def test_a_broken_pipe_is_an_error_if_the_output_is_read(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PRINTS_ON_SPARK, "breaks"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert b"Spark's Java process has gone away" in ended.stderr
    assert ended.returncode == 1


def test_letters_that_the_output_lacks_are_shown_by_their_numbers(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "koi8-r", "PYTHONUTF8": "0"}
    argv = [sys.executable, *_MAIN, "status", "--directory", "/\u2026/Журнал"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode("koi8-r")
    assert "/\\u2026/Журнал" in said
    assert "Traceback" not in said
    argv = [sys.executable, *_MAIN, "init", "--help"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"HOST:PORT,..." in done.stdout


def test_table_that_the_output_lacks_letters_for_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "j.log"
    with JournalWriter(path) as writer:
        writer.insert(writer.table("T\u2026", [ID]), (1,))
        writer.seal()
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    argv = [sys.executable, *_MAIN, "journal", "show", str(path)]
    done = subprocess.run(argv, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"T\\u2026" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "j.log", "--limit", "-1"), "--limit: '-1' is no whole number, 0 or more"),
        (("show", "j.log", "--sequence", "x"), "--sequence: 'x' is no whole number, 0 or more"),
        (("retry", "x.log"), "'x.log' is no UUID, nor a file called by one, as <uuid>.log"),
        (("discard", "7"), "'7' is no UUID, nor a file called by one"),
    ],
)
def test_wrong_words_of_a_command_are_told_in_plain_words(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["journal", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", MODULES)
def test_command_is_found_alone_as_among_all(command: str) -> None:
    told = [
        commands.choices[command].format_help()
        for parser in (build_parser(command), build_parser())
        for commands in parser._actions
        if isinstance(commands, argparse._SubParsersAction)
    ]
    assert len(told) == 2 and told[0] == told[1]


def test_help_names_each_command_once_in_order() -> None:
    names = re.findall(r"^    (\w+)(?:  |$)", build_parser().format_help(), re.MULTILINE)
    assert names == list(MODULES)
