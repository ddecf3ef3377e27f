"""Messages for rows that a snapshot read: every field, on the quick path and on the careful one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from columns import column
from shipment import DATABASE, FIRST, FIRST_JSON, SHIPMENT, TOPIC
from topic_scene import Registered

from firebird_cdc import __version__
from firebird_cdc.config import load_config
from firebird_cdc.errors import Obstacle, TopicUnavailable
from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.oversized import OVERSIZED_HEADER
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.snapshot_rows import SnapshotFacts, SnapshotRenderer
from firebird_cdc.journal.events.versions import EARLIER, MessageForm
from firebird_cdc.journal.format import Header, RowChange, Stamp, Storage, Table, Undecodable

WINDOW = UUID("6f2b9a54-0d1e-4c57-9a3b-2e7c41d8b0aa")
FACTS = SnapshotFacts(WINDOW, 7654, 3, 90312, 1_772_442_848_250_123)
ITEM = Table(1, "SHIPMENT", 1, SHIPMENT)
KEYLESS = Table(
    1, "SHIPMENT", 0, tuple(replace(c, key_position=0, nullable=True) for c in SHIPMENT)
)
NO_SCHEMAS = ("key.converter.schemas.enable: false", "value.converter.schemas.enable: false")
IDLE = ("transforms: route", "transforms.route.type: route", "transforms.route.regex: nothing",
        "transforms.route.replacement: x")  # fmt: skip
"""A transform that changes nothing, so that the quick path is not taken."""

ALLOWED = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
MARKERS = [marker for marker in ALLOWED.split(",") if marker != "false"]
NOW_NS = 1_772_442_900_250_123_456

Make = Callable[..., SnapshotRenderer]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a renderer of snapshots with the options in lines, at one time."""
    for module in ("table_shape", "render"):
        monkeypatch.setattr(f"firebird_cdc.journal.events.{module}.time_ns", lambda: NOW_NS)

    def make(*lines: str, converters: Any = None, facts: SnapshotFacts = FACTS) -> SnapshotRenderer:
        file = tmp_path / "connector.yaml"
        file.write_text(
            "connector.name: depot-cdc\nconnector.journal.directory: /var/lib/journal\n"
            "kafka.producer.bootstrap.servers: localhost:9092\nkafka.topic.prefix: depot\n"
            + "".join(f"{line}\n" for line in lines)
        )
        renderer = Renderer(load_config(file), 1_000_000, converters)
        return SnapshotRenderer(renderer, DATABASE, facts)

    return make


def event(after: Any, marker: str, pos: int) -> dict[str, Any]:
    """The value of the message that is wanted, all fields in their order."""
    return {
        "before": None,
        "after": after,
        "source": {
            "version": __version__,
            "connector": "firebird",
            "name": "depot",
            "ts_ms": 1_772_442_848_250,
            "ts_us": 1_772_442_848_250_123,
            "ts_ns": 1_772_442_848_250_123_000,
            "snapshot": marker,
            "db": DATABASE,
            "sequence": f'["3","90312","{pos}"]',
            "table": "SHIPMENT",
            "txId": None,
            "epoch": 3,
            "commitSeq": 90312,
            "journal": str(WINDOW),
            "pos": pos,
            "snapshotNumber": 7654,
        },
        "op": "r",
        "ts_ms": NOW_NS // 1_000_000,
        "ts_us": NOW_NS // 1000,
        "ts_ns": NOW_NS // 1000 * 1000,
        "transaction": None,
    }


