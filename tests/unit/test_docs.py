"""Truth of the pages: paths, links, commands, options, quoted messages, the example event."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from documented import (
    CONSUMERS,
    EXEMPT,
    PAGES,
    ROOT,
    RUN_BY_CONSUMERS,
    RUN_ON_A_SERVER,
    RUNNABLE,
    blocks,
    command_lines,
    exemption,
)

from firebird_cdc import __version__
from firebird_cdc.cli import build_parser
from firebird_cdc.config import load_config
from firebird_cdc.config.options import find_option
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.format import Column, JournalReader, JournalWriter, RowChange, Storage

ROOMS = ("native", "bridge", "journal", "config", "packaging", "demo")
README = ROOT / "README.md"

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FOLDERS = "|".join([*ROOMS, "firebird_cdc", "docs", "tests", "scripts", "benchmarks", r"\.ci"])
_PATH = re.compile(rf"(?:^|(?<=[\s=\"'(]))((?:{_FOLDERS})/[\w./*-]*)(?=$|[\s\"',:);])")
_FILE = re.compile(r"[\w-]+\.(?:md|py|toml|in)|Makefile|LICENSE")
_OPTION = re.compile(
    r"(?:connector|kafka|key|value|event|snapshot|heartbeat|metrics|include|provide|toasted"
    r"|signal|transforms|tombstones|table|column|message|topic|poll)\.[\w.]+"
)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


def commands(page: Path) -> Iterator[list[str]]:
    """The command lines in blocks, split in words, without assignments before them."""
    for line in command_lines(page):
        words = shlex.split(line)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            del words[0]
        if words:
            yield words


def anchors(page: Path) -> set[str]:
    """The names under which the headings of PAGE can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


def test_readme_and_pages_are_found() -> None:
    assert README in PAGES
    assert len(PAGES) > 8


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name}: {target} leads nowhere"
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {target}: no such heading"


@pages
def test_paths_in_pages_lead_to_files(page: Path) -> None:
    text = page.read_text("utf-8")
    mentioned = [path for span in _SPAN.findall(text) for path in _PATH.findall(span)]
    mentioned += [path for block in blocks(page, "") for path in _PATH.findall(block)]
    for path in mentioned:
        pattern = re.sub(r"\b[A-Z]{2,}\b", "*", path).rstrip("/.")  # NAME stands for any
        found = (ROOT / path).exists() or any(ROOT.glob(pattern))
        assert found, f"{page.name}: {path} does not exist"


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs/architecture.md"])
def test_file_names_without_a_folder_exist_at_the_top_or_in_every_room(page: Path) -> None:
    for span in _SPAN.findall(prose(page)):
        if _FILE.fullmatch(span):
            assert (ROOT / span).exists() or any(ROOT.glob(f"*/{span}")), span


def test_architecture_names_every_room_and_every_file_of_the_server_side() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    for room in ROOMS:
        assert f"`{room}/`" in text
    parts = [*ROOT.glob("native/*.c"), *ROOT.glob("bridge/*.py")]
    helpers = {
        "__init__.py",
        "crc32c.c",
        "plugin.c",
        "_embedding.c",
        "embedded.py",
        "service.py",
    }
    for part in parts:
        if part.name not in helpers:
            assert f"`{part.parent.name}/{part.name}`" in text, f"{part.name} is not explained"


