"""Records of one table for tests of transforms, and what makes transforms of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from firebird_cdc.config import ConnectorConfig, load_config
from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.events.schema import (
    INT64,
    OPTIONAL_INT64,
    STRING,
    Schema,
    Struct,
    struct,
)
from firebird_cdc.journal.events.source import (
    at_position,
    facts_of,
    source_of_table,
    source_schema,
)
from firebird_cdc.journal.events.transforms import build_transforms
from firebird_cdc.journal.events.versions import TODAY
from firebird_cdc.journal.format import Header, Stamp

TOPIC = "depot._srv_fb_warehouse.fdb.SHIPMENT"
KEY = struct(f"{TOPIC}.Key", ("ID", INT64))
DECIMAL = Schema(
    "bytes",
    optional=True,
    name="org.apache.kafka.connect.data.Decimal",
    version=1,
    parameters={"scale": "3", "connect.decimal.precision": "9"},
)
VARIABLE_DECIMAL = struct(
    "io.debezium.data.VariableScaleDecimal",
    ("scale", Schema("int32")),
    ("value", Schema("bytes")),
    version=1,
    optional=True,
)
ROW = struct(
    f"{TOPIC}.Value",
    ("ID", INT64),
    ("CARRIER", Schema("string", optional=True)),
    ("WEIGHT", DECIMAL),
    ("FACTOR", Schema("double", optional=True)),
    ("RATE", VARIABLE_DECIMAL),
    optional=True,
)
BLOCK = struct(
    "event.block",
    ("id", STRING),
    ("total_order", INT64),
    ("data_collection_order", INT64),
    version=1,
    optional=True,
)
ENVELOPE = struct(
    f"{TOPIC}.Envelope",
    ("before", ROW),
    ("after", ROW),
    ("source", source_schema(TODAY)),
    ("op", STRING),
    ("ts_ms", OPTIONAL_INT64),
    ("transaction", BLOCK),
)
TRANSACTION_KEY = struct(
    "io.debezium.connector.common.TransactionMetadataKey", ("id", STRING), version=1
)
TRANSACTION_VALUE = struct(
    "io.debezium.connector.common.TransactionMetadataValue",
    ("status", STRING),
    ("id", STRING),
    version=1,
)

_ID = UUID("6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa")
_HEADER = Header(_ID, 48213, 1772442848000000, _ID, _ID)
_STAMP = Stamp(0, 90312, 1772442848250000, 1772442848250000, 4096, 1, 48213)

OLD: Struct = {
    "ID": 7001,
    "CARRIER": "Nordline",
    "WEIGHT": b"\x13\x9a\x8e",  # 1284.750
    "FACTOR": 0.1,
    "RATE": {"scale": 1, "value": b"\x0f"},
}
NEW: Struct = {**OLD, "CARRIER": "Südwest"}


def event(op: str, **changes: Any) -> Record:
    """The record of an insert, update or delete of one row."""
    facts = facts_of(_ID, 48213, _STAMP)
    source = at_position(source_of_table("depot", "/srv/fb/warehouse.fdb", "SHIPMENT", facts), 1)
    value = {
        "before": None if op == "c" else OLD,
        "after": None if op == "d" else NEW,
        "source": source,
        "op": op,
        "ts_ms": 1772442848277,
        "transaction": {"id": "t:48213", "total_order": 3, "data_collection_order": 2},
    }
    return replace(Record(TOPIC, KEY, {"ID": 7001}, ENVELOPE, value, [("h", b"1")]), **changes)


def tombstone() -> Record:
    return Record(TOPIC, KEY, {"ID": 7001}, None, None, [("h", b"1")])


def transaction_end() -> Record:
    value = {"status": "END", "id": "t:1"}
    return Record("depot.transaction", TRANSACTION_KEY, {"id": "t:1"}, TRANSACTION_VALUE, value, [])


Apply = Callable[[Record], Record | None]


def config_with(tmp_path: Path, *lines: str) -> ConnectorConfig:
    """Return the configuration that has LINES and the least that there must be."""
    path = tmp_path / "reddatabase.connector.yaml"
    least = (
        "connector.name: c",
        f"connector.journal.directory: {tmp_path}",
        "kafka.producer.bootstrap.servers: localhost:9092",
        "kafka.topic.prefix: depot",
    )
    path.write_text("\n".join((*least, *lines)), "utf-8")
    return load_config(path)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Apply]:
    """Make the transforms of a configuration with these lines."""

    def build(*lines: str) -> Apply:
        steps = build_transforms(config_with(tmp_path, *lines))

        def apply(record: Record) -> Record | None:
            result: Record | None = record
            for step in steps:
                if result is not None:
                    result = step.apply(result)
            return result

        return apply

    return build


@pytest.fixture
def unwrap(build: Callable[..., Apply]) -> Callable[..., Apply]:
    """Make the unwrap transform with these parameters."""

    def unwrap(**parameters: str) -> Apply:
        lines = [f"transforms.u.{name.replace('_', '.')}: {x}" for name, x in parameters.items()]
        kind = "io.debezium.transforms.ExtractNewRecordState"
        return build("transforms: u", f"transforms.u.type: {kind}", *lines)

    return unwrap


@pytest.fixture
def kept(build: Callable[..., Apply]) -> Callable[[str, Record], bool]:
    """Tell whether a filter with that condition keeps a record."""

    def kept(condition: str, record: Record) -> bool:
        quoted = condition.replace("'", "''")
        apply = build(
            "transforms: f",
            "transforms.f.type: io.debezium.transforms.Filter",
            "transforms.f.null.handling.mode: evaluate",
            f"transforms.f.condition: '{quoted}'",
        )
        return apply(record) is record

    return kept
