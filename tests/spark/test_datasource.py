"""The data source plans tasks of bounded size and outlives files that vanish."""

from __future__ import annotations

import json
import pickle
import random
import zipfile
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest
from histories import VECTORS, History, column, vector_content
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from firebird_cdc.journal.format import BLOCK_HEADER, DATA_OFFSET, Storage
from firebird_cdc.journal.replay.source.changes import read_changes
from firebird_cdc.journal.replay.source.datasource import JournalFileSource, JournalSource
from firebird_cdc.journal.replay.source.filters import EVERYTHING, Condition
from firebird_cdc.journal.replay.source.planning import (
    JournalOptions,
    JournalPartition,
    plan_partitions,
)
from firebird_cdc.journal.replay.source.storage import Folder
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention

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
    update, ddl, gap = (row.asDict() for row in rows.orderBy("position").toLocalIterator())
    common = {
        "database": history.database,
        "epoch": 0,
        "sequence": 2,
        "journal": path.stem,
        "transaction": 1002,
        "commit_time": datetime.fromtimestamp(1_700_000_000).replace(microsecond=2),
        "file": str(path),
    }
    shape = update.pop("shape")
    assert len(shape) == 16
    assert update == common | {
        "position": 1,
        "operation": "u",
        "table": "T",
        "key": '{"ID":1}',
        "old_key": '{"ID":0}',
        "before": '{"ID":0,"NAME":"x"}',
        "after": '{"ID":1,"NAME":"y"}',
        "ddl": None,
        "catalogue": None,
        "reason": None,
    }
    nothing = dict.fromkeys(("shape", "key", "old_key", "before", "after", "catalogue"))
    assert ddl == common | nothing | {
        "position": 2,
        "operation": "ddl",
        "table": "OTHER",
        "ddl": "create table other (id int)",
        "reason": "create table",
    }
    assert gap == common | nothing | {
        "position": 3, "operation": "gap", "table": None, "ddl": None, "reason": "no room",
    }  # fmt: skip


def _pieces(partition: JournalPartition) -> list[tuple[int, str, int, int | None]]:
    journals = list(partition.journals())
    last = len(journals) - 1
    return [
        (folder, name, partition.start * (i == 0), partition.end if i == last else None)
        for i, (folder, name) in enumerate(journals)
    ]


def test_read_tasks_have_even_sizes_for_any_mix_of_files(tmp_path: Path) -> None:
    """Folders, segments and large journals together; all is read once, and in even shares."""
    sizes: dict[str, int] = {}
    rng = random.Random(5)
    for folder in ("live", "archive"):
        (tmp_path / folder).mkdir()
        for size in [50_000_000, *(rng.randint(1000, 3_000_000) for _ in range(100))]:
            path = tmp_path / folder / f"{UUID(int=rng.getrandbits(128))}.log"
            with path.open("wb") as file:
                file.truncate(size)
            sizes[path.name] = size
    for number in range(5):
        segment = tmp_path / "archive" / f"{0:016x}-0-{10 * number + 1}-{10 * number + 10}.zip"
        with zipfile.ZipFile(segment, "w") as content:
            for _ in range(10):
                name = f"{UUID(int=rng.getrandbits(128))}.log"
                sizes[name] = rng.randint(1000, 100_000)
                content.writestr(name, bytes(sizes[name]))
    folders = json.dumps([str(tmp_path / "live"), str(tmp_path / "archive")])
    options = JournalOptions.parse({"paths": folders, "partitionbytes": "8000000"})
    partitions = plan_partitions(options, split=True)
    read: dict[str, list[tuple[int, int]]] = {}
    loads = []
    for partition in partitions:
        load = 0
        for _, name, start, end in _pieces(partition):
            name = name.rpartition("/")[2]
            stop = sizes[name] if end is None else end
            read.setdefault(name, []).append((start, stop))
            load += stop - start
        loads.append(load)
        assert len(pickle.dumps(partition)) < 16 * 1024
    for name, ranges in read.items():
        borders = [0, *(end for _, end in ranges)]
        assert [start for start, _ in ranges] == borders[:-1]
        assert borders[-1] == sizes[name]
    assert read.keys() == sizes.keys()
    assert len(partitions) >= sum(sizes.values()) / 8_000_000
    assert max(loads) < 1.4 * min(loads)


