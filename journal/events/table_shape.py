"""Compiles a table shape: what all its events share, as topic, schemas and makers of structs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import time_ns
from typing import NamedTuple

import logbook

from firebird_cdc.config.filters import MessageKeys
from firebird_cdc.errors import RegistryTrouble
from firebird_cdc.journal.events.converters import JsonConverter, dumps
from firebird_cdc.journal.events.defaults import with_default
from firebird_cdc.journal.events.message_writer import MessageWriter
from firebird_cdc.journal.events.names import field_names
from firebird_cdc.journal.events.records import Headers, Message, new_message
from firebird_cdc.journal.events.row_json import row_json_of, row_plan
from firebird_cdc.journal.events.schema import OPTIONAL_INT64, STRING, struct
from firebird_cdc.journal.events.source import (
    CHANGES,
    POSITION,
    SourceFacts,
    source_schema,
    source_template,
)
from firebird_cdc.journal.events.structs import (
    NO_STRUCT,
    FormedField,
    StructMaker,
    formed_fields,
    raw_key_of,
    schemas_of,
)
from firebird_cdc.journal.events.table_rules import TableRules
from firebird_cdc.journal.events.templates import fill_template, number_slot, text_slot
from firebird_cdc.journal.events.values import BadValue, FieldForm
from firebird_cdc.journal.folder.notes import Concerned
from firebird_cdc.journal.format import Column, Row, RowChange, Table
from firebird_cdc.journal.format.row_decoder import UndecodedChange, codec_for_none, fields_of

_log = logbook.Logger("firebird_cdc.journal.events.render")

Quick = Callable[[RowChange, SourceFacts], "list[Message] | None"]

QuickOfImages = Callable[[bytes, UndecodedChange, SourceFacts], "list[Message] | None"]


class Frame(NamedTuple):
    """Frame around rows in messages that are JSON.

    ``value``: a template with the texts of old row, new row and operation, and with the numbers of
    `SourceFacts`, ``pos``, and the time in ms and us; ``key``: one with the key as the second
    text, empty: there is none. ``room``: the most bytes that both may have.
    """

    value: bytes
    key: bytes
    headers: Headers
    room: int


class QuickForm(NamedTuple):
    """Functions that write events of a table fast, None where none can.

    ``of_rows``, ``of_images``: see ``quick_messages``. ``source_template``: of their source blocks.
    ``frame``: what they put around rows.
    """

    source_template: bytes | None = None
    of_rows: Quick | None = None
    of_images: QuickOfImages | None = None
    frame: Frame | None = None


_OPERATIONS = {"c": b"c", "u": b"u", "d": b"d", "r": b"r"}


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

        in_key = key_columns(rules.message_keys, database, table)
        keyed = {table.columns[index].name for index in in_key}
        key = formed_fields(table, in_key, key_form, named)
        in_value = _value_columns(rules, database, table)
        value = formed_fields(table, in_value, value_form, named)
        self.widens_null = rules.message_form.widens_null
        row_requires, key_requires = (
            _required(fields) if self.widens_null else frozenset() for fields in (value, key)
        )
        self.row = StructMaker(value, columns, row_requires)
        self.key = StructMaker(key, columns, key_requires) if key else NO_STRUCT
        self.write_key = writer.key_converter.from_connect
        self.write_value = writer.value_converter.from_connect
        self.raw_key = raw_key_of(table, [field.column_index for field in key])
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
        images = fields_of(table, codec_for_none(config.charset_none))
        required = row_requires | key_requires
        self.row_plan = row_plan(images, value, required)
        self.key_plan = row_plan(images, key, required)
        self.row_json, self.key_json = row_json_of(self.row_plan), row_json_of(self.key_plan)
        self._writer, self._config, self._database = writer, config, database
        self._quick_forms: dict[str, QuickForm] = {}
        changes = self.quick_form(CHANGES)
        self.quick, self.quick_of_images = changes.of_rows, changes.of_images
        left_out = set(in_value) - {field.column_index for field in (*key, *value)}
        for column in (table.columns[index] for index in sorted(left_out)):
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

    def quick_form(self, snapshot: str) -> QuickForm:
        """Return what writes events fast whose source blocks say SNAPSHOT."""
        form = self._quick_forms.get(snapshot)
        if form is None:
            form = self._quick_forms[snapshot] = self._new_quick_form(snapshot)
        return form

    def _new_quick_form(self, snapshot: str) -> QuickForm:
        if not self._writer.only_writes_json:
            return QuickForm()
        config = self._config
        template = source_template(config.topic_prefix, self._database, self.table, snapshot)
        frame = frame_of(self, template, self._writer)
        if frame is None:
            return QuickForm(template)
        quick = quick_messages(self, frame, tombstones=config.tombstones_on_delete)
        return QuickForm(template, *quick, frame)

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


def key_columns(keys: MessageKeys, database: str, table: Table) -> list[int]:
    """Return the columns of the message key: what ``message.key.columns`` says, or the table's
    key."""
    shown = [table.columns[index].name for index in table.order]
    indices = keys.indices(database, table.name, shown)
    if indices is not None:
        return [table.order[index] for index in indices]
    keyed = set(table.key_columns)
    return [index for index in table.order if index in keyed]


def _required(fields: Sequence[FormedField]) -> frozenset[int]:
    """Return the columns of those of FIELDS that have no null, be it by a mask for it."""
    return frozenset(
        field.column_index
        for field in fields
        if not field.form.schema.optional and field.form.of_null == "None"
    )


def _value_columns(rules: TableRules, database: str, table: Table) -> list[int]:
    keeps = rules.tables.keeps_column
    return [
        index for index in table.order if keeps(database, table.name, table.columns[index].name)
    ]


def frame_of(shape: TableShape, source_template: bytes, writer: MessageWriter) -> Frame | None:
    """Return what stands around rows of SHAPE, None where it is not JSON. SOURCE_TEMPLATE: of the
    events' source blocks."""
    key_converter, value_converter = writer.key_converter, writer.value_converter
    if not (
        isinstance(key_converter, JsonConverter) and isinstance(value_converter, JsonConverter)
    ):
        return None
    start, end = value_converter.frame(shape.value_schema)
    old_slot, new_slot, op_slot = map(text_slot, range(3))
    ms_slot, us_slot = number_slot(POSITION + 1), number_slot(POSITION + 2)
    template = b"".join(
        (
            *(start, b'{"before":', old_slot, b',"after":', new_slot, b',"source":'),
            *(source_template, b',"op":"', op_slot, b'","ts_ms":', ms_slot),
            *(b',"ts_us":', us_slot, b',"ts_ns":', us_slot, b'000,"transaction":null}', end),
        )
    )
    key = new_slot.join(key_converter.frame(shape.key_schema)) if shape.key_schema else b""
    return Frame(template, key, writer.headers, writer.max_message_bytes - writer.headers_size)


