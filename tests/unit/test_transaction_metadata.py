"""BEGIN and END messages, and the transaction block of events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from columns import column
from shipment import (
    DATABASE,
    FIRST,
    SECOND,
    SHIPMENT,
    TOPIC,
    Render,
    delete,
    insert,
    payload,
    update,
)

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.records import Record
from firebird_cdc.journal.format import JournalWriter, Storage

ON = "provide.transaction.metadata: true"
ORDERED = (
    ON,
    "transaction.metadata.factory:"
    " io.debezium.connector.vitess.pipeline.txmetadata.VitessOrderedTransactionMetadataFactory",
)
ID = f"{DATABASE}:48213"


def test_worked_example_has_its_begin_event_and_end(render: Render) -> None:
    begin, event, end = render(insert(*FIRST), *ORDERED)
    assert begin.topic == end.topic == "depot.transaction"
    assert begin.key is not None and begin.value is not None
    key = json.loads(begin.key)
    assert key["payload"] == {"id": ID}
    assert key["schema"] == {
        "type": "struct",
        "optional": False,
        "name": "io.debezium.connector.common.TransactionMetadataKey",
        "version": 1,
        "fields": [{"type": "string", "optional": False, "field": "id"}],
    }
    assert end.key == begin.key
    assert payload(begin) == {
        "status": "BEGIN",
        "id": ID,
        "ts_ms": 1772442848250,
        "event_count": None,
        "data_collections": None,
    }
    assert payload(end) == {
        "status": "END",
        "id": ID,
        "ts_ms": 1772442848250,
        "event_count": 1,
        "data_collections": [{"data_collection": f"{DATABASE}.SHIPMENT", "event_count": 1}],
    }
    assert payload(event)["transaction"] == {
        "id": ID,
        "total_order": 1,
        "data_collection_order": 1,
        "transaction_rank": 90312,
        "transaction_epoch": 0,
    }
    assert [name for name, _ in begin.headers] == [name for name, _ in event.headers]
    block = json.loads(event.value or b"")["schema"]["fields"][-1]
    assert [(field["field"], field["optional"]) for field in block["fields"]] == [
        ("id", False),
        ("total_order", False),
        ("data_collection_order", False),
        ("transaction_rank", True),
        ("transaction_epoch", True),
    ]


def test_the_default_block_has_no_rank(render: Render) -> None:
    _, event, _ = render(insert(*FIRST), ON)
    assert payload(event)["transaction"] == {
        "id": ID,
        "total_order": 1,
        "data_collection_order": 1,
    }


def test_topic_of_transactions_follows_its_option_and_the_delimiter(render: Render) -> None:
    lines = (ON, "topic.transaction: boundaries", "topic.delimiter: '-'")
    begin, event, _ = render(insert(*FIRST), *lines)
    assert begin.topic == "depot-boundaries"
    assert event.topic == TOPIC.replace("depot.", "depot-").replace(".SHIPMENT", "-SHIPMENT")


def counts(messages: list[Any]) -> list[tuple[Any, ...]]:
    """Topic's last part with status, or with operation, total and collection order."""
    seen: list[tuple[Any, ...]] = []
    for message in messages:
        name = message.topic.rpartition(".")[2]
        if message.value is None:
            seen.append((name, None))
        elif (value := payload(message)).get("status"):
            seen.append((name, value["status"], value["event_count"]))
        else:
            block = value["transaction"]
            seen.append((name, value["op"], block["total_order"], block["data_collection_order"]))
    return seen


def test_events_count_in_total_and_by_table_and_a_key_change_counts_two(render: Render) -> None:
    def fill(writer: JournalWriter) -> None:
        shipment = writer.table("SHIPMENT", SHIPMENT)
        other = writer.table("OTHER", SHIPMENT[:1])
        writer.insert(shipment, FIRST)
        writer.insert(other, (1,))
        writer.update(shipment, FIRST, (7002, *FIRST[1:]))
        writer.delete(other, (1,))
        writer.update(shipment, SECOND, FIRST)

    messages = render(fill, ON)
    assert counts(messages) == [
        ("transaction", "BEGIN", None),
        ("SHIPMENT", "c", 1, 1),
        ("OTHER", "c", 2, 1),
        ("SHIPMENT", "d", 3, 2),
        ("SHIPMENT", None),
        ("SHIPMENT", "c", 4, 3),
        ("OTHER", "d", 5, 2),
        ("OTHER", None),
        ("SHIPMENT", "u", 6, 4),
        ("transaction", "END", 6),
    ]
    assert payload(messages[-1])["data_collections"] == [
        {"data_collection": f"{DATABASE}.SHIPMENT", "event_count": 4},
        {"data_collection": f"{DATABASE}.OTHER", "event_count": 2},
    ]


def test_filtered_events_count_none(render: Render) -> None:
    def fill(writer: JournalWriter) -> None:
        writer.insert(writer.table("OTHER", SHIPMENT[:1]), (1,))
        shipment = writer.table("SHIPMENT", SHIPMENT)
        writer.insert(shipment, FIRST)
        writer.delete(shipment, FIRST)

    lines = (ON, r"table.exclude.list: .*\.OTHER", "skipped.operations: c")
    assert counts(render(fill, *lines)) == [
        ("transaction", "BEGIN", None),
        ("SHIPMENT", "d", 1, 1),
        ("SHIPMENT", None),
        ("transaction", "END", 1),
    ]


def dropping(condition: str) -> tuple[str, ...]:
    return (
        "transforms: f",
        "transforms.f.type: filter",
        r"transforms.f.topic.regex: .*\.SHIPMENT",
        f"transforms.f.condition: {condition}",
    )


