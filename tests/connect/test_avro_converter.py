"""Avro with a real registry: what other people's readers make of it, and what the registry says."""

from __future__ import annotations

import io
import json
import math
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import avro.io
import avro.schema
import pytest
from avro_reader import AvroReader
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from every_type import ENVELOPE, FIELDS, VALUE, as_json

from firebird_cdc.errors import RegistryRefused, RegistryUnavailable
from firebird_cdc.journal.events import avro as journal_avro
from firebird_cdc.journal.events.avro import AvroConverter, avro_schema
from firebird_cdc.journal.events.schema import INT32, INT64, OPTIONAL_INT64, STRING, Schema, struct

if TYPE_CHECKING:
    from firebird_cdc.demo.registry import SchemaRegistry

pytestmark = pytest.mark.registry

DOUBLE = Schema("double")
Make = Callable[..., AvroConverter]


@pytest.fixture
def make(registry: SchemaRegistry) -> Iterator[Make]:
    """Return a maker of converters of values, or of keys, for the registry that all share."""
    made: list[AvroConverter] = []

    def converter(is_key: bool = False, **options: str) -> AvroConverter:
        spelt = {name.replace("_", "."): value for name, value in options.items()}
        given = {"schema.registry.url": registry.url, **spelt}
        made.append(AvroConverter(given, is_key=is_key))
        return made[-1]

    yield converter
    for each in made:
        each.close()


@pytest.fixture
def client(registry: SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    """Confluent's client, for what a user does at the registry."""
    with SchemaRegistryClient({"url": registry.url}) as connected:
        yield connected


@pytest.fixture
def ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry's no is forgotten at once, not after some seconds."""
    monkeypatch.setattr(journal_avro, "_ASK_AGAIN_S", 0.0)


def row(*fields: tuple[str, Schema]) -> Schema:
    """A table's struct."""
    return struct("p.depot.ITEM.Value", *fields)


# What others read


def test_a_foreign_connect_converter_reads_back_every_schema_and_value(
    make: Make, registry: SchemaRegistry, avro_reader: AvroReader, topic_prefix: str
) -> None:
    message = make().from_connect(topic_prefix, ENVELOPE, VALUE)
    assert message is not None
    read = avro_reader.read(registry.address, topic_prefix, message)
    # The second of two records of one name is only a reference to the first in Avro.
    told = {"__debezium.source.column.type": "DECFLOAT"}
    expected = json.loads(json.dumps(as_json(ENVELOPE.to_json())))
    for image in expected["fields"][:2]:
        for field in image["fields"]:
            if field.get("parameters") == told:
                del field["parameters"]
    assert read["payload"] == as_json(VALUE)
    assert read["schema"] == expected


@pytest.mark.parametrize("name", [name for name, _, _ in FIELDS])
def test_schema_and_bytes_are_those_that_avro_data_makes(
    make: Make, avro_reader: AvroReader, topic_prefix: str, name: str
) -> None:
    # One type at a time: a difference then names itself.
    schema, value = next((kind, value) for field, kind, value in FIELDS if field == name)
    key = struct("p.depot.ITEM.Key", (name, schema), ("again", schema))
    converter = make(is_key=True)
    # Confluent's serialiser writes the first; the next one must be the same.
    message, again = (
        converter.from_connect(topic_prefix, key, {name: value, "again": value}) for _ in range(2)
    )
    assert message == again
    written = avro_reader.write(as_json(key.to_json()), as_json({name: value, "again": value}))
    assert json.dumps(written.schema) == json.dumps(avro_schema(key)[0])
    assert message is not None
    assert message[:1] == b"\0"
    assert message[5:] == written.avro


def test_confluents_deserializer_and_plain_avro_read_the_same(
    make: Make, registry: SchemaRegistry, client: SchemaRegistryClient, topic_prefix: str
) -> None:
    message = make().from_connect(topic_prefix, ENVELOPE, VALUE)
    assert message is not None
    context = SerializationContext(topic_prefix, MessageField.VALUE)
    confluent = AvroDeserializer(client)(message, context)
    number = int.from_bytes(message[1:5], "big")
    with urllib.request.urlopen(f"{registry.url}/schemas/ids/{number}") as answer:
        schema = avro.schema.parse(json.load(answer)["schema"])
    plain = avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(io.BytesIO(message[5:])))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = dict(VALUE["after"]) | {
        "price": Decimal("-5.00"),
        "huge": Decimal(int.from_bytes(b"\x7f" * 16, "big")),
        "day": date(1969, 12, 31),
        "time": time(23, 59, 59, 999_000),
        "moment": epoch - timedelta(milliseconds=5),
        "pairs": [{"key": 1, "value": "x"}],
        "named_pairs": [{"key": 3, "value": {"scale": 0, "value": b"\x01"}}],
    }
    # Their decimals have 28 digits at most.
    for read in (confluent, plain):
        assert isinstance(read, dict)
        assert {**read["after"], "huge": expected["huge"]} == expected
        assert (read["before"], read["op"]) == (None, "c")
    assert confluent["after"]["huge"] == expected["huge"]


