"""Findings of ``check`` about topics that are not there yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from firebird_cdc.config import load_config
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.packaging.kafka_access import kafka_access

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("lines", "what", "remedy"),
    [
        ((), [], ""),
        (("topic.creation.default.partitions: 3",), [], ""),
        (
            (
                "topic.creation.groups: a",
                "topic.creation.a.include: .*[.]T",
                "topic.creation.a.replication.factor: 3",
            ),
            ["shop_fdb.T is missing and can't be made"],
            "topic.creation.default.replication.factor",
        ),
        (
            ("topic.creation.default.no.such.thing: 1", "include.schema.changes: false"),
            ["__firebird-cdc-positions", "shop_fdb.T is missing and can't be made"],
            "correct the properties of topic.creation",
        ),
    ],
)
def test_topic_check_tries_creation_with_the_configured_settings(
    broker: KafkaBroker,
    topic_prefix: str,
    tmp_path: Path,
    lines: tuple[str, ...],
    what: list[str],
    remedy: str,
) -> None:
    path = tmp_path / "connector.yaml"
    path.write_text(
        f"connector.name: depot\nconnector.journal.directory: {tmp_path}\n"
        f"kafka.producer.bootstrap.servers: {broker.bootstrap}\n"
        f"kafka.topic.prefix: {topic_prefix}\n" + "".join(f"{line}\n" for line in lines)
    )
    found = list(kafka_access(load_config(path), {"/shop_fdb": ["T"]}))
    assert len(found) == len(what), found
    for finding, part in zip(found, what, strict=True):
        assert part in finding.what
        assert remedy in finding.remedy
