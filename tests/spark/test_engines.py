"""Spark and this machine alone give the same bytes; and what goes wrong without Spark is said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from histories import History, column
from pyarrow.parquet import read_table
from soaked import few_of
from test_audit import plant_all
from test_audit_folders import make_cases

from firebird_cdc.cli import main
from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.audit.folders import AuditFolders
from firebird_cdc.journal.replay.audit.journals import run_audit
from firebird_cdc.journal.replay.local.session import LocalSession, local_session
from firebird_cdc.journal.replay.source.bounds import Bound
from firebird_cdc.journal.replay.state.rebuild import rebuild_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = (column("ID", Storage.INTEGER, key=1), column("N", Storage.INTEGER))
_PLAIN = (column("NAME", Storage.TEXT), column("STOCK", Storage.BIGINT, scale=-2, sub_type=1))
_TIME = re.compile(r'<p class="soft"><time .*?</p>')  # when it was, and how long it took


def _parts(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("part-*")))


def _written(output: Path) -> dict[str, bytes]:
    """Return what an audit has written, but for when it was and how long it took."""
    report = json.loads((output / "report.json").read_text("utf-8"))
    del report["began_us"], report["took_s"]
    return {
        "report.json": json.dumps(report, ensure_ascii=False).encode(),
        "findings": _parts(output / "findings"),
        "counts": _parts(output / "counts"),
    }


@pytest.mark.spark
@pytest.mark.parametrize("case", few_of(["planted", "folders", "range"], ["planted"]))
def test_audits_are_the_same_byte_for_byte(spark: SparkSession, tmp_path: Path, case: str) -> None:
    folders: AuditFolders | list[str]
    if case == "folders":
        (tmp_path / "cases").mkdir()
        folder, _ = make_cases(tmp_path / "cases")
        folders = folder.folders
    else:
        plant_all(tmp_path / "faults")
        folders = [str(path) for path in sorted((tmp_path / "faults").iterdir())]
    since = Bound.parse("3") if case == "range" else None
    _audit(spark, folders, tmp_path / "spark", since)
    with local_session() as session:
        _audit(session, folders, tmp_path / "here", since)
    found = _written(tmp_path / "here")
    assert found == _written(tmp_path / "spark")
    assert found["findings"].count(b"\n") > 5
    page, other = (
        (tmp_path / name / "report.html").read_text("utf-8") for name in ("here", "spark")
    )
    assert _TIME.sub("", page, 1) == _TIME.sub("", other, 1)


def _audit(
    session: Any, folders: AuditFolders | list[str], output: Path, since: Bound | None
) -> None:
    with run_audit(session, folders, output=str(output), since=since):
        pass


def _history(folder: Path) -> History:
    """A table with a key that changes, one without, one that was dropped, and a hole."""
    history = History(folder, block_bytes=512)
    history.define("T", _T)
    history.define("PLAIN", _PLAIN, 0)
    history.define("GONE", _T)
    history.commit(("c", "GONE", None, (1, 1)), *(("c", "T", None, (n, n)) for n in range(900)))
    for number in range(0, 900, 7):
        history.commit(
            ("u", "T", (number, number), (10_000 + number, None)),
            ("c", "PLAIN", None, (f"{number} \x1f é\u2028", number % 3)),
        )
    history.commit(("d", "PLAIN", ("0 \x1f é\u2028", 0), None), skip_number=True)
    history.commit(("ddl", "drop table gone", None, None), ("gap", "no room", None, None))
    return history


@pytest.mark.spark
@pytest.mark.parametrize("form", few_of(["json", "parquet"], ["parquet"]))
def test_states_are_the_same_byte_for_byte(spark: SparkSession, tmp_path: Path, form: str) -> None:
    history = _history(tmp_path / "journals")
    rebuild = partial(rebuild_state, output_format=form, partition_bytes=20_000)
    rebuild(spark, [str(history.folder)], str(tmp_path / "spark"))
    with local_session() as session:
        rebuild(session, [str(history.folder)], str(tmp_path / "here"))
    summaries = [(tmp_path / name / "summary.json").read_bytes() for name in ("spark", "here")]
    assert summaries[0] == summaries[1]
    tables = {table["table"]: table for table in json.loads(summaries[0])["tables"]}
    assert {name: table["rows"] for name, table in tables.items()} == {
        "GONE": 0, "PLAIN": 128, "T": 900
    }  # fmt: skip
    for table in tables.values():
        if table["folder"] is None:
            continue
        theirs, ours = (tmp_path / name / table["folder"] for name in ("spark", "here"))
        if form == "json":
            assert _parts(ours) == _parts(theirs)
            assert len(list(ours.glob("part-*"))) > 1
        else:
            assert _typed(ours).equals(_typed(theirs))


def _typed(folder: Path) -> pa.Table:
    """Return the rows in the order of the parts; no two writers make the same bytes of them."""
    return pa.concat_tables(
        read_table(path, partitioning=None).replace_schema_metadata()
        for path in sorted(folder.glob("part-*"))
    )


# Without Spark.


def _numbers(task: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array([task])], names=["n"])


def _killed(task: int, number: int) -> Iterator[pa.RecordBatch]:
    if task == number:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from _numbers(task)


def test_tasks_run_in_processes_of_their_own(here: LocalSession) -> None:
    table = here.in_tasks(range(40), _numbers, "n bigint")
    assert sorted(table.collect()) == [(n,) for n in range(40)]
    assert here.in_tasks([], _numbers, "n bigint").collect() == []


def test_killed_worker_is_an_error_and_no_loss(here: LocalSession) -> None:
    with pytest.raises(ReplayError, match="a worker process of this replay was killed"):
        here.in_tasks(range(40), partial(_killed, number=7), "n bigint")


def _run(arguments: list[str], lacking: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where the package LACKING is not installed."""
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *a: None if name == {lacking!r} else find(name)\n"
        "from firebird_cdc.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("engine", "lacking", "extra"),
    [("local", "duckdb", "replay"), ("spark", "pyspark", "spark")],
)
def test_missing_package_names_the_extra(
    tmp_path: Path, engine: str, lacking: str, extra: str
) -> None:
    (tmp_path / "journals").mkdir()
    audit = ["replay", "audit", "--journals", str(tmp_path / "journals"), "--engine", engine]
    run = _run(audit, lacking)
    assert run.returncode == 1, run.stderr
    assert f"needs {lacking}" in run.stderr
    assert f"'.[{extra}]'" in run.stderr
    assert f"the package firebird-cdc-{extra}\n" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["audit", "--master", "local[2]"], "--master"),
        (["audit", "--output", "s3a://bucket/audit"], "--output s3a:"),
        (["state", "--output", "OUT", "--format", "orc"], "--format orc"),
    ],
)
def test_command_that_needs_spark_is_refused_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    action, *more = arguments
    command = ["replay", action, "--engine", "local", "--journals", str(tmp_path), *more]
    assert main(command) == 2
    assert f"--engine local: {reason} needs Spark" in capsys.readouterr().err


def test_session_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_session() as session:  # what forks for all tests must not have its socket there
        assert session.in_tasks(range(3), _numbers, "n bigint").count() == 3
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with local_session() as session:
        assert session.in_tasks(range(3), _numbers, "n bigint").count() == 3
        assert any(tmp_path.iterdir())
    assert not any(tmp_path.glob("firebird-cdc-replay-*"))
