"""The table of the feature reference's worked example, and journals with its rows rendered."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from columns import column

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
)

DATABASE = "/srv/fb/warehouse.fdb"
TOPIC = "depot._srv_fb_warehouse.fdb.SHIPMENT"


SHIPMENT = (
    column("SHIPMENT_ID", Storage.BIGINT, 1),
    column("CARRIER", Storage.TEXT, nullable=False),
    column("WEIGHT_KG", Storage.INTEGER, scale=-3, sub_type=1, precision=9),
    column("SEALED", Storage.BOOLEAN),
    column("DISPATCHED_AT", Storage.TIMESTAMP),
)
DISPATCHED = 61101 * 864_000_000 + ((9 * 60 + 14) * 60 + 7) * 10_000 + 1234

Render = Callable[..., list[Message]]
Fill = Callable[[JournalWriter], None]


def renderer_in(folder: Path) -> Render:
    """Return a function that renders all that FILL writes into a journal in FOLDER, with the
    options in LINES.

    With LEFT_OUT it leaves out bad events, as the shipper does under ``skip``.
    """

    def render(
        fill: Fill,
        *lines: str,
        database: str = DATABASE,
        transaction: int = 48213,
        sequence: int = 90312,
        commit_us: int = 1_772_442_848_250_000,
        identity: str = "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa",
        left_out: bool = False,
        resume_after: int = 0,
    ) -> list[Message]:
        path = folder / f"{identity}.log"
        path.unlink(missing_ok=True)
        writer = JournalWriter(
            path,
            uuid=UUID(identity),
            transaction=transaction,
            database=database,
            user="SYSDBA",
            started_us=commit_us,
        )
        fill(writer)
        writer.seal()
        writer.commit(1, commit_us)
        writer.stamp(sequence)
        writer.close()
        config_file = folder / "reddatabase.connector.yaml"
        config_file.write_text(
            "connector.name: depot-cdc\nconnector.journal.directory: /var/lib/journal\n"
            "kafka.producer.bootstrap.servers: localhost:9092\nkafka.topic.prefix: depot\n"
            + "".join(f"{line}\n" for line in lines)
        )
        config = load_config(config_file)
        renderer = Renderer(config, 1_000_000)
        with JournalReader(path) as reader:
            assert reader.stamp is not None
            journal = renderer.journal(reader.header, reader.stamp, reader.database)
            messages = []
            leniently = suppress(BadEvent) if left_out else nullcontext()
            for change in reader.changes():
                if not isinstance(change, RowChange | DdlChange):
                    continue
                if change.pos <= resume_after:
                    journal.pass_over(change)
                else:
                    with leniently:
                        made = journal.messages(change)
                        if journal.awaits_begin:
                            with leniently:
                                messages += journal.begin()
                        messages += made
            with leniently:
                messages += journal.finish()
            return messages

    return render


def insert(*row: Any, name: str = "SHIPMENT", columns: tuple[Column, ...] = SHIPMENT) -> Any:
    def fill(writer: JournalWriter) -> None:
        writer.insert(writer.table(name, columns), row)

    return fill


def update(old: tuple[Any, ...], new: tuple[Any, ...]) -> Any:
    return lambda writer: writer.update(writer.table("SHIPMENT", SHIPMENT), old, new)


def delete(old: tuple[Any, ...]) -> Any:
    return lambda writer: writer.delete(writer.table("SHIPMENT", SHIPMENT), old)


FIRST = (7001, "Nordline", 1284750, True, DISPATCHED)
SECOND = (7001, "Nordline", 1285000, True, DISPATCHED)
FIRST_JSON = {
    "SHIPMENT_ID": 7001,
    "CARRIER": "Nordline",
    "WEIGHT_KG": "E5qO",
    "SEALED": True,
    "DISPATCHED_AT": 1772442847123400,
}
SECOND_JSON = FIRST_JSON | {"WEIGHT_KG": "E5uI"}


def payload(message: Message) -> Any:
    return json.loads(message.value or "")["payload"]
