"""Rows of a table in a snapshot: chunks to the end, conditions, SELECTs, large BLOBs."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from capture import Capture
from soaked import few_of

from firebird_cdc.journal.format import Blob

pytestmark = pytest.mark.engine

_PROGRAM = Path(__file__).with_name("snapshot_work.py")
_ROWS = (
    "CREATE TABLE T (ID INTEGER NOT NULL, TWICE COMPUTED BY (ID * 2), W VARCHAR(20)"
    " CHARACTER SET WIN1251, U VARCHAR(20) CHARACTER SET UTF8, N VARCHAR(40) CHARACTER SET NONE)",
    "CREATE TABLE SECRET (ID INTEGER NOT NULL, W VARCHAR(20) CHARACTER SET WIN1251,"
    " U VARCHAR(20) CHARACTER SET UTF8, N VARCHAR(40) CHARACTER SET NONE)",
    "INSERT INTO SECRET VALUES (99, 'secret', 'secret', 'secret')",
    *(
        f"INSERT INTO T (ID, W, U, N) VALUES ({number}, '{text}', '{text}', '{text}')"
        for number, text in enumerate(["a", "жук", "it''s", "жаба -- x", "q''{й}''"])
    ),
)


def _perform(capture: Capture, function: str, *arguments: Any) -> Any:
    return capture.client().perform(_PROGRAM, function, str(capture.database), *arguments)


def test_chunk_with_the_last_row_says_so_whatever_it_ended_by(classic: Capture) -> None:
    classic.create(
        "CREATE TABLE T (ID INTEGER)",
        "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < 40) DO BEGIN"
        " INSERT INTO T VALUES (:I); I = I + 1; END END",
        "DELETE FROM T WHERE MOD(ID, 4) = 0",
        "CREATE TABLE NOTHING (ID INTEGER)",
        publish=False,
    )
    limits = [(10, 1 << 20), (30, 1 << 20), (29, 1 << 20), (31, 1 << 20), (100, 1), (1, 1)]
    ten = [(10, False), (10, False), (10, True)]
    each = [(1, False)] * 29 + [(1, True)]
    assert _perform(classic, "read_ends", "T", limits) == [
        ten,
        [(30, True)],
        [(29, False), (1, True)],
        [(30, True)],
        each,
        each,
    ]
    assert _perform(classic, "read_ends", "NOTHING", [(10, 1)]) == [[(0, True)]]


_CONDITIONS: dict[str | None, list[int]] = {
    None: [0, 1, 2, 3, 4],
    "ID > 2": [3, 4],
    "ID = 1 OR ID = 2 -- a comment": [1, 2],
    "ID = 1 /* two */ OR ID = 4": [1, 4],
    "W = 'жук'": [1],
    "U = 'жук'": [1],
    "N = 'жук'": [1],
    "W LIKE 'ж%' AND ID > 1": [3],
    "_UTF8 'жук' = W": [1],
    "W = _UTF8'жук'": [1],
    "W = 'it''s'": [2],
    "W = q'{it's}'": [2],
    "W = 'жаба -- x'": [3],
    "W = q'<q'{й}'>' /* 'ж' */": [4],
    "W = Q'!жук!' OR W = 'a'": [0, 1],
    "ID IN (SELECT ID + 1 FROM T X WHERE X.U = 'a')": [1],
    "ID > 100": [],
    "TWICE = 6": [3],
}
_REFUSED = (
    "",
    "ID",
    "ID = ",
    "ID = 1)",
    "ID = 1; DELETE FROM T",
    "ID = ?",
    "MISSING = 1",
    "ID = 1 /* no end",
    "U = 'no end",
    "1 = 1) OR (1 = 1",
    "1 = 0) UNION ALL SELECT S.*, 1, S.RDB$DB_KEY FROM SECRET S WHERE (1 = 1",
    "1 = 1 THEN 1 END FROM SECRET WHERE (1 = 1",
    "1 = 1) ORDER BY (ID",
    "NEXT VALUE FOR MISSING > 0",
)


@pytest.mark.parametrize("most_rows", [1, 100])
def test_chunks_have_the_rows_that_fulfil_a_condition(classic: Capture, most_rows: int) -> None:
    classic.create(*_ROWS, publish=False)
    found = _perform(classic, "read_where", "T", list(_CONDITIONS), most_rows)
    assert dict(zip(_CONDITIONS, found, strict=True)) == _CONDITIONS


def test_text_that_is_no_condition_is_refused_and_named(classic: Capture) -> None:
    classic.create(*_ROWS, publish=False)
    found = _perform(classic, "read_where", "T", [*_REFUSED, None], 10)
    for condition, (kind, text) in zip(_REFUSED, found, strict=False):
        assert kind == "QueryRefused", condition
        assert f"table T where {condition}: " in text
    assert found[-1] == [0, 1, 2, 3, 4]


_FAILING = {
    "U > 5": 'conversion error from string "a"',
    "10 / (ID - 3) > 0": "Integer divide by zero",
    "RAISES(ID) = 1": "it is so",
    "LN(ID - 3) > 0": "Argument for LN must be positive",
    "(SELECT ID FROM T) = 1": "multiple rows in singleton select",
    "U SIMILAR TO '['": "Invalid SIMILAR TO pattern",
}


@pytest.mark.parametrize("most_rows", [1, 100])
def test_condition_that_fails_at_a_row_is_refused(classic: Capture, most_rows: int) -> None:
    classic.create(
        *_ROWS,
        "CREATE EXCEPTION NO_ROW 'it is so'",
        "CREATE FUNCTION RAISES (N INTEGER) RETURNS INTEGER AS"
        " BEGIN IF (N = 3) THEN EXCEPTION NO_ROW; RETURN 1; END",
        publish=False,
    )
    found = _perform(classic, "read_where", "T", [*_FAILING, None], most_rows)
    for (condition, why), (kind, text) in zip(_FAILING.items(), found, strict=False):
        assert kind == "QueryRefused", (condition, text)
        assert f"table T where {condition}: " in text
        assert why in text
    assert found[-1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "numbers", few_of({"1": 1, "7": 7, "1000": 1000, "all": 1 << 33}, ["1", "all"])
)
def test_chunks_that_look_through_a_few_record_numbers_have_each_row_once(
    classic: Capture, numbers: int
) -> None:
    classic.create(
        "CREATE TABLE T (ID INTEGER, V VARCHAR(100))",
        "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < 600) DO BEGIN"
        " INSERT INTO T VALUES (:I, RPAD('v', 100, 'v')); I = I + 1; END END",
        "DELETE FROM T WHERE ID BETWEEN 150 AND 450",
        publish=False,
    )
    wanted = [each for each in range(600) if not 150 <= each <= 450]
    for most_rows in (3, 100, 10_000):
        for condition, every in ((None, 1), ("MOD(ID, 120) = 0", 120), ("ID < 0", 10_000)):
            rows = [each for each in wanted if each % every == 0 and every < 10_000]
            found, count = _perform(classic, "read_in_numbers", "T", condition, most_rows, numbers)
            assert found == rows, (most_rows, condition)
            if numbers == 1 << 33:
                assert count == max(-(-len(rows) // most_rows), 1)


_SELECTED = (
    'CREATE TABLE "жуки" (ID INTEGER NOT NULL, TWICE COMPUTED BY (ID * 2), PRICE NUMERIC(9, 2),'
    ' "имя" VARCHAR(20) CHARACTER SET WIN1251 NOT NULL, CODE CHAR(3) CHARACTER SET OCTETS,'
    " NOTE BLOB SUB_TYPE TEXT CHARACTER SET UTF8, AT_ TIMESTAMP WITH TIME ZONE,"
    " CONSTRAINT ID_KEY PRIMARY KEY (ID))",
    "CREATE TABLE OTHER (ID INTEGER, PRICE NUMERIC(9, 2))",
    "INSERT INTO OTHER VALUES (2, 7.25)",
    "INSERT INTO \"жуки\" VALUES (1, 1.5, 'первый', x'000102', 'note', NULL)",
    "INSERT INTO \"жуки\" VALUES (2, 2.5, 'второй', NULL, NULL, '2026-01-01 00:00 UTC')",
)


def _shown(row: Sequence[Any]) -> list[Any]:
    return [(value.available, value.read()) if isinstance(value, Blob) else value for value in row]


def test_rows_of_a_select_have_the_columns_by_their_names(classic: Capture) -> None:
    classic.create(*_SELECTED, publish=False)
    selects = [
        'SELECT * FROM "жуки"',
        '  select "имя", CODE, NOTE, AT_, 5 AS OTHER, PRICE, ID FROM "жуки"'
        " WHERE \"имя\" <> 'второй' -- a comment",
        'WITH A AS (SELECT * FROM "жуки" ORDER BY ID DESC) SELECT A.* FROM A;',
        "SELECT J.ID, CAST(COALESCE(O.PRICE, 0.25) AS NUMERIC(9, 2)) AS PRICE,"
        " CAST('жж' AS VARCHAR(20) CHARACTER SET WIN1251) AS \"имя\", J.CODE,"
        " J.NOTE || ' и' AS NOTE, J.AT_"
        ' FROM "жуки" J LEFT JOIN OTHER O ON O.ID = J.ID ORDER BY J.ID',
        'SELECT * FROM "жуки" WHERE ID > 10',
    ]
    everything, some, reverse, joined, nothing = [
        [_shown(row) for row in rows]
        for rows in _perform(classic, "read_selected", "жуки", selects)
    ]
    first = [1, 150, "первый", b"\0\1\2", (True, b"note"), None]
    assert [row[:5] for row in everything] == [first[:5], [2, 250, "второй", None, None]]
    assert everything[0] == first
    assert isinstance(everything[1][5], bytes)
    assert some == [first]
    assert reverse == everything[::-1]
    assert [row[:5] for row in joined] == [
        [1, 25, "жж", b"\0\1\2", (True, "note и".encode())],
        [2, 725, "жж", None, None],
    ]
    assert nothing == []


def test_select_that_does_not_give_the_tables_rows_is_refused(classic: Capture) -> None:
    classic.create(*_SELECTED, publish=False)
    others = 'CODE, NOTE, AT_ FROM "жуки"'
    refused = {
        f"SELECT ID, {others}": "lacks the columns PRICE, имя",
        f'SELECT ID, ID, PRICE, "имя", {others}': "has several columns ID",
        f'SELECT CAST(ID AS BIGINT) AS ID, PRICE, "имя", {others}': (
            "жуки.ID: what is selected is of type 580 (length 8, scale 0, sub-type 0, character set"
            " NONE), and the column is INTEGER: CAST it to that"
        ),
        f'SELECT ID, CAST(PRICE AS NUMERIC(9, 3)) AS PRICE, "имя", {others}': "жуки.PRICE: what",
        f"SELECT ID, PRICE, CAST('x' AS VARCHAR(20) CHARACTER SET UTF8) AS \"имя\", {others}": (
            "and the column is VARCHAR(20) CHARACTER SET WIN1251"
        ),
        f'SELECT ID, PRICE, NULLIF("имя", \'второй\') AS "имя", {others}': (
            "gives a null for имя, which is NOT NULL"
        ),
        f'SELECT ID, PRICE, "имя", {others} WHERE ID = ?': "No SQLDA",
        'SELECT * FROM "жуки" WHERE 1 / (ID - 2) < 0': "Integer divide by zero",
        'SELECT * FROM "жуки" WHERE "имя" > 5': "conversion error",
        'SELECT * FROM "жуки" WHERE DATEADD(ID * 100000 YEAR TO CURRENT_DATE) < CURRENT_DATE': (
            "exceeds the range for valid dates"
        ),
        "SELECT nothing": "Unexpected end of command",
        'SELECT * FROM "жуки" FOR UPDATE': "no SELECT that only reads",
        'SELECT * FROM "жуки"; SELECT 1 FROM OTHER': "Token unknown",
        'DELETE FROM "жуки" RETURNING *': "not a SELECT",
        "EXECUTE BLOCK RETURNS (ID INTEGER) AS BEGIN SUSPEND; END": "not a SELECT",
        "": "not a SELECT",
        "SELECTED": "not a SELECT",
    }
    found = _perform(classic, "read_selected", "жуки", [*refused, 'SELECT * FROM "жуки"'])
    for (sql, why), (kind, text) in zip(refused.items(), found, strict=False):
        assert kind == "QueryRefused", (sql, text)
        assert why in text
        assert "жуки" in text
    assert len(found[-1]) == 2


@pytest.mark.parametrize(
    ("alteration", "told"),
    [
        ("ALTER TABLE T ALTER D TYPE DECIMAL(9, 4)", "T.D: what is selected is of type 496"),
        ("ALTER TABLE T ALTER V TYPE VARCHAR(20)", "T.V: what is selected is of type 448"),
        ("ALTER TABLE T DROP V", "Column unknown"),
        ("DROP TABLE T", "Table unknown"),
    ],
)
def test_definition_from_before_an_alteration_gives_no_wrong_values(
    classic: Capture, alteration: str, told: str
) -> None:
    classic.create(
        "CREATE TABLE T (ID INTEGER, D DECIMAL(5, 1), V VARCHAR(10))",
        "INSERT INTO T VALUES (1, 2.5, 'x')",
        publish=False,
    )
    found = _perform(classic, "read_altered", "T", alteration)
    assert found.startswith("DatabaseUnreadable: ")
    assert told in found


def test_blobs_take_no_more_memory_than_a_row_may_keep(classic: Capture) -> None:
    mib = 1024 * 1024
    classic.create("CREATE TABLE T (A BLOB, B BLOB, C BLOB)", publish=False)
    attachment = classic.attach()
    for sizes in ([20 * mib, 10, 3 * mib], [mib, mib, mib], [0, 5, None]):
        contents = [None if size is None else BytesIO(bytes(size)) for size in sizes]
        attachment.execute("INSERT INTO T VALUES (?, ?, ?)", *contents)
    attachment.commit()
    sizes, total, peak = _perform(classic, "read_large_blobs", "T", 2 * mib)
    assert sizes == [
        [20 * mib, 0, 10, 10, 3 * mib, 0],
        [mib, mib, mib, mib, mib, 0],
        [0, 0, 5, 5],
    ]
    assert total == 26 * mib + 15
    assert peak < 2 * 2 * mib + mib