def plain(wanted: Any) -> bytes:
    return json.dumps(wanted, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("lines", [(), IDLE], ids=["quick", "careful"])
def test_message_without_schemas_has_every_field(
    make: Make, lines: tuple[str, ...], marker: str
) -> None:
    (message,) = make(*NO_SCHEMAS, *lines).messages(ITEM, FIRST, 41, marker)
    assert message.topic == TOPIC
    assert message.key == b'{"SHIPMENT_ID":7001}'
    assert message.value == plain(event(FIRST_JSON, marker, 41))
    assert message.headers == [
        ("__debezium.context.connectorLogicalName", b"depot"),
        ("__debezium.context.taskId", b"0"),
        ("__debezium.context.connectorName", b"depot-cdc"),
    ]


def test_message_with_schemas_has_every_field(make: Make) -> None:
    (message,) = make().messages(ITEM, FIRST, 1, "last")
    value = json.loads(message.value or b"")
    assert plain(value["payload"]) == plain(event(FIRST_JSON, "last", 1))
    assert json.loads(message.key or b"")["payload"] == {"SHIPMENT_ID": 7001}
    (source,) = (each for each in value["schema"]["fields"] if each["field"] == "source")
    (snapshot,) = (each for each in source["fields"] if each["field"] == "snapshot")
    assert snapshot == {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": ALLOWED},
        "default": "false",
        "field": "snapshot",
    }


@pytest.mark.parametrize("schemas", ["true", "false"])
@pytest.mark.parametrize("table", [ITEM, KEYLESS])
def test_quick_and_careful_path_write_the_same_bytes(
    make: Make, schemas: str, table: Table
) -> None:
    lines = [f"{part}.converter.schemas.enable: {schemas}" for part in ("key", "value")]
    quick, careful = make(*lines), make(*lines, *IDLE)
    rows = [FIRST, (-5, 'ü\\"', None, False, None)]
    for pos, marker in enumerate(MARKERS * 2, 1):
        row = rows[pos % 2]
        assert quick.messages(table, row, pos, marker) == careful.messages(table, row, pos, marker)


def test_schemas_are_those_of_changes(make: Make) -> None:
    """So that a topic of rows and changes has one schema in a registry."""
    reads = make()
    nobody = UUID(int=0)
    journal = reads.renderer.journal(
        Header(nobody, 1, 0, nobody, nobody), Stamp(0, 1, 0, 0, 0, 1, 1), DATABASE
    )
    (read,) = reads.messages(ITEM, FIRST, 1, "true")
    (change,) = journal.messages(RowChange(1, "c", ITEM, None, FIRST))
    assert read.key == change.key
    of_both = [json.loads(each.value or b"") for each in (read, change)]
    assert of_both[0]["schema"] == of_both[1]["schema"]
    assert [each["payload"]["source"]["snapshotNumber"] for each in of_both] == [7654, None]


def test_a_table_without_key_has_none_in_messages(make: Make) -> None:
    (message,) = make(*NO_SCHEMAS).messages(KEYLESS, FIRST, 1, "true")
    assert message.key is None
    assert message.value == plain(event(FIRST_JSON, "true", 1))


def test_key_masks_and_left_out_columns_are_as_for_changes(make: Make) -> None:
    lines = (r'column.mask.with.6.chars: ".*SHIPMENT[.]CARRIER"',
             r'column.exclude.list: ".*SHIPMENT[.]DISPATCHED_AT"',
             r'message.key.columns: ".*[.]SHIPMENT:SEALED,SHIPMENT_ID"')  # fmt: skip
    (message,) = make(*NO_SCHEMAS, *lines).messages(ITEM, FIRST, 1, "true")
    assert message.key == b'{"SEALED":true,"SHIPMENT_ID":7001}'
    after = {**FIRST_JSON, "CARRIER": "******"}
    del after["DISPATCHED_AT"]
    assert message.value == plain(event(after, "true", 1))


def test_transaction_is_null_where_changes_name_one(make: Make) -> None:
    (message,) = make(*NO_SCHEMAS, "provide.transaction.metadata: true").messages(
        ITEM, FIRST, 1, "true"
    )
    assert message.value == plain(event(FIRST_JSON, "true", 1))


def test_unwrapped_rows_are_the_bare_row(make: Make) -> None:
    unwrap = ("transforms: u", "transforms.u.type: unwrap",
              "transforms.u.add.fields: op,source.snapshot,source.pos,source.txId",
              "transforms.u.add.headers: source.snapshotNumber")  # fmt: skip
    (message,) = make(*NO_SCHEMAS, *unwrap).messages(ITEM, FIRST, 8, "incremental")
    more = {"__op": "r", "__source_snapshot": "incremental", "__source_pos": 8}
    assert message.value == plain({**FIRST_JSON, **more, "__source_txId": None})
    assert ("__source_snapshotNumber", b"7654") in [
        (name, text.encode() if isinstance(text, str) else text) for name, text in message.headers
    ]


def test_avro_rows_decode_to_the_rendered_values(make: Make) -> None:
    key, value = Registered(), Registered()
    lines = [
        f"{part}.converter{name}: {text}"
        for part in ("key", "value")
        for name, text in (("", "avro"), (".schema.registry.url", "http://localhost:1"))
    ]
    (message,) = make(*lines, converters=(key, value)).messages(ITEM, FIRST, 2, "last")

    def read(converter: Registered, raw: bytes | None) -> Any:
        assert raw is not None
        schema = json.loads(converter.schemas[int.from_bytes(raw[1:5], "big")])
        return fastavro.schemaless_reader(BytesIO(raw[5:]), schema)

    assert read(key, message.key) == {"SHIPMENT_ID": 7001}
    found = read(value, message.value)
    assert found.pop("after")["CARRIER"] == "Nordline"
    wanted = event(None, "last", 2)
    del wanted["after"]
    assert found == wanted


DOC = Table(
    2,
    "DOC",
    1,
    (
        column("ID", Storage.BIGINT, 1),
        column("BODY", Storage.TEXT),
        column("NOTE", Storage.TEXT),
    ),
)


def test_value_too_large_gets_a_placeholder_and_is_counted(make: Make) -> None:
    reads = make(*NO_SCHEMAS, "event.oversized.value: placeholder")
    (message,) = reads.messages(DOC, (7, "b" * 1_200_000, "n"), 5, "true")
    found = json.loads(message.value or b"")
    assert found["after"] == {"ID": 7, "BODY": "__debezium_unavailable_value", "NOTE": "n"}
    assert found["source"]["pos"] == 5
    assert json.loads(dict(message.headers)[OVERSIZED_HEADER] or "") == {"after": ["BODY"]}
    reads.messages(DOC, (8, "b" * 1_200_000, "n"), 6, "true")
    assert reads.reduced == 2
    assert reads.first_reduced == 'event 5: after.BODY of table DOC, key {"ID":7}'


def test_too_large_row_without_placeholders_is_a_bad_event(make: Make) -> None:
    with pytest.raises(BadEvent, match=r"1200\d* bytes") as caught:
        make(*NO_SCHEMAS).messages(DOC, (7, "b" * 1_200_000, "n"), 5, "true")
    assert (caught.value.pos, caught.value.whose) == (5, 'table DOC, key {"ID":7}')


def test_a_row_that_cannot_be_expressed_is_a_bad_event(make: Make) -> None:
    reads = make(*NO_SCHEMAS)
    row = (Undecodable(b"\xff", 4), *FIRST[1:])
    table = replace(ITEM, columns=(column("SHIPMENT_ID", Storage.TEXT, 1), *SHIPMENT[1:]))
    with pytest.raises(BadEvent, match="SHIPMENT_ID") as caught:
        reads.messages(table, row, 9, "true")
    assert caught.value.pos == 9
    assert caught.value.whose.startswith("table SHIPMENT, key ")


def test_second_table_of_a_topic_has_bad_events_alone(make: Make) -> None:
    """The second one has no topic; its rows are bad events, with their key."""
    reads = make(*NO_SCHEMAS)
    reads.messages(replace(ITEM, name="A B"), FIRST, 1, "first")
    with pytest.raises(BadEvent) as caught:
        reads.messages(replace(ITEM, name="A_B"), FIRST, 2, "true")
    assert caught.value.whose == 'table A_B, key {"SHIPMENT_ID":7001}'


def test_a_topic_that_is_not_there_is_asked_for_again(make: Make) -> None:
    reads = make(*NO_SCHEMAS)
    asked: list[str] = []

    def require(topic: str) -> None:
        asked.append(topic)
        if len(asked) == 1:
            raise TopicUnavailable(topic)

    reads.renderer.writer.require_topic = require
    with pytest.raises(Obstacle):
        reads.messages(ITEM, FIRST, 1, "first")
    assert len(reads.messages(ITEM, FIRST, 1, "first")) == 1
    assert asked == [TOPIC, TOPIC]


def test_table_lists_and_skipped_reads_give_nothing(make: Make) -> None:
    excluded = make(r'table.exclude.list: ".*SHIPMENT"')
    assert not excluded.captures(ITEM)
    assert excluded.captures(DOC)
    assert excluded.messages(ITEM, FIRST, 1, "true") == []
    assert make("skipped.operations: r").messages(ITEM, FIRST, 1, "true") == []
    assert len(make("skipped.operations: c,u,d").messages(ITEM, FIRST, 1, "true")) == 1


def test_skipped_reads_are_not_the_current_states_of_repairs(make: Make) -> None:
    renderer = make("skipped.operations: r").renderer
    nobody = UUID(int=0)
    journal = renderer.journal(
        Header(nobody, 0, 0, nobody, nobody), Stamp(0, 1, 0, 0, 0, 1, 1), DATABASE
    )
    assert len(journal.messages(RowChange(1, "r", ITEM, None, FIRST))) == 1


def test_tables_with_the_same_number_are_not_mixed_up(make: Make) -> None:
    reads = make(*NO_SCHEMAS)
    messages: list[Message] = []
    for table in (ITEM, KEYLESS, replace(ITEM, name="OTHER")):
        messages += reads.messages(table, FIRST, 1, "true")
    assert [(each.topic, each.key is None) for each in messages] == [
        (TOPIC, False),
        (TOPIC, True),
        (TOPIC.replace("SHIPMENT", "OTHER"), False),
    ]


def test_versions_before_allowed_fewer_values() -> None:
    assert EARLIER[0].snapshot_values == "true,last,false,incremental"
    assert MessageForm().snapshot_values == ALLOWED
