"""An archive of the classes that Spark loads, which the Java machines of the tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from firebird_cdc.demo.class_archive import ClassArchive
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.journal.replay.cluster.session import spark_session


def options_for_sharing(java_options: str) -> str:
    """Return Java's options with which a Spark shares classes; made by one with JAVA_OPTIONS."""
    archive = ClassArchive(cache_directory() / "jars", Path(pyspark.__file__).with_name("jars"))

    def leave(_: Path, option: str) -> None:
        options = {"SPARK_SUBMIT_OPTS": f"{java_options} {option}"}
        command = [sys.executable, "-P", __file__]
        # Java is at its end when nobody can write to this pipe any more.
        subprocess.run(command, env=os.environ | options, check=True, stdout=subprocess.PIPE)

    archive.make(leave)
    return " ".join(archive.options)


def _use_spark() -> None:
    with spark_session("classes", "local[2]", progress=False) as session:
        session.conf.set("spark.sql.shuffle.partitions", "4")
        rows = session.range(9).selectExpr("id % 2 AS key", "id")
        rows.groupBy("key").sum("id").join(rows, "key").orderBy("id").collect()


if __name__ == "__main__":
    _use_spark()
