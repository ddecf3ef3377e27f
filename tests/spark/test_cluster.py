"""A standalone cluster of two workers, whose Python has nothing of ours and nothing compiled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import py4j
import pyarrow
import pyspark
import pytest
from histories import History, column

from firebird_cdc.cli import main
from firebird_cdc.demo.processes import Stack, await_condition
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.cluster.package import write_archive, write_native

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_SPARK = Path(pyspark.__file__).parent
_WAIT_S = 60.0
_RUN_S = 300.0
_JOURNALS = 24
_ROW_BYTES = 60_000  # so that all journals together are read, and folded, by two tasks
SHORT_LIVED_JAVA = " ".join(  # as tests/conftest.py says, but the options of Spark itself
    word for word in os.environ["SPARK_SUBMIT_OPTS"].split() if not word.startswith("-Dspark.")
)


@dataclass(frozen=True)
class Package:
    """Files to submit, and a Python to run them."""

    archive: Path
    native: Path
    main: Path
    python: Path
    folder: Path


@dataclass(frozen=True)
class Cluster(Package):
    """A master, two workers of one core each, and what there is to submit."""

    master: str

    def submit(
        self, name: str, *arguments: object, options: Sequence[object] = ()
    ) -> subprocess.Popen[str]:
        """Start ``spark-submit`` with the archive alone, as docs/replay.md shows it."""
        command: list[object] = [_SPARK / "bin/spark-submit", "--master", self.master]
        for setting in (
            "spark.executor.memory=512m",
            # The first tasks wait for both workers: a short run could end before the second came.
            "spark.cores.max=2",
            "spark.scheduler.minRegisteredResourcesRatio=1.0",
            f"spark.scheduler.maxRegisteredResourcesWaitingTime={_WAIT_S:.0f}s",
            "spark.sql.shuffle.partitions=2",
            "spark.sql.adaptive.coalescePartitions.enabled=false",
            "spark.ui.enabled=false",
            "spark.eventLog.enabled=true",
            "spark.eventLog.compress=false",
            f"spark.eventLog.dir=file:{self.events(name)}",
            "spark.driver.host=127.0.0.1",
            "spark.driver.bindAddress=127.0.0.1",
            f"spark.executor.extraJavaOptions={SHORT_LIVED_JAVA}",
        ):
            command += ["--conf", setting]
        self.events(name).mkdir()
        command += [*options, "--py-files", self.archive, self.main, *arguments]
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=self.folder,
            env=_environment(self.python),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said_slow(self) -> set[str]:
        """The executors whose log says that compiled packages are missing."""
        return {
            str(log.parent)
            for log in self.folder.glob("worker-*/app-*/*/stderr")
            if "plain Python does their work" in log.read_text(encoding="utf-8")
        }

    def events(self, name: str) -> Path:
        """The folder of a run's event log."""
        return self.folder / f"events-{name}"

    def tasks(self, name: str) -> Counter[str]:
        """Return the number of tasks that each executor of a run has done."""
        done: Counter[str] = Counter()
        for path in self.events(name).rglob("events_*"):
            for line in path.read_text(encoding="utf-8").splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd":
                    done[event["Task Info"]["Executor ID"]] += 1
        return done


