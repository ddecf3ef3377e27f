"""Fixtures of the tests that read messages with other people's programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(1, str(Path(__file__).parents[1] / "kafka"))

from avro_reader import AvroReader
from capture import Attachment, Capture
from kinds import BY_SQL
from postgres import Postgres, fetch_postgres
from reader import ConnectReader
from work import Column, Table, Work
from worker import Worker, fetch_worker

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import Stack


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectReader]:
    """One Java process that reads messages."""
    reader = ConnectReader(tmp_path_factory.mktemp("connect") / "java.log")
    yield reader
    reader.end()


@pytest.fixture(scope="session")
def avro_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AvroReader]:
    """One Java process that reads and writes Avro."""
    reader = AvroReader(tmp_path_factory.mktemp("avro-reader") / "java.log")
    yield reader
    reader.end()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One PostgreSQL server; each test makes a database of its own."""
    program = fetch_postgres(cache_directory())
    with Postgres(tmp_path_factory.mktemp("postgres"), program) as running:
        yield running


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory, broker: KafkaBroker) -> Iterator[Worker]:
    """One worker of Kafka Connect; each test makes connectors of its own, and deletes them."""
    program = fetch_worker(cache_directory())
    with Worker(tmp_path_factory.mktemp("worker"), broker.bootstrap, program) as running:
        yield running


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture]:
    """One engine with the plugin for all tests; each makes tables of its own."""
    directory = tmp_path_factory.mktemp("engine")
    with Stack(directory / "stack") as stack:
        made = Capture(directory, stack, {"ServerMode": "Super"})
        # Tests render one transaction's file in many ways.
        made.options["connector.journal.transactions"] = "1"
        made.write_config()
        made.install()
        made.create()
        yield made
        made.end_clients()


@pytest.fixture(scope="session")
def attachment(engine: Capture) -> Attachment:
    """The one attachment of all tests here."""
    return engine.attach()


@pytest.fixture
def work(engine: Capture, attachment: Attachment) -> Work:
    """Return the work of a test in the database."""
    return Work(engine, attachment)


@pytest.fixture
def orders(work: Work) -> Table:
    """A table, and the life of a row in it: made, changed, given another key, deleted."""
    columns = (
        Column("ID", BY_SQL["INTEGER"], nullable=False),
        Column("PRICE", BY_SQL["DECIMAL(9, 2)"]),
        Column("NAME", BY_SQL["VARCHAR(20) CHARACTER SET UTF8"]),
        Column("AT", BY_SQL["TIMESTAMP"]),
    )
    table = Table("ORDERS", columns, (0,))
    work.script(f"RE{table.definition()}")  # it is another test's too
    assert work.insert(table, [1, "12.50", "Łódź", "2026-03-02 09:14:07.1234"])
    work.commit()
    [row] = work.rows(table)
    for place, value in ((1, "-0.01"), (0, 2)):
        assert work.update(table, row, {place: value})
        work.commit()
    work.delete(table, row)
    work.commit()
    return table