def test_events_that_a_transform_drops_count_as_with_debezium(render: Render) -> None:
    """Its transforms come behind the connector, which has counted by then."""

    def fill(writer: JournalWriter) -> None:
        shipment = writer.table("SHIPMENT", SHIPMENT)
        writer.insert(shipment, FIRST)
        writer.delete(shipment, FIRST)
        writer.update(shipment, FIRST, (7002, *FIRST[1:]))
        writer.update(shipment, FIRST, SECOND)

    tombstone = ("SHIPMENT", None)
    assert counts(render(fill, ON, *dropping("value.op == 'c' || value.op == 'u'"))) == [
        ("transaction", "BEGIN", None),
        ("SHIPMENT", "c", 1, 1),
        tombstone,
        tombstone,
        ("SHIPMENT", "c", 4, 4),
        ("SHIPMENT", "u", 5, 5),
        ("transaction", "END", 5),
    ]
    only_updates = dropping("value.op == 'u'")
    assert counts(render(fill, ON, *only_updates, resume_after=3)) == [
        ("SHIPMENT", "u", 5, 5),
        ("transaction", "END", 5),
    ]


@pytest.mark.parametrize(
    ("skipped", "seen"),
    [
        ("u", [("SHIPMENT", "d", 1, 1), ("SHIPMENT", None), ("SHIPMENT", "c", 2, 2)]),
        ("d", [("SHIPMENT", "c", 1, 1), ("SHIPMENT", "u", 2, 2)]),
        ("c", [("SHIPMENT", "d", 1, 1), ("SHIPMENT", None), ("SHIPMENT", "u", 2, 2)]),
    ],
)
def test_end_counts_the_parts_of_a_key_change_that_are_not_skipped(
    render: Render, skipped: str, seen: list[Any]
) -> None:
    def fill(writer: JournalWriter) -> None:
        shipment = writer.table("SHIPMENT", SHIPMENT)
        writer.update(shipment, FIRST, (7002, *FIRST[1:]))
        writer.update(shipment, SECOND, FIRST)

    messages = render(fill, ON, f"skipped.operations: {skipped}")
    assert counts(messages) == [
        ("transaction", "BEGIN", None),
        *seen,
        ("transaction", "END", 2),
    ]


def test_key_change_of_which_nothing_is_sent_has_no_transaction(render: Render) -> None:
    assert render(update(FIRST, (7002, *FIRST[1:])), ON, "skipped.operations: c,d") == []


@pytest.mark.parametrize("lines", [(r"table.exclude.list: .*",), ("skipped.operations: c",)])
def test_a_transaction_without_events_has_no_boundaries(render: Render, lines: Any) -> None:
    assert render(insert(*FIRST), ON, *lines) == []


def test_bad_event_leaves_no_gap_in_the_order_numbers(render: Render) -> None:
    columns = (SHIPMENT[0], column("RATIO", Storage.DOUBLE, nullable=False))

    def fill(writer: JournalWriter) -> None:
        table = writer.table("SHIPMENT", columns)
        for ratio in (0.5, float("nan"), 1.5):
            writer.insert(table, (7001, ratio))

    skip = "event.processing.failure.handling.mode: skip"
    assert counts(render(fill, ON, skip, left_out=True)) == [
        ("transaction", "BEGIN", None),
        ("SHIPMENT", "c", 1, 1),
        ("SHIPMENT", "c", 2, 2),
        ("transaction", "END", 2),
    ]


class NoBoundaries:
    """A transform whose author thought of the changes of tables only."""

    def apply(self, record: Record) -> Record:
        assert record.value is None or "op" in record.value
        return record


def test_bad_boundaries_do_not_take_the_events_with_them(render: Render) -> None:
    own = ("transforms: own", f"transforms.own.type: {__name__}.NoBoundaries")

    def fill(writer: JournalWriter) -> None:
        update(FIRST, SECOND)(writer)
        delete(SECOND)(writer)

    with pytest.raises(BadEvent, match=r"transform own .* failed: AssertionError") as told:
        render(fill, ON, *own)
    assert told.value.where == "BEGIN of the transaction"
    skip = "event.processing.failure.handling.mode: skip"
    assert counts(render(fill, ON, skip, *own, left_out=True)) == [
        ("SHIPMENT", "u", 1, 1),
        ("SHIPMENT", "d", 2, 2),
        ("SHIPMENT", None),
    ]


def test_counts_go_on_where_an_earlier_part_of_the_journal_was_sent_before(render: Render) -> None:
    def fill(writer: JournalWriter) -> None:
        table = writer.table("SHIPMENT", SHIPMENT)
        for number in range(4):
            writer.insert(table, (number, *FIRST[1:]))

    assert counts(render(fill, ON, resume_after=2)) == [
        ("SHIPMENT", "c", 3, 3),
        ("SHIPMENT", "c", 4, 4),
        ("transaction", "END", 4),
    ]


def test_a_statement_that_was_sent_before_is_no_event_so_begin_is_still_to_come(
    render: Render,
) -> None:
    def fill(writer: JournalWriter) -> None:
        writer.ddl("CREATE TABLE SHIPMENT (SHIPMENT_ID BIGINT)")
        insert(*FIRST)(writer)

    assert render(fill, ON)[0].topic == "depot"
    assert counts(render(fill, ON, resume_after=1)) == [
        ("transaction", "BEGIN", None),
        ("SHIPMENT", "c", 1, 1),
        ("transaction", "END", 1),
    ]


def test_transaction_metadata_is_off_by_default(render: Render) -> None:
    messages = render(delete(FIRST)) + render(update(FIRST, SECOND))
    assert {message.topic for message in messages} == {TOPIC}
    assert all(payload(message)["transaction"] is None for message in messages if message.value)
