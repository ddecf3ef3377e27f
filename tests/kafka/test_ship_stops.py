"""However Kafka is, a shipper that is told to stop has ended by ``close.timeout.ms``, and soon."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from fcntl import LOCK_SH
from pathlib import Path

import pytest
from gate import Gate
from seen import unanswered
from shipping import Folder, Ship, Shipper, either_way, ids, read_topics

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY, try_lock

pytestmark = pytest.mark.kafka

HELD = str(Path(__file__).with_name("held_program.py"))
_LIMIT_S = 50.0  # silence ends it long before
_SHORT_S = 1.5
_MORE_S = 40.0  # for a machine that has other things to do


def _two_at_work(ship: Ship, directory: Path, limit_s: float) -> list[tuple[Folder, Shipper]]:
    """Start one without and one with a transactional id, each on a folder with a journal."""
    made, prefix = [], ship.options["kafka.topic.prefix"]
    ship.options["kafka.producer.close.timeout.ms"] = str(int(limit_s * 1000))
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


def _end(shippers: Sequence[Shipper], within_s: float) -> None:
    """Tell one after the other to stop; each has to have ended in time, and in order."""
    for shipper in shippers:
        shipper.process.terminate()
        assert shipper.wait(within_s) == 0
        assert "transactions under way; at most" in shipper.log_lines("stopping")[0]
        assert "transactions shipped" in shipper.log_lines("shipper of")[0]


def test_stop_with_an_unresponsive_broker_ends_in_time(
    make_ship: Callable[[str], Ship], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ship = make_ship(f"127.0.0.1:{silent.getsockname()[1]}")
        shippers = [shipper for _, shipper in _two_at_work(ship, tmp_path, _LIMIT_S)]
        for shipper in shippers:
            shipper.await_log("shipping journals of")
        with silent.accept()[0]:
            _end(shippers, _LIMIT_S)


@pytest.mark.parametrize("limit_s", [_SHORT_S, _LIMIT_S])
def test_stop_with_unacknowledged_messages_at_a_stalled_broker_ends_in_time(
    make_ship: Callable[[str], Ship], tmp_path: Path, own_broker: KafkaBroker, limit_s: float
) -> None:
    ship = make_ship(own_broker.bootstrap)
    running = _two_at_work(ship, tmp_path, limit_s)
    for folder, shipper in running:
        shipper.await_that(lambda: not folder.waiting, "the first to be sent")  # noqa: B023
    with own_broker.stopped():
        for folder, shipper in running:
            folder.write(2, 100)
            shipper.await_that(lambda: unanswered(folder) >= 100, "all to be sent")  # noqa: B023
        if limit_s == _LIMIT_S:
            _end([shipper for _, shipper in running], limit_s)
        else:  # so short that a slow machine may not get to an end in order
            for _, shipper in running:
                shipper.process.terminate()
                assert shipper.wait(limit_s + _MORE_S) == 0
    for folder, shipper in running:
        assert len(folder.waiting) == 1
        # A Kafka transaction may be given up just before the silence lasts long enough.
        assert bool(shipper.log_lines("is over")) == (limit_s == _SHORT_S), shipper.log
        assert limit_s == _SHORT_S or shipper.log_lines("under way, 1 wait"), shipper.log
    # ship.options are those of the one with a transactional id.
    assert ship.once().process.returncode == 0
    prefix = ship.options["kafka.topic.prefix"]
    events = read_topics(own_broker.bootstrap, prefix)[f"{prefix}._srv_fb_warehouse.fdb.ITEM"]
    assert ids(events) == [1_000_000, *range(2_000_000, 2_000_100)]


@either_way
def test_stop_before_kafka_is_reached_leaves_a_backlog_that_is_sent_once(
    make_ship: Callable[[str], Ship],
    folder: Folder,
    broker: KafkaBroker,
    broker_gate: Gate,
    topic_prefix: str,
    transactional: bool,
) -> None:
    ship = make_ship(f"127.0.0.1:{broker_gate.port}")
    ship.options["kafka.producer.close.timeout.ms"] = str(int(_LIMIT_S * 1000))
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"stops-{topic_prefix}"
    for sequence in range(1, 31):
        folder.write(sequence, 5)
    shipper = ship.start()
    shipper.await_log("does not take messages")
    _end([shipper], _LIMIT_S)
    assert len(folder.waiting) == 30
    assert "0 transactions shipped" in shipper.log_lines("shipper of")[0]
    broker_gate.open()
    assert ship.once().process.returncode == 0
    events = read_topics(broker.bootstrap, topic_prefix)
    expected = [s * 1_000_000 + row for s in range(1, 31) for row in range(5)]
    assert ids(events[f"{topic_prefix}._srv_fb_warehouse.fdb.ITEM"]) == expected


@either_way
def test_embedded_shipper_stops_with_the_last_server_during_a_kafka_outage(
    make_ship: Callable[[str], Ship], folder: Folder, topic_prefix: str, transactional: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ship = make_ship(f"127.0.0.1:{silent.getsockname()[1]}")
        ship.options["kafka.producer.close.timeout.ms"] = str(int(_LIMIT_S * 1000))
        if transactional:
            ship.options["kafka.producer.transactional.id"] = f"stops-{topic_prefix}"
        (folder.directory / STATE_DIRECTORY).mkdir()
        server = try_lock(folder.directory / STATE_DIRECTORY / "bridge.lock", LOCK_SH)
        assert server is not None
        folder.write(1, 5)
        shipper = ship.start("--embedded")
        shipper.await_log("shipping journals of")
        os.close(server)
        assert shipper.wait(_LIMIT_S) == 0
        assert "transactions under way; at most" in shipper.log_lines("stopping")[0]
        assert "nothing for 2 s" in shipper.log_lines("shipper of")[0]
        assert len(folder.waiting) == 1


@pytest.mark.parametrize("again", [False, True], ids=["limit", "second signal"])
def test_blocked_stop_is_forced_after_its_limit_or_a_second_signal(
    ship: Ship, folder: Folder, again: bool
) -> None:
    limit_s = 3600.0 if again else _SHORT_S
    ship.options["kafka.producer.close.timeout.ms"] = str(int(limit_s * 1000))
    folder.write(1)
    shipper = ship.start(program=[HELD])
    shipper.await_that(lambda: not folder.waiting, "the journal to be sent")
    shipper.process.terminate()
    if again:
        shipper.await_log("stopping")
        shipper.process.terminate()
    assert shipper.wait(_SHORT_S + _MORE_S) == 0
    why = "told to stop a second time" if again else "is over"
    assert why in shipper.log_lines("ends now, with work unfinished")[0]
    held, shipper = shipper, ship.start()
    folder.write(2)
    shipper.await_that(lambda: not folder.waiting, "the next journal to be sent")
    assert shipper.terminate() == 0 and held.process.returncode == 0
