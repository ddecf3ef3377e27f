"""The metrics of a real engine with the shipper that its plugin starts, as Prometheus sees them."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest
from capture import Capture, until
from prometheus_client.parser import text_string_to_metric_families

from firebird_cdc.cli import main
from firebird_cdc.demo.service import free_port

pytestmark = [pytest.mark.engine, pytest.mark.plain]

_PATIENCE_S = 40.0


def _scrape(port: int) -> dict[tuple[str, str, str], float]:
    """Values by name, database and call; nothing while nobody listens."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except OSError:
        return {}
    finally:
        connection.close()
    return {
        (sample.name, sample.labels.get("database", ""), sample.labels.get("call", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_an_embedded_shipper_show_the_servers_counters(
    capture: Capture, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    capture.write_config(
        connector_shipper="embedded",
        kafka_producer_close_timeout_ms="1000",
        metrics_port=str(port),
    )
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    database = str(capture.database)
    client = capture.attach()
    for number in range(3):
        client.execute(f"INSERT INTO T VALUES ({number})")
        client.commit()
    client.execute("INSERT INTO T VALUES (10)")
    client.rollback()

    def counted() -> dict[tuple[str, str, str], float] | None:
        found = _scrape(port)
        pending = found.get(("firebird_cdc_journals_pending", database, ""))
        return found if pending == 3 else None

    found = until("three journals that wait", counted, _PATIENCE_S)
    assert found is not None
    assert found["firebird_cdc_captured_transactions_total", database, ""] == 3
    assert found["firebird_cdc_journals_rolled_back_total", database, ""] == 1
    assert found["firebird_cdc_transactions_rolled_back_total", database, ""] == 1
    assert found["firebird_cdc_callback_seconds_count", database, "prepare"] == 3
    assert 0 < found["firebird_cdc_callback_seconds_sum", database, "commit"] < 60
    assert found["firebird_cdc_confirm_seconds_count", database, ""] == 3
    assert found["firebird_cdc_streaming_connected", "", ""] == 1
    assert found["firebird_cdc_kafka_reachable", "", ""] == 0
    # Kafka is nowhere, and may come: nobody is needed yet.
    assert main(["status", "--directory", str(capture.journal_directory)]) == 0
    assert "NOT REACHED" in capsys.readouterr().out
