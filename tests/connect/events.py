"""Messages against changes: each is read in Python and in Java, and compared to the row.

The values are compared as their ``repr``: 1.0 is not 1.00, and 0.0 is not -0.0.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from decode import Schema, from_java, from_json
from kinds import Modes, Value
from pipeline import PREFIX, Sent
from reader import ConnectReader, Described
from work import Changed, Column, Image, Table

from firebird_cdc.journal.events.topic_encoding import REPLACE, path_part

_CONTEXT = {
    "__debezium.context.connectorLogicalName": ["String", PREFIX],
    "__debezium.context.taskId": ["String", "0"],
    "__debezium.context.connectorName": ["String", "proof-cdc"],
}
_CONTEXTS = {
    "json": _CONTEXT,
    # Its texts tell no types, so Connect takes them for what they look like.
    "simple": _CONTEXT | {"__debezium.context.taskId": ["Byte", "0"]},
}


class _Expected(NamedTuple):
    """A message that has to come; ``op`` None: a tombstone. ``header``: with the other key."""

    op: str | None
    key: Image | None
    before: Image | None = None
    after: Image | None = None
    header: tuple[str, Image] | None = None


def _expected(change: Changed, modes: Modes) -> list[_Expected]:
    table, op, before, after = change
    old, new = _key(table, before), _key(table, after)
    if op == "c":
        return [_Expected("c", new, after=after)]
    if op == "d":
        delete = _Expected("d", old, before=before)
        return [delete, _Expected(None, old)] if old else [delete]
    if _key_sent(table, before, modes) == _key_sent(table, after, modes):
        return [_Expected("u", new, before, after)]
    assert old
    assert new
    return [
        _Expected("d", old, before=before, header=("__debezium.newkey", new)),
        _Expected(None, old),
        _Expected("c", new, after=after, header=("__debezium.oldkey", old)),
    ]


def _key(table: Table, row: Image | None) -> Image | None:
    """The key of a row; its fields are in the order of the table's columns."""
    if row is None or not table.key:
        return None
    return tuple(row[place] for place in sorted(table.key))


def _key_sent(table: Table, row: Image | None, modes: Modes) -> str:
    """Return a text that tells keys apart: as decimals, 1.0 and 1.00 are not the same, as doubles
    they are."""
    assert row is not None
    return repr([_due(table.columns[place], row[place], modes) for place in table.key])


def _due(column: Column, value: Value, modes: Modes) -> Any:
    return None if value is None else column.kind.sent(value, modes)


def check(
    connect: ConnectReader,
    database: str,
    modes: Modes,
    changes: Sequence[Changed],
    messages: Sequence[Sent],
    header_converter: str = "json",
) -> None:
    """Assert that MESSAGES, rendered under MODES, say exactly what CHANGES are.

    HEADER_CONVERTER: what wrote their headers, json or simple.
    """
    left = iter(messages)
    for change in changes:
        reading = _Reading(connect, database, modes, change.table, header_converter)
        for expected in _expected(change, modes):
            message = next(left, None)
            assert message is not None, f"no message for {expected} of {change.table.name}"
            reading.check(message, expected)
    assert not (more := list(left)), f"more messages than changes: {more[0].value!r:.300}"


def check_transactions(messages: Sequence[Sent]) -> list[Sent]:
    """Assert that BEGIN, END and the events between them count each other; return the events."""
    events, identity, orders = [], None, Counter[str]()
    for message in messages:
        payload = json.loads(message.value)["payload"] if message.value else None
        if message.topic != f"{PREFIX}.transaction":
            events.append(message)
            if payload:
                orders[message.topic] += 1
                block = payload["transaction"]
                assert block["id"] == identity
                assert block["total_order"] == orders.total()
                assert block["data_collection_order"] == orders[message.topic]
            continue
        assert payload
        assert json.loads(message.key or b"")["payload"] == {"id": payload["id"]}
        if payload["status"] == "BEGIN":
            assert identity is None, "a BEGIN without the END of the one before"
            identity = payload["id"]
        else:
            assert payload["status"] == "END"
            assert payload["id"] == identity
            assert payload["event_count"] == orders.total() > 0
            counts = [it["event_count"] for it in payload["data_collections"]]
            assert counts == list(orders.values())
            identity = None
            orders.clear()
    assert identity is None, "a BEGIN without an END"
    return events


def check_structures(messages: Sequence[Sent]) -> list[Sent]:
    """Assert that events have the columns and the key that the schema change before them told.

    Returns the events.
    """
    events, told = [], {}
    for message in messages:
        document = json.loads(message.value) if message.value else None
        if message.topic == PREFIX:
            assert document
            for change in document["payload"]["tableChanges"]:
                table = change["table"]
                if change["type"] == "DROP":
                    assert table is None
                    told.pop(change["id"], None)
                    continue
                told[change["id"]] = (
                    [(column["name"], column["optional"]) for column in table["columns"]],
                    sorted(table["primaryKeyColumnNames"]),
                )
            continue
        events.append(message)
        if document and "source" in document["payload"]:
            source = document["payload"]["source"]
            parts = (source[part].replace('"', '""') for part in ("db", "table"))
            row = document["schema"]["fields"][0]["fields"]
            key = json.loads(message.key)["schema"]["fields"] if message.key else []
            assert told[".".join(f'"{part}"' for part in parts)] == (
                [(field["field"], field["optional"]) for field in row],
                sorted(field["field"] for field in key),
            )
    return events


