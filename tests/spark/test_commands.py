"""Both commands as users start them: as ``firebird-cdc replay``, and through spark-submit."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest
from histories import History, column, read_state
from soaked import few_of

from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.audit.findings import JOURNAL_KINDS
from firebird_cdc.journal.replay.cluster.package import ARCHIVE_NAME
from firebird_cdc.journal.replay.commands import register

_ROOT = Path(__file__).parents[2]


def _run(
    command: list[str], cwd: Path, *, has_java: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    if not has_java:
        environment["PATH"] = ""
        environment.pop("JAVA_HOME", None)
    environment.pop("FIREBIRD_CONNECTOR_CONFIG", None)
    if command[0] == "replay":
        environment.pop("PYSPARK_PYTHON")
        environment["PYTHONPATH"] = str(_ROOT)
        command = [sys.executable, "-m", "firebird_cdc", *command]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def _submit(*arguments: str) -> list[str]:
    """The way the documentation shows it; the package is not on the executors' path."""
    submit = Path(pyspark.__file__).with_name("bin") / "spark-submit"
    application = _ROOT / "firebird_cdc/journal/replay/main.py"
    return [str(submit), "--master", "local[2]", str(application), *arguments]


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(tmp_path / "journals")
    history.define("T", (column("ID", Storage.INTEGER, key=1), column("NAME", Storage.TEXT)))
    history.commit(("c", "T", None, (1, "one")), ("c", "T", None, (2, "two")))
    history.commit(("u", "T", (1, "one"), (3, "three")))
    return history


@pytest.mark.spark
@pytest.mark.soak
def test_audit_runs_by_spark_submit(history: History, tmp_path: Path) -> None:
    audit = _run(_submit("audit", "--journals", str(history.folder)), tmp_path)
    assert audit.returncode == 0, audit.stderr
    assert "sequence 1 to 2, 2 journals, 3 events" in audit.stdout
    assert "T: 2 inserts, 1 updates" in audit.stdout


@pytest.mark.spark
def test_state_is_rebuilt_by_spark_submit(history: History, tmp_path: Path) -> None:
    output = tmp_path / "state"
    arguments = ["--journals", str(history.folder), "--output", str(output), "--format", "json"]
    state = _run(_submit("state", *arguments), tmp_path)
    assert state.returncode == 0, state.stderr
    assert read_state(output) == {
        "T": Counter(['{"ID":2,"NAME":"two"}', '{"ID":3,"NAME":"three"}'])
    }
    left = {path.name for path in tmp_path.iterdir()} - {"journals", "state"}
    assert not left, "nothing is left in the folder where the command was started"
    assert state.stdout.splitlines()[-1].startswith(f"written to {output}"), "the last line"
    assert " INFO ShutdownHookManager" not in state.stdout + state.stderr


@pytest.mark.spark
def test_audit_starts_a_spark_of_its_own_and_reports_faults(
    history: History, tmp_path: Path
) -> None:
    history.commit(("c", "T", None, (4, "four")), skip_number=True)
    command = ["replay", "audit", "--engine", "spark", "--journals", str(history.folder)]
    audit = _run(command, tmp_path)
    assert audit.returncode == 1, audit.stderr
    assert "no journal has the sequence numbers 3 to 3" in audit.stdout
    assert audit.stdout.splitlines()[-1] == "not sound: 1 faults"


def test_neither_command_needs_java(history: History, tmp_path: Path) -> None:
    forger = "F\nsound: as its name says"
    history.define(forger, (column("ID", Storage.INTEGER, key=1),))
    history.commit(("c", forger, None, (1,)))
    journals = ["--journals", str(history.folder)]
    audit = _run(["replay", "audit", *journals], tmp_path, has_java=False)
    assert audit.returncode == 0, audit.stderr
    assert audit.stdout.splitlines()[-1].startswith("sound: ")
    assert audit.stdout.count("\nsound: ") == 1, "a table's name makes no line"
    output = tmp_path / "state"
    command = ["replay", "state", *journals, "--output", str(output), "--format", "json"]
    state = _run(command, tmp_path, has_java=False)
    assert state.returncode == 0, state.stderr
    assert "\nsound: " not in state.stdout
    assert read_state(output)["T"].total() == 2
    spark = _run(["replay", "audit", "--engine", "spark", *journals], tmp_path, has_java=False)
    assert "no java is on the PATH" in spark.stderr


