"""Results of Debezium's and Kafka Connect's own transforms and schemas for our messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from decode import from_java
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import BY_SQL
from pipeline import Sent, render, renderer
from reader import ConnectReader, Described
from work import Changed, Column, Table, Work

from firebird_cdc.journal.events.names import adjust_field_name, adjust_schema_name

pytestmark = pytest.mark.engine

Transform = tuple[str, dict[str, str]]


@pytest.fixture
def messages(work: Work, orders: Table, tmp_path: Path) -> list[Sent]:
    """Those of ``orders``: c, u, d with its tombstone and c of the new key, d and tombstone."""
    return render(renderer(tmp_path), work.journals())


def _apply(
    connect: ConnectReader, messages: list[Sent], *transforms: Transform
) -> list[Described | None]:
    """Return what TRANSFORMS leave of each message, None for those that they drop."""
    found = []
    for message in messages:
        read = connect.read(*message[:3], message.structs, transforms=transforms)
        found.append(read["transformed"])
    return found


def _plain(datum: Described) -> Any:
    return from_java(datum["schema"], datum["value"])


def _row(changed: Changed, image: tuple[Any, ...] | None) -> dict[str, Any]:
    assert image is not None
    return dict(zip((c.name for c in changed.table.columns), image, strict=True))


def test_unwrapped_by_extract_new_record_state(
    work: Work, messages: list[Sent], connect: ConnectReader
) -> None:
    """The commonest transform in front of a sink: the row, flat, with what was asked for."""
    options = {
        "add.fields": "op,source.table",
        "add.headers": "source.db",
        "delete.tombstone.handling.mode": "rewrite",
    }
    unwrap = ("io.debezium.transforms.ExtractNewRecordState", options)
    created, updated, moved, deleted = work.committed
    found = _apply(connect, messages, unwrap)
    assert [record and _plain(record["value"]) for record in found] == [
        {**_row(change, image), "__deleted": gone, "__op": op, "__source_table": "ORDERS"}
        if change
        else None
        for change, image, gone, op in (
            (created, created.after, "false", "c"),
            (updated, updated.after, "false", "u"),
            (moved, moved.before, "true", "d"),
            (None, None, "", ""),
            (moved, moved.after, "false", "c"),
            (deleted, deleted.before, "true", "d"),
            (None, None, "", ""),
        )
    ]
    for record in filter(None, found):
        assert _plain(record["headers"]["__source_db"]) == work.database


def test_sink_gets_one_null_value_for_each_deleted_key(
    messages: list[Sent], connect: ConnectReader
) -> None:
    """As a JDBC sink with delete.enabled wants them: one null value for each deleted key."""
    options = {"delete.tombstone.handling.mode": "delete-to-tombstone"}
    unwrap = ("io.debezium.transforms.ExtractNewRecordState", options)
    found = [
        (_plain(record["key"])["ID"], record["value"]["value"] is None)
        for record in _apply(connect, messages, unwrap)
        if record
    ]
    assert found == [(1, False), (1, False), (1, True), (2, False), (2, True)]


def test_headers_name_the_changed_columns(messages: list[Sent], connect: ConnectReader) -> None:
    options = {"header.changed.name": "changed", "header.unchanged.name": "unchanged"}
    found = _apply(connect, messages, ("io.debezium.transforms.ExtractChangedRecordState", options))
    assert found[1]
    headers = found[1]["headers"]
    assert _plain(headers["changed"]) == ["PRICE"]
    assert _plain(headers["unchanged"]) == ["ID", "NAME", "AT"]


def test_messages_routed_into_one_topic_have_keys_that_tell_their_table(
    messages: list[Sent], connect: ConnectReader
) -> None:
    """Every kind of message, tombstones too, gets the key that tells its table."""
    options = {
        "topic.regex": r"(.*)\.ORDERS",
        "topic.replacement": "$1.ALL_ORDERS",
        "key.field.name": "origin",
    }
    found = _apply(connect, messages, ("io.debezium.transforms.ByLogicalTableRouter", options))
    for message, record in zip(messages, found, strict=True):
        assert record
        assert record["topic"] == message.topic.replace(".ORDERS", ".ALL_ORDERS")
        assert _plain(record["key"])["origin"] == message.topic


def test_kafkas_own_transforms_read_our_messages(
    work: Work, messages: list[Sent], connect: ConnectReader
) -> None:
    package = "org.apache.kafka.connect.transforms"
    chain: tuple[Transform, ...] = (
        ("io.debezium.transforms.ExtractNewRecordState", {}),
        (f"{package}.ReplaceField$Value", {"exclude": "AT"}),
        (f"{package}.ExtractField$Key", {"field": "ID"}),
        (f"{package}.ValueToKey", {"fields": "ID,NAME"}),
        (f"{package}.Cast$Value", {"spec": "PRICE:string"}),
    )
    first = _apply(connect, messages[:1], *chain)[0]
    assert first
    assert _plain(first["key"]) == {"ID": 1, "NAME": "Łódź"}
    assert _plain(first["value"]) == {"ID": 1, "PRICE": "12.50", "NAME": "Łódź"}
    flat = _apply(connect, messages[1:2], (f"{package}.Flatten$Value", {"delimiter": "_"}))[0]
    assert flat
    value = _plain(flat["value"])
    assert {"before_PRICE", "after_PRICE", "source_txId", "op"} < set(value)
    assert str(value["before_PRICE"]) == "12.50"
    assert str(value["after_PRICE"]) == "-0.01"


def test_the_envelope_is_debeziums(messages: list[Sent], connect: ConnectReader) -> None:
    """Field by field, with the versions of schemas; the order is the feature reference's."""
    topic, key, value = messages[1][:3]
    assert value is not None
    ours = connect.read(topic, key, value)["value"]["schema"]
    theirs = connect.debezium_schemas(topic, value)
    envelope = theirs["envelope"]
    assert ours["name"] == envelope["name"]
    assert ours["version"] == envelope["version"] == 2
    assert ours["fields"]["source"]["version"] == theirs["source"]["version"] == 1
    assert set(ours["fields"]) == set(envelope["fields"])
    for name, schema in envelope["fields"].items():
        if name != "transaction":
            assert ours["fields"][name] == schema, name
    block, due = (schema["fields"]["transaction"] for schema in (ours, envelope))
    assert {**block, "fields": None} == {**due, "fields": None}
    assert list(block["fields"].items())[:3] == list(due["fields"].items())
    snapshot = ours["fields"]["source"]["fields"]["snapshot"]
    words, all_words = (
        set(schema.pop("parameters")["allowed"].split(","))
        for schema in (snapshot, theirs["snapshot"])
    )
    assert words == all_words
    assert snapshot == theirs["snapshot"]


