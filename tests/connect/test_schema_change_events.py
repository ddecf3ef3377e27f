"""Schema change events as Debezium's own schema history and transforms read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from decode import from_java
from kinds import BY_SQL, KINDS
from pipeline import PREFIX, render, renderer
from reader import ConnectReader
from work import Column, Table, Work

pytestmark = pytest.mark.engine

_CREATE = (
    "CREATE TABLE PALLET (ID BIGINT NOT NULL PRIMARY KEY,"
    " CARRIER VARCHAR(40) CHARACTER SET UTF8 NOT NULL, KG NUMERIC(9, 3), DAY_ DATE)"
)
_COLUMNS = {
    "ID": "BIGINT -5 -1 null NOT NULL",
    "CARRIER": "VARCHAR(40) 12 40 null NOT NULL",
    "KG": "NUMERIC(9,3) 2 9 3 NULL",
    "DAY_": "DATE 91 -1 null NULL",
}


def test_schema_changes_are_read_by_debeziums_schema_history(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    statements = (
        _CREATE,
        "ALTER TABLE PALLET ADD SEALED BOOLEAN, DROP DAY_",
        "DROP TABLE PALLET",
    )
    table = Table("SOME_EVENT", (Column("ID", BY_SQL["INTEGER"]),))
    work.create(table)
    for statement in statements:
        work.await_described()
        work.script(statement)
    assert work.insert(table, [1])
    work.commit()
    messages = render(renderer(tmp_path, schema_changes=True), work.journals())
    event = next(message for message in messages if message.topic != PREFIX)
    debezium = connect.debezium_schemas(event.topic, event.value or b"")
    [_, *changes] = [message for message in messages if message.topic == PREFIX]
    found = []
    for message, statement in zip(changes, statements, strict=True):
        read = connect.read(*message[:3])
        key, value = (
            from_java(read[part]["schema"], read[part]["value"]) for part in ("key", "value")
        )
        assert key == {"databaseName": work.database}
        assert value["databaseName"] == work.database
        assert value["ddl"] == statement
        schema = read["value"]["schema"]
        assert schema["name"] == "io.debezium.connector.firebird.SchemaChangeValue"
        assert schema["fields"]["tableChanges"]["items"] == debezium["change"]
        payload = json.loads(message.value or b"")["payload"]
        [change] = connect.table_changes(payload["tableChanges"])
        assert (change["database"], change["table"]) == (work.database, "PALLET")
        found.append((change["type"], change.get("key"), change.get("columns")))
    kept = {name: it for name, it in _COLUMNS.items() if name != "DAY_"}
    assert found == [
        ("CREATE", ["ID"], _COLUMNS),
        ("ALTER", ["ID"], {**kept, "SEALED": "BOOLEAN 16 -1 null NULL"}),
        ("DROP", None, None),
    ]
    options = {"schema.change.event.exclude.list": "DROP"}
    transform = ("io.debezium.transforms.SchemaChangeEventFilter", options)
    left = [connect.read(*it[:3], transforms=[transform])["transformed"] for it in changes]
    assert [record is not None for record in left] == [True, True, False]


def test_debezium_reads_type_expressions_as_declared(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """Debezium reads each as it was declared, but the character set, which has its own field."""
    columns = tuple(Column(f"C{place}", kind) for place, kind in enumerate(KINDS))
    table = Table("EXPRESSIONS", columns)
    work.create(table)
    assert work.insert(table, [None] * len(columns))
    work.commit()
    [change, *_] = render(renderer(tmp_path, schema_changes=True), work.journals())
    [created] = connect.table_changes(json.loads(change.value or b"")["payload"]["tableChanges"])
    declared = [
        kind.sql.partition(" CHARACTER SET ")[0].replace("[", " [").replace(", ", ",")
        for kind in KINDS
    ]
    found = [text.replace(", ", ",") for text in created["columns"].values()]
    for expression, text in zip(declared, found, strict=True):
        assert text.startswith(f"{expression} "), (expression, text)
