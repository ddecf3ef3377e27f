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
from firebird_cdc.journal.format import Stamp
from firebird_cdc.journal.format.layout import new_tuple

CONNECTOR = "firebird"

CHANGES = "false"
"""Value of ``snapshot`` in events that no snapshot read."""

_SNAPSHOT = Schema(
    "string", optional=True, name="io.debezium.data.Enum", version=1, default=CHANGES
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


class SourceFacts(NamedTuple):
    """Facts that the source blocks of a journal's events share, or those of rows that were read in
    one window of a snapshot.

    ``numbers``: time in ms, us and ns, epoch and sequence of the journal, and the number of the
    transaction or, for rows, of the snapshot. In templates the position of the event follows.
    """

    uuid: bytes
    numbers: tuple[int, int, int, int, int, int]


def facts_of(uuid: UUID, transaction: int, stamp: Stamp) -> SourceFacts:
    """Return the facts of journal UUID."""
    epoch, sequence, commit_us = stamp[:3]
    ms, ns = commit_us // 1000, commit_us * 1000
    numbers = (ms, commit_us, ns, epoch, sequence, transaction)
    return new_tuple(SourceFacts, (uuid.bytes, numbers))


def source_of_table(
    prefix: str, database: str, table: str, facts: SourceFacts, snapshot: str = CHANGES
) -> Struct:
    """Return the block for events of TABLE that have FACTS; ``at_position`` completes it.

    PREFIX: the logical server name, ``kafka.topic.prefix``. DATABASE: its full path. SNAPSHOT: what
    the field of this name says, `CHANGES` of the events of a journal.
    """
    ms, us, ns, epoch, sequence, number = facts.numbers
    is_change = snapshot == CHANGES
    return {
        "version": __version__,
        "connector": CONNECTOR,
        "name": prefix,
        "ts_ms": ms,
        "ts_us": us,
        "ts_ns": ns,
        "snapshot": snapshot,
        "db": database,
        "sequence": None,
        "table": table,
        "txId": number if is_change else None,
        "epoch": told_epoch(epoch),
        "commitSeq": sequence,
        "journal": str(UUID(bytes=facts.uuid)),
        "pos": None,
        "snapshotNumber": None if is_change else number,
    }


def at_position(source: Struct, pos: int) -> Struct:
    """Return SOURCE for the event POS of its journal, or row of its window, from 1."""
    epoch = source["epoch"]
    first = "" if epoch is None else f'"{epoch}",'
    return {**source, "sequence": f'[{first}"{source["commitSeq"]}","{pos}"]', "pos": pos}


def told_epoch(epoch: int) -> int | None:
    """Return what events tell as their epoch. Earlier versions told none: the audit imitates that,
    to learn where it shows."""
    return epoch


POSITION = 6
"""Place of an event's position among the numbers of a template."""

_MS, _US, _NS, _EPOCH, _SEQUENCE, _NUMBER, _POS = map(number_slot, range(POSITION + 1))

# What differs from event to event of a table.
_SLOTS = {
    "ts_ms": _MS,
    "ts_us": _US,
    "ts_ns": _NS,
    "sequence": b'"[\\"%s\\",\\"%s\\",\\"%s\\"]"' % (_EPOCH, _SEQUENCE, _POS),
    "epoch": _EPOCH,
    "commitSeq": _SEQUENCE,
    "journal": b'"%s"' % UUID_SLOT,
    "pos": _POS,
}


def source_template(prefix: str, database: str, table: str, snapshot: str) -> bytes:
    """Return a template of the blocks of a table, to be filled with `SourceFacts` and the event's
    position. PREFIX, DATABASE, TABLE and SNAPSHOT as for ``source_of_table``.

    For records that nothing looks into before they become JSON: it takes a tenth of the time.
    """
    mark = "\0"  # a text that no part of the block can be
    slots = {**_SLOTS, "txId" if snapshot == CHANGES else "snapshotNumber": _NUMBER}
    nothing = SourceFacts(bytes(16), (0, 0, 0, 0, 0, 0))
    block = source_of_table(prefix, database, table, nothing, snapshot)
    block.update(dict.fromkeys(slots, mark))
    first, *rest = json_bytes.dumps(block).split(json_bytes.dumps(mark))
    values = (slots[name] for name in block if name in slots)
    return first + b"".join(value + piece for value, piece in zip(values, rest, strict=True))
