"""Renders row changes as Kafka messages: Debezium's envelope in Connect's JSON.

For every shape of a table one ``_TableShape`` is made, which holds the topic, the schema as
ready text and an encoder per column; rendering an event then only fills in values. The forms
are those of features.md 4 and 5.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from time import time_ns
from typing import Any, NamedTuple

import logbook

from firebird_cdc import __version__
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.filters import TableFilter
from firebird_cdc.errors import ShipError
from firebird_cdc.journal.format import Header, Row, RowChange, Stamp, Table
from firebird_cdc.journal.topics import MAX_TOPIC_LENGTH, data_topic, database_part
from firebird_cdc.journal.values import BadValue, FieldCodec, ValueModes, field_codec, quote

_log = logbook.Logger("firebird_cdc.journal.render")

SHAPES_KEPT = 2000
"""Table shapes kept ready, over all databases; a guess well above what a server publishes."""

Headers = list[tuple[str, str | bytes | None]]


class BadEvent(ShipError):
    """An event that can't be sent as asked; ``pos`` is its number in its journal."""

    def __init__(self, pos: int, what: str) -> None:
        super().__init__(what)
        self.pos = pos


class Message(NamedTuple):
    """What goes to the producer. ``value`` None is a tombstone, ``key`` None a keyless table."""

    topic: str
    key: str | None
    value: str | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What decides the form of messages; defaults as in the configuration."""

    prefix: str
    connector_name: str
    delimiter: str = "."
    key_schemas: bool = True
    value_schemas: bool = True
    tombstones: bool = True
    context_headers: bool = True
    skipped_operations: frozenset[str] = frozenset()
    failure_mode: str = "fail"
    modes: ValueModes = field(default_factory=ValueModes)

    @classmethod
    def of(cls, config: ConnectorConfig, max_message_bytes: int) -> RenderOptions:
        """Take the options from CONFIG; MAX_MESSAGE_BYTES: the producer's limit."""
        return cls(
            prefix=config.topic_prefix,
            connector_name=config.connector_name,
            delimiter=config.topic_delimiter,
            key_schemas=config.key_schemas_enable,
            value_schemas=config.value_schemas_enable,
            tombstones=config.tombstones_on_delete,
            context_headers=config.extended_headers_enabled,
            skipped_operations=config.skipped_operations,
            failure_mode=config.failure_handling_mode,
            modes=ValueModes(
                decimal=config.decimal_handling_mode,
                time=config.time_precision_mode,
                binary=config.binary_handling_mode,
                placeholder=config.unavailable_value_placeholder,
                charset_none=config.charset_none,
                unknown_types=config.include_unknown_datatypes,
                max_bytes=max_message_bytes,
            ),
        )


class Renderer:
    """Makes messages of row changes. Not thread-safe; holds no open file."""

    def __init__(self, options: RenderOptions, tables: TableFilter) -> None:
        self.options = options
        self.tables = tables
        self._shapes: OrderedDict[tuple[object, ...], _TableShape] = OrderedDict()
        self._owners: dict[str, tuple[str, str]] = {}
        self.headers: Headers = (
            [
                ("__debezium.context.connectorLogicalName", options.prefix.encode()),
                ("__debezium.context.taskId", b"0"),
                ("__debezium.context.connectorName", options.connector_name.encode()),
            ]
            if options.context_headers
            else []
        )

    def journal(self, header: Header, stamp: Stamp, database: str) -> JournalRenderer:
        """Return the renderer for one journal: what its events share is worked out once."""
        return JournalRenderer(self, header, stamp, database)

    def shape(self, database: str, table: Table, pos: int) -> _TableShape:
        """Return the compiled shape of TABLE; BadEvent if its topic can't serve it."""
        key = (database, table.name, table.key_kind, table.columns, table.order)
        shape = self._shapes.get(key)
        if shape is None:
            shape = _TableShape(self.options, self.tables, database, table)
            self._claim_topic(shape.topic, database, table.name, pos)
            self._shapes[key] = shape
            if len(self._shapes) > SHAPES_KEPT:
                self._shapes.popitem(last=False)
        else:
            self._shapes.move_to_end(key)
        return shape

    def _claim_topic(self, topic: str, database: str, table: str, pos: int) -> None:
        if len(topic) > MAX_TOPIC_LENGTH:
            raise BadEvent(
                pos,
                f"topic name {topic} of table {table} in {database} has {len(topic)} characters,"
                f" Kafka allows {MAX_TOPIC_LENGTH}; choose a shorter kafka.topic.prefix, or leave"
                " the table out with table.exclude.list",
            )
        owner = self._owners.setdefault(topic, (database, table))
        if owner != (database, table):
            raise BadEvent(
                pos,
                f"table {table} in {database} and table {owner[1]} in {owner[0]} would share the"
                f" topic {topic}; leave one of them out with table.exclude.list",
            )


