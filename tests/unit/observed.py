"""A shipper's configuration and statistics, for tests of what is shown of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig, load_config
from firebird_cdc.demo import processes
from firebird_cdc.journal.shipper.monitoring.folder import Waiting
from firebird_cdc.journal.shipper.monitoring.observer import Observer
from firebird_cdc.journal.shipper.monitoring.statistics import (
    LastEvent,
    Statistics,
)
from firebird_cdc.journal.shipper.shared_offsets import EVERYTHING

DEPOT = "/srv/depot.fdb"
SECRET = "correct-horse-battery"
OTHER_SECRET = "masterkey"
PATIENCE_S = 60.0


def make_config(tmp_path: Path, **options: str) -> ConnectorConfig:
    """A configuration; in names of OPTIONS __ stands for a dot."""
    directory = tmp_path / "journals"
    (directory / ".firebird-cdc").mkdir(parents=True, exist_ok=True)
    lines = {
        "connector.name": "depot",
        "connector.journal.directory": str(directory),
        "kafka.producer.bootstrap.servers": "kafka.example:9093",
        "kafka.producer.sasl.password": SECRET,
        "kafka.topic.prefix": "shop",
        "database.password": OTHER_SECRET,
        **{name.replace("__", "."): value for name, value in options.items()},
    }
    path = tmp_path / "connector.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items()))
    return load_config(path)


def await_that(what: str, condition: Callable[[], object]) -> object:
    return processes.await_condition(what, condition, PATIENCE_S)


@pytest.fixture
def statistics() -> Statistics:
    """Of a shipper that is well and has shipped two changes."""
    statistics = Statistics()
    statistics.kafka_at = time.monotonic()
    depot = statistics.database(DEPOT)
    depot.add("GOODS", "c", 2)
    depot.transactions = depot.journals_shipped = 1
    depot.handled(LastEvent("GOODS", UUID(int=7), 3, 2, 48213, now_us() - 5000))
    return statistics


@pytest.fixture
def config(tmp_path: Path) -> ConnectorConfig:
    return make_config(tmp_path)


@pytest.fixture
def observe(statistics: Statistics) -> Iterator[Callable[[ConnectorConfig], Observer]]:
    """Start observers that the test does not stop."""
    running: list[Observer] = []

    def observe(config: ConnectorConfig) -> Observer:
        observer = Observer(
            config, statistics, lambda: {DEPOT: Waiting(0, None)}, lambda _: EVERYTHING
        )
        observer.start()
        running.append(observer)
        return observer

    yield observe
    for observer in running:
        observer.stop()
