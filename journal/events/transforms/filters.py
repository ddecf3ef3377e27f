"""Transforms that drop records, and the predicates that choose the records of a transform."""

from __future__ import annotations

import re
from collections.abc import Mapping

from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.events.transforms.conditions import compile_condition
from firebird_cdc.journal.events.transforms.parameters import Parameters

_NULLS = ("keep", "drop", "evaluate")

_TRANSACTION_KEY = "io.debezium.connector.common.TransactionMetadataKey"
_TRANSACTION_VALUE = "io.debezium.connector.common.TransactionMetadataValue"


class Filter:
    """Keeps the records that meet a condition, as Debezium's ``Filter``; see ``conditions``."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """``condition``, ``topic.regex``, ``null.handling.mode``; ``language`` of old files."""
        given = Parameters(parameters)
        try:
            self._meets = compile_condition(given.text("condition"))
        except ValueError as error:
            if "condition" in given:
                given.refuse("condition", str(error))
        language = given.text("language", "jsr223.groovy")
        if not language.startswith("jsr223."):
            given.refuse("language", "only conditions as in jsr223.groovy are understood")
        self._topics: re.Pattern[str] | None = None
        if given.text("topic.regex", ""):
            self._topics = given.pattern("topic.regex")
        self._nulls = given.choice("null.handling.mode", _NULLS, "keep")
        given.finish()

    def apply(self, record: Record) -> Record | None:
        """The record if it is kept."""
        if self._topics is not None and self._topics.fullmatch(record.topic) is None:
            return record
        if record.value is None and self._nulls != "evaluate":
            return record if self._nulls == "keep" else None
        return record if self._meets(record) else None


class Drop:
    """Drops every record: Kafka's ``Filter``, which only makes sense with a predicate."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """It has no parameters of its own."""
        Parameters(parameters).finish()

    def apply(self, record: Record) -> None:
        """Nothing."""


class FilterTransactionTopicRecords:
    """Drops the BEGIN and END records, as the transform of Debezium's Vitess connector does."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """``schema.name.adjustment.mode`` of old files has no effect: the names stay."""
        given = Parameters(parameters)
        given.text("schema.name.adjustment.mode", "none")
        given.finish()

    def apply(self, record: Record) -> Record | None:
        """The record unless it is one of transaction metadata."""
        key, value = record.key_schema, record.value_schema
        if key is None or key.name != _TRANSACTION_KEY:
            return record
        return None if value is not None and value.name == _TRANSACTION_VALUE else record


class TopicNameMatches:
    """The predicate that a pattern matches the whole topic."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """``pattern``."""
        given = Parameters(parameters)
        self._pattern = given.pattern("pattern")
        given.finish()

    def test(self, record: Record) -> bool:
        """Tell whether the pattern matches the whole topic of the record."""
        return self._pattern.fullmatch(record.topic) is not None


class HasHeaderKey:
    """The predicate that a record has a header of that name."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """``name``."""
        given = Parameters(parameters)
        self._name = given.text("name")
        given.finish()

    def test(self, record: Record) -> bool:
        """Tell whether the record has a header of that name."""
        return any(header[0] == self._name for header in (*record.headers, *record.struct_headers))


class RecordIsTombstone:
    """The predicate that a record has no value."""

    def configure(self, parameters: Mapping[str, str]) -> None:
        """It has no parameters."""
        Parameters(parameters).finish()

    def test(self, record: Record) -> bool:
        """Tell whether the record has no value."""
        return record.value is None
