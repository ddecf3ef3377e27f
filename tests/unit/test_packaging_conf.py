"""Firebird's configuration syntax: what is read, and that edits touch nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.server.conf import ConfFile, ConfSyntaxError, Entry, find, quoted

EDITED_BY_SOMEBODY = """\
# Replication of our shop          (kept as it is)
database
{
\t# include_filter = x
    include_filter = "SHOP#.*"   # only these

}
   DataBase = /data/{{odd}} name.fdb { # the engine takes '{' for a part of the value here
}
database = /data/a.fdb {
\tbuffer_size = 1048576 }

\t  verbose\r
"""


def parse(text: str) -> ConfFile:
    return ConfFile.parse(text, Path("/server/replication.conf"))


def as_tree(entries: list[Entry]) -> list[object]:
    return [
        (e.name, e.value) if e.entries is None else (e.name, e.value, as_tree(e.entries))
        for e in entries
    ]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", []),
        ("# only = comments {\n", []),
        ("name = value\n", [("name", "value")]),
        ("name\n", [("name", "")]),
        ("name=a = b\n", [("name", "a = b")]),
        ('name = " a # b "  # note\n', [("name", " a # b ")]),
        ("a = 1 # }\n", [("a", "1")]),
        ("a {\nb = 1\n}\n", [("a", "", [("b", "1")])]),
        ("a\n\n# between\n{\nb = 1\n}", [("a", "", [("b", "1")])]),
        ("a = x {\nb = 1 }\n", [("a", "x", [("b", "1")])]),
        ("a = {{x}}\n", [("a", "{x}")]),
        ("a = x {\nb {\nc = 1\n}\n}\n", [("a", "x", [("b", "", [("c", "1")])])]),
        # The engine's own reading: the comment makes the bracket a part of the value.
        ("a = x { # note\nb = 1\n}\n", [("a", "x {", [("b", "1")])]),
        ("\ta = 1\r\nb = 2\r\n", [("a", "1"), ("b", "2")]),
        ("include other.conf\n", [("include", "other.conf")]),
    ],
)
def test_a_file_is_read_as_the_engine_reads_it(text: str, tree: list[object]) -> None:
    assert as_tree(parse(text).entries) == tree


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a = 1\n}\n", 2, "without a section"),
        ("{\n}\n", 1, "without a name"),
        ("a {\nb = 1\n", 1, "has no '}'"),
        ("a { b = 1 }\n", 1, "text after"),
        ('a = "x\n', 1, "not closed"),
        ('a = "x" y\n', 1, "after the end of the value"),
        ("= x\n", 1, "without a name"),
        ("a {\n} x\n", 2, "text after '}'"),
    ],
)
def test_syntax_refused_by_the_engine_is_named_with_its_line(
    text: str, line: int, what: str
) -> None:
    with pytest.raises(ConfSyntaxError, match=what) as raised:
        parse(text)
    assert raised.value.line == line
    assert f"/server/replication.conf, line {line}" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        EDITED_BY_SOMEBODY,
        "database\n{\n}",
        "database\r\n{\r\n\tplugin = Old\r\n}\r\n",
        "",
        "# no line end",
        "database { \nplugin = Old }",
        "database {\nplugin = A\nplugin = B\n}\n",
    ],
)
def test_edits_are_read_back_and_restored_to_the_byte(text: str) -> None:
    conf = parse(text)
    if not find(conf.entries, "database", ""):
        conf.add_section("database", "", [("buffer_size", "1")], ["a remark"])
    conf.set_key(conf.sections("database", "")[0], "plugin", "Ours")
    conf.set_key(conf.sections("database", "")[0], "report_errors", "true")
    conf.add_section("Config", "x_config", [("Python", "/opt/with # and {brackets}")])

    edited = parse(conf.text)
    section = edited.sections("database", "")[0]
    assert [entry.value for entry in section.find("plugin")] == ["Ours"]
    assert section.last("report_errors") == "true"
    assert edited.sections("Config")[0].last("Python") == "/opt/with # and {brackets}"
    before, after = parse(text), edited
    for entry in before.entries[1:]:
        assert as_tree([entry])[0] in as_tree(after.entries)
    if "buffer_size = 1\n" not in edited.text:
        assert edited.restored() == (text, [])


def test_an_edit_that_changes_nothing_leaves_the_file_alone() -> None:
    conf = parse("database\n{\n  plugin = Ours\n}\n")
    assert not conf.set_key(conf.sections("database")[0], "plugin", "Ours")
    assert conf.text == "database\n{\n  plugin = Ours\n}\n"


def test_a_second_edit_of_our_own_line_keeps_the_users_first_one() -> None:
    conf = parse("database\n{\n  plugin = Theirs # since 2019\n}\n")
    for value in ("Ours", "Newer"):
        conf.set_key(conf.sections("database")[0], "plugin", value)
    assert conf.sections("database")[0].last("plugin") == "Newer"
    text, kept = conf.restored()
    assert text == "database\n{\n  plugin = Theirs # since 2019\n}\n"
    assert kept == []


def test_user_lines_in_the_connectors_section_survive_its_removal() -> None:
    conf = parse("a = 1\n")
    conf.add_section("database", "", [("plugin", "Ours")])
    conf.set_key(conf.sections("database")[0], "include_filter", "SHOP")
    text, kept = parse(conf.text).restored()
    assert kept == ["include_filter = SHOP"]
    assert text is not None
    assert parse(text).sections("database")[0].last("include_filter") == "SHOP"


def test_a_file_made_by_an_edit_goes_with_it(tmp_path: Path) -> None:
    conf = ConfFile.open(tmp_path / "replication.conf")
    conf.add_section("database", "", [("plugin", "Ours")])
    conf.path.write_text(conf.text)
    assert ConfFile.read(conf.path).restored() == (None, [])


def test_bytes_that_are_no_utf8_survive(tmp_path: Path) -> None:
    path = tmp_path / "plugins.conf"
    path.write_bytes(b"# caf\xe9\na = \xff\n")
    conf = ConfFile.read(path)
    conf.add_section("Plugin", "X", [("Module", "m")])
    assert conf.text.encode("utf-8", "surrogateescape").startswith(b"# caf\xe9\na = \xff\n#")


def test_includes_are_read_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/1.conf").write_text("b = 1\n")
    (tmp_path / "more/2.conf").write_text("c = 2\n")
    main = tmp_path / "firebird.conf"
    main.write_text("a = 0\ninclude more/*.conf\nd = 3\n")
    assert [e.name for e in ConfFile.read(main).expanded()] == ["a", "b", "c", "d"]
    assert ConfFile.read(main).included() == [tmp_path / "more/1.conf", tmp_path / "more/2.conf"]
    main.write_text("include nowhere.conf\n")
    with pytest.raises(ConfSyntaxError, match=r"included file nowhere\.conf is missing"):
        ConfFile.read(main).expanded()
    main.write_text("include firebird.conf\n")
    with pytest.raises(ConfSyntaxError, match="nested too deep"):
        ConfFile.read(main).expanded()


@pytest.mark.parametrize("value", ['say "x"', "two\nlines"])
def test_a_value_that_the_syntax_cannot_hold_is_refused(value: str) -> None:
    with pytest.raises(SetupError, match="can't be written"):
        quoted(value)
