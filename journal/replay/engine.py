"""Choice of who computes a replay: Spark, or worker processes and DuckDB on this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from firebird_cdc.errors import SetupError, UsageError
from firebird_cdc.journal.replay.cluster.progress import Progress
from firebird_cdc.journal.replay.cluster.session import (
    is_submitted,
    leaving_in_order,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_BYTES = 16 * 1024**3
"""Bytes of journals from which on Spark is taken where it is there."""


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--engine``."""
    parser.add_argument(
        "--engine",
        choices=("auto", "local", "spark"),
        default="auto",
        help="local: this machine's cores, no Java; spark; auto (default): local, unless there is"
        " a reason for Spark (--master, spark-submit, what only Spark can do, 16 GiB of journals)",
    )


@contextmanager
def replay_session(
    name: str,
    arguments: argparse.Namespace,
    folders: Sequence[str],
    *,
    jars: Sequence[str] = (),
    progress: bool = True,
    only_spark: str | None = None,
) -> Iterator[SparkSession]:
    """Yield a session for a replay of FOLDERS: of Spark, or a local one, which has as much of it as
    audit and state need.

    only_spark: what was asked for and needs Spark. Raises UsageError if ``--engine`` forbids that,
    SetupError if what the engine needs is missing.
    """
    if _is_spark(arguments, folders, jars, only_spark):
        with spark_session(
            name, arguments.master, jars=jars, progress=progress, folders=folders
        ) as spark:
            yield spark
        return
    if _lacking_locally():
        raise SetupError(_missing(_lacking_locally()))
    from firebird_cdc.journal.replay.local.session import local_session

    with leaving_in_order(), local_session() as session:
        here: SparkSession = session
        with Progress(here, name) if progress else nullcontext():
            yield here


def _is_spark(
    arguments: argparse.Namespace,
    folders: Sequence[str],
    jars: Sequence[str],
    only_spark: str | None,
) -> bool:
    """Choose the engine."""
    asked: str = arguments.engine
    reasons = {
        only_spark: only_spark is not None,
        "--master": arguments.master is not None,
        "--jars": bool(jars),
        "spark-submit": is_submitted(),
    }
    reason = next((what for what, there in reasons.items() if there), None)
    if asked == "local" and reason is not None:
        raise UsageError(f"--engine local: {reason} needs Spark; leave out one of them")
    if asked != "auto" or reason is not None:
        return asked != "local"
    if "SPARK_HOME" in os.environ:
        return True
    if _lacking_locally() and find_spec("pyspark") is not None:
        return True
    has_spark = find_spec("pyspark") is not None and (
        "JAVA_HOME" in os.environ or shutil.which("java") is not None
    )
    return has_spark and _history_bytes(folders) > LARGE_BYTES


def _history_bytes(folders: Sequence[str]) -> int:
    from firebird_cdc.journal.replay.source.planning import history_bytes

    return history_bytes(folders)


def _lacking_locally() -> list[str]:
    return [name for name in ("duckdb", "pyarrow") if find_spec(name) is None]


def _missing(packages: list[str]) -> str:
    return (
        f"replay needs {' and '.join(packages)}, which this Python ({sys.executable}) lacks:"
        " pip install '.[replay]' in the clone of firebird-cdc, or the package firebird-cdc-replay"
    )
