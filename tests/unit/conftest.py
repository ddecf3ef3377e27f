"""Fixtures that the unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from played_processes import played_processes
from shipment import Render, renderer_in


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Return a renderer of what a function writes into a journal, with lines of configuration."""
    return renderer_in(tmp_path)


@pytest.fixture(autouse=True)
def end_played_processes() -> Iterator[None]:
    """Close what the processes that a test played have open."""
    with played_processes():
        yield
