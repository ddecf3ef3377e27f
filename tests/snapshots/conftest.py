"""Fixtures of the tests of snapshots: the engine with the plugin, a broker, and a shipper."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
sys.path[1:1] = [str(_HERE), *(str(_HERE.parent / room) for room in ("engine", "kafka"))]

from snapshot_scene import DELIVERIES, SnapshotScene  # noqa: E402

from firebird_cdc.demo.kafka import KafkaBroker  # noqa: E402
from firebird_cdc.demo.processes import Stack  # noqa: E402


@pytest.fixture(params=DELIVERIES)
def delivery(request: pytest.FixtureRequest) -> str:
    """Return the way of sending."""
    return str(request.param)


@pytest.fixture
def scene(
    tmp_path: Path, stack: Stack, broker: KafkaBroker, topic_prefix: str, delivery: str
) -> Iterator[SnapshotScene]:
    """A database with rows from before its publication, whose processes share it (Classic)."""
    made = SnapshotScene(tmp_path, stack, broker, topic_prefix, delivery == "transactional")
    yield made
    made.end()
