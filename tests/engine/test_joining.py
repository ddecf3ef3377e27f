"""Processes of a Classic server that write without Python of their own, where another confirms."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture import Capture, until
from server import Server, compile_server

pytestmark = pytest.mark.engine

_TABLE = "CREATE TABLE T (N INTEGER, S VARCHAR(1000))"


def _has_python(pid: int) -> bool:
    return "libpython" in Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture
def program(classic: Capture) -> Path:
    program = classic.directory / "bare_server"
    compile_server(classic.root.client_library, program)
    return program


def test_second_process_records_without_python(classic: Capture, program: Path) -> None:
    classic.create(_TABLE)
    first = Server(classic, program)
    first.write(1)
    assert _has_python(first.pid)
    until("the first to publish", lambda: len(classic.committed()) == 1)
    second = Server(classic, program)
    second.write(2)
    assert not _has_python(second.pid)
    until("the other to publish", lambda: len(classic.committed()) == 2)
    second.end()
    first.end()
