"""Decimals at both ends of every storage, read by the clients that are strict about precision."""

from __future__ import annotations

import json
from base64 import b64decode
from decimal import Context, Decimal
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pipeline import render, render_avro, renderer
from work import Work

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.versions import form_of

if TYPE_CHECKING:
    from firebird_cdc.demo.registry import SchemaRegistry

pytestmark = pytest.mark.engine

_MOST = "9" * 36 + ".99"
# Column, its type, both ends of what it takes, the digits that it has to declare.
_COLUMNS = (
    ("N4", "NUMERIC(4, 2)", "327.67", "-327.68", 5),
    ("N9", "NUMERIC(9, 3)", "2147483.647", "-2147483.648", 10),
    ("D3", "DECIMAL(3, 1)", "214748364.7", "-214748364.8", 10),
    ("N18", "NUMERIC(18, 4)", "922337203685477.5807", "-922337203685477.5808", 19),
    ("D10", "DECIMAL(10, 0)", "9223372036854775807", "-9223372036854775808", 19),
    ("N38", "NUMERIC(38, 2)", _MOST, f"-{_MOST}", 38),
    ("D20", "DECIMAL(20, 2)", _MOST, f"-{_MOST}", 38),
    ("I", "INT128", "9" * 38, "-" + "9" * 38, 38),
)
_BEYOND = "1701411834604692317316873037158841057.27"  # 39 digits
_WIDE = Context(prec=60)


def _script(work: Work, name: str, columns: str, *rows: str) -> None:
    """Create the table NAME and fill it, as users do: with literals."""
    work.script(f"CREATE TABLE {name} ({columns})")
    for row in rows:
        work.script(f"INSERT INTO {name} VALUES ({row})")


def _of_extremes(work: Work, name: str) -> list[list[Decimal]]:
    """A table with both ends of each type, of which N4 is the key; return its rows."""
    columns = ", ".join(
        f"{column} {sql} NOT NULL" + (" PRIMARY KEY" if column == "N4" else "")
        for column, sql, *_ in _COLUMNS
    )
    rows = [[each[end] for each in _COLUMNS] for end in (2, 3)]
    _script(work, name, columns, *(", ".join(f"'{text}'" for text in row) for row in rows))
    return [[Decimal(text) for text in row] for row in rows]


def _decimals(schema: dict[str, Any], row: dict[str, Any]) -> list[Decimal]:
    """The decimals of ROW, which a JSON message has, none with more digits than SCHEMA declares."""
    found = []
    for field, (*_, digits) in zip(schema["fields"], _COLUMNS, strict=True):
        told = field["parameters"]
        assert int(told["connect.decimal.precision"]) == digits, field
        unscaled = int.from_bytes(b64decode(row[field["field"]]), "big", signed=True)
        assert len(str(abs(unscaled))) <= digits
        found.append(Decimal(unscaled).scaleb(-int(told["scale"]), _WIDE))
    return found


def test_json_declares_as_many_digits_as_values_have(work: Work, tmp_path: Path) -> None:
    rows = _of_extremes(work, "ENDS_JSON")
    messages = render(renderer(tmp_path), work.journals())
    for message, row in zip(messages, rows, strict=True):
        value = json.loads(message.value or b"")
        after = next(each for each in value["schema"]["fields"] if each["field"] == "after")
        assert _decimals(after, value["payload"]["after"]) == row
        key = json.loads(message.key or b"")["schema"]["fields"][0]
        assert key["parameters"] == {"scale": "2", "connect.decimal.precision": "5"}


@pytest.mark.registry
def test_no_avro_client_rounds_a_value(
    work: Work, registry: SchemaRegistry, tmp_path: Path
) -> None:
    rows = _of_extremes(work, "ENDS_AVRO")
    messages = render_avro(work.journals(), registry.url, tmp_path)
    names = [column for column, *_ in _COLUMNS]
    with SchemaRegistryClient({"url": registry.url}) as client:
        deserialize = AvroDeserializer(client)
        for message, row in zip(messages, rows, strict=True):
            raw = message.value
            assert raw is not None
            read = deserialize(raw, SerializationContext(message.topic, MessageField.VALUE))
            schema = json.loads(client.get_schema(int.from_bytes(raw[1:5], "big")).schema_str)
            alone: Any = fastavro.schemaless_reader(
                BytesIO(raw[5:]), fastavro.parse_schema(schema), None
            )
            for found in (read, alone):
                assert [found["after"][name] for name in names] == row
            key = deserialize(message.key, SerializationContext(message.topic, MessageField.KEY))
            assert key == {"N4": row[0]}


