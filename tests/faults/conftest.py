"""Fixtures of the tests that kill servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from harness import Libraries


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """A plugin with failpoints, and a preload that holds back commit marks."""
    return Libraries.build(tmp_path_factory.mktemp("libraries"))
