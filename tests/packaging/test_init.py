"""``init``: the file that it writes, with and without a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import forked
import pytest

from firebird_cdc.config import load_config
from firebird_cdc.packaging.install import CONNECTOR_SAMPLE, SAMPLES

_KEPT = {name: value for name, value in os.environ.items() if not name.startswith("FIREBIRD")}


def _init(*words: str, folder: Path) -> tuple[int, str]:
    done = forked.run(
        [sys.executable, "-P", "-m", "firebird_cdc", "init", *words],
        cwd=folder,
        env=_KEPT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_file_of_options_given_loads_and_is_never_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    words = ["--bootstrap-servers", "k1:9092,k2:9092", "--topic-prefix", "null", "--archive", "-"]
    words += ["--set", r"table.exclude.list=.*[.]TMP_.*, .*\.A: #b", "--password-file", "/etc/x"]
    code, said = _init(str(path), *words, folder=tmp_path)
    assert (code, said.splitlines()[0]) == (0, f"wrote {path}")
    config = load_config(path)
    assert config.producer["bootstrap.servers"] == "k1:9092,k2:9092"
    assert (config.topic_prefix, config.journal_archive_directory) == ("null", None)
    assert [each.pattern for each in config.table_exclude_list] == [".*[.]TMP_.*", r".*\.A: #b"]
    assert config.attachment.password_file == Path("/etc/x")
    assert config.warnings == ()
    assert path.stat().st_mode & 0o777 == 0o600

    before = path.read_bytes()
    code, said = _init(str(path), "--topic-prefix", "other", folder=tmp_path)
    assert (code, "--force has it replaced" in said) == (1, True)
    assert path.read_bytes() == before
    assert _init(str(path), "--topic-prefix", "other", "--force", folder=tmp_path)[0] == 0
    assert load_config(path).topic_prefix == "other"


def test_options_that_are_set_to_nothing_or_to_a_hyphen_are_written_so(tmp_path: Path) -> None:
    given = {
        "topic.delimiter": "-",
        "header.converter": "",
        "transforms": "a",
        "transforms.a.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.a.regex": "x",
        "transforms.a.replacement": "",
        "column.mask.with.3.chars": "-",
        "table.exclude.list": "",
        "connector.journal.archive.directory": "-",
    }
    words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    code, said = _init("mine.yaml", *words, folder=tmp_path)
    assert code == 0, said
    config = load_config(tmp_path / "mine.yaml")
    assert config.topic_delimiter == "-"
    assert config.transforms[0].parameters == {"regex": "x", "replacement": ""}
    assert [number for number, _ in config.column_mask] == [3]
    assert (config.table_exclude_list, config.journal_archive_directory) == ((), None)


def test_the_sample_that_a_package_has_put_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / CONNECTOR_SAMPLE
    shutil.copy(SAMPLES / CONNECTOR_SAMPLE, path)
    assert _init(str(path), "--topic-prefix", "other", folder=tmp_path)[0] == 0
    assert load_config(path).topic_prefix == "other"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--journals", "here"], "connector.journal.directory is 'here'"),
        (["--set", "connector.shiper=x"], "did you mean connector.shipper?"),
        (["--set", "kafka.producer.sasl.password=x"], "other users of the machine see"),
    ],
    ids=["value", "option", "secret"],
)
def test_a_wrong_option_is_told_and_no_file_is_made(
    tmp_path: Path, words: Sequence[str], told: str
) -> None:
    code, said = _init("mine.yaml", *words, folder=tmp_path)
    assert (code, told in said) == (2, True), said
    assert [*tmp_path.glob("*.yaml")] == []


def _on_terminal(answers: str, folder: Path) -> str:
    """Run ``init`` on a terminal on which ANSWERS are typed; return what it shows."""
    terminal, end = pty.openpty()
    argv = [sys.executable, "-P", "-m", "firebird_cdc", "init", "mine.yaml"]
    streams = {"stdin": end, "stdout": end, "stderr": end}
    with subprocess.Popen(argv, cwd=folder, env=_KEPT, start_new_session=True, **streams):
        os.close(end)
        os.write(terminal, answers.encode())
        shown = b""
        try:
            while piece := os.read(terminal, 4096):
                shown += piece
        except OSError:  # that is how a terminal ends
            pass
    os.close(terminal)
    return shown.decode()


def test_questions_are_asked_on_a_terminal_again_after_a_wrong_answer(tmp_path: Path) -> None:
    wrong = "here\n\nk1:9092\nshop\n-\n-\n-\n-\n"
    right = "/var/lib/journals\n-\n\n\nshop-1\n\n\n\n"
    said = _on_terminal(wrong + right, tmp_path)
    assert "connector.journal.directory is 'here'" in said
    config = load_config(tmp_path / "mine.yaml")
    assert (config.journal_directory, config.journal_archive_directory) == (
        Path("/var/lib/journals"),
        None,
    )
    assert (config.topic_prefix, config.producer["bootstrap.servers"]) == ("shop", "k1:9092")
    assert config.producer["transactional.id"] == "shop-1"


def test_no_file_is_made_where_questions_stay_without_an_answer(tmp_path: Path) -> None:
    assert "nothing was written" in _on_terminal("\n\x04", tmp_path)
    assert [*tmp_path.glob("*.yaml")] == []


def test_an_argument_that_is_no_text_is_refused(tmp_path: Path) -> None:
    code, said = _init("-", "--name", "\udcff", folder=tmp_path)
    assert (code, said) == (2, "firebird-cdc: connector.name: what is given is no text in UTF-8\n")


def test_a_link_stays_one_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.yaml", tmp_path / "link.yaml"
    kept.write_text("connector.name: before\n")
    link.symlink_to(kept)
    words = ["--name", "after", "--topic-prefix", "p", "--bootstrap-servers", "h:1"]
    code, said = _init(str(link), "--force", *words, folder=tmp_path)
    assert code == 0, said
    assert link.is_symlink()
    assert load_config(kept).connector_name == "after"
