"""The state at ten points equals what the real database held then, however the point is named."""

from __future__ import annotations

import pickle
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.parquet import read_table

from firebird_cdc.demo.processes import Stack
from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.replay.local.session import LocalSession
from firebird_cdc.journal.replay.source.planning import JournalOptions
from firebird_cdc.journal.replay.source.points import Point
from firebird_cdc.journal.replay.state.evolution import Shape, Statement, TablePlan, plan_tables
from firebird_cdc.journal.replay.state.folding import Tally, rows_as
from firebird_cdc.journal.replay.state.images import Journals, Plan, read_packs
from firebird_cdc.journal.replay.state.rebuild import _files, _limits, rebuild_state
from firebird_cdc.journal.replay.state.survey import survey_rows
from firebird_cdc.journal.types.numbers import iso_time

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))
from capture import Attachment, Capture

pytestmark = pytest.mark.engine

_SCHEMA = (
    "CREATE TABLE ITEM (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(20), PRICE NUMERIC(9, 2),"
    " NOTE BLOB SUB_TYPE TEXT, DATA BLOB, GIVEN TIMESTAMP)",
    "CREATE TABLE LOG_ (N INTEGER, TXT CHAR(5), AT_ TIME)",
    "CREATE TABLE PLACE (A INTEGER NOT NULL, B VARCHAR(5) NOT NULL, V DECFLOAT(34), D DATE,"
    " CONSTRAINT PLACE_KEY PRIMARY KEY (A, B))",
    "CREATE DOMAIN WIDE AS INTEGER DEFAULT 42 NOT NULL",
)

# What happens to the tables before each moment.
_DDL: tuple[tuple[str, ...], ...] = (
    (),
    (
        "ALTER TABLE ITEM ADD A1 INTEGER DEFAULT 5, ADD A2 INTEGER DEFAULT 7 NOT NULL,"
        " ADD A3 VARCHAR(9) DEFAULT 'x''y' NOT NULL, ADD A4 NUMERIC(9,2) DEFAULT 1.255 NOT NULL",
        "ALTER TABLE LOG_ ADD W WIDE",
    ),
    ("ALTER TABLE ITEM ALTER A2 SET DEFAULT 8", "ALTER TABLE ITEM ALTER COLUMN NAME TO TITLE"),
    (
        "ALTER TABLE ITEM ALTER PRICE TYPE NUMERIC(18, 4), ALTER A2 TYPE BIGINT",
        "ALTER TABLE LOG_ ALTER TXT TYPE VARCHAR(9)",
        "ALTER DOMAIN WIDE TYPE BIGINT",
    ),
    ("ALTER TABLE ITEM DROP A1", "ALTER TABLE ITEM ADD A1 VARCHAR(5)"),
    (
        "ALTER TABLE PLACE DROP CONSTRAINT PLACE_KEY",
        "ALTER TABLE PLACE ALTER B TO C, ALTER A TYPE BIGINT",
        "ALTER TABLE PLACE ADD CONSTRAINT PLACE_KEY PRIMARY KEY (A, C)",
        "ALTER TABLE PLACE ALTER V TYPE VARCHAR(50)",
    ),
    (
        "ALTER TABLE ITEM ALTER A2 TYPE VARCHAR(20), ALTER A3 POSITION 1",
        "ALTER TABLE ITEM ALTER PRICE TYPE DECFLOAT",
        "ALTER TABLE LOG_ ALTER N TYPE CHAR(12)",
        "ALTER TABLE ITEM ALTER GIVEN TYPE DATE",
    ),
    (
        "RECREATE TABLE LOG_ (N INTEGER NOT NULL PRIMARY KEY, TXT VARCHAR(9), AT_ TIME)",
        "ALTER TABLE PLACE DROP CONSTRAINT PLACE_KEY",
    ),
    ("ALTER TABLE LOG_ DROP TXT, ADD TXT BOOLEAN", "ALTER TABLE PLACE ADD PRIMARY KEY (C, A)"),
    ("DROP TABLE PLACE", "ALTER TABLE ITEM ALTER TITLE TO NAME, ALTER A3 TO TITLE"),
)

Dump = dict[str, Counter[tuple[Any, ...]]]


@dataclass
class _Moment:
    """Contents of the tables, and the three names of the point."""

    held: Dump
    columns: dict[str, list[str]]
    sequence: int
    transaction: int
    commit_us: int

    @property
    def names(self) -> tuple[Point, ...]:
        return (
            Point("sequence", self.sequence),
            Point("time", self.commit_us),
            Point("transaction", self.transaction),
        )


