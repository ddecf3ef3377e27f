"""A real Firebird 4 server: Debian trixie's, started by chroot on a free port of loopback."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.paths import cache_directory, clone_root
from firebird_cdc.demo.processes import Stack

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot


@pytest.fixture(scope="module")
def trixie(request: pytest.FixtureRequest) -> Iterator[debian.Trixie]:
    """The system with the server and our package in it; the first time takes a minute or two.

    A module has it to itself, for other processes of the same run may want it, too.
    """
    capture = request.config.pluginmanager.getplugin("capturemanager")
    writer = request.config.get_terminal_writer()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            writer.line(f"\n[trixie] {text}", flush=True)

    clone = clone_root()
    assert clone is not None, "the server tests run from a clone"
    with debian.prepared(cache_directory(), clone, say) as system:
        yield system


@pytest.fixture
def server_mode() -> str:
    """ServerMode of the server; tests of several modes have it as a parameter."""
    return "Super"


@pytest.fixture
def firebird4(trixie: debian.Trixie, tmp_path: Path, server_mode: str) -> Iterator[Firebird4]:
    """A Firebird 4 server as it was packaged, not started yet, without our plugin."""
    trixie.reset()
    folder = trixie.path / debian.DATA / f"t{secrets.token_hex(4)}"
    folder.mkdir(mode=0o770)
    with Stack(tmp_path / "firebird4") as stack:
        server = Firebird4(trixie, folder, stack, server_mode)
        server.give_to_server(folder)
        try:
            yield server
        finally:
            server.stop()
            stack.stop()
            trixie.reset()
            shutil.rmtree(folder)


@pytest.fixture
def client(engine_root: EmbeddedRoot, firebird4: Firebird4) -> Any:
    """firebird.driver with a client library that reaches the server over TCP."""
    from firebird import driver

    if not driver.driver_config.fb_client_library.value:
        driver.driver_config.fb_client_library.value = str(engine_root.client_library)
    driver.driver_config.server_defaults.user.value = "SYSDBA"
    driver.driver_config.server_defaults.password.value = firebird4.password
    return driver