def test_nan_infinity_and_negative_zero_survive_in_avro(
    make: Make, client: SchemaRegistryClient, topic_prefix: str
) -> None:
    schema = row(("A", DOUBLE), ("B", Schema("float", optional=True)), ("C", DOUBLE))
    value = {"A": math.nan, "B": math.inf, "C": -0.0}
    message = make().from_connect(topic_prefix, schema, value)
    read = AvroDeserializer(client)(message, SerializationContext(topic_prefix, MessageField.VALUE))
    assert repr(read) == repr(value)


def test_null_is_no_message(make: Make, topic_prefix: str) -> None:
    converter = make()
    assert converter.from_connect(topic_prefix, None, None) is None
    assert converter.from_connect(topic_prefix, ENVELOPE, None) is None


# Subjects


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "{topic}-key"),
        ("io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", "{topic}-{topic}.Key"),
        ("RecordNameStrategy", "{topic}.Key"),
    ],
)
def test_the_strategy_names_the_subject(
    make: Make, client: SchemaRegistryClient, topic_prefix: str, strategy: str, subject: str
) -> None:
    converter = make(is_key=True, key_subject_name_strategy=strategy)
    converter.from_connect(topic_prefix, struct(f"{topic_prefix}.Key", ("ID", INT64)), {"ID": 1})
    mine = [name for name in client.get_subjects() if topic_prefix in name]
    assert mine == [subject.format(topic=topic_prefix)]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "{topic}-value"),
        ("TopicRecordNameStrategy", "{topic}-{topic}.Value"),
        ("RecordNameStrategy", "{topic}.Value"),
    ],
)
def test_row_alone_as_the_unwrap_transform_leaves_it(
    make: Make,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
    avro_reader: AvroReader,
    topic_prefix: str,
    strategy: str,
    subject: str,
) -> None:
    converter = make(value_subject_name_strategy=strategy)
    alone = struct(f"{topic_prefix}.Value", ("ID", INT64), ("N", OPTIONAL_INT64), optional=True)
    messages = [
        converter.from_connect(topic_prefix, alone, {"ID": number, "N": None}) for number in (1, 2)
    ]
    for number, message in enumerate(messages, 1):
        assert message is not None
        read = avro_reader.read(registry.address, topic_prefix, message)
        assert read["payload"] == {"ID": number, "N": None}
        assert read["schema"]["name"] == f"{topic_prefix}.Value"
    mine = [name for name in client.get_subjects() if topic_prefix in name]
    assert mine == [subject.format(topic=topic_prefix)]


# Evolution


def test_column_that_is_added_makes_a_second_version(
    make: Make, client: SchemaRegistryClient, topic_prefix: str
) -> None:
    converter, subject = make(), f"{topic_prefix}-value"
    old = converter.from_connect(topic_prefix, row(("ID", INT64)), {"ID": 1})
    client.set_compatibility(subject, "FULL")
    wider = row(("ID", INT64), ("QTY", OPTIONAL_INT64))
    new = converter.from_connect(topic_prefix, wider, {"ID": 2, "QTY": 5})
    assert client.get_versions(subject) == [1, 2]
    context = SerializationContext(topic_prefix, MessageField.VALUE)
    reader = AvroDeserializer(client, json.dumps(avro_schema(wider)[0]))
    assert [reader(message, context) for message in (old, new)] == [
        {"ID": 1, "QTY": None},
        {"ID": 2, "QTY": 5},
    ]


