"""Ports of the servers that the demo and the tests start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from firebird_cdc.demo.service import free_port


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_port_is_kept_for_its_server_alone_until_others_were_given() -> None:
    before = _descriptors()
    port = [free_port() for _ in range(100)][-1]
    assert _descriptors() - before < 20
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))  # as whoever looks for a free one does
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with (
        socket.create_server(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)),
    ):
        pass