class JournalRenderer:
    """Renders the changes of one journal."""

    def __init__(self, renderer: Renderer, header: Header, stamp: Stamp, database: str) -> None:
        self._renderer = renderer
        self._header = header
        self._stamp = stamp
        self._database = database
        self._skipped = renderer.options.skipped_operations
        self._bound: dict[int, _BoundShape | None] = {}

    def messages(self, change: RowChange) -> tuple[Message, ...]:
        """Return the messages of CHANGE in the order in which they have to be sent.

        Empty for a table or an operation that is filtered out. Raises BadEvent if the change
        can't be expressed.
        """
        table = change.table
        try:
            bound = self._bound[table.number]
        except KeyError:
            bound = self._bind(change)
        if bound is None or change.op in self._skipped:
            return ()
        try:
            return bound.messages(change)
        except BadValue as error:
            raise BadEvent(change.pos, f"table {table.name}: {error}") from error

    def _bind(self, change: RowChange) -> _BoundShape | None:
        table = change.table
        bound = None
        if self._renderer.tables.captures(self._database, table.name):
            shape = self._renderer.shape(self._database, table, change.pos)
            bound = _BoundShape(shape, self._renderer, self._header, self._stamp, self._database)
        self._bound[table.number] = bound
        return bound


class _Struct:
    """Encodes chosen columns of a row as one JSON object."""

    def __init__(self, positions: list[int], codecs: list[FieldCodec], lenient: str) -> None:
        self.positions = positions
        self.codecs = codecs
        self.lenient = lenient
        self._encoders = [codec.encode for codec in codecs]
        fields = ",".join(quote(codec.name).replace("%", "%%") + ":%s" for codec in codecs)
        self._template = f"{{{fields}}}"

    def of_row(self, row: Row) -> str:
        """JSON of a full row image; raises BadValue."""
        try:
            return self._template % tuple(
                [
                    "null" if (value := row[position]) is None else encode(value)
                    for position, encode in zip(self.positions, self._encoders, strict=True)
                ]
            )
        except BadValue:
            return self._template % tuple(self._one_by_one(row))

    def _one_by_one(self, row: Row) -> Iterator[str]:
        """Encode ROW with null for what can't be expressed, where mode and column allow it."""
        for position, codec in zip(self.positions, self.codecs, strict=True):
            value = row[position]
            try:
                yield "null" if value is None else codec.encode(value)
            except BadValue as error:
                if self.lenient == "fail" or not codec.nullable:
                    raise BadValue(f"column {codec.name}: {error}") from error
                if self.lenient == "warn":
                    _log.warning("column {} is sent as null: {}", codec.name, error)
                yield "null"