def test_few_journals_are_read_by_one_task_with_short_names(tmp_path: Path) -> None:
    _history(tmp_path, 25)
    (tmp_path / "oddly-named.log").write_bytes(b"")
    options = JournalOptions.parse({"path": str(tmp_path), "minPartitions": "8"})
    (partition,) = plan_partitions(options, split=True)
    assert len(_pieces(partition)) == 26
    few = JournalOptions.parse({"path": str(tmp_path), "partitionJournals": "3"})
    groups = [len(_pieces(p)) for p in plan_partitions(few, split=True)]
    assert sum(groups) == 26
    assert max(groups) == 3
    assert len(pickle.dumps(partition)) < 1000


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
            assert sorted(batch.column("operation").to_pylist()) == ["c", "c", "missing"]
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
    counts = reported.load(str(tmp_path)).groupBy("operation").count().toLocalIterator()
    assert dict(tuple(row) for row in counts)["damaged"] == 1


def test_epoch_of_a_journal_is_that_of_its_stamp_or_null(tmp_path: Path) -> None:
    """The server doesn't know it yet when it writes the header, and says 0."""
    whole, unstamped = _history(tmp_path, 2).paths
    content = bytearray(unstamped.read_bytes())
    content[1024:1536] = bytes(512)
    unstamped.write_bytes(content)
    reader = JournalFileSource({"path": str(tmp_path)}).reader(StructType())
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    rows = {row["file"]: (row["epoch"], row["sequence"]) for row in batch.to_pylist()}
    assert rows == {str(whole): (0, 1), str(unstamped): (None, None)}


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("partitionBytes", "0", "above 0"), ("onDamage", "ignore", "fail, report")],
)
def test_wrong_option_is_named_with_its_allowed_values(
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
    damaged = reported.load(str(tmp_path)).where("operation = 'damaged'").select("file", "reason")
    found = {row["file"]: row["reason"] for row in damaged.toLocalIterator()}
    assert found.keys() == broken
    assert all(reason.startswith(path) for path, reason in found.items())


def test_packed_journals_are_read_as_before(spark: SparkSession, tmp_path: Path) -> None:
    history = _history(tmp_path, 40)

    def read() -> list[tuple[object, ...]]:
        changes = spark.read.format("firebird_journal").load(str(tmp_path)).drop("file")
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
    assert batch.column("operation").to_pylist() == ["c", "c", "c"]


def test_damaged_segment_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    _history(tmp_path, 2)
    ArchiveKeeper(tmp_path, 1, Retention(0, 0), Statistics()).look()
    first, second = tmp_path.glob("*.zip")
    first.write_bytes(first.read_bytes()[:50])
    content = bytearray(second.read_bytes())
    content[300] ^= 0xFF
    second.write_bytes(content)
    reported = spark.read.format("firebird_journal").option("onDamage", "report")
    damaged = reported.load(str(tmp_path)).where("operation = 'damaged'").select("file", "reason")
    found = sorted(row["file"] for row in damaged.toLocalIterator())
    assert [path.split(".zip")[0] + ".zip" for path in found] == sorted([str(first), str(second)])


def _corrupt_rows(path: Path) -> None:
    """Break the first block of a journal; its sectors stay as they are."""
    content = bytearray(path.read_bytes())
    content[DATA_OFFSET + BLOCK_HEADER + 60] ^= 0xFF
    path.write_bytes(content)


def test_filters_avoid_reading_excluded_journals(spark: SparkSession, tmp_path: Path) -> None:
    """Damage what is not wanted, so that whoever reads it in spite of that is found out."""
    packed = _history(tmp_path, 6)
    ArchiveKeeper(tmp_path, 1, Retention(0, 0), Statistics()).look()
    segments = sorted(tmp_path.glob("*.zip"), key=lambda path: int(path.stem.split("-")[2]))
    assert len(segments) == 6
    packed.commit(("c", "T", None, (7, "x")))
    bad = packed.commit(("c", "T", None, (8, "x")))
    _corrupt_rows(bad)
    for segment in segments[2:]:
        segment.write_bytes(b"no segment any more")

    def load(**options: object) -> DataFrame:
        return spark.read.format("firebird_journal").options(**options).load(str(tmp_path))

    def keys(condition: str) -> list[str]:
        rows = load(pushFilters=True).where(condition).orderBy("sequence").select("key")
        return [row["key"] for row in rows.toLocalIterator()]

    with pytest.raises(PySparkException):
        keys("sequence <= 2 or sequence = 7")  # Spark hands over no alternatives
    times = "timestamp_micros(1700000000000000)"
    first_two = ['{"ID":0}', '{"ID":1}']
    assert keys("sequence in (1, 2) and `table` = 'T'") == first_two
    assert keys(f"sequence < 3 and commit_time > {times} + interval 1 microsecond") == first_two[1:]
    assert keys("sequence = 7 and epoch = 0 and operation = 'c'") == ['{"ID":7}']
    assert keys("database = '/data/other.fdb' and sequence = 7") == []
    ranges: tuple[tuple[dict[str, object], int], ...] = (
        ({"toSequence": 2}, 2),
        ({"fromSequence": 7, "toSequence": 7, "epoch": 0}, 1),
        ({"epoch": 1}, 0),
        ({"toSequence": 2, "fromTime": "2023-11-14T22:13:20.000002Z"}, 1),
    )
    for options, rows in ranges:
        assert load(**options).count() == rows
    reported = load(onDamage="report", pushFilters=True).where("sequence <=> 8")
    assert [row["operation"] for row in reported.toLocalIterator()] == ["damaged"]
    with pytest.raises(PySparkException):
        load().where("sequence in (1, 2)").count()


@pytest.mark.parametrize("is_enabled", ["true", "false"])
def test_dataframe_is_good_for_several_queries(
    spark: SparkSession, tmp_path: Path, is_enabled: str
) -> None:
    """Spark 4.1 keeps the filters of one query for the next, so by default none are taken."""
    _history(tmp_path, 5)
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, is_enabled)
    try:
        changes = spark.read.format("firebird_journal").load(str(tmp_path))
        assert changes.where("sequence = 1").count() == 1
        assert changes.count() == 5
        assert changes.where("sequence = 1").union(changes).count() == 6
        once = spark.read.format("firebird_journal").option("pushFilters", "true")
        assert once.load(str(tmp_path)).where("sequence < 3").count() == 2
    finally:
        spark.conf.set(setting, before)