def test_propagated_types_make_a_source_schema(
    work: Work, orders: Table, connect: ConnectReader, tmp_path: Path
) -> None:
    """ExtractSchemaToNewRecord needs what column.propagate.source.type has added to all fields."""
    made = renderer(tmp_path, ("column.propagate.source.type: .*",))
    transform = ("io.debezium.transforms.ExtractSchemaToNewRecord", {})
    first = _apply(connect, render(made, work.journals())[:1], transform)[0]
    assert first
    described = _plain(first["value"])["sourceSchema"]
    assert described["id"] == "ORDERS"
    columns = [tuple(column.values()) for column in described["table"]["columns"]]
    assert columns == [
        ("ID", "INTEGER", None, None, None),
        ("PRICE", "DECIMAL", 9, 2, None),
        ("NAME", "VARCHAR", 20, None, None),
        ("AT", "TIMESTAMP", None, None, None),
    ]


@pytest.mark.parametrize(
    ("option", "algorithm", "version"),
    [
        ("column.mask.hash.SHA-256.with.salt.pepper", "SHA-256", "V1"),
        ("column.mask.hash.v2.MD5.with.salt.Łódź", "MD5", "V2"),
    ],
)
def test_hashes_are_debeziums(
    work: Work, connect: ConnectReader, tmp_path: Path, option: str, algorithm: str, version: str
) -> None:
    """So rows of a moved connector, and joins with other systems' topics, keep their pseudonyms."""
    salt = option.rpartition(".")[2]
    sql = ("VARCHAR(20) CHARACTER SET UTF8", "CHAR(7) CHARACTER SET UTF8")
    blob = "BLOB SUB_TYPE TEXT CHARACTER SET UTF8"
    texts = tuple(Column(f"C{place}", BY_SQL[name]) for place, name in enumerate((*sql, blob)))
    table = Table(f"HASHED_{version}", texts)
    work.create(table)
    for row in (["жук 🍵", "x", "long " * 9], ["", "", ""], [None, None, None]):
        assert work.insert(table, row)
    work.commit()
    messages = render(renderer(tmp_path, (f"{option}: .*",)), work.journals())
    for change, message in zip(work.committed, messages, strict=True):
        assert change.after
        row = _plain(connect.read(*message[:3])["value"])["after"]
        assert list(row.values()) == [
            value if value is None else connect.hash(value, length, algorithm, salt, version)
            for value, length in zip(change.after, (20, 7, 0), strict=True)
        ]


# In avro_unicode Debezium has three digits for control characters and for U+0100 to U+0FFF, and
# we have four.
_LETTERS = st.one_of(
    st.sampled_from("aZ09_$-. /é"),
    st.characters(min_codepoint=0x1000, exclude_categories=("Cs",)),
    st.characters(min_codepoint=0x20, max_codepoint=0xFF),
)


@settings(max_examples=200)
@given(st.lists(st.text(_LETTERS, max_size=6), min_size=1, max_size=3))
def test_names_are_made_safe_as_debezium_does(connect: ConnectReader, parts: list[str]) -> None:
    # Of the parts of a schema's name Debezium leaves digits in front alone, and we don't.
    parts = [f"x{part}".replace(".", "-") for part in parts]
    name = ".".join(parts)
    for mode in ("avro", "avro_unicode"):
        for text in (name, name[1:] or "x"):
            schema, field = connect.adjusted(text, mode)
            assert adjust_field_name(text, mode) == field
            if text is name:
                assert adjust_schema_name(text, mode) == schema