def test_state_names_the_damaged_file(history: History, tmp_path: Path) -> None:
    history.paths[0].write_bytes(b"")
    output = str(tmp_path / "state")
    command = ["replay", "state", "--journals", str(history.folder), "--output", output]
    state = _run(command, tmp_path)
    assert state.returncode == 1
    assert state.stderr.splitlines()[-1].startswith(f"firebird-cdc: {history.paths[0]}")
    assert "Traceback" not in state.stderr


_NOTHING_TO_READ = {
    "nothing-named": (["audit"], "give --journals DIR, or --config FILE", 2),
    "no-source": (["state", "--output", "o"], "give --journals DIR, or --config FILE", 2),
    "no-kafka": (
        ["audit", "--journals", ".", "--against-kafka"],
        "--against-kafka needs --config",
        2,
    ),
    "no-archive": (["audit", "--config", "connector.yaml"], "holds no journal", 1),
    "no-journal": (["audit", "--journals", "."], "holds no journal", 1),
    "no-folder": (
        ["state", "--journals", "nowhere", "--output", "o"],
        "cannot read the folder",
        1,
    ),
}


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    few_of(_NOTHING_TO_READ, {*_NOTHING_TO_READ} - {"no-journal"}),
)
def test_command_without_journals_ends_in_one_sentence(
    arguments: list[str], says: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "journals").mkdir()
    (tmp_path / "connector.yaml").write_text(
        "connector.name: test\n"
        f"connector.journal.directory: {tmp_path / 'journals'}\n"
        "kafka.topic.prefix: t\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:1\n",
        encoding="utf-8",
    )
    run = _run(["replay", *arguments], tmp_path)
    assert run.returncode == code, run.stderr
    assert says in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


@pytest.mark.spark
def test_leaves_nothing_behind_when_it_is_terminated(history: History, tmp_path: Path) -> None:
    scratch, output = tmp_path / "scratch", tmp_path / "state"
    scratch.mkdir()
    arguments = ["state", "--engine", "spark", "--journals", str(history.folder)]
    arguments += ["--output", str(output)]
    run = subprocess.Popen(
        [sys.executable, "-m", "firebird_cdc", "replay", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(_ROOT), "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with run:
        await_condition("Spark to start", lambda: any(scratch.glob(f"*/{ARCHIVE_NAME}")), 400)
        run.terminate()
        _, errors = run.communicate(timeout=400)
    assert run.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert not output.exists()
    assert not any(scratch.glob("firebird-cdc-replay-*"))


def _run_code(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_terminated_within_a_finalizer_it_ends_all_the_same(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\n"
        "from firebird_cdc.journal.replay.cluster.session import leaving_in_order\n"
        "class Finalized:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('lost', flush=True)\n"
        "with leaving_in_order():\n"
        "    Finalized()\n"
        "    print('went on', flush=True)\n"
        "    time.sleep(60)\n"
    )
    run = _run_code(code, tmp_path)
    assert (run.returncode, run.stdout) == (128 + signal.SIGTERM, "went on\n"), run.stderr
    assert run.stderr == ""


def test_missing_pyspark_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from firebird_cdc.journal.replay.cluster.session import check_pyspark\n"
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        "check_pyspark()\n"
    )
    run = _run_code(code, tmp_path)
    assert "pip install '.[spark]'" in run.stderr


def test_documentation_names_every_kind_of_finding_and_every_option() -> None:
    text = (_ROOT / "docs/replay.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    wanted = {f"| `{kind}` |" for kind in JOURNAL_KINDS}
    for command in ("audit", "state"):
        with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
            parser.parse_args(["replay", command, "--help"])
        wanted.update(re.findall(r"--[a-z]+", shown.getvalue()))
    wanted.discard("--help")
    assert len(wanted) > 15
    assert [item for item in sorted(wanted) if item not in text] == []
