"""The metrics of a real engine with the shipper that its plugin starts, as Prometheus sees them."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest
from capture import Capture, until
from prometheus_client.parser import text_string_to_metric_families

from firebird_cdc.cli import main
from firebird_cdc.demo.service import free_port

pytestmark = [pytest.mark.engine, pytest.mark.plain]

_PATIENCE_S = 120.0


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
        return found if found.items() >= expected.items() else None

    expected = {
        ("firebird_cdc_journals_pending", database, ""): 3,
        ("firebird_cdc_captured_transactions_total", database, ""): 3,
        ("firebird_cdc_journals_rolled_back_total", database, ""): 1,
        ("firebird_cdc_transactions_rolled_back_total", database, ""): 1,
        ("firebird_cdc_callback_seconds_count", database, "prepare"): 3,
        ("firebird_cdc_confirm_seconds_count", database, ""): 3,
        ("firebird_cdc_streaming_connected", "", ""): 1,
        ("firebird_cdc_kafka_reachable", "", ""): 0,
    }
    found = until("three journals that wait", counted, _PATIENCE_S)
    assert found is not None
    assert 0 < found["firebird_cdc_callback_seconds_sum", database, "commit"] < 60

    # Kafka is nowhere, and may come: nobody is needed yet.
    def is_told() -> bool:
        assert main(["status", "--directory", str(capture.journal_directory)]) == 0
        return "NOT REACHED" in capsys.readouterr().out

    until("the status to tell of it", is_told, _PATIENCE_S)
