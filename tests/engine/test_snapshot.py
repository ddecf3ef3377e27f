"""Snapshots of a database in use, on the real engine: the traps, chunks, and windows of writers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from capture import Capture, Journal, until

from firebird_cdc.journal.types.canonical import RowText

pytestmark = pytest.mark.engine

_PROGRAM = Path(__file__).with_name("snapshot_work.py")
_TABLES = (
    "CREATE TABLE KEYED (ID INTEGER NOT NULL PRIMARY KEY, N BIGINT,"
    " NAME CHAR(12) CHARACTER SET UTF8, NOTE BLOB SUB_TYPE TEXT CHARACTER SET UTF8)",
    "CREATE TABLE KEYLESS (N INTEGER, TEXT VARCHAR(200))",
)


def _perform(capture: Capture, function: str, *arguments: Any) -> Any:
    return capture.client().perform(_PROGRAM, function, str(capture.database), *arguments)


def test_mark_that_moves_on_after_the_snapshot_began_hides_nothing(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER)")
    found = _perform(classic, "overtaken_mark")
    assert found == {
        "rows": [2],
        "sees": False,
        "late mark sees": True,  # the fault that the order of steps is there against
        "unchecked": None,
    }


def test_transaction_begun_before_the_publication_is_named_and_waited_for(
    classic: Capture,
) -> None:
    classic.create("CREATE TABLE T (ID INTEGER)", publish=False)
    found = _perform(classic, "older_than_publication")
    writer = found["writer"]
    assert found["older"] == [(writer, "SYSDBA")]
    assert found["early"] == {writer}
    assert found["without barriers"] == set()  # the fault: it would be lost, as is seen below
    assert found["after"] == []
    assert found["rows"] == [1]
    assert found["kept"]
    assert [journal.brief() for journal in classic.journals() if journal.rows] == [
        [("c", None, {"ID": 2})]
    ]


def test_late_joiner_that_sees_more_voids_the_window(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER)")
    found = _perform(classic, "late_joiner")
    assert found["early"] == [2]
    assert found["late"] == [1, 2]
    assert len(found["refused"]) == 2
    for refused in found["refused"]:
        assert f"transactions {found['writer']} were open when it began" in refused


@pytest.mark.parametrize("table", ["KEYED", "KEYLESS"])
def test_chunks_behind_a_db_key_have_each_row_once_while_others_write(
    classic: Capture, table: str
) -> None:
    classic.create(*_TABLES)
    _perform(classic, "fill", 700)
    whole, rows, sizes = _perform(classic, "read_in_chunks", table, 90, 1 << 30)
    assert rows == whole
    assert rows.total() > 600
    assert [size for size, _ in sizes[:-1]] == [90] * (len(sizes) - 1)
    assert [is_end for _, is_end in sizes] == [False] * (len(sizes) - 1) + [True]


def test_chunk_ends_by_bytes_with_those_of_blobs_among_them(classic: Capture) -> None:
    classic.create(*_TABLES)
    _perform(classic, "fill", 200)
    whole, rows, sizes = _perform(classic, "read_in_chunks", "KEYED", 1000, 4000)
    assert rows == whole
    assert len(sizes) > 10
    assert len({size for size, _ in sizes}) > 2


def test_snapshot_that_has_ended_can_not_be_joined(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER)", publish=False)
    assert "base snapshot number does not exist" in _perform(classic, "join_too_late")


def test_windows_beside_writers_have_exactly_the_rows_of_the_journals_they_see(
    classic: Capture,
) -> None:
    classic.create(*_TABLES)
    stop = classic.directory / "stop"
    writers = [classic.client() for _ in range(3)]
    for number, client in enumerate(writers):
        arguments = (str(classic.database), number, str(stop), "windows")
        client.start("perform", str(_PROGRAM), "write", arguments)
    until("some work", lambda: len(classic.read_all()) > 20)
    windows = _perform(classic, "read_windows", 25, 10, 8)
    stop.touch()
    for client in writers:
        client.finish()
    windows += _perform(classic, "read_windows", 25, 1, 0)
    journals = [journal for journal in classic.journals() if journal.rows]
    committed = {journal.header.transaction for journal in journals}
    hidden = set()
    for visible, rows, versions, unchecked in windows:
        assert unchecked is None
        assert all(map(visible.sees, versions))
        seen = [each for each in journals if visible.sees(each.header.transaction)]
        assert {name: found for name, found in rows.items() if found} == _fold(seen)
        hidden |= committed & visible.outside
    # The numbers alone would not tell which journals a snapshot sees.
    assert hidden
    assert len(seen) == len(journals)


def _fold(journals: list[Journal]) -> dict[str, Counter[str]]:
    """Return the rows that JOURNALS leave, by table, as exact texts."""
    tables: dict[str, Counter[str]] = {}
    for journal in journals:
        for change in journal.rows:
            text = RowText(change.table)
            rows = tables.setdefault(change.table.name, Counter())
            if change.before is not None:
                rows[text.row(change.before)] -= 1
            if change.after is not None:
                rows[text.row(change.after)] += 1
    assert all(count >= 0 for rows in tables.values() for count in rows.values())
    return {name: +rows for name, rows in tables.items() if +rows}


def test_statements_of_the_options_run_in_each_attachment(classic: Capture) -> None:
    classic.create("CREATE TABLE T (ID INTEGER)", publish=False)
    text = (
        "SET TIME ZONE 'UTC'; EXECUTE BLOCK AS DECLARE N INTEGER;;"
        " BEGIN N = RDB$SET_CONTEXT('USER_SESSION', 'WHO', 'cdc');; END"
    )
    assert _perform(classic, "said_after_statements", text) == "cdc"
    said = _perform(classic, "said_after_statements", f"{text}; SET ROLE NOBODY")
    assert "a statement of database.initial.statements failed" in said
    assert "NOBODY" in said
