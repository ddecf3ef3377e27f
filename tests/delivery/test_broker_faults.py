"""A broker that fills its disk, loses topics, or comes back with nothing at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from shipping import Folder, Ship, Shipper, first_occurrences, ids, read_topics

from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

TRANSACTIONAL = pytest.mark.parametrize("transactional", [False, True], ids=["plain", "tx"])


@pytest.fixture
def begin(
    make_ship: Callable[[str], Ship], topic_prefix: str
) -> Callable[[KafkaBroker, bool], Ship]:
    """Makes a ``Ship`` to a broker, with transactions or without."""

    def made(broker: KafkaBroker, transactional: bool) -> Ship:
        ship = make_ship(broker.bootstrap)
        ship.options |= {
            "value.converter.schemas.enable": "false",
            "kafka.producer.reconnect.backoff.max.ms": "300",
        }
        if transactional:
            ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
        return ship

    return made


def topic_of(prefix: str) -> str:
    return f"{prefix}._srv_fb_warehouse.fdb.ITEM"


def shipped_ids(broker: KafkaBroker, prefix: str) -> list[int]:
    topic = topic_of(prefix)
    return ids(read_topics(broker.bootstrap, topic).get(topic, []))


def await_shipped(shipper: Shipper, folder: Folder) -> None:
    shipper.await_that(lambda: not folder.waiting, "all journals shipped")


# Full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, too small for much."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Take all but LEAVE bytes of the space in FOLDER."""
    figures = os.statvfs(folder)
    path = folder / "filler"
    path.write_bytes(bytes(figures.f_bavail * figures.f_frsize - leave))
    return path


@TRANSACTIONAL
def test_broker_with_a_full_disk_is_waited_for(
    transactional: bool,
    small_disk: Path,
    tmp_path: Path,
    kafka_jars: Path,
    begin: Callable[[KafkaBroker, bool], Ship],
    folder: Folder,
    topic_prefix: str,
) -> None:
    # Its log is elsewhere: it is to say what happens.
    properties = {"log.dirs": str(small_disk / "data"), "log.index.size.max.bytes": "65536"}
    with KafkaBroker(tmp_path / "kafka", kafka_jars, properties=properties) as broker:
        ship = begin(broker, transactional)
        folder.write(1)
        shipper = ship.start()
        await_shipped(shipper, folder)
        filler = fill(small_disk, 1 << 20)
        for sequence in range(2, 8):
            folder.write(sequence, rows=400, name="x" * 2000)
        shipper.await_log("does not take messages")
        assert folder.waiting
        broker.kill()
        filler.unlink()
        broker.start()
        await_shipped(shipper, folder)
        shipper.await_log("answers again")
        assert shipper.terminate() == 0
        found = shipped_ids(broker, topic_prefix)
        if not transactional:
            found = first_occurrences(found)
    expected = [1_000_000, *(s * 1_000_000 + row for s in range(2, 8) for row in range(400))]
    assert found == expected
    assert "No space left on device" in broker.log_path.read_text("utf-8")


# Without its topics


@TRANSACTIONAL
def test_topic_that_is_deleted_while_it_ships_is_made_again(
    transactional: bool,
    broker: KafkaBroker,
    begin: Callable[[KafkaBroker, bool], Ship],
    folder: Folder,
    topic_prefix: str,
) -> None:
    ship = begin(broker, transactional)
    folder.write(1)
    shipper = ship.start()
    await_shipped(shipper, folder)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic_of(topic_prefix)])[topic_of(topic_prefix)].result(30)
    for sequence in range(2, 12):
        folder.write(sequence, rows=20)
    await_shipped(shipper, folder)
    assert shipper.terminate() == 0
    found = shipped_ids(broker, topic_prefix)
    wanted = [s * 1_000_000 + row for s in range(2, 12) for row in range(20)]
    # What the old topic had is gone with it; nothing of what was written after that is missing.
    assert [number for number in found if number >= 2_000_000] == wanted


# Empty-handed


def test_cluster_that_comes_back_empty_gets_what_is_on_disk_and_its_loss_is_named(
    own_broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    """A shipper with transactions and one without, beside each other."""
    ships = []
    for name in ("plain", "tx"):
        directory = tmp_path / name
        directory.mkdir()
        folder = Folder(directory / "journals")
        ship = Ship(folder, directory, own_broker.bootstrap, f"{topic_prefix}-{name}")
        ship.options["kafka.producer.reconnect.backoff.max.ms"] = "300"
        if name == "tx":
            ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
        for sequence in range(1, 5):
            folder.write(sequence, rows=3)
        ships.append((ship, folder, ship.start()))
    try:
        for _, folder, shipper in ships:
            await_shipped(shipper, folder)
        own_broker.kill()
        for _, folder, _ in ships:
            for sequence in range(5, 8):
                folder.write(sequence, rows=3)
        for _, _, shipper in ships:
            shipper.await_log("does not take messages")
        own_broker.forget()
        own_broker.start()
        for name, (ship, folder, shipper) in zip(("plain", "tx"), ships, strict=True):
            await_shipped(shipper, folder)
            line = shipper.await_log("Kafka no longer has")
            assert "journals up to sequence 4 (epoch 0)" in line
            wanted = [s * 1_000_000 + row for s in range(5, 8) for row in range(3)]
            assert shipped_ids(own_broker, f"{topic_prefix}-{name}") == wanted
            status_tells_until_acknowledged(ship, shipper)
            assert shipper.terminate() == 0
    finally:
        for ship, _, _ in ships:
            ship.close()


def status_tells_until_acknowledged(ship: Ship, shipper: Shipper) -> None:
    config = str(ship.write_config())

    def told() -> bool:
        command = [sys.executable, "-m", "firebird_cdc", "status", "--config", config]
        done = subprocess.run(command, capture_output=True, text=True)
        return "Kafka no longer has" in done.stdout

    shipper.await_that(told, "the loss in the status")
    command = [sys.executable, "-m", "firebird_cdc", "journal", "acknowledge", "--config", config]
    subprocess.run(command, check=True)
    shipper.await_that(lambda: not told(), "the loss gone from the status")
