"""Fixtures of the shipper's tests, in whatever folder they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shipping import Folder, Ship


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty journal folder."""
    return Folder(tmp_path / "journals")


@pytest.fixture
def make_ship(folder: Folder, tmp_path: Path, topic_prefix: str) -> Iterator[Callable[[str], Ship]]:
    """Return a maker of a ``Ship`` for a broker's address."""
    made: list[Ship] = []

    def make(bootstrap: str) -> Ship:
        made.append(Ship(folder, tmp_path, bootstrap, topic_prefix))
        return made[-1]

    yield make
    for ship in made:
        ship.close()


@pytest.fixture
def ship(make_ship: Callable[[str], Ship], broker: Any) -> Ship:
    """Shippers to the broker that all tests share."""
    return make_ship(broker.bootstrap)
