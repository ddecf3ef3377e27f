"""Folders of journals on a disk and in an object store read the same; others are refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from histories import History, column
from object_store import CREDENTIALS, ObjectStore, credentials, running_store
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from firebird_cdc.errors import JournalCorrupt, ReplayError
from firebird_cdc.journal.folder.segments import close_segments
from firebird_cdc.journal.format import Blob, RowChange, Storage
from firebird_cdc.journal.replay.source.storage import Folder, open_folder
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """An S3 server with our credentials in the environment."""
    with credentials(), running_store() as running:
        yield running


def _folder(folder: Path) -> History:
    history = History(folder)
    columns = (column("ID", Storage.INTEGER, key=1), column("NOTE", Storage.BLOB))
    history.define("T", columns)
    for number in range(3):
        history.commit(("c", "T", None, (number, None)))
    return history


def _names(folder: Folder) -> list[str]:
    return sorted(entry.name for entry in folder.entries())


def test_local_paths_and_file_uris_name_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my journals"
    history = _folder(folder)
    monkeypatch.chdir(tmp_path)
    urls = [str(folder), "my journals", f"{folder}/", folder.as_uri(), f"file:{folder}"]
    for url in urls:
        opened = open_folder(url)
        assert _names(opened) == sorted(path.name for path in history.paths)
        assert {entry.size for entry in opened.entries()} == {history.paths[0].stat().st_size}
        with opened.journal(history.paths[0].name) as reader:
            assert str(reader.path) == str(history.paths[0])
        assert opened.read(history.paths[1].name) == history.paths[1].read_bytes()


def test_store_reads_as_the_disk_does(tmp_path: Path, store: ObjectStore) -> None:
    history = _folder(tmp_path)
    ArchiveKeeper(tmp_path, 1, Retention(0, 0), Statistics()).look()
    segments = [path.name for path in tmp_path.glob("*.zip")]
    _folder(tmp_path)  # the same journals again, one by one
    store.upload(tmp_path, "bucket/journals")
    local = open_folder(str(tmp_path))
    remote = pickle.loads(pickle.dumps(open_folder(store.url("bucket/journals"))))
    assert _names(remote) == _names(local)
    members = {}
    for segment in segments:
        assert remote.members(segment) == local.members(segment)
        members |= {name: segment for name, _ in local.members(segment)}
    assert sorted(members) == sorted(path.name for path in history.paths)
    for name, segment in members.items():
        for place in (name, f"{segment}/{name}"):
            with remote.journal(place) as there, local.journal(place) as here:
                assert list(there.changes()) == list(here.changes())
                assert there.database == here.database
    close_segments()
    with pytest.raises(FileNotFoundError):
        remote.journal("none.log")
    with pytest.raises(FileNotFoundError):
        remote.journal(f"{segments[0]}/none.log")
    close_segments()
    with store.system().open_output_stream("bucket/journals/foreign.log") as stream:
        stream.write(b"no journal")
    with pytest.raises(JournalCorrupt, match=r"^s3://bucket/journals/foreign.log at byte 0: "):
        remote.journal("foreign.log")


def test_blob_of_a_store_is_read_again_after_its_reader_is_closed(
    tmp_path: Path, store: ObjectStore
) -> None:
    from firebird_cdc.journal.format import JournalWriter

    path = tmp_path / "j.log"
    content = bytes(range(256)) * 9000  # more than one request brings
    with JournalWriter(path) as writer:
        table = writer.table("T", (column("NOTE", Storage.BLOB),))
        writer.insert(table, (writer.blob(content),))
        writer.seal()
    store.upload(tmp_path, "bucket/blob")
    with open_folder(store.url("bucket/blob")).journal("j.log") as reader:
        (change,) = reader.changes()
    assert isinstance(change, RowChange)
    assert change.after is not None
    (blob,) = change.after
    assert isinstance(blob, Blob)
    assert blob.read() == content


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/journals", r"the scheme ftp: is not one .* file:, hdfs: or s3:"),
        ("s3a://bucket/journals", r"the scheme s3a: is not one"),
        ("file:journals", "give a file: URI an absolute path"),
        ("/no/such/folder", "No such file or directory"),
        (__file__, "Not a directory"),
    ],
)
def test_unreadable_folder_is_refused_by_name(url: str, says: str) -> None:
    with pytest.raises(ReplayError, match=says) as refused:
        open_folder(url)
    assert url in str(refused.value)


def test_credentials_in_a_path_are_refused_and_not_repeated() -> None:
    with pytest.raises(ReplayError, match="must not hold credentials") as refused:
        open_folder("s3://some-key:some-secret@bucket/journals")
    assert "some-" not in str(refused.value)


def test_absent_bucket_and_folder_of_a_store_are_named(store: ObjectStore) -> None:
    store.system().create_dir("bucket")
    for folder in ("bucket/absent", "no-such-bucket/journals"):
        with pytest.raises(ReplayError, match=f"s3://{folder}") as refused:
            open_folder(store.url(folder))
        assert not any(value in str(refused.value) for value in CREDENTIALS.values())


def test_spark_reads_a_store_and_shows_no_credentials(
    spark: SparkSession, tmp_path: Path, store: ObjectStore, capfd: pytest.CaptureFixture[str]
) -> None:
    """Journals by themselves and in segments, one of them cut into several tasks."""
    history = _folder(tmp_path)
    ArchiveKeeper(tmp_path, 1, Retention(0, 0), Statistics()).look()
    history.define("BIG", (column("ID", Storage.INTEGER, key=1), column("NOTE", Storage.TEXT)))
    history.commit(*(("c", "BIG", None, (n, "x" * 1000)) for n in range(3000)))
    store.upload(tmp_path, "bucket/spark")
    options = {"partitionBytes": 500_000, "minPartitions": 2}
    reader = spark.read.format("firebird_journal").options(**options)
    changes = reader.load(store.url("bucket/spark"))
    assert changes.rdd.getNumPartitions() > 3
    rows = changes.groupBy("table").agg(F.count("*"), F.countDistinct("key"), F.min("file"))
    found = {row[0]: tuple(row[1:]) for row in rows.toLocalIterator()}
    assert found["BIG"][:2] == (3000, 3000)
    assert found["T"][:2] == (3, 3)
    assert found["BIG"][2] == f"s3://bucket/spark/{history.paths[-1].name}"
    changes.explain("extended")
    output = capfd.readouterr()
    said = output.out + output.err
    assert "firebird_journal" in said
    assert not any(value in said for value in list(CREDENTIALS.values())[:2])
    with pytest.raises(PySparkException, match="the scheme ftp: is not one"):
        reader.load("ftp://host/journals").count()
