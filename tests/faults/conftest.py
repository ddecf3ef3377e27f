"""Fixtures of the tests that kill servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from capture import Capture
from harness import Libraries

from firebird_cdc.demo.processes import Stack


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """A plugin with failpoints, and a preload that holds back commit marks."""
    return Libraries.build(tmp_path_factory.mktemp("libraries"))


def _captured(directory: Path, stack: Stack, libraries: Libraries, mode: str) -> Iterator[Capture]:
    made = Capture(directory, stack, {"ServerMode": mode})
    made.install()
    libraries.put_into(made)
    yield made
    for client in made.clients:
        if client.process.poll() is None:
            client.kill()


@pytest.fixture
def capture(tmp_path: Path, stack: Stack, libraries: Libraries) -> Iterator[Capture]:
    """The plugin with failpoints in an engine whose processes have a database to themselves."""
    yield from _captured(tmp_path, stack, libraries, "Super")


@pytest.fixture
def classic(tmp_path: Path, stack: Stack, libraries: Libraries) -> Iterator[Capture]:
    """The same in an engine of which several processes share a database."""
    yield from _captured(tmp_path, stack, libraries, "Classic")
