"""Debezium's JDBC sink, in a Connect worker with its defaults, makes tables in PostgreSQL of our
topics: they hold what Firebird's hold."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import SerializationContext
from into_postgres import DEFAULTS, JSON_HEADERS, OTHER_MODES, Delivery, Way, avro
from kinds import BY_SQL, KINDS, Kind
from postgres import Postgres
from shipping import read_topics
from soaked import few_of
from work import Column, Image, Table, Work
from worker import Worker

from firebird_cdc.demo.registry import SchemaRegistry

pytestmark = [pytest.mark.engine, pytest.mark.kafka, pytest.mark.registry]

# Beyond the sink: it knows no arrays but simple ones of one dimension.
_SINKABLE = [kind for kind in KINDS if not kind.dimensions or kind.sql.startswith("VARCHAR")]

# A key's values by the type of its columns: one that becomes the second, and one to delete.
_UUIDS = tuple(bytes.fromhex(f"{digit}f8a0c{'00' * 10}{digit}{digit}ff") for digit in "0a7")
_KEYS: tuple[tuple[str, Sequence[Any]], ...] = (
    ("SMALLINT", (-32768, 32767, 0)),
    ("INTEGER", (-(2**31), 2**31 - 1, 0)),
    ("BIGINT", (-(2**63), 2**63 - 1, 0)),
    ("INT128", ("9" * 38, "-" + "9" * 38, "0")),
    ("NUMERIC(4, 1)", ("-999.9", "0.1", "0.0")),
    ("DECIMAL(9, 2)", ("12.50", "-9999999.99", "0.00")),
    ("DECIMAL(18, 4)", ("0.0001", "-99999999999999.9999", "1")),
    ("NUMERIC(38, 20)", ("-1.5", "0.00000000000000000001", "0")),
    ("DECFLOAT(16)", ("1.00", "-1E+2", "0")),
    ("DECFLOAT(34)", ("0.10", "7E+280", "1E-300")),
    ("FLOAT", (0.1, -3.4028234663852886e38, 1.5)),
    ("DOUBLE PRECISION", (0.1, -1.7976931348623157e308, 5e-324)),
    ("BOOLEAN", (True, False)),
    ("CHAR(7) CHARACTER SET UTF8", ("жя 🍵", '  "x\\', "")),
    ("VARCHAR(20) CHARACTER SET UTF8", ('Łódź 🍵 "\\', "1042", "{a:[1],b}")),
    ("VARCHAR(9) CHARACTER SET WIN1251", ("Ёжь €", "", "a,b:c")),
    ("VARCHAR(8) CHARACTER SET NONE", ("жя".encode(), b"true", b"")),
    ("BINARY(5)", (b"\xfb\xff\xfe", b"\0", b"\1")),
    ("VARBINARY(9)", (b"\xfb\xff\xfe", b"", b"null")),
    ("CHAR(16) CHARACTER SET OCTETS", _UUIDS),
    ("DATE", ("0001-01-01", "9999-12-31", "1969-12-31")),
    ("TIME", ("00:00:00", "23:59:59.9999", "09:14:07.1234")),
    ("TIMESTAMP", ("0001-01-01 00:00:00", "9999-12-31 23:59:59.9999", "1969-12-31 23:59:59.9999")),
    ("TIME WITH TIME ZONE", ("12:00:00.5 -03:30", "23:59:59.9999 Europe/Prague", "0:00 GMT")),
    (
        "TIMESTAMP WITH TIME ZONE",
        ("2026-03-29 02:30:00 Europe/Prague", "9999-12-31 23:59:59.9999 GMT", "0001-01-01 GMT"),
    ),
)
_COMPOSITE = ("INT128", "DECIMAL(9, 2)", "CHAR(16) CHARACTER SET OCTETS", "DATE", "INTEGER")
_OCTETS_16 = replace(BY_SQL["BINARY(5)"], sql="CHAR(16) CHARACTER SET OCTETS")
_KEY_KINDS = {**BY_SQL, _OCTETS_16.sql: _OCTETS_16}

# Columns that are added to a table with rows: type, default, another value.
_DEFAULTS: tuple[tuple[str, str, Any], ...] = (
    ("INTEGER", "5", -1),
    ("BIGINT", "-9223372036854775807", 2**63 - 1),
    ("SMALLINT", "-32768", 1),
    ("DECIMAL(9, 2)", "1.50", "-0.01"),
    ("DECIMAL(18, 4)", "-12.5", "0.0001"),
    ("DOUBLE PRECISION", "0.1", -2.5),
    ("BOOLEAN", "TRUE", False),
    ("VARCHAR(20) CHARACTER SET UTF8", "'Łódź ''x'", ""),
    ("CHAR(7) CHARACTER SET UTF8", "'ab'", "c"),
    ("DATE", "DATE '2026-03-02'", "1969-12-31"),
    ("TIMESTAMP", "TIMESTAMP '2026-03-02 09:14:07.1234'", "0001-01-01 00:00:00"),
    ("FLOAT", "0.1", -2.5),
    ("INT128", "9" * 38, "-5"),
    ("NUMERIC(38, 20)", "-1.5", "0"),
    ("BINARY(5)", "x'00FF'", b"\1"),
    ("VARBINARY(9)", "x'FB00FF'", b""),
    ("BLOB SUB_TYPE BINARY", "x'00FF'", b"\2"),
    ("BLOB SUB_TYPE TEXT CHARACTER SET UTF8", "'Łódź ''x'", "a"),
    ("BLOB SUB_TYPE TEXT CHARACTER SET WIN1251", "'Ёж'", "a"),
    ("CHAR(5) CHARACTER SET WIN1251", "'Ёж'", "a"),
    ("VARCHAR(9) CHARACTER SET WIN1251", "'Ёж'", ""),
    ("CHAR(8) CHARACTER SET NONE", "'жя'", b"x"),
    ("VARCHAR(8) CHARACTER SET NONE", "'жя'", b""),
    ("TIME WITH TIME ZONE", "TIME '10:00 +03:00'", "12:00:00.5 -03:30"),
    (
        "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMP '2026-07-01 10:00:00.1234 Europe/Berlin'",
        "0001-01-01 00:00:00 GMT",
    ),
)
# What the sink takes in other modes only.
_OTHER_DEFAULTS = (
    ("TIME", "TIME '09:14:07.1234'", "00:00:00"),
    ("DECFLOAT(16)", "1.50", "-7E+2"),
    ("DECFLOAT(34)", "-0.25", "3"),
)

# A decimal's ends, by its type: those of what it is stored in, or of 38 digits.
_ENDS = (
    ("NUMERIC(4, 2)", "-327.68", "327.67"),
    ("DECIMAL(4, 0)", "-2147483648", "2147483647"),
    ("NUMERIC(9, 3)", "-2147483.648", "2147483.647"),
    ("NUMERIC(9, 9)", "-2.147483648", "2.147483647"),
    ("DECIMAL(18, 4)", "-922337203685477.5808", "922337203685477.5807"),
    ("NUMERIC(18, 0)", "-9223372036854775808", "9223372036854775807"),
    ("INT128", f"-{'9' * 38}", "9" * 38),
    ("NUMERIC(38, 0)", f"-{'9' * 38}", "9" * 38),
    ("NUMERIC(38, 20)", f"-{'9' * 18}.{'9' * 20}", f"{'9' * 18}.{'9' * 20}"),
)

Deliver = Callable[..., Delivery]


@pytest.fixture
def deliver(
    work: Work, worker: Worker, postgres: Postgres, tmp_path: Path, topic_prefix: str
) -> Iterator[Deliver]:
    """Return a maker of ways for this test's work."""
    made: list[Delivery] = []

    def make(way: Way = DEFAULTS) -> Delivery:
        prefix = f"{topic_prefix}{len(made)}"
        made.append(Delivery(work, tmp_path / prefix, worker, postgres, prefix, way))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def ways(registry: SchemaRegistry) -> dict[str, Way]:
    """The ways by their names."""
    return {
        "defaults": DEFAULTS,
        "json headers": JSON_HEADERS,
        "other modes": OTHER_MODES,
        "avro": avro(registry),
    }


