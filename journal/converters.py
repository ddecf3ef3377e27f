"""Writes keys and values as bytes: Kafka Connect's JSON, or what else the options name."""

from __future__ import annotations

from binascii import b2a_base64
from collections import OrderedDict
from typing import Any, Protocol

import orjson

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.schema import Schema
from firebird_cdc.journal.values import BadValue

SCHEMAS_KEPT = 5000
"""Schemas whose written form is kept; more than the shapes of tables that are kept."""


class Converter(Protocol):
    """Kafka Connect's ``Converter``, its writing half."""

    carries_non_finite: bool
    """Whether NaN and infinities have a form."""

    def from_connect(self, topic: str, schema: Schema | None, value: Any, /) -> bytes | None:
        """VALUE, in the physical form of SCHEMA, for TOPIC; None for null without a schema.

        Raises BadValue for what has no form.
        """


class JsonConverter:
    """Connect's ``JsonConverter``: payload alone, or an object of schema and payload."""

    carries_non_finite = False

    def __init__(self, schemas_enable: bool) -> None:
        self._schemas_enable = schemas_enable
        self._heads: OrderedDict[Schema, bytes] = OrderedDict()

    def from_connect(self, _: str, schema: Schema | None, value: Any) -> bytes | None:
        """VALUE as JSON in UTF-8; raises BadValue."""
        if schema is None and value is None:
            return None
        try:
            payload = orjson.dumps(value, _bytes_as_base64, _OPTIONS)
        except TypeError as error:
            raise BadValue(f"it cannot be written as JSON: {error}") from error
        if not self._schemas_enable:
            return payload
        head = self._heads.get(schema) if schema is not None else b'{"schema":null,"payload":'
        if head is None:
            assert schema is not None
            head = self._add_head(schema)
        return b"".join((head, payload, b"}"))

    def _add_head(self, schema: Schema) -> bytes:
        head = b"".join((b'{"schema":', orjson.dumps(schema.to_json()), b',"payload":'))
        self._heads[schema] = head
        if len(self._heads) > SCHEMAS_KEPT:
            self._heads.popitem(last=False)
        return head


# Else orjson would write them in forms of its own, which no reader expects here.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def _bytes_as_base64(value: Any) -> str:
    if isinstance(value, bytes):
        return b2a_base64(value, newline=False).decode("ascii")
    raise TypeError(f"a value of type {type(value).__name__} is no value of a Connect schema")


def build_converters(config: ConnectorConfig) -> tuple[Converter, Converter]:
    """The converters of keys and of values that CONFIG names."""
    return (
        JsonConverter(config.key_schemas_enable),
        JsonConverter(config.value_schemas_enable),
    )
