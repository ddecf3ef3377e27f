"""Disk space that connections of a Classic server take while they are open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from soaked import few_of
from test_joining import Joining, joining, shipped

__all__ = ["joining", "shipped"]

pytestmark = [pytest.mark.engine, pytest.mark.plain]

_MOST = 64 * 1024  # bytes for each: a thousand take 64 MiB
_LEAST = 32 * 1024  # what a journal begins with


def _bytes_on_disk(folder: Path) -> int:
    taken = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it is being worked at
            taken += path.lstat().st_blocks * 512
    return taken


@pytest.mark.parametrize("connections", few_of({"16": 16, "64": 64}, ["16"]))
def test_a_thousand_connections_that_wrote_take_at_most_64_mib(
    joining: Joining, connections: int
) -> None:
    first = joining.first()
    before = _bytes_on_disk(joining.capture.journal_directory)
    numbers = list(range(2, connections + 2))
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda _: joining.server(), numbers))
        list(pool.map(lambda server, number: server.write(number), servers, numbers))
    each = (_bytes_on_disk(joining.capture.journal_directory) - before) / connections
    assert _LEAST <= each <= _MOST
    for server in (*servers, first):
        server.end()
    joining.capture.await_decided()
    assert sorted(joining.numbers()) == [1, *numbers]