class _Work:
    """Random changes of the tables as they are by then."""

    def __init__(self, attachment: Attachment, seed: int) -> None:
        self.attachment = attachment
        self.pick = random.Random(seed)
        self.key = 0

    def transactions(self, count: int) -> None:
        tables = self._tables()
        for _ in range(count):
            for _ in range(self.pick.randint(1, 5)):
                self._change(self.pick.choice(list(tables.items())))
            if self.pick.random() < 0.2:
                self.attachment.rollback()
            else:
                self.attachment.commit()

    def _tables(self) -> dict[str, list[str]]:
        found = self.attachment.execute(
            "SELECT TRIM(RDB$RELATION_NAME) AS T, TRIM(RDB$FIELD_NAME) AS C FROM"
            " RDB$RELATION_FIELDS WHERE RDB$SYSTEM_FLAG = 0 ORDER BY RDB$FIELD_POSITION"
        )
        self.attachment.commit()
        tables: dict[str, list[str]] = {}
        for row in found:
            tables.setdefault(row["T"], []).append(row["C"])
        return tables

    def _change(self, table: tuple[str, list[str]]) -> None:
        name, columns = table
        chance = self.pick.random()
        if chance < 0.55:
            marks = ", ".join("?" * len(columns))
            values = [self._value(name, column) for column in columns]
            self.attachment.execute(f"INSERT INTO {name} VALUES ({marks})", *values)
            return
        some = f"MOD(ABS(HASH({columns[0]})), 7) = {self.pick.randrange(7)}"
        if chance < 0.7:
            self.attachment.execute(f"DELETE FROM {name} WHERE {some} ROWS 2")
        elif chance < 0.8 and columns[0] in ("ID", "A"):
            self.key += 1
            self.attachment.execute(
                f"UPDATE {name} SET {columns[0]} = {10_000 + self.key} WHERE {some} ROWS 1"
            )
        else:
            column = self.pick.choice(columns[1:])
            value = self._value(name, column)
            self.attachment.execute(f"UPDATE {name} SET {column} = ? WHERE {some} ROWS 3", value)

    def _value(self, table: str, column: str) -> Any:
        pick = self.pick
        self.key += 1
        if column in ("ID", "A", "C", "B") or (table == "LOG_" and column == "N"):
            few = table == "LOG_" and self.few
            return (
                str(self.key) if column in ("B", "C") else pick.randint(1, 3) if few else self.key
            )
        if column == "TXT":
            return pick.choice(self.texts)
        return {
            "AT_": lambda: time(10, 11, 12, 500_000),
            "NAME": lambda: pick.choice(["ä", '"q"', None, "x "]),
            "TITLE": lambda: pick.choice(["b", "日本"]),
            "PRICE": lambda: Decimal(pick.randint(-(10**5), 10**5)) / 100,
            "NOTE": lambda: pick.choice([None, "заметка " * pick.randint(0, 9)]),
            "DATA": lambda: pick.choice([None, bytes(range(pick.randint(0, 99)))]),
            "GIVEN": lambda: "2024-02-29",
            "V": lambda: Decimal("1.20"),
            "D": lambda: "2020-01-02",
            "A1": lambda: pick.choice([None, "3"]),
        }.get(column, lambda: "4")()

    few = True
    texts: tuple[Any, ...] = ("a", None, "bc")

    def dump(self) -> tuple[Dump, dict[str, list[str]]]:
        held: Dump = {}
        tables = self._tables()
        for name in tables:
            rows = self.attachment.execute(f"SELECT * FROM {name}")
            held[name] = Counter(tuple(map(_plain, row.values())) for row in rows)
        self.attachment.commit()
        return held, tables