def _environment(python: Path) -> dict[str, str]:
    """One that leads to no installed package: PYTHON alone decides what can be imported."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "FIREBIRD"))
    }
    return environment | {
        "SPARK_HOME": str(_SPARK),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": SHORT_LIVED_JAVA,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED_JAVA,
    }


def _bare_python(folder: Path) -> Path:
    """A Python with pyspark and pyarrow and nothing else."""
    packages = folder / "packages"
    packages.mkdir()
    for package in (pyarrow, pyspark, py4j):
        place = Path(package.__file__).parent
        (packages / place.name).symlink_to(place)
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S -P "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    for module in ("firebird_cdc", "google_crc32c", "orjson", "yaml", "logbook"):
        tried = subprocess.run(
            [python, "-c", f"import {module}"], capture_output=True, cwd=folder, check=False
        )
        assert b"ModuleNotFoundError" in tried.stderr, module
    return python


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("cluster")
    archive, native, entry = folder / "replay.zip", folder / "native.tar.gz", folder / "main.py"
    write_archive(archive)
    write_native(native)
    with zipfile.ZipFile(archive) as content:
        entry.write_bytes(content.read("firebird_cdc/journal/replay/main.py"))
    return Package(archive, native, entry, _bare_python(folder), folder)


@pytest.fixture(scope="module")
def cluster(package: Package) -> Iterator[Cluster]:
    folder = package.folder
    launch = [str(_SPARK / "bin/spark-class"), "org.apache.spark.deploy"]
    environment = _environment(package.python) | {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED_JAVA,
    }

    def start(stack: Stack, name: str, *arguments: str) -> None:
        argv = [launch[0], f"{launch[1]}.{arguments[0]}", "--host", "127.0.0.1", *arguments[1:]]
        stack.start(name, argv, environment)

    def said(stack: Stack, name: str, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, stack.log_path(name).read_text(encoding="utf-8"))

    with Stack(folder) as stack:
        start(stack, "master", "master.Master", "--port", "0", "--webui-port", "0")
        address = r"Starting Spark master at (spark://\S+)"
        await_condition("the master", lambda: said(stack, "master", address), _WAIT_S)
        found = said(stack, "master", address)
        assert found is not None
        for name in ("worker-1", "worker-2"):
            place = ["-c", "1", "-m", "700m", "-d", str(folder / name), found[1]]
            start(stack, name, "worker.Worker", "--port", "0", "--webui-port", "0", *place)
        for name in ("worker-1", "worker-2"):
            await_condition(
                name,
                lambda name=name: said(stack, name, "Successfully registered with master"),
                _WAIT_S,
            )
        yield Cluster(**vars(package), master=found[1])


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    history = History(tmp_path_factory.mktemp("journals") / "archive")
    history.define("T", (column("ID", Storage.INTEGER, key=1), column("NAME", Storage.TEXT)))
    rows = [(number, f"{number:09}" * (_ROW_BYTES // 9)) for number in range(1, _JOURNALS)]
    for row in rows:
        history.commit(("c", "T", None, row))
    history.commit(("u", "T", rows[0], (1, "ÜBER")), ("d", "T", rows[1], None))
    return history.folder


def _outcome(run: subprocess.Popen[str]) -> str:
    try:
        output, errors = run.communicate(timeout=_RUN_S)
    finally:
        run.kill()  # if it has not ended
    assert run.returncode == 0, errors
    assert "Traceback" not in errors
    # Spark gives both streams of a driver in Python to its own standard output.
    return "".join(line for line in output.splitlines(True) if " tasks done, " not in line)


def _here(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the output of a command in this process, with all that is compiled."""
    assert main(["replay", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.soak
def test_commands_run_from_the_archive_alone_on_two_workers(
    cluster: Cluster,
    journals: Path,
    tmp_path: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    audit = _outcome(cluster.submit("audit", "audit", "--journals", journals))
    assert f"sequence 1 to {_JOURNALS}, {_JOURNALS} journals" in audit
    assert {*cluster.tasks("audit")} == {"0", "1"}, "both workers have done tasks"
    assert audit == _here(capsys, "audit", "--journals", journals)
    slow = cluster.said_slow()
    assert slow, "an executor that reads says that nothing compiled is there"

    wide, near = tmp_path / "wide", tmp_path / "near"
    command = ["state", "--journals", journals, "--output"]
    native = ("--archives", f"{cluster.native}#native")
    path = ("--conf", "spark.executorEnv.PYTHONPATH=native")
    state = _outcome(cluster.submit("state", *command, wide, options=[*native, *path]))
    assert {*cluster.tasks("state")} == {"0", "1"}, "both workers have done tasks"
    assert _here(capsys, *command, near).replace(str(near), str(wide)) == state
    assert _rows(spark, wide) == _rows(spark, near)
    assert [*wide.rglob("*.crc"), *near.rglob("*.crc")] == []
    assert cluster.said_slow() == slow, "with the archive of compiled packages none says so"


def _rows(spark: SparkSession, output: Path) -> list[str]:
    """All rows of a state, whatever form they are in."""
    folders = {path.parent for path in output.rglob("part-*")}
    assert folders
    rows = []
    for folder in folders:
        kind = "parquet" if any(folder.glob("*.parquet")) else "text"
        for row in spark.read.format(kind).load(str(folder)).collect():
            rows.append(f"{folder.relative_to(output)} {sorted(row.asDict().items())}")
    return sorted(rows)


def test_an_archive_is_the_same_for_the_same_input(package: Package, tmp_path: Path) -> None:
    write_archive(tmp_path / "again.zip")
    write_native(tmp_path / "again.tar.gz")
    assert (tmp_path / "again.zip").read_bytes() == package.archive.read_bytes()
    assert (tmp_path / "again.tar.gz").read_bytes() == package.native.read_bytes()
    with zipfile.ZipFile(package.archive) as content:
        files = [name for name in content.namelist() if name[-1] != "/"]
        ends = Counter(Path(name).suffix for name in files if "/anyascii/_data/" not in name)
    assert set(ends) == {".py"}


def test_archive_imports_replay_and_its_libraries_without_compiled_modules(
    package: Package, tmp_path: Path
) -> None:
    """Nothing that a task or the driver imports may need what is compiled, or not installed."""
    lib = _SPARK / "python/lib"
    with zipfile.ZipFile(package.archive) as content:
        modules = [
            name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for name in content.namelist()
            if name.startswith("firebird_cdc/journal/replay/")
            and name.endswith(".py")
            # A repair is done where the shipper is, with all that is compiled.
            and not name.startswith("firebird_cdc/journal/replay/repair/")
        ]
    code = (
        "import importlib, sys\n"
        f"for name in {sorted(modules)}: importlib.import_module(name)\n"
        "import firebird_cdc.journal.events.render, firebird_cdc.config, yaml, logbook\n"
        "from firebird.driver import connect\n"
        "from firebird_cdc.journal.events.topic_encoding import topic_of\n"
        "assert topic_of('transliterate', 'x', None, 'Я').startswith('x.Ya-')\n"
        "from firebird_cdc.journal.replay.cluster.package import compiled_note, running_archive\n"
        "print(running_archive(), yaml.__file__, compiled_note())\n"
    )
    path = [package.archive, lib / "pyspark.zip", *lib.glob("py4j-*.zip")]
    environment = _environment(package.python) | {"PYTHONPATH": ":".join(map(str, path))}
    run = subprocess.run(
        [package.python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    archive, library, note = run.stdout.split(maxsplit=2)
    assert archive == str(package.archive)
    assert library == f"{archive}/lib/yaml/__init__.py"
    assert "google-crc32c and orjson can't be imported here" in note
    assert "replay package --native" in note
