"""The ``source`` block of events: where and when a change came from (features.md 4.4)."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from firebird_cdc import __version__
from firebird_cdc.journal.format import Header, Stamp
from firebird_cdc.journal.schema import (
    INT64,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    STRING,
    Schema,
    Struct,
    struct,
)

CONNECTOR = "firebird"

SNAPSHOT = Schema(
    "string",
    optional=True,
    name="io.debezium.data.Enum",
    version=1,
    parameters={"allowed": "true,last,false,incremental"},
    default="false",
)

SOURCE = struct(
    "io.debezium.connector.firebird.Source",
    ("version", STRING),
    ("connector", STRING),
    ("name", STRING),
    ("ts_ms", INT64),
    ("ts_us", INT64),
    ("ts_ns", INT64),
    ("snapshot", SNAPSHOT),
    ("db", STRING),
    ("sequence", OPTIONAL_STRING),
    ("table", STRING),
    ("txId", OPTIONAL_INT64),
    ("commitSeq", OPTIONAL_INT64),
    ("journal", OPTIONAL_STRING),
    ("pos", OPTIONAL_INT64),
    ("snapshotNumber", OPTIONAL_INT64),
)


def source_of_table(prefix: str, header: Header, stamp: Stamp, database: str, table: str) -> Struct:
    """The block for the events of TABLE in one journal; ``at_position`` completes it.

    PREFIX: the logical server name, ``kafka.topic.prefix``. DATABASE: its full path.
    """
    commit_us = stamp.commit_us
    return {
        "version": __version__,
        "connector": CONNECTOR,
        "name": prefix,
        "ts_ms": commit_us // 1000,
        "ts_us": commit_us,
        "ts_ns": commit_us * 1000,
        "snapshot": "false",
        "db": database,
        "sequence": None,
        "table": table,
        "txId": header.transaction,
        "commitSeq": stamp.sequence,
        "journal": str(header.uuid),
        "pos": None,
        "snapshotNumber": None,
    }


def at_position(source: Struct, pos: int) -> Struct:
    """SOURCE for the event POS of its journal, from 1."""
    return {**source, "sequence": f'["{source["commitSeq"]}","{pos}"]', "pos": pos}


def written_at_position(source: Struct) -> Callable[[int], orjson.Fragment]:
    """What gives ``at_position`` of SOURCE as JSON that is written already, but for the position.

    For records that nothing looks into before they become JSON: it takes half the time.
    """
    mark = "\0"  # a text that no part of the block can be
    text = orjson.dumps({**source, "sequence": mark, "pos": mark}).decode()
    head, middle, tail = text.split(orjson.dumps(mark).decode())
    head += orjson.dumps(f'["{source["commitSeq"]}","').decode()[:-1]
    middle = orjson.dumps('"]').decode()[1:] + middle
    fragment = orjson.Fragment
    return lambda pos: fragment(f"{head}{pos}{middle}{pos}{tail}")