def quick_messages(
    shape: TableShape, frame: Frame, *, tombstones: bool
) -> tuple[Quick, QuickOfImages | None]:
    """Return functions for the messages of nearly all events: of rows, in half the time, and of row
    images, in an eighth; None if none can. TOMBSTONES: deletes of rows with keys are followed by
    them.

    They write FRAME as JSON text around the rows. For what is more than that (changes of keys,
    values without a form, messages that are too large) they give None.
    """
    topic, row, key_of_row, raw_key = (
        shape.topic,
        shape.row.struct_of,
        shape.key.struct_of,
        shape.raw_key,
    )
    template, around_key, headers, room = frame
    has_key = shape.key_schema is not None
    key_start, _, key_end = around_key.partition(text_slot(1))
    with_tombstones = has_key and tombstones

    def messages(change: RowChange, facts: SourceFacts) -> list[Message] | None:
        pos, op, _, before, after = change
        keyed = before if after is None else after
        assert keyed is not None
        try:
            if before is None:
                old = b"null"
            elif after is not None and raw_key is not None and raw_key(before) != raw_key(after):
                return None
            else:
                old = dumps(row(before))
            new = b"null" if after is None else dumps(row(after))
            key = key_start + dumps(key_of_row(keyed)) + key_end if has_key else None
        except (BadValue, TypeError):
            return None
        return framed(pos, op, key, old, new, facts)

    def framed(
        pos: int, op: str, key: bytes | None, old: bytes, new: bytes, facts: SourceFacts
    ) -> list[Message] | None:
        now_us = time_ns() // 1000
        uuid, numbers = facts
        texts = old, new, _OPERATIONS[op]
        value = fill_template(template, uuid, texts, (*numbers, pos, now_us // 1000, now_us))
        if len(value) + (len(key) if key is not None else 0) > room:
            return None
        made = [new_message(Message, (topic, key, value, headers))]
        if op == "d" and with_tombstones:
            made.append(new_message(Message, (topic, key, None, headers)))
        return made

    row_json, key_json = shape.row_json, shape.key_json
    if row_json is None or key_json is None:
        return messages, None

    def messages_of_images(
        content: bytes, change: UndecodedChange, facts: SourceFacts
    ) -> list[Message] | None:
        pos, op, _, _, before, after = change
        old: bytes | None = b"null"
        new: bytes | None = b"null"
        key = former = None
        if before is not None:
            old = row_json(content, *before)
            key = former = key_json(content, *before) if has_key else None
        if after is not None:
            new = row_json(content, *after)
            key = key_json(content, *after) if has_key else None
            if before is not None and key != former:
                return None
        if old is None or new is None or (has_key and key is None):
            return None
        key = None if key is None else key_start + key + key_end
        return framed(pos, op, key, old, new, facts)

    return messages, messages_of_images
