"""Starts a Spark of our own or joins the one that spark-submit has started."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import firebird_cdc
from firebird_cdc.errors import ReplayError, SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_MASTER = "local[2]"

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


def check_pyspark() -> None:
    """Raise SetupError if pyspark, pyarrow or Java is missing."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise SetupError(
            f"replay needs {' and '.join(missing)}, which this Python ({sys.executable}) lacks:"
            " pip install 'firebird-cdc[spark]'"
        )
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise SetupError(
            "replay runs Spark, and no java is on the PATH: install Java 17"
            " (Debian 12: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )


@contextmanager
def spark_session(name: str, master: str | None) -> Iterator[SparkSession]:
    """Yield a Spark session with our data sources; stop it afterwards if it is of our making.

    Under spark-submit the session is the one it asks for. Else MASTER, or what the Spark in
    SPARK_HOME is configured for, or two threads of this machine.
    Errors of Spark's come out as ReplayError with the cause in one sentence.
    """
    check_pyspark()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from firebird_cdc.journal.replay.datasource import JournalFileSource, JournalSource

    with tempfile.TemporaryDirectory(prefix="firebird-cdc-replay-") as scratch:
        running = SparkSession.getActiveSession()
        session = running or _start(name, master, Path(scratch))
        try:
            if running is None:
                _ship_package(session, Path(scratch))
            session.dataSource.register(JournalSource)
            session.dataSource.register(JournalFileSource)
            yield session
        except PySparkException as error:
            raise ReplayError(_cause(str(error))) from error
        finally:
            if running is None:
                session.stop()


def _start(name: str, master: str | None, scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and master is None and "SPARK_HOME" not in os.environ:
        master = _LOCAL_MASTER
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
                "spark.sql.shuffle.partitions": "8",
                "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
                "spark.ui.enabled": "false",
            }.items():
                builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _ship_package(session: SparkSession, scratch: Path) -> None:
    """Give the executors the driver's own firebird_cdc, so that they need not have it installed.

    What it imports there they need all the same: pyarrow and google-crc32c.
    """
    root = Path(firebird_cdc.__file__).parent
    archive = scratch / "firebird_cdc_replay.zip"
    with zipfile.ZipFile(archive, "w") as package:
        for folder in ("", "journal", "journal/replay"):
            for path in sorted((root / folder).glob("*.py")):
                package.write(path, f"firebird_cdc/{folder and folder + '/'}{path.name}")
    session.sparkContext.addPyFile(str(archive))


_OURS = re.compile(r"^(?:\w+\.)*(?:ReplayError|Journal(?:Corrupt|Torn|Empty)): (.+)$", re.MULTILINE)
_ANY = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", re.MULTILINE)


def _cause(text: str) -> str:
    """Return the one line of a Spark error that says what happened."""
    ours = _OURS.search(text)
    if ours:
        return ours.group(1)
    errors: list[str] = _ANY.findall(text)
    return f"Spark stopped: {(errors or text.strip().splitlines())[-1]}"