def _plain(value: Any) -> Any:
    """Write a value of the driver as `typed` does; texts without the blanks of CHAR."""
    if isinstance(value, time):
        units = (value.hour * 3600 + value.minute * 60 + value.second) * 10_000
        return iso_time(units + value.microsecond // 100)
    return value


@pytest.fixture
def capture(tmp_path: Path, stack: Stack) -> Iterator[Capture]:
    """The plugin in an engine whose processes share a database."""
    made = Capture(tmp_path, stack, {"ServerMode": "Classic"})
    made.install()
    yield made
    for client in made.clients:
        if client.process.poll() is None:
            client.kill()
    stack.stop()


def _history(capture: Capture) -> list[_Moment]:
    capture.create(*_SCHEMA)
    work = _Work(capture.attach(), seed=7)
    moments = []
    for number, statements in enumerate(_DDL):
        work.transactions(3)
        work.attachment.script(*statements)
        work.few = number < 7
        work.texts = (True, None) if number >= 8 else ("a", None, "bc")
        work.transactions(4)
        held, columns = work.dump()
        last = capture.journals()[-1]
        stamp, header = last.stamp, last.header
        moments.append(_Moment(held, columns, stamp.sequence, header.transaction, stamp.commit_us))
    work.transactions(3)  # behind all of the moments
    capture.journals()
    return moments


def _fold_here(
    folder: Path, limits: dict[str, tuple[int, int]]
) -> dict[str, tuple[TablePlan, Counter[tuple[Any, ...]]]]:
    """Do what Spark's tasks do, one after the other."""
    journals = Journals.list(JournalOptions.parse({"path": str(folder), "partitionJournals": "9"}))
    shapes: dict[tuple[str, bytes], Shape] = {}
    statements = []
    for task in journals.whole:
        for kind, database, *place, content in (
            row[:6] for row in survey_rows(task, journals.options, limits, outlines=True)
        ):
            at: Any = tuple(place)
            if kind == "shape":
                old = shapes.get(
                    (database, content), Shape(database, pickle.loads(content), at, at)
                )
                shapes[database, content] = old._replace(
                    first=min(old.first, at), last=max(old.last, at)
                )
            elif kind == "ddl":
                statements.append(Statement(database, at, pickle.loads(content)))
    of = plan_tables(list(shapes.values()), statements)
    plan = Plan.of(of, [shape.table for shape in shapes.values()], limits, "UTF-8", buckets=3)
    packs = pa.Table.from_batches(
        [batch for task in journals.split for batch in read_packs(task, journals.options, plan)]
    )
    found = {}
    for index, table in enumerate(plan.tables):
        if not table.columns:
            continue
        tally = Tally()
        rows: Counter[tuple[Any, ...]] = Counter()
        for bucket in range(plan.buckets):
            here = packs.filter(pc.equal(packs["bucket"], bucket)).to_batches()
            for batch in rows_as(plan, tally.add, index)(iter(here)):
                rows.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        assert not tally.missing
        assert not tally.unmatched
        assert tally.rows[index] == rows.total()
        found[table.name] = table, rows
    return found


def _as_typed(columns: Sequence[Column], rows: Counter[tuple[Any, ...]]) -> Counter[Any]:
    """Write rows of the driver as `typed` does: CHAR without blanks, DECFLOAT as text."""

    def typed(column: Column, value: Any) -> Any:
        if column.storage is Storage.PADDED_TEXT and value is not None:
            return value.rstrip(" ")
        if column.storage in (Storage.DECFLOAT16, Storage.DECFLOAT34) and value is not None:
            return str(value)
        return value

    return Counter(
        tuple(typed(column, value) for column, value in zip(columns, row, strict=True))
        for row in rows.elements()
    )


def test_state_at_ten_points_equals_the_database_at_those_points(
    here: LocalSession, capture: Capture, tmp_path: Path
) -> None:
    moments = _history(capture)
    database = str(capture.database)
    folder = capture.journal_directory
    for number, moment in enumerate(moments):
        found = _fold_here(folder, {database: (0, moment.sequence)})
        assert found.keys() == moment.held.keys(), f"moment {number}"
        for name, (table, rows) in found.items():
            assert [column.name for column in table.columns] == moment.columns[name]
            assert rows == _as_typed(table.columns, moment.held[name]), f"{name} at {number}"

    # However a point is named, it is the same journal that comes last.
    journals = Journals.list(JournalOptions.parse({"path": str(folder)}))
    files = _files(journals.survey(here, None, outlines=False)).persist()
    for moment in moments:
        for point in moment.names[1:]:
            limits = _limits(files, point)
            assert limits.places == {database: (0, moment.sequence)}, point
            assert limits.cuts == {database: (0, moment.sequence + 1)}, point
            assert not limits.notes
            assert not limits.holes
    files.unpersist()

    for moment, point in zip(moments[2::3], moments[2].names, strict=True):
        named = next(name for name in moment.names if name.kind == point.kind)
        state = tmp_path / f"state-{named.kind}"
        report = rebuild_state(here, [str(folder)], str(state), point=named)
        assert report.whole, report.holes
        assert report.places == {database: (0, moment.sequence)}
        there = {table.table: table for table in report.tables if not table.dropped}
        assert there.keys() == moment.held.keys()
        for name, table in there.items():
            assert table.folder is not None
            rows = read_table(state / table.folder, partitioning=None)
            assert rows.column_names == moment.columns[name]
            assert rows.num_rows == table.rows == moment.held[name].total()
