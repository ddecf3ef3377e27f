"""Transaction metadata: BEGIN and END records, and the ``transaction`` block of events.

Forms follow Debezium's ``SchemaFactory``, the ordered block that of its Vitess connector with
numbers for ranks; docs/events.md, "Transactions", says what counts as an
event.
"""

from __future__ import annotations

from firebird_cdc.journal.events.records import Headers, Record
from firebird_cdc.journal.events.schema import (
    INT64,
    OPTIONAL_INT64,
    STRING,
    Schema,
    Struct,
    struct,
)
from firebird_cdc.journal.format import Header, Stamp

_BLOCK_FIELDS = (("id", STRING), ("total_order", INT64), ("data_collection_order", INT64))

BLOCK = struct("event.block", *_BLOCK_FIELDS, version=1, optional=True)

ORDERED_BLOCK = struct(
    "event.block",
    *_BLOCK_FIELDS,
    ("transaction_rank", OPTIONAL_INT64),
    ("transaction_epoch", OPTIONAL_INT64),
    version=1,
    optional=True,
)

KEY = struct("io.debezium.connector.common.TransactionMetadataKey", ("id", STRING), version=1)

_COLLECTION = struct(
    "event.collection",
    ("data_collection", STRING),
    ("event_count", INT64),
    version=1,
    optional=True,
)

VALUE = struct(
    "io.debezium.connector.common.TransactionMetadataValue",
    ("status", STRING),
    ("id", STRING),
    ("ts_ms", INT64),
    ("event_count", OPTIONAL_INT64),
    ("data_collections", Schema("array", optional=True, items=_COLLECTION)),
    version=1,
)


class TransactionMetadata:
    """Counts the events of one transaction.

    Whoever makes an event asks for its ``block``, and says with ``count`` that it is sent; so
    an event that turns out to be bad leaves no hole. ``began``: whether one was counted.
    """

    def __init__(
        self, header: Header, stamp: Stamp, database: str, *, topic: str, ordered: bool
    ) -> None:
        self.id = f"{database}:{header.transaction}"
        self._database = database
        self._topic = topic
        self._ts_ms = stamp.commit_us // 1000
        self._order = (
            {"transaction_rank": stamp.sequence, "transaction_epoch": stamp.epoch}
            if ordered
            else {}
        )
        self._total = 0
        self._of_table: dict[str, int] = {}

    @property
    def began(self) -> bool:
        """Tell whether the transaction has an event."""
        return self._total > 0

    def block(self, table: str, after: int = 0) -> Struct:
        """The block of the next event of TABLE, or of the one AFTER so many more of it."""
        return {
            "id": self.id,
            "total_order": self._total + 1 + after,
            "data_collection_order": self._of_table.get(table, 0) + 1 + after,
            **self._order,
        }

    def count(self, table: str, events: int) -> None:
        """EVENTS more of TABLE are sent."""
        self._total += events
        self._of_table[table] = self._of_table.get(table, 0) + events

    def begin(self, headers: Headers) -> Record:
        """The record that goes before the first event."""
        return self._record("BEGIN", None, None, headers)

    def end(self, headers: Headers) -> Record:
        """The record that goes after the last event, with the counts."""
        collections = [
            {"data_collection": f"{self._database}.{table}", "event_count": count}
            for table, count in self._of_table.items()
        ]
        return self._record("END", self._total, collections, headers)

    def _record(
        self, status: str, events: int | None, collections: list[Struct] | None, headers: Headers
    ) -> Record:
        value = {
            "status": status,
            "id": self.id,
            "ts_ms": self._ts_ms,
            "event_count": events,
            "data_collections": collections,
        }
        return Record(self._topic, KEY, {"id": self.id}, VALUE, value, headers)
