"""The whole way: engine, journals, the shipper's command, a broker, and Connect's own reader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from events import check
from kinds import KINDS, Modes
from pipeline import PREFIX, Sent
from reader import ConnectReader
from shipping import Folder, Ship, read_topics
from work import Column, Table, Work

from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.engine, pytest.mark.kafka]


@pytest.fixture
def ship(broker: KafkaBroker, tmp_path: Path) -> Iterator[Ship]:
    """A shipper, and a journal folder for this test alone."""
    made = Ship(Folder(tmp_path / "journals"), tmp_path, broker.bootstrap, PREFIX)
    made.options["connector.name"] = "proof-cdc"
    yield made
    made.close()


def test_shipped_topic_holds_all_changes_of_its_table(
    work: Work, connect: ConnectReader, ship: Ship, broker: KafkaBroker
) -> None:
    """Every type, changes of the key and their headers, deletes and tombstones.

    Headers are as the defaults of ours write them, and as those of a Connect read them.
    """
    columns = tuple(Column(f"C{n}", kind, nullable=n != 1) for n, kind in enumerate(KINDS))
    table = Table("SHIPPED", columns, (1,))
    work.create(table)
    for number in range(3):
        values = [kind.extremes[number % len(kind.extremes)] for kind in KINDS]
        assert work.insert(table, values)
        work.commit()
    first, second, third = work.rows(table)
    assert work.update(table, first, {1: 77})
    assert work.update(table, second, dict.fromkeys(set(range(len(KINDS))) - {1}))
    work.delete(table, third)
    work.commit()
    for journal in work.journals():
        os.link(journal, ship.folder.directory / journal.name)
    modes = Modes("string", "isostring", "hex")
    for line in modes.lines():
        name, _, value = line.partition(": ")
        ship.options[name] = value
    ship.options["include.schema.changes"] = "false"
    assert ship.once().process.returncode == 0
    assert not ship.folder.waiting
    stem = f"{PREFIX}.{work.database.replace('/', '_')}"
    [(topic, events)] = read_topics(
        broker.bootstrap, stem, decode=lambda content, _topic, _part: content
    ).items()
    sent = [
        Sent(topic, event.key, event.value, {n: it.encode() for n, it in event.headers.items()})
        for event in events
    ]
    check(connect, work.database, modes, work.committed, sent, "simple")
