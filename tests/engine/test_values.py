"""Values, names, columns and keys: what a row is in a journal, against what went into it."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from capture import Capture, after

from firebird_cdc.journal.format import Table

pytestmark = pytest.mark.engine

_DAY = 864_000_000  # of 1/10000 s

# SQL type: the value as SQL and as it has to come out, for two rows.
TYPES: dict[str, tuple[tuple[str, Any], tuple[str, Any]]] = {
    "SMALLINT": (("-32768", -32768), ("32767", 32767)),
    "INTEGER": (("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)),
    "BIGINT": (
        ("cast('-9223372036854775808' as bigint)", -(2**63)),
        ("9223372036854775807", 2**63 - 1),
    ),
    "INT128": (
        ("cast('-170141183460469231731687303715884105728' as int128)", -(2**127)),
        ("170141183460469231731687303715884105727", 2**127 - 1),
    ),
    "NUMERIC(4, 1)": (("-999.9", Decimal("-999.9")), ("0.1", Decimal("0.1"))),
    "NUMERIC(9, 9)": (("0.123456789", Decimal("0.123456789")), ("0", Decimal("0E-9"))),
    "DECIMAL(18, 4)": (
        ("-12345678901234.5678", Decimal("-12345678901234.5678")),
        ("0.0001", Decimal("0.0001")),
    ),
    "NUMERIC(18)": (("-5", Decimal(-5)), ("7", Decimal(7))),
    "NUMERIC(38, 20)": (
        ("999999999999999999.99999999999999999999", Decimal("9" * 18 + "." + "9" * 20)),
        ("-0.00000000000000000001", Decimal("-0.00000000000000000001")),
    ),
    "DECFLOAT(16)": (
        ("1.234567890123456E-383", Decimal("1.234567890123456E-383")),
        ("-9.999999999999999E384", Decimal("-9.999999999999999E384")),
    ),
    "DECFLOAT(34)": (("0.10", Decimal("0.10")), ("'Infinity'", Decimal("Infinity"))),
    "FLOAT": (("1.5", 1.5), ("-3.25e38", -3.249999972151886e38)),
    "DOUBLE PRECISION": (("0.1e0", 0.1), ("-1.7976931348623157e308", -1.7976931348623157e308)),
    "BOOLEAN": (("true", True), ("false", False)),
    "CHAR(5) CHARACTER SET UTF8": (("'жя'", "жя   "), ("''", "     ")),
    "VARCHAR(20) CHARACTER SET UTF8": (("'Łódź 🍵 '", "Łódź 🍵 "), ("''", "")),
    "CHAR(3) CHARACTER SET WIN1251": (("'я'", "я  "), ("'abc'", "abc")),
    "VARCHAR(10) CHARACTER SET WIN1251": (("'Кружка'", "Кружка"), ("''", "")),
    "CHAR(6) CHARACTER SET NONE": (("'abc'", "abc   "), ("'x'", "x     ")),
    "VARCHAR(9) CHARACTER SET NONE": (("'naïve'", "naïve"), ("''", "")),
    "CHAR(4) CHARACTER SET OCTETS": (("x'00FF'", b"\0\xff\0\0"), ("x'20202020'", b"    ")),
    "VARCHAR(4) CHARACTER SET OCTETS": (("x'FF0020'", b"\xff\0 "), ("x''", b"")),
    "DATE": (("date '0001-01-01'", date(1, 1, 1)), ("date '9999-12-31'", date(9999, 12, 31))),
    "TIME": (
        ("time '23:59:59.9999'", time(23, 59, 59, 999_900)),
        ("time '00:00:00'", time(0, 0)),
    ),
    "TIMESTAMP": (
        ("timestamp '1815-06-18 11:35:00.0001'", datetime(1815, 6, 18, 11, 35, 0, 100)),
        ("timestamp '9999-12-31 23:59:59.9999'", datetime(9999, 12, 31, 23, 59, 59, 999_900)),
    ),
    # In UTC, and the zone: an offset of -3:30 is id 1439 - 210; GMT is 65535.
    "TIME WITH TIME ZONE": (
        ("time '12:00:00.5 -03:30'", (15 * 36_000_000 + 30 * 600_000 + 5_000, 1439 - 210)),
        ("time '00:00:00 GMT'", (0, 65535)),
    ),
    "TIMESTAMP WITH TIME ZONE": (
        (
            "timestamp '2026-03-02 23:00:00 -03:30'",
            ((61_102 + 0) * _DAY + 2 * 36_000_000 + 30 * 600_000, 1439 - 210),
        ),
        ("timestamp '1858-11-17 00:00:01 GMT'", (10_000, 65535)),
    ),
    "BLOB SUB_TYPE TEXT CHARACTER SET UTF8": (("'заметка'", "заметка"), ("''", "")),
    "BLOB SUB_TYPE BINARY": (("x'00FF10'", b"\0\xff\x10"), ("x''", b"")),
}


@pytest.fixture
def typed(capture: Capture) -> Capture:
    columns = ", ".join(f"C{number} {sql}" for number, sql in enumerate(TYPES))
    capture.create(f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, {columns})")
    return capture


def _expected(place: int) -> dict[str, Any]:
    return {f"C{number}": pair[place][1] for number, pair in enumerate(TYPES.values())}


def _by_type(row: dict[str, Any]) -> dict[str, Any]:
    return {sql: (row[f"C{n}"], type(row[f"C{n}"])) for n, sql in enumerate(TYPES)}


def test_every_type_comes_out_as_it_went_in(typed: Capture) -> None:
    attachment = typed.attach()
    first = ", ".join(pair[0][0] for pair in TYPES.values())
    attachment.execute(f"INSERT INTO T VALUES (1, {first})")
    attachment.commit()
    for number, pair in enumerate(TYPES.values()):
        attachment.execute(f"UPDATE T SET C{number} = {pair[1][0]}")
    attachment.commit()
    attachment.execute("DELETE FROM T")
    attachment.commit()
    inserted, updated, deleted = [journal.brief() for journal in typed.journals()]
    [(op, _, row)] = inserted
    assert (op, row and row.pop("ID")) == ("c", 1)
    assert _by_type(row or {}) == _by_type(_expected(0))
    assert len(updated) == len(TYPES)
    assert all(op == "u" for op, _, _ in updated)
    assert updated[0][1] == {"ID": 1, **_expected(0)}
    [(op, row, none)] = deleted
    assert (op, row and row.pop("ID"), none) == ("d", 1, None)
    assert _by_type(row or {}) == _by_type(_expected(1))


def test_null_is_captured_in_every_type(typed: Capture) -> None:
    attachment = typed.attach()
    attachment.execute("INSERT INTO T (ID) VALUES (1)")
    attachment.execute(f"UPDATE T SET {', '.join(f'C{n} = C{n}' for n in range(len(TYPES)))}, ID=2")
    attachment.commit()
    nulls = dict.fromkeys(_expected(0))
    assert typed.last_rows() == [
        ("c", None, {"ID": 1, **nulls}),
        ("u", {"ID": 1, **nulls}, {"ID": 2, **nulls}),
    ]


def test_a_region_as_time_zone_is_kept_with_the_time_in_utc(capture: Capture) -> None:
    capture.create("CREATE TABLE T (MOMENT TIMESTAMP WITH TIME ZONE)")
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (timestamp '2026-07-01 12:00:00 Europe/Prague')")
    [zone] = attachment.execute(
        "SELECT RDB$TIME_ZONE_ID AS ID FROM RDB$TIME_ZONES"
        " WHERE RDB$TIME_ZONE_NAME = 'Europe/Prague'"
    )
    attachment.commit()
    noon = ((date(2026, 7, 1) - date(1858, 11, 17)).days * 24 + 10) * 36_000_000
    assert capture.last_rows() == [("c", None, {"MOMENT": (noon, zone["ID"] % 65536)})]


@pytest.mark.parametrize("size", [0, 1, 60 * 1024, 1024 * 1024 + 1], ids=str)
def test_blobs_of_every_size_are_captured_whole(capture: Capture, size: int) -> None:
    capture.create("CREATE TABLE T (ID INTEGER PRIMARY KEY, B BLOB, T BLOB SUB_TYPE TEXT)")
    attachment = capture.attach()
    binary = bytes(range(251)) * (size // 251 + 1)
    text = "жук " * (size // 4 + 1)
    attachment.execute("INSERT INTO T VALUES (1, ?, ?)", binary[:size], text[:size])
    attachment.commit()
    assert capture.last_rows() == [
        ("c", None, {"ID": 1, "B": binary[:size], "T": text[:size]}),
    ]


def test_an_update_that_leaves_a_blob_alone_carries_its_content(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER PRIMARY KEY, N INTEGER, B BLOB)")
    attachment = capture.attach()
    content = bytes(range(256)) * 4096
    attachment.execute("INSERT INTO T VALUES (1, 0, ?)", content)
    attachment.commit()
    attachment.execute("UPDATE T SET N = 1")
    attachment.commit()
    attachment.execute("UPDATE T SET B = NULL")
    attachment.commit()
    attachment.execute("UPDATE T SET B = ?", b"new")
    attachment.commit()
    changes = [journal.brief() for journal in capture.journals()]
    assert changes[1] == [
        ("u", {"ID": 1, "N": 0, "B": content}, {"ID": 1, "N": 1, "B": content}),
    ]
    assert changes[2] == [("u", {"ID": 1, "N": 1, "B": content}, {"ID": 1, "N": 1, "B": None})]
    assert changes[3] == [("u", {"ID": 1, "N": 1, "B": None}, {"ID": 1, "N": 1, "B": b"new"})]
    # Kept once for the old and the new row.
    assert capture.journals()[1].stamp.journal_length < 1.1 * len(content)


def test_char_of_character_set_none_is_padded_to_its_bytes(capture: Capture) -> None:
    capture.create("CREATE TABLE T (C CHAR(6) CHARACTER SET NONE)")
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES ('żo')")
    attachment.commit()
    assert capture.last_rows() == [("c", None, {"C": "żo   "})]


@pytest.mark.parametrize("client", ["UTF8", "WIN1251", "NONE"])
def test_text_blobs_keep_their_columns_character_set(capture: Capture, client: str) -> None:
    text = "Кружка"
    codecs = {"UTF8": "utf-8", "WIN1251": "cp1251"}
    columns = ", ".join(f"{name} BLOB SUB_TYPE TEXT CHARACTER SET {name}" for name in codecs)
    capture.create(f"CREATE TABLE T ({columns})")
    attachment = capture.client().attach(capture.database, charset=client)
    values = ", ".join(
        f"CAST(_{name} x'{text.encode(codec).hex()}' AS BLOB SUB_TYPE TEXT CHARACTER SET {name})"
        for name, codec in codecs.items()
    )
    attachment.execute(f"INSERT INTO T VALUES ({values})")
    attachment.commit()
    assert capture.last_rows() == [("c", None, {"UTF8": text, "WIN1251": text})]


def test_text_of_a_client_with_another_character_set(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (U VARCHAR(10) CHARACTER SET UTF8, W VARCHAR(10) CHARACTER SET WIN1251,"
        " B BLOB SUB_TYPE TEXT CHARACTER SET UTF8)"
    )
    attachment = capture.client().attach(capture.database, charset="WIN1251")
    attachment.execute("INSERT INTO T VALUES (?, ?, ?)", "Чай", "Чай", "Чай")
    attachment.commit()
    assert capture.last_rows() == [("c", None, {"U": "Чай", "W": "Чай", "B": "Чай"})]


def test_quoted_mixed_case_and_foreign_names(capture: Capture) -> None:
    capture.create(
        """CREATE TABLE "Склад ""A"" 'b'" ("id" INTEGER NOT NULL PRIMARY KEY, "Ёж и ko" INTEGER)""",
        'CREATE TABLE "t" ("X.Y" INTEGER)',
        'CREATE TABLE T ("X.Y" VARCHAR(3))',
        f'CREATE TABLE "{"Ж" * 63}" ("{"я" * 63}" INTEGER)',
        'CREATE TABLE " T" (" L" BIGINT, " K" VARCHAR(2) NOT NULL, PRIMARY KEY (" K"))',
    )
    attachment = capture.attach()
    attachment.execute("""INSERT INTO "Склад ""A"" 'b'" VALUES (1, 2)""")
    attachment.execute('INSERT INTO "t" VALUES (7)')
    attachment.execute("INSERT INTO T VALUES ('abc')")
    attachment.execute(f'INSERT INTO "{"Ж" * 63}" VALUES (1)')
    attachment.execute("""INSERT INTO " T" VALUES (3, 'k')""")
    attachment.commit()
    [journal] = capture.journals()
    assert [(change.table.name, after(change)) for change in journal.rows] == [
        ("Склад \"A\" 'b'", {"id": 1, "Ёж и ko": 2}),
        ("t", {"X.Y": 7}),
        ("T", {"X.Y": "abc"}),
        ("Ж" * 63, {"я" * 63: 1}),
        (" T", {" L": 3, " K": "k"}),
    ]
    for quoted, key in ((journal.rows[0].table, "id"), (journal.rows[4].table, " K")):
        assert [quoted.columns[column].name for column in quoted.key_columns] == [key]


def test_a_journal_names_database_user_and_transaction(capture: Capture) -> None:
    capture.create("CREATE TABLE T (ID INTEGER)")
    attachment = capture.attach()
    [row] = attachment.execute("SELECT CURRENT_TRANSACTION AS N FROM RDB$DATABASE")
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    [journal] = capture.journals()
    assert journal.database == str(capture.database)
    assert journal.user == "SYSDBA"
    assert journal.header.transaction == journal.stamp.transaction == row["N"]
    assert journal.header.started_us <= journal.stamp.commit_us <= journal.stamp.stamped_us


def _tables(capture: Capture) -> dict[str, Table]:
    return {c.table.name: c.table for journal in capture.journals() for c in journal.rows}


def test_computed_columns_are_absent_and_identity_columns_marked(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (A INTEGER, SUM_ COMPUTED BY (A + 1), B INTEGER NOT NULL,"
        " N INTEGER GENERATED BY DEFAULT AS IDENTITY, M BIGINT DEFAULT 3)"
    )
    attachment = capture.attach()
    attachment.execute("INSERT INTO T (A, B) VALUES (1, 2)")
    attachment.commit()
    [(_, _, row)] = capture.last_rows()
    assert row == {"A": 1, "B": 2, "N": 1, "M": 3}
    columns = _tables(capture)["T"].columns
    assert [column.name for column in columns if column.identity] == ["N"]
    assert [column.name for column in columns if not column.nullable] == ["B", "N"]


def test_columns_are_described_with_precision_length_and_charset(capture: Capture) -> None:
    capture.create(
        "CREATE DOMAIN MONEY AS NUMERIC(15, 3) NOT NULL",
        "CREATE TABLE T (P NUMERIC(9, 2), M MONEY, C CHAR(7) CHARACTER SET UTF8,"
        " V VARCHAR(5) CHARACTER SET WIN1251, B BLOB SUB_TYPE TEXT CHARACTER SET WIN1251)",
    )
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1, 2, 'a', 'b', 'c')")
    attachment.commit()
    price, money, char, varchar, blob = _tables(capture)["T"].columns
    assert (price.precision, price.scale, price.sub_type, price.nullable) == (9, -2, 1, True)
    assert (money.precision, money.scale, money.nullable) == (15, -3, False)
    assert (char.char_length, char.length, char.charset_id) == (7, 28, 4)
    assert (varchar.char_length, varchar.length, varchar.charset_id) == (5, 5, 52)
    assert (blob.sub_type, blob.charset_id) == (1, 52)


def _key(table: Table) -> tuple[int, list[str]]:
    return table.key_kind, [table.columns[index].name for index in table.key_columns]


# Table: its definition, what its key is (0 none, 1 primary, 2 unique), the key's columns.
KEYS = {
    "PRIMARY_": ("A INTEGER NOT NULL PRIMARY KEY, B INTEGER, C INTEGER", 1, ["A"]),
    "OF_TWO_IN_ITS_OWN_ORDER": ("A INTEGER, B INTEGER, C INTEGER, PRIMARY KEY (C, A)", 1, "CA"),
    "UNIQUE_": ("A INTEGER, B INTEGER NOT NULL UNIQUE, C INTEGER", 2, "B"),
    "FIRST_UNIQUE_BY_NAME": (
        "A INTEGER NOT NULL, B INTEGER NOT NULL, C INTEGER NOT NULL,"
        " CONSTRAINT Z UNIQUE (B), CONSTRAINT Y UNIQUE (C, A)",
        2,
        "CA",
    ),
    "UNIQUE_WITH_NULLS": (
        "A INTEGER UNIQUE, B INTEGER NOT NULL, C INTEGER, UNIQUE (B, C)",
        0,
        "",
    ),
    "ONLY_THE_SECOND_WITHOUT_NULLS": (
        "A INTEGER, B INTEGER NOT NULL, C INTEGER,"
        " CONSTRAINT K1 UNIQUE (A), CONSTRAINT K2 UNIQUE (B)",
        2,
        "B",
    ),
    "PRIMARY_BEFORE_UNIQUE": (
        "A INTEGER NOT NULL UNIQUE, B INTEGER NOT NULL PRIMARY KEY, C INTEGER",
        1,
        "B",
    ),
    "UNIQUE_INDEX": ("A INTEGER NOT NULL, B INTEGER, C INTEGER", 2, "A"),
    "NONE_": ("A INTEGER NOT NULL, B INTEGER, C INTEGER", 0, ""),
}


def test_journal_names_the_key_columns_of_each_table(capture: Capture) -> None:
    definitions = [f"CREATE TABLE {name} ({key[0]})" for name, key in KEYS.items()]
    capture.create(*definitions, "CREATE UNIQUE INDEX I ON UNIQUE_INDEX (A)")
    attachment = capture.attach()
    for name in KEYS:
        attachment.execute(f"INSERT INTO {name} VALUES (1, 2, 3)")
    attachment.commit()
    found = {name: _key(table) for name, table in _tables(capture).items()}
    assert found == {name: (kind, list(columns)) for name, (_, kind, columns) in KEYS.items()}


def test_widest_row_and_most_columns_are_captured(capture: Capture) -> None:
    most = 2000
    numbers = ", ".join(f"C{number} INTEGER" for number in range(most))
    capture.create(
        "CREATE TABLE WIDE (A VARCHAR(8000), B VARCHAR(8000), C CHAR(300))",
        f"CREATE TABLE MANY ({numbers})",
    )
    attachment = capture.attach()
    attachment.execute("INSERT INTO WIDE VALUES (?, ?, 'x')", "🍵" * 8000, "🍶" * 8000)
    attachment.execute("UPDATE WIDE SET C = ''")
    attachment.execute(f"INSERT INTO MANY VALUES ({', '.join(map(str, range(most)))})")
    attachment.execute("UPDATE MANY SET C7 = NULL, C1999 = NULL")
    attachment.commit()
    wide = {"A": "🍵" * 8000, "B": "🍶" * 8000, "C": "x".ljust(300)}
    many = {f"C{number}": number for number in range(most)}
    assert capture.last_rows() == [
        ("c", None, wide),
        ("u", wide, wide | {"C": " " * 300}),
        ("c", None, many),
        ("u", many, many | {"C7": None, "C1999": None}),
    ]


def test_columns_come_in_the_order_of_their_positions(capture: Capture) -> None:
    capture.create(
        "CREATE TABLE T (A INTEGER, B VARCHAR(3), C INTEGER, D INTEGER)",
        "ALTER TABLE T ALTER C POSITION 1",
        "ALTER TABLE T DROP A",
        "ALTER TABLE T ADD E INTEGER, ALTER E POSITION 2",
    )
    attachment = capture.attach()
    attachment.execute("INSERT INTO T VALUES (1, 2, 'b', 3)")
    attachment.commit()
    [(_, _, row)] = capture.last_rows()
    assert list((row or {}).items()) == [("C", 1), ("E", 2), ("B", "b"), ("D", 3)]
