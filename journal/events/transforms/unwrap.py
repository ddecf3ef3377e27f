"""Unwrap: takes the row out of the envelope, as Debezium's ``ExtractNewRecordState`` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from firebird_cdc.journal.events.records import AddedHeader, Record, StructHeader
from firebird_cdc.journal.events.schema import OPTIONAL_STRING, Field, Schema, Struct
from firebird_cdc.journal.events.schema_check import SCHEMAS_KEPT
from firebird_cdc.journal.events.transforms.parameters import Parameters
from firebird_cdc.journal.events.values import BadValue

_DELETED = "__deleted"
_ENVELOPE = ".Envelope"


def is_envelope(schema: Schema) -> bool:
    """Tell whether SCHEMA is that of a change event, by its name, as Debezium tells."""
    return schema.name is not None and schema.name.endswith(_ENVELOPE)


class _Deletes(NamedTuple):
    """Handling of a delete, and whether the tombstone behind it stays."""

    delete: str  # drop; null: the row's schema without a row; tombstone; rewrite
    keep_tombstone: bool


_MODES = {
    "drop": _Deletes("drop", False),
    "tombstone": _Deletes("null", False),
    "rewrite": _Deletes("rewrite", False),
    "rewrite-with-tombstone": _Deletes("rewrite", True),
    "delete-to-tombstone": _Deletes("tombstone", False),
}

_OLD_MODES = {"drop": "drop", "rewrite": "rewrite", "none": "null"}

_OF_TRANSACTION = ("id", "data_collection_order", "total_order")
_OF_ENVELOPE = ("op", "ts_ms", "ts_us", "ts_ns")


class _Reference:
    """A field of the envelope that is added to the row or the headers, e.g. ``source.ts_ms:AT``."""

    def __init__(self, prefix: str, text: str) -> None:
        path, _, new_name = text.partition(":")
        outer, dot, inner = path.strip().partition(".")
        self.field = inner if dot else outer
        self.struct = outer if dot else _struct_of(self.field)
        name = new_name.strip() or (f"{outer}_{inner}" if dot else outer)
        self.new_name = prefix + name

    def schema(self, envelope: Schema) -> Schema | None:
        """The schema of the field in ENVELOPE, optional; None if it has no such field."""
        parent = envelope if self.struct is None else envelope.field(self.struct)
        found = None if parent is None else parent.field(self.field)
        if found is None:
            found = envelope.field(self.field)
        return None if found is None else replace(found, optional=True, default=None)

    def value(self, envelope: Schema, value: Struct) -> Any:
        """The field's value; None also where the struct that it stands in is null."""
        if self.struct is not None:
            parent = envelope.field(self.struct)
            if parent is not None and parent.field(self.field) is not None:
                inside = value[self.struct]
                return None if inside is None else inside[self.field]
        return value[self.field]


def _struct_of(field: str) -> str | None:
    if field in _OF_TRANSACTION:
        return "transaction"
    return None if field in _OF_ENVELOPE else "source"


class _Plan(NamedTuple):
    """Results that are worked out once for a schema of envelopes."""

    null_schema: Schema  # of ``after``
    row_schema: Schema  # of the unwrapped row
    fields: tuple[_Reference, ...]  # that the envelope has
    headers: tuple[tuple[_Reference, Schema], ...]
    defaults: tuple[tuple[str, Any], ...]


