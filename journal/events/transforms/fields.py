"""RemoveField: takes fields out of values, as the transform of Debezium's Vitess connector does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.events.schema import Field, Schema
from firebird_cdc.journal.events.schema_check import SCHEMAS_KEPT
from firebird_cdc.journal.events.transforms.parameters import Parameters

_Names = dict[str, "_Names"]
"""Fields to remove, by name, each with those to remove inside it; none means all of it."""


class RemoveField:
    """Removes fields of the value, named by their path: ``transaction.id``.

    A path that a record does not have is no error there. A struct that is named is removed as a
    whole; Vitess' own transform leaves it.
    """

    def configure(self, parameters: Mapping[str, str]) -> None:
        """``field_names``: comma separated paths."""
        given = Parameters(parameters)
        self._names: _Names = {}
        for path in given.items("field_names", None):
            if not all(path.split(".")):
                given.refuse("field_names", f"{path} is no path: a field name is empty")
            _add(self._names, path.split("."))
        given.finish()
        self._schema = lru_cache(SCHEMAS_KEPT)(self._make_schema)

    def apply(self, record: Record) -> Record:
        """The record without the fields; itself if its value has none of them."""
        schema = record.value_schema
        if schema is None or record.value is None:
            return record
        remaining = self._schema(schema)
        if remaining is schema:
            return record
        return replace(record, value_schema=remaining, value=_without(record.value, self._names))

    def _make_schema(self, schema: Schema) -> Schema:
        return _schema_without(schema, self._names)


def _add(names: _Names, path: list[str]) -> None:
    """Add PATH to NAMES; what is removed as a whole stays so."""
    first, *rest = path
    if not rest:
        names[first] = {}
    elif first not in names:
        names[first] = {}
        _add(names[first], rest)
    elif names[first]:
        _add(names[first], rest)


def _schema_without(schema: Schema, names: _Names) -> Schema:
    """SCHEMA without the fields NAMES; the same object if it has none of them."""
    fields = []
    for name, inner in schema.fields:
        if name not in names:
            fields.append(Field(name, inner))
        elif names[name]:
            fields.append(Field(name, _schema_without(inner, names[name])))
    same = len(fields) == len(schema.fields) and all(
        new.schema is old.schema for new, old in zip(fields, schema.fields, strict=True)
    )
    return schema if same else replace(schema, fields=tuple(fields))


def _without(value: Any, names: _Names) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: _without(inner, names[name]) if name in names else inner
        for name, inner in value.items()
        if name not in names or names[name]
    }