def _values(kind: Kind) -> list[Any]:
    # PostgreSQL has no text with a NUL in it.
    return [value for value in kind.extremes if not (isinstance(value, str) and "\0" in value)]


@pytest.mark.parametrize("way", ["defaults", "avro"])
def test_a_table_is_the_same_behind_debeziums_jdbc_sink(
    work: Work, deliver: Deliver, ways: dict[str, Way], way: str
) -> None:
    columns = tuple(Column(f"C{place}", kind) for place, kind in enumerate(_SINKABLE))
    id_column = Column("ID", BY_SQL["INTEGER"], nullable=False)
    table = Table(f"SINK_{way}", (id_column, *columns), (0,))
    work.create(table)
    most = max(len(_values(kind)) for kind in _SINKABLE)
    for number in range(most):
        values = [values[number % len(values)] for kind in _SINKABLE for values in [_values(kind)]]
        assert work.insert(table, [number, *values])
    assert work.insert(table, [most, *[None] * len(_SINKABLE)])
    work.commit()
    first, _, third, *_ = work.rows(table)
    work.delete(table, first)
    assert work.update(table, third, dict.fromkeys(range(1, 8)))
    work.commit()
    delivery = deliver(ways[way])
    delivery.ship()
    delivery.start_sink(table)
    delivery.await_sink()
    delivery.compare(table)


