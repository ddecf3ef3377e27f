"""Starts a Spark of our own or joins the one that spark-submit has started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from firebird_cdc import output
from firebird_cdc.errors import ReplayError, SetupError
from firebird_cdc.journal.replay.cluster.package import (
    ARCHIVE_NAME,
    running_archive,
    write_archive,
)
from firebird_cdc.journal.replay.cluster.progress import Progress, when_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_MASTER = "local[2]"
_PARTITIONS = "spark.sql.shuffle.partitions"
_LOG_LEVEL = "spark.log.level"
_LEAST_BYTES = 1024 * 1024  # of journals that are worth a part of a shuffle; a guess
_AGAIN_S = 0.1

_NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    # Off by default: data sources in Python would get no filter.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Columns of one table may differ by case alone.
    "spark.sql.caseSensitive": "true",
}
_BETTER = {
    # Rows are texts of any length, so that a number of them says nothing of their size.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
}

_QUIET_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{0}
# At another level than the root's it would announce that it changes that.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# A task's failure reaches the user as our own error, in one sentence.
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.sql
logger.scheduler.level = off
logger.python.name = org.apache.spark.util.Utils
logger.python.level = off
"""


def is_submitted() -> bool:
    """Tell whether spark-submit has started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_pyspark() -> None:
    """Raise SetupError if pyspark, pyarrow or Java is missing."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise SetupError(
            f"replay needs {' and '.join(missing)}, which this Python ({sys.executable}) lacks:"
            " pip install '.[spark]' in the clone of firebird-cdc, or the"
            " package firebird-cdc-spark"
        )
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise SetupError(
            "replay runs Spark, and no java is on the PATH: install Java 17"
            " (Debian 12: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )


@contextmanager
def spark_session(
    name: str,
    master: str | None,
    *,
    jars: Sequence[str] = (),
    progress: bool = True,
    folders: Sequence[str] = (),
) -> Iterator[SparkSession]:
    """Yield a Spark session with our data sources; stop it afterwards if it is of our making.

    Under spark-submit the session is the one it asks for. Else MASTER, or what the Spark in
    SPARK_HOME is configured for, or two threads of this machine; JARS (paths or URLs) are added
    there, where spark-submit has ``--jars``. PROGRESS: tell on stderr how far it is. FOLDERS: of
    journals, whose size decides into how many parts Spark divides what it sorts.
    Errors of Spark's come out as ReplayError with the cause in one sentence.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    from firebird_cdc.journal.replay.source.datasource import SOURCES

    with (
        leaving_in_order(),
        tempfile.TemporaryDirectory(prefix="firebird-cdc-replay-") as scratch,
        plain_errors(),
    ):
        running = SparkSession.getActiveSession()
        session: SparkSession | None = running
        try:
            if session is None:
                session = _start(name, master, Path(scratch), jars)
                _ship_package(session, Path(scratch))
            for source in SOURCES:
                session.dataSource.register(source)
            with (
                _settings(session, folders),
                Progress(session, name) if progress else nullcontext(),
            ):
                yield session
        finally:
            if running is None and session is not None:
                with suppress(*when_gone()):  # and why it is gone is on its way already
                    session.stop()


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Have SIGTERM end this program as an exception does, which cleans up on its way."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    def repeat() -> None:
        if signal.getsignal(signal.SIGTERM) is leave:
            os.kill(os.getpid(), signal.SIGTERM)

    def leave_again(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, SystemExit):  # it came within a finalizer, which lost it
            threading.Timer(_AGAIN_S, repeat).start()
        else:
            others(ignored)

    others, sys.unraisablehook = sys.unraisablehook, leave_again
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = others


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors of Spark's into ReplayError with the cause in one sentence."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (ConnectionError, Py4JNetworkError) as error:
        if isinstance(error, BrokenPipeError) and output.is_unread():
            raise
        raise ReplayError(
            "Spark's Java process has gone away; what it said last stands above, or in the"
            f" driver's log ({error})"
        ) from error
    except (PySparkException, Py4JError) as error:
        raise ReplayError(_cause(str(error))) from error


def _start(name: str, master: str | None, scratch: Path, jars: Sequence[str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    submitted = is_submitted()
    if not submitted and master is None and "SPARK_HOME" not in os.environ:
        master = _LOCAL_MASTER
    if not submitted and jars:
        builder = builder.config("spark.jars", ",".join(jars))
    if not submitted and master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Or else Spark takes the first python3 of the PATH, which may lack our packages.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            log4j = scratch / "log4j2.properties"
            log4j.write_text(_QUIET_LOG4J, encoding="utf-8")
            for key, value in {
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
                "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
                "spark.ui.enabled": "false",
            }.items():
                builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    is_ours = not submitted and master is not None and master.startswith("local")
    if not is_ours and not session.sparkContext.getConf().contains(_LOG_LEVEL):
        session.sparkContext.setLogLevel("ERROR")  # what matters reaches the user as our own error
    return session


@contextmanager
def _settings(session: SparkSession, folders: Sequence[str]) -> Iterator[None]:
    """Set what our results depend on, and what is better than Spark's default if it is unset."""
    given = session.sparkContext.getConf()
    wanted = dict(_NEEDED)
    wanted.update((key, value) for key, value in _BETTER.items() if not given.contains(key))
    if folders and not given.contains(_PARTITIONS):
        wanted[_PARTITIONS] = str(_partitions(folders, session.sparkContext.defaultParallelism))
    before = {key: session.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        with suppress(*when_gone()):
            for key, former in before.items():
                if former is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, former)


def _partitions(folders: Sequence[str], cores: int) -> int:
    """Return into how many parts a shuffle of the journals in FOLDERS is to be divided: Spark's
    default of 200 has more tasks than journals for a small folder, and too few for a large one."""
    from firebird_cdc.journal.replay.source.planning import DEFAULT_BYTES, history_bytes

    size = history_bytes(folders)
    return max(-(-size // DEFAULT_BYTES), min(cores, -(-size // _LEAST_BYTES)), 1)


def _ship_package(session: SparkSession, scratch: Path) -> None:
    """Give the executors the driver's own firebird_cdc, so that they need not have it installed."""
    archive = running_archive()
    if archive is None:
        archive = scratch / ARCHIVE_NAME
        write_archive(archive)
    context = session.sparkContext
    if archive.name not in (context._python_includes or []):  # or else --py-files has brought it
        context.addPyFile(str(archive))


_OURS = re.compile(
    r"^(?:\w+\.)*(?:ReplayError|DatabaseUnreadable|Journal(?:Corrupt|Torn|Empty)): (.+)$",
    re.MULTILINE,
)
_ANY = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", re.MULTILINE)


def _cause(text: str) -> str:
    """Return the one line of a Spark error that says what happened."""
    ours = _OURS.search(text)
    if ours:
        return ours.group(1)
    errors: list[str] = _ANY.findall(text)
    return f"Spark stopped: {(errors or text.strip().splitlines())[-1]}"
