"""What the unit tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from shipment import Render, renderer_in


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Renders what a function writes into a journal, with lines of configuration."""
    return renderer_in(tmp_path)