@pytest.mark.parametrize(
    "way", few_of(["defaults", "json headers", "other modes", "avro"], ["json headers", "avro"])
)
def test_sink_follows_changed_keys_of_every_type(
    work: Work, deliver: Deliver, ways: dict[str, Way], way: str
) -> None:
    tables = []

    def change(*keys: tuple[str, Sequence[Any]]) -> None:
        columns = tuple(
            Column(f"K{place}", _KEY_KINDS[sql], nullable=False)
            for place, (sql, _) in enumerate(keys)
        )
        number = Column("N", BY_SQL["INTEGER"])
        name = f"KEYS{len(tables)}_{way.replace(' ', '_')}"
        table = Table(name, (*columns, number), tuple(range(len(columns))))
        work.create(table)
        tables.append(table)
        _change_keys(work, table, [list(row) for row in zip(*(it for _, it in keys), strict=True)])

    for key in _KEYS:
        # The sink can't delete by a MicroTime: it has PostgreSQL compare it with a timestamp.
        if key[0] != "TIME" or way == "other modes":
            change(key)
    change(("VARCHAR(20) CHARACTER SET UTF8", ("a", "b", "a")), ("INTEGER", (1, 1, 2)))
    change(*(key for key in _KEYS if key[0] in _COMPOSITE))
    delivery = deliver(ways[way])
    delivery.ship()
    delivery.start_sink(*tables)
    delivery.await_sink()
    delivery.compare(*tables)


def _change_keys(work: Work, table: Table, keys: Sequence[list[Any]]) -> None:
    """Give one row another key; what else may be done with both keys then is done."""
    old, new, *others = keys
    width = len(old)
    assert work.insert(table, [*old, 1])
    work.commit()
    [row] = work.rows(table)
    assert work.update(table, row, {**dict(enumerate(new)), width: 2})
    work.commit()
    assert work.insert(table, [*old, 3])
    for values in others:
        assert work.insert(table, [*values, 4])
    work.commit()
    for other in work.rows(table)[2:]:
        work.delete(table, other)
    assert work.update(table, row, {width: None})
    if others:  # of a composite key, the last column alone
        assert work.update(table, row, {width - 1: others[0][-1]})
    work.commit()


