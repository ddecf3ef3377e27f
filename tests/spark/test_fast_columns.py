"""Rows become columns by Arrow's own functions; where they can't, the summary says so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from histories import DATABASE, History, column

from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    RowDecoder,
    Storage,
    Table,
    Undecodable,
    row_decoder,
)
from firebird_cdc.journal.replay.local.session import LocalSession
from firebird_cdc.journal.replay.state import image_columns
from firebird_cdc.journal.replay.state.evolution import Shape, plan_tables
from firebird_cdc.journal.replay.state.image_columns import ImageColumns
from firebird_cdc.journal.replay.state.rebuild import describe, rebuild_state
from firebird_cdc.journal.replay.state.row_maker import NOT_UTF8, RowMaker
from firebird_cdc.journal.types.numbers import UNIX_DAY, UNIX_UNITS

ID = column("ID", Storage.INTEGER, key=1)
COLUMNS = (
    ID,
    column("NAME", Storage.TEXT),
    column("CODE", Storage.PADDED_TEXT),
    column("SMALL", Storage.SMALLINT),
    column("BIG", Storage.BIGINT),
    column("NUMBER", Storage.FLOAT),
    column("RATE", Storage.DOUBLE),
    column("IS_ON", Storage.BOOLEAN),
    column("DAY", Storage.DATE),
    column("AT", Storage.TIMESTAMP),
    column("RAW", Storage.OCTETS),
)
ROW = (3, "näme", "c", -4, 5, 0.5, 0.25, True, UNIX_DAY, UNIX_UNITS, b"\x00\xff")
ROWS = [
    ROW,
    (4, "", "", 0, 0, 0.0, 0.0, False, UNIX_DAY, UNIX_UNITS, b""),
    (5, *[None] * (len(COLUMNS) - 1)),
    (6, "x" * 40, "y", 1, 2, 3.0, 4.0, None, None, UNIX_UNITS + 1, b"z"),
]


def _rebuild(here: LocalSession, history: History, output: Path) -> tuple[Any, dict[str, Any]]:
    """Return the report of a state in Parquet, and its summary's first table."""
    report = rebuild_state(here, [str(history.folder)], str(output))
    return report, json.loads((output / "summary.json").read_text())["tables"][0]


def _images(
    folder: Path, columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]
) -> tuple[Table, pa.Array]:
    """Return the images of ROWS in a journal, and the table that it defines."""
    history = History(folder)
    history.define("T", columns)
    path = history.commit(*[("c", "T", None, row) for row in rows])

    def cut(_: Table) -> RowDecoder:
        return lambda payload, at, end, _: payload[at:end]

    with JournalReader(path) as reader:
        changes: list[Any] = list(reader.changes(decoder=cut))
    return changes[0].table, pa.array([change.after for change in changes], pa.binary())


def test_columnar_decoding_equals_row_by_row_decoding(tmp_path: Path) -> None:
    table, images = _images(tmp_path, COLUMNS, ROWS)
    decode = row_decoder(table)
    plain = [decode(image, 0, len(image), lambda _: None) for image in images.to_pylist()]
    found = [each.to_pylist() for each in ImageColumns(table).decode(images)]
    # A CHAR of which the journal leaves out the blanks at the end gets them back there alone.
    padded = [None if text is None else text.ljust(40) for text in found[2]]
    assert list(zip(*found[:2], padded, *found[3:], strict=True)) == plain


def test_state_takes_the_fast_path_for_all_that_has_a_form_in_arrow(
    here: LocalSession, tmp_path: Path
) -> None:
    history = History(tmp_path / "journals")
    history.define("T", COLUMNS)
    history.commit(*[("c", "T", None, row) for row in ROWS])
    report, table = _rebuild(here, history, tmp_path / "state")
    assert report.whole
    assert (table["rows"], table["row_by_row"]) == (4, {})
    assert not any("one by one" in line for line in describe(report, "x"))
    assert list(tmp_path.rglob("*.crc")) == []


def test_text_that_is_not_utf8_is_decoded_row_by_row_and_reported(
    here: LocalSession, tmp_path: Path
) -> None:
    history = History(tmp_path / "journals")
    history.define("T", (ID, column("NAME", Storage.TEXT)))
    bad = Undecodable(b"\xff", 4)
    history.commit(("c", "T", None, (1, "one")), ("c", "T", None, (2, bad)))
    report, table = _rebuild(here, history, tmp_path / "state")
    assert table["row_by_row"] == {NOT_UTF8: 2}
    assert (
        f"note: {DATABASE}  T: 2 rows were decoded one by one, which is slower: {NOT_UTF8}"
    ) in list(describe(report, "x"))


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def test_call_refused_by_arrow_is_decoded_row_by_row_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    columns = (ID, column("NAME", Storage.TEXT))
    shape, images = _images(tmp_path, columns, [(1, "one"), (2, "two")])
    place = (0, 1, 0)
    (plan,) = plan_tables([Shape(DATABASE, shape, place, place)], [])
    maker = RowMaker(plan, shape, 0, "UTF-8")
    slowed: Counter[str] = Counter()
    fast = [list(map(_plain, each)) for each in maker.value_lists(images, slowed)]
    assert not slowed

    def refuse(*_: object) -> None:
        raise pa.ArrowInvalid("Negative buffer resize: -8")

    monkeypatch.setattr(image_columns.pc, "binary_slice", refuse)
    assert [list(map(_plain, each)) for each in maker.value_lists(images, slowed)] == fast
    assert slowed == {f"pyarrow {pa.__version__} failed: Negative buffer resize: -8": 2}


def test_image_of_another_table_is_an_error_and_no_reason_to_be_slow() -> None:
    with pytest.raises(ValueError, match="shorter than its fixed part"):
        ImageColumns(Table(1, "T", 1, tuple(COLUMNS))).decode(pa.array([b"\0\0"], pa.binary()))
