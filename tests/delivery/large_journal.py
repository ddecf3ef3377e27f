"""One transaction with millions of rows: streamed in little memory, every row once and in order."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from shipping import Folder, Ship

from firebird_cdc.demo.events import ends_of
from firebird_cdc.demo.kafka import KafkaBroker

MOST_MIB = 150


def ship_large(directory: Path, broker: KafkaBroker, rows: int, *, transactional: bool) -> str:
    """Ship a journal of ROWS rows; returns what it took. Raises AssertionError at any fault."""
    directory.mkdir()
    prefix = f"large{uuid.uuid4().hex[:8]}"
    folder = Folder(directory / "journals")
    ship = Ship(folder, directory, broker.bootstrap, prefix)
    ship.options |= {
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"{prefix}-id"
    folder.write(1, rows=rows, first_id=0)
    began = time.monotonic()
    shipper = ship.start("--once")
    code, peak = shipper.run_to_end()
    seconds = time.monotonic() - began
    assert code == 0, shipper.log
    assert not folder.waiting
    assert peak < MOST_MIB, f"{peak:.0f} MiB"
    found = _read_ids(broker.bootstrap, f"{prefix}._srv_fb_warehouse.fdb.ITEM")
    assert found == rows, f"{found} of {rows} rows came"
    way = "transactional" if transactional else "plain"
    return f"a journal of {rows} rows ({way}): {seconds:.0f} s, {peak:.0f} MiB at the peak"


def _read_ids(bootstrap: str, topic: str) -> int:
    """Return how many rows are there as they should be, one after the other."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    # A commit is confirmed before it is seen: the end is that of all that was written.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    end = ends_of(admin, [TopicPartition(topic, 0)])[topic, 0]
    consumer.assign([TopicPartition(topic, 0, 0)])
    due = 0
    try:
        while True:
            for message in consumer.consume(10_000, 30):
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    if message.offset() >= end:
                        return due
                    continue
                assert message.key() == b'{"ID":%d}' % due, f"{message.key()} where {due} was due"
                due += 1
    finally:
        consumer.close()
