"""The canary on the real engine: it notices what nothing else does, and only that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest
from capture import Capture, until

sys.path.insert(1, str(Path(__file__).parents[1] / "kafka"))

from shipping import Event, read_topics

from firebird_cdc.demo.kafka import KafkaBroker

# What notices is the shipper; the C code writes journals as ever.
pytestmark = [pytest.mark.engine, pytest.mark.kafka, pytest.mark.plain]

_CANARY = "CREATE TABLE CDC_CANARY (ID INTEGER NOT NULL PRIMARY KEY, WRITTEN_AT TIMESTAMP)"

Start = Callable[..., Path]


@pytest.fixture
def start(broker: KafkaBroker, topic_prefix: str) -> Iterator[Start]:
    """Return a starter of ``firebird-cdc ship`` with a canary and options; it gives the log."""
    running: list[subprocess.Popen[bytes]] = []

    def start(capture: Capture, **options: str) -> Path:
        capture.write_config(
            kafka_producer_bootstrap_servers=broker.bootstrap,
            kafka_topic_prefix=topic_prefix,
            connector_canary_tables=f"{capture.database}.cdc_canary",
            connector_canary_interval_ms="1000",
            connector_canary_timeout_ms="15000",
            **options,
        )
        log = capture.directory / "ship.log"
        logging = capture.directory / "ship-logging.yaml"
        logging.write_text(f"level: debug\nfile: {log}\n")
        command = [sys.executable, "-m", "firebird_cdc", "ship", "--config", capture.config]
        running.append(forked.Popen([*command, "--logging", logging], env=capture.environment()))
        return log

    yield start
    for process in running:
        process.terminate()
        assert process.wait(120) == 0


def _await(log: Path, part: str) -> str:
    """Return the first line of the log that holds PART."""

    def line() -> str:
        lines = log.read_text().splitlines() if log.exists() else []
        return next((line for line in lines if part in line), "")

    return until(f"{part!r} in the log", line, 120)


def test_canary_alarms_only_if_the_engine_captures_nothing(
    classic: Capture, start: Start, broker: KafkaBroker, topic_prefix: str
) -> None:
    classic.create(_CANARY)
    log = start(classic, database_user="NOBODY")
    assert " WARNING " in _await(log, "the canary can't be written")
    _await(log, "no permission for")
    attachment = classic.attach()
    attachment.script("GRANT SELECT, INSERT, UPDATE ON CDC_CANARY TO USER NOBODY")
    _await(log, "the canary can be written again")
    _await(log, "the canary's writes arrive in the journals")
    assert "did not arrive" not in log.read_text()

    attachment.script("ALTER DATABASE DISABLE PUBLICATION")
    alarm = _await(log, "did not arrive in the journals within 15 s")
    assert " ERROR " in alarm
    assert f"{classic.database}.CDC_CANARY: " in alarm
    assert f"firebird-cdc check --database {classic.database}" in alarm
    attachment.script("ALTER DATABASE ENABLE PUBLICATION")
    assert " NOTICE " in _await(log, "arrive in the journals again")

    def delivered() -> list[Event]:
        events = read_topics(broker.bootstrap, f"{topic_prefix}._")
        found = [told for name, told in events.items() if name.endswith("test.fdb.CDC_CANARY")]
        assert len(found) <= 1
        return found[0] if found else []

    event = until("the first event", delivered, 120)[0]
    assert event.payload["op"] == "c"
    assert event.payload["after"]["ID"] == 1


def test_canary_leaves_the_file_of_a_super_server_to_it(capture: Capture, start: Start) -> None:
    """Else the server could not open its database while the canary is attached."""
    capture.create(_CANARY)
    warning = _await(start(capture), "the canary can't be written")
    assert "set database.hostname" in warning
    [row] = capture.attach().execute("SELECT COUNT(*) FROM CDC_CANARY")
    assert row["COUNT"] == 0
