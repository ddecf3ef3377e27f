"""What the unit tests share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shipment import Render, renderer_in

from firebird_cdc.bridge.confirmer import Confirmer
from firebird_cdc.bridge.folder import JournalFolder


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Renders what a function writes into a journal, with lines of configuration."""
    return renderer_in(tmp_path)


@pytest.fixture(autouse=True)
def end_played_processes() -> Iterator[None]:
    """Close what the processes that a test played have open: select(2), with which PySpark waits
    for its accumulators, takes no descriptor above 1023 in the tests to come."""
    folders: list[JournalFolder] = []
    confirmers: list[Confirmer] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalFolder, "__init__", _noting(JournalFolder.__init__, folders))
        patch.setattr(Confirmer, "__init__", _noting(Confirmer.__init__, confirmers))
        yield
    for confirmer in confirmers:
        confirmer.let_go()
    for folder in folders:
        if not folder.tickets.closed:
            folder.close()


def _noting(make: Callable[..., None], made: list[Any]) -> Callable[..., None]:
    @functools.wraps(make)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        made.append(self)

    return init
