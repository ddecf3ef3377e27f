"""The state that Spark rebuilds equals the one that a plain fold of the same history gives."""

from __future__ import annotations

import json
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from histories import DATABASE, FIRST_COMMIT_US, Action, History, column, read_state
from pyarrow.parquet import read_table
from pyspark.sql import SparkSession
from soaked import few_of

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.folder.segments import database_digest
from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.replay.local.session import LocalSession
from firebird_cdc.journal.replay.source.planning import JournalOptions, plan_partitions
from firebird_cdc.journal.replay.source.points import Point
from firebird_cdc.journal.replay.state.rebuild import StateReport
from firebird_cdc.journal.replay.state.rebuild import rebuild_state as _rebuild_state
from firebird_cdc.journal.types.canonical import canonical_row

ID = column("ID", Storage.INTEGER, key=1)
CUSTOMER = (
    ID,
    column("NAME", Storage.TEXT),
    column("CODE", Storage.PADDED_TEXT),
    column("BALANCE", Storage.BIGINT, scale=-2, sub_type=1),
    column("SINCE", Storage.TIMESTAMP),
    column("RATE", Storage.DOUBLE),
)
PLACE = (
    column("ROW", Storage.SMALLINT, key=2),
    column("SHELF", Storage.TEXT, key=1),
    column("STOCK", Storage.INT128, scale=-4, sub_type=2),
)
EVENT = (column("KIND", Storage.TEXT), column("TIMES", Storage.INTEGER))


def rebuild_state(here: LocalSession, folders: list[str], output: str, **more: Any) -> StateReport:
    return _rebuild_state(here, folders, output, **{"output_format": "json", **more})


