"""Include and exclude lists: which tables and columns a user gets."""

from __future__ import annotations

from pathlib import Path

import logbook
import pytest
from least_config import load_with

from firebird_cdc.config.filters import MessageKeys, TableFilter

DATABASE = "/opt/databases/employee.fdb"


def table_filter(directory: Path, *lines: str) -> TableFilter:
    return TableFilter(load_with(directory, *lines))


@pytest.mark.parametrize(
    ("pattern", "database", "table", "captured"),
    [
        # the examples of the RED Database manual
        (f"{DATABASE}.table1", DATABASE, "TABLE1", True),
        (f"{DATABASE}.table1", "/other/employee.fdb", "TABLE1", False),
        (".*table1", "/other/x.fdb", "TABLE1", True),
        (".*table1, .*data.fdb.test_table", "/a/data.fdb", "TEST_TABLE", True),
        (".*table1, .*data.fdb.test_table", "/a/base.fdb", "TEST_TABLE", False),
        (".*employee.fdb.table1", DATABASE, "TABLE1", True),
        # the whole identifier must match, not a part of it
        (".*table1", DATABASE, "TABLE10", False),
        ("table1", DATABASE, "TABLE1", False),
        # names that need care
        (r".*[.]t\$1", DATABASE, "T$1", True),
        (".*[.]straße", DATABASE, "STRAẞE", True),
        (".*[.]заказ", DATABASE, "ЗАКАЗ", True),
        ("['.*[.]a, b']", DATABASE, "A, B", True),
        (r"C:\\data\\crm[.]fdb[.]client", r"C:\data\crm.fdb", "CLIENT", True),
    ],
)
def test_include_list_keeps_the_matching_tables(
    tmp_path: Path, pattern: str, database: str, table: str, captured: bool
) -> None:
    captures = table_filter(tmp_path, f"table.include.list: {pattern}").captures
    assert captures(database, table) is captured


@pytest.mark.parametrize(
    ("pattern", "database", "table"),
    [
        ("/data/shop.fdb.PAY$CARD", "/data/shop.fdb", "PAY$CARD"),
        ("/data/shop.fdb.pay$", "/data/shop.fdb", "PAY$"),
        ("(?i)/data/shop.fdb.pay$card", "/data/shop.fdb", "PAY$CARD"),
        ("(?x)/data/c+/shop.fdb.T # all", "/data/c+/shop.fdb", "T # ALL"),
        ("/data/c+/shop.fdb.T", "/data/c+/shop.fdb", "T"),
        ("/data/shop (1).fdb.T", "/data/shop (1).fdb", "T"),
        (r"C:\data\shop.fdb.T", r"C:\data\shop.fdb", "T"),
        (".*[.]PAY$CARD", "/data/shop.fdb", "PAY$CARD"),
        (".*[.]PAY$.*", "/data/shop.fdb", "PAY$CARD"),
        (r".*\.(A|PAY$(CARD|NO))$", "/data/shop.fdb", "PAY$NO"),
        # as before
        (".*[.]PAY$.*", "/data/shop.fdb", "PAY"),
        (r".*[.]PAY\$CARD", "/data/shop.fdb", "PAY$CARD"),
        (".*[.][$]PAY[]$]A", "/data/shop.fdb", "$PAY$A"),
        ("(.*)[.](A$|B)", "/data/shop.fdb", "A"),
        (r"/data/(.)\1p.fdb.T$", "/data/oop.fdb", "T"),
    ],
)
def test_name_that_is_written_as_it_is_matches(
    tmp_path: Path, pattern: str, database: str, table: str
) -> None:
    captures = table_filter(tmp_path, f"table.exclude.list: ['{pattern}']").captures
    assert not captures(database, table)
    assert captures(database, f"X{table}")


