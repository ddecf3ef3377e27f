"""Fixtures that the unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from observed import config, observe, statistics  # noqa: F401
from played_processes import played_processes
from played_server import server  # noqa: F401
from shipment import Render, renderer_in
from transform_records import build, kept, unwrap  # noqa: F401


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Return a renderer of what a function writes into a journal, with lines of configuration."""
    return renderer_in(tmp_path)


@pytest.fixture(autouse=True)
def end_played_processes() -> Iterator[None]:
    """Close what the processes that a test played have open."""
    with played_processes():
        yield
