"""Routers: give records another topic by a regular expression, as those of Kafka and Debezium."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from firebird_cdc.journal.events.names import adjust_schema_name
from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.events.schema import STRING, Field, Schema
from firebird_cdc.journal.events.schema_check import SCHEMAS_KEPT
from firebird_cdc.journal.events.transforms.parameters import Parameters
from firebird_cdc.journal.events.transforms.unwrap import is_envelope
from firebird_cdc.journal.events.values import BadValue

TOPICS_KEPT = 10_000
"""Topics whose new name is kept; more than the tables that a server publishes."""

_PIECE = re.compile(r"\\(?P<escaped>.)|\$(?:\{(?P<name>[^}]*)\}|(?P<number>[0-9]+))|(?P<odd>[\\$])")


class RegexRouter:
    """Renames the topics that ``regex`` matches as a whole; others stay as they are."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """``regex``, and ``replacement`` with ``$1`` or ``${name}`` for its groups."""
        given = Parameters(parameters)
        self._names = _Renaming(given, "regex", "replacement")
        given.finish()

    def apply(self, record: Record) -> Record:
        """The record, with its new topic if it gets one."""
        topic = self._names.of(record.topic)
        return record if topic in (None, record.topic) else replace(record, topic=topic)


class ToLogicalTopicRouter:
    """Sends tables of one form to one topic: of many databases, or of many parts of a table.

    Schemas get the topic's name, and keys a field that tells where the row comes from.
    """

    _key_field = "__dbz__sourceIdentifier"

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Options as of Debezium's transform; the sizes of its caches have no effect."""
        given = Parameters(parameters)
        self._names = _Renaming(given, "topic.regex", "topic.replacement")
        self._is_unique = given.boolean("key.enforce.uniqueness", True)
        self._field = given.text("key.field.name", self._key_field)
        self._origins: _Renaming | None = None
        given.text("key.field.replacement", "")
        if given.text("key.field.regex", "").strip():
            self._origins = _Renaming(given, "key.field.regex", "key.field.replacement")
        modes = ("none", "avro", "avro_unicode")
        self._adjustment = given.choice("schema.name.adjustment.mode", modes, "none")
        for cache in ("logical.destination.cache.size", "logical.table.cache.size"):
            given.text(cache, "")
        given.finish()
        self._key_schema = lru_cache(SCHEMAS_KEPT)(self._make_key_schema)
        self._value_schema = lru_cache(SCHEMAS_KEPT)(self._make_value_schema)

    def apply(self, record: Record) -> Record:
        """The record, with topic, schemas and key for its destination if it has one."""
        topic = self._names.of(record.topic)
        if not topic:
            return record
        key_schema, key, value_schema = record.key_schema, record.key, record.value_schema
        if key_schema is not None and key is not None:
            key_schema = self._key_schema(key_schema, topic)
            if self._is_unique:
                key = {**key, self._field: self._origin(record.topic)}
        if value_schema is not None and record.value is not None and is_envelope(value_schema):
            value_schema = self._value_schema(value_schema, topic)
        return replace(
            record, topic=topic, key_schema=key_schema, key=key, value_schema=value_schema
        )

    def _origin(self, topic: str) -> str:
        found = None if self._origins is None else self._origins.of(topic)
        return topic if found is None else found

    def _name(self, topic: str, kind: str) -> str:
        return adjust_schema_name(f"{topic}.{kind}", self._adjustment)

    def _make_key_schema(self, schema: Schema, topic: str) -> Schema:
        fields = schema.fields
        if self._is_unique:
            if schema.field(self._field) is not None:
                raise BadValue(f"the key has a field {self._field} already; set key.field.name")
            fields = (*fields, Field(self._field, STRING))
        return replace(schema, name=self._name(topic, "Key"), fields=fields)

    def _make_value_schema(self, schema: Schema, topic: str) -> Schema:
        row = schema.field("before") or schema.field("after")
        assert row is not None  # an envelope has them
        row = replace(row, name=self._name(topic, "Value"))
        fields = tuple(
            Field(name, row if name in ("before", "after") else inner)
            for name, inner in schema.fields
        )
        return replace(schema, name=self._name(topic, "Envelope"), fields=fields)


class ByLogicalTableRouter(ToLogicalTopicRouter):
    """The same under its older name, with another name for the field in the key."""

    _key_field = "__dbz__physicalTableIdentifier"


class _Renaming:
    """A regular expression and what replaces its match, both as Java has them."""

    def __init__(self, given: Parameters, regex: str, replacement: str) -> None:
        self._regex = given.pattern(regex)
        self._parts: list[str | tuple[int | str]] = []
        try:
            self._parts = _parts(given.text(replacement), self._regex)
        except ValueError as error:
            given.refuse(replacement, str(error))
        self.of = lru_cache(TOPICS_KEPT)(self._of)

    def _of(self, topic: str) -> str | None:
        """Return the topic that TOPIC becomes, None if it does not match as a whole."""
        if self._regex.fullmatch(topic) is None:
            return None
        # Java's Matcher.replaceFirst searches anew, which finds less than the whole topic if an
        # earlier alternative fits: the rest then stays behind it.
        return self._regex.sub(self._expand, topic, count=1)

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(
            part if isinstance(part, str) else match[part[0]] or "" for part in self._parts
        )


def _parts(replacement: str, regex: re.Pattern[str]) -> list[str | tuple[int | str]]:
    """REPLACEMENT as Java's Matcher reads it: texts, and groups as tuples of number or name."""
    parts: list[str | tuple[int | str]] = []
    end = 0
    for piece in _PIECE.finditer(replacement):
        parts.append(replacement[end : piece.start()])
        end = piece.end()
        if piece["odd"]:
            raise ValueError(f"{piece['odd']} must be written as \\{piece['odd']} there")
        if piece["escaped"]:
            parts.append(piece["escaped"])
        elif piece["name"] is not None:
            if piece["name"] not in regex.groupindex:
                raise ValueError(f"regex has no group {piece['name']}")
            parts.append((piece["name"],))
        else:
            digits = piece["number"]
            # As many digits as make the number of a group; the first one counts in any case.
            length = max(
                (n for n in range(1, len(digits) + 1) if int(digits[:n]) <= regex.groups),
                default=0,
            )
            if not length:
                raise ValueError(f"regex has no group {digits[0]}")
            parts += [(int(digits[:length]),), digits[length:]]
    return [part for part in (*parts, replacement[end:]) if part]
