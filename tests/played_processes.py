"""Processes that tests play in their own: what these open is closed at the end of each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from firebird_cdc.bridge.confirm.loop import Confirmer
from firebird_cdc.journal.folder.journal_folder import JournalFolder


@contextlib.contextmanager
def played_processes() -> Iterator[None]:
    """Close at the end what folders and confirmers that are made meanwhile have open.

    PySpark waits for its accumulators with select(2), which takes no descriptor above 1023: its
    tests fail after too many of these.
    """
    folders: list[JournalFolder] = []
    confirmers: list[Confirmer] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalFolder, "__init__", _noting(JournalFolder.__init__, folders))
        patch.setattr(Confirmer, "__init__", _noting(Confirmer.__init__, confirmers))
        yield
    for confirmer in confirmers:
        confirmer.let_go()
    for folder in folders:
        if not folder.page.is_closed:
            folder.close()


def _noting(make: Callable[..., None], made: list[Any]) -> Callable[..., None]:
    @functools.wraps(make)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        made.append(self)

    return init
