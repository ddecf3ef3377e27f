"""Messages for row changes: the worked example of the feature reference, keys, filters, headers."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import logbook
import pytest
from columns import column
from shipment import (
    DATABASE,
    FIRST,
    FIRST_JSON,
    SECOND,
    SECOND_JSON,
    SHIPMENT,
    TOPIC,
    Render,
    delete,
    insert,
    payload,
    update,
)

from firebird_cdc import __version__
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.format import JournalWriter, Storage

# The schemas of a table's events, spelled out.
ROW_FIELDS = [
    {"type": "int64", "optional": False, "field": "SHIPMENT_ID"},
    {"type": "string", "optional": False, "field": "CARRIER"},
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "3", "connect.decimal.precision": "10"},
        "field": "WEIGHT_KG",
    },
    {"type": "boolean", "optional": True, "field": "SEALED"},
    {
        "type": "int64",
        "optional": True,
        "name": "io.debezium.time.MicroTimestamp",
        "version": 1,
        "field": "DISPATCHED_AT",
    },
]


def fields(text: str) -> list[dict[str, Any]]:
    """Schema fields from ``type name`` pairs; ``?`` behind the type means optional."""
    return [
        {"type": kind.rstrip("?"), "optional": kind.endswith("?"), "field": name}
        for kind, name in (pair.split() for pair in text.split(","))
    ]


def row_schema(name: str) -> dict[str, Any]:
    return {
        "type": "struct",
        "optional": True,
        "name": f"{TOPIC}.Value",
        "field": name,
        "fields": ROW_FIELDS,
    }


ENVELOPE = {
    "type": "struct",
    "optional": False,
    "name": f"{TOPIC}.Envelope",
    "version": 2,
    "fields": [
        row_schema("before"),
        row_schema("after"),
        {
            "type": "struct",
            "optional": False,
            "name": "io.debezium.connector.firebird.Source",
            "version": 1,
            "field": "source",
            "fields": [
                *fields("string version,string connector,string name"),
                *fields("int64 ts_ms,int64 ts_us,int64 ts_ns"),
                {
                    "type": "string",
                    "optional": True,
                    "name": "io.debezium.data.Enum",
                    "version": 1,
                    "parameters": {
                        "allowed": "true,first,first_in_data_collection,"
                        "last_in_data_collection,last,false,incremental"
                    },
                    "default": "false",
                    "field": "snapshot",
                },
                *fields("string db,string? sequence,string table,int64? txId,int64? epoch"),
                *fields("int64? commitSeq,string? journal,int64? pos,int64? snapshotNumber"),
            ],
        },
        *fields("string op,int64? ts_ms,int64? ts_us,int64? ts_ns"),
        {
            "type": "struct",
            "optional": True,
            "name": "event.block",
            "version": 1,
            "field": "transaction",
            "fields": fields("string id,int64 total_order,int64 data_collection_order"),
        },
    ],
}
KEY = {
    "schema": {
        "type": "struct",
        "optional": False,
        "name": f"{TOPIC}.Key",
        "fields": [{"type": "int64", "optional": False, "field": "SHIPMENT_ID"}],
    },
    "payload": {"SHIPMENT_ID": 7001},
}


@pytest.mark.parametrize(
    ("fill", "op", "before", "after"),
    [
        (insert(*FIRST), "c", None, FIRST_JSON),
        (update(FIRST, SECOND), "u", FIRST_JSON, SECOND_JSON),
        (delete(SECOND), "d", SECOND_JSON, None),
    ],
    ids=["create", "update", "delete"],
)
def test_message_of_the_worked_example_has_each_of_its_fields(
    render: Render, fill: Any, op: str, before: Any, after: Any
) -> None:
    message, *rest = render(fill)
    assert message.topic == TOPIC
    assert message.key is not None
    assert json.loads(message.key) == KEY
    assert message.value is not None
    value = json.loads(message.value)
    assert value["schema"] == ENVELOPE
    payload = value["payload"]
    rendered_us = payload["ts_us"]
    assert rendered_us > 1_772_442_848_250_000
    expected = {
        "before": before,
        "after": after,
        "source": {
            "version": __version__,
            "connector": "firebird",
            "name": "depot",
            "ts_ms": 1772442848250,
            "ts_us": 1772442848250000,
            "ts_ns": 1772442848250000000,
            "snapshot": "false",
            "db": DATABASE,
            "sequence": '["0","90312","1"]',
            "table": "SHIPMENT",
            "txId": 48213,
            "epoch": 0,
            "commitSeq": 90312,
            "journal": "6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa",
            "pos": 1,
            "snapshotNumber": None,
        },
        "op": op,
        "ts_ms": rendered_us // 1000,
        "ts_us": rendered_us,
        "ts_ns": rendered_us * 1000,
        "transaction": None,
    }
    assert payload == expected
    assert list(payload) == list(expected)
    assert list(payload["source"]) == list(expected["source"])
    tombstones = [(other.topic, other.key, other.value) for other in rest]
    assert tombstones == ([(TOPIC, message.key, None)] if op == "d" else [])


def test_payload_is_sent_alone_without_schemas(render: Render) -> None:
    off = ("key.converter.schemas.enable: false", "value.converter.schemas.enable: false")
    (message,) = render(insert(*FIRST), *off)
    assert message.key == b'{"SHIPMENT_ID":7001}'
    assert json.loads(message.value or "")["after"] == FIRST_JSON


def test_event_positions_count_up_within_a_journal(render: Render) -> None:
    def fill(writer: JournalWriter) -> None:
        table = writer.table("SHIPMENT", SHIPMENT)
        for number in range(3):
            writer.insert(table, (number, "a", None, None, None))

    sources = [payload(message)["source"] for message in render(fill)]
    assert [(source["pos"], source["sequence"]) for source in sources] == [
        (1, '["0","90312","1"]'),
        (2, '["0","90312","2"]'),
        (3, '["0","90312","3"]'),
    ]


def test_nulls_are_nulls(render: Render) -> None:
    (message,) = render(insert(1, "a", None, None, None))
    after = payload(message)["after"]
    assert (after["WEIGHT_KG"], after["SEALED"], after["DISPATCHED_AT"]) == (None, None, None)


def test_key_change_is_delete_tombstone_create(render: Render) -> None:
    new = (7002, *FIRST[1:])
    removed, tombstone, created = render(update(FIRST, new))
    assert (payload(removed)["op"], payload(removed)["after"]) == ("d", None)
    assert payload(removed)["before"] == FIRST_JSON
    assert (payload(created)["op"], payload(created)["before"]) == ("c", None)
    assert payload(created)["after"] == FIRST_JSON | {"SHIPMENT_ID": 7002}
    assert (tombstone.key, tombstone.value) == (removed.key, None)
    assert created.key is not None
    assert removed.key is not None
    assert dict(removed.headers)["__debezium.newkey"] == b'{"SHIPMENT_ID":7002}'
    assert dict(created.headers)["__debezium.oldkey"] == b'{"SHIPMENT_ID":7001}'
    assert {name for name, _ in tombstone.headers} == {
        "__debezium.context.connectorLogicalName",
        "__debezium.context.taskId",
        "__debezium.context.connectorName",
    }


@pytest.mark.parametrize("fill", [delete(FIRST), update(FIRST, (7002, *FIRST[1:]))])
def test_tombstones_can_be_turned_off(render: Render, fill: Any) -> None:
    messages = render(fill, "tombstones.on.delete: false")
    assert messages
    assert all(message.value is not None for message in messages)


def test_table_without_a_key_has_null_keys_and_no_tombstones(render: Render) -> None:
    columns = (column("A", Storage.INTEGER), column("B", Storage.INTEGER))

    def fill(writer: JournalWriter) -> None:
        table = writer.table("LOOSE", columns, key_kind=0)
        writer.update(table, (1, 2), (3, 4))
        writer.delete(table, (3, 4))

    changed, removed = render(fill)
    assert (changed.key, removed.key) == (None, None)
    assert (payload(changed)["op"], payload(removed)["op"]) == ("u", "d")


def test_context_headers_name_prefix_task_and_connector(render: Render) -> None:
    (message,) = render(insert(*FIRST))
    assert dict(message.headers) == {
        "__debezium.context.connectorLogicalName": b"depot",
        "__debezium.context.taskId": b"0",
        "__debezium.context.connectorName": b"depot-cdc",
    }
    (bare,) = render(insert(*FIRST), "extended.headers.enabled: false")
    assert bare.headers == []


def test_column_filters_never_touch_the_key(render: Render) -> None:
    lists = r"column.exclude.list: .*\.SHIPMENT_ID, .*\.CARRIER"
    (message,) = render(insert(*FIRST), lists)
    assert json.loads(message.key or "")["payload"] == {"SHIPMENT_ID": 7001}
    assert set(payload(message)["after"]) == {"WEIGHT_KG", "SEALED", "DISPATCHED_AT"}
    schema = json.loads(message.value or "")["schema"]["fields"][1]
    assert [field["field"] for field in schema["fields"]] == [
        "WEIGHT_KG",
        "SEALED",
        "DISPATCHED_AT",
    ]
    removed, tombstone, created = render(update(FIRST, (7002, *FIRST[1:])), lists)
    assert tombstone.value is None
    assert removed.key != created.key


def test_filtered_tables_and_skipped_operations_give_nothing(render: Render) -> None:
    assert render(insert(*FIRST), r"table.exclude.list: .*\.SHIPMENT") == []
    assert render(insert(*FIRST), "skipped.operations: c") == []
    assert render(delete(FIRST), "skipped.operations: d") == []
    assert len(render(update(FIRST, SECOND), "skipped.operations: c,d")) == 1
    assert render(insert(1, name="RDB$ROLES", columns=SHIPMENT[:1])) == []


@pytest.mark.parametrize(
    ("skipped", "operations"),
    [
        ("t", ["d", None, "c"]),
        ("u", ["d", None, "c"]),
        ("d", ["c"]),
        ("c", ["d", None]),
        ("u,c", ["d", None]),
        ("d,u", ["c"]),
        ("c,d", []),
        ("c,d,u", []),
    ],
)
def test_change_of_a_key_skips_the_operations_that_it_gives(
    render: Render, skipped: str, operations: list[str | None]
) -> None:
    line = f"skipped.operations: {skipped}"
    made = render(update(FIRST, (7002, *FIRST[1:])), line)
    assert [each.value and payload(each)["op"] for each in made] == operations
    names = {name for each in made for name, _ in each.headers if "key" in name}
    assert ("__debezium.newkey" in names) is ("d" in operations)
    assert ("__debezium.oldkey" in names) is ("c" in operations)


def test_skipped_updates_of_other_columns_give_nothing(render: Render) -> None:
    assert render(update(FIRST, SECOND), "skipped.operations: u") == []
    assert render(update(FIRST, SECOND), "skipped.operations: u,d,c") == []


def test_names_with_quotes_percent_and_other_alphabets(render: Render) -> None:
    columns = (column('100% "a"\\b', Storage.INTEGER, 1), column("Имя", Storage.TEXT))
    (message,) = render(insert(1, "Я%s", name='T%d"', columns=columns))
    assert payload(message)["after"] == {'100% "a"\\b': 1, "Имя": "Я%s"}
    assert payload(message)["source"]["table"] == 'T%d"'
    assert re.fullmatch(r"[A-Za-z0-9._-]+", message.topic)


def test_key_fields_follow_column_position(render: Render) -> None:
    columns = (column("B", Storage.INTEGER, 2), column("A", Storage.INTEGER, 1))
    (message,) = render(insert(1, 2, columns=columns), "key.converter.schemas.enable: false")
    assert message.key == b'{"B":1,"A":2}'


def test_fields_follow_the_order_in_which_the_table_shows_its_columns(render: Render) -> None:
    columns = (
        column("A", Storage.BIGINT),
        column("K1", Storage.BIGINT, 1),
        column("B", Storage.BIGINT),
        column("K2", Storage.BIGINT, 2),
    )

    def fill(writer: JournalWriter) -> None:
        table = writer.table("SHIPMENT", columns, order=(3, 2, 1, 0))
        writer.update(table, (1, 2, 3, 4), (10, 2, 30, 4))

    (message,) = render(fill)
    assert message.key is not None and message.value is not None
    assert list(json.loads(message.key)["payload"].items()) == [("K2", 4), ("K1", 2)]
    envelope = json.loads(message.value)
    assert list(envelope["payload"]["before"].items()) == [("K2", 4), ("B", 3), ("K1", 2), ("A", 1)]
    assert list(envelope["payload"]["after"].items())[1] == ("B", 30)
    for side in envelope["schema"]["fields"][:2]:
        assert [field["field"] for field in side["fields"]] == ["K2", "B", "K1", "A"]


def test_new_shape_of_a_table_takes_over_within_a_journal(render: Render) -> None:
    def fill(writer: JournalWriter) -> None:
        writer.insert(writer.table("SHIPMENT", SHIPMENT[:2]), (1, "a"))
        writer.insert(writer.table("SHIPMENT", SHIPMENT[:3]), (2, "b", 5))

    old, new = render(fill)
    assert payload(old)["after"] == {"SHIPMENT_ID": 1, "CARRIER": "a"}
    assert payload(new)["after"] == {"SHIPMENT_ID": 2, "CARRIER": "b", "WEIGHT_KG": "BQ=="}


def test_two_tables_that_would_share_a_topic_are_a_bad_event(render: Render) -> None:
    def fill(writer: JournalWriter) -> None:
        writer.insert(writer.table("T$1", SHIPMENT[:1]), (1,))
        writer.insert(writer.table("T_1", SHIPMENT[:1]), (1,))

    with pytest.raises(BadEvent, match=r"T_1 .*T\$1 .*share the topic") as caught:
        render(fill)
    assert caught.value.pos == 2


def test_topic_name_that_is_too_long_is_a_bad_event(render: Render) -> None:
    with pytest.raises(BadEvent, match=r"249; choose a shorter kafka\.topic\.prefix"):
        render(insert(*FIRST), database="/" + "d" * 250)


def test_bad_value_names_table_and_column(render: Render) -> None:
    columns = (SHIPMENT[0], column("RATIO", Storage.DOUBLE))
    with pytest.raises(BadEvent, match="table SHIPMENT: column RATIO: nan"):
        render(insert(1, float("nan"), columns=columns))


@pytest.mark.parametrize("mode", ["fail", "warn", "skip"])
@pytest.mark.parametrize("nullable", [True, False])
def test_bad_value_makes_a_bad_event_in_every_mode(
    render: Render, mode: str, nullable: bool
) -> None:
    columns = (SHIPMENT[0], column("RATIO", Storage.DOUBLE, nullable=nullable))
    lines = f"event.processing.failure.handling.mode: {mode}"
    with pytest.raises(BadEvent, match="column RATIO: nan") as caught:
        render(insert(1, float("nan"), columns=columns), lines)
    assert caught.value.told.endswith('; it is of table SHIPMENT, key {"SHIPMENT_ID":1}')


def test_bad_values_in_a_table_of_many_columns_are_found_in_no_time(render: Render) -> None:
    columns = (SHIPMENT[0], *(column(f"N{n}", Storage.DOUBLE) for n in range(1000)))

    def fill(writer: JournalWriter) -> None:
        table = writer.table("WIDE", columns)
        for number in range(30):
            writer.insert(table, (number, float("nan"), *[0.5] * 999))

    skip = "event.processing.failure.handling.mode: skip"
    began_s = time.process_time()
    assert render(fill, skip, left_out=True) == []
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize(
    ("kind", "charset", "content"),
    [(Storage.TEXT, 0, b"\xff"), (Storage.TEXT, 4, b"\xff"), (Storage.BLOB, 4, None)],
)
def test_unreadable_value_in_a_message_key_is_a_bad_event(
    render: Render, kind: Storage, charset: int, content: bytes | None
) -> None:
    changes: dict[str, Any] = {"sub_type": 1} if kind is Storage.BLOB else {}
    code = column("CODE", kind, charset_id=charset, **changes)

    def fill(writer: JournalWriter) -> None:
        value = writer.blob(b"", available=False) if content is None else content
        writer.insert(writer.table("SHIPMENT", (SHIPMENT[0], code)), (1, value))

    (message,) = render(fill)
    assert payload(message)["after"]["CODE"] == "__debezium_unavailable_value"
    with pytest.raises(BadEvent, match=r"table SHIPMENT: column CODE: .*, and a placeholder is no"):
        render(fill, r"message.key.columns: .*\.SHIPMENT:CODE")


def test_problem_of_a_table_is_logged_once(render: Render) -> None:
    columns = (SHIPMENT[0], column("A B", Storage.TEXT), column("A_B", Storage.TEXT))

    def fill(writer: JournalWriter) -> None:
        table = writer.table("SHIPMENT", columns)
        for number in range(3):
            writer.insert(table, (number, "a", "b"))

    avro = "field.name.adjustment.mode: avro"
    key = r"message.key.columns: .*\.SHIPMENT:NO_SUCH"
    with logbook.TestHandler() as log:
        assert render(fill, avro, key, left_out=True) == []
    assert len([record for record in log.records if "NO_SUCH" in record.message]) == 1


def test_message_key_columns_stand_in_for_the_tables_key(render: Render) -> None:
    off = "key.converter.schemas.enable: false"
    (message,) = render(insert(*FIRST), r"message.key.columns: .*\.SHIPMENT:sealed,carrier", off)
    assert message.key == b'{"SEALED":true,"CARRIER":"Nordline"}'
    parts = r"message.key.columns: .*\.OTHER:A; .*\.SHIP.*:carr.*; .*\.SHIPMENT:SHIPMENT_ID"
    (message,) = render(insert(*FIRST), parts, off)
    assert message.key == b'{"CARRIER":"Nordline","SHIPMENT_ID":7001}'


def test_a_keyless_table_gets_a_key_by_message_key_columns(render: Render) -> None:
    columns = (column("A", Storage.INTEGER), column("B", Storage.INTEGER))

    def fill(writer: JournalWriter) -> None:
        table = writer.table("LOOSE", columns, key_kind=0)
        writer.update(table, (1, 2), (1, 3))
        writer.update(table, (1, 3), (None, 3))

    changed, removed, tombstone, created = render(
        fill, r"message.key.columns: .*\.LOOSE:A", "key.converter.schemas.enable: false"
    )
    assert (changed.key, payload(changed)["op"]) == (b'{"A":1}', "u")
    assert (removed.key, payload(removed)["op"]) == (b'{"A":1}', "d")
    assert (tombstone.key, tombstone.value) == (b'{"A":1}', None)
    assert (created.key, payload(created)["op"]) == (b'{"A":null}', "c")


@pytest.mark.parametrize("storage", [Storage.DOUBLE, Storage.FLOAT])
def test_a_key_of_zero_that_becomes_minus_zero_is_another_key(
    render: Render, storage: Storage
) -> None:
    columns = (column("D", storage, 1), column("N", Storage.INTEGER))

    def fill(writer: JournalWriter) -> None:
        writer.update(writer.table("T", columns), (0.0, 1), (-0.0, 2))

    removed, tombstone, created = render(fill, "key.converter.schemas.enable: false")
    assert removed.key == tombstone.key == b'{"D":0.0}'
    assert created.key == b'{"D":-0.0}'


@pytest.mark.parametrize("table", ["SHIPMENT", 'a"b', "\\u0000", "\\", "ü€😀", "{0}%s"])
def test_source_block_is_the_same_with_and_without_transforms(render: Render, table: str) -> None:
    def fill(writer: JournalWriter) -> None:
        made = writer.table(table, SHIPMENT)
        for _ in range(3):
            writer.insert(made, FIRST)

    idle = (
        "transforms: route",
        "transforms.route.type: route",
        "transforms.route.regex: nothing",
        "transforms.route.replacement: x",
    )
    database = '/srv/"q"\\u0000/ü\\.fdb'
    plain = render(fill, database=database)
    looked_at = render(fill, *idle, database=database)
    blocks = [[payload(message)["source"] for message in each] for each in (plain, looked_at)]
    assert blocks[0] == blocks[1]
    assert [list(block) for block in blocks[0]] == [list(block) for block in blocks[1]]
    assert [(block["pos"], block["sequence"]) for block in blocks[0]] == [
        (pos, f'["0","90312","{pos}"]') for pos in (1, 2, 3)
    ]
    assert blocks[0][0]["db"] == database
    assert blocks[0][0]["table"] == table


@pytest.mark.parametrize("schemas", ["true", "false"])
@pytest.mark.parametrize("keys", [1, 0])
def test_messages_are_the_same_bytes_with_and_without_transforms(
    render: Render, monkeypatch: pytest.MonkeyPatch, schemas: str, keys: int
) -> None:
    for module in ("table_shape", "render"):
        clock = f"firebird_cdc.journal.events.{module}.time_ns"
        monkeypatch.setattr(clock, lambda: 1_772_442_848_250_123_456)
    columns = tuple(replace(c, key_position=c.key_position * keys) for c in SHIPMENT)

    def fill(writer: JournalWriter) -> None:
        made = writer.table("ü\\", columns)
        writer.insert(made, FIRST)
        writer.update(made, FIRST, (FIRST[0], 'x"', None, None, None))
        writer.update(made, FIRST, (FIRST[0] + 1, *FIRST[1:]))
        writer.delete(made, FIRST)

    lines = [f"{part}.converter.schemas.enable: {schemas}" for part in ("key", "value")]
    idle = ("transforms: route", "transforms.route.type: route")
    more = ("transforms.route.regex: nothing", "transforms.route.replacement: x")
    quick, looked_at = render(fill, *lines), render(fill, *lines, *idle, *more)
    assert quick == looked_at
    assert len(quick) == (7 if keys else 4)