class _TableShape:
    """What is the same for all events of one shape of a table."""

    def __init__(
        self, options: RenderOptions, tables: TableFilter, database: str, table: Table
    ) -> None:
        self.table = table.name
        self.topic = data_topic(options.prefix, database, table.name, options.delimiter)
        name = f"{options.prefix}.{database_part(database)}.{table.name}"
        strict_modes = replace(options.modes, unknown_types=True)
        # Keys are never filtered, and never left out for their type: rows would collide.
        key_columns = set(table.key_columns)
        key_positions = [position for position in table.order if position in key_columns]
        key_codecs = [
            codec
            for position in key_positions
            if (codec := field_codec(table.columns[position], strict_modes)) is not None
        ]
        positions, codecs = _value_columns(options, tables, database, table)
        self.row = _Struct(positions, codecs, options.failure_mode)
        self.key = _Struct(key_positions, key_codecs, "fail") if key_codecs else None
        self.key_of = itemgetter(*key_positions) if key_positions else None
        self.key_head, self.key_tail = _wrapping(
            options.key_schemas, _struct_schema(f"{name}.Key", key_codecs, optional=False)
        )
        self.value_head, self.value_tail = _wrapping(
            options.value_schemas, _envelope_schema(name, codecs)
        )

    def key_text(self, row: Row) -> str | None:
        """The message key for ROW, None if the table has no key."""
        if self.key is None:
            return None
        return f"{self.key_head}{self.key.of_row(row)}{self.key_tail}"


def _value_columns(
    options: RenderOptions, tables: TableFilter, database: str, table: Table
) -> tuple[list[int], list[FieldCodec]]:
    positions, codecs = [], []
    for position in table.order:
        column = table.columns[position]
        if not tables.keeps_column(database, table.name, column.name):
            continue
        codec = field_codec(column, options.modes)
        if codec is None:
            _log.warning(
                "column {} of table {} in {} is left out: its type or character set is unknown"
                " (type {}, character set {}); include.unknown.datatypes: true sends its bytes",
                column.name,
                table.name,
                database,
                column.sql_type,
                column.charset_id,
            )
            continue
        positions.append(position)
        codecs.append(codec)
    return positions, codecs


class _BoundShape:
    """A table shape together with what all events of one journal share."""

    def __init__(
        self, shape: _TableShape, renderer: Renderer, header: Header, stamp: Stamp, database: str
    ) -> None:
        self._shape = shape
        self._headers = renderer.headers
        self._tombstones = renderer.options.tombstones
        commit_us = stamp.commit_us
        # The block is the same for all events but for the position, which it holds twice.
        self._source = (
            f'"source":{{"version":{quote(__version__)},"connector":"firebird",'
            f'"name":{quote(renderer.options.prefix)},"ts_ms":{commit_us // 1000},'
            f'"ts_us":{commit_us},"ts_ns":{commit_us * 1000},"snapshot":"false",'
            f'"db":{quote(database)},"sequence":"[\\"{stamp.sequence}\\",\\"'
        )
        self._source_middle = (
            f'\\"]","table":{quote(shape.table)},"txId":{header.transaction},'
            f'"commitSeq":{stamp.sequence},"journal":"{header.uuid}","pos":'
        )

    def messages(self, change: RowChange) -> tuple[Message, ...]:
        """The messages of CHANGE; raises BadValue."""
        shape = self._shape
        op, before, after, pos = change.op, change.before, change.after, change.pos
        if op == "c":
            assert after is not None
            return (
                self._message(shape.key_text(after), "c", "null", shape.row.of_row(after), pos),
            )
        assert before is not None
        old = shape.row.of_row(before)
        if op == "d":
            return self._delete(shape.key_text(before), old, pos, self._headers)
        assert after is not None
        new = shape.row.of_row(after)
        if shape.key_of is not None and shape.key_of(before) != shape.key_of(after):
            return self._key_change(shape.key_text(before), shape.key_text(after), old, new, pos)
        return (self._message(shape.key_text(after), "u", old, new, pos),)

    def _message(
        self,
        key: str | None,
        op: str,
        before: str,
        after: str,
        pos: int,
        headers: Headers | None = None,
    ) -> Message:
        shape = self._shape
        now_us = time_ns() // 1000
        value = (
            f'{shape.value_head}{{"before":{before},"after":{after},{self._source}{pos}'
            f'{self._source_middle}{pos},"snapshotNumber":null}},"op":"{op}",'
            f'"ts_ms":{now_us // 1000},"ts_us":{now_us},"ts_ns":{now_us}000,"transaction":null}}'
            f"{shape.value_tail}"
        )
        return Message(shape.topic, key, value, self._headers if headers is None else headers)

    def _delete(self, key: str | None, old: str, pos: int, headers: Headers) -> tuple[Message, ...]:
        delete = self._message(key, "d", old, "null", pos, headers)
        if key is None or not self._tombstones:
            return (delete,)
        return delete, Message(self._shape.topic, key, None, self._headers)

    def _key_change(
        self, old_key: str | None, new_key: str | None, old: str, new: str, pos: int
    ) -> tuple[Message, ...]:
        """An update of the key: the old row goes, a new one comes, each names the other's key."""
        assert old_key is not None
        assert new_key is not None
        to_new = [*self._headers, ("__debezium.newkey", new_key.encode())]
        from_old = [*self._headers, ("__debezium.oldkey", old_key.encode())]
        create = self._message(new_key, "c", "null", new, pos, from_old)
        return (*self._delete(old_key, old, pos, to_new), create)