@pytest.mark.registry
@pytest.mark.parametrize("rule", ["BACKWARD", "FULL"])
def test_a_registry_takes_the_new_precisions_over_those_of_versions_before(
    work: Work, registry: SchemaRegistry, tmp_path: Path, rule: str
) -> None:
    """And clients that know both schemas read old and new messages, each by its own."""
    rows = _of_extremes(work, f"UPGRADED_{rule}")
    old = render_avro(work.journals(), registry.url, tmp_path, form=form_of("0.1.0"))
    with SchemaRegistryClient({"url": registry.url}) as client:
        for part in ("key", "value"):
            client.set_compatibility(f"{old[0].topic}-{part}", rule)
        new = render_avro(work.journals(), registry.url, tmp_path)
        deserialize = AvroDeserializer(client)
        context = SerializationContext(new[0].topic, MessageField.VALUE)
        assert deserialize(old[0].value, context)["after"]["N4"] == Decimal("327.7")  # the fault
        assert deserialize(new[0].value, context)["after"]["N4"] == rows[0][0]
        assert client.get_versions(f"{old[0].topic}-key") == [1, 2]


def test_39_digits_are_a_bad_event_that_is_named(work: Work, tmp_path: Path) -> None:
    columns = "ID INTEGER NOT NULL PRIMARY KEY, PRICE NUMERIC(38, 2)"
    _script(work, "BEYOND", columns, f"7, '{_BEYOND}'")
    with pytest.raises(BadEvent, match=r"BEYOND: column PRICE: 1701411.*has 39 digits") as refused:
        render(renderer(tmp_path), work.journals())
    assert "7" in refused.value.whose
    text, number = (
        json.loads(message.value or b"")["payload"]["after"]["PRICE"]
        for mode in ("string", "double")
        for message in render(
            renderer(tmp_path, (f"decimal.handling.mode: {mode}",)), work.journals()
        )
    )
    assert (text, number) == (_BEYOND, float(_BEYOND))


@pytest.mark.registry
def test_int128_precision_39_declares_and_carries_39_digits(
    work: Work, registry: SchemaRegistry, tmp_path: Path
) -> None:
    least = "-170141183460469231731687303715884105728"
    columns = "ID INTEGER NOT NULL PRIMARY KEY, PRICE NUMERIC(38, 2), I INT128"
    _script(work, "ALL_39", columns, f"7, '{_BEYOND}', '{least}'")
    option = "decimal.int128.precision: 39"
    [message] = render(renderer(tmp_path, (option,)), work.journals())
    fields = json.loads(message.value or b"")["schema"]["fields"][1]["fields"]
    for field, scale in zip(fields[1:], "20", strict=True):
        assert field["parameters"] == {"scale": scale, "connect.decimal.precision": "39"}
    [message] = render_avro(work.journals(), registry.url, tmp_path, option)
    with SchemaRegistryClient({"url": registry.url}) as client:
        context = SerializationContext(message.topic, MessageField.VALUE)
        after = AvroDeserializer(client)(message.value, context)["after"]
    assert (after["PRICE"], after["I"]) == (Decimal(_BEYOND), Decimal(least))


def test_propagated_source_type_length_is_that_of_create_table(work: Work, tmp_path: Path) -> None:
    """The length in the parameters of the source type is that of CREATE TABLE."""
    _of_extremes(work, "ENDS_TOLD")
    made = renderer(tmp_path, ("column.propagate.source.type: .*",))
    message = render(made, work.journals())[0]
    fields = json.loads(message.value or b"")["schema"]["fields"][1]["fields"]
    lengths = [each["parameters"]["__debezium.source.column.length"] for each in fields[:-1]]
    assert lengths == ["4", "9", "3", "18", "10", "38", "20"]
