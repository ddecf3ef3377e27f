"""Result of a table's changes behind a sink: journals, the shipper, a broker, a real worker."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

from kinds import Kind, Modes
from postgres import Postgres
from shipping import Folder, Ship
from work import Image, Table, Work
from worker import AVRO_CONVERTER, Worker

from firebird_cdc.demo.registry import SchemaRegistry

_JSON = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True, slots=True)
class Way:
    """Way to write and read messages: options of the connector, and of a sink in the worker."""

    ours: Mapping[str, str] = field(default_factory=dict)
    theirs: Mapping[str, str] = field(default_factory=dict)
    modes: Modes = field(default_factory=Modes)


DEFAULTS = Way()
OTHER_MODES = Way(modes=Modes("string", "connect"))
JSON_HEADERS = Way({"header.converter": "json"}, {"header.converter": _JSON})


def avro(registry: SchemaRegistry) -> Way:
    """Return the way through REGISTRY, with headers as by default."""
    ours, theirs = {}, {}
    for part in ("key.converter", "value.converter"):
        ours |= {part: "avro", f"{part}.schema.registry.url": registry.url}
        theirs |= {
            part: AVRO_CONVERTER,
            f"{part}.apicurio.registry.url": f"{registry.address}/apis/registry/v2",
            f"{part}.apicurio.registry.as-confluent": "true",
            f"{part}.apicurio.registry.use-id": "contentId",
        }
    return Way(ours, theirs)


def sink_options(postgres: Postgres, database: str) -> dict[str, str]:
    """Return the options of a JDBC sink that keeps tables as those in Firebird are."""
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "connection.url": postgres.url(database),
        "connection.username": postgres.user,
        "connection.password": postgres.password,
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": "${source.table}",
    }


class Delivery:
    """One way of a test's work into a database of PostgreSQL, with topics of its own.

    directory: for the shipper's files. prefix: of the topics, and the database's name.
    """

    def __init__(
        self,
        work: Work,
        directory: Path,
        worker: Worker,
        postgres: Postgres,
        prefix: str,
        way: Way,
    ) -> None:
        self._work = work
        self._worker = worker
        self._postgres = postgres
        self._way = way
        self._tables: list[Table] = []
        self._sent: set[Path] = set()
        self.prefix = prefix
        directory.mkdir()
        self._ship = Ship(Folder(directory / "journals"), directory, worker.bootstrap, prefix)
        self._ship.options["include.schema.changes"] = "false"
        self._ship.options["kafka.producer.transactional.id"] = prefix
        self._ship.options.update(dict(line.split(": ") for line in way.modes.lines()))
        self._ship.options.update(way.ours)

    def ship(self) -> None:
        """Have what has been committed since the last time in Kafka."""
        for journal in self._work.journals():
            if journal not in self._sent:
                os.link(journal, self._ship.folder.directory / journal.name)
                self._sent.add(journal)
        shipper = self._ship.once()
        assert shipper.process.returncode == 0, shipper.log
        assert not self._ship.folder.waiting, shipper.log
        assert not self._ship.folder.quarantined(), shipper.log

    def topic(self, table: Table) -> str:
        """Return the topic of a table."""
        return f"{self.prefix}.{self._work.database.replace('/', '_')}.{table.name}"

    def start_sink(self, *tables: Table) -> None:
        """Have the worker write TABLES, whose topics are there, into an empty database."""
        self._postgres.create_database(self.prefix)
        options = {**sink_options(self._postgres, self.prefix), **self._way.theirs}
        options["topics"] = ",".join(map(self.topic, tables))
        self._worker.create(self.prefix, options)
        self._tables += tables

    def await_sink(self) -> None:
        """Wait until the sink has written what is in the topics."""
        self._worker.await_caught_up(self.prefix, [*map(self.topic, self._tables)])

    def compare(self, *tables: Table) -> None:
        """Hold the rows of tables in PostgreSQL against those in Firebird."""
        for table in tables:
            rows = self._postgres.rows(self.prefix, table.name.lower())
            _compare(table, self._work.images(table), rows, self._way.modes)

    def close(self) -> None:
        """End what still runs."""
        if self._tables:
            self._worker.delete(self.prefix)
        self._ship.close()


def _compare(
    table: Table, images: Sequence[Image], rows: Sequence[Mapping[str, Any]], modes: Modes
) -> None:
    # PostgreSQL's names without quotes are in small letters.
    left = [[row[column.name.lower()] for column in table.columns] for row in rows]
    kinds = [column.kind for column in table.columns]
    for image in images:
        found = [
            row
            for row in left
            if all(_same(kinds[place], row[place], image[place], modes) for place in table.key)
        ]
        assert len(found) == 1, f"{table.name}: {image} is not once among {left}"
        left.remove(found[0])
        for column, value, due in zip(table.columns, found[0], image, strict=True):
            assert _same(column.kind, value, due, modes), (table.name, column, value, due)
    assert not left, f"{table.name} has more"


def _same(kind: Kind, found: Any, image: Any, modes: Modes) -> bool:
    """Compare a value in PostgreSQL with the one that the driver reads in Firebird."""
    if image is None:
        return found is None
    due = kind.sent(image, modes)
    if kind.sql.startswith("DECFLOAT") and modes.decimal == "precise":
        due = float(due)  # the sink makes it a double; decimal.handling.mode: string does not
    elif kind.sql == "FLOAT":
        # The digits that are shown are those of the nearest 32-bit number.
        found = ctypes.c_float(found).value
    elif kind.sql.endswith("WITH TIME ZONE"):
        due = due.replace(tzinfo=UTC)
    return type(found) is type(due) and found == due
