"""NULL in a column that is NOT NULL by the definition with which its transaction began."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from columns import column
from fastavro import parse_schema, schemaless_writer
from shipment import DATABASE, FIRST, SHIPMENT, TOPIC, Render, payload

from firebird_cdc.config import load_config
from firebird_cdc.journal.events.avro import avro_schema
from firebird_cdc.journal.events.converters import JsonConverter
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.schema import Schema
from firebird_cdc.journal.events.snapshot_rows import SnapshotFacts, SnapshotRenderer
from firebird_cdc.journal.events.source import SourceFacts, source_of_table
from firebird_cdc.journal.events.table_shape import TableShape
from firebird_cdc.journal.events.values import BadValue
from firebird_cdc.journal.events.versions import EARLIER, TODAY, MessageForm
from firebird_cdc.journal.format import JournalWriter, Storage, Table
from firebird_cdc.journal.format.records import _row_image

WHOLE, NULL = FIRST, (7002, None, *FIRST[2:])
"""A row, and one whose CARRIER, which is NOT NULL, is NULL."""


def fill(writer: JournalWriter) -> None:
    table = writer.table("SHIPMENT", SHIPMENT)
    writer.insert(table, WHOLE)
    writer.insert(table, NULL)
    writer.update(table, NULL, (7002, "Sud", *FIRST[2:]))
    writer.delete(table, WHOLE)


def carrier(message: Message) -> tuple[bool, Any, Any]:
    """Tell whether CARRIER may be null in MESSAGE, and its values before and after."""
    assert message.value is not None
    found = json.loads(message.value)
    row = next(each for each in found["schema"]["fields"] if each["field"] == "after")
    field = next(each for each in row["fields"] if each["field"] == "CARRIER")
    images = (found["payload"][name] for name in ("before", "after"))
    before, after = (None if image is None else image["CARRIER"] for image in images)
    return field["optional"], before, after


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("time.precision.mode: connect", "decimal.handling.mode: string"),  # C doesn't write them
        ("transforms: r", "transforms.r.type: route", "transforms.r.regex: x"),
        ("provide.transaction.metadata: true",),
    ],
)
def test_field_of_a_null_is_optional_in_its_message_alone(
    render: Render, lines: tuple[str, ...]
) -> None:
    """Connect's converters refuse null in a required field, and Avro can't write it."""
    if any("transforms.r" in line for line in lines):
        lines = (*lines, "transforms.r.replacement: y")
    messages = [each for each in render(fill, *lines) if each.value and b'"op"' in each.value]
    assert [carrier(message) for message in messages] == [
        (False, None, "Nordline"),
        (True, None, None),
        (True, None, "Sud"),
        (False, "Nordline", None),
    ]


def test_avro_can_write_it(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    write = JsonConverter.from_connect

    def watched(converter: JsonConverter, topic: str, schema: Schema | None, value: Any) -> Any:
        if schema is not None and schema.name == f"{TOPIC}.Envelope":
            seen.append((schema, value))
        return write(converter, topic, schema, value)

    monkeypatch.setattr(JsonConverter, "from_connect", watched)
    render(fill, "provide.transaction.metadata: true", "schema.name.adjustment.mode: avro")
    assert len(seen) == 4
    facts = SourceFacts(bytes(16), (0,) * 6)
    for schema, value in seen:
        described, prepare = avro_schema(schema)
        assert prepare is not None
        source = {**source_of_table("depot", DATABASE, "SHIPMENT", facts), "pos": 1}
        schemaless_writer(BytesIO(), parse_schema(described), prepare({**value, "source": source}))


def test_unexpected_null_is_optional_in_the_key_and_stays_masked(render: Render) -> None:
    columns = (column("ID", Storage.BIGINT, 1), column("NAME", Storage.TEXT, nullable=False))

    def of_nulls(writer: JournalWriter) -> None:
        writer.insert(writer.table("T", columns), (None, None))

    (message,) = render(of_nulls, "column.mask.with.3.chars: .*NAME")
    assert message.key is not None
    assert json.loads(message.key) == {
        "schema": {
            "type": "struct",
            "optional": False,
            "name": "depot._srv_fb_warehouse.fdb.T.Key",
            "fields": [{"type": "int64", "optional": True, "field": "ID"}],
        },
        "payload": {"ID": None},
    }
    assert payload(message)["after"] == {"ID": None, "NAME": "***"}


class Converter:
    """Sends texts under another name; NULL is NULL."""

    def converter_for(self, column: Any) -> Any:
        return (Schema("string", name="text"), lambda v: v) if column.name == "CARRIER" else None


def test_converter_of_the_users_gets_the_null(render: Render) -> None:
    lines = ("converters: c", f"c.type: {__name__}.Converter")
    messages = [message for message in render(fill, *lines) if message.value]
    assert [carrier(message)[0] for message in messages] == [False, True, True, False]


def _renderer(folder: Path, form: MessageForm = TODAY) -> Renderer:
    path = folder / "reddatabase.connector.yaml"
    path.write_text(
        "connector.name: depot\nconnector.journal.directory: /var/lib/journal\n"
        "kafka.producer.bootstrap.servers: localhost:9092\nkafka.topic.prefix: depot\n"
    )
    return Renderer(load_config(path), 1_000_000, message_form=form)


def _written(shape: TableShape, row: tuple[Any, ...]) -> bytes | None:
    assert shape.row_json is not None
    image = _row_image(Table(1, "SHIPMENT", 1, SHIPMENT), list(row))
    return shape.row_json(image, 0, len(image))


def test_the_part_in_c_leaves_such_rows_to_python(tmp_path: Path) -> None:
    table = Table(1, "SHIPMENT", 1, SHIPMENT)
    row = tuple(each.encode() if isinstance(each, str) else each for each in WHOLE)
    shape = _renderer(tmp_path).shape("/a.fdb", table, 1)
    assert _written(shape, row) is not None
    assert _written(shape, NULL) is None
    with pytest.raises(BadValue, match="column CARRIER: it is NULL, and its definition says NOT"):
        shape.row.careful_struct_of(NULL)


def test_earlier_versions_sent_null_in_a_required_field(tmp_path: Path) -> None:
    """So an audit finds their messages as they were."""
    table = Table(1, "SHIPMENT", 1, SHIPMENT)
    shape = _renderer(tmp_path, EARLIER[0]).shape("/a.fdb", table, 1)
    assert _written(shape, NULL) is not None
    struct = shape.row.careful_struct_of(NULL)
    assert struct is not None and struct["CARRIER"] is None


def test_unexpected_null_of_a_snapshot_row_is_optional(tmp_path: Path) -> None:
    renderer = SnapshotRenderer(
        _renderer(tmp_path), "/a.fdb", SnapshotFacts(UUID(int=1), 5, 0, 7, 9)
    )
    (message,) = renderer.messages(Table(1, "SHIPMENT", 1, SHIPMENT), NULL, 1, "true")
    assert carrier(message) == (True, None, None)
