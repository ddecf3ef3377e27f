"""Writes records as messages: transforms, converters, headers, and the limit on their size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.families import JSON
from firebird_cdc.errors import ConfigError, noting
from firebird_cdc.journal.events.converters import Converter, build_converters
from firebird_cdc.journal.events.headers import header_writer
from firebird_cdc.journal.events.records import Headers, Message, Record, StructHeader, new_message
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.transforms import build_transforms
from firebird_cdc.journal.events.values import TooLarge
from firebird_cdc.journal.events.versions import MessageForm

_OVERHEAD_BYTES = 128
"""Bytes that a message adds to its key, value and headers on the wire, as librdkafka counts too."""


class MessageWriter:
    """Makes messages of records as the options say.

    ``max_message_bytes``: the largest message that the producer takes. ``converters``: of keys and
    of values, None: those that CONFIG names. ``length``: of what they write, in a message.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        max_message_bytes: int,
        converters: tuple[Converter, Converter] | None,
        length: Callable[[bytes], int],
        message_form: MessageForm,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self._length = length
        problems: list[str] = []
        with noting(problems):
            self.key_converter, self.value_converter = converters or build_converters(config)
        with noting(problems):
            self.transforms = build_transforms(config)
        if problems:
            raise ConfigError(problems)
        self.only_writes_json = config.value_converter == JSON and not self.transforms
        self.require_topic: Callable[[str], None] = lambda _: None
        """Called with each topic before its first message; raises TopicUnavailable."""
        self.header_writer = header_writer(config, message_form, self.key_converter)
        # What transforms see of the headers, and what stands in messages.
        self._context: Headers = (
            [
                ("__debezium.context.connectorLogicalName", config.topic_prefix.encode()),
                ("__debezium.context.taskId", b"0"),
                ("__debezium.context.connectorName", config.connector_name.encode()),
            ]
            if config.extended_headers_enabled
            else []
        )
        self.headers = self._written_headers("", self._context, ())
        self.headers_size = self.size_of(self.headers)

    def message(
        self,
        topic: str,
        key_schema: Schema | None,
        key: Any,
        value_schema: Schema | None,
        value: Any,
        struct_headers: tuple[StructHeader, ...] = (),
    ) -> Message | None:
        """The message of a record, None if a transform drops it.

        Raises BadValue, RegistryRefused or RegistryUnavailable.
        """
        if self.transforms:
            return self._transformed(
                Record(topic, key_schema, key, value_schema, value, self._context, struct_headers)
            )
        headers, size = self.headers, self.headers_size
        if struct_headers:
            headers = self._written_headers(topic, self._context, struct_headers)
            size = self.size_of(headers)
        return self._written(topic, key_schema, key, value_schema, value, headers, size)

    def _transformed(self, record: Record) -> Message | None:
        for transform in self.transforms:
            changed = transform.apply(record)
            if changed is None:
                return None
            record = changed
        topic = record.topic
        self.require_topic(topic)
        headers = self._written_headers(topic, record.headers, record.struct_headers)
        return self._written(
            topic,
            record.key_schema,
            record.key,
            record.value_schema,
            record.value,
            headers,
            self.size_of(headers),
        )

    def _written(
        self,
        topic: str,
        key_schema: Schema | None,
        key: Any,
        value_schema: Schema | None,
        value: Any,
        headers: Headers,
        size: int,
    ) -> Message:
        """The message of a record; SIZE: what it has beside key and value."""
        key_bytes = self.key_converter.from_connect(topic, key_schema, key)
        value_bytes = self.value_converter.from_connect(topic, value_schema, value)
        return self.checked(topic, key_bytes, value_bytes, headers, size)

    def checked(
        self,
        topic: str,
        key_bytes: bytes | None,
        value_bytes: bytes | None,
        headers: Headers,
        size: int,
    ) -> Message:
        """The message, if the producer takes one so large; SIZE: what the rest of it has."""
        if key_bytes is not None:
            size += self._length(key_bytes)
        if value_bytes is not None:
            size += self._length(value_bytes)
        if size > self.max_message_bytes:
            raise TooLarge(
                f"its message has {size} bytes, the producer takes {self.max_message_bytes};"
                " raise kafka.producer.max.request.size (and the topic's max.message.bytes)"
            )
        return new_message(Message, (topic, key_bytes, value_bytes, headers))

    def size_of(self, headers: Headers) -> int:
        """Return how many bytes a message has beside its key and value."""
        size = _OVERHEAD_BYTES
        for name, value in headers:
            size += len(name.encode())
            if value is not None:
                size += self._length(value) if isinstance(value, bytes) else len(value.encode())
        return size

    def _written_headers(
        self, topic: str, headers: Headers, structs: tuple[StructHeader, ...]
    ) -> Headers:
        """The headers as they stand in a message. Raises BadValue."""
        writer = self.header_writer
        return [
            *((name, writer.plain(value)) for name, value in headers),
            *((header.name, writer.typed(topic, header)) for header in structs),
        ]
