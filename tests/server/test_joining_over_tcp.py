"""Connections to a real Classic server, each a process of its own: which of them start Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
from capture import Attachment
from test_modes import Site, _until, site

from firebird_cdc.demo.processes import members

__all__ = ["site"]

pytestmark = [
    pytest.mark.server,
    pytest.mark.parametrize("server_mode", ["Classic"]),
    pytest.mark.parametrize("transactions", [0]),
]


_OWN_BRIDGE_S = 3.0  # LATER_MS of native/host.c


def _maps(site: Site) -> Iterator[str]:
    """Yield what is mapped in each of the server's processes that has the plugin."""
    for process in members(site.server.stack.mark):
        with suppress(OSError):
            maps = Path(f"/proc/{process}/maps").read_text()
            if "libfirebird_cdc" in maps and "libfbclient" in maps:
                yield maps


def _without_python(site: Site) -> int:
    return sum("libpython" not in maps for maps in _maps(site))


def _write(attachment: Attachment, number: int) -> None:
    attachment.execute("INSERT INTO T VALUES (?)", number)
    attachment.commit()


def test_second_connection_starts_python_only_once_it_has_lived_for_a_while(site: Site) -> None:
    site.create("CREATE TABLE T (N INTEGER)")
    first = site.attach()
    _write(first, 1)
    _until("the first to be published", lambda: site.settled())
    _write(first, 2)  # by then it is known which definition of the table counts
    second = site.attach()
    began = monotonic()
    _write(second, 3)
    has_joined = _without_python(site) == 1
    assert has_joined or monotonic() - began > _OWN_BRIDGE_S
    _until("a bridge of its own", lambda: not _without_python(site))
    first.close()
    _write(second, 4)
    site.assert_exact(["T"])
