"""A stream of journals: each one once and in order, over restarts, packing and missing numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import History, column
from pyspark.sql import SparkSession

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.source.changes import CHANGE_COLUMNS
from firebird_cdc.journal.replay.source.streaming import JournalStreamReader, Offset, StreamOptions
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention

pytestmark = pytest.mark.spark

_COLUMNS = tuple(name for name, _ in CHANGE_COLUMNS)


def _history(folder: Path, journals: int, **more: object) -> History:
    history = History(folder, **more)  # type: ignore[arg-type]
    history.define("T", (column("ID", Storage.INTEGER, key=1),))
    for _ in range(journals):
        _commit(history)
    return history


def _commit(history: History, *, skip_number: bool = False) -> None:
    history.commit(("c", "T", None, (history.sequence + 1,)), skip_number=skip_number)


def _reader(*folders: Path, **options: object) -> JournalStreamReader:
    given = {name: str(value) for name, value in options.items()}
    paths = json.dumps([str(folder) for folder in folders])
    return JournalStreamReader(StreamOptions.parse({"paths": paths, **given}), _COLUMNS)


def _batch(reader: JournalStreamReader, start: Offset) -> tuple[Offset, list[tuple[str, int]]]:
    """Go on from START as Spark does; return the new offset and what the batch has."""
    end = reader.latestOffset()
    rows = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns = batch.to_pydict()
            rows += zip(columns["operation"], columns["sequence"], strict=True)
    reader.commit(end)
    return end, rows


def _created(*numbers: int) -> list[tuple[str, int]]:
    return [("c", number) for number in numbers]


def test_stream_goes_on_from_its_checkpoint_with_each_journal_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    history = _history(live, 5)
    archive.mkdir()

    def run() -> None:
        stream = (
            spark.readStream.format("firebird_journal")
            .option("maxJournalsPerTrigger", 2)
            .option("missingAfter", 0)
            .schema("sequence bigint, operation string, key string, reason string")
            .option("paths", json.dumps([str(live), str(archive)]))
            .load()
        )
        writer = stream.writeStream.format("parquet").outputMode("append")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
            str(tmp_path / "sink")
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def sunk() -> list[tuple[object, ...]]:
        rows = spark.read.parquet(str(tmp_path / "sink")).orderBy("sequence")
        return [tuple(row) for row in rows.toLocalIterator()]

    run()
    first = [(number, "c", f'{{"ID":{number}}}', None) for number in range(1, 6)]
    assert sunk() == first
    for path in history.paths:
        path.rename(archive / path.name)
    ArchiveKeeper(archive, 1, Retention(0, 0), Statistics()).look()
    assert not list(archive.glob("*.log"))
    _commit(history)
    _commit(history, skip_number=True)
    run()
    reason = "no journal has the sequence numbers 7 to 7 of epoch 0"
    assert sunk() == [
        *first,
        (6, "c", '{"ID":6}', None),
        (7, "missing", None, reason),
        (8, "c", '{"ID":7}', None),
    ]
    batches = list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert len(batches) == 4  # of two journals at most: 2, 2, 1 and then 2


def test_batches_are_bounded_and_in_the_order_of_the_sequence(tmp_path: Path) -> None:
    _history(tmp_path, 3)
    _history(tmp_path, 2, epoch=1)
    _history(tmp_path, 1, database="/data/other.fdb")
    reader = _reader(tmp_path, maxJournalsPerTrigger=4)
    offset, rows = _batch(reader, {})
    assert rows == _created(1, 1, 2, 3)
    assert offset == {
        "/data/other.fdb": {"0": {"first": 1, "last": 1}},
        "/data/shop.fdb": {"0": {"first": 1, "last": 3}},
    }
    offset, rows = _batch(reader, offset)
    assert rows == _created(1, 2)
    assert _batch(reader, offset) == (offset, [])


def test_missing_number_is_waited_for_and_then_reported(tmp_path: Path) -> None:
    history = _history(tmp_path, 2)
    _commit(history, skip_number=True)
    patient = _reader(tmp_path, missingAfter=3600)
    offset, rows = _batch(patient, {})
    assert rows == _created(1, 2)
    assert _batch(patient, offset) == (offset, [])
    with pytest.raises(ReplayError, match="sequence numbers 3 to 3 of epoch 0"):
        _reader(tmp_path, missingAfter=0, onMissingNumber="fail").latestOffset()
    hasty = _reader(tmp_path, missingAfter=0)
    assert hasty.partitions(offset, offset) == []
    assert _batch(hasty, offset)[1] == [*_created(4), ("missing", 3)]
    history.write(3, ("c", "T", None, (3,)))
    assert _batch(patient, offset)[1] == _created(3, 4)


def test_planned_batch_is_read_again_after_a_crash_though_it_was_packed(tmp_path: Path) -> None:
    history = _history(tmp_path, 6)
    reader = _reader(tmp_path, maxJournalsPerTrigger=3)
    offset, _ = _batch(reader, {})
    planned = reader.latestOffset()
    ArchiveKeeper(tmp_path, 2000, Retention(0, 0), Statistics()).look()
    assert not history.paths[3].exists()
    again = _reader(tmp_path, maxJournalsPerTrigger=3)
    rows = [
        number
        for partition in again.partitions(offset, planned)
        for batch in again.read(partition)
        for number in batch.to_pydict()["sequence"]
    ]
    assert rows == [4, 5, 6]
