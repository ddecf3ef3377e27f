"""Rows that snapshots read, in an audit of topics: they are no findings, and planted faults are."""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(1, str(Path(__file__).parents[1] / "snapshots"))

from pyspark.sql import Row, SparkSession
from snapshot_scene import PATIENCE_S, SnapshotScene
from topic_faults import Raw, rewrite

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import Stack, await_condition
from firebird_cdc.journal.replay.audit.findings import Comparison
from firebird_cdc.journal.replay.audit.input import open_input
from firebird_cdc.journal.replay.audit.kafka.against_kafka import compare

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.engine]

ROWS = 48
LAST = 999
"""The key that is inserted last, when all else is in Kafka."""


def _update(scene: SnapshotScene, *changes: tuple[int, str]) -> None:
    for key, name in changes:
        scene.attachment.script(f"UPDATE ITEM SET NAME = '{name}' WHERE ID = {key}")


def _keep_archive(scene: SnapshotScene, **options: str) -> None:
    archive = scene.directory / "archive"
    archive.mkdir(mode=0o700)
    scene.configure(
        snapshot_mode="initial", connector_journal_archive_directory=str(archive), **options
    )


def _play(scene: SnapshotScene) -> None:
    """Rows from before the publication, changes that an initial snapshot has in its rows, changes
    behind it, and an incremental snapshot between them."""
    _keep_archive(scene, incremental_snapshot_chunk_size="10")
    _update(scene, (1, "seen"), (6, "seen"))
    scene.attachment.script(
        "DELETE FROM ITEM WHERE ID = 2",
        "INSERT INTO ITEM (ID, NAME) VALUES (500, 'seen')",
        "INSERT INTO KEYLESS VALUES (500, 'seen')",
    )
    scene.start()
    scene.ended()
    _update(scene, (3, "first"), (4, "first"), (5, "first"), (6, "first"), (6, "second"))
    scene.attachment.script("INSERT INTO KEYLESS VALUES (501, 'behind')")
    scene.snapshot("execute", "--follow", f"{scene.database}.ITEM")
    _update(scene, (3, "last"), (7, "last"))
    scene.attachment.script(
        "DELETE FROM ITEM WHERE ID = 8",
        f"INSERT INTO ITEM (ID, NAME) VALUES ({LAST}, 'last')",
    )
    await_condition("all journals to be shipped", scene.shipped, PATIENCE_S)
    scene.stop()


@contextmanager
def _played(
    folder: Path, broker: KafkaBroker, prefix: str, *, is_transactional: bool = True
) -> Iterator[SnapshotScene]:
    with Stack(folder) as stack:
        scene = SnapshotScene(folder, stack, broker, prefix, is_transactional, rows=ROWS)
        try:
            _play(scene)
            yield scene
        finally:
            scene.end()


def _compare(spark: SparkSession, scene: SnapshotScene) -> tuple[Comparison, list[Row]]:
    from firebird_cdc.config import load_config

    config = load_config(scene.capture.config)
    changes = open_input(spark, [str(config.journal_archive_directory)])
    try:
        comparison = compare(spark, changes, config, consumer_properties={})
        return comparison, comparison.findings.collect()
    finally:
        changes.close()


class Messages:
    """The messages of ITEM in their order, to plant faults among them."""

    def __init__(self, raws: list[Raw]) -> None:
        self.raws = raws
        marks = [self.event(at)["source"]["snapshot"] for at in range(len(raws)) if raws[at].value]
        assert set(marks) > {"false", "first", "true", "incremental"}

    def event(self, at: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raws[at].value or b"")
        return found

    def find(self, key: int, mark: str, name: str | None = None) -> int:
        """Return the place of the event of KEY with this ``source.snapshot`` and NAME."""
        (found,) = (
            at
            for at, raw in enumerate(self.raws)
            if raw.key is not None and raw.value is not None and json.loads(raw.key) == {"ID": key}
            for event in [self.event(at)]
            if event["source"]["snapshot"] == mark
            and (name is None or event["after"]["NAME"] == name)
        )
        return found

    def put(self, at: int, event: dict[str, Any]) -> None:
        """Have EVENT in the place of another one."""
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()
        self.raws[at] = self.raws[at]._replace(value=text)

    def rename(self, key: int, name: str) -> None:
        """Give the row that the incremental snapshot read another content."""
        at = self.find(key, "incremental")
        event = self.event(at)
        event["after"]["NAME"] = name
        self.put(at, event)

    def move(self, at: int, to: int) -> None:
        """Move a message behind another one that is behind it, or before one that is before it."""
        self.raws.insert(to, self.raws.pop(at))