def test_filters_open_no_segment_and_decode_no_journal_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = _history(tmp_path, 40)
    ArchiveKeeper(tmp_path, 10_000, Retention(0, 0), Statistics()).look()
    lone = [path.name for path in history.paths if path.exists()]
    opened: list[str] = []
    listed: list[str] = []
    journal, members = Folder.journal, Folder.members
    monkeypatch.setattr(
        Folder, "journal", lambda s, name, *more: opened.append(name) or journal(s, name, *more)
    )
    monkeypatch.setattr(Folder, "members", lambda s, name: listed.append(name) or members(s, name))
    options = JournalOptions.parse({"path": str(tmp_path)})
    wanted = EVERYTHING.and_also([Condition("sequence", "le", 3)])
    (partition,) = plan_partitions(options, split=True, wanted=wanted)
    (batch,) = read_changes(partition, options, ("sequence", "key"), wanted)
    assert batch.to_pydict()["sequence"] == [1, 2, 3]
    assert batch.schema.names == ["sequence", "key"]
    (segment,) = listed
    in_segment = [name for name in opened if name.startswith(segment)]
    assert len(in_segment) < 20
    assert sorted(set(opened) - set(in_segment)) == sorted(lone)  # whose headers tell


def test_only_the_columns_asked_for_are_made(spark: SparkSession, tmp_path: Path) -> None:
    _history(tmp_path, 3)
    reader = spark.read.format("firebird_journal").schema("`after` string, sequence bigint")
    rows = [tuple(row) for row in reader.load(str(tmp_path)).orderBy("sequence").toLocalIterator()]
    assert rows == [(f'{{"ID":{n},"NAME":"x"}}', n + 1) for n in range(3)]
    with pytest.raises(PySparkException, match="no column position of type string"):
        reader.schema("position string").load(str(tmp_path)).count()


