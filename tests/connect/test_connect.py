"""Every type in keys and values, under every mode, as Kafka Connect's JsonConverter reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from capture import Capture
from decode import from_java
from events import check, check_structures, check_transactions
from java import Unreadable
from kinds import BY_SQL, KINDS, Kind, Modes
from pipeline import PREFIX, Sent, render, renderer
from reader import ConnectReader
from work import Changed, Column, Table, Work

from firebird_cdc.journal.events.bad_event import BadEvent

pytestmark = pytest.mark.engine

# Every mode of every option; they are about different types, so not all of them with all others.
MODES = (
    Modes(),
    Modes("double", "adaptive_time_microseconds", "base64", "windows-1251"),
    Modes("string", "connect", "base64-url-safe", "cp1251"),
    Modes("precise", "isostring", "hex"),
)


def _columns(kinds: tuple[Kind, ...], nullable: bool = True) -> tuple[Column, ...]:
    return tuple(Column(f"C{place}", kind, nullable) for place, kind in enumerate(kinds))


def _extremes(kinds: tuple[Kind, ...], number: int) -> list[Any]:
    return [kind.extremes[number % len(kind.extremes)] for kind in kinds]


def test_connect_reads_values_of_every_type_under_every_mode(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    table = Table("TYPES", _columns(KINDS))
    work.create(table)
    for number in range(max(len(kind.extremes) for kind in KINDS)):
        assert work.insert(table, _extremes(KINDS, number))
    work.commit()
    first, second, *_ = work.rows(table)
    for place, kind in enumerate(KINDS):
        work.update(table, first, {place: kind.extremes[1]})
    assert work.update(table, second, dict.fromkeys(range(len(KINDS))))
    work.commit()
    for row in work.rows(table):
        work.delete(table, row)
    work.commit()
    for modes in MODES:
        messages = render(renderer(tmp_path, modes.lines()), work.journals())
        check(connect, work.database, modes, work.committed, messages)


def test_connect_reads_keys_of_every_type_under_every_mode(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    kinds = tuple(kind for kind in KINDS if kind.in_keys)
    size = 6  # an index has no room for more
    for start in range(0, len(kinds), size):
        part = kinds[start : start + size]
        table = Table(f"KEY_{start}", _columns(part, nullable=False), tuple(range(len(part))))
        work.create(table)
        assert work.insert(table, _extremes(part, 0))
        [row] = work.rows(table)
        for place, kind in enumerate(part):
            assert work.update(table, row, {place: kind.extremes[-1]})
        work.delete(table, row)
        work.commit()
    for modes in MODES:
        messages = render(renderer(tmp_path, modes.lines()), work.journals())
        assert len(messages) > 3 * len(kinds)
        check(connect, work.database, modes, work.committed, messages)
        simple = (*modes.lines(), "header.converter: simple")
        for message in render(renderer(tmp_path, simple), work.journals()):
            # In a Connect with default settings, and Debezium's JDBC sink in that.
            connect.headers(message.headers, by="simple")


def test_numbers_that_are_equal_and_not_the_same_are_two_keys(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """Kafka tells keys apart by their bytes: the older would stay in a compacted topic."""
    columns = (Column("D", BY_SQL["DOUBLE PRECISION"], False), Column("N", BY_SQL["INTEGER"]))
    floats = Table("FLOATS", columns, (0,))
    columns = (Column("D", BY_SQL["DECFLOAT(16)"], False), Column("N", BY_SQL["INTEGER"]))
    decimals = Table("DECIMALS", columns, (0,))
    for table, old, new in ((floats, 0.0, -0.0), (decimals, "1.0", "1.00")):
        work.create(table)
        assert work.insert(table, [old, 1])
        [row] = work.rows(table)
        assert work.update(table, row, {0: new, 1: 2})
        work.commit()
    modes = Modes("string")
    messages = render(renderer(tmp_path, modes.lines()), work.journals())
    assert len(messages) == 2 * len(("create", "delete", "tombstone", "create"))
    check(connect, work.database, modes, work.committed, messages)


def test_numbers_without_a_form_in_json_are_never_sent_as_null(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """They are never sent as something else, as null least of all."""
    sql = ("DOUBLE PRECISION", "FLOAT", "DECFLOAT(16)", "DECFLOAT(34)")
    table = Table("SPECIALS", _columns(tuple(BY_SQL[name] for name in sql)))
    work.create(table)
    work.immediate("SET DECFLOAT TRAPS TO")
    assert work.insert(table, [math.nan, math.inf, "NaN", "-Infinity"])
    assert work.insert(table, [1.5, None, None, "sNaN"])
    work.immediate("SET DECFLOAT TRAPS TO DIVISION_BY_ZERO, INVALID_OPERATION, OVERFLOW")
    work.commit()
    for modes in (Modes(), Modes("double")):
        with pytest.raises(BadEvent, match="column C"):
            render(renderer(tmp_path, modes.lines()), work.journals())
    work.insert(table, [1.5, None, None, None])
    work.commit()
    [*_, finite] = work.journals()
    [message] = render(renderer(tmp_path), [finite])
    # What Connect's own JsonConverter would write of NaN, it reads as another number.
    as_text = (message.value or b"").replace(b'"C0":1.5', b'"C0":"NaN"')
    read = connect.read(message.topic, message.key, as_text)
    assert from_java(read["value"]["schema"], read["value"]["value"])["after"]["C0"] == 0.0
    skip = ("event.processing.failure.handling.mode: skip",)
    with pytest.raises(BadEvent, match="column C"):
        render(renderer(tmp_path, skip), work.journals())
    strings = (*Modes("string").lines(), "column.exclude.list: .*[.]C[01]")
    messages = render(renderer(tmp_path, strings), work.journals())
    rows = [json.loads(message.value or b"")["payload"]["after"] for message in messages]
    assert [list(row.values()) for row in rows] == [
        ["NaN", "-Infinity"],
        [None, "sNaN"],
        [None] * 2,
    ]


def test_keys_of_tables_are_those_of_their_messages(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """A primary key of two columns in another order, a unique key, and none."""
    first = Column("FIRST", BY_SQL["INTEGER"], nullable=False)
    second = Column("SECOND", BY_SQL["BIGINT"], nullable=False)
    name = Column("NAME", BY_SQL["VARCHAR(20) CHARACTER SET UTF8"])
    price = Column("PRICE", BY_SQL["DECIMAL(9, 2)"])
    tables = (
        Table("OF_TWO", (first, name, second), (2, 0)),
        Table("BY_UNIQUE", (name, first), (1,), "UNIQUE"),
        Table("WITHOUT", (name, price)),
    )
    values = {"OF_TWO": [1, "a", 2], "BY_UNIQUE": ["a", 1], "WITHOUT": ["a", "1.10"]}
    for table in tables:
        work.create(table)
        assert work.insert(table, values[table.name])
        [row] = work.rows(table)
        assert work.update(table, row, {table.columns.index(name): "жя"})
        work.delete(table, row)
    work.commit()
    messages = render(renderer(tmp_path), work.journals())
    check(connect, work.database, Modes(), work.committed, messages)


def test_message_key_columns_take_the_place_of_the_key(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """Also for a column that Firebird takes into no key, and what a change of it is then."""
    name = Column("NAME", BY_SQL["VARCHAR(20) CHARACTER SET UTF8"])
    note = Column("NOTE", BY_SQL["BLOB SUB_TYPE TEXT CHARACTER SET UTF8"], nullable=False)
    keyless = Table("NOTES", (name, note), (1,))
    work.script(
        'CREATE TABLE NOTES ("NAME" VARCHAR(20) CHARACTER SET UTF8,'
        ' "NOTE" BLOB SUB_TYPE TEXT CHARACTER SET UTF8 NOT NULL)'
    )
    assert work.insert(keyless, ["a", "first"])
    [row] = work.rows(keyless)
    assert work.update(keyless, row, {0: "b"})
    assert work.update(keyless, row, {1: "second"})
    work.delete(keyless, row)
    work.commit()
    lines = (r"message.key.columns: .*\.NOTES:NOTE",)
    messages = render(renderer(tmp_path, lines), work.journals())
    check(connect, work.database, Modes(), work.committed, messages)


def test_topic_of_transactions_tells_begin_places_and_end(
    work: Work, orders: Table, connect: ConnectReader, tmp_path: Path
) -> None:
    """BEGIN, the events with their places, END; read with Debezium's schemas for them."""
    for row in range(2):
        assert work.insert(orders, [row, None, "x", None])
    work.commit()
    lines = ("provide.transaction.metadata: true", "transaction.metadata.factory: ordered")
    made = renderer(tmp_path, lines)
    [*_, last] = work.journals()
    messages = render(made, [last])
    reads = [connect.read(*message[:3]) for message in messages]
    begin, *events, end = [from_java(it["value"]["schema"], it["value"]["value"]) for it in reads]
    schemas = connect.debezium_schemas(messages[1].topic, messages[1].value or b"")
    for read in (reads[0], reads[-1]):
        assert read["topic"] == f"{PREFIX}.transaction"
        assert read["key"]["schema"] == schemas["transaction_key"]
        assert read["value"]["schema"] == schemas["transaction_value"]
        assert from_java(read["key"]["schema"], read["key"]["value"]) == {"id": begin["id"]}
    source = events[0]["source"]
    assert begin == {
        "id": f"{work.database}:{source['txId']}",
        "status": "BEGIN",
        "ts_ms": source["ts_ms"],
        "event_count": None,
        "data_collections": None,
    }
    collection = {"data_collection": f"{work.database}.ORDERS", "event_count": 2}
    assert end == {**begin, "status": "END", "event_count": 2, "data_collections": [collection]}
    assert [event["transaction"] for event in events] == [
        {
            "id": begin["id"],
            "total_order": place,
            "data_collection_order": place,
            "transaction_rank": source["commitSeq"],
            "transaction_epoch": 0,
        }
        for place in (1, 2)
    ]


