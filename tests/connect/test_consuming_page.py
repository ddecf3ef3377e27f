"""Examples of docs/consuming.md, run as they stand: their readers end with the rows of Firebird."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import flink
import pytest
import yaml
from broker_topics import last_readable
from capture import Attachment, Capture
from confluent_kafka import Producer
from consumer_machine import PAGE, ConsumerMachine
from documented import blocks
from postgres import Postgres
from shipping import Folder, Ship, read_topics
from work import Work
from worker import Worker

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.journal.replay.audit.kafka.topic_reader import PACKAGES

pytestmark = [pytest.mark.engine, pytest.mark.kafka]

_TOPICS = "firebird._data_shop.fdb"
_COLUMNS = ("ID", "CUSTOMER", "TOTAL", "RATE", "PLACED", "NOTE")
_FETCH = "mvn dependency:copy -DoutputDirectory=jars -Dartifact="
_LONG = "0.1234567890123456789012345678901234"

# Each in a transaction of its own: inserts, updates, a delete, a change of the key, NULLs, and the
# ends of what the decimals hold.
_INTO = f"INSERT INTO ORDERS ({', '.join(_COLUMNS)}) VALUES"
_SECOND = f"{_INTO} (2, 'Анна Петрова', -0.05, NULL, NULL, 'per post')"
_WORK = (
    f"{_INTO} (1, 'Łukasz Żak', 1284.50, {_LONG}, '2026-03-02 09:14:07.1234', NULL)",
    _SECOND,
    f"{_INTO} (3, 'O''Hara \"&\" Söhne', 21474836.47, 5E+3, '1969-12-31 23:59:59.9999', '東京')",
    f"{_INTO} (4, 'Ω', -21474836.48, -0.1, '2026-03-29 02:30:00', 'x')",
    f"{_INTO} (5, 'gone', 0, 0, '2026-01-01', 'y')",
    "UPDATE ORDERS SET TOTAL = 0.10, NOTE = NULL WHERE ID = 2",
    "UPDATE ORDERS SET NOTE = 'za ' || NOTE, RATE = NULL WHERE ID = 3",
    "UPDATE ORDERS SET ID = 40, TOTAL = TOTAL + 1 WHERE ID = 4",
    "DELETE FROM ORDERS WHERE ID = 5",
)


class Shop:
    """The page's database, and its topics in two forms: that of the page, and the defaults."""

    def __init__(
        self, engine: Capture, attachment: Attachment, directory: Path, bootstrap: str
    ) -> None:
        self.bootstrap = bootstrap
        self._attachment = attachment
        self._sent: set[Path] = set()
        self._work = Work(engine, attachment)
        prefixes = {form: f"consuming-{form}" for form in ("texts", "defaults")}
        self.stems = {
            form: f"{prefix}.{self._work.database.replace('/', '_')}"
            for form, prefix in prefixes.items()
        }
        self._ships = [
            Ship(Folder(directory / form), directory / f"{form}-ship", bootstrap, prefix)
            for form, prefix in prefixes.items()
        ]
        for form in prefixes:
            (directory / f"{form}-ship").mkdir()
        [shown] = blocks(PAGE, "yaml")
        for ship in self._ships:
            ship.options["include.schema.changes"] = "false"
        texts, defaults = self._ships
        texts.options.update(yaml.safe_load(shown))
        defaults.options["kafka.producer.transactional.id"] = "consuming-defaults"

    def do(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own, and ship what they have changed."""
        self._attachment.script(*statements)
        for journal in self._work.journals():
            if journal not in self._sent:
                self._sent.add(journal)
                for ship in self._ships:
                    os.link(journal, ship.folder.directory / journal.name)
        for shipper in [ship.start("--once") for ship in self._ships]:
            assert shipper.wait() == 0, shipper.log
        for ship in self._ships:
            assert not ship.folder.waiting
            assert not ship.folder.quarantined()
        # A broker confirms a commit before it is seen in the partitions, and the page's readers
        # end where they have read all that is to be seen.
        last_readable(self.bootstrap, [f"{stem}.ORDERS" for stem in self.stems.values()])

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of ORDERS in Firebird, by their keys."""
        names = ", ".join(columns or _COLUMNS)
        found = self._attachment.execute(f"SELECT {names} FROM ORDERS ORDER BY ID")
        self._attachment.rollback()
        return [tuple(row.values()) for row in found]

    def close(self) -> None:
        for ship in self._ships:
            ship.close()


@pytest.fixture(scope="module")
def shop(
    engine: Capture,
    attachment: Attachment,
    broker: KafkaBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shop]:
    """The page's table with its work done and shipped."""
    create, alter, *_ = blocks(PAGE, "sql")
    named = "SELECT 1 FROM RDB$RELATIONS WHERE RDB$RELATION_NAME = 'ORDERS'"
    is_there = attachment.execute(named)
    attachment.rollback()
    if is_there:  # another test's
        attachment.script("DROP TABLE ORDERS")
    made = Shop(engine, attachment, tmp_path_factory.mktemp("consuming"), broker.bootstrap)
    more = (
        alter,
        "INSERT INTO ORDERS (ID, CUSTOMER, TOTAL) VALUES (6, 'ß', 7)",
        "UPDATE ORDERS SET PRIORITY = 1 WHERE ID = 1",
    )
    made.do(create, *_WORK, *more)
    yield made
    made.close()


@pytest.fixture
def machine_for(shop: Shop, tmp_path: Path) -> Callable[..., ConsumerMachine]:
    """Return a maker of machines on which the page's topics are those of a form."""

    def make(form: str = "texts", **places: str) -> ConsumerMachine:
        here = {_TOPICS: shop.stems[form], "localhost:9092": shop.bootstrap} | places
        return ConsumerMachine(tmp_path / form, here)

    return make


Machines = Callable[..., ConsumerMachine]


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _number(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _copied(machine: ConsumerMachine) -> list[tuple[Any, ...]]:
    """Run the page's program in Python; return the rows of its copy, as Firebird has them."""
    machine.run("python3")
    with closing(sqlite3.connect(machine.directory / "orders.db")) as copy:
        found = copy.execute(
            "SELECT id, customer, total, rate, placed, note FROM orders WHERE NOT deleted"
        ).fetchall()
    return [
        (key, who, _number(total), _number(rate), _moment(placed), note)
        for key, who, total, rate, placed, note in sorted(found)
    ]


def test_python_copy_in_sqlite_equals_the_table(shop: Shop, machine_for: Machines) -> None:
    machine = machine_for()

    assert _copied(machine) == shop.rows()
    shop.do("UPDATE ORDERS SET CUSTOMER = 'Δ' WHERE ID = 6", "DELETE FROM ORDERS WHERE ID = 2")
    assert _copied(machine) == shop.rows()
    # Somebody who reads all once more ends with the same.
    with closing(sqlite3.connect(machine.directory / "orders.db")) as copy, copy:
        copy.execute("DELETE FROM progress")
    assert _copied(machine) == shop.rows()
    shop.do(_SECOND)


def test_python_copy_ignores_redelivered_older_events(shop: Shop, machine_for: Machines) -> None:
    topic = f"{shop.stems['texts']}.ORDERS"
    sent = read_topics(shop.bootstrap, topic, decode=lambda content, _topic, _part: content)[topic]
    inserted = {json.loads(event.key)["payload"]["ID"]: event for event in reversed(sent)}
    producer = Producer({"bootstrap.servers": shop.bootstrap})
    for event in (*sent, inserted[3], inserted[5]):  # changed meanwhile; deleted meanwhile
        producer.produce(f"late.{topic}", key=event.key, value=event.value)
    assert producer.flush(30) == 0
    machine = machine_for(**{_TOPICS: f"late.{shop.stems['texts']}"})
    assert _copied(machine) == shop.rows()


def test_python_copy_stops_at_offsets_missing_from_the_topic(
    shop: Shop, machine_for: Machines
) -> None:
    machine = machine_for()
    _copied(machine)
    with closing(sqlite3.connect(machine.directory / "orders.db")) as copy, copy:
        copy.execute("UPDATE progress SET next = next + 1000")  # as if another topic had its name
    with pytest.raises(AssertionError, match="AUTO_OFFSET_RESET"):
        machine.run("python3")


def test_python_reads_precise_decimals(shop: Shop, machine_for: Machines) -> None:
    precise = _module(machine_for("defaults").directory / "precise.py")
    topic = f"{shop.stems['defaults']}.ORDERS"
    events = read_topics(shop.bootstrap, topic)[topic]
    rows = [
        (event.payload["after"]["ID"], precise.total_after(event.value))
        for event in events
        if event.value is not None and event.payload["after"]
    ]
    last = dict(rows)
    assert [(key, last[key]) for key, _ in shop.rows("ID", "TOTAL")] == shop.rows("ID", "TOTAL")
    assert precise.decimal_of({}, None) is None


# What stands in for curl where there is none: it sends what the page's command sends.
_POSTING = """\
import sys, urllib.request
_, fail, header, kind, data, file, url = sys.argv
assert (fail, header, data, file[0]) == ("--fail", "-H", "-d", "@")
name, value = kind.split(": ")
with open(file[1:], "rb") as body:
    request = urllib.request.Request(url, body.read(), {name: value})
print(urllib.request.urlopen(request).read().decode())
"""


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("form", ["defaults", "texts"])
def test_the_jdbc_sink_keeps_a_table_in_postgresql(
    shop: Shop, machine_for: Machines, worker: Worker, postgres: Postgres, form: str
) -> None:
    database = f"consuming_{form}"
    postgres.create_database(database)
    address = f"127.0.0.1:{postgres.port}/{database}"
    if form == "texts":
        _, _, create, *_ = blocks(PAGE, "sql")
        with postgres.connect(database) as connection:
            connection.execute(create)
        [shown] = re.findall(r"`jdbc:postgresql://localhost:5432/shop(\?.+)`", PAGE.read_text())
        address += shown
    here = {"localhost:5432/shop": address, "localhost:8083": f"127.0.0.1:{worker.port}"}
    machine = machine_for(form, **here)
    if not shutil.which("curl"):
        machine.add_program("curl", _POSTING)
    machine.run("curl")
    worker.await_caught_up("orders-sink", [f"{shop.stems[form]}.ORDERS"])
    worker.delete("orders-sink")
    columns = (*_COLUMNS, "PRIORITY")
    found = [
        tuple(row[name.lower()] for name in columns) for row in postgres.rows(database, "orders")
    ]
    due = [
        tuple(
            float(value) if name == "RATE" and form == "defaults" and value is not None else value
            for name, value in zip(columns, row, strict=True)
        )
        for row in shop.rows(*columns)
    ]
    assert sorted(found) == due
    types = postgres.column_types(database, "orders")
    assert types["total"] == {"defaults": "numeric(10,2)", "texts": "numeric"}[form]
    assert types["placed"].startswith("timestamp") and types["placed"].endswith("without time zone")


@pytest.mark.soak
@pytest.mark.spark
def test_spark_makes_a_table_in_a_lake(shop: Shop, machine_for: Machines) -> None:
    from pyarrow import parquet

    machine = machine_for()
    for package in PACKAGES:
        machine.run(f"{_FETCH}{package}")

    def laid() -> list[tuple[Any, ...]]:
        machine.run("spark-submit")
        table = parquet.read_table(machine.directory / "lake/orders").sort_by("ID")
        return [
            (*row[:3], _number(row[3]), *row[4:])
            for row in zip(*(column.to_pylist() for column in table.select(_COLUMNS)), strict=True)
        ]

    assert laid() == shop.rows()
    shop.do("UPDATE ORDERS SET ID = 7 WHERE ID = 6", "UPDATE ORDERS SET NOTE = NULL WHERE ID = 3")
    assert laid() == shop.rows()
    shop.do("UPDATE ORDERS SET ID = 6 WHERE ID = 7")


@pytest.mark.soak
def test_flink_follows_the_table(shop: Shop, machine_for: Machines) -> None:
    machine = machine_for()
    flink.lay_out(flink.fetch_flink(cache_directory()), machine.directory / "flink")
    machine.run(f"{_FETCH}org.apache.flink:")
    said = machine.run("flink/bin/sql-client.sh")
    assert "[ERROR]" not in said, said
    now: dict[int, Any] = {}
    decoded = read_topics(
        shop.bootstrap,
        "orders_now",
        decode=lambda content, _topic, _part: json.loads(content, parse_float=Decimal),
    )
    for event in decoded["orders_now"]:
        now[event.key["ID"]] = event.value
    assert [
        (
            key,
            row["CUSTOMER"],
            row["TOTAL"],
            _number(row["RATE"]),
            _moment(row["PLACED"]),
            row["NOTE"],
        )
        for key, row in sorted(now.items())
        if row is not None
    ] == shop.rows()
    assert f"Flink {flink.VERSION.rpartition('.')[0]} " in PAGE.read_text("utf-8")
