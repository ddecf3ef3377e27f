"""Writes keys and values as bytes: Kafka Connect's JSON, or what else the options name."""

from __future__ import annotations

from binascii import b2a_base64
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.families import AVRO, JSON, PYTHON
from firebird_cdc.errors import ConfigError, noting
from firebird_cdc.journal.events import json_bytes
from firebird_cdc.journal.events.avro import AvroConverter
from firebird_cdc.journal.events.extensions import ERRORS, described, make
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.schema_check import check_finite
from firebird_cdc.journal.events.values import BadValue

SCHEMAS_KEPT = 5000
"""Schemas whose written form is kept; more than the shapes of tables that are kept."""


class Converter(Protocol):
    """Kafka Connect's ``Converter``, its writing half."""

    carries_non_finite: bool
    """True if NaN and infinities have a form."""

    def from_connect(self, topic: str, schema: Schema | None, value: Any, /) -> bytes | None:
        """VALUE, in the physical form of SCHEMA, for TOPIC; None for null without a schema.

        Raises BadValue for what has no form. None for anything else makes an event that can't be
        sent: it would delete the row, or be without a key. A class of the user's own is made
        without arguments, and gets the options below ``key.converter.`` or ``value.converter.``
        through ``configure(parameters)``, with ``converter.type``, key or value, among them.
        """


class JsonConverter:
    """Connect's ``JsonConverter``: payload alone, or an object of schema and payload."""

    carries_non_finite = False

    def __init__(self, schemas_enable: bool) -> None:
        self._schemas_enable = schemas_enable
        self._heads: OrderedDict[Schema, bytes] = OrderedDict()

    def from_connect(self, _: str, schema: Schema | None, value: Any) -> bytes | None:
        """VALUE as JSON in UTF-8; raises BadValue."""
        if schema is None:
            if value is None:
                return None
            check_finite(value)  # with a schema it is checked by whoever made the value
        try:
            payload = json_bytes.dumps(value, _bytes_as_base64, _OPTIONS)
            if not self._schemas_enable:
                return payload
            head = self.head_of(schema)
        except TypeError as error:
            raise BadValue(f"it cannot be written as JSON: {error}") from error
        return b"".join((head, payload, b"}"))

    def frame(self, schema: Schema) -> tuple[bytes, bytes]:
        """Return the bytes before and behind the payload of values of SCHEMA."""
        return (self.head_of(schema), b"}") if self._schemas_enable else (b"", b"")

    def head_of(self, schema: Schema | None) -> bytes:
        """Return the bytes before a payload where schemas are written."""
        if schema is None:
            return b'{"schema":null,"payload":'
        return self._heads.get(schema) or self._add_head(schema)

    def _add_head(self, schema: Schema) -> bytes:
        described = json_bytes.dumps(schema.to_json(), _bytes_as_base64, _OPTIONS)
        head = b"".join((b'{"schema":', described, b',"payload":'))
        self._heads[schema] = head
        if len(self._heads) > SCHEMAS_KEPT:
            self._heads.popitem(last=False)
        return head


def dumps(value: Any) -> bytes:
    """VALUE, in the physical form of a schema, as a payload. Raises TypeError."""
    return json_bytes.dumps(value, _bytes_as_base64, _OPTIONS)


# Else orjson would write them in forms of its own, which no reader expects here.
_OPTIONS = json_bytes.OPT_PASSTHROUGH_DATACLASS | json_bytes.OPT_PASSTHROUGH_DATETIME


def _bytes_as_base64(value: Any) -> str:
    if isinstance(value, bytes):
        return b2a_base64(value, newline=False).decode("ascii")
    raise TypeError(f"a value of type {type(value).__name__} is no value of a Connect schema")


class _Own:
    """A converter of the user's: whatever it raises makes an event that can't be sent."""

    def __init__(self, path: str, parameters: Mapping[str, str]) -> None:
        self._path = path
        self._converter = make(path, parameters, "from_connect")
        self.carries_non_finite = bool(getattr(self._converter, "carries_non_finite", False))

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Return VALUE as the user's converter writes it; raises BadValue."""
        try:
            written = self._converter.from_connect(topic, schema, value)
        except BadValue:
            raise
        except ERRORS as error:
            raise BadValue(f"converter {self._path} failed: {described(error)}") from error
        if not isinstance(written, bytes | None):
            raise BadValue(
                f"converter {self._path} gave a Python {type(written).__name__}, neither bytes"
                " nor None"
            )
        if written is None and value is not None:  # it would be a tombstone, or have no key
            raise BadValue(f"converter {self._path} gave None for what is not null")
        return written


def build_converters(config: ConnectorConfig) -> tuple[Converter, Converter]:
    """The converters of keys and of values that CONFIG names. Raises ConfigError, SetupError."""
    problems: list[str] = []
    with noting(problems):
        key = _build(config, "key", config.key_converter, config.key_converter_options)
    with noting(problems):
        value = _build(config, "value", config.value_converter, config.value_converter_options)
    if problems:
        raise ConfigError(problems)
    return key, value


def _build(
    config: ConnectorConfig, subject: str, name: str, options: Mapping[str, str]
) -> Converter:
    is_key = subject == "key"
    if name == JSON:
        return JsonConverter(config.key_schemas_enable if is_key else config.value_schemas_enable)
    if name == AVRO:
        return AvroConverter(options, is_key=is_key)
    path = name.removeprefix(PYTHON)
    try:
        # Kafka Connect tells its converters so what they are for.
        return _Own(path, {**options, "converter.type": subject})
    except ConfigError as error:
        raise ConfigError(
            [f"{config.path}: {subject}.converter is {path}; {what}" for what in error.problems]
        ) from error
