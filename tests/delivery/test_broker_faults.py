"""A broker that fills its disk, loses topics, or comes back with nothing at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest
from broker_topics import delete_topics
from shipping import Folder, Ship, Shipper, first_occurrences, ids, read_topics

from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = pytest.mark.kafka


class Way:
    """One of the two ways to ship, beside the other: a folder, a shipper and topics of its own."""

    def __init__(self, directory: Path, broker: KafkaBroker, prefix: str, name: str) -> None:
        directory /= name
        directory.mkdir()
        self.is_exact = name == "tx"
        self.folder = Folder(directory / "journals")
        self.topic = f"{prefix}-{name}._srv_fb_warehouse.fdb.ITEM"
        self.ship = Ship(self.folder, directory, broker.bootstrap, f"{prefix}-{name}")
        self.ship.options |= {
            "kafka.producer.reconnect.backoff.max.ms": "300",
            "kafka.producer.compression.type": "none",
        }
        if self.is_exact:
            self.ship.options["kafka.producer.transactional.id"] = f"{prefix}-id"
            # For so long the client asks to write to a topic that is no more.
            self.ship.options["kafka.producer.transaction.timeout.ms"] = "5000"
        self._broker = broker
        self._prefix = f"{prefix}-{name}"

    def write(self, sequences: range, rows: int, name: str = "x") -> None:
        """Add journals."""
        for sequence in sequences:
            self.folder.write(sequence, rows=rows, name=name)

    def start(self) -> None:
        """Start the shipper and have it ship what is there."""
        self.shipper: Shipper = self.ship.start()
        self.await_shipped()

    def await_shipped(self) -> None:
        """Wait until no journal is left."""
        self.shipper.await_that(lambda: not self.folder.waiting, "all journals shipped")

    def await_position(self, sequence: int) -> None:
        """Wait until Kafka has it that the journals up to SEQUENCE are shipped."""

        def written() -> bool:
            name = f"__firebird-cdc-positions.{self._prefix}"
            records = read_topics(self._broker.bootstrap, name).get(name, [])
            return any(record.value["sequence"] == sequence for record in records)

        self.shipper.await_that(written, f"position {sequence}")

    def ids(self) -> list[int]:
        """Return the IDs that consumers see; without transactions, repeated ones only where they
        first came."""
        found = ids(read_topics(self._broker.bootstrap, self.topic).get(self.topic, []))
        return found if self.is_exact else first_occurrences(found)


Begin = Callable[[KafkaBroker], list[Way]]


@pytest.fixture
def begin(tmp_path: Path, topic_prefix: str) -> Iterator[Begin]:
    """Yield a function that makes both ways to ship to a broker, with one shipped journal each."""
    made: list[Way] = []

    def begun(broker: KafkaBroker) -> list[Way]:
        for name in ("plain", "tx"):
            way = Way(tmp_path, broker, topic_prefix, name)
            made.append(way)
            way.write(range(1, 2), 1)
            way.start()
        return made

    yield begun
    for way in made:
        way.ship.close()


def expected(sequences: range, rows: int) -> list[int]:
    return [sequence * 1_000_000 + row for sequence in sequences for row in range(rows)]


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


def test_broker_with_a_full_disk_is_waited_for(
    small_disk: Path, tmp_path: Path, kafka_jars: Path, begin: Begin
) -> None:
    # The broker's own log is elsewhere: it is to say what happens.
    properties = {"log.dirs": str(small_disk / "data"), "log.index.size.max.bytes": "65536"}
    with KafkaBroker(tmp_path / "kafka", kafka_jars, properties=properties) as broker:
        ways = begin(broker)
        filler = fill(small_disk, 1 << 20)
        for way in ways:
            way.write(range(2, 8), 300, "x" * 2000)
        for way in ways:
            way.shipper.await_log("does not take messages")
            assert way.folder.waiting
        broker.kill()
        filler.unlink()
        broker.start()
        for way in ways:
            way.await_shipped()
            way.shipper.await_log("answers again")
            assert way.shipper.terminate() == 0
            assert way.ids() == [1_000_000, *expected(range(2, 8), 300)]
    assert "No space left on device" in broker.log_path.read_text("utf-8")


# Without its topics


def test_topic_that_is_deleted_while_it_ships_is_made_again(
    broker: KafkaBroker, begin: Begin
) -> None:
    ways = begin(broker)
    delete_topics(broker.bootstrap, [way.topic for way in ways])
    for way in ways:
        way.write(range(2, 12), 20)
    for way in ways:
        way.await_shipped()
        assert way.shipper.terminate() == 0
        # What the old topic had is gone with it; what was written after that is all there.
        assert [number for number in way.ids() if number >= 2_000_000] == expected(range(2, 12), 20)


# Empty-handed


def test_emptied_cluster_gets_the_backlog_and_its_loss_is_named(
    own_broker: KafkaBroker, begin: Begin
) -> None:
    ways = begin(own_broker)
    for way in ways:
        way.write(range(2, 5), 3)
        way.await_shipped()
        way.await_position(4)
    own_broker.kill()
    for way in ways:
        way.write(range(5, 8), 3)
        way.shipper.await_log("does not take messages")
    own_broker.forget()
    own_broker.start()
    for way in ways:
        way.await_shipped()
        line = way.shipper.await_log("Kafka no longer has")
        assert "journals up to sequence 4 (epoch 0)" in line
        assert way.ids() == expected(range(5, 8), 3)
        status_tells_until_acknowledged(way)
        assert way.shipper.terminate() == 0


def status_tells_until_acknowledged(way: Way) -> None:
    config = str(way.ship._config(99))

    def told() -> bool:
        command = [sys.executable, "-m", "firebird_cdc", "status", "--config", config]
        done = forked.run(command, capture_output=True, text=True)
        return "Kafka no longer has" in done.stdout

    way.shipper.await_that(told, "the loss in the status")
    command = [sys.executable, "-m", "firebird_cdc", "journal", "acknowledge", "--config", config]
    forked.run(command, check=True)
    way.shipper.await_that(lambda: not told(), "the loss gone from the status")
