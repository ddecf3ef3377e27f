"""The schema registry that the tests run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.registry import SchemaRegistry, fetch_registry
from firebird_cdc.errors import SetupError

pytestmark = pytest.mark.registry


def test_a_port_in_use_is_named_with_the_registrys_own_words(tmp_path: Path) -> None:
    program = fetch_registry(cache_directory())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError) as error:
            SchemaRegistry(tmp_path / "registry", program, port).start()
    assert "ended with exit code 1 while starting" in str(error.value)
    assert f"Port {port} seems to be in use" in str(error.value)
