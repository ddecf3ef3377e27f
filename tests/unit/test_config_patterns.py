"""Patterns that begin with ``*``: read as if they began with ``.*``, wherever patterns stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from least_config import load_with

from firebird_cdc.config.filters import MessageKeys, TableFilter
from firebird_cdc.errors import ConfigError

DATABASE = "/data/shop.fdb"


@pytest.mark.parametrize(
    ("line", "better"),
    [
        ("table.include.list: '*.orders'", "table.include.list: .*.orders"),
        ("table.include.list: *.orders", "table.include.list: .*.orders"),
        ("table.include.list: *orders, .*x  # both", "table.include.list: .*orders, .*x"),
        ("table.include.list: ' *orders ,a\\,b'", "table.include.list: ' .*orders ,a\\,b'"),
        ("table.include.list : *.orders", "table.include.list: .*.orders"),
        ("table.include.list: [.*x, '*orders']", "table.include.list: [.*x, .*orders]"),
        ("table.include.list: [*.x, .*y,*orders ] # all", "table.include.list: [.*.x, .*y,"
         " .*orders]"),
        ("table.include.list:\n- .*x # one\n\n# two\n-  *.orders", "table.include.list: [.*x,"
         " .*.orders]"),
        ("table.include.list: # two\n  - *.x\n  - *.z # z", "table.include.list: [.*.x, .*.z]"),
        ("table.include.list: ['.*id', *.x]", "table.include.list: [.*id, .*.x]"),
        ('table.include.list: [".*id", *.x] # all', "table.include.list: [.*id, .*.x]"),
        ("table.include.list: [\n  *.x,\n  .*y\n  ]", "table.include.list: [.*.x, .*y]"),
        ("table.include.list:\n  *.x", "table.include.list: .*.x"),
        ("table.include.list: >\n  *.x,\n  *.y", "table.include.list: .*.x, .*.y"),
        ("table.include.list: |\n  *.x", "table.include.list: .*.x"),
        ("table.include.list: |\n  *.x,\n  .*y", "table.include.list: .*.x, .*y"),
        ("table.include.list: >\n\n  .*x,\n    *.y\n", "table.include.list: .*x, .*.y"),
        ("table.include.list:\n- |\n  *.x\n- .*y", "table.include.list: [.*.x, .*y]"),
        ("message.key.columns: |\n  *.x:a;\n  .*y:b", "message.key.columns: .*.x:a; .*y:b"),
        ("table.include.list: .*a,\n  *.x", "table.include.list: .*a, .*.x"),
        ("table.include.list: *", "table.include.list: .*"),
        ('"table.include.list": *.x', "table.include.list: .*.x"),
        ("table.include.list: '*[.]orders: #'", "table.include.list: '.*[.]orders: #'"),
        ("message.key.columns: '*.orders:id,*no;.*x:y'", "message.key.columns: .*.orders:id,.*no;"
         ".*x:y"),
        ("message.key.columns: *.orders:id", "message.key.columns: .*.orders:id"),
        ("datatype.propagate.source.type: '*.char'", "datatype.propagate.source.type: .*.char"),
        ("column.truncate.to.5.chars: '*'", "column.truncate.to.5.chars: .*"),
        ("topic.creation.a.include: '*.b'", "topic.creation.a.include: .*.b"),
    ],
)  # fmt: skip
def test_the_warning_shows_the_line_which_means_the_same(
    tmp_path: Path, line: str, better: str
) -> None:
    rest = ["topic.creation.groups: a"] * line.startswith("topic.creation")
    config = load_with(tmp_path, line, *rest)
    [warning] = config.warnings
    key = line.partition(":")[0].strip(' "')
    assert warning.startswith(f"{config.path}:1: {key} holds *")
    assert warning.endswith(f"; write this line: {better}")
    written = load_with(tmp_path, better, *rest)
    assert written.warnings == ()
    for name in [
        "table_include_list",
        "message_key_columns",
        "datatype_propagate",
        "column_truncate",
        "topic_creation",
    ]:
        assert getattr(written, name) == getattr(config, name)


def test_pattern_with_a_bare_asterisk_matches_as_intended(tmp_path: Path) -> None:
    config = load_with(
        tmp_path,
        "table.exclude.list: *.tmp",
        "column.exclude.list: '*secret'",
        "message.key.columns: '*.orders:*no'",
    )
    tables = TableFilter(config)
    assert tables.captures(DATABASE, "ORDERS")
    assert not tables.captures(DATABASE, "TMP")
    assert tables.keeps_column(DATABASE, "ORDERS", "ID")
    assert not tables.keeps_column(DATABASE, "ORDERS", "TOP_SECRET")
    assert MessageKeys(config).indices(DATABASE, "ORDERS", ("ID", "NO")) == (1,)


def test_a_salt_in_the_key_is_not_shown(tmp_path: Path) -> None:
    config = load_with(tmp_path, "column.mask.hash.v2.SHA-256.with.salt.pepper: '*.pin'")
    [warning] = config.warnings
    assert "pepper" not in warning
    assert warning.endswith("with.salt.<salt>: .*.pin")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("'**.name'", "item 1 (**.name)"),
        ("'*[a'", "item 1 (*[a)"),
        ("'*.a, (b'", "item 2 ((b)"),
        ("'?name'", "item 1 (?name)"),
        ("'+name'", "item 1 (+name)"),
        ("'(*.a)'", "did you mean (.*a)?"),
    ],
)
def test_other_patterns_that_are_none_are_refused(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_with(tmp_path, f"column.include.list: {line}")
    [problem] = caught.value.problems
    assert f"{tmp_path / 'c.yaml'}:1: column.include.list" in problem
    assert named in problem
    assert "is not a regular expression" in problem


def test_asterisk_in_an_option_without_patterns_needs_quotes(tmp_path: Path) -> None:
    for line in ("connector.charset.none: *utf", "transforms: [*a]", "transforms:\n- *a"):
        with pytest.raises(ConfigError, match=r"begins with \* (or & )?must stand in quotes"):
            load_with(tmp_path, line)


def test_an_ampersand_elsewhere_makes_no_alias_of_a_pattern(tmp_path: Path) -> None:
    config = load_with(
        tmp_path,
        "# of R&orders",
        "database.password: a&orders",
        "table.include.list: *orders",
        "column.include.list: &orders .*x",
    )
    [warning] = config.warnings
    assert warning.endswith("; write this line: table.include.list: .*orders")


def test_an_alias_of_yaml_stays_one(tmp_path: Path) -> None:
    config = load_with(tmp_path, "table.include.list: &t .*x", "column.include.list: *t")
    assert config.warnings == ()
    assert config.table_include_list == config.column_include_list
