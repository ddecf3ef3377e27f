"""Avro messages as they are compared: what their bytes say, whichever schema's id they bear.

The journals' side is written by the schema that the shipper would register, and read again, without
a registry; the topics' side is read by the registered schemas, which the driver has fetched. Both
give plain values, so that numbers of schemas and their versions make no difference. Needs fastavro
where it runs, in plain Python or compiled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from importlib import import_module
from io import BytesIO
from typing import Any

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.events.avro import avro_schema
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.values import BadValue
from firebird_cdc.journal.replay.audit.kafka.message_form import written

_HEAD = struct.Struct(">BI")
"""Layout of the bytes before the content of each message: a zero and the number of its schema."""

_UNFIT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, struct.error)


def _fastavro() -> Any:
    try:
        return import_module("fastavro")
    except ImportError:
        raise ReplayError(
            "the messages are Avro, and this Python has no fastavro to read them: pip install"
            " fastavro where the executors run, or send it along with --archives"
        ) from None


def _plain(described: Any) -> Any:
    """An Avro schema without logical types: values as they are stored."""
    if isinstance(described, dict):
        return {name: _plain(each) for name, each in described.items() if name != "logicalType"}
    return [_plain(each) for each in described] if isinstance(described, list) else described


class _Written(bytes):
    """JSON in the place of a message; ``sent``: bytes of the message itself."""

    sent: int


def sent_length(content: bytes) -> int:
    """Return how many bytes of a message CONTENT takes, which a converter or `LocalAvro` wrote."""
    return content.sent if isinstance(content, _Written) else len(content)


class LocalAvro:
    """Stands for the shipper's Avro converter where journals are rendered: gives JSON of what
    a reader of its message would get."""

    carries_non_finite = True

    def __init__(self) -> None:
        fastavro = _fastavro()
        self._parse: Callable[[Any], Any] = fastavro.parse_schema
        self._write, self._read = fastavro.schemaless_writer, fastavro.schemaless_reader
        self._known: dict[Schema | None, tuple[Any, Any, Any]] = {}

    def from_connect(self, _: str, schema: Schema | None, value: Any) -> bytes | None:
        """VALUE as JSON; raises BadValue."""
        if value is None:
            return None
        known = self._known.get(schema)
        if known is None:
            known = self._known[schema] = self._make(schema)
        parsed, plain, prepare = known
        content = BytesIO()
        try:
            self._write(content, parsed, value if prepare is None else prepare(value))
        except _UNFIT as error:
            raise BadValue(f"a value does not fit its Avro schema: {error}") from error
        told = _Written(written(self._read(BytesIO(content.getvalue()), plain, None)))
        told.sent = _HEAD.size + content.tell()
        return told

    def _make(self, schema: Schema | None) -> tuple[Any, Any, Any]:
        if schema is None:
            raise BadValue("it has no schema, and Avro needs one")
        described, prepare = avro_schema(schema)
        return self._parse(described), self._parse(_plain(described)), prepare


class AvroReader:
    """Makes values of messages by SCHEMAS, texts by their ids. Pickles as these."""

    def __init__(self, schemas: Mapping[int, str]) -> None:
        self._schemas = schemas
        self._known: dict[int, Any] = {}
        self._read: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        return AvroReader, (self._schemas,)

    def __call__(self, raw: bytes) -> Any:
        """Return the value that RAW encodes; raises ValueError if it has none of the schemas."""
        if len(raw) < _HEAD.size:
            raise ValueError("no Avro")
        magic, number = _HEAD.unpack_from(raw)
        if magic != 0 or number not in self._schemas:
            raise ValueError("no Avro of a known schema")
        if self._read is None:
            self._read = _fastavro().schemaless_reader
        parsed = self._known.get(number)
        if parsed is None:
            described = _plain(json.loads(self._schemas[number]))
            parsed = self._known[number] = _fastavro().parse_schema(described)
        content = BytesIO(raw)
        content.seek(_HEAD.size)
        try:
            return self._read(content, parsed, None)
        except (*_UNFIT, EOFError, StopIteration) as error:
            raise ValueError(str(error)) from error
