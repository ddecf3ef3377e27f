"""Fixtures of the tests of delivery: the instruments of the shipper's and of the killers' tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[1:1] = [str(Path(__file__).parents[1] / room) for room in ("kafka", "faults")]

from rounds import Nursery  # noqa: E402
from ship_fixtures import folder, make_ship, ship  # noqa: E402

__all__ = ["folder", "make_ship", "nursery", "ship"]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Yield a nursery that brings up shippers that die at points."""
    made = Nursery()
    yield made
    made.close()
