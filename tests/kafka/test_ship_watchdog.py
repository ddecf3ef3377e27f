"""systemd starts a shipper anew that gives no sign of life in WatchdogSec: one that stands still
gives none, whatever of it still runs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from seen import ask
from shipping import PATIENCE_S, Folder, Ship

from firebird_cdc.demo.service import free_port

pytestmark = pytest.mark.kafka

HANGING = str(Path(__file__).with_name("hanging_program.py"))
_GRANTED_S = 2.0


class Manager:
    """systemd's end, as far as a watchdog goes."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def hears(self, wanted: str) -> None:
        """Wait until the shipper has said WANTED."""
        self._end.settimeout(PATIENCE_S)
        while wanted not in self._end.recv(1000).decode().split("\n"):
            pass

    def loses_patience(self) -> None:
        """Wait until nothing is said in the time that was granted."""
        self._end.settimeout(_GRANTED_S)
        with pytest.raises(TimeoutError):
            for _ in range(int(PATIENCE_S)):
                self._end.recv(1000)


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """The manager of the shippers that the test starts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"{tmp_path}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        monkeypatch.setenv("WATCHDOG_USEC", str(int(_GRANTED_S * 1e6)))
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield Manager(end)


def test_stopped_shipper_gives_no_sign_of_life(manager: Manager, ship: Ship) -> None:
    shipper = ship.start()
    manager.hears("READY=1")
    manager.hears("WATCHDOG=1")
    shipper.pause()
    manager.loses_patience()
    shipper.resume()
    manager.hears("WATCHDOG=1")
    assert shipper.terminate() == 0
    manager.hears("STOPPING=1")


def test_shipping_thread_that_hangs_gives_no_sign_of_life_though_others_work(
    manager: Manager, ship: Ship, folder: Folder, tmp_path: Path
) -> None:
    port, hang = free_port(), tmp_path / "hang"
    ship.options["metrics.port"] = str(port)
    shipper = ship.start(program=(HANGING, str(hang)))
    manager.hears("READY=1")
    manager.hears("WATCHDOG=1")
    hang.touch()
    shipper.await_that(lambda: hang.read_text() == "hangs", "the shipping thread to hang")
    manager.loses_patience()

    def listens() -> bool:
        try:
            return "firebird_cdc" in ask(f"http://127.0.0.1:{port}/metrics")
        except ConnectionRefusedError:
            return False

    shipper.await_that(listens, "the metrics")
    journal = folder.write(1)
    manager.loses_patience()
    assert journal.exists()
    hang.unlink()
    manager.hears("WATCHDOG=1")
    shipper.await_that(lambda: not journal.exists(), "the journal to be shipped")
