"""ARRAY columns: their content, and what tells of its bounds, against what the driver reads."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from capture import Capture, RowChange, plain
from shared_folder import open_transaction

from firebird_cdc.journal.events.values import ValueModes, field_form
from firebird_cdc.journal.format import Blob
from firebird_cdc.journal.types.arrays import Array, decode_array

pytestmark = pytest.mark.engine

_D = Decimal
# Element type, dimensions, a character set, bounds, the value.
ARRAYS: dict[str, tuple[tuple[tuple[int, int], ...], Any]] = {
    "SMALLINT[2]": (((1, 2),), [-32768, 32767]),
    "INTEGER[-1:1]": (((-1, 1),), [-(2**31), 0, 2**31 - 1]),
    "BIGINT[2, 0:1]": (((1, 2), (0, 1)), [[1, 2], [-(2**63), 2**63 - 1]]),
    "NUMERIC(9, 2)[0:1, 2, 3]": (
        ((0, 1), (1, 2), (1, 3)),
        [[[_D(f"{a}{b}.{c}0") for c in range(3)] for b in range(2)] for a in range(1, 3)],
    ),
    "DOUBLE PRECISION[2]": (((1, 2),), [0.1, -1.7976931348623157e308]),
    "FLOAT[2]": (((1, 2),), [1.5, -0.0]),
    "BOOLEAN[3]": (((1, 3),), [True, False, True]),
    "DATE[2]": (((1, 2),), [date(1858, 11, 17), date(9999, 12, 31)]),
    "TIME[2]": (((1, 2),), [time(0, 0), time(23, 59, 59, 999_900)]),
    "TIMESTAMP[2]": (
        ((1, 2),),
        [datetime(1900, 6, 18, 11, 35, 0, 100), datetime(9999, 12, 31, 23, 59, 59, 999_900)],
    ),
    "VARCHAR(5)[2:3, 2] CHARACTER SET UTF8": (
        ((2, 3), (1, 2)),
        [["", "жюли"], ["🍵", "abcde"]],
    ),
    "CHAR(3)[2] CHARACTER SET WIN1251": (((1, 2),), ["abc", "x  "]),
    "INTEGER[130, 130]": (((1, 130), (1, 130)), [[a * b for b in range(130)] for a in range(130)]),
}


@pytest.fixture
def arrays(capture: Capture) -> Capture:
    columns = ", ".join(f"C{number} {sql}" for number, sql in enumerate(ARRAYS))
    capture.create(f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, {columns})")
    attachment = capture.attach()
    marks = ", ?" * len(ARRAYS)
    attachment.execute(f"INSERT INTO T VALUES (1{marks})", *(value for _, value in ARRAYS.values()))
    attachment.commit()
    return capture


def _images(path: Path) -> list[tuple[str, dict[str, Array | None], dict[str, Array | None]]]:
    def decoded(change: RowChange, row: Any) -> dict[str, Array | None]:
        pairs = zip(change.table.columns[1:], (row or [])[1:], strict=bool(row))
        return {c.name: value and decode_array(value.read(), c) for c, value in pairs}

    with open_transaction(path) as reader:
        return [
            (change.op, decoded(change, change.before), decoded(change, change.after))
            for change in reader.changes()
            if isinstance(change, RowChange)
        ]


def _natural(array: Array) -> Any:
    def each(values: Any) -> Any:
        if isinstance(values, list):
            return [each(value) for value in values]
        return plain(array.element, values)

    return each(array.values)


def test_arrays_come_with_their_elements_and_bounds(arrays: Capture) -> None:
    [(_, _, found)] = _images(arrays.journals()[0].path)
    expected = {f"C{n}": pair for n, pair in enumerate(ARRAYS.values())}
    shown = {name: (array.bounds, _natural(array)) for name, array in found.items() if array}
    assert shown == expected
    # The driver reads the same, where it can: it gives too little room for the elements of CHAR.
    readable = [f"C{n}" for n, sql in enumerate(ARRAYS) if not sql.startswith("CHAR")]
    attachment = arrays.clients[0].attach(arrays.database)
    [row] = attachment.execute(f"SELECT {', '.join(readable)} FROM T")
    assert row == {name: shown[name][1] for name in readable}


@pytest.mark.leaks
def test_arrays_are_sent_by_their_definition_also_if_null(arrays: Capture) -> None:
    attachment = arrays.clients[0].attach(arrays.database)
    attachment.execute("INSERT INTO T (ID) VALUES (2)")
    attachment.commit()
    modes = ValueModes(decimal="string", time="isostring")
    forms, rows = [], []
    for journal in arrays.journals():
        [change] = journal.rows
        assert change.after is not None
        forms.append([field_form(column, modes) for column in change.table.columns[1:]])
        rows.append(change.after[1:])
    full, empty = rows
    assert set(empty) == {None}
    kinds = [form.schema.to_json() for form in forms[0] if form]
    assert kinds == [form.schema.to_json() for form in forms[1] if form]
    sent = [form.function()(value) for form, value in zip(forms[0], full, strict=True) if form]
    assert sent == [_as_text(value) for _, value in ARRAYS.values()]


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date | time):
        text = value.isoformat()
        return text.rstrip("0") if "." in text else text
    return value


def test_copied_changed_and_null_arrays_are_captured_and_unchanged_ones_kept_once(
    arrays: Capture,
) -> None:
    attachment = arrays.clients[0].attach(arrays.database)
    columns = ", ".join(f"C{number}" for number in range(len(ARRAYS)))
    attachment.execute(f"INSERT INTO T SELECT 2, {columns} FROM T")
    attachment.execute("UPDATE T SET ID = 3 WHERE ID = 2")
    attachment.execute("UPDATE T SET C1 = ?, C0 = NULL WHERE ID = 1", [7, 8, 9])
    attachment.execute("DELETE FROM T WHERE ID = 1")
    attachment.commit()
    first, last = arrays.journals()
    [(_, _, row)] = _images(first.path)
    inserted, moved, changed, deleted = _images(last.path)
    new = row["C1"]
    assert new is not None
    after = row | {"C0": None, "C1": new._replace(values=[7, 8, 9])}
    assert inserted == ("c", {}, row)
    assert moved == ("u", row, row)
    assert changed == ("u", row, after)
    assert deleted == ("d", after, {})
    with open_transaction(last.path) as reader:
        changes = [change for change in reader.changes() if isinstance(change, RowChange)]
    # An array that an update left alone is in the journal once.
    assert changes[1].before is not None
    assert changes[1].after is not None
    pairs = zip(changes[1].before[1:], changes[1].after[1:], strict=True)
    assert all(
        isinstance(a, Blob) and isinstance(b, Blob) and a.number == b.number for a, b in pairs
    )
