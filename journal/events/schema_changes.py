"""Records of schema changes: the statement, and the structure of the tables that it changed.

The form is that of Debezium's schema change topic (its ``SchemaFactory``,
``ConnectTableChangeSerializer``, ``HistoryRecord``), for any relational connector.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from time import time_ns

from firebird_cdc.journal.events.records import Headers, Record
from firebird_cdc.journal.events.schema import (
    INT32,
    INT64,
    OPTIONAL_STRING,
    STRING,
    Schema,
    Struct,
    struct,
)
from firebird_cdc.journal.events.source import (
    at_position,
    facts_of,
    source_of_table,
    source_schema,
)
from firebird_cdc.journal.events.versions import TODAY, MessageForm
from firebird_cdc.journal.format import (
    Column,
    DdlChange,
    Header,
    Stamp,
    Storage,
    TableChange,
    TableState,
    charsets,
)
from firebird_cdc.journal.format.ddl_text import parse, text_of
from firebird_cdc.journal.types.names import (
    is_text_blob,
    jdbc_type,
    type_expression,
    type_length,
    type_name,
    type_scale,
)

_OPTIONAL_INT32 = INT32.as_optional()
_OPTIONAL_BOOLEAN = Schema("boolean", optional=True)
_OPTIONAL_STRINGS = Schema("array", optional=True, items=STRING)

COLUMN = struct(
    "io.debezium.connector.schema.Column",
    ("name", STRING),
    ("jdbcType", INT32),
    ("nativeType", _OPTIONAL_INT32),
    ("typeName", STRING),
    ("typeExpression", OPTIONAL_STRING),
    ("charsetName", OPTIONAL_STRING),
    ("length", _OPTIONAL_INT32),
    ("scale", _OPTIONAL_INT32),
    ("position", INT32),
    ("optional", _OPTIONAL_BOOLEAN),
    ("autoIncremented", _OPTIONAL_BOOLEAN),
    ("generated", _OPTIONAL_BOOLEAN),
    ("comment", OPTIONAL_STRING),
    ("defaultValueExpression", OPTIONAL_STRING),
    ("enumValues", _OPTIONAL_STRINGS),
    version=1,
)
TABLE = struct(
    "io.debezium.connector.schema.Table",
    ("defaultCharsetName", OPTIONAL_STRING),
    ("primaryKeyColumnNames", _OPTIONAL_STRINGS),
    ("columns", Schema("array", items=COLUMN)),
    ("comment", OPTIONAL_STRING),
    version=1,
    optional=True,
)
CHANGE = struct(
    "io.debezium.connector.schema.Change",
    ("type", STRING),
    ("id", STRING),
    ("table", TABLE),
    version=1,
)
KEY = struct("io.debezium.connector.firebird.SchemaChangeKey", ("databaseName", STRING), version=1)


@lru_cache
def value_schema(form: MessageForm) -> Schema:
    """Return the schema of the records' values in FORM."""
    return struct(
        "io.debezium.connector.firebird.SchemaChangeValue",
        ("source", source_schema(form)),
        ("ts_ms", INT64),
        ("databaseName", OPTIONAL_STRING),
        ("schemaName", OPTIONAL_STRING),
        ("ddl", OPTIONAL_STRING),
        ("tableChanges", Schema("array", items=CHANGE)),
        version=1,
    )


_TEXTS = (Storage.TEXT, Storage.PADDED_TEXT)


class SchemaChanges:
    """Makes the records of DDL statements, and those that announce a new epoch.

    ``prefix``: the logical server name, ``topic``: where the records go; ``captures`` tells of
    a database path and the name of a table whether it is captured; ``headers`` of every record;
    ``form``: of which version of ours.
    """

    def __init__(
        self,
        prefix: str,
        topic: str,
        captures: Callable[[str, str], bool],
        headers: Headers | None = None,
        form: MessageForm = TODAY,
    ) -> None:
        self._prefix = prefix
        self._topic = topic
        self._captures = captures
        self._headers: Headers = headers if headers is not None else []
        self._value_schema = value_schema(form)

    def record(
        self, change: DdlChange, header: Header, stamp: Stamp, database: str
    ) -> Record | None:
        """Return the record of one statement, None if it changed no captured table."""
        changes = [each for each in _changes_of(change) if self._captures(database, each.name)]
        if not changes:
            return None
        source = self._source(header, stamp, database, changes[0].name)
        entries = [
            _entry(database, each)
            for each in changes
            if each.state is not None or each.kind == "DROP"
        ]
        return self._record(at_position(source, change.pos), database, text_of(change.sql), entries)

    def new_epoch(self, header: Header, stamp: Stamp, database: str) -> Record:
        """Return the record that goes before the first event of an epoch: no statement, pos 0."""
        source = self._source(header, stamp, database, "")
        return self._record(at_position(source, 0), database, None, [])

    def _source(self, header: Header, stamp: Stamp, database: str, table: str) -> Struct:
        facts = facts_of(header.uuid, header.transaction, stamp)
        return source_of_table(self._prefix, database, table, facts)

    def _record(
        self, source: Struct, database: str, ddl: str | None, changes: list[Struct]
    ) -> Record:
        value: Struct = {
            "source": source,
            "ts_ms": time_ns() // 1_000_000,
            "databaseName": database,
            "schemaName": None,
            "ddl": ddl,
            "tableChanges": changes,
        }
        key = {"databaseName": database}
        return Record(self._topic, KEY, key, self._value_schema, value, self._headers)


def _changes_of(change: DdlChange) -> tuple[TableChange, ...]:
    """Return the changes of tables that the journal notes for the statement; if nobody could be
    asked when it was confirmed, those that its text tells of."""
    if change.table_changes is not None:
        return change.table_changes
    statement = parse(text_of(change.sql))
    if statement is None or statement.kind != "TABLE":
        return ()
    return (TableChange(statement.verb, statement.name, None),)


def _entry(database: str, change: TableChange) -> Struct:
    parts = (part.replace('"', '""') for part in (database, change.name))
    return {
        "type": change.kind,
        "id": ".".join(f'"{part}"' for part in parts),
        "table": None if change.state is None else _table(change.state),
    }


def _table(state: TableState) -> Struct:
    table = state.table
    return {
        "defaultCharsetName": state.charset,
        "primaryKeyColumnNames": [table.columns[index].name for index in table.key_columns],
        "columns": [
            _column(table.columns[index], place, state.generated[index], state.defaults[index])
            for place, index in enumerate(table.order, 1)
        ],
        "comment": None,
    }


def _column(column: Column, place: int, generated: bool, default: str | None) -> Struct:
    has_charset = column.storage in _TEXTS or is_text_blob(column)
    return {
        "name": column.name,
        "jdbcType": jdbc_type(column),
        "nativeType": column.sql_type,
        "typeName": type_name(column),
        "typeExpression": type_expression(column),
        "charsetName": charsets.name_of(column.charset_id) if has_charset else None,
        "length": type_length(column),
        "scale": type_scale(column),
        "position": place,
        "optional": column.nullable,
        "autoIncremented": column.identity,
        "generated": generated,
        "comment": None,
        "defaultValueExpression": default,
        "enumValues": None,
    }