class Shop:
    """Makes a random history of three tables and keeps what each of them holds."""

    def __init__(self, history: History, seed: int) -> None:
        self.history = history
        self.random = random.Random(seed)
        self.columns: dict[str, tuple[Column, ...]] = {}
        self.rows: dict[str, list[tuple[tuple[Any, ...], tuple[Column, ...]]]] = {}
        for table, columns, kind in (
            ("CUSTOMER", CUSTOMER, 1),
            ("PLACE", PLACE, 2),
            ("EVENT", EVENT, 0),
        ):
            history.define(table, columns, kind)
            self.columns[table] = columns
            self.rows[table] = []
        self._next = 0

    def add_column(self, table: str, added: Column) -> None:
        """Change the shape of TABLE; its rows read as null there from now on."""
        self.columns[table] = (*self.columns[table], added)
        kind = self.history.shapes[table][1]
        self.history.define(table, self.columns[table], kind)

    def transaction(self) -> None:
        """Commit one to eight random changes."""
        actions: list[Action] = []
        for _ in range(self.random.randint(1, 8)):
            table = self.random.choice(list(self.rows))
            rows = self.rows[table]
            op = self.random.choice("ccuuud") if rows else "c"
            if op == "c":
                row = self._row(table)
                rows.append((row, self.columns[table]))
                actions.append(("c", table, None, row))
                continue
            at = self.random.randrange(len(rows))
            old = self._as_of_now(table, rows[at][0])
            if op == "d":
                del rows[at]
                actions.append(("d", table, old, None))
            else:
                new = self._changed(table, old)
                rows[at] = (new, self.columns[table])
                actions.append(("u", table, old, new))
        self.history.commit(*actions)

    def texts(self, table: str) -> Counter[str]:
        """Return the rows of TABLE, with the columns that it has now."""
        return Counter(
            canonical_row(self.columns[table], self._as_of_now(table, row))
            for row, _ in self.rows[table]
        )

    def _as_of_now(self, table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return row + (None,) * (len(self.columns[table]) - len(row))

    def _row(self, table: str) -> tuple[Any, ...]:
        self._next += 1
        return tuple(
            self._value(c, self._next if c.key_position else None) for c in self.columns[table]
        )

    def _changed(self, table: str, old: tuple[Any, ...]) -> tuple[Any, ...]:
        """Change one column; a key now and then, and always to a value never used before."""
        columns = self.columns[table]
        at = self.random.randrange(len(columns))
        self._next += 1
        value = self._value(columns[at], self._next if columns[at].key_position else None)
        return (*old[:at], value, *old[at + 1 :])

    def _value(self, of: Column, key: int | None) -> Any:
        pick = self.random
        if key is None and pick.random() < 0.15:
            return None
        if of.storage in (Storage.TEXT, Storage.PADDED_TEXT):
            text = f"k{key}" if key else pick.choice(["ä\n", '"q"', "null", "x", "日本"])
            return text.ljust(40) if of.storage == Storage.PADDED_TEXT else text
        if of.storage == Storage.DOUBLE:
            return pick.choice([0.1, -0.0, 1e300, float("nan"), float("inf")])
        if of.name == "TIMES":
            return pick.randint(1, 3)  # few values: many equal rows
        return key if key else pick.randint(-(10**4), 10**4)


def test_random_history_with_key_changes_deletes_and_new_columns(
    here: LocalSession, tmp_path: Path
) -> None:
    shop = Shop(History(tmp_path / "journals"), seed=20)
    for number in range(150):
        if number == 60:
            shop.add_column("CUSTOMER", column("NOTE", Storage.TEXT))
        if number == 90:
            shop.add_column("EVENT", column("PLACE", Storage.TEXT))
        shop.transaction()

    report = rebuild_state(here, [str(tmp_path / "journals")], str(tmp_path / "state"))

    state = read_state(tmp_path / "state")
    assert state["CUSTOMER"] == shop.texts("CUSTOMER")
    assert state["PLACE"] == shop.texts("PLACE")
    assert state["EVENT"] == shop.texts("EVENT")
    assert report.whole
    by_name = {table.table: table for table in report.tables}
    assert by_name["CUSTOMER"].rows == len(shop.rows["CUSTOMER"])
    assert (by_name["CUSTOMER"].by_key, by_name["EVENT"].by_key) == (True, False)
    assert by_name["EVENT"].unmatched == 0


def test_random_keyless_rows_are_counted_as_a_multiset(here: LocalSession, tmp_path: Path) -> None:
    shop = Shop(History(tmp_path / "journals"), seed=21)
    for _ in range(80):
        shop.transaction()
    rebuild_state(here, [str(tmp_path / "journals")], str(tmp_path / "state"), table="EVENT")
    assert read_state(tmp_path / "state") == {"EVENT": shop.texts("EVENT")}
    assert max(shop.texts("EVENT").values()) > 1


def test_large_journal_split_into_ranges_gives_the_same_state(
    here: LocalSession, tmp_path: Path
) -> None:
    history = History(tmp_path / "journals", block_bytes=512)
    history.define("CUSTOMER", CUSTOMER)
    history.define("PLACE", PLACE)
    rows = [(i, f"name {i}", "c".ljust(40), i, i, 0.5) for i in range(400)]
    actions: list[Action] = [("c", "CUSTOMER", None, row) for row in rows]
    actions += [("c", "PLACE", None, (i, "a", i)) for i in range(50)]
    actions += [("u", "CUSTOMER", row, (row[0], "new", *row[2:])) for row in rows[::2]]
    actions += [("d", "CUSTOMER", row, None) for row in rows[1::4]]
    history.commit(*actions)
    states = {}
    for name, limit in (("whole", 10**9), ("split", 3000)):
        options = {"path": str(history.folder), "partitionBytes": str(limit)}
        parts = plan_partitions(JournalOptions.parse(options), split=True)
        assert (len(parts) > 10) == (name == "split")
        rebuild_state(here, [str(history.folder)], str(tmp_path / name), partition_bytes=limit)
        states[name] = read_state(tmp_path / name)
    assert states["split"] == states["whole"]
    assert states["whole"]["CUSTOMER"].total() == 300


def test_rows_of_a_dropped_table_are_gone_and_those_of_its_successor_are_there(
    here: LocalSession, tmp_path: Path
) -> None:
    history = History(tmp_path / "journals")
    for table in ("OLD", "AGAIN"):
        history.define(table, (ID,))
    history.commit(("c", "OLD", None, (1,)), ("c", "AGAIN", None, (1,)))
    history.commit(("ddl", 'drop table "OLD"', None, None))
    history.commit(("ddl", "/* new */ recreate table again (id int primary key)", None, None))
    history.commit(("c", "AGAIN", None, (2,)))
    report = rebuild_state(here, [str(history.folder)], str(tmp_path / "state"))
    assert read_state(tmp_path / "state") == {"AGAIN": Counter(['{"ID":2}']), "OLD": Counter()}
    assert {t.table: t.dropped for t in report.tables} == {"AGAIN": False, "OLD": True}


def test_table_that_gets_a_key_later_keeps_each_row_once(
    here: LocalSession, tmp_path: Path
) -> None:
    history = History(tmp_path / "journals")
    history.define("EVENT", EVENT, 0)
    history.commit(("c", "EVENT", None, ("a", 1)), ("c", "EVENT", None, ("b", 2)))
    history.define("EVENT", (column("KIND", Storage.TEXT, key=1), EVENT[1]), 1)
    history.commit(("u", "EVENT", ("a", 1), ("a", 5)), ("d", "EVENT", ("b", 2), None))
    rebuild_state(here, [str(history.folder)], str(tmp_path / "state"))
    assert read_state(tmp_path / "state") == {"EVENT": Counter(['{"KIND":"a","TIMES":5}'])}


_UNTIL = {"2": ((None, 2), 22), "1:1": ((1, 1), 21), "0:1": ((0, 1), 11)}


@pytest.mark.parametrize(("until", "expected"), few_of(_UNTIL, ("2", "0:1")))
def test_until_stops_after_the_named_journal(
    here: LocalSession, tmp_path: Path, until: tuple[int | None, int], expected: int
) -> None:
    for epoch in (0, 1):
        history = History(tmp_path / "journals", epoch=epoch)
        history.define("T", (ID, column("N", Storage.INTEGER)))
        for number in (1, 2, 3):
            new = (1, 10 * (epoch + 1) + number)
            history.commit(("u", "T", (1, 0), new) if number > 1 else ("c", "T", None, new))
    report = rebuild_state(
        here,
        [str(tmp_path / "journals")],
        str(tmp_path / "state"),
        point=Point("sequence", until[1], until[0]),
    )
    assert read_state(tmp_path / "state") == {"T": Counter([f'{{"ID":1,"N":{expected}}}'])}
    assert report.whole


def test_databases_are_kept_apart_and_can_be_chosen(here: LocalSession, tmp_path: Path) -> None:
    other = "C:\\Daten <Größe>\\{two}=2 ~`|&.fdb"
    for number, database in enumerate((DATABASE, other)):
        history = History(tmp_path / "journals", database=database)
        history.define("T", (ID,))
        history.commit(("c", "T", None, (number,)))
    both = rebuild_state(here, [str(tmp_path / "journals")], str(tmp_path / "both"))
    assert [(t.database, t.rows) for t in both.tables] == [
        (DATABASE, 1),
        (other, 1),
    ]
    for table in both.tables:
        assert table.folder is not None
        assert list((tmp_path / "both" / table.folder).glob("part-*"))
    rebuild_state(here, [str(tmp_path / "journals")], str(tmp_path / "one"), database=other)
    assert read_state(tmp_path / "one") == {"T": Counter(['{"ID":1}'])}


@pytest.mark.spark
def test_parquet_holds_the_columns_with_their_types(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path / "journals")
    history.define("PLACE", PLACE, 2)
    history.commit(("c", "PLACE", None, (3, "a", 12345)), ("c", "PLACE", None, (4, "a", 10**38)))
    state = tmp_path / "state"
    report = rebuild_state(spark, [str(history.folder)], str(state), output_format="parquet")
    (table,) = report.tables
    assert table.folder is not None
    rows = spark.read.parquet(str(state / table.folder))
    assert rows.schema.simpleString() == "struct<ROW:smallint,SHELF:string,STOCK:decimal(38,4)>"
    assert sorted(map(tuple, rows.collect())) == [(3, "a", Decimal("1.2345")), (4, "a", None)]
    assert table.missing == {"STOCK": {"too many digits": 1}}
    assert not report.whole


def test_columns_differing_only_in_case_stay_separate(here: LocalSession, tmp_path: Path) -> None:
    history = History(tmp_path / "journals")
    history.define("T", (ID, column("id", Storage.TEXT)))
    history.commit(("c", "T", None, (3, "three")))
    state = tmp_path / "state"
    (table,) = rebuild_state(
        here, [str(history.folder)], str(state), output_format="parquet"
    ).tables
    (row,) = read_table(f"{state}/{table.folder}").to_pylist()
    assert row == {"ID": 3, "id": "three"}


@pytest.mark.parametrize("output_format", ["json", "parquet"])
def test_table_that_the_history_does_not_know_is_refused(
    here: LocalSession, tmp_path: Path, output_format: str
) -> None:
    history = History(tmp_path / "journals")
    for name in ("OTHER", "T"):
        history.define(name, (ID,))
        history.commit(("c", name, None, (3,)))
    state = tmp_path / "state"
    with pytest.raises(ReplayError, match=r"no change of a table t .*those of: T, OTHER\."):
        rebuild_state(
            here, [str(history.folder)], str(state), table="t", output_format=output_format
        )
    assert not state.exists()


def _tear(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1600] ^= 1
    path.write_bytes(content)


def _copy(path: Path) -> None:
    path.with_name("copy.log").write_bytes(path.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(_tear, "can't be built across a damaged journal"), (_copy, "the sequence number 2")],
    ids=["flipped-byte", "copied-journal"],
)
def test_refuses_a_folder_that_has_no_one_state(
    here: LocalSession, tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    history = History(tmp_path / "journals")
    history.define("T", (ID,))
    history.commit(("c", "T", None, (1,)))
    spoil(history.commit(("c", "T", None, (2,))))
    with pytest.raises(ReplayError, match=says) as caught:
        rebuild_state(here, [str(history.folder)], str(tmp_path / "state"))
    assert history.paths[1].name in str(caught.value)
    assert not (tmp_path / "state").exists()


def _wipe(path: Path, start: int = 0, length: int | None = None) -> None:
    """Overwrite a part of a journal, of which the header is at 0 and the stamp at 1024."""
    content = bytearray(path.read_bytes())
    end = len(content) if length is None else start + length
    content[start:end] = bytes(len(content[start:end]))
    path.write_bytes(content)


def _pack(history: History, first: int, last: int) -> Path:
    """Put the journals FIRST to LAST into a segment, uncompressed."""
    digest = database_digest(history.database)
    segment = history.folder / f"{digest}-{history.epoch}-{first}-{last}.zip"
    with zipfile.ZipFile(segment, "w") as content:
        for path in history.paths[first - 1 : last]:
            content.write(path, path.name)
            path.unlink()
    return segment


def _spoil_last_member(history: History) -> None:
    content = history.paths[-1].read_bytes()
    segment = _pack(history, 1, 5)
    at = segment.read_bytes().index(content)
    _wipe(segment, at, 512)


_BEHIND: dict[str, tuple[Point, Callable[[History], None]]] = {
    "its stamp says so": (Point("sequence", 3), lambda h: _wipe(h.paths[3], 0, 512)),
    "all numbers before it are there": (
        Point("sequence", 3),
        lambda h: _wipe(h.paths[4], 1024, 512),
    ),
    "up to a time": (Point("time", FIRST_COMMIT_US + 3), lambda h: _wipe(h.paths[4], 1024, 512)),
    "up to a transaction": (Point("transaction", 1003), lambda h: _wipe(h.paths[3], 1024, 512)),
    "its segment's name says so": (
        Point("sequence", 3),
        lambda h: _wipe(_pack(h, 4, 5)),
    ),
    "its segment has all before": (Point("sequence", 3), _spoil_last_member),
}


@pytest.mark.parametrize(
    ("point", "spoil"),
    few_of(_BEHIND, ("its stamp says so", "up to a time", "its segment has all before")),
)
def test_unreadable_journal_behind_the_point_does_not_prevent_the_state(
    here: LocalSession, tmp_path: Path, point: Point, spoil: Callable[[History], None]
) -> None:
    history = _five(tmp_path / "journals")
    spoil(history)
    report = rebuild_state(here, [str(history.folder)], str(tmp_path / "state"), point=point)
    assert read_state(tmp_path / "state") == {"T": Counter(f'{{"ID":{n}}}' for n in (1, 2, 3))}
    assert report.whole
    (note,) = report.notes
    assert note.startswith(f"behind {point}, and so not needed, is what can't be read: {tmp_path}")


def _five(folder: Path) -> History:
    history = History(folder)
    history.define("T", (ID,))
    for number in range(1, 6):
        history.commit(("c", "T", None, (number,)))
    return history


_ANYWHERE: dict[str, tuple[Point, Callable[[History], None]]] = {
    "at the point": (Point("sequence", 4), lambda h: _wipe(h.paths[3], 0, 512)),
    "of no database": (Point("sequence", 3), lambda h: _wipe(h.paths[3])),
    "where a number is missing": (
        Point("sequence", 3),
        lambda h: (h.paths[1].unlink(), _wipe(h.paths[3], 1024, 512))[1],
    ),
    "a time behind which none is known": (
        Point("time", FIRST_COMMIT_US + 9),
        lambda h: _wipe(h.paths[4], 1024, 512),
    ),
    "a time before the number that follows": (
        Point("time", FIRST_COMMIT_US + 3),
        lambda h: _wipe(h.paths[3], 1024, 512),
    ),
}


@pytest.mark.parametrize(
    ("point", "spoil"),
    few_of(
        _ANYWHERE,
        (
            "at the point",
            "where a number is missing",
            "a time before the number that follows",
        ),
    ),
)
def test_unreadable_journal_that_may_be_before_the_point_refuses_the_state(
    here: LocalSession, tmp_path: Path, point: Point, spoil: Callable[[History], None]
) -> None:
    history = _five(tmp_path / "journals")
    spoil(history)
    with pytest.raises(ReplayError, match="can't be built across a damaged journal"):
        rebuild_state(here, [str(history.folder)], str(tmp_path / "state"), point=point)
    assert not (tmp_path / "state").exists()


def test_missing_journal_and_gap_are_named_and_make_the_state_incomplete(
    here: LocalSession, tmp_path: Path
) -> None:
    history = History(tmp_path / "journals")
    history.define("T", (ID,))
    history.commit(("c", "T", None, (1,)))
    history.commit(("gap", "the disk was full", None, None), skip_number=True)
    report = rebuild_state(here, [str(history.folder)], str(tmp_path / "state"))
    assert not report.whole
    missing, gap = report.holes
    assert "sequence 2 to 2 of epoch 0 is missing" in missing
    assert "the disk was full" in gap
    assert json.loads((tmp_path / "state/summary.json").read_text())["whole"] is False


def test_refuses_to_write_into_a_folder_that_holds_something(
    here: LocalSession, tmp_path: Path
) -> None:
    history = History(tmp_path / "journals")
    history.define("T", (ID,))
    history.commit(("c", "T", None, (1,)))
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ReplayError, match="is not empty"):
        rebuild_state(here, [str(history.folder)], str(tmp_path))
    assert (tmp_path / "mine").read_text() == "precious"


def test_folder_without_journals_names_the_archive_option(
    here: LocalSession, tmp_path: Path
) -> None:
    (tmp_path / "x.log.live").write_bytes(b"a transaction that is still open")
    with pytest.raises(ReplayError, match=r"connector\.journal\.archive\.directory"):
        rebuild_state(here, [str(tmp_path)], str(tmp_path / "state"))
