"""Folders that a replay writes to: on whatever file system Spark knows (local, HDFS, S3...), and
without Spark on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.relational import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _file_system(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's file system for PLACE, and PLACE as its path."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    # Else a local one puts a file .NAME.crc beside each; tasks of this process have the same one.
    system.setWriteChecksum(False)
    return system, path


def local_path(place: str) -> Path:
    """Return PLACE, a path or a ``file:`` URL, as a path of this machine."""
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return Path(place)


def only_spark_writes(places: Mapping[str, str | None]) -> str | None:
    """Return the first of PLACES, by the names of their options, that is not on a disk of this
    machine."""
    for option, place in places.items():
        scheme = re.match(r"(\w[\w+.-]+):", place or "")
        if scheme is not None and scheme[1] != "file":
            return f"{option} {scheme[0]}"
    return None


def refuse_existing(spark: SparkSession, folder: str) -> None:
    """Raise ReplayError if FOLDER holds anything: nothing of the user's is ever replaced."""
    if is_local(spark):
        here = local_path(folder)
        is_taken = any(here.iterdir()) if here.is_dir() else here.exists()
    else:
        system, path = _file_system(spark, folder)
        is_taken = system.exists(path) and len(system.listStatus(path)) > 0
    if is_taken:
        raise ReplayError(f"{folder} is not empty; give --output a folder that does not exist yet")


def take_back(spark: SparkSession, folder: str) -> None:
    """Delete ``rows`` in FOLDER, which a replay that failed has written, and FOLDER if that was
    all; nothing if it is not there."""
    if is_local(spark):
        here = local_path(folder)
        rmtree(here / "rows", ignore_errors=True)
        with suppress(OSError):  # it is not empty
            here.rmdir()
        return
    system, path = _file_system(spark, folder)
    _, rows = _file_system(spark, f"{folder}/rows")
    system.delete(rows, True)
    if system.exists(path) and len(system.listStatus(path)) == 0:
        system.delete(path, False)


def write_text(spark: SparkSession, place: str, text: str) -> None:
    """Write a small file."""
    if is_local(spark):
        here = local_path(place)
        try:
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_bytes(text.encode())
        except OSError as error:
            raise ReplayError(f"can't write {here}: {error.strerror}") from error
        return
    system, path = _file_system(spark, place)
    stream = system.create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def write_last(spark: SparkSession, folder: str, name: str, text: str) -> None:
    """Write the file NAME that tells that FOLDER is complete, once nothing else is in it than what
    was asked for."""
    if is_local(spark):
        write_text(spark, f"{folder}/{name}", text)
        return
    system, path = _file_system(spark, folder)
    place = system.makeQualified(path).toUri()
    if place.getScheme() == "file":
        # Executors of a cluster know nothing of our setWriteChecksum. Another class for all local
        # files would help there, but Hadoop's client of S3 demands the usual one.
        for checksum in Path(place.getPath()).rglob(".*.crc"):
            with suppress(PermissionError):  # it does no harm
                checksum.unlink()
    write_text(spark, f"{folder}/{name}", text)


def write_table(spark: SparkSession, table: DataFrame, folder: str, form: str) -> None:
    """Write TABLE into FOLDER, sorted, as ``json`` (a line for each row, nulls left out) or
    ``parquet``."""
    rows: Any = table.orderBy(*table.columns)
    if not is_local(spark):
        rows.write.mode("errorifexists").format(form).save(folder)
        return
    from firebird_cdc.journal.replay.local.files import write_rows

    write_rows(rows.batches(), local_path(folder), form)
