"""Notices to a service manager, as systemd's sd_notify(3) says."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from firebird_cdc.journal.shipper.tasks.service_manager import ServiceNotices


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The manager's end, of which our environment has the address."""
    name = f"@firebird-cdc-{os.getpid()}" if request.param == "abstract" else f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(name.replace("@", "\0"))
        end.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield end


def _heard(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(1000).decode())
        except BlockingIOError:
            return found


def test_manager_hears_of_start_life_and_end(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notices = ServiceNotices()
    assert notices.turn(100.0) == 110.0
    assert _heard(manager) == ["READY=1\nWATCHDOG=1"]
    assert notices.turn(110.0) == 120.0
    notices.close()
    assert _heard(manager) == ["WATCHDOG=1", "STOPPING=1"]


@pytest.mark.parametrize("pid", ["", "1"])
def test_without_a_watchdog_of_ours_nothing_is_told_after_the_start(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    if pid:  # that of another process
        monkeypatch.setenv("WATCHDOG_USEC", "20000000")
        monkeypatch.setenv("WATCHDOG_PID", pid)
    assert ServiceNotices().turn(100.0) == float("inf")
    assert len(_heard(manager)) == 1


def test_shipper_of_no_manager_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notices = ServiceNotices()
    assert notices.turn(100.0) == float("inf")
    notices.close()


def test_manager_that_is_gone_does_not_stop_the_shipper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/gone")
    ServiceNotices().turn(100.0)