class _Reading:
    """Requirements on the messages of one table."""

    def __init__(
        self,
        connect: ConnectReader,
        database: str,
        modes: Modes,
        table: Table,
        header_converter: str,
    ) -> None:
        self._connect = connect
        self._header_converter = header_converter
        self._database = database
        self._modes = modes
        self._table = table
        self._name = f"{PREFIX}.{path_part(database, REPLACE)}.{table.name}"
        self._key_places = sorted(table.key)

    def check(self, message: Sent, expected: _Expected) -> None:
        other = message.structs
        is_typed = self._header_converter == "json"
        read = self._connect.read(*message[:3], message.headers if is_typed else {})
        read_headers = read["headers"]
        if not is_typed:
            found = self._connect.headers(message.headers, by=self._header_converter)
            read_headers = found["headers"]
        texts = {name: it["value"] for name, it in read_headers.items() if name not in other}
        assert texts == _CONTEXTS[self._header_converter]
        self._check_key(message.key, read["key"], expected.key)
        _check_written(message.key, read["written_key"])
        _check_written(message.value, read["written_value"])
        headers = dict([expected.header] if expected.header else [])
        assert list(other) == list(headers)
        for name, key in headers.items():
            if is_typed:
                self._check_key(other[name], read_headers[name], key)
            else:
                self._check_untyped_key(read_headers[name], key)
        if expected.op is None:
            assert message.value is None
        else:
            assert message.value is not None
            assert read["is_envelope"]
            self._check_value(message.value, read["value"], expected)

    def _check_key(self, written: bytes | None, read: Described, key: Image | None) -> None:
        if key is None:
            assert written is None
            return
        assert written is not None
        for event in _both(written, read):
            event.name_is(f"{self._name}.Key")
            self._check_row(event, self._key_places, key)

    def _check_untyped_key(self, read: Described, key: Image) -> None:
        """Compare a key of numbers and texts that has no schema, and so no types."""
        columns = [self._table.columns[place] for place in self._key_places]
        kind, fields = read["value"]
        assert kind == "Map"
        assert {name: content for name, (_, content) in fields.items()} == {
            column.name: str(_due(column, value, self._modes))
            for column, value in zip(columns, key, strict=True)
        }

    def _check_value(self, written: bytes, read: Described, expected: _Expected) -> None:
        for event in _both(written, read):
            event.name_is(f"{self._name}.Envelope")
            assert event.value["op"] == expected.op
            source = event.value["source"]
            assert source["db"] == self._database
            assert source["table"] == self._table.name
            assert source["snapshot"] == "false"
            places = range(len(self._table.columns))
            for name, row in (("before", expected.before), ("after", expected.after)):
                part = event.field(name)
                part.name_is(f"{self._name}.Value")
                if row is None:
                    assert part.value is None
                else:
                    self._check_row(part, places, row)

    def _check_row(self, event: _Event, places: Sequence[int], row: Image) -> None:
        columns = [self._table.columns[place] for place in places]
        assert list(event.fields) == [column.name for column in columns]
        for column, value in zip(columns, row, strict=True):
            schema = event.fields[column.name]
            element = schema
            for _ in range(column.kind.dimensions):
                assert element["type"] == "array"
                element = element["items"]
            form = (element["type"], element.get("name"))
            assert form == column.kind.type(self._modes), f"{column.kind.sql}: {schema}"
            assert schema["optional"] is column.nullable, f"{column.kind.sql}: {schema}"
            due = _due(column, value, self._modes)
            if event.reader == "Java":
                due = _in_java(due)
            found = event.value[column.name]
            assert repr(found) == repr(due), (
                f"{self._table.name}, column {column.name}, {column.kind.sql}, read by"
                f" {event.reader}: {found!r} where the driver reads {value!r}"
            )


class _Event(NamedTuple):
    """A struct and its value, as one of the two readers has them."""

    reader: str
    schema: Schema
    fields: dict[str, Schema]
    value: Any

    def name_is(self, name: str) -> None:
        assert self.schema["name"] == name

    def field(self, name: str) -> _Event:
        schema = self.fields[name]
        fields = schema["fields"]
        if isinstance(fields, list):
            fields = {field["field"]: field for field in fields}
        return _Event(self.reader, schema, fields, self.value[name])


def _both(written: bytes, read: Described) -> Iterator[_Event]:
    """The same struct, read in Python and in Java."""
    document = json.loads(written)
    schema = document["schema"]
    fields = {field["field"]: field for field in schema["fields"]}
    yield _Event("Python", schema, fields, from_json(schema, document["payload"]))
    schema = read["schema"]
    yield _Event("Java", schema, schema["fields"], from_java(schema, read["value"]))


def _check_written(ours: bytes | None, written: str | None) -> None:
    """Assert that JsonConverter, given what it has read, writes what we wrote."""
    if ours is None or written is None:
        assert ours is None
        assert written is None
        return
    mine, theirs = json.loads(ours), json.loads(written)
    assert theirs["schema"] == mine["schema"]
    again = from_json(theirs["schema"], theirs["payload"])
    _same(again, from_json(mine["schema"], mine["payload"]))


def _in_java(value: Any) -> Any:
    """VALUE after JsonConverter: its parser takes numbers for decimals, which have no -0.0."""
    return 0.0 if isinstance(value, float) and value == 0 else value


def _same(found: Any, due: Any, path: str = "payload") -> None:
    """Assert that two decoded values are the same, and tell where they aren't."""
    if isinstance(due, dict) and isinstance(found, dict) and list(found) == list(due):
        for name in due:
            _same(found[name], due[name], f"{path}.{name}")
    else:
        assert repr(found) == repr(_in_java(due)), f"{path}: {found!r}, not {due!r}"
