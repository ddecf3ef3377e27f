"""Changes that are not sent as a snapshot has their rows: what a resumed journal makes of them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from columns import column

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import JournalWriter, Storage
from firebird_cdc.journal.shipper.delivery.send import JournalSend
from firebird_cdc.journal.shipper.delivery.sending import SendContext
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

DATABASE = "/srv/depot.fdb"
_COLUMNS = (column("ID", Storage.BIGINT, 1),)


class _Producer:
    """Keeps the values of the messages that it takes."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def produce(self, _: str, value: bytes, *__: Any, **___: Any) -> None:
        self.values.append(json.loads(value)["payload"])


@pytest.mark.parametrize("resume_after", [0, 3])
def test_they_do_not_count_in_their_transaction(tmp_path: Path, resume_after: int) -> None:
    """Neither when the journal is sent at once, nor when it goes on behind them."""
    journals = tmp_path / "journals"
    journals.mkdir()
    identity = uuid.uuid4()
    path = journals / f"{identity}.log"
    with JournalWriter(path, uuid=identity, database=DATABASE, user="SYSDBA") as writer:
        goods, read = writer.table("GOODS", _COLUMNS), writer.table("READ", _COLUMNS)
        for table in (goods, read, read, goods):
            writer.insert(table, (1,))
        writer.seal()
        writer.commit(1, 1)
        writer.stamp(1)
    config = tmp_path / "connector.yaml"
    config.write_text(
        f"connector.name: t\nconnector.journal.directory: {journals}\nkafka.topic.prefix: t\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nprovide.transaction.metadata: true\n"
    )
    renderer = Renderer(load_config(config), 1_000_000)
    plan = SendContext(journals, renderer, "UTF8", "fail", Statistics())
    send = JournalSend(
        plan,
        Entry(0, 1, identity),
        DATABASE,
        left_out_tables={"READ"},
        resume_after=resume_after,
    )
    producer: Any = _Producer()
    while not send.read_to_end:
        send.produce(producer, 300)
    send.close()
    *_, event, end = producer.values
    assert event["transaction"]["total_order"] == end["event_count"] == 2
    assert end["data_collections"] == [{"data_collection": f"{DATABASE}.GOODS", "event_count": 2}]