def test_domains_are_sent_as_their_types_and_computed_columns_are_not(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """A domain is what it stands for; what is computed is not there."""
    columns = (
        Column("ID", BY_SQL["BIGINT"], nullable=False),
        Column("PRICE", BY_SQL["DECIMAL(9, 2)"], nullable=False),
        Column("NOTE", BY_SQL["VARCHAR(20) CHARACTER SET UTF8"]),
    )
    table = Table("DERIVED", columns, (0,))
    work.script(
        "CREATE DOMAIN MONEY AS DECIMAL(9, 2) NOT NULL",
        "CREATE DOMAIN NOTE AS VARCHAR(20) CHARACTER SET UTF8 DEFAULT 'none'",
        "CREATE TABLE DERIVED (ID BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, PRICE MONEY,"
        " DOUBLED COMPUTED BY (PRICE * 2), NOTE NOTE)",
    )
    assert work.insert(table, [1, "1.25", None])
    assert work.update(table, work.rows(table)[0], {1: "-7.00", 2: "x"})
    work.commit()
    messages = render(renderer(tmp_path), work.journals())
    check(connect, work.database, Modes(), work.committed, messages)


def test_numerics_of_dialect_1_are_sent_as_decimals(
    engine: Capture, work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    """It keeps the large ones in doubles; they are decimals all the same."""

    def numeric(precision: int, scale: int) -> Kind:
        kind = BY_SQL["DECIMAL(9, 2)"]
        unit = Decimal(1).scaleb(-scale)

        def sent(value: float, modes: Modes) -> Any:
            return kind.sent(Decimal(repr(value)).quantize(unit), modes)

        return replace(kind, sql=f"NUMERIC({precision}, {scale})", sent=sent)

    path = tmp_path / "dialect1.fdb"
    client = engine.client()
    attachment = client.attach(path, create=True, dialect=1)
    columns = (Column("A", numeric(15, 2)), Column("B", numeric(18, 4)))
    table = Table("OLD", columns)
    attachment.script(
        "CREATE TABLE OLD (A NUMERIC(15, 2), B NUMERIC(18, 4))",
        *(f"ALTER DATABASE {what} PUBLICATION" for what in ("INCLUDE ALL TO", "ENABLE")),
    )
    for values in ("-1234567890123.25, 0.5", "0.1, -0.0001", "-0.016, NULL", "70, 0"):
        attachment.execute(f"INSERT INTO OLD VALUES ({values})")
    found = attachment.execute("SELECT A, B FROM OLD")
    attachment.commit()
    client.end()
    engine.clients.remove(client)
    changes = [Changed(table, "c", None, tuple(row.values())) for row in found]
    for mode in ("precise", "double", "string"):
        modes = Modes(mode)
        messages = render(renderer(tmp_path, modes.lines()), work.journals())
        check(connect, str(path), modes, changes, messages)


def test_messages_without_schemas_are_read_by_connect(
    work: Work, orders: Table, connect: ConnectReader, tmp_path: Path
) -> None:
    """JsonConverter without schemas reads the same payload, as maps."""
    journals = work.journals()
    with_schemas = render(renderer(tmp_path), journals)
    lines = ("key.converter.schemas.enable: false", "value.converter.schemas.enable: false")
    without = render(renderer(tmp_path, lines), journals)
    assert len(without) == len(with_schemas) == 7
    for plain, full in zip(without, with_schemas, strict=True):
        headers = plain.structs
        read = connect.read(*plain[:3], headers, key_schemas=False, value_schemas=False)
        assert read["key"]["schema"] is None
        assert read["key"]["value"][0] == "Map"
        assert json.loads(read["written_key"]) == json.loads(full.key or b"")["payload"]
        for name, header in headers.items():
            assert header == full.headers[name]  # they have an option of their own
        if full.value is None:
            assert plain.value is None
            continue
        mine, payload = json.loads(read["written_value"]), json.loads(full.value)["payload"]
        assert read["value"]["value"][0] == "Map"
        for name in ("ts_ms", "ts_us", "ts_ns"):  # when they were rendered
            assert mine.pop(name)
            assert payload.pop(name)
        assert mine == payload


def test_tombstones_and_context_headers_can_be_switched_off(
    work: Work, orders: Table, connect: ConnectReader, tmp_path: Path
) -> None:
    lines = ("tombstones.on.delete: false", "extended.headers.enabled: false")
    messages = render(renderer(tmp_path, lines), work.journals())
    reads = [connect.read(*message) for message in messages]
    operations = [read["value"]["value"][1]["op"][1] for read in reads]
    assert operations == ["c", "u", "d", "c", "d"]
    assert [list(read["headers"]) for read in reads] == [
        *([], [], ["__debezium.newkey"], ["__debezium.oldkey"], [])
    ]
    [new_key, old_key] = [read["headers"] for read in reads if read["headers"]]
    assert new_key["__debezium.newkey"]["value"] == ["Struct", {"ID": ["Integer", "2"]}]
    assert old_key["__debezium.oldkey"]["value"] == ["Struct", {"ID": ["Integer", "1"]}]


def _replace(old: str, new: str) -> Callable[[list[Sent]], None]:
    """A fault: the first message with a value has NEW instead of OLD in it."""

    def plant(messages: list[Sent]) -> None:
        value = messages[0].value
        assert value is not None
        assert old.encode() in value
        messages[0] = messages[0]._replace(value=value.replace(old.encode(), new.encode()))

    return plant


def _without_a_tombstone(messages: list[Sent]) -> None:
    messages.remove(next(message for message in messages if message.value is None))


def _with_one_more(messages: list[Sent]) -> None:
    messages.append(messages[0])


def _with_a_foreign_key(messages: list[Sent]) -> None:
    messages[0] = messages[0]._replace(key=messages[-1].key)


FAULTS: dict[str, Callable[[list[Sent]], None]] = {
    "a scale that is one too large": _replace('"scale":"2"', '"scale":"3"'),
    "a value that is one too large": _replace('"PRICE":"BOI="', '"PRICE":"BOM="'),
    "a time that is 100 µs late": _replace("1772442847123400", "1772442847123500"),
    "another letter": _replace("Łódź", "Lódź"),
    "another semantic type": _replace("time.MicroTimestamp", "time.NanoTimestamp"),
    "another literal type": _replace(
        '"type":"int32","optional":false', '"type":"int64","optional":false'
    ),
    "a column that may be null": _replace(
        '"optional":false,"field":"ID"', '"optional":true,"field":"ID"'
    ),
    "null in a column that may not be": _replace('"ID":1', '"ID":null'),
    "a column under another name": _replace('"NAME":', '"NAMES":'),
    "another operation": _replace('"op":"c"', '"op":"r"'),
    "a schema of another name": _replace("ORDERS.Value", "ORDERS.Values"),
    "no tombstone": _without_a_tombstone,
    "a message too many": _with_one_more,
    "another row's key": _with_a_foreign_key,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_in_messages_is_noticed(
    work: Work, orders: Table, connect: ConnectReader, tmp_path: Path, fault: str
) -> None:
    messages = render(renderer(tmp_path), work.journals())
    check(connect, work.database, Modes(), work.committed, messages)
    FAULTS[fault](messages)
    with pytest.raises((AssertionError, Unreadable)):
        check(connect, work.database, Modes(), work.committed, messages)


def test_planted_fault_in_transactions_and_structures_is_noticed(
    work: Work, orders: Table, tmp_path: Path
) -> None:
    lines = ("provide.transaction.metadata: true",)
    made = renderer(tmp_path, lines, schema_changes=True)
    messages = render(made, work.journals())
    events = check_structures(messages)
    assert len(check_transactions(events)) == 7
    # The table is told of once; the first transaction of rows is BEGIN, event, END.
    structure, begin, event, end = range(4)
    assert messages[structure].topic == PREFIX
    for missing in (begin, event, end):
        with pytest.raises(AssertionError):
            check_transactions([it for it in events if it is not messages[missing]])
    told = messages[structure]
    assert told.value
    other = told._replace(value=told.value.replace(b'"name":"PRICE"', b'"name":"PRIZE"'))
    with pytest.raises(AssertionError):
        check_structures([other, *messages[1:]])