def _lost(messages: Messages) -> None:
    del messages.raws[messages.find(20, "incremental")]


def _doubled(messages: Messages) -> None:
    at = messages.find(21, "incremental")
    messages.raws.insert(at, messages.raws[at])


def _key_doubled(messages: Messages) -> None:
    at = messages.find(22, "incremental")
    window = messages.event(at)["source"]["journal"]
    events = [messages.event(each) for each, raw in enumerate(messages.raws) if raw.value]
    last = max(e["source"]["pos"] for e in events if e["source"]["journal"] == window)
    event = messages.event(at)
    event["source"]["pos"] = last + 1
    messages.raws.insert(at + 1, messages.raws[at])
    messages.put(at + 1, event)


def _behind_newer(messages: Messages) -> None:
    messages.move(messages.find(3, "incremental"), messages.find(3, "false", "last"))


def _before_older(messages: Messages) -> None:
    messages.move(messages.find(4, "incremental"), messages.find(4, "false", "first"))


def _altered(messages: Messages) -> None:
    messages.rename(5, "nobody wrote this")


def _older_content(messages: Messages) -> None:
    messages.rename(6, "first")


def _altered_before_the_first_change(messages: Messages) -> None:
    messages.rename(7, "nobody wrote this")


def _gone_row(messages: Messages) -> None:
    """A row that was deleted before the snapshot is there all the same."""
    at = messages.find(23, "incremental")
    event = messages.event(at)
    event["after"]["ID"] = 2
    messages.put(at, event)
    messages.raws[at] = messages.raws[at]._replace(key=b'{"ID":2}')


def _send_left_out(messages: Messages, seen: Row) -> None:
    """Have a change in the topic that the initial snapshot has in its rows."""
    at = messages.find(3, "false", "first")
    event = messages.event(at)
    event["after"]["ID"] = 1
    event["source"] |= {"journal": seen["journal"], "pos": seen["position"], "txId": 4711}
    messages.raws.append(messages.raws[at]._replace(key=b'{"ID":1}'))
    messages.put(-1, event)


FAULTS: dict[Callable[[Messages], None], tuple[str, int | None]] = {
    _lost: ("missing read", None),
    _doubled: ("doubled read", 21),
    _key_doubled: ("doubled read", 22),
    _behind_newer: ("misplaced read", 3),
    _before_older: ("misplaced read", 4),
    _altered: ("altered read", 5),
    _older_content: ("misplaced read", 6),
    _altered_before_the_first_change: ("altered read", 7),
    _gone_row: ("misplaced read", 2),
}


@pytest.fixture(scope="module")
def audits(
    tmp_path_factory: pytest.TempPathFactory, _spark_session: SparkSession, broker: KafkaBroker
) -> dict[str, tuple[Comparison, list[Row]]]:
    """Of topics as they were shipped, and with all faults planted, and what was left out sent."""
    folder = tmp_path_factory.mktemp("snapshots")
    found = {}
    with _played(folder, broker, f"t{uuid.uuid4().hex[:12]}") as scene:
        found["intact"] = _compare(_spark_session, scene)
        shutil.rmtree(scene.capture.journal_directory / ".firebird-cdc" / "snapshots")
        found["by the topic"] = _compare(_spark_session, scene)

        archive = str(scene.directory / "archive")
        changes = _spark_session.read.format("firebird_journal").load(archive)
        (seen,) = changes.where("""operation = 'u' and key = '{"ID":1}'""").collect()

        def plant(raws: list[Raw]) -> list[Raw]:
            messages = Messages(raws)
            for change in FAULTS:
                change(messages)
            _send_left_out(messages, seen)
            return messages.raws

        def drop_last(raws: list[Raw]) -> list[Raw]:
            assert json.loads(raws[-1].value or b"")["source"]["snapshot"] == "last"
            return raws[:-1]

        stem = f"{scene.prefix}.{scene.database.replace('/', '_')}"
        rewrite(broker.bootstrap, {f"{stem}.ITEM": plant, f"{stem}.PAIR": drop_last})
        found["planted"] = _compare(_spark_session, scene)
    return found


