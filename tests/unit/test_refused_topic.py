"""For which topic Kafka has refused a transaction, as only the client's own lines tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from firebird_cdc.config import load_config
from firebird_cdc.journal.shipper.kafka.client import KafkaLink, librdkafka_logger
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_LINE = (
    "ADDPARTS [firebird-cdc-p#producer-8] [thrd:main]: TxnCoordinator/1: Failed to add partition"
    ' "{}" [0] to transaction: Broker: {}'
)
REFUSED = _LINE.format("p._srv_a.fdb.ITEM", "Topic authorization failed")
BESIDE = _LINE.format("__firebird-cdc-positions.p", "Operation not attempted")


@pytest.mark.parametrize("lines", [[REFUSED], [REFUSED, BESIDE], [BESIDE, REFUSED]])
def test_refused_topic_is_distinguished_from_other_topics_in_the_log(
    tmp_path: Path, lines: list[str]
) -> None:
    path = tmp_path / "connector.yaml"
    path.write_text(
        f"connector.name: n\nconnector.journal.directory: {tmp_path}\nkafka.topic.prefix: p\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\n"
    )
    link = KafkaLink(load_config(path), Statistics())
    for line in lines:
        librdkafka_logger().error(line)
    assert link.take_refused_topic() == "p._srv_a.fdb.ITEM"
    assert link.take_refused_topic() == ""
