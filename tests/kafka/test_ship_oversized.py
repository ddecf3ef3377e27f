"""BLOBs that are too large for a message: set aside, or a placeholder; never null."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from columns import column
from shipping import DATABASE, WAYS, Folder, Ship, Shipper, read_topics
from soaked import in_turn
from test_ship_avro import Read, read, use

from firebird_cdc.cli import main
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.registry import SchemaRegistry
from firebird_cdc.journal.format import JournalWriter, Storage

pytestmark = [pytest.mark.kafka, pytest.mark.registry]

__all__ = ["read"]

CONVERTERS = ("json", "avro")
MODE = "event.processing.failure.handling.mode"
OVERSIZED = "event.oversized.value"
TEXT = "__debezium_unavailable_value"
HEADER = "__firebird_cdc.oversized"
REDELIVERED = "__firebird_cdc.late"
LIMIT = 100_000

ID = column("ID", Storage.BIGINT, 1)
COLUMNS = (
    ID,
    column("BODY", Storage.BLOB, sub_type=1, charset_id=4),
    column("PHOTO", Storage.BLOB),
)


def write(folder: Folder, sequence: int) -> Path:
    """A journal with an update of which a BLOB is too large, between two that are not."""

    def fill(writer: JournalWriter) -> None:
        table = writer.table("DOC", COLUMNS)
        writer.insert(table, (1, writer.blob(b"a"), None))
        old = (7, writer.blob(b"old"), writer.blob(b"\xfe"))
        writer.update(table, old, (7, writer.blob(b"new"), writer.blob(b"\xff" * 2 * LIMIT)))
        writer.insert(table, (3, writer.blob(b"c"), None))

    return folder.write_changes(sequence, fill)


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def transactional(request: pytest.FixtureRequest) -> bool:
    """Tell whether Kafka's transactions are used."""
    return bool(request.param)


@pytest.fixture
def prepared(
    transactional: bool, ship: Ship, registry: SchemaRegistry, topic_prefix: str
) -> Callable[[str], Ship]:
    """Prepares shippers with a limit of `LIMIT` bytes, with a converter, with transactions too."""

    def prepare(converter: str) -> Ship:
        if converter == "avro":
            use(ship, registry.url)
        if transactional:
            ship.options["kafka.producer.transactional.id"] = topic_prefix
        ship.options["kafka.producer.max.request.size"] = str(LIMIT)
        return ship

    return prepare


@pytest.fixture
def sent(
    broker: KafkaBroker, registry: SchemaRegistry, read: Read, topic_prefix: str
) -> Callable[[str], list[tuple[Any, dict[str, str]]]]:
    """Return a reader of rows of table DOC: number, row, headers that are not Debezium's."""
    topic = f"{topic_prefix}._srv_fb_warehouse.fdb.DOC"

    def read_now(converter: str) -> list[tuple[Any, dict[str, str]]]:
        topics = (
            read(registry) if converter == "avro" else read_topics(broker.bootstrap, topic_prefix)
        )
        return [
            (
                event.payload,
                {name: told for name, told in event.headers.items() if "debezium" not in name},
            )
            for event in topics[topic]
        ]

    return read_now


def raw(value: Any) -> bytes:
    """A bytes field as JSON or Avro has it."""
    return value if isinstance(value, bytes) else b64decode(value)