@pytest.mark.parametrize("name", ["intact", "by the topic"])
def test_rows_and_what_they_stand_for_are_no_findings(
    audits: dict[str, tuple[Comparison, list[Row]]], name: str
) -> None:
    """Take the folder for it, or the offset topic alone."""
    comparison, findings = audits[name]
    assert findings == []
    assert comparison.counts["rows of snapshots"] > 2 * ROWS
    assert comparison.counts["messages matched"] == comparison.counts["messages in the topics"]
    assert not comparison.notes
    assert any("rows that snapshots read, in" in text for text in comparison.proven)


@pytest.mark.parametrize("fault", FAULTS, ids=[each.__name__[1:] for each in FAULTS])
def test_planted_fault_is_found_alone_and_named(
    audits: dict[str, tuple[Comparison, list[Row]]], fault: Callable[[Messages], None]
) -> None:
    comparison, findings = audits["planted"]
    kind, key = FAULTS[fault]
    text = None if key is None else f'{{"ID":{key}}}'
    (row,) = [each for each in findings if (each["table"], each["key"]) == ("ITEM", text)]
    assert row["kind"] == kind
    assert row["what"]
    assert comparison.kinds[kind].is_fault


def test_rows_that_are_lost_at_the_end_are_missed_by_their_number(
    audits: dict[str, tuple[Comparison, list[Row]]],
) -> None:
    _, findings = audits["planted"]
    (row,) = [each for each in findings if each["table"] == "PAIR"]
    assert row["kind"] == "missing read"
    assert "snapshots have sent 12 rows" in row["what"]
    assert len(findings) == len(FAULTS) + 2


def test_change_that_the_initial_snapshot_has_must_not_be_there(
    audits: dict[str, tuple[Comparison, list[Row]]],
) -> None:
    _, findings = audits["planted"]
    (row,) = [each for each in findings if each["kind"] == "unknown event"]
    assert row["key"] == '{"ID":1}'
    assert "the initial snapshot has it in its rows" in row["what"]


def test_snapshots_beside_writers_are_no_findings(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    with Stack(tmp_path) as stack:
        scene = SnapshotScene(tmp_path, stack, broker, topic_prefix, True, rows=500)
        try:
            _keep_archive(scene)
            scene.write()
            await_condition("changes before the snapshot", lambda: scene.written > 20, PATIENCE_S)
            scene.start()
            scene.ended()
            tables = f"{scene.database}[.].*"
            for kind in ([], ["--blocking"]):
                scene.snapshot("execute", *kind, "--follow", tables)
            await_condition("enough changes", lambda: scene.written > 100, PATIENCE_S)
            scene.rest()
            await_condition("all journals to be shipped", scene.shipped, PATIENCE_S)
            scene.stop()
            comparison, findings = _compare(spark, scene)
        finally:
            scene.end()
    assert findings == []
    assert comparison.counts["rows of snapshots"] > 3 * 500
    assert comparison.counts["messages matched"] > 50


def test_without_a_transactional_id_the_folder_tells_what_was_left_out(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    with _played(tmp_path, broker, topic_prefix, is_transactional=False) as scene:
        _, findings = _compare(spark, scene)
        assert findings == []
        shutil.rmtree(scene.capture.journal_directory / ".firebird-cdc" / "snapshots")
        comparison, findings = _compare(spark, scene)
    assert {row["kind"] for row in findings} == {"missing event"}
    assert len(findings) == 5  # a delete has a tombstone, which is one finding with it
    (note,) = comparison.notes
    assert "nor the offset topic tells of its snapshots" in note
