"""Transforms that are built in, and what a filter's condition can say."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transform_records import (
    BLOCK,
    NEW,
    OLD,
    ROW,
    TOPIC,
    Apply,
    event,
    tombstone,
    transaction_end,
)

from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.headers import HeaderWriter, JsonHeaders, SimpleHeaders
from firebird_cdc.journal.events.records import Record, StructHeader
from firebird_cdc.journal.events.schema import (
    INT64,
    STRING,
    Schema,
    struct,
)
from firebird_cdc.journal.events.values import BadValue

# -- unwrap: what Debezium's ExtractNewRecordState does, by its source and tests


def test_unwrap_makes_the_row_the_value(unwrap: Callable[..., Apply]) -> None:
    apply = unwrap()
    for op in "cu":
        record = apply(event(op))
        assert record is not None
        assert (record.topic, record.key, record.headers) == (TOPIC, {"ID": 7001}, [("h", b"1")])
        assert record.value == NEW
        assert record.value_schema is not None
        assert record.value_schema.to_json() == {**ROW.to_json(), "optional": False}


def test_unwrap_derives_a_schema_once(unwrap: Callable[..., Apply]) -> None:
    apply = unwrap(add_fields="op")
    first, second = apply(event("c")), apply(event("u"))
    assert first is not None
    assert second is not None
    assert first.value_schema is second.value_schema


# delete.tombstone.handling.mode: what becomes of a delete, and of the tombstone behind it
@pytest.mark.parametrize(
    ("mode", "delete", "tombstone_stays"),
    [
        ("drop", None, False),
        ("tombstone", (ROW, None), False),
        ("delete-to-tombstone", (None, None), False),
        ("rewrite", ("with __deleted", {**OLD, "__deleted": "true"}), False),
        ("rewrite-with-tombstone", ("with __deleted", {**OLD, "__deleted": "true"}), True),
    ],
)
def test_unwrap_handles_deletes_as_its_mode_says(
    unwrap: Callable[..., Apply], mode: str, delete: Any, tombstone_stays: bool
) -> None:
    apply = unwrap(delete_tombstone_handling_mode=mode)
    record = apply(event("d"))
    if delete is None:
        assert record is None
    else:
        assert record is not None
        schema, value = delete
        assert record.value == value
        if isinstance(schema, str):
            assert record.value_schema is not None
            last = record.value_schema.fields[-1]
            assert (last.name, last.schema.type, last.schema.optional) == (
                "__deleted",
                "string",
                True,
            )
        else:
            assert record.value_schema is schema
    assert (apply(tombstone()) is not None) is tombstone_stays


def test_unwrap_in_rewrite_mode_marks_rows_as_not_deleted(unwrap: Callable[..., Apply]) -> None:
    record = unwrap(delete_tombstone_handling_mode="REWRITE")(event("u"))
    assert record is not None
    assert record.value == {**NEW, "__deleted": "false"}


@pytest.mark.parametrize(
    ("mode", "drop_tombstones", "delete", "tombstone_stays"),
    [
        ("drop", "true", "dropped", False),
        ("drop", "false", "dropped", True),
        ("none", "false", None, True),
        ("rewrite", "true", {**OLD, "__deleted": "true"}, False),
    ],
)
def test_unwrap_knows_the_options_of_older_versions(
    unwrap: Callable[..., Apply],
    mode: str,
    drop_tombstones: str,
    delete: Any,
    tombstone_stays: bool,
) -> None:
    apply = unwrap(delete_handling_mode=mode, drop_tombstones=drop_tombstones)
    record = apply(event("d"))
    assert ("dropped" if record is None else record.value) == delete
    assert (apply(tombstone()) is not None) is tombstone_stays


def test_unwrap_adds_fields_under_the_names_of_debezium(unwrap: Callable[..., Apply]) -> None:
    apply = unwrap(
        add_fields='"op, table,source.ts_ms,total_order, transaction.id:TX,source.nothing"'
    )
    record = apply(event("u"))
    assert record is not None
    assert record.value == {
        **NEW,
        "__op": "u",
        "__table": "SHIPMENT",
        "__source_ts_ms": 1772442848250,
        "__total_order": 3,
        "__TX": "t:48213",
    }
    schema = record.value_schema
    assert schema is not None
    assert [name for name, _ in schema.fields] == list(record.value)
    added = [inner for name, inner in schema.fields if name.startswith("__")]
    assert all(inner.optional for inner in added)


def test_unwrap_adds_null_where_the_block_is_null(unwrap: Callable[..., Apply]) -> None:
    record = event("c")
    record.value["transaction"] = None
    result = unwrap(add_fields="transaction.id", add_fields_prefix="x.")(record)
    assert result is not None
    assert result.value == {**NEW, "x.transaction_id": None}


def _written(writer: HeaderWriter, record: Record) -> list[tuple[str, str | bytes | None]]:
    return [(each.name, writer.typed(record.topic, each)) for each in record.struct_headers]


def test_unwrap_adds_headers_as_kafka_connect_writes_them(unwrap: Callable[..., Apply]) -> None:
    apply = unwrap(
        add_headers='"op,source.ts_ms,source.snapshotNumber,transaction"',
        delete_tombstone_handling_mode="rewrite-with-tombstone",
    )
    record = apply(event("u"))
    assert record is not None
    assert record.headers == [("h", b"1")]
    assert _written(SimpleHeaders(), record) == [
        ("__op", b"u"),
        ("__source_ts_ms", b"1772442848250"),
        ("__source_snapshotNumber", None),
        # What Connect writes, with numbers, it can't read.
        ("__transaction", b'{"id":"t:48213","total_order":"3","data_collection_order":"2"}'),
    ]
    typed = [
        (name, json.loads(content or b"null")) for name, content in _written(JsonHeaders(), record)
    ]
    assert [(name, each["schema"]["type"]) for name, each in typed] == [
        ("__op", "string"),
        ("__source_ts_ms", "int64"),
        ("__source_snapshotNumber", "int64"),
        ("__transaction", "struct"),
    ]
    assert [each["payload"] for _, each in typed][1:3] == [1772442848250, None]
    buried = apply(tombstone())
    assert buried is not None
    assert buried.headers == [("h", b"1"), ("__op", "d")]


def test_unwrap_keeps_non_finite_numbers_in_headers(unwrap: Callable[..., Apply]) -> None:
    """Avro carries such values, and so do headers that are text."""
    record = event("u")
    record.value = {**record.value, "after": {**NEW, "FACTOR": float("-inf")}}
    told = unwrap(add_headers="after.FACTOR")(record)
    assert told is not None
    assert _written(SimpleHeaders(), told) == [("__after_FACTOR", b"-Infinity")]
    with pytest.raises(BadValue, match=r"its header .*-inf cannot be written.*simple can carry it"):
        _written(JsonHeaders(), told)


def test_unwrap_routes_by_a_field_of_the_row(unwrap: Callable[..., Apply]) -> None:
    apply = unwrap(route_by_field="CARRIER", delete_tombstone_handling_mode="delete-to-tombstone")
    delete = apply(event("d"))
    assert delete is not None
    assert delete.topic == "Nordline"
    with pytest.raises(BadValue, match=r"transform u .*gave the topic 'Südwest'; Kafka allows"):
        apply(event("u"))
    blank = event("c")
    blank.value["after"] = {**NEW, "CARRIER": "  "}
    result = apply(blank)
    assert result is not None
    assert result.topic == TOPIC
    with pytest.raises(BadValue, match=r"route\.by\.field names ID, which is not a text"):
        unwrap(route_by_field="ID")(event("c"))


def test_unwrap_leaves_messages_without_an_envelope(unwrap: Callable[..., Apply]) -> None:
    record = transaction_end()
    assert unwrap(add_headers="op")(record) is record


def test_unwrap_refuses_two_fields_of_one_name(unwrap: Callable[..., Apply]) -> None:
    with pytest.raises(BadValue, match="two fields of the row would be called ID"):
        unwrap(add_fields="op:ID", add_fields_prefix='""')(event("c"))
    with pytest.raises(ConfigError, match="two fields would be called __op"):
        unwrap(add_fields="op,table,source.ts_ms:op")


def test_unwrap_fills_in_defaults_when_it_rewrites(unwrap: Callable[..., Apply]) -> None:
    row = struct("v", ("A", Schema("string", optional=True, default="x")), optional=True)
    envelope = struct("v.Envelope", ("before", row), ("after", row), ("op", STRING))
    record = Record(
        "t", None, None, envelope, {"before": None, "after": {"A": None}, "op": "c"}, []
    )
    rewrite = {"delete_tombstone_handling_mode": "rewrite"}
    filled = unwrap(**rewrite)(record)
    left = unwrap(**rewrite, replace_null_with_default="false")(record)
    assert filled is not None
    assert left is not None
    assert filled.value["A"] == "x"
    assert left.value["A"] is None


# -- route


@pytest.mark.parametrize(
    ("regex", "replacement", "topic"),
    [
        (r".*\.([^.]+)", "$1", "SHIPMENT"),
        (r"(?<first>[^.]+)\..*\.(\w+)", "${first}.$2", "depot.SHIPMENT"),
        (r"depot\.(.*)", r"\$-$1", None),
        (r"depot\.(.*)", "a$10", "a_srv_fb_warehouse.fdb.SHIPMENT0"),
        (r"SHIPMENT", "other", TOPIC),  # it has to match the whole name
        (r"depot|depot\..*", "x", "x._srv_fb_warehouse.fdb.SHIPMENT"),  # as Java's replaceFirst
    ],
)
def test_regex_routes_records_to_the_replaced_topic(
    build: Callable[..., Apply], regex: str, replacement: str, topic: str | None
) -> None:
    apply = build(
        "transforms: r",
        "transforms.r.type: org.apache.kafka.connect.transforms.RegexRouter",
        f"transforms.r.regex: '{regex}'",
        f"transforms.r.replacement: '{replacement}'",
    )
    if topic is None:
        with pytest.raises(BadValue, match=r"transform r .* gave the topic"):
            apply(event("c"))
    else:
        assert (record := apply(event("c"))) is not None
        assert record.topic == topic
        assert (buried := apply(tombstone())) is not None
        assert buried.topic == topic


@pytest.mark.parametrize(
    ("replacement", "problem"),
    [
        ("$2", "regex has no group 2"),
        ("${name}", "regex has no group name"),
        ("a$", r"\$ must be written as \\\$ there"),
    ],
)
def test_route_refuses_a_group_that_is_not_there(
    build: Callable[..., Apply], replacement: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=rf"transforms\.r\.replacement is .*{problem}"):
        build(
            "transforms: r",
            "transforms.r.type: route",
            "transforms.r.regex: (.*)",
            f"transforms.r.replacement: {replacement}",
        )


def test_tables_of_several_databases_go_to_one_topic(build: Callable[..., Apply]) -> None:
    apply = build(example("yaml", "branches"))
    found = [
        apply(event("c", topic=f"depot._srv_fb_{branch}.fdb.SHIPMENT"))
        for branch in ("north", "south")
    ]
    north, south = (record for record in found if record is not None)
    assert {north.topic, south.topic} == {"depot.SHIPMENT"}
    assert [record.key for record in (north, south)] == [
        {"ID": 7001, "branch": "north"},
        {"ID": 7001, "branch": "south"},
    ]
    assert north.key_schema is not None
    assert [name for name, _ in north.key_schema.fields] == ["ID", "branch"]
    assert north.value_schema is not None
    assert north.value_schema.name == "depot.SHIPMENT.Envelope"
    keyless = apply(event("c", key_schema=None, key=None))
    assert keyless is not None
    assert (keyless.topic, keyless.key) == ("depot.SHIPMENT", None)


def test_a_field_of_the_key_is_not_replaced_by_the_origin(build: Callable[..., Apply]) -> None:
    apply = build(
        "transforms: t",
        "transforms.t.type: io.debezium.transforms.ByLogicalTableRouter",
        "transforms.t.topic.regex: .*",
        "transforms.t.topic.replacement: x",
        "transforms.t.key.field.name: ID",
    )
    with pytest.raises(BadValue, match=r"the key has a field ID already; set key\.field\.name"):
        apply(event("c"))


# -- filter


@pytest.mark.parametrize(
    ("condition", "keeps"),
    [
        ("value.op == 'u' && value.before.ID == 7001", True),
        ("value.get('op') == 'u' && value.get('before').get('ID') == 2", False),
        ("value.op != 'd' || value.before.ID != 2", True),
        ('value["op"] === "u" and not (value.after.ID < 7001 or value.after.ID >= 7002)', True),
        ("!(value.op == 'u')", False),
        ("topic.startsWith('depot.') && !topic.endsWith('X') && topic.contains('warehouse')", True),
        ("header.h.value == '1'", True),
        ("header.j.value.ID == 5 && header['j'].value?.ID == 5", True),
        ("header.absent == null && header.absent?.value == null", True),
        ("key.ID in [1, 7001]", True),
        ("key.ID not in [1, 7001]", False),
        ("value.source.table in ['SHIPMENT']", True),
        ("'line' in value.before.CARRIER", True),
        # Exact numbers are compared as such, wherever the record has them as bytes.
        ("value.after.WEIGHT == 1284.75 && value.after.WEIGHT > 1284.749", True),
        ("value.after.FACTOR == 0.1 && value.after.RATE in [1.5]", True),
        ("value.source.snapshotNumber == null && value.source.txId == 48213", True),
        ("value.after.ID > -1", True),
        (r"value.after.CARRIER == 'S\u00fcdwest'", True),
        # As in Java, two escapes make one character beyond 16 bits; half of one stays what it is.
        (r"'\ud83d\ude00' == '😀' && '😀'.startsWith('\ud83d\ude00')", True),
        (r"'\ud83d' == '😀' || '\ude00\ud83d' == '😀'", False),
        ("valueSchema.name == 'depot._srv_fb_warehouse.fdb.SHIPMENT.Envelope'", True),
        ("keySchema.name.endsWith('.Key') == true", True),
    ],
)
def test_condition_keeps_exactly_the_matching_records(
    kept: Callable[[str, Record], bool], condition: str, keeps: bool
) -> None:
    header = StructHeader("j", struct("j", ("ID", INT64)), {"ID": 5})
    assert kept(condition, event("u", struct_headers=(header,))) is keeps


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("value.before.ID == 1", "null has no ID; `?.` instead of the point"),
        ("value.after.NOTHING == 1", "no field NOTHING; there are ID, CARRIER"),
        ("value.op", "the condition gives a text, neither true nor false"),
        ("value.op && true", "a text is neither true nor false"),
        ("value.op < 5", "a text < a number cannot be compared"),
        ("value.op == 5", "a text == a number cannot be compared"),
        ("value.after.ID != '7001'", "a number != a text cannot be compared"),
        ("key.ID in ['7001', '7002']", "a number == a text cannot be compared"),
        ("key.ID == true", "a number == true or false cannot be compared"),
        ("header.h == '1'", "a header == a text cannot be compared"),
        ("value.after.ID > value.source.snapshotNumber", "a number > null cannot be compared"),
        ("value.op in 5", "a text in a number cannot be decided"),
        ("value.ts_ms.startsWith('x')", "is asked of no text"),
    ],
)
def test_a_condition_that_cannot_be_decided_is_a_bad_event(
    kept: Callable[[str, Record], bool], condition: str, told: str
) -> None:
    with pytest.raises(BadValue) as raised:
        kept(condition, event("c"))
    assert "transform f (io.debezium.transforms.Filter): " in str(raised.value)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("value.op = 'u'", "= at character 10 is not known"),
        ("operation != 'd'", "operation at character 1 is not known; there are value, key"),
        ("value.op == 'u", "' at character 13 is not known"),
        ("value.op == ", "it ends too early"),
        ("(value.op == 'u'", "it ends where ) is expected"),
        ("value.op == 'u' 5", "5 at character 17 is not expected there"),
        ("value.op.matches('u')", "matches(...) cannot be called"),
        ("__import__('os').system('x')", "__import__ at character 1 is not known"),
        ("(" * 5000 + "true" + ")" * 5000, "condition may have 10000 characters"),
        ("value" + ".a" * 50 + " == 1", "more than 40 steps into a value"),
        ("(" * 400 + "true" + ")" * 400, "more than 40 brackets in one another"),
    ],
)
def test_malformed_condition_is_refused(
    kept: Callable[[str, Record], bool], condition: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=r"transforms\.f\.condition is ") as raised:
        kept(condition, event("c"))
    assert told in str(raised.value)


def test_a_long_condition_is_no_deeper_than_a_short_one(
    kept: Callable[[str, Record], bool],
) -> None:
    assert kept(" || ".join(["false"] * 900 + ["key.ID == 7001"]), event("c"))
    assert kept(" && ".join(["true"] * 900), event("c"))


def test_filter_applies_to_its_topics_and_handles_nulls_as_told(
    build: Callable[..., Apply],
) -> None:
    lines = ("transforms: f", "transforms.f.type: filter", "transforms.f.condition: 'false'")
    assert build(*lines, "transforms.f.topic.regex: depot\\.transaction")(event("c")) is not None
    assert build(*lines, "transforms.f.topic.regex: depot\\.transaction")(transaction_end()) is None
    assert build(*lines)(tombstone()) is not None
    assert build(*lines, "transforms.f.null.handling.mode: drop")(tombstone()) is None
    assert build(*lines, "transforms.f.null.handling.mode: evaluate")(tombstone()) is None


def test_predicates_choose_the_records_of_a_transform(build: Callable[..., Apply]) -> None:
    kafka = "org.apache.kafka.connect.transforms"
    apply = build(
        "transforms: a,b,c",
        f"transforms.a.type: {kafka}.Filter",
        "transforms.a.predicate: tomb",
        f"transforms.b.type: {kafka}.Filter",
        "transforms.b.predicate: shipments",
        "transforms.b.negate: true",
        f"transforms.c.type: {kafka}.Filter",
        "transforms.c.predicate: marked",
        "predicates: tomb,shipments,marked",
        f"predicates.tomb.type: {kafka}.predicates.RecordIsTombstone",
        f"predicates.shipments.type: {kafka}.predicates.TopicNameMatches",
        "predicates.shipments.pattern: .*SHIPMENT",
        f"predicates.marked.type: {kafka}.predicates.HasHeaderKey",
        "predicates.marked.name: mark",
    )
    assert apply(event("c")) is not None
    assert apply(tombstone()) is None
    assert apply(transaction_end()) is None
    assert apply(event("c", headers=[("mark", None)])) is None


# -- the two of the Vitess manual

VITESS = "io.debezium.connector.vitess.transforms"


def test_transforms_of_the_vitess_manual_are_applied(build: Callable[..., Apply]) -> None:
    apply = build(
        "transforms: filterTransactionTopicRecords,removeField",
        f"transforms.filterTransactionTopicRecords.type: {VITESS}.FilterTransactionTopicRecords",
        f"transforms.removeField.type: {VITESS}.RemoveField",
        "transforms.removeField.field_names: transaction.id",
    )
    assert apply(transaction_end()) is None
    assert apply(tombstone()) == tombstone()
    original = event("u")
    record = apply(original)
    assert record is not None
    assert record.value == {
        **original.value,
        "transaction": {"total_order": 3, "data_collection_order": 2},
    }
    assert "id" in original.value["transaction"]
    assert record.value_schema is not None
    block = record.value_schema.field("transaction")
    assert block is not None
    assert block.to_json() == {
        **BLOCK.to_json(),
        "fields": [item for item in BLOCK.to_json()["fields"] if item["field"] != "id"],
    }
    assert apply(event("c")).value_schema is record.value_schema  # type: ignore[union-attr]


def test_remove_field_takes_several_paths_and_whole_structs(build: Callable[..., Apply]) -> None:
    apply = build(
        "transforms: r",
        "transforms.r.type: remove_field",
        "transforms.r.field_names: 'ts_ms, source, after.CARRIER, source.db, nothing.here'",
    )
    record = apply(event("c"))
    assert record is not None
    assert list(record.value) == ["before", "after", "op", "transaction"]
    assert "CARRIER" not in record.value["after"]
    assert record.value_schema is not None
    assert [name for name, _ in record.value_schema.fields] == list(record.value)
    untouched = transaction_end()
    assert apply(untouched) is untouched


def test_transform_of_vitess_positions_is_refused(
    build: Callable[..., Apply],
) -> None:
    with pytest.raises(ConfigError, match="it is about positions in Vitess"):
        build("transforms: v", f"transforms.v.type: {VITESS}.UseLocalVgtid")


# -- docs/transforms.md

PAGE = Path(__file__).parents[2] / "docs" / "transforms.md"


def example(language: str, containing: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (found,) = (block for block in blocks if containing in block)
    return str(found)


def test_first_example_of_the_page_unwraps_and_routes(build: Callable[..., Apply]) -> None:
    record = build(example("yaml", "transforms: unwrap,route"))(event("u"))
    assert record is not None
    assert record.topic == "depot.SHIPMENT"
    assert record.value == {**NEW, "__op": "u", "__source_ts_ms": 1772442848250}


def test_filter_of_the_page_drops_light_rows_alone(build: Callable[..., Apply]) -> None:
    apply = build(example("yaml", "big").replace("WEIGHT_KG", "WEIGHT"))
    light = event("u")
    light.value["after"] = {**NEW, "WEIGHT": b"\x01"}
    assert apply(light) is None
    assert apply(transaction_end()) is not None
    for record in (event("d"), event("u")):
        assert apply(record) is record


def test_predicate_of_the_page_drops_the_audit_log_alone(build: Callable[..., Apply]) -> None:
    apply = build(example("yaml", "audit"))
    assert apply(event("u", topic="depot.x.AUDIT_LOG")) is None
    assert apply(event("u")) is not None


def test_the_own_transform_of_the_page(
    build: Callable[..., Apply], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_transforms.py").write_text(example("python", "class Rename"))
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = example("yaml", "my_transforms.Rename").replace("rename\n", "unwrap,rename\n", 1)
    apply = build(lines, "transforms.unwrap.type: unwrap")
    sys.modules.pop("my_transforms")
    first, second = apply(event("c")), apply(event("u"))
    assert first is not None
    assert second is not None
    assert first.value == {("HAULIER" if k == "CARRIER" else k): v for k, v in NEW.items()}
    assert first.value_schema is second.value_schema
    assert apply(transaction_end()) is not None


# -- what is wrong with a configuration


def test_all_problems_of_transforms_are_reported_at_once(build: Callable[..., Apply]) -> None:
    with pytest.raises(ConfigError) as raised:
        build(
            "transforms: u,r,f,d,x,j,p",
            "transforms.u.type: unwrap",
            "transforms.u.delete.tombstone.handling.mode: keep",
            "transforms.u.add.field: op",
            "transforms.r.type: route",
            "transforms.r.regex: '('",
            "transforms.f.type: remove_field",
            "transforms.f.field_names: .x",
            "transforms.d.type: drop",
            "transforms.x.type: io.debezium.transforms.ExtractNewRecordStates",
            "transforms.j.type: filter",
            "transforms.j.condition: 'true'",
            "transforms.j.language: wasm.chicory",
            "transforms.j.negate: maybe",
            "transforms.p.type: unwrap",
            "transforms.p.predicate: absent",
        )
    told = raised.value.problems
    for part in (
        "transforms.u.delete.tombstone.handling.mode is 'keep'; allowed: drop, tombstone",
        "transforms.u.add.field is not a parameter of this transform; it has ",
        "did you mean add.fields?",
        "transforms.r.regex is '('; it is not a regular expression",
        "transforms.r.replacement is missing; it is required",
        "transforms.f.field_names is '.x'; .x is no path",
        "transforms.d.predicate is missing; without one this transform drops every record",
        "transforms.x.type is io.debezium.transforms.ExtractNewRecordStates; it is a class of Java",
        "did you mean io.debezium.transforms.ExtractNewRecordState?",
        "transforms.j.language is 'wasm.chicory'; only conditions as in jsr223.groovy",
        "transforms.j.negate is 'maybe'; it must be true or false",
        "transforms.p.predicate is 'absent'; predicates does not name it",
    ):
        assert any(part in problem for problem in told), (part, told)
    assert all("reddatabase.connector.yaml:" in problem for problem in told)


def test_error_of_a_parameter_names_the_line_of_the_parameter(
    build: Callable[..., Apply],
) -> None:
    with pytest.raises(ConfigError) as raised:
        build(
            "transforms: r",  # the fifth line
            "transforms.r.type: org.apache.kafka.connect.transforms.RegexRouter",
            "transforms.r.regex: '('",
            "transforms.r.colour: red",
            "transforms.r.predicate: p",
            "transforms.r.negate: perhaps",
            "predicates: q",
            "predicates.q.type: topic_name_matches",
            "predicates.q.pattern: '['",
        )
    told = [problem.partition(".yaml:")[2].split()[:2] for problem in raised.value.problems]
    assert sorted(told) == [
        ["10:", "transforms.r.negate"],
        ["13:", "predicates.q.pattern"],
        ["6:", "transforms.r.replacement"],  # which is missing
        ["7:", "transforms.r.regex"],
        ["8:", "transforms.r.colour"],
        ["9:", "transforms.r.predicate"],
    ]
