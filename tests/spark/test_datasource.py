"""The data source plans tasks of bounded size and outlives files that vanish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import VECTORS, History, column, vector_content
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from firebird_cdc.journal.archive import ArchiveKeeper, Retention
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.datasource import (
    JournalOptions,
    JournalPartition,
    JournalSource,
    plan_partitions,
)
from firebird_cdc.journal.statistics import Statistics

pytestmark = pytest.mark.spark


def _history(folder: Path, journals: int) -> History:
    history = History(folder)
    history.define("T", (column("ID", Storage.INTEGER, key=1), column("NAME", Storage.TEXT)))
    for number in range(journals):
        history.commit(("c", "T", None, (number, "x")))
    return history


def test_change_has_all_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    history = _history(tmp_path, 1)
    path = history.commit(
        ("u", "T", (0, "x"), (1, "y")),
        ("ddl", "create table other (id int)", None, None),
        ("gap", "no room", None, None),
    )
    rows = spark.read.format("firebird_journal").load(str(tmp_path)).where("sequence = 2")
    update, ddl, gap = (row.asDict() for row in rows.orderBy("pos").toLocalIterator())
    common = {
        "database": history.database,
        "epoch": 0,
        "sequence": 2,
        "journal": path.stem,
        "txId": 1002,
        "commit_us": 1_700_000_000_000_002,
        "path": str(path),
    }
    shape = update.pop("table_shape")
    assert len(shape) == 16
    assert update == common | {
        "pos": 1,
        "op": "u",
        "table": "T",
        "key": '{"ID":1}',
        "old_key": '{"ID":0}',
        "before": '{"ID":0,"NAME":"x"}',
        "after": '{"ID":1,"NAME":"y"}',
        "ddl": None,
        "reason": None,
    }
    nothing = dict.fromkeys(("table_shape", "key", "old_key", "before", "after"))
    assert ddl == common | nothing | {
        "pos": 2,
        "op": "ddl",
        "table": "OTHER",
        "ddl": "create table other (id int)",
        "reason": "create table",
    }
    assert gap == common | nothing | {
        "pos": 3, "op": "gap", "table": None, "ddl": None, "reason": "no room",
    }  # fmt: skip


def test_planning_groups_small_journals_and_splits_large_ones(tmp_path: Path) -> None:
    history = _history(tmp_path / "a", 25)
    size = history.paths[0].stat().st_size
    large = tmp_path / "a" / "large.log"
    large.write_bytes(bytes(10 * size + 1))
    options = JournalOptions.parse(
        {"path": str(tmp_path / "a"), "partitionbytes": str(4 * size), "partitionJournals": "3"}
    )
    partitions = plan_partitions(options, split=True)
    ranges, groups = [], []
    for partition in partitions:
        assert isinstance(partition, JournalPartition)
        if partition.names == "large.log":
            ranges.append((partition.start, partition.end))
        else:
            groups.append([path.name for path in partition.paths()])
    assert ranges == [(0, 4 * size), (4 * size, 8 * size), (8 * size, None)]
    assert max(map(len, groups)) == 3
    read = [name for group in groups for name in group]
    assert sorted(read) == sorted(path.name for path in history.paths)


def test_journal_seen_in_two_folders_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    history = _history(tmp_path / "live", 2)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / history.paths[0].name).hardlink_to(history.paths[0])
    folders = [str(tmp_path / "live"), str(tmp_path / "archive")]
    assert spark.read.format("firebird_journal").load(folders).count() == 2


def test_vanished_journal_is_reported_or_ends_the_job(tmp_path: Path) -> None:
    """The reader is called as a task calls it: the file goes between planning and reading."""
    history = _history(tmp_path, 3)
    for mode in ("report", "fail"):
        reader = JournalSource({"path": str(tmp_path), "onMissing": mode}).reader(None)  # type: ignore[arg-type]
        (partition,) = reader.partitions()
        history.paths[-1].unlink()
        history.paths.pop()
        if mode == "report":
            (batch,) = reader.read(partition)
            assert sorted(batch.column("op").to_pylist()) == ["c", "c", "missing"]
        else:
            with pytest.raises(Exception, match="vanished while the folder was being read"):
                list(reader.read(partition))


def test_damage_ends_the_job_and_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    path = _history(tmp_path, 2).paths[1]
    path.write_bytes(path.read_bytes()[:-10])
    changes = spark.read.format("firebird_journal").load(str(tmp_path))
    with pytest.raises(PySparkException, match=path.name):
        changes.count()
    reported = spark.read.format("firebird_journal").option("onDamage", "report")
    counts = reported.load(str(tmp_path)).groupBy("op").count().toLocalIterator()
    assert dict(tuple(row) for row in counts)["damaged"] == 1


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("partitionBytes", "0", "above 0"), ("onDamage", "ignore", "fail, report")],
)
def test_wrong_option_names_itself_and_what_is_allowed(
    spark: SparkSession, tmp_path: Path, option: str, value: str, allowed: str
) -> None:
    changes = spark.read.format("firebird_journal").option(option, value).load(str(tmp_path))
    with pytest.raises(PySparkException, match=f"{option} .* '{value}'.*{allowed}"):
        changes.count()


def test_broken_vectors_are_reported_each_and_none_ends_the_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    broken = set()
    for facts in VECTORS.glob("*.json"):
        path = tmp_path / f"{facts.stem}.log"
        path.write_bytes(vector_content(facts.stem))
        vector = json.loads(facts.read_text(encoding="utf-8"))
        if vector["outcome"] != "whole" or vector["stamp"] is None:
            broken.add(str(path))
    reported = spark.read.format("firebird_journal").option("onDamage", "report")
    damaged = reported.load(str(tmp_path)).where("op = 'damaged'").select("path", "reason")
    found = {row["path"]: row["reason"] for row in damaged.toLocalIterator()}
    assert found.keys() == broken
    assert all(reason.startswith(path) for path, reason in found.items())


def test_packed_journals_are_read_as_before(spark: SparkSession, tmp_path: Path) -> None:
    history = _history(tmp_path, 40)

    def read() -> list[tuple[object, ...]]:
        changes = spark.read.format("firebird_journal").load(str(tmp_path)).drop("path")
        return sorted(tuple(row) for row in changes.toLocalIterator())

    before = read()
    keeper = ArchiveKeeper(tmp_path, 10_000, Retention(0, 0), Statistics())
    keeper.look()
    left = [path for path in history.paths if path.exists()]
    assert len(left) < 20
    assert len(list(tmp_path.glob("*.zip"))) > 1
    assert read() == before
    assert spark.read.format("firebird_journal_files").load(str(tmp_path)).count() == 40


def test_journal_packed_between_planning_and_reading_is_found(tmp_path: Path) -> None:
    _history(tmp_path, 3)
    reader = JournalSource({"path": str(tmp_path)}).reader(None)  # type: ignore[arg-type]
    (partition,) = reader.partitions()
    ArchiveKeeper(tmp_path, 1, Retention(0, 0), Statistics()).look()
    (batch,) = reader.read(partition)
    assert batch.column("op").to_pylist() == ["c", "c", "c"]


def test_damaged_segment_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    _history(tmp_path, 2)
    ArchiveKeeper(tmp_path, 1, Retention(0, 0), Statistics()).look()
    first, second = tmp_path.glob("*.zip")
    first.write_bytes(first.read_bytes()[:50])
    content = bytearray(second.read_bytes())
    content[300] ^= 0xFF
    second.write_bytes(content)
    reported = spark.read.format("firebird_journal").option("onDamage", "report")
    damaged = reported.load(str(tmp_path)).where("op = 'damaged'").select("path", "reason")
    found = sorted(row["path"] for row in damaged.toLocalIterator())
    assert [path.split(".zip")[0] + ".zip" for path in found] == sorted([str(first), str(second)])
