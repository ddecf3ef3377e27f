"""Compiles a table shape: what all its events share, as topic, schemas and makers of structs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import logbook

from firebird_cdc.errors import RegistryTrouble
from firebird_cdc.journal.events.defaults import with_default
from firebird_cdc.journal.events.message_writer import MessageWriter
from firebird_cdc.journal.events.names import field_names
from firebird_cdc.journal.events.quick import quick_messages
from firebird_cdc.journal.events.schema import OPTIONAL_INT64, STRING, struct
from firebird_cdc.journal.events.source import WrittenSource, source_schema
from firebird_cdc.journal.events.structs import (
    NO_STRUCT,
    StructMaker,
    formed_fields,
    raw_key_of,
    schemas_of,
)
from firebird_cdc.journal.events.table_rules import TableRules
from firebird_cdc.journal.events.values import BadValue, FieldForm
from firebird_cdc.journal.folder.notes import Concerned
from firebird_cdc.journal.format import Column, Row, RowChange, Table

_log = logbook.Logger("firebird_cdc.journal.events.render")


class TableShape:
    """Holds what is the same for all events of one shape of a table."""

    def __init__(
        self, writer: MessageWriter, rules: TableRules, database: str, table: Table
    ) -> None:
        config = rules.config
        self.table = table.name
        self.topic = rules.topics.of_table(database, table.name)
        name = rules.schema_names.of_table(database, table.name)
        columns = len(table.columns)

        def named(columns: Sequence[str]) -> tuple[str, ...]:
            whose = f"table {table.name} in {database}"
            return field_names(columns, config.field_name_adjustment_mode, whose)

        def key_form(column: Column) -> FieldForm | None:
            # Without defaults: its bytes would change with them, and with these the partition.
            return rules.form(database, table.name, column, rules.key_modes)

        def value_form(column: Column) -> FieldForm | None:
            in_key = column.name in keyed
            modes = rules.column_rules.modes(
                database, table.name, column, rules.modes, in_key=in_key
            )
            form = rules.form(database, table.name, column, modes)
            if form is None:
                return None
            adapted = rules.column_rules.adapt(database, table.name, column, form, in_key=in_key)
            if rules.message_form.defaults:
                adapted = with_default(column, adapted, rules.modes)
            # A placeholder for a part of the key would make one row of many.
            return replace(adapted, placeholder=None) if in_key else adapted

        key_positions = _key_positions(rules, database, table)
        keyed = {table.columns[position].name for position in key_positions}
        key = formed_fields(table, key_positions, key_form, named)
        positions = _value_positions(rules, database, table)
        value = formed_fields(table, positions, value_form, named)
        self.row = StructMaker(value, columns)
        self.key = StructMaker(key, columns) if key else NO_STRUCT
        self.write_key = writer.key_converter.from_connect
        self.write_value = writer.value_converter.from_connect
        self.written_source = (
            WrittenSource(config.topic_prefix, database, table.name)
            if writer.only_writes_json
            else None
        )
        self.raw_key = raw_key_of(table, [field.position for field in key])
        self.key_schema = struct(f"{name}.Key", *schemas_of(key)) if key else None
        row_schema = struct(f"{name}.Value", *schemas_of(value), optional=True)
        self.value_schema = struct(
            f"{name}.Envelope",
            ("before", row_schema),
            ("after", row_schema),
            ("source", source_schema(rules.message_form)),
            ("op", STRING),
            ("ts_ms", OPTIONAL_INT64),
            ("ts_us", OPTIONAL_INT64),
            ("ts_ns", OPTIONAL_INT64),
            ("transaction", rules.block_schema),
            version=rules.message_form.envelope_version,
        )
        self.quick = quick_messages(self, writer)
        left_out = set(positions) - {field.position for field in (*key, *value)}
        for column in (table.columns[position] for position in sorted(left_out)):
            _log.warning(
                "column {column} of table {table} in {database} is left out: its type or character"
                " set is unknown (type {}, character set {}); include.unknown.datatypes: true sends"
                " its bytes",
                column.sql_type,
                column.charset_id,
                column=column.name,
                table=table.name,
                database=database,
            )

    def concerned(self, change: RowChange) -> Concerned:
        """The topic of CHANGE, with its keys if they can be written."""
        rows = [row for row in (change.before, change.after) if row is not None]
        with suppress(BadValue, RegistryTrouble):
            return [
                (
                    self.topic,
                    self.write_key(self.topic, self.key_schema, self.key.careful_struct_of(row)),
                )
                for row in rows
            ]
        return self.topic

    def may_change_key(self, before: Row, after: Row) -> bool:
        """Tell whether the key's columns differ, as far as values tell before they have a form."""
        raw_key = self.raw_key
        return raw_key is not None and raw_key(before) != raw_key(after)


def _key_positions(rules: TableRules, database: str, table: Table) -> list[int]:
    """The columns of the message key: what ``message.key.columns`` says, or the table's key."""
    shown = [table.columns[position].name for position in table.order]
    places = rules.message_keys.places(database, table.name, shown)
    if places is not None:
        return [table.order[place] for place in places]
    keyed = set(table.key_columns)
    return [position for position in table.order if position in keyed]


def _value_positions(rules: TableRules, database: str, table: Table) -> list[int]:
    keeps = rules.tables.keeps_column
    return [
        position
        for position in table.order
        if keeps(database, table.name, table.columns[position].name)
    ]
