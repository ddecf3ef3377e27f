"""Journals against topics where names are not ASCII, and where one table has no topic."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from histories import History, column
from pyspark.sql import SparkSession
from soaked import few_of

from firebird_cdc.config import load_config
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.events.topics import SHARED_TOPICS
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.audit.input import open_input
from firebird_cdc.journal.replay.audit.kafka.against_kafka import compare
from firebird_cdc.journal.shipper import loop

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DATABASE = "/data/склад.fdb"
ORDERS, GOODS = "Заказы", "Товары"
T = (column("ID", Storage.INTEGER, key=1), column("N", Storage.INTEGER))


NAMED = {
    "replace": ("replace", False),
    "replace, read elsewhere": ("replace", True),
    "transliterate": ("transliterate", False),
    "escape": ("escape", False),
}


@pytest.mark.parametrize(
    ("encoding", "elsewhere"), few_of(NAMED, ("replace, read elsewhere", "transliterate"))
)
def test_each_task_finds_the_topics_that_the_shipper_chose(
    spark: SparkSession,
    broker: KafkaBroker,
    tmp_path: Path,
    topic_prefix: str,
    encoding: str,
    elsewhere: bool,
) -> None:
    """Though the task that reads only the later table's journal can't see who came first."""
    file = tmp_path / "connector.yaml"
    file.write_text(
        f"connector.name: audited\nconnector.journal.directory: {tmp_path / 'journals'}\n"
        f"connector.journal.archive.directory: {tmp_path / 'archive'}\n"
        f"kafka.producer.bootstrap.servers: {broker.bootstrap}\n"
        f"kafka.topic.prefix: {topic_prefix}\n"
        f"topic.name.encoding: {encoding}\n"
    )
    (tmp_path / "archive").mkdir(mode=0o700)
    history = History(tmp_path / "journals", database=DATABASE)
    for table in (ORDERS, GOODS):
        history.define(table, T)
    history.commit(("c", ORDERS, None, (1, 1)))
    history.commit(("c", GOODS, None, (1, 1)))
    history.commit(("u", GOODS, (1, 1), (1, 2)), ("c", ORDERS, None, (2, 1)))
    config = load_config(file)
    assert loop.Shipper(config, once=True).run() == (1 if encoding == "replace" else 0)
    if elsewhere:  # a host that has the list of the tables, and nothing else of the journal folder
        state = tmp_path / "elsewhere" / STATE_DIRECTORY
        state.mkdir(parents=True)
        shutil.copy(config.journal_directory / STATE_DIRECTORY / SHARED_TOPICS, state)
        config = replace(config, journal_directory=state.parent)
    folders = [str(tmp_path / "archive"), str(tmp_path / "journals/.firebird-cdc/quarantine")]
    changes = open_input(spark, folders[: 2 if encoding == "replace" else 1], partition_bytes=2000)
    try:
        comparison = compare(spark, changes, config, consumer_properties={})
        found = [(row["kind"], row["sequence"]) for row in comparison.findings.collect()]
    finally:
        changes.close()
    aside = [("quarantined", 2), ("quarantined", 3)] if encoding == "replace" else []
    assert sorted(found) == aside
    assert comparison.counts["messages in the topics"] == (2 if encoding == "replace" else 4)
