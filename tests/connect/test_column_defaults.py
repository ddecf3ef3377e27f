"""Defaults of columns, as Kafka Connect, its Avro converter, and a registry take them."""

from __future__ import annotations

import ctypes
import json
from decimal import Context, Decimal
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from avro_reader import AvroReader
from confluent_kafka.schema_registry import SchemaRegistryClient
from default_literals import LITERALS, columns_of, table_of
from pipeline import render, render_avro, renderer
from reader import ConnectReader
from test_connect import MODES
from work import Work

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.versions import form_of

if TYPE_CHECKING:
    from firebird_cdc.demo.registry import SchemaRegistry

pytestmark = pytest.mark.engine

_DIGITS = "decimal.int128.precision: 39"
# A struct has no default: Kafka Connect's JsonConverter takes none.
_STRUCTS = tuple(kind for kind in LITERALS if kind.startswith("DECFLOAT"))


def _table_of_all(work: Work, name: str) -> dict[str, str]:
    """Make a table with a default of every type, and a row of them; return its columns."""
    words = f"{name}_WORDS"
    columns = columns_of(
        {words if kind == "WORDS" else kind: each for kind, each in LITERALS.items()}
    )
    work.script(
        f"CREATE DOMAIN {words} AS VARCHAR(20) DEFAULT 'words' NOT NULL", table_of(name, columns)
    )
    work.immediate(f"INSERT INTO {name} (ID) VALUES (1)")
    work.commit()
    return columns


def _told(schema: dict[str, Any]) -> dict[str, Any]:
    """The defaults that a schema of Connect's JSON has, by the names of fields."""
    return {field["field"]: field["default"] for field in schema["fields"] if "default" in field}


def test_connect_reads_every_default_as_the_value_that_the_engine_puts_there(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    columns = _table_of_all(work, "DEFAULTS")
    for modes in MODES:
        made = renderer(tmp_path, (*modes.lines(), _DIGITS))
        [message] = render(made, work.journals())
        read = connect.read(message.topic, message.key, message.value)
        row = read["value"]["value"][1]["after"][1]
        for part in ("before", "after"):
            fields = read["value"]["schema"]["fields"][part]["fields"]
            for name, definition in columns.items():
                due = None if fields[name]["type"] == "struct" else row[name]
                assert fields[name].get("default") == due, definition
        assert "default" not in read["key"]["schema"]["fields"]["ID"]


def test_an_explicit_null_stays_null_for_a_connect_with_its_defaults(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """JsonConverter takes null for the default of a field that has one."""
    work.script(
        "CREATE TABLE NULLS (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER DEFAULT 5,"
        " T VARCHAR(9) DEFAULT 'a', M INTEGER DEFAULT 6 NOT NULL)"
    )
    work.immediate("INSERT INTO NULLS (ID, N, T) VALUES (1, NULL, NULL)")
    work.immediate("INSERT INTO NULLS (ID) VALUES (2)")
    work.commit()
    rows = []
    for message in render(renderer(tmp_path), work.journals()):
        read = connect.read(message.topic, message.key, message.value)
        rows.append(read["value"]["value"][1]["after"][1])
    assert [(row["N"], row["T"], row["M"]) for row in rows] == [
        (None, None, ["Integer", "6"]),
        (["Integer", "5"], ["String", "a"], ["Integer", "6"]),
    ]


def test_messages_of_versions_before_have_none(work: Work, tmp_path: Path) -> None:
    work.script(
        "CREATE TABLE BEFORE_02 (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER DEFAULT 5 NOT NULL)"
    )
    work.immediate("INSERT INTO BEFORE_02 (ID) VALUES (1)")
    work.commit()
    [message] = render(renderer(tmp_path, form=form_of("0.1.0")), work.journals())
    assert _told(json.loads(message.value or b"")["schema"]["fields"][1]) == {}


@pytest.mark.registry
def test_connect_s_avro_converter_reads_every_default(
    work: Work, avro_reader: AvroReader, registry: SchemaRegistry, tmp_path: Path
) -> None:
    columns = _table_of_all(work, "AVRO_DEFAULTS")
    for modes in MODES:
        [message] = render_avro(work.journals(), registry.url, tmp_path, *modes.lines(), _DIGITS)
        read = avro_reader.read(registry.address, message.topic, message.value or b"")
        row = read["payload"]["after"]
        for schema in read["schema"]["fields"][:2]:
            told = _told(schema)
            for field in schema["fields"][1:]:
                name = field["field"]
                due = None if field["type"] == "struct" else row[name]
                assert told.get(name) == due, columns[name]


def _as_read(default: Any, value: Any) -> Any:
    """DEFAULT as VALUE is read: fastavro leaves defaults of bytes as the schema has them, and
    those of 32 bits with the digits that are shown."""
    if isinstance(default, float):
        as_single = ctypes.c_float(default).value
        return as_single if as_single == value else default
    if not isinstance(default, str) or isinstance(value, str):
        return default
    raw = default.encode("latin-1")
    if isinstance(value, bytes):
        return raw
    exponent = value.as_tuple().exponent
    return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(exponent, Context(prec=60))


@pytest.mark.registry
def test_a_registry_under_backward_takes_columns_that_are_added_with_a_default(
    work: Work, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """And readers of the new schema know what rows of before have."""
    work.script("CREATE TABLE GROWING (ID INTEGER NOT NULL PRIMARY KEY)")
    work.script("INSERT INTO GROWING VALUES (1)")
    [old] = render_avro(work.journals(), registry.url, tmp_path, _DIGITS)
    with SchemaRegistryClient({"url": registry.url}) as client:
        subject = f"{old.topic}-value"
        client.set_compatibility(subject, "BACKWARD")
        columns = columns_of({k: v for k, v in LITERALS.items() if k not in (*_STRUCTS, "WORDS")})
        added = ", ".join(f"ADD {name} {definition}" for name, definition in columns.items())
        work.script(f"ALTER TABLE GROWING {added}", "INSERT INTO GROWING (ID) VALUES (2)")
        _, new = render_avro(work.journals(), registry.url, tmp_path, _DIGITS)
        assert client.get_versions(subject) == [1, 2]
        schemas = []
        for message in (old, new):
            number = int.from_bytes((message.value or b"")[1:5], "big")
            schemas.append(fastavro.parse_schema(json.loads(client.get_schema(number).schema_str)))
        rows: list[Any] = [
            fastavro.schemaless_reader(BytesIO((message.value or b"")[5:]), written, schemas[1])
            for message, written in zip((old, new), schemas, strict=True)
        ]
        before, after = (row["after"] for row in rows)
        del before["ID"], after["ID"]
        wrong = {
            columns[name]: (before[name], after[name])
            for name in after
            if _as_read(before[name], after[name]) != after[name]
        }
        assert not wrong
        work.script(
            "ALTER TABLE GROWING ADD AT_ TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL",
            "INSERT INTO GROWING (ID) VALUES (3)",
        )
        with pytest.raises(BadEvent, match="incompatible"):
            render_avro(work.journals(), registry.url, tmp_path, _DIGITS)