def test_state_leaves_out_former_rows_only_where_a_key_stands_for_them(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.define("KEYED", (column("ID", Storage.INTEGER, key=1),))
    history.define("HEAP", (column("ID", Storage.INTEGER),), key_kind=0)
    history.commit(("u", "KEYED", (1,), (2,)), ("u", "HEAP", (1,), (2,)), ("d", "HEAP", (2,), None))
    reader = JournalSource({"path": str(tmp_path), "rows": "state"}).reader(None)
    (batch,) = reader.read(reader.partitions()[0])
    rows = batch.to_pydict()
    assert rows["before"] == [None, '{"ID":1}', '{"ID":2}']
    assert rows["after"] == ['{"ID":2}', '{"ID":2}', None]
    assert rows["key"] == ['{"ID":2}', None, None]
    assert rows["old_key"] == ['{"ID":1}', None, None]


def test_moved_journal_is_found_in_any_folder_of_the_load(tmp_path: Path) -> None:
    """Between planning and reading one is archived, one quarantined, one archived and packed."""
    live, quarantine, archive = (tmp_path / name for name in ("live", "quarantine", "archive"))
    history = _history(live, 4)
    quarantine.mkdir()
    archive.mkdir()
    folders = json.dumps([str(live), str(quarantine), str(archive)])
    reader = JournalSource({"paths": folders}).reader(None)
    (partition,) = reader.partitions()
    first, second, third, fourth = history.paths
    third.rename(archive / third.name)
    ArchiveKeeper(archive, 1, Retention(0, 0), Statistics()).look()
    first.rename(archive / first.name)
    second.rename(quarantine / second.name)
    (batch,) = reader.read(partition)
    rows = batch.to_pydict()
    found = dict(zip(rows["sequence"], rows["file"], strict=True))
    (segment,) = archive.glob("*.zip")
    assert found == {
        1: str(archive / first.name),
        2: str(quarantine / second.name),
        3: f"{segment}/{third.name}",
        4: str(fourth),
    }


def test_definitions_are_a_table(spark: SparkSession, tmp_path: Path) -> None:
    history = _history(tmp_path, 2)
    history.define("T", (column("ID", Storage.INTEGER, key=1),))
    history.commit(("c", "T", None, (1,)))
    shapes = spark.read.format("firebird_journal_shapes").load(str(tmp_path))
    old, new = (row.asDict() for row in shapes.orderBy("sequence").toLocalIterator())
    assert (old["sequence"], old["last_sequence"], new["sequence"]) == (1, 2, 3)
    changes = spark.read.format("firebird_journal").load(str(tmp_path))
    digests = changes.orderBy("sequence").select("shape").toLocalIterator()
    assert [row["shape"] for row in digests] == [old["shape"], old["shape"], new["shape"]]
    (only,) = json.loads(new["columns"])
    assert only["name"] == "ID"
    assert only["type"] == "INTEGER"
    assert only["key_position"] == 1
    assert [c["type"] for c in json.loads(old["columns"])] == ["INTEGER", "VARCHAR(40)"]


@pytest.mark.parametrize(("others", "says"), [([], "it is empty"), (["notes.txt"], "notes.txt")])
def test_folder_without_journals_names_its_content(
    spark: SparkSession, tmp_path: Path, others: list[str], says: str
) -> None:
    for name in others:
        (tmp_path / name).touch()
    changes = spark.read.format("firebird_journal")
    with pytest.raises(PySparkException, match=f"holds no journal.*{says}"):
        changes.load(str(tmp_path)).count()
    assert changes.option("onEmpty", "accept").load(str(tmp_path)).count() == 0