@pytest.mark.parametrize("way", few_of(["defaults", "other modes", "avro"], ["defaults", "avro"]))
def test_columns_with_defaults_are_added_to_a_table_with_rows(
    work: Work,
    deliver: Deliver,
    ways: dict[str, Way],
    worker: Worker,
    registry: SchemaRegistry,
    way: str,
) -> None:
    defaults = (*_DEFAULTS, *(_OTHER_DEFAULTS if way == "other modes" else ()))
    new_values = [value for *_, value in defaults]
    suffix = way.replace(" ", "_")

    def make(name: str) -> Table:
        id_column = Column("ID", BY_SQL["INTEGER"], nullable=False)
        table = Table(f"{name}_{suffix}", (id_column,), (0,))
        work.create(table)
        return table

    def add_columns(table: Table) -> Table:
        for place, (sql, default, _) in enumerate(defaults):
            added = Column(f"C{place}", BY_SQL[sql], nullable=False)
            table = work.add_column(table, added, default)
        return table

    fresh = add_columns(make("FRESH"))  # the sink makes all of it at once
    assert work.insert(fresh, [0, *new_values])
    work.commit()
    table = make("ADDED")
    for number in range(3):
        assert work.insert(table, [number])
    work.commit()
    delivery = deliver(ways[way])
    delivery.ship()
    delivery.start_sink(fresh, table)
    delivery.await_sink()
    if way == "avro":
        _hold_to_backward(registry, delivery.prefix)
    table = add_columns(table)
    # Its domain has the default, and NOT NULL too.
    domain = f"QUANTITY_{suffix}"
    work.script(f"CREATE DOMAIN {domain} AS INTEGER DEFAULT 7 NOT NULL")
    quantity = Column("OF_DOMAIN", replace(BY_SQL["INTEGER"], sql=domain))
    table = work.add_column(table, quantity)
    # What may be null has the default only where a row is written without it.
    table = work.add_column(table, Column("MAYBE", BY_SQL["INTEGER"]), "9")
    values = [*new_values, 70]
    assert work.insert(table, [3, *values, None])
    assert work.insert(table, [4, *values, 8])
    assert work.update(table, work.rows(table)[0], {1: values[0], len(values) + 1: None})
    work.commit()
    delivery.ship()
    delivery.await_sink()
    delivery.compare(fresh, table)
    if way == "avro":
        _read_by_the_latest_schema(registry, worker, delivery.topic(table), work.images(table)[1])


def _hold_to_backward(registry: SchemaRegistry, prefix: str) -> None:
    """Have the registry take only schemas that read what has been written by the last ones."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        mine = [subject for subject in client.get_subjects() if subject.startswith(prefix)]
        assert len(mine) == 4, mine  # of keys and of values in two tables
        for subject in mine:
            client.set_compatibility(subject, "BACKWARD")


def _read_by_the_latest_schema(
    registry: SchemaRegistry, worker: Worker, topic: str, image: Image
) -> None:
    """Read the message of a row that was written before it had its last columns, as a consumer
    does that knows them: it has what Firebird has in that row now."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        latest = client.get_latest_version(f"{topic}-value").schema
        deserialize = AvroDeserializer(client, latest)
        [events] = read_topics(
            worker.bootstrap,
            topic,
            decode=lambda content, topic, part: (
                deserialize(content, SerializationContext(topic, part)) if part == "value" else None
            ),
        ).values()
    read = events[image[0]].value["after"]
    for value, found in zip(image, read.values(), strict=True):
        # Dates and times have other forms here. Of a decimal, or of bytes, fastavro gives the
        # schema's own text, and of a FLOAT the digits that are shown.
        if isinstance(value, float) and found != value:
            found = ctypes.c_float(found).value
        if not isinstance(value, date | time | Decimal | bytes):
            assert found == value, (image, read)


@pytest.mark.parametrize("way", ["defaults", "avro"])
def test_decimals_at_both_ends_of_every_type(
    work: Work, deliver: Deliver, ways: dict[str, Way], way: str
) -> None:
    columns = tuple(
        Column(f"C{place}", replace(BY_SQL["DECIMAL(9, 2)"], sql=sql, bound=f"CAST(? AS {sql})"))
        for place, (sql, *_) in enumerate(_ENDS)
    )
    id_column = Column("ID", BY_SQL["INTEGER"], nullable=False)
    table = Table(f"ENDS_{way}", (id_column, *columns), (0,))
    work.create(table)
    lows, highs = ([ends[place] for ends in _ENDS] for place in (1, 2))
    for number, values in enumerate([lows, highs, [None] * len(_ENDS)]):
        assert work.insert(table, [number, *values])
    work.commit()
    assert work.images(table)[1][1:] == tuple(map(Decimal, highs))
    delivery = deliver(ways[way])
    delivery.ship()
    delivery.start_sink(table)
    delivery.await_sink()
    delivery.compare(table)