class Unwrap:
    """Makes the row the value: ``after``, for deletes what ``delete.tombstone.handling.mode`` says.

    Records that are no envelopes pass as they are; of tombstones the mode decides.
    """

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Options as of Debezium's transform; the two of its versions before 3.2 work too."""
        given = Parameters(parameters)
        self._deletes = _deletes(given)
        prefix = given.text("add.fields.prefix", "__")
        self._fields = tuple(_Reference(prefix, item) for item in given.items("add.fields"))
        names = [item.new_name for item in self._fields]
        if twice := {name for name in names if names.count(name) > 1}:
            given.refuse("add.fields", f"two fields would be called {', '.join(sorted(twice))}")
        prefix = given.text("add.headers.prefix", "__")
        self._headers = tuple(_Reference(prefix, item) for item in given.items("add.headers"))
        self._route_by = given.text("route.by.field", "")
        self._fill_defaults = given.boolean("replace.null.with.default", True)
        given.finish()
        self._plan = lru_cache(SCHEMAS_KEPT)(self._make_plan)

    def apply(self, record: Record) -> Record | None:
        """The record with the row as value, None if it is dropped."""
        if record.value is None:
            return self._tombstone(record)
        schema = record.value_schema
        if schema is None or not is_envelope(schema):
            return record
        plan = self._plan(schema)
        value = record.value
        headers = (*_headers(plan, schema, value), *record.struct_headers)
        after = value["after"]
        if after is not None:
            return self._row(record, plan, after, headers, "false")
        before = value["before"]
        how = self._deletes.delete
        if before is None or how == "drop":
            return None
        if how == "rewrite":
            return self._row(record, plan, before, headers, "true")
        return replace(
            record,
            topic=self._topic(record, before),
            value_schema=plan.null_schema if how == "null" else None,
            value=None,
            struct_headers=headers,
        )

    def _row(
        self,
        record: Record,
        plan: _Plan,
        row: Struct,
        headers: tuple[StructHeader, ...],
        deleted: str,
    ) -> Record:
        schema = record.value_schema
        assert schema is not None
        # Nothing is put into a row that others may hold.
        new = dict(row) if len(plan.row_schema.fields) > len(row) else row
        if self._deletes.delete == "rewrite":
            for name, default in plan.defaults:
                if new[name] is None:
                    new[name] = default
            new[_DELETED] = deleted
        for reference in plan.fields:
            new[reference.new_name] = reference.value(schema, record.value)
        return replace(
            record,
            topic=self._topic(record, row),
            value_schema=plan.row_schema,
            value=new,
            struct_headers=headers,
        )

    def _topic(self, record: Record, row: Struct) -> str:
        name = self._route_by
        if not name:
            return record.topic
        if name not in row:
            raise BadValue(f"route.by.field names {name}, which the row does not have")
        topic = row[name]
        if topic is not None and not isinstance(topic, str):
            raise BadValue(f"route.by.field names {name}, which is not a text")
        return topic if topic and topic.strip() else record.topic

    def _tombstone(self, record: Record) -> Record | None:
        if not self._deletes.keep_tombstone:
            return None
        added = [(item.new_name, "d") for item in self._headers if item.field == "op"]
        return replace(record, headers=[*record.headers, *added]) if added else record

    def _make_plan(self, envelope: Schema) -> _Plan:
        row = envelope.field("after")
        if row is None:
            raise BadValue(f"schema {envelope.name} has no field after")
        added = [(item, item.schema(envelope)) for item in self._fields]
        present = [(item, schema) for item, schema in added if schema is not None]
        fields = list(row.fields)
        if self._deletes.delete == "rewrite":
            fields.append(Field(_DELETED, OPTIONAL_STRING))
        fields += [Field(item.new_name, schema) for item, schema in present]
        names = [field.name for field in fields]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise BadValue(
                f"two fields of the row would be called {', '.join(sorted(twice))};"
                " choose other names or prefixes in add.fields"
            )
        return _Plan(
            null_schema=row,
            row_schema=replace(row, optional=False, default=None, fields=tuple(fields)),
            fields=tuple(item for item, _ in present),
            headers=tuple(
                (item, schema)
                for item in self._headers
                if (schema := item.schema(envelope)) is not None
            ),
            defaults=tuple(
                (field.name, field.schema.default)
                for field in row.fields
                if self._fill_defaults and field.schema.default is not None
            ),
        )


def _deletes(given: Parameters) -> _Deletes:
    mode = given.choice("delete.tombstone.handling.mode", _MODES, "tombstone")
    old = [name for name in ("delete.handling.mode", "drop.tombstones") if name in given]
    old_mode = given.choice("delete.handling.mode", _OLD_MODES, "drop")
    drop_tombstones = given.boolean("drop.tombstones", True)
    if not old:
        return _MODES[mode]
    if "delete.tombstone.handling.mode" in given:
        given.refuse(old[0], "delete.tombstone.handling.mode is set too; remove one of the two")
    return _Deletes(_OLD_MODES[old_mode], not drop_tombstones)


def _headers(plan: _Plan, schema: Schema, value: Struct) -> tuple[StructHeader, ...]:
    return tuple(
        AddedHeader(item.new_name, of_field, item.value(schema, value))
        for item, of_field in plan.headers
    )
