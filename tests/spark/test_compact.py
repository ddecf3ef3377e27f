"""Journals into segments and into Parquet: the same history afterwards, or nothing at all."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pyarrow.parquet
import pytest
from histories import History, SharedHistory, column, flip
from object_store import credentials, running_store
from pyspark.sql import Row

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.segments import SMALL_BYTES, is_segment_name, list_segment
from firebird_cdc.journal.format import JournalReader, SharedJournal, Storage
from firebird_cdc.journal.replay import compact as room
from firebird_cdc.journal.replay.compact import compact, describe
from firebird_cdc.journal.replay.source.storage import open_folder
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_SMALL = 30  # journals of the first database
_OTHER = "/data/großhandel #2.fdb"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two databases, a new epoch, a journal too large to pack; some are in a segment already."""
    folder = tmp_path_factory.mktemp("compact") / "archive"
    columns = (column("ID", Storage.INTEGER, key=1), column("NAME", Storage.TEXT))
    shop = History(folder)
    shop.define("T", columns)
    for number in range(_SMALL):
        shop.commit(("c", "T", None, (number, f"row {number}")))
        if number == _SMALL // 2:
            _keep(folder)
    wide = "x" * 60_000
    drawn = ("sequence", "RDB$1", None, None)  # no event, as an identity column makes it
    many = [("c", "T", None, (1000 + n, wide)) for n in range(SMALL_BYTES // len(wide) + 1)]
    shop.commit(*many, drawn)
    shop.commit(("u", "T", (1, "row 1"), (1, None)), drawn, ("d", "T", (2, "row 2"), None))
    other = History(folder, database=_OTHER, epoch=3)
    other.define("T", columns)
    other.commit(("ddl", "CREATE TABLE T (ID INTEGER)", None, None), ("c", "T", None, (1, "ä")))
    other.commit(("gap", "no space left", None, None), skip_number=True)
    drawing = History(folder, database="/data/drawing.fdb")
    drawing.commit(drawn)  # all that it did was to draw a number
    return folder


def _keep(folder: Path, segment_bytes: int = 15_000) -> None:
    keeper = ArchiveKeeper(folder, segment_bytes, Retention(0, 0), Statistics())
    keeper.look()


def _changes(spark: SparkSession, folder: Path) -> Counter[tuple]:
    rows = spark.read.format("firebird_journal").load(str(folder)).drop("file").collect()
    return Counter(tuple(row) for row in rows)


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_segments_hold_the_same_history_and_are_there_or_not(
    spark: SparkSession, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, output = _content(archive), tmp_path / "out"
    large = next(path for path in archive.glob("*.log") if path.stat().st_size > SMALL_BYTES)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    output.mkdir()
    (output / f".{'0' * 32}.zip.part").touch()  # of a run that was killed
    with monkeypatch.context() as patched:
        patched.setattr(room._Target, "name", stop)
        with pytest.raises(KeyboardInterrupt):
            compact(spark, [str(archive)], str(output))
    assert _content(output) == {}, "a run that was stopped leaves nothing"

    report = compact(spark, [str(archive)], str(output), target_bytes=30_000)
    assert (report.journals, report.events) == (_SMALL + 5, _SMALL + 18 + 2 + 2 + 1)
    assert (report.kept, report.removed) == (0, 0)
    assert _content(archive) == before
    names = sorted(path.name for path in output.iterdir())
    assert len(names) == report.files
    segments = [name for name in names if is_segment_name(name)]
    assert [name for name in names if name not in segments] == [large.name]
    assert len(segments) > 2
    assert sum(len(list_segment(output / name)) for name in segments) == _SMALL + 4
    assert _changes(spark, output) == _changes(spark, archive)

    written = _content(output)
    (output / segments[0]).unlink()
    again = compact(spark, [str(archive)], str(output), target_bytes=30_000)
    assert again.kept == again.files - 1
    assert _content(output) == written, "the same journals make the same files"
    with zipfile.ZipFile(output / segments[0], "a") as damaged:
        damaged.writestr("more", b"")
    with pytest.raises(ReplayError, match=f"{segments[0]} is there already and holds something"):
        compact(spark, [str(archive)], str(output), target_bytes=30_000)


def test_parquet_holds_all_changes(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    report = compact(spark, [str(archive)], str(output), output_format="parquet")
    assert "all was read back and compared" in list(describe(report, str(output)))
    read = spark.read.parquet(str(output))
    columns = spark.read.format("firebird_journal").load(str(archive)).columns
    assert sorted(read.columns) == sorted(columns)
    wanted = [name for name in columns if name != "file"]
    assert Counter(tuple(row) for row in read.select(wanted).collect()) == _changes(spark, archive)
    # Any other reader sees the same: the order of the history, and the database by its folder.
    table = pyarrow.dataset.dataset(output, partitioning="hive").to_table()
    assert set(table["database"].to_pylist()) == {"/data/shop.fdb", _OTHER}
    for database in ("/data/shop.fdb", _OTHER):
        rows = table.filter(pyarrow.compute.equal(table["database"], database)).to_pylist()
        places = [(row["epoch"], row["sequence"], row["position"]) for row in rows]
        assert places == sorted(places)


def test_originals_go_once_all_is_verified(
    spark: SparkSession, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = tmp_path / "archive", tmp_path / "out"
    shutil.copytree(archive, folder)
    (folder / "notes.txt").write_text("of the operator")
    before = _changes(spark, folder)
    report = compact(spark, [str(folder)], str(output), remove=True)
    assert report.removed == len(list(archive.iterdir()))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert _changes(spark, output) == before
    _keep(output)
    assert _changes(spark, output) == before, "the archive's keeper leaves it as it is"


_UNDONE = b"was rolled back"


def _fill(history: History) -> None:
    columns = (column("ID", Storage.INTEGER, key=1), column("NAME", Storage.TEXT))
    history.define("T", columns)
    for number in range(_SMALL):
        history.commit(("c", "T", None, (number, f"row {number}")))
        if number == _SMALL // 3:
            _close(history)
            _keep(history.folder, 1)
    history.epoch = 1  # two processes go on in what they have open
    for number in range(_SMALL):
        history.commit(
            ("u", "T", (number, f"row {number}"), (number, None)), ("gap", "x", None, None)
        )
    _close(history, 1)
    wide = "x" * 60_000
    history.commit(*(("c", "T", None, (1000 + n, wide)) for n in range(20)))
    _close(history)


def _close(history: History, per_journal: int = SharedHistory.per_journal) -> None:
    if isinstance(history, SharedHistory):
        history.close()
        history.per_journal = per_journal


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same history in journals with one transaction each, and in some that transactions share:
    a few in segments, two that go on in another epoch, and a large one."""
    single, shared = (tmp_path_factory.mktemp(name) / "archive" for name in ("single", "shared"))
    _fill(History(single))
    _fill(SharedHistory(shared))
    assert list(shared.glob("*.zip"))
    return single, shared


def test_shared_journals_make_segments_with_the_same_history(
    spark: SparkSession, sharing: tuple[Path, Path], tmp_path: Path
) -> None:
    single, shared = sharing
    before, output, again = _content(shared), tmp_path / "out", tmp_path / "again"
    report = compact(spark, [str(shared)], str(output), target_bytes=1000)
    expected = compact(spark, [str(single)], str(tmp_path / "single"), target_bytes=10_000)
    assert (report.journals, report.events) == (expected.journals, expected.events)
    assert (report.journals, report.events) == (2 * _SMALL + 1, 3 * _SMALL + 20)
    assert _content(shared) == before
    assert _changes(spark, output) == _changes(spark, single)
    alone = {path.name for path in output.glob("*.log")}
    assert len(alone) == 3, "a large one, and two in two epochs"
    segments = {path: list_segment(path) for path in output.glob("*.zip")}
    packed = [name for members in segments.values() for name, _ in members]
    assert sorted([*packed, *alone]) == sorted(_journals(shared))
    assert len(segments) > 2
    for path, members in segments.items():
        numbers = []
        with zipfile.ZipFile(path) as segment:
            for name, _ in members:
                content = segment.read(name)
                assert _UNDONE not in content
                with SharedJournal(name, content) as journal:
                    numbers += [place.stamp.number for place in journal.places]
        _, epoch, first, last = path.stem.split("-")
        assert (min(numbers), max(numbers)) == ((int(epoch), int(first)), (int(epoch), int(last)))

    merged = compact(spark, [str(output)], str(again), remove=True)
    assert merged.journals == report.journals
    assert merged.removed == report.files
    assert not list(output.iterdir())
    assert merged.files == 3 + 2, "a segment for each epoch"
    assert sorted(_journals(again)) == sorted([*packed, *alone])
    assert _changes(spark, again) == _changes(spark, single)
    kept = compact(spark, [str(shared)], str(again))
    assert (kept.files, kept.kept) == (merged.files, merged.files), "the same bytes, however packed"


def _journals(folder: Path) -> list[str]:
    inside = [name for path in folder.glob("*.zip") for name, _ in list_segment(path)]
    return [*inside, *(path.name for path in folder.glob("*.log"))]


def test_shared_journals_make_the_parquet_of_single_ones(
    spark: SparkSession, sharing: tuple[Path, Path], tmp_path: Path
) -> None:
    tables = []
    for folder in sharing:
        output = tmp_path / folder.parent.name
        report = compact(spark, [str(folder)], str(output), output_format="parquet")
        assert (report.journals, report.files) == (2 * _SMALL + 1, 2)
        files = {path.name: path for path in output.rglob("*.parquet")}
        read = pyarrow.parquet.read_table
        tables.append({name: read(path).drop(["file"]) for name, path in files.items()})
    assert tables[0] == tables[1]


def test_shared_journals_go_once_all_of_each_is_verified(
    spark: SparkSession, sharing: tuple[Path, Path], tmp_path: Path
) -> None:
    _, shared = sharing
    folder, output = tmp_path / "archive", tmp_path / "out"
    shutil.copytree(shared, folder)
    hurt = next(path for path in sorted(folder.glob("*.log")) if path.stat().st_size < SMALL_BYTES)
    with SharedJournal(hurt) as journal:
        place = journal.places[-1]
    flip(hurt, place.offset + place.seal_end - 5)
    before = _content(folder)
    for output_format in ("segments", "parquet"):
        with pytest.raises(ReplayError, match=f"{hurt.name}/{place.uuid}.log"):
            compact(spark, [str(folder)], str(output), output_format=output_format, remove=True)
        assert _content(folder) == before
        assert not output.exists()
    flip(hurt, place.offset + place.seal_end - 5)
    report = compact(spark, [str(folder)], str(output), output_format="parquet", remove=True)
    assert report.removed == len(before)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("fault", ["damaged", "doubled", "twice", "live", "same", "empty"])
def test_refuses_by_name_and_changes_nothing(
    spark: SparkSession, tmp_path: Path, fault: str
) -> None:
    history = History(tmp_path / "archive")
    history.define("T", (column("ID", Storage.INTEGER, key=1),))
    output, says = tmp_path / "out", "; move one of them away"
    paths = [history.commit(("c", "T", None, (number,))) for number in range(3)]
    if fault == "damaged":
        content = bytearray(paths[1].read_bytes())
        content[-600] ^= 1
        paths[1].write_bytes(content)
        says = paths[1].name
    elif fault == "doubled":
        paths.append(history.write(2, ("c", "T", None, (9,))))
        says = "sequence number 2 of epoch 0 of /data/shop.fdb is given to 2 files"
    elif fault == "twice":
        shutil.copy(paths[0], paths[0].with_name("00000000-0000-4000-8000-000000000000.log"))
        says = "00000000-0000-4000-8000-000000000000.log: holds journal"
    elif fault == "live":
        (history.folder / STATE_DIRECTORY).mkdir()
        says = "is a shipper's journal folder"
    elif fault == "same":
        output, says = history.folder, "is read from; give --output another folder"
    else:
        for path in paths:
            path.unlink()
        says = "holds no journal"
    before = _content(history.folder)
    with pytest.raises(ReplayError, match=says):
        compact(spark, [str(history.folder)], str(output), remove=True)
    assert _content(history.folder) == before
    assert output == history.folder or not output.exists()


def test_digest_of_a_table_does_not_depend_on_batches() -> None:
    rows = [{"a": None, "n": 1}, {"a": "", "n": None}, {"a": "äb", "n": -1}, {"a": "c", "n": 0}]
    schema = pyarrow.schema([("a", "string"), ("n", "int64")])
    table = pyarrow.Table.from_pylist(rows, schema)

    def digest(size: int, of: pyarrow.Table = table) -> str:
        made = room._TableDigest()
        for batch in of.to_batches(size):
            made.update(batch)
        return made.result()

    assert len({digest(size) for size in (1, 2, 3, 4)}) == 1
    changed = [json.loads(json.dumps(rows)) for _ in range(3)]
    changed[0][0]["a"], changed[1][2]["a"], changed[1][3]["a"] = "", "ä", "bc"
    changed[2][1]["n"] = 0
    others = {digest(4, pyarrow.Table.from_pylist(each, schema)) for each in changed}
    assert len(others | {digest(4)}) == 4


def test_reads_from_and_writes_to_an_object_store(tmp_path: Path) -> None:
    history = History(tmp_path / "archive")
    history.define("T", (column("ID", Storage.INTEGER, key=1),))
    paths = [history.commit(("c", "T", None, (number,))) for number in range(3)]
    facts = [
        {"length": reader.stamp.journal_length, "events": 1, "sequence": reader.stamp.sequence}
        | {"transactions": 1, "last": reader.stamp.sequence, "commit_us": reader.stamp.commit_us}
        for path in paths
        for reader in [JournalReader(path)]
        if reader.stamp is not None
    ]
    with credentials(), running_store() as store:
        store.upload(history.folder, "bucket/archive")
        source, output = store.url("bucket/archive"), store.url("bucket/out")
        place = open_folder(source).place
        keys = {"database": "/data/shop.fdb", "epoch": 0, "alone": False}
        keys |= {"by_bytes": 0, "by_number": 0, "by_itself": None}
        rows = [
            Row(**keys, **fact, file=place(path.name))
            for path, fact in zip(paths, facts, strict=True)
        ]
        target = room._Target(output)
        target.make()
        for kind in ("segments", "parquet"):
            job = room._Job((source,), output, kind, "UTF-8")
            (made,) = room._work(rows, job)
            assert made.part is not None
            target.name(made.part, made.target)
            target.remove_parts()
            (again,) = room._work(rows, job)
            assert again == made._replace(part=None)
            target.remove_parts()
        folder = open_folder(output)
        (segment,) = [entry.name for entry in folder.entries()]
        assert [name for name, _ in folder.members(segment)] == [path.name for path in paths]
        whole = paths[1].read_bytes()[: facts[1]["length"]]
        assert folder.read(f"{segment}/{paths[1].name}") == whole
        parquet = pyarrow.dataset.dataset(
            "bucket/out", filesystem=store.system(), partitioning="hive", format="parquet",
            exclude_invalid_files=True,
        )  # fmt: skip
        assert parquet.to_table()["sequence"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("alone", [False, True])
def test_shared_journal_is_read_from_and_written_to_an_object_store(
    tmp_path: Path, alone: bool
) -> None:
    history = SharedHistory(tmp_path / "archive")
    history.define("T", (column("ID", Storage.INTEGER, key=1),))
    for number in range(10):
        history.commit(("c", "T", None, (number,)))
    history.close()
    path = history.paths[0]
    with SharedJournal(path) as journal:
        stamps = [place.stamp for place in journal.places]
        packed = path.read_bytes() if alone else journal.without_undone()
    with credentials(), running_store() as store:
        store.upload(history.folder, "bucket/archive")
        source, output = store.url("bucket/archive"), store.url("bucket/out")
        row = Row(
            database="/data/shop.fdb", epoch=0, alone=alone, by_bytes=0, by_number=0,
            by_itself=path.name if alone else None,
            file=open_folder(source).place(path.name), transactions=len(stamps),
            length=sum(stamp.journal_length for stamp in stamps), events=len(stamps),
            sequence=stamps[0].sequence, last=stamps[-1].sequence,
            commit_us=stamps[-1].commit_us,
        )  # fmt: skip
        target = room._Target(output)
        target.make()
        job = room._Job((source,), output, "segments", "UTF-8")
        (made,) = room._work([row], job)
        assert (made.journals, made.events) == (len(stamps), len(stamps))
        assert made.part is not None
        target.name(made.part, made.target)
        place = made.target if alone else f"{made.target}/{path.name}"
        assert open_folder(output).read(place) == packed
        less = Row(**row.asDict() | {"transactions": len(stamps) + 1})
        with pytest.raises(ReplayError, match=f"{path.name} has changed during the run"):
            list(room._work([less], job))
