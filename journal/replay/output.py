"""Folders that a replay writes to, on whatever file system Spark knows (local, HDFS, S3...)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from firebird_cdc.errors import ReplayError


def _file_system(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's file system for PLACE, and PLACE as its path."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    # Else a local one puts a file .NAME.crc beside each; tasks of this process have the same one.
    system.setWriteChecksum(False)
    return system, path


def refuse_existing(spark: SparkSession, folder: str) -> None:
    """Raise ReplayError if FOLDER holds anything: nothing of the user's is ever replaced."""
    system, path = _file_system(spark, folder)
    if system.exists(path) and len(system.listStatus(path)) > 0:
        raise ReplayError(f"{folder} is not empty; give --output a folder that does not exist yet")


def take_back(spark: SparkSession, folder: str) -> None:
    """Delete ``rows`` in FOLDER, which a replay that failed has written, and FOLDER if that was
    all; nothing if it is not there."""
    system, path = _file_system(spark, folder)
    _, rows = _file_system(spark, f"{folder}/rows")
    system.delete(rows, True)
    if system.exists(path) and len(system.listStatus(path)) == 0:
        system.delete(path, False)


def write_text(spark: SparkSession, place: str, text: str) -> None:
    """Write a small file."""
    system, path = _file_system(spark, place)
    stream = system.create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def write_last(spark: SparkSession, folder: str, name: str, text: str) -> None:
    """Write the file NAME that tells that FOLDER is complete, once nothing else is in it than what
    was asked for."""
    system, path = _file_system(spark, folder)
    place = system.makeQualified(path).toUri()
    if place.getScheme() == "file":
        # Executors of a cluster know nothing of our setWriteChecksum. Another class for all local
        # files would help there, but Hadoop's client of S3 demands the usual one.
        for checksum in Path(place.getPath()).rglob(".*.crc"):
            with suppress(PermissionError):  # it does no harm
                checksum.unlink()
    write_text(spark, f"{folder}/{name}", text)
