"""Signals: what their type and data ask for, and which tables their patterns match."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from documented import ROOT, blocks

from firebird_cdc.journal.snapshot.signals import (
    ExecuteSnapshot,
    LogMessage,
    PauseSnapshot,
    ResumeSnapshot,
    SchemaChanges,
    Signal,
    SignalError,
    StopSnapshot,
    condition_for,
    describe_unmatched,
    idle_conditions,
    is_statement,
    matching,
    may_match,
    parse_signal,
)

ORDERS = "/db/shop.fdb.ORDERS"
ITEMS = "/db/shop.fdb.ITEMS"
DOTTED = "/db/shop.fdb.My.Table"
LOG = "/db/shop.fdb.SYS$LOG"
ALL = (ORDERS, ITEMS, DOTTED, LOG)


def parse(type: str, /, **data: Any) -> Signal:
    return parse_signal("ad-hoc-1", type, json.dumps(data))


def execute(**data: Any) -> Signal:
    return parse_signal(
        "ad-hoc-1",
        "execute-snapshot",
        json.dumps({k.replace("_", "-"): v for k, v in data.items()}),
    )


def test_signal_of_the_manual_is_an_incremental_snapshot_of_two_tables_one_filtered() -> None:
    signal = execute(
        data_collections=["db1.schema1.table1", "db1.schema1.table2"],
        type="incremental",
        additional_conditions=[{"data-collection": "db1.schema1.table1", "filter": "color='blue'"}],
    )
    assert signal == ExecuteSnapshot(
        "ad-hoc-1",
        False,
        ("db1.schema1.table1", "db1.schema1.table2"),
        (("db1.schema1.table1", "color='blue'"),),
    )


@pytest.mark.parametrize(
    ("given", "is_blocking"),
    [({}, False), ({"type": "INCREMENTAL"}, False), ({"type": "Blocking"}, True)],
)
def test_type_of_snapshot_is_read_in_any_case_and_incremental_by_default(
    given: dict[str, str], is_blocking: bool
) -> None:
    signal = execute(data_collections=["a"], **given)
    assert isinstance(signal, ExecuteSnapshot)
    assert signal.is_blocking is is_blocking


def test_older_single_condition_is_for_every_table() -> None:
    signal = parse(
        "execute-snapshot", **{"data-collections": ["a"], "additional-condition": "X > 1"}
    )
    assert isinstance(signal, ExecuteSnapshot)
    assert condition_for(ORDERS, signal.conditions) == "X > 1"


def test_blank_older_condition_and_surrogate_key_count_as_absent() -> None:
    signal = execute(data_collections=["a"], additional_condition=" ", surrogate_key="")
    assert signal == ExecuteSnapshot("ad-hoc-1", False, ("a",))
    signal = execute(data_collections=["a"], surrogate_key="ID")
    assert isinstance(signal, ExecuteSnapshot)
    assert signal.surrogate_key == "ID"


def test_blocking_snapshot_may_have_a_statement_for_a_filter() -> None:
    statement = "select * from ORDERS where ID > 7"
    signal = execute(
        data_collections=["a"],
        type="blocking",
        additional_conditions=[{"data-collection": "a", "filter": statement}],
    )
    assert isinstance(signal, ExecuteSnapshot)
    assert condition_for("a", signal.conditions) == statement
    assert is_statement(statement)
    assert not is_statement("SELECTED = 1")


def test_stop_pause_and_resume_signals_of_the_manuals_are_understood() -> None:
    assert parse("stop-snapshot", type="incremental") == StopSnapshot("ad-hoc-1", None)
    assert parse("stop-snapshot", **{"type": "INCREMENTAL", "data-collections": []}) == (
        StopSnapshot("ad-hoc-1", None)
    )
    assert parse("stop-snapshot", **{"type": "incremental", "data-collections": ["a", " b"]}) == (
        StopSnapshot("ad-hoc-1", ("a", "b"))
    )
    assert parse_signal("1", "pause-snapshot", None) == PauseSnapshot("1")
    assert parse_signal("1", "resume-snapshot", "not read") == ResumeSnapshot("1")


def test_types_padded_with_blanks_by_a_char_column_are_read() -> None:
    assert parse_signal("1   ", "pause-snapshot   ", None) == PauseSnapshot("1")


def test_log_message_shows_the_position_and_is_one_line() -> None:
    signal = parse("log", message="at offset {}\nERROR: invented")
    assert isinstance(signal, LogMessage)
    assert signal.text("7:12") == "at offset 7:12 ERROR: invented"


def test_schema_changes_names_database_and_tables() -> None:
    signal = parse("schema-changes", database="/db/shop.fdb", changes=[{"id": "T", "table": {}}])
    assert signal == SchemaChanges("ad-hoc-1", "/db/shop.fdb", ("T",))


@pytest.mark.parametrize(
    ("type", "data", "said"),
    [
        (
            "execute-snapshots",
            "{}",
            "no signal of type 'execute-snapshots'; did you mean execute-s",
        ),
        (
            "x",
            "{}",
            "types are execute-snapshot, stop-snapshot, pause-snapshot, resume-snapshot, l",
        ),
        ("execute-snapshot", None, "data is missing; execute-snapshot needs a JSON object"),
        ("execute-snapshot", " ", "data is missing"),
        ("execute-snapshot", "{", "data is not JSON: Expecting property name"),
        ("execute-snapshot", "[" * 100_000, "data is nested too deeply"),
        (
            "execute-snapshot",
            r'{"data-collections": ["T"], "additional-condition": "A = \ud800"}',
            r"data has half of a character, '\ud800', which is no text",
        ),
        ("execute-snapshot", r'{"data-collections": ["(\udc00"]}', r"character, '\udc00'"),
        ("log", r'{"message": "\ud83d"}', r"character, '\ud83d'"),
        ("execute-snapshot", "[1]", "data is a list; execute-snapshot needs a JSON object"),
        ("execute-snapshot", "{}", "data-collections names no table"),
        ("execute-snapshot", '{"data-collections": []}', "data-collections names no table"),
        ("execute-snapshot", '{"data-collections": "T"}', "data-collections is a text; it must be"),
        (
            "execute-snapshot",
            '{"data-collections": ["a", 1]}',
            "item 2 of data-collections is a nu",
        ),
        (
            "execute-snapshot",
            '{"data-collections": [" "]}',
            "item 1 of data-collections is an empt",
        ),
        ("execute-snapshot", '{"data-collections": ["*.T"]}', "did you mean .*T?"),
        ("execute-snapshot", '{"data-collections": ["a("]}', "double quotes"),
        ("execute-snapshot", '{"data-collection": ["a"]}', "did you mean data-collections?"),
        ("execute-snapshot", '{"colour": 1}', "fields are type, data-collections"),
        ("execute-snapshot", '{"data-collections": ["a"], "type": "full"}', "incremental or block"),
        ("execute-snapshot", '{"data-collections": ["a"], "type": 1}', "type is a number; it must"),
        (
            "execute-snapshot",
            '{"data-collections": ["a"], "surrogate-key": ["ID"]}',
            "surrogate-key is a list; it must be a text",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a"], "additional-conditions": [{"filter": "X=1"}]}',
            "item 1 of additional-conditions must be an object with data-collection and filter",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a"], "additional-conditions":'
            ' [{"data-collection": "a", "filter": ""}]}',
            "filter in item 1 of additional-conditions is an empty text; it must be an SQL",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a"], "additional-conditions":'
            ' [{"data-collection": "a", "filter": "SELECT * FROM A"}]}',
            "the filter for a is a whole statement, which only a blocking snapshot can run",
        ),
        (
            "execute-snapshot",
            '{"data-collections": ["a"], "additional-condition": "X=1", "additional-conditions":'
            ' [{"data-collection": "a", "filter": "X=1"}]}',
            "there is both additional-condition and additional-conditions",
        ),
        ("stop-snapshot", "{}", 'type is missing; a stop-snapshot needs "type": "incremental"'),
        ("stop-snapshot", '{"type": "blocking"}', "that of a stop-snapshot must be incremental"),
        ("log", "{}", "message is missing"),
        ("log", '{"message": true}', "message is true; it must be a text"),
        ("schema-changes", '{"changes": [{"id": "T"}]}', "database is missing"),
        ("schema-changes", '{"database": "d"}', "changes is missing"),
        ("schema-changes", '{"database": "d", "changes": {}}', "changes is an object; it must be"),
        (
            "schema-changes",
            '{"database": "d", "changes": [{}]}',
            "item 1 of changes must be an obj",
        ),
    ],
)
def test_wrong_signal_is_refused_with_what_is_expected(
    type: str, data: str | None, said: str
) -> None:
    with pytest.raises(SignalError) as caught:
        parse_signal("1", type, data)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (ORDERS, (ORDERS,)),
        ("/DB/shop.fdb.orders", (ORDERS,)),
        (r"/db/shop[.]fdb\.(orders|items)", (ORDERS, ITEMS)),
        (".*", ALL),
        ("ORDERS", ()),
        ("shop.fdb.ORDERS", ()),
        (r"/db/shop.fdb.O[A-Z]*S", (ORDERS,)),
        ('/db/shop.fdb."My.Table"', (DOTTED,)),
        ('"/db/shop.fdb"."My.Table"', (DOTTED,)),
        (DOTTED, (DOTTED,)),
        ('/db/shop.fdb."O.DERS"', ()),
        # A table's name as it is, though $ ends a text in a regular expression.
        (LOG, (LOG,)),
        ('/db/shop.fdb."SYS$LOG"', (LOG,)),
    ],
)
def test_pattern_matches_whole_identifiers_only(pattern: str, found: tuple[str, ...]) -> None:
    matched = matching([pattern], ALL)
    assert matched.identifiers == found
    assert matched.unmatched == (() if found else (pattern,))


def test_tables_come_once_in_the_order_of_the_patterns() -> None:
    matched = matching([ITEMS, "nothing", ".*S"], ALL)
    assert matched.identifiers == (ITEMS, ORDERS)
    assert matched.unmatched == ("nothing",)


def test_quotes_in_quoted_names_and_patterns() -> None:
    quoted = '/db/shop.fdb.A"B'
    for pattern in ('/db/shop.fdb."A""B"', r"/db/shop.fdb.A\"B"):
        assert matching([pattern], [quoted, ORDERS]).identifiers == (quoted,)


def test_sender_of_a_bare_name_is_told_the_whole_one() -> None:
    assert describe_unmatched("orders", ALL) == (
        f"orders matches no table: write the whole name, {ORDERS}"
    )
    assert f"write the whole name, {DOTTED}" in describe_unmatched('"My.Table"', ALL)
    assert "matches no captured table" in describe_unmatched("/db/shop.fdb.GONE", ALL)


def test_first_matching_condition_counts() -> None:
    conditions = ((r".*\.orders", "A = 1"), (".*", "B = 2"))
    assert condition_for(ORDERS, conditions) == "A = 1"
    assert condition_for(ITEMS, conditions) == "B = 2"
    assert condition_for(ITEMS, conditions[:1]) is None


def test_examples_of_the_page_are_signals(tmp_path: Path) -> None:
    text = (ROOT / "docs/signals.md").read_text("utf-8")
    sections = re.findall(r"^### ([a-z-]+)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    found = []
    for kind, section in sections:
        page = tmp_path / f"{kind}.md"
        page.write_text(section, "utf-8")
        found += [type(parse_signal("1", kind, block)) for block in blocks(page, "json")]
    assert found == [ExecuteSnapshot, StopSnapshot, LogMessage]


@pytest.mark.parametrize(
    ("pattern", "may"),
    [
        ("/srv/shop.fdb.ITEM", True),
        (r"/srv/shop\.fdb\..*", True),
        ("/srv/shop[.]fdb[.].*", True),
        ('/SRV/shop.fdb."A B"', True),
        (".*ITEM", True),
        ("/srv/shops?.*", True),
        ("/srv/other.fdb.X|/srv/shop.fdb.Y", True),
        ("/srv/other.fdb.ITEM", False),
        ("/srv/shop2.fdb.*", False),
        ("ITEM", False),
    ],
)
def test_pattern_concerns_databases_by_how_it_begins(pattern: str, may: bool) -> None:
    assert may_match(pattern, "/srv/shop.fdb") is may


@pytest.mark.parametrize(
    ("conditions", "unmatched", "idle"),
    [
        (["ORDERS"], [], ["ORDERS"]),
        ([ORDERS, "/db/shop.fdb.ORDER"], [], ["/db/shop.fdb.ORDER"]),
        ([ORDERS, ".*"], [], []),
        # It is for a table that is not there: no row of it is sent without it.
        (["/db/shop.fdb.GONE"], ["/db/shop.fdb.GONE"], []),
        ([".*[.]GONE"], ["/db/shop.fdb.GONE"], []),
        (["/db/shop[.]fdb[.]GONE"], ["/db/shop[.]fdb[.]GONE"], []),
        ([ITEMS], [], [ITEMS]),
    ],
)
def test_condition_that_is_for_no_table_of_the_snapshot_is_found(
    conditions: list[str], unmatched: list[str], idle: list[str]
) -> None:
    pairs = [(pattern, "A = 1") for pattern in conditions]
    assert idle_conditions(pairs, unmatched, [ORDERS]) == idle
