"""Fixtures of the tests on the embedded engine with the plugin in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import instruments
import pytest
from capture import TRANSACTIONS, Capture

from firebird_cdc.demo.processes import Stack

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an instrument can't learn from, and mark what `make sanitize` runs."""
    left_out = []
    for item in items:
        if item.get_closest_marker("plain"):
            left_out.append(item)
        elif item.path.is_relative_to(_HERE):
            item.add_marker("sanitized")
    if instruments.CHOSEN and left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def journals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Form of the journals: shared by small transactions, or each its own; see `either_form`."""
    form = str(getattr(request, "param", "shared"))
    if form == "own":
        monkeypatch.setenv(TRANSACTIONS, "1")
    return form


def _capture(request: pytest.FixtureRequest, stack: Stack, mode: str) -> Iterator[Capture]:
    directory: Path = request.getfixturevalue("tmp_path")
    made = Capture(directory, stack, {"ServerMode": mode})
    if instruments.CHOSEN == "sanitizers" and request.node.get_closest_marker("leaks"):
        made.seeks_leaks = True
    made.install()
    yield made
    for client in made.clients:
        if client.process.poll() is None:
            client.end() if made.seeks_leaks else client.kill()
    stack.stop()
    assert not (found := instruments.complaints(directory)), found


@pytest.fixture
def capture(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Capture]:
    """The plugin in an engine whose processes have a database to themselves (Super)."""
    yield from _capture(request, stack, "Super")


@pytest.fixture
def classic(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Capture]:
    """The plugin in an engine whose processes share a database (Classic)."""
    yield from _capture(request, stack, "Classic")
