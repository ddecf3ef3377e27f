"""The ``source`` block of events: where and when a change came from (docs/events.md, "Value")."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from firebird_cdc import __version__
from firebird_cdc.journal.events import json_bytes
from firebird_cdc.journal.events.schema import (
    INT64,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    STRING,
    Schema,
    Struct,
    struct,
)
from firebird_cdc.journal.events.templates import UUID_SLOT, number_slot
from firebird_cdc.journal.events.versions import MessageForm
from firebird_cdc.journal.format import Header, Stamp
from firebird_cdc.journal.format.layout import new_tuple

CONNECTOR = "firebird"

_SNAPSHOT = Schema(
    "string", optional=True, name="io.debezium.data.Enum", version=1, default="false"
)

_FIELDS = (
    ("version", STRING),
    ("connector", STRING),
    ("name", STRING),
    ("ts_ms", INT64),
    ("ts_us", INT64),
    ("ts_ns", INT64),
    ("snapshot", _SNAPSHOT),
    ("db", STRING),
    ("sequence", OPTIONAL_STRING),
    ("table", STRING),
    ("txId", OPTIONAL_INT64),
    # Optional, though every event has it: registries take a field without default for a breach.
    ("epoch", OPTIONAL_INT64),
    ("commitSeq", OPTIONAL_INT64),
    ("journal", OPTIONAL_STRING),
    ("pos", OPTIONAL_INT64),
    ("snapshotNumber", OPTIONAL_INT64),
)


@lru_cache
def source_schema(form: MessageForm) -> Schema:
    """Return the schema of the blocks of messages in FORM."""
    snapshot = replace(_SNAPSHOT, parameters={"allowed": form.snapshot_values})
    fields = ((name, snapshot if schema is _SNAPSHOT else schema) for name, schema in _FIELDS)
    return struct("io.debezium.connector.firebird.Source", *fields, version=form.source_version)


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
        "epoch": epoch_of(stamp),
        "commitSeq": stamp.sequence,
        "journal": str(header.uuid),
        "pos": None,
        "snapshotNumber": None,
    }


def at_position(source: Struct, pos: int) -> Struct:
    """Return SOURCE for the event POS of its journal, from 1."""
    epoch = source["epoch"]
    first = "" if epoch is None else f'"{epoch}",'
    return {**source, "sequence": f'[{first}"{source["commitSeq"]}","{pos}"]', "pos": pos}


def epoch_of(stamp: Stamp) -> int | None:
    """Return what events tell as their epoch. Earlier versions told none: the audit imitates that,
    to learn where it shows."""
    return stamp.epoch


class JournalFacts(NamedTuple):
    """Facts that the blocks of a journal's events share and those of others don't: for a template.
    ``numbers``: time of the commit in ms, us and ns, epoch, sequence and transaction; the place
    behind them is that of the event's position."""

    uuid: bytes
    numbers: tuple[int, int, int, int, int, int]


def facts_of(uuid: UUID, transaction: int, stamp: Stamp) -> JournalFacts:
    """Return the facts of journal UUID."""
    epoch, sequence, commit_us = stamp[:3]
    ms, ns = commit_us // 1000, commit_us * 1000
    numbers = (ms, commit_us, ns, epoch, sequence, transaction)
    return new_tuple(JournalFacts, (uuid.bytes, numbers))


POSITION = 6
"""Place of an event's position among the numbers of a template."""

_MS, _US, _NS, _EPOCH, _SEQUENCE, _TRANSACTION, _POS = map(number_slot, range(POSITION + 1))


def source_template(prefix: str, database: str, table: str) -> bytes:
    """Return a template of the blocks of a table, to be filled with `JournalFacts` and the event's
    position. PREFIX, DATABASE and TABLE as for ``source_of_table``.

    For records that nothing looks into before they become JSON: it takes a tenth of the time.
    """
    mark = "\0"  # a text that no part of the block can be
    nobody = UUID(int=0)
    header = Header(nobody, 0, 0, nobody, nobody)
    block = source_of_table(prefix, header, Stamp(0, 0, 0, 0, 0, 0, 0), database, table)
    block.update(dict.fromkeys(_DIFFERING, mark))
    pieces = json_bytes.dumps(block).split(json_bytes.dumps(mark))
    first, *rest = pieces
    sequence = b'"[\\"%s\\",\\"%s\\",\\"%s\\"]"' % (_EPOCH, _SEQUENCE, _POS)
    values = (
        _MS, _US, _NS, sequence, _TRANSACTION, _EPOCH, _SEQUENCE, b'"%s"' % UUID_SLOT, _POS,
    )  # fmt: skip
    return first + b"".join(value + piece for value, piece in zip(values, rest, strict=True))


# What differs from event to event, in the order in which it stands in the block.
_DIFFERING = (
    "ts_ms", "ts_us", "ts_ns", "sequence", "txId", "epoch", "commitSeq", "journal", "pos",
)  # fmt: skip
