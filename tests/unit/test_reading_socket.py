"""Socket by which a bridge reads for others: there as long as it is wanted."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from threading import enumerate as threads
from typing import Any

import pytest

from firebird_cdc.bridge.reading import ReadingServer
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder.reading_socket import (
    READING,
    Kind,
    Outcome,
    address_of,
    receive,
    send,
)

_DATABASE = "/data/shop.fdb"
_PATIENCE_S = 60


class _Host:
    """A host whose process has captured one database; nothing else is asked of it."""

    def captured(self) -> list[str]:
        return [_DATABASE]


@pytest.fixture
def server() -> Iterator[ReadingServer]:
    host: Any = _Host()
    made = ReadingServer(host)
    yield made
    made.end()


def _ask(path: Path) -> socket.socket:
    """Connect by PATH, and see that it answers."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_PATIENCE_S)
    with address_of(path) as address:
        connection.connect(address)
    send(connection, Kind.CAPTURES, os.fsencode(_DATABASE))
    assert receive(connection, 100) == (Outcome.ANSWERED, b"\1")
    return connection


def _is_heard() -> bool:
    return any(each.name == "fbc-reading" for each in threads() if isinstance(each, Thread))


def test_who_is_connected_is_let_go_when_it_ends(server: ReadingServer, tmp_path: Path) -> None:
    path = tmp_path / READING / "1"
    for _ in range(2):
        server.use(tmp_path, "1")
        with _ask(path) as connection:
            server.end()
            assert connection.recv(1) == b""
        assert not path.exists()
        await_condition("the thread to end", lambda: not _is_heard(), _PATIENCE_S)


def test_it_moves_to_another_folder_with_those_who_read(
    server: ReadingServer, tmp_path: Path
) -> None:
    former, path = tmp_path / "former", tmp_path / "now"
    for each in (former, path):
        each.mkdir()
    server.use(former, "1")
    with _ask(former / READING / "1") as connection:
        server.use(path, "1")
        with _ask(path / READING / "1"):
            send(connection, Kind.CAPTURES, b"/data/other.fdb")
            assert receive(connection, 100) == (Outcome.ANSWERED, b"\0")
    assert not (former / READING / "1").exists()
