"""Random tables and rows, through engine, journal and event, against what the driver reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from avro_reader import AvroReader
from capture import Attachment, Capture
from events import check, check_structures, check_transactions
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import KINDS, Modes
from pipeline import render, renderer
from reader import ConnectReader
from test_avro_types import Readback
from work import Column, Table, Work

from firebird_cdc.demo.registry import SchemaRegistry

pytestmark = pytest.mark.engine

_KEYS = [kind for kind in KINDS if kind.in_keys]
_NAMES = st.one_of(
    st.sampled_from(("ID", "id", "Имя", 'a"b', "x.y", "a b", "$1", "payload", "schema", "Ж" * 63)),
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20),
)
_MODES = st.builds(
    Modes,
    st.sampled_from(("precise", "double", "string")),
    st.sampled_from(("adaptive", "adaptive_time_microseconds", "connect", "isostring")),
    st.sampled_from(("bytes", "base64", "base64-url-safe", "hex")),
    st.sampled_from(("UTF-8", "cp1251")),
)


def _table(draw: st.DrawFn, number: int) -> Table:
    """Draw a table. NUMBER: for names which Kafka's topics can tell apart."""
    names = draw(st.lists(_NAMES, min_size=1, max_size=12, unique=True))
    key_size = draw(st.integers(0, min(3, len(names))))
    key = draw(st.permutations(range(len(names))))[:key_size]
    columns = []
    for place, name in enumerate(names):
        kind = draw(st.sampled_from(_KEYS if place in key else KINDS))
        columns.append(Column(name, kind, place not in key and draw(st.booleans())))
    constraint = draw(st.sampled_from(("PRIMARY KEY", "UNIQUE")))
    return Table(f"{draw(_NAMES)[:50]} {number}", tuple(columns), tuple(key), constraint)


def _value(draw: st.DrawFn, column: Column) -> Any:
    if column.nullable and draw(st.integers(0, 4)) == 0:
        return None
    return draw(st.one_of(column.kind.values, st.sampled_from(column.kind.extremes)))


def _change(draw: st.DrawFn, work: Work, table: Table) -> None:
    rows = work.rows(table)
    what = draw(st.sampled_from(("insert", "insert", "update", "update", "delete")))
    if not rows or what == "insert":
        work.insert(table, [_value(draw, column) for column in table.columns])
    elif what == "delete":
        work.delete(table, draw(st.sampled_from(rows)))
    else:
        all_places = st.sampled_from(range(len(table.columns)))
        places = draw(st.lists(all_places, min_size=1, max_size=3, unique=True))
        values = {place: _value(draw, table.columns[place]) for place in places}
        work.update(table, draw(st.sampled_from(rows)), values)


def _alter(draw: st.DrawFn, work: Work, table: Table) -> Table:
    """Add a column, drop one, or leave the table alone."""
    what = draw(st.sampled_from(("add", "drop", "nothing", "nothing")))
    free = [place for place in range(len(table.columns)) if place not in table.key]
    if what != "nothing":
        work.await_described()
    if what == "add":
        name = draw(_NAMES.filter(lambda name: name not in {it.name for it in table.columns}))
        return work.add_column(table, Column(name, draw(st.sampled_from(KINDS))))
    if what == "drop" and free and len(table.columns) > 1:
        return work.drop_column(table, draw(st.sampled_from(free)))
    return table


def _work(draw: st.DrawFn, work: Work, table: Table) -> Table:
    """Make the table, change rows in some transactions, and columns between them."""
    work.create(table)
    # What DDL has made of a table is read with the next transaction, or later: so rows come last.
    last = draw(st.integers(0, 3))
    for turn in range(last + 1):
        table = _alter(draw, work, table) if turn else table
        for _ in range(draw(st.integers(1, 8))):
            _change(draw, work, table)
        if turn == last or draw(st.integers(0, 3)):
            work.commit()
        else:
            work.rollback()
    return table


def test_random_rows_arrive_in_json_as_the_driver_reads_them(
    engine: Capture, attachment: Attachment, connect: ConnectReader, tmp_path: Path
) -> None:
    numbers = count(1)
    operations: Counter[str] = Counter()
    kinds: set[str] = set()
    key_kinds: set[str] = set()

    @settings(max_examples=90)
    @given(st.data())
    def property_(data: st.DataObject) -> None:
        draw: Any = data.draw
        work = Work(engine, attachment)
        table = _work(draw, work, _table(draw, next(numbers)))
        modes = draw(_MODES)
        lines = (*modes.lines(), "provide.transaction.metadata: true")
        made = renderer(tmp_path, lines, schema_changes=True)
        messages = check_transactions(check_structures(render(made, work.journals())))
        check(connect, work.database, modes, work.committed, messages)
        operations.update(change.op for change in work.committed)
        if work.committed:
            kinds.update(column.kind.sql for column in table.columns)
            key_kinds.update(table.columns[place].kind.sql for place in table.key)

    property_()
    # It has seen what it is about.
    assert min(operations[op] for op in "cud") > 40, operations
    assert len(kinds) > 0.6 * len(KINDS)
    assert len(key_kinds) > len(_KEYS) / 4


@pytest.mark.registry
def test_random_rows_arrive_in_avro_as_the_driver_reads_them(
    engine: Capture,
    attachment: Attachment,
    connect: ConnectReader,
    avro_reader: AvroReader,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """Avro knows no such names as we draw, so they are plain here."""
    numbers = count(1)

    @settings(max_examples=20)
    @given(st.data())
    def property_(data: st.DataObject) -> None:
        draw: Any = data.draw
        work = Work(engine, attachment)
        drawn = _table(draw, next(numbers))
        columns = (replace(it, name=f"C{place}") for place, it in enumerate(drawn.columns))
        table = replace(drawn, name=f"AVRO_RANDOM_{next(numbers)}", columns=tuple(columns))
        work.create(table)
        for _ in range(draw(st.integers(1, 12))):
            _change(draw, work, table)
        work.commit()
        modes = draw(_MODES)
        messages = Readback(avro_reader, registry, work).of(tmp_path, modes, [table])
        check(connect, work.database, modes, work.committed, messages)

    property_()