@pages
def test_make_commands_are_targets(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    lines = [*commands(page), *(_words(span) for span in _SPAN.findall(prose(page)))]
    for words in lines:
        if words[:1] != ["make"]:
            continue
        for word in words[1:]:
            name, assigned, _ = word.partition("=")
            known = name in variables if assigned else name in targets
            assert known, f"{page.name}: {shlex.join(words)}: no {name} in the Makefile"


def _words(span: str) -> list[str]:
    try:
        return shlex.split(span)
    except ValueError:
        return []


@pages
def test_firebird_cdc_commands_in_blocks_parse(page: Path) -> None:
    for words in commands(page):
        if Path(words[0]).name == "firebird-cdc":
            arguments = words[1:]
        elif words[0] == "spark-submit":  # what follows the program is as for replay
            programs = [n for n, word in enumerate(words) if word.endswith(("main.py", "path)"))]
            if not programs:  # it submits what the page shows
                continue
            arguments = ["replay", *words[programs[-1] + 1 :]]
        else:
            continue
        try:
            build_parser().parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{page.name}: wrong usage: {shlex.join(words)}")


@pages
def test_every_command_in_blocks_is_run_by_a_test_or_exempt_for_a_reason(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    run = RUNNABLE if name in RUN_ON_A_SERVER else RUN_BY_CONSUMERS if name == CONSUMERS else ()
    for line in command_lines(page):
        assert exemption(line) or line.startswith(run), f"{page.name}: nothing runs {line}"


def test_every_exemption_is_needed_and_has_a_reason() -> None:
    lines = [line for page in PAGES for line in command_lines(page)]
    for begin, why in EXEMPT.items():
        assert any(line.startswith(begin) for line in lines), f"{begin}: no page has that any more"
        for path in _PATH.findall(why):
            assert (ROOT / path).exists(), f"{begin}: {path} is gone"


def test_pages_name_one_place_for_each_thing() -> None:
    """The options' file and the server are found; where a page names one, all name the same."""
    for page in PAGES:
        for words in commands(page):
            if words[0] == "firebird-cdc":
                for option in ("--server", "--config"):
                    assert option not in words, f"{page.name}: {shlex.join(words)}"
            if "pip" in Path(words[0]).name:
                assert words[0] == "/opt/firebird-cdc-venv/bin/pip", f"{page.name}: {words}"
                assert "firebird-cdc" not in words, f"{page.name}: it is on no index: {words}"


@pages
def test_firebird_cdc_commands_in_sentences_exist(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for span in _SPAN.findall(prose(page)):
        words = _words(span)
        if words[:1] != ["firebird-cdc"] or len(words) == 1:
            continue
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args([*_subcommand(words[1:]), "--help"])
        assert ended.value.code == 0, f"{page.name}: {span}"
        told = capsys.readouterr().out
        for option in re.findall(r"--[a-z-]+", span):
            assert option in told, f"{page.name}: {span}: no {option}"


def _subcommand(words: list[str]) -> list[str]:
    """The words that name a command: those before its options and values."""
    end = 2 if words[0] in ("journal", "replay", "snapshot") else 1
    return words[:end]


def test_changelog_names_every_command() -> None:
    told = (ROOT / "CHANGELOG.md").read_text("utf-8")
    names = re.findall(r"^    (\w+)(?:  |$)", build_parser().format_help(), re.MULTILINE)
    assert len(names) > 5
    for name in names:
        assert re.search(rf"`(?:firebird-cdc )?{name}\b", told), f"the changelog lacks {name}"


@pages
def test_options_in_pages_are_known(page: Path) -> None:
    if page.name in ("reference.md", "moving-from-the-red-database-connector.md", "transforms.md"):
        return  # made from the table of options, one on options that differ, one on parameters
    for span in _SPAN.findall(prose(page)):
        name, _, value = span.partition(": ")
        if _OPTION.fullmatch(name):
            option = find_option(name)
            assert option is not None, f"{page.name}: no option {name}"
            if value and option.allowed:
                assert value in option.allowed, f"{page.name}: {span}"


def test_readme_configuration_loads_and_is_the_least(tmp_path: Path) -> None:
    (shown,) = blocks(README, "yaml")
    path = tmp_path / "reddatabase.connector.yaml"
    path.write_text(shown, encoding="utf-8")
    assert load_config(path).warnings == ()
    for line in shown.splitlines():
        if "archive" not in line:
            path.write_text(shown.replace(line, ""), encoding="utf-8")
            with pytest.raises(ConfigError, match=re.escape(line.split(":")[0])):
                load_config(path)


def test_messages_quoted_in_operations_and_troubleshooting_are_in_the_code() -> None:
    sources = [*_messages(), *map(os.strerror, (errno.EACCES, errno.EROFS))]
    quoted = [
        span
        for page in ("operations", "troubleshooting")
        for span in _SPAN.findall(prose(ROOT / f"docs/{page}.md"))
        if " " in span
        and not span.startswith(("firebird-cdc ", "journal ", "make ", "systemctl "))
        and not _OPTION.fullmatch(span.partition(": ")[0])
    ]
    assert len(quoted) > 20
    for span in quoted:
        assert any(span in text for text in sources), f"nothing of ours says: {span}"


def _messages() -> Iterator[str]:
    """The strings of the code: literals in a row as one, the gaps of f-strings as ``{}``."""
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "{}"
                        for part in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
    for path in ROOT.glob("native/*.c"):
        for run in re.findall(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', path.read_text("utf-8")):
            yield "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', run))


def test_environment_variables_are_read_somewhere() -> None:
    code = "".join(
        path.read_text("utf-8")
        for pattern in ("*/*.py", "*/*/*.py", "setup.py", "native/*.c", "scripts/*.sh", "Makefile")
        for path in ROOT.glob(pattern)
        if not path.is_relative_to(ROOT / "tests")
    )
    for page in PAGES:
        for name in re.findall(r"\bFIREBIRD_C\w+|\bPYTHONSAFEPATH\b", page.read_text("utf-8")):
            assert name in code, f"{page.name}: nothing reads {name}"


def test_markers_of_contributing_are_those_of_pytest() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    declared = [line.split(":")[0] for line in settings["tool"]["pytest"]["ini_options"]["markers"]]
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("| Marker |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == declared


def test_whatever_make_test_leaves_out_is_run_by_another_target() -> None:
    recipes = dict(
        re.findall(r"^([a-z]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    )
    [chosen, of_sanitized] = re.findall(r'-m "(.+?)"', recipes["test"])
    assert chosen.split(" and ") == ["not sanitized", "not soak"]
    assert of_sanitized == "not soak"
    assert "$(MAKE) --no-print-directory sanitize SANITIZED=" in recipes["test"]
    assert "$(MAKE) sanitize\n" in recipes["soak"]
    assert re.search(r"INSTRUMENT=sanitizers .* tests/engine$", recipes["sanitize"], re.MULTILINE)
    assert re.search(r"pytest \$\(IN_PARALLEL\) tests/engine$", recipes["soak"], re.MULTILINE)
    assert re.search(r'pytest \$\(IN_PARALLEL\) -m "soak or spark"$', recipes["soak"], re.MULTILINE)


def test_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert versions[0] == __version__


@pages
def test_pages_name_nothing_of_one_machine(page: Path) -> None:
    text = page.read_text("utf-8")
    for private in ("/work/", "/root", ".pyenv", "/home/"):
        assert private not in text, f"{page.name} holds {private}"


_DOCUMENT = re.compile(r"(?<![\w*{}<])[\w./-]*\w\.(?:md|rst|adoc|pdf|odt|docx)\b")
"""A document by its name; what is behind a scheme is another place's."""


def cited_in(text: str) -> set[str]:
    """Return the names of the documents that TEXT cites, but for those at an address."""
    return set(_DOCUMENT.findall(re.sub(r"\w+://\S+", "", text)))


def test_documents_that_any_file_cites_are_in_the_repository() -> None:
    """Whoever has a clone has all that its files send readers to."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kept = {ROOT / name for name in listed.stdout.split("\0") if name}
    absent = []
    for path in sorted(kept):
        if path == Path(__file__) or path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for name in sorted(cited_in(text)):
            places = ((folder / name).resolve() for folder in (path.parent, ROOT, ROOT / "docs"))
            if kept.isdisjoint(places):
                absent.append(f"{path.relative_to(ROOT)}: {name}")
        if "../shared/" in text:
            absent.append(f"{path.relative_to(ROOT)}: ../shared/")
    assert not absent, "\n".join(absent)


def test_a_cited_document_is_seen_in_code_and_text() -> None:
    text = (
        "# as spec/features.md 4.2 says, see `../plans/what next.md`, [one](two.md#three) and"
        " https://example.org/docs/four.md; *.md, {name}.md and <name>.md are no names, schema.doc"
        " is none either; a sentence ends with five.md."
    )
    assert cited_in(text) == {"spec/features.md", "next.md", "two.md", "five.md"}


def test_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    targets = {(ROOT / "docs" / target).resolve() for target in _LINK.findall(index)}
    for page in ROOT.glob("docs/*.md"):
        if page.name != "README.md":
            assert page in targets, f"docs/README.md does not link to {page.name}"


# ---------------------------------------------------------------------- the example event


def _column(name: str, storage: Storage, key_position: int = 0) -> Column:
    return Column(
        name=name,
        sql_type=0,
        sub_type=0,
        scale=0,
        length=8,
        charset_id=4,
        char_length=0,
        precision=0,
        nullable=key_position == 0,
        identity=False,
        key_position=key_position,
        storage=storage,
    )


def _without_shipping_times(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if not name.startswith("ts_")}


def test_readme_example_equals_the_sent_event(tmp_path: Path) -> None:
    (shown,) = map(json.loads, blocks(README, "json"))
    source = shown["source"]
    path = tmp_path / "live"
    writer = JournalWriter(
        path,
        uuid=UUID(source["journal"]),
        transaction=source["txId"],
        database=source["db"],
        user="SYSDBA",
        started_us=source["ts_us"],
    )
    columns = [
        _column("ID", Storage.BIGINT, 1),
        _column("STATUS", Storage.TEXT),
        _column("ITEMS", Storage.INTEGER),
    ]
    table = writer.table(source["table"], columns)
    writer.update(table, tuple(shown["before"].values()), tuple(shown["after"].values()))
    writer.seal()
    writer.commit(1, source["ts_us"])
    writer.stamp(source["commitSeq"])
    writer.close()

    config = load_config(ROOT / "config/samples/reddatabase.connector.yaml")
    renderer = Renderer(config, 1_000_000)
    with JournalReader(path) as reader:
        assert reader.stamp is not None
        events = renderer.journal(reader.header, reader.stamp, reader.database)
        (change,) = reader.changes()
        assert isinstance(change, RowChange)
        (message,) = events.messages(change)
    assert message.key is not None
    assert message.value is not None
    sent = json.loads(message.value)["payload"]
    assert list(sent) == list(shown)
    assert _without_shipping_times(sent) == _without_shipping_times(shown)
    text = README.read_text("utf-8")
    assert f"`{message.topic}`" in text
    assert f"`{json.dumps(json.loads(message.key)['payload'])}`" in text


def test_tests_that_the_architecture_names_exist() -> None:
    """Each rule of the commit protocol names those that fail when it is broken."""
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 15
    assert not named - defined
