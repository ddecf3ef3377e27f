"""Fixtures of the shipper's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from gate import Gate
from ship_fixtures import folder, make_ship, ship

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

__all__ = ["broker_gate", "folder", "make_ship", "ship"]


@pytest.fixture
def broker_gate(broker: KafkaBroker) -> Iterator[Gate]:
    """The way to the broker that all tests share, shut at first."""
    made = Gate(broker.port)
    yield made
    made.end()