def test_column_with_a_dollar_is_left_out_and_a_key_made_of_it(tmp_path: Path) -> None:
    lines = (
        "column.exclude.list: /data/shop.fdb.T.PAY$NO, .*[.]U[.]A$B",
        "message.key.columns: /data/shop.fdb.A$T:A$B",
    )
    config = load_with(tmp_path, *lines)
    keeps = TableFilter(config).keeps_column
    assert not keeps("/data/shop.fdb", "T", "PAY$NO") and not keeps("/x.fdb", "U", "A$B")
    assert keeps("/data/shop.fdb", "T", "PAY$NUMBER")
    assert MessageKeys(config).indices("/data/shop.fdb", "A$T", ["A", "A$B"]) == (1,)


def test_table_exclude_list_takes_all_but_its_own(tmp_path: Path) -> None:
    captures = table_filter(tmp_path, "table.exclude.list: .*[.]tmp_.*").captures
    assert captures(DATABASE, "ORDERS")
    assert not captures(DATABASE, "TMP_ORDERS")


def test_exclude_list_alone_decides(tmp_path: Path) -> None:
    lines = ("table.include.list: .*[.]a", "table.exclude.list: .*[.]b")
    captures = table_filter(tmp_path, *lines).captures
    assert captures(DATABASE, "C")
    assert not captures(DATABASE, "B")


@pytest.mark.parametrize("table", ["RDB$RELATIONS", "MON$STATEMENTS", "SEC$USERS"])
def test_system_tables_are_never_captured(tmp_path: Path, table: str) -> None:
    assert not table_filter(tmp_path).captures(DATABASE, table)
    assert not table_filter(tmp_path, "table.include.list: .*").captures(DATABASE, table)


def test_table_that_only_looks_like_a_system_table_is_captured(tmp_path: Path) -> None:
    assert table_filter(tmp_path).captures(DATABASE, "RDBMS")


@pytest.mark.parametrize(
    ("line", "column", "kept"),
    [
        ("column.include.list: .*table1.id", "ID", True),
        ("column.include.list: .*table1.id", "NAME", False),
        ("column.include.list: .*id, .*name", "FULL_NAME", True),
        ("column.include.list: '.*[.]id'", "PAID", False),
        ("column.include.list: .*id", "PAID", True),
        ("column.exclude.list: .*f_vchar", "F_VCHAR", False),
        ("column.exclude.list: .*f_vchar", "ID", True),
    ],
)
def test_column_lists_keep_the_matching_columns(
    tmp_path: Path, line: str, column: str, kept: bool
) -> None:
    assert table_filter(tmp_path, line).keeps_column(DATABASE, "TABLE1", column) is kept


def test_second_filter_answer_equals_the_first(tmp_path: Path) -> None:
    chosen = table_filter(tmp_path, "table.include.list: .*[.]a")
    for _ in range(2):
        assert chosen.captures(DATABASE, "A")
        assert not chosen.captures(DATABASE, "B")


# -- message.key.columns

COLUMNS = ("ID", "NO", "CUSTOMER", "NOTE")


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        (".*[.]orders:customer,no", ["CUSTOMER", "NO"]),
        (".*[.]orders:(id|no)", ["ID", "NO"]),
        (".*[.]orders:no.*", ["NO", "NOTE"]),
        (".*[.]orders:note,no.*", ["NOTE", "NO"]),
        ("/opt/databases/employee.fdb.orders:id", ["ID"]),
        ("'.*:no;.*[.]orders:id;.*[.]items:note'", ["NO", "ID"]),
        (".*[.]order:id", None),
    ],
)
def test_key_columns_are_those_that_are_configured(
    tmp_path: Path, written: str, chosen: list[str] | None
) -> None:
    keys = MessageKeys(load_with(tmp_path, f"message.key.columns: {written}"))
    indices = keys.indices(DATABASE, "ORDERS", COLUMNS)
    assert (indices and [COLUMNS[i] for i in indices]) == chosen


def test_key_column_that_is_not_there_is_named_in_the_log(tmp_path: Path) -> None:
    keys = MessageKeys(load_with(tmp_path, "message.key.columns: .*[.]orders:id,nmae"))
    with logbook.TestHandler() as log:
        assert keys.indices(DATABASE, "ORDERS", COLUMNS) == (0,)
    (warning,) = log.formatted_records
    assert f"table ORDERS in {DATABASE} has no column nmae" in warning
