"""Lines of the Kafka client: for which topic a transaction was refused, which only they tell, and
passwords that they must not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import logbook
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
    with closing(_link(tmp_path)) as link:
        for line in lines:
            librdkafka_logger().error(line)
        assert link.take_refused_topic() == "p._srv_a.fdb.ITEM"
        assert link.take_refused_topic() == ""


def test_password_of_a_url_is_in_no_line_of_the_log(tmp_path: Path) -> None:
    url = "http://u:a%20secret@127.0.0.1:9/token"
    option = f"kafka.producer.sasl.oauthbearer.token.endpoint.url: {url}\n"
    with closing(_link(tmp_path, option)), logbook.TestHandler() as log:
        librdkafka_logger().debug(f'OIDC: Failed to retrieve OIDC token from "{url}"')
    assert [record.message for record in log.records if "secret" in record.message] == []
    assert 'from "http://u:(not shown)@127.0.0.1:9/token"' in log.formatted_records[-1]


def _link(directory: Path, options: str = "") -> KafkaLink:
    path = directory / "connector.yaml"
    path.write_text(
        f"connector.name: n\nconnector.journal.directory: {directory}\nkafka.topic.prefix: p\n"
        f"kafka.producer.bootstrap.servers: 127.0.0.1:9\n{options}"
    )
    return KafkaLink(load_config(path), Statistics())