def test_incompatible_change_is_refused_until_the_rule_allows_it(
    make: Make, client: SchemaRegistryClient, topic_prefix: str, ask_at_once: None
) -> None:
    converter, subject = make(), f"{topic_prefix}-value"
    converter.from_connect(topic_prefix, row(("ID", INT64)), {"ID": 1})
    client.set_compatibility(subject, "BACKWARD")
    changed = row(("ID", STRING))
    with pytest.raises(RegistryRefused) as refusal:
        converter.from_connect(topic_prefix, changed, {"ID": "1"})
    text = str(refusal.value)
    assert subject in text
    assert "STRING" in text  # the registry's own words
    assert "HTTP 409" in text
    assert "compatibility" in text
    client.set_compatibility(subject, "NONE")
    assert converter.from_connect(topic_prefix, changed, {"ID": "1"}) is not None


def test_registry_refusal_is_cached_instead_of_asked_for_every_event(
    make: Make,
    client: SchemaRegistryClient,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_avro, "_ASK_AGAIN_S", 600.0)
    converter, subject = make(), f"{topic_prefix}-value"
    converter.from_connect(topic_prefix, row(("ID", INT64)), {"ID": 1})
    client.set_compatibility(subject, "BACKWARD")
    changed = row(("ID", STRING))
    for _ in range(2):
        with pytest.raises(RegistryRefused, match="HTTP 409"):
            converter.from_connect(topic_prefix, changed, {"ID": "1"})
        # A registry that is asked again would say yes.
        client.set_compatibility(subject, "NONE")
    assert converter.from_connect(topic_prefix, row(("ID", INT64)), {"ID": 2}) is not None


def test_unregistered_schema_is_refused_where_nothing_may_be_registered(
    make: Make, client: SchemaRegistryClient, topic_prefix: str, ask_at_once: None
) -> None:
    careful = make(auto_register_schemas="false")
    schema = row(("ID", INT64))
    with pytest.raises(RegistryRefused, match=r"auto\.register\.schemas: true"):
        careful.from_connect(topic_prefix, schema, {"ID": 1})
    assert f"{topic_prefix}-value" not in client.get_subjects()
    by_somebody_else = make().from_connect(topic_prefix, schema, {"ID": 1})
    assert careful.from_connect(topic_prefix, schema, {"ID": 1}) == by_somebody_else


def test_latest_version_is_written_and_never_loses_a_column(
    make: Make, client: SchemaRegistryClient, topic_prefix: str, ask_at_once: None
) -> None:
    wide = row(("ID", INT64), ("QTY", OPTIONAL_INT64))
    make().from_connect(topic_prefix, wide, {"ID": 1, "QTY": 2})
    latest = make(use_latest_version="true", auto_register_schemas="false")
    context = SerializationContext(topic_prefix, MessageField.VALUE)
    message = latest.from_connect(topic_prefix, row(("ID", INT64)), {"ID": 3})
    assert AvroDeserializer(client)(message, context) == {"ID": 3, "QTY": None}
    wider = row(("ID", INT64), ("NAME", Schema("string", optional=True)))
    with pytest.raises(RegistryRefused, match="NAME"):
        latest.from_connect(topic_prefix, wider, {"ID": 4, "NAME": "x"})
    make().from_connect(topic_prefix, wider, {"ID": 4, "NAME": "x"})
    message = latest.from_connect(topic_prefix, wider, {"ID": 4, "NAME": "x"})
    assert AvroDeserializer(client)(message, context) == {"ID": 4, "NAME": "x"}


# A registry that goes and comes


def test_registry_absent_at_the_start_and_again_later(
    own_registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_avro, "_REST_S", 0.0)
    converter = AvroConverter({"schema.registry.url": own_registry.url}, is_key=False)
    with pytest.raises(RegistryUnavailable) as trouble:
        converter.from_connect("t", row(("ID", INT64)), {"ID": 1})
    assert own_registry.url in str(trouble.value)
    own_registry.start()
    first = converter.from_connect("t", row(("ID", INT64)), {"ID": 1})
    own_registry.stop()
    # What is known needs no registry, be it described by another object; what is new does.
    assert converter.from_connect("t", row(("ID", INT64)), {"ID": 1}) == first
    with pytest.raises(RegistryUnavailable):
        converter.from_connect("t", row(("ID", INT32)), {"ID": 1})
    converter.close()
