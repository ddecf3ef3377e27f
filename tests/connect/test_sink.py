"""Debezium's JDBC sink, as it is, makes a table of a topic: it holds what Firebird's holds."""

from __future__ import annotations

import ctypes
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kinds import BY_SQL, KINDS, Modes
from pipeline import render, renderer
from reader import ConnectReader
from work import Column, Table, Work

pytestmark = pytest.mark.engine

# What is left out is beyond the sink or its database: Db2's numbers have 31 digits at most, and a
# time of day it writes as a timestamp, which H2 doesn't take. Nor does H2 take bytes in a MERGE.
_MODES = Modes(binary="hex")
_BEYOND = ("INT128", "NUMERIC(38", "DECFLOAT", "TIME", "TIME WITH TIME ZONE")
_SINKABLE = [
    kind
    for kind in KINDS
    if not kind.dimensions and not kind.sql.startswith(_BEYOND[:3]) and kind.sql not in _BEYOND
]


def _as_text(value: Any) -> str | None:
    """A value as the sink's database shows it."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        text = value.isoformat(" ")
        return text.rstrip("0") if "." in text else text
    return None if value is None else str(value)


def _same(found: str | None, due: Any) -> bool:
    if isinstance(due, float) and found is not None:
        # The digits that are shown of a FLOAT are those of the nearest 32-bit number.
        single = float(ctypes.c_float(float(found)).value)
        return due in (float(found), single)
    return found == _as_text(due)


def test_a_table_is_the_same_behind_debeziums_jdbc_sink(
    work: Work, connect: ConnectReader, tmp_path: Path
) -> None:
    columns = tuple(Column(f"C{place}", kind) for place, kind in enumerate(_SINKABLE))
    table = Table("SINK", (Column("ID", BY_SQL["INTEGER"], nullable=False), *columns), (0,))
    work.create(table)
    for number in range(6):
        # The sink counts days before 1582 by another calendar than Firebird.
        values = [
            None if str(value).startswith(("0001-", "1858-")) and kind.read == "{}" else value
            for kind in _SINKABLE
            for value in [kind.extremes[number % len(kind.extremes)]]
        ]
        assert work.insert(table, [number, *values])
    assert work.insert(table, [6, *[None] * len(_SINKABLE)])
    work.commit()
    first, second, third, *_ = work.rows(table)
    work.delete(table, first)
    assert work.update(table, second, {0: 77})
    assert work.update(table, third, dict.fromkeys(range(1, 8)))
    work.commit()
    rows = connect.sink(
        [message[:3] for message in render(renderer(tmp_path, _MODES.lines()), work.journals())],
        "SINK",
        connector_class="io.debezium.connector.jdbc.JdbcSinkConnector",
        insert_mode="upsert",
        delete_enabled="true",
        primary_key_mode="record_key",
        schema_evolution="basic",
        collection_name_format="${source.table}",
    )
    images = {change.after[0]: change.after for change in work.committed if change.after}
    assert sorted(int(row["ID"] or "") for row in rows) == [2, 3, 4, 5, 6, 77]
    for row in rows:
        image = images[int(row.pop("ID") or "")]
        for column, value in zip(columns, image[1:], strict=True):
            due = None if value is None else column.kind.sent(value, _MODES)
            assert _same(row[column.name], due), (column.kind.sql, row[column.name], value)