# Schemas


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _wrapping(enabled: bool, schema: dict[str, Any]) -> tuple[str, str]:
    """What stands before and behind a payload."""
    return (f'{{"schema":{_dump(schema)},"payload":', "}") if enabled else ("", "")


def _struct_schema(
    name: str, codecs: list[FieldCodec], *, optional: bool, field_name: str | None = None
) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "struct", "optional": optional, "name": name}
    if field_name is not None:
        schema["field"] = field_name
    return schema | {"fields": [codec.schema for codec in codecs]}


def _plain(kind: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


_SOURCE_SCHEMA = {
    "type": "struct",
    "optional": False,
    "name": "io.debezium.connector.firebird.Source",
    "field": "source",
    "fields": [
        _plain("string", "version"),
        _plain("string", "connector"),
        _plain("string", "name"),
        _plain("int64", "ts_ms"),
        _plain("int64", "ts_us"),
        _plain("int64", "ts_ns"),
        {
            "type": "string",
            "optional": True,
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {"allowed": "true,last,false,incremental"},
            "default": "false",
            "field": "snapshot",
        },
        _plain("string", "db"),
        _plain("string", "sequence", optional=True),
        _plain("string", "table"),
        _plain("int64", "txId", optional=True),
        _plain("int64", "commitSeq", optional=True),
        _plain("string", "journal", optional=True),
        _plain("int64", "pos", optional=True),
        _plain("int64", "snapshotNumber", optional=True),
    ],
}

_TRANSACTION_SCHEMA = {
    "type": "struct",
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
    "fields": [
        _plain("string", "id"),
        _plain("int64", "total_order"),
        _plain("int64", "data_collection_order"),
        _plain("int64", "transaction_rank", optional=True),
        _plain("int64", "transaction_epoch", optional=True),
    ],
}


def _envelope_schema(name: str, codecs: list[FieldCodec]) -> dict[str, Any]:
    return {
        "type": "struct",
        "optional": False,
        "name": f"{name}.Envelope",
        "fields": [
            _struct_schema(f"{name}.Value", codecs, optional=True, field_name="before"),
            _struct_schema(f"{name}.Value", codecs, optional=True, field_name="after"),
            _SOURCE_SCHEMA,
            _plain("string", "op"),
            _plain("int64", "ts_ms", optional=True),
            _plain("int64", "ts_us", optional=True),
            _plain("int64", "ts_ns", optional=True),
            _TRANSACTION_SCHEMA,
        ],
    }
