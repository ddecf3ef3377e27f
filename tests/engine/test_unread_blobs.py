"""BLOBs that the engine does not give to the plugin, and texts whose bytes make none: counted and
told until acknowledged."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import forked
import pytest
from capture import UNREADABLE, Attachment, Capture, until
from test_failures import Told, told

sys.path.insert(1, str(Path(__file__).parents[1] / "kafka"))

from shipping import read_topics

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.service import free_port

__all__ = ["told"]

pytestmark = pytest.mark.engine

_TABLE = """CREATE TABLE T
    (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER, B BLOB SUB_TYPE TEXT,
     W CHAR(2) CHARACTER SET NONE)"""
_PLACEHOLDER = "__debezium_unavailable_value"
_PAGE_SIZE_AT = 16  # in the header page: ods.h of the engine
_BLOB_PAGE = 8  # pag_blob there
_WORDS = r"{} placeholders for BLOBs that could not be read from /\S+/test\.fdb,"
_UNDECODED = r"1 event has placeholders for values that could not be decoded from /\S+/test\.fdb,"
_PATIENCE_S = 60.0

Ship = Callable[[], str]


def _damage(database: Path, content: bytes) -> int:
    """Make pages of the BLOB with CONTENT such that the engine refuses them; return how many."""
    raw = bytearray(database.read_bytes())
    (size,) = struct.unpack_from("<H", raw, _PAGE_SIZE_AT)
    pages = [at for at in range(0, len(raw), size) if raw[at] == _BLOB_PAGE]
    damaged = [at for at in pages if content in raw[at : at + size]]
    for at in damaged:
        raw[at] = 0
    database.write_bytes(raw)
    return len(damaged)


def _with_a_damaged_blob(capture: Capture) -> Attachment:
    """Return an attachment to a database in which the BLOB of row 2 is damaged."""
    capture.create(_TABLE)
    attachment = capture.attach()
    for number in (1, 2, 3):
        attachment.execute(
            "INSERT INTO T VALUES (?, 0, ?, NULL)", number, f"row {number};" * 10_000
        )
    attachment.commit()
    capture.end_clients()
    assert _damage(capture.database, b"row 2;") > 0
    return capture.attach()


def test_blob_on_a_damaged_page_is_marked_and_the_commit_goes_on(capture: Capture) -> None:
    attachment = _with_a_damaged_blob(capture)
    attachment.execute("UPDATE T SET N = 1")
    attachment.execute("UPDATE T SET B = 'new' WHERE ID = 2")
    attachment.execute("DELETE FROM T WHERE ID = 2")
    attachment.commit()
    whole = "row {};" * 10_000
    changes = [
        (op, [None if row is None else row["B"] for row in rows])
        for op, *rows in capture.journals()[-1].brief()
    ]
    assert changes == [
        ("u", [whole.replace("{}", "1")] * 2),
        ("u", [UNREADABLE, UNREADABLE]),
        ("u", [whole.replace("{}", "3")] * 2),
        ("u", [UNREADABLE, "new"]),
        ("d", ["new", None]),
    ]


@pytest.fixture
def ship(capture: Capture, broker: KafkaBroker, topic_prefix: str) -> Ship:
    """Return what ships all there is, by a shipper of its own, and gives its log."""

    def ship() -> str:
        log, logging = capture.directory / "ship.log", capture.directory / "ship-logging.yaml"
        log.unlink(missing_ok=True)
        logging.write_text(f"level: info\nfile: {log}\n")
        command = [sys.executable, "-m", "firebird_cdc", "ship", "--once"]
        files = ["--config", capture.config, "--logging", logging]
        forked.run([*command, *files], env=capture.environment(), check=True, timeout=60)
        return log.read_text()

    capture.options["kafka.producer.bootstrap.servers"] = broker.bootstrap
    capture.options["kafka.topic.prefix"] = topic_prefix
    return ship


def _rows(broker: KafkaBroker, topic_prefix: str) -> list[tuple[str, Any, Any]]:
    """Return operation, and number and BLOB of both rows, of each event of T."""
    topics = read_topics(broker.bootstrap, f"{topic_prefix}._")
    [events] = [events for name, events in topics.items() if name.endswith(".T")]

    def brief(row: Any) -> Any:
        return None if row is None else (row["ID"], row["B"][:7])

    return [
        (event.payload["op"], brief(event.payload["before"]), brief(event.payload["after"]))
        for event in events
        if event.payload is not None
    ]


@pytest.mark.kafka
@pytest.mark.plain  # the shipper counts
@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
def test_unread_blobs_are_told_over_restarts_until_acknowledged(
    capture: Capture,
    ship: Ship,
    told: Told,
    broker: KafkaBroker,
    topic_prefix: str,
    is_transactional: bool,
) -> None:
    if is_transactional:
        capture.options["kafka.producer.transactional.id"] = topic_prefix
    capture.write_config()
    attachment = _with_a_damaged_blob(capture)
    assert "placeholders" not in ship()
    status = ("status", "--config", capture.config)
    assert "placeholders" not in told(*status)[1]

    attachment.execute("UPDATE T SET N = 1")
    attachment.execute("UPDATE T SET B = 'new' WHERE ID = 2")
    attachment.commit()
    until("the journal", lambda: len(capture.committed()) == 1)
    [line] = [line for line in ship().splitlines() if "placeholders" in line]
    assert " ERROR " in line and 'event 2: before.B, after.B of table T, key {"ID":2}' in line
    assert "in 2 of its events" in line
    away = _PLACEHOLDER[:7]
    assert _rows(broker, topic_prefix)[3:] == [
        ("u", (1, "row 1;r"), (1, "row 1;r")),
        ("u", (2, away), (2, away)),
        ("u", (3, "row 3;r"), (3, "row 3;r")),
        ("u", (2, away), (2, "new")),
    ]

    def assert_told(count: str) -> None:
        words = _WORDS.format(count)
        code, said = told(*status)
        assert code == 1 and "ACTION REQUIRED" in said and re.search(words, said), said
        assert str(capture.database) in said and "before.B, after.B of table T;" in said
        code, said = told(*status, "--json")
        assert code == 1 and re.search(words, " ".join(json.loads(said)["needs"]))
        code, said = told("check", "--server", capture.root.path)
        assert code == 2 and re.search(f"error: .*{words}", said), said

    assert_told("2 events have")
    ship()  # another shipper
    assert_told("2 events have")
    attachment.execute("DELETE FROM T WHERE ID = 1")
    attachment.execute("UPDATE T SET N = 2")
    attachment.commit()
    until("the journal", lambda: len(capture.committed()) == 1)
    assert "placeholders" not in ship()  # the BLOB of row 2 is a new one
    assert_told("2 events have")

    code, said = told("journal", "acknowledge", "--config", capture.config)
    assert code == 0 and re.search(r"acknowledged \(2 events have placeholders", said), said
    assert "placeholders" not in told(*status)[1]
    assert "placeholders" not in told("check", "--server", capture.root.path)[1]
    attachment.execute("UPDATE T SET W = _OCTETS x'C4E0' WHERE ID = 2")
    attachment.commit()
    until("the journal", lambda: len(capture.committed()) == 1)
    assert 'after.W of table T, key {"ID":2}' in ship()
    code, said = told(*status)
    assert code == 1 and re.search(_UNDECODED, said) and "after.W of table T;" in said, said
    code, said = told("check", "--server", capture.root.path)
    assert code == 2 and re.search(f"error: .*{_UNDECODED}", said), said
    told("journal", "acknowledge", "--config", capture.config)
    ship()
    assert "placeholders" not in told(*status)[1]


@pytest.mark.kafka
@pytest.mark.plain  # the shipper counts
def test_page_and_metrics_of_the_embedded_shipper_tell_of_unread_blobs(
    capture: Capture, told: Told, broker: KafkaBroker, topic_prefix: str
) -> None:
    port = free_port()
    capture.options |= {
        "connector.shipper": "embedded",
        "kafka.producer.bootstrap.servers": broker.bootstrap,
        "kafka.topic.prefix": topic_prefix,
        "metrics.port": str(port),
    }
    capture.write_config()
    attachment = _with_a_damaged_blob(capture)
    attachment.execute("UPDATE T SET N = 1")
    attachment.commit()

    def get(path: str) -> str:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def counted(name: str) -> float | None:
        label = re.escape(f'database="{capture.database}"')
        found = re.search(rf"^firebird_cdc_{name}{{.*{label}.*}} (.*)$", get("/metrics"), re.M)
        return None if found is None else float(found[1])

    def is_counted() -> bool:
        return counted("unacknowledged_unread_blobs") == 1

    words = _WORDS.format("1 event has")
    until("the metric", is_counted, _PATIENCE_S)
    assert counted("events_with_unread_blobs_total") == 1
    attachment.execute("UPDATE T SET W = _OCTETS x'C4E0' WHERE ID = 1")
    attachment.commit()
    until("the other one", lambda: counted("unacknowledged_undecoded_values") == 1, _PATIENCE_S)
    until("the status", lambda: re.search(words, get("/status.json")), _PATIENCE_S)
    code, said = told("status", "--config", capture.config)
    assert code == 1 and re.search(words, said), said
    code, said = told("journal", "acknowledge", "--config", capture.config)
    assert code == 0, said
    for name in ("unread_blobs", "undecoded_values"):
        left = partial(counted, f"unacknowledged_{name}")
        until("the acknowledgement", lambda: left() == 0, _PATIENCE_S)  # noqa: B023
    assert counted("events_with_undecoded_values_total") == 1
    assert counted("events_with_unread_blobs_total") == 1
    until(
        "the status",
        lambda: "placeholders" not in told("status", "--config", capture.config)[1],
        _PATIENCE_S,
    )
