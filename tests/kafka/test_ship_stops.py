"""However Kafka is, a shipper that is told to stop has ended soon after ``close.timeout.ms``."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from shipping import Folder, Ship, Shipper

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.lock import STATE_DIRECTORY

pytestmark = pytest.mark.kafka

_CLOSE_TIMEOUT_S = 0.5
_MORE_S = 3.0  # one step of the client inside, and the end of a Python process


def _two_at_work(ship: Ship, directory: Path) -> list[tuple[Folder, Shipper]]:
    """Start one without and one with a transactional id, each on a folder with a journal."""
    made, prefix = [], ship.options["kafka.topic.prefix"]
    ship.options["kafka.producer.close.timeout.ms"] = str(int(_CLOSE_TIMEOUT_S * 1000))
    for name in ("plain", "transactional"):
        folder = Folder(directory / name)
        folder.write(1)
        ship.options["connector.journal.directory"] = str(folder.directory)
        # One would take the other's positions for those of its database in another folder.
        ship.options["kafka.topic.prefix"] = f"{prefix}-{name}"
        if name == "transactional":
            ship.options["kafka.producer.transactional.id"] = f"stops-{prefix}"
        made.append((folder, ship.start()))
    return made


def _end(shippers: Sequence[Shipper]) -> None:
    """Tell one after the other to stop; each has to have ended in time, and in order."""
    for shipper in shippers:
        shipper.process.terminate()
        assert shipper.wait(_CLOSE_TIMEOUT_S + _MORE_S) == 0
        assert "journals shipped" in shipper.log_lines("shipper of")[0]


def test_before_a_broker_that_says_nothing(
    make_ship: Callable[[str], Ship], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ship = make_ship(f"127.0.0.1:{silent.getsockname()[1]}")
        shippers = [shipper for _, shipper in _two_at_work(ship, tmp_path)]
        for shipper in shippers:
            shipper.await_log("shipping journals of")
        with silent.accept()[0]:
            _end(shippers)


def test_while_a_broker_that_stands_still_has_messages(
    make_ship: Callable[[str], Ship], tmp_path: Path, own_broker: KafkaBroker
) -> None:
    running = _two_at_work(make_ship(own_broker.bootstrap), tmp_path)
    for folder, shipper in running:
        shipper.await_that(lambda: not folder.waiting, "the first to be sent")  # noqa: B023
    with own_broker.standing_still():
        for folder, shipper in running:
            folder.write(2, 100)
            shipper.await_that(lambda: _unanswered(folder) >= 100, "all to be sent")  # noqa: B023
        _end([shipper for _, shipper in running])
    for folder, _ in running:
        assert len(folder.waiting) == 1


def _unanswered(folder: Folder) -> int:
    status = folder.directory / STATE_DIRECTORY / "status.json"
    return int(json.loads(status.read_text())["queue"]["messages"])
