"""Notifications: their form, where they go, and what becomes of one that can't be written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logbook
import pytest
from least_config import load_with

from firebird_cdc.errors import TopicUnavailable
from firebird_cdc.journal.events.message_writer import MessageWriter
from firebird_cdc.journal.events.records import Message
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.shipper.snapshots.notifications import (
    EMPTY,
    SQL_EXCEPTION,
    Notifications,
    Subject,
)

SINK = ("notification.enabled.channels: sink", "notification.sink.topic.name: told")
PLAIN = (*SINK, "key.converter.schemas.enable: false", "value.converter.schemas.enable: false")
SHOP = "/db/shop.fdb"
ORDERS, ITEMS = f"{SHOP}.ORDERS", f"{SHOP}.ITEMS"
AD_HOC = Subject("ad-hoc-1", SHOP, True, (ORDERS, ITEMS))
FIRST = Subject("first", SHOP, False, (ORDERS, ITEMS))
BOTH = f"{ORDERS},{ITEMS}"

Make = Callable[..., tuple[Notifications, MessageWriter]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(*lines: str) -> tuple[Notifications, MessageWriter]:
        config = load_with(tmp_path, *lines)
        writer = Renderer(config, 1_000_000).writer
        return Notifications(config, writer), writer

    return make


def value_of(message: Message | None) -> Any:
    assert message is not None
    assert message.value is not None
    return json.loads(message.value)


def test_message_has_debeziums_form(make: Make) -> None:
    notifications, _ = make(*SINK)
    began_ms = time.time_ns() // 1_000_000
    message = notifications.completed(AD_HOC)
    assert message is not None
    assert message.topic == "told"
    assert message.key is not None
    assert json.loads(message.key) == {
        "schema": {
            "type": "struct",
            "optional": False,
            "name": "io.debezium.connector.common.NotificationKey",
            "version": 1,
            "fields": [{"type": "string", "optional": False, "field": "id"}],
        },
        "payload": {"id": "ad-hoc-1"},
    }
    value = value_of(message)
    assert value["schema"]["name"] == "io.debezium.connector.common.Notification"
    assert value["schema"]["version"] == 1
    fields = {field.pop("field"): field for field in value["schema"]["fields"]}
    text = {"type": "string", "optional": False}
    assert fields == {
        "id": text,
        "type": text,
        "aggregate_type": text,
        "additional_data": {"type": "map", "optional": True, "keys": text, "values": text},
        "timestamp": {"type": "int64", "optional": False},
    }
    moment = value["payload"].pop("timestamp")
    assert began_ms <= moment <= time.time_ns() // 1_000_000
    assert value["payload"] == {
        "id": "ad-hoc-1",
        "type": "COMPLETED",
        "aggregate_type": "Incremental Snapshot",
        "additional_data": {"connector_name": "p", "database": SHOP},
    }


@pytest.mark.parametrize(
    ("tell", "type", "data"),
    [
        (lambda it: it.started(AD_HOC), "STARTED", {"data_collections": BOTH}),
        (
            lambda it: it.in_progress(AD_HOC, ORDERS, "0000008A:00000001", "0000008A:000000FF"),
            "IN_PROGRESS",
            {
                "data_collections": BOTH,
                "current_collection_in_progress": ORDERS,
                "maximum_key": "0000008A:000000FF",
                "last_processed_key": "0000008A:00000001",
            },
        ),
        (
            lambda it: it.table_scan_completed(AD_HOC, ITEMS, 0, EMPTY),
            "TABLE_SCAN_COMPLETED",
            {
                "data_collections": BOTH,
                "scanned_collection": ITEMS,
                "total_rows_scanned": "0",
                "status": "EMPTY",
            },
        ),
        (
            lambda it: it.table_scan_completed(AD_HOC, ITEMS, 0, SQL_EXCEPTION, "Token unknown"),
            "TABLE_SCAN_COMPLETED",
            {
                "data_collections": BOTH,
                "scanned_collection": ITEMS,
                "total_rows_scanned": "0",
                "status": "SQL_EXCEPTION",
                "reason": "Token unknown",
            },
        ),
        (lambda it: it.paused(AD_HOC), "PAUSED", {"data_collections": BOTH}),
        (lambda it: it.resumed(AD_HOC), "RESUMED", {"data_collections": BOTH}),
        (lambda it: it.aborted(AD_HOC, "stopped"), "ABORTED", {"reason": "stopped"}),
        (
            lambda it: it.aborted(AD_HOC, "stopped", (ITEMS,)),
            "ABORTED",
            {"data_collections": ITEMS, "reason": "stopped"},
        ),
    ],
)
def test_incremental_snapshot_is_told_as_debezium_does(
    make: Make, tell: Callable[[Notifications], Message | None], type: str, data: dict[str, str]
) -> None:
    notifications, _ = make(*PLAIN)
    value = value_of(tell(notifications))
    assert (value["id"], value["type"]) == ("ad-hoc-1", type)
    assert value["aggregate_type"] == "Incremental Snapshot"
    assert value["additional_data"] == {"connector_name": "p", "database": SHOP, **data}


@pytest.mark.parametrize(
    ("tell", "type", "data"),
    [
        (lambda it: it.started(FIRST), "STARTED", {}),
        (
            lambda it: it.in_progress(FIRST, ORDERS),
            "IN_PROGRESS",
            {"data_collections": BOTH, "current_collection_in_progress": ORDERS},
        ),
        (lambda it: it.completed(FIRST), "COMPLETED", {}),
        (lambda it: it.skipped(FIRST, "no way in"), "SKIPPED", {"reason": "no way in"}),
    ],
)
def test_initial_snapshot_has_no_keys_and_names_tables_only_in_its_course(
    make: Make, tell: Callable[[Notifications], Message | None], type: str, data: dict[str, str]
) -> None:
    notifications, _ = make(*PLAIN)
    value = value_of(tell(notifications))
    assert (value["aggregate_type"], value["type"]) == ("Initial Snapshot", type)
    assert value["additional_data"] == {"connector_name": "p", "database": SHOP, **data}


def test_refused_signal_is_told_with_the_reason(make: Make) -> None:
    notifications, _ = make(*PLAIN)
    value = value_of(notifications.signal_refused("7", "stop", "kafka", "there is no such type"))
    assert (value["id"], value["aggregate_type"], value["type"]) == ("7", "Signal", "REFUSED")
    assert value["additional_data"] == {
        "connector_name": "p",
        "signal_type": "stop",
        "channel": "kafka",
        "reason": "there is no such type",
    }


def test_log_has_a_line_and_no_message_is_made_without_the_sink(make: Make) -> None:
    notifications, _ = make("notification.enabled.channels: log")
    with logbook.TestHandler() as log:
        assert notifications.started(AD_HOC) is None
    (line,) = log.records
    assert line.level == logbook.INFO
    assert "notification ad-hoc-1: Incremental Snapshot STARTED: connector_name: p" in line.message
    assert BOTH in line.message


def test_text_of_a_sender_makes_no_line_of_its_own_in_the_log(make: Make) -> None:
    notifications, _ = make("notification.enabled.channels: log")
    with logbook.TestHandler() as log:
        notifications.signal_refused("1\nERROR: invented", "x", "file", "no\rtype")
    (line,) = log.records
    assert "1 ERROR: invented: Signal REFUSED" in line.message
    assert len(line.message.splitlines()) == 1


def test_without_channels_nothing_is_told(make: Make) -> None:
    notifications, _ = make()
    with logbook.TestHandler() as log:
        assert notifications.started(AD_HOC) is None
    assert not log.records


def test_notification_that_cant_be_written_is_left_out_with_one_warning(make: Make) -> None:
    notifications, writer = make(*SINK)

    def refuse(topic: str) -> None:
        raise TopicUnavailable(f"no {topic}")

    writer.require_topic = refuse
    with logbook.TestHandler() as log:
        assert notifications.started(AD_HOC) is None
        assert notifications.completed(AD_HOC) is None
        assert [record.message for record in log.records] == ["no notification in told: no told"]
        writer.require_topic = lambda _: None
        assert notifications.started(AD_HOC) is not None
        writer.require_topic = refuse
        notifications.completed(AD_HOC)
        assert len(log.records) == 2


def test_transforms_of_rows_let_notifications_through(make: Make) -> None:
    notifications, _ = make(
        *PLAIN,
        "transforms: unwrap",
        "transforms.unwrap.type: io.debezium.transforms.ExtractNewRecordState",
    )
    assert value_of(notifications.started(AD_HOC))["type"] == "STARTED"