def health(folder: Folder, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and output of ``firebird-cdc status``."""
    capsys.readouterr()
    code = main(["status", "--directory", str(folder.directory)])
    return code, capsys.readouterr().out


def is_told(shipper: Shipper, journal: Path) -> bool:
    """Tell whether the log names, once, the column and the row whose event was set aside."""
    [told] = shipper.log_lines(f"{journal.name} of {DATABASE}: moved to the quarantine")
    return (
        "column PHOTO: a blob of 200000 bytes does not fit" in told
        and 'it is of table DOC, key {"ID":7}' in told
    )


@pytest.mark.parametrize("converter", CONVERTERS)
@in_turn("mode", ["warn", "skip"])
@in_turn("transactional", WAYS, indirect=True)
def test_blob_above_the_limit_waits_in_the_quarantine(
    prepared: Callable[[str], Ship],
    folder: Folder,
    sent: Callable[[str], list[tuple[Any, dict[str, str]]]],
    capsys: pytest.CaptureFixture[str],
    converter: str,
    mode: str,
) -> None:
    ship = prepared(converter)
    ship.options[MODE] = mode
    journal = write(folder, 1)
    shipper = ship.once()
    assert shipper.process.returncode == 0
    assert [event["source"]["pos"] for event, _ in sent(converter)] == [1, 3]
    assert is_told(shipper, journal)
    code, told = health(folder, capsys)
    assert code == 1
    assert "1 journal is in the quarantine" in told
    ship.once()  # nothing is forgotten at a restart
    assert health(folder, capsys)[0] == 1
    ship.options["kafka.producer.max.request.size"] = str(8 * LIMIT)
    assert ship.journal("retry", "--all") == 0
    ship.once()
    (*_, (event, headers)) = sent(converter)
    assert event["source"]["pos"] == 2
    assert raw(event["after"]["PHOTO"]) == b"\xff" * 2 * LIMIT
    assert REDELIVERED in headers
    assert health(folder, capsys)[0] == 0


def test_redelivered_event_with_a_placeholder_is_counted(
    prepared: Callable[[str], Ship], folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    ship = prepared("json")
    ship.options[MODE] = "skip"
    write(folder, 1)
    assert ship.once().process.returncode == 0
    assert "placeholders" not in health(folder, capsys)[1]
    ship.options[OVERSIZED] = "placeholder"
    assert ship.journal("retry", "--all") == 0
    assert ship.once().process.returncode == 0
    code, text = health(folder, capsys)
    assert code == 0 and "1 event was sent with placeholders" in text


def test_blob_above_the_limit_stops_its_database(
    prepared: Callable[[str], Ship], folder: Folder
) -> None:
    ship = prepared("json")
    journal = write(folder, 1)
    shipper = ship.once()
    assert shipper.process.returncode == 1
    assert folder.waiting == [journal]
    told = shipper.log_lines("shipping paused")[0]
    assert "column PHOTO: a blob of 200000 bytes does not fit" in told
    assert 'it is of table DOC, key {"ID":7}' in told
    assert journal.name in told


@pytest.mark.parametrize("converter", CONVERTERS)
@in_turn("mode", ["fail", "skip"])
@in_turn("transactional", WAYS, indirect=True)
def test_placeholder_stands_for_a_blob_above_the_limit(
    prepared: Callable[[str], Ship],
    folder: Folder,
    sent: Callable[[str], list[tuple[Any, dict[str, str]]]],
    capsys: pytest.CaptureFixture[str],
    converter: str,
    mode: str,
) -> None:
    ship = prepared(converter)
    ship.options |= {MODE: mode, OVERSIZED: "placeholder"}
    journal = write(folder, 1)
    shipper = ship.once()
    assert shipper.process.returncode == 0
    first, (event, headers), last = sent(converter)
    assert (first[1], last[1]) == ({}, {})
    assert event["before"] | {"PHOTO": raw(event["before"]["PHOTO"])} == {
        "ID": 7, "BODY": "old", "PHOTO": b"\xfe",
    }  # fmt: skip
    assert event["after"] | {"PHOTO": raw(event["after"]["PHOTO"])} == {
        "ID": 7, "BODY": "new", "PHOTO": TEXT.encode(),
    }  # fmt: skip
    assert json.loads(headers[HEADER]) == {"after": ["PHOTO"]}
    [told] = shipper.log_lines("placeholders stand for values that are too large")
    assert journal.name in told
    assert 'event 2: after.PHOTO of table DOC, key {"ID":7}' in told
    assert folder.quarantined() == []
    code, text = health(folder, capsys)
    assert code == 0 and "1 event was sent with placeholders" in text
    write(folder, 2)
    assert ship.once().process.returncode == 0
    assert "2 events were sent with placeholders" in health(folder, capsys)[1]
