"""A record on its way to Kafka: key and value with their schemas, before they are bytes.

It is Kafka Connect's ``SourceRecord``: what transforms take and give, and converters write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from firebird_cdc.journal.events.schema import Schema

Headers = list[tuple[str, str | bytes | None]]


class StructHeader(NamedTuple):
    """A header whose value has a schema, e.g. ``__debezium.newkey``; see ``header.converter``."""

    name: str
    schema: Schema
    value: Any


class AddedHeader(StructHeader):
    """One that a transform made of a field; versions before 0.2 wrote it as text."""

    __slots__ = ()


@dataclass(slots=True)
class Record:
    """One record. Records share their schemas and their ``headers``: replace, don't change them.

    A ``key`` or ``value`` is in the physical form of its schema (see ``journal.events.schema``);
    both None with schema None mean null: a keyless table's key, a tombstone's value.
    """

    topic: str
    key_schema: Schema | None
    key: Any
    value_schema: Schema | None
    value: Any
    headers: Headers
    struct_headers: tuple[StructHeader, ...] = ()


class Message(NamedTuple):
    """Message for the producer. ``value`` None is a tombstone, ``key`` None a keyless table."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


# Half the time of calling the class, for the most frequent object that is made here.
new_message = tuple.__new__
