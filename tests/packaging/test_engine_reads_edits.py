"""Reading, by the real engine, of the files that install edits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from red_database import (
    RED_DATABASE_PLUGINS,
    RED_DATABASE_REPLICATION,
    RED_DATABASE_TWO_DATABASES,
)

from firebird_cdc.bridge.recovery import Recovery
from firebird_cdc.cli import main
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.folder.open_journals import given_in, is_open
from firebird_cdc.journal.format import JournalReader, open_any

if TYPE_CHECKING:
    from conftest import Work

    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine


def _operations(journals: Path) -> list[str]:
    """Return the row changes of all committed transactions."""
    found = []
    for reader in _committed(journals):
        with reader:
            found += [change.op for change in reader.changes() if hasattr(change, "op")]
    return sorted(found)


def _await_operations(journals: Path, *expected: str) -> None:
    """Wait for these, once no process is at work: one that ends does not wait for long until what
    it has committed is decided, and leaves that to the shipper then."""
    recovery = Recovery(journals, fsync=True)

    def are_there() -> bool:
        recovery.look()
        return _operations(journals) == list(expected)

    await_condition("the journals", are_there, 60)


def _committed(journals: Path) -> Iterator[JournalReader]:
    for path in journals.glob("*.log*"):
        with suppress(FileNotFoundError):  # closed meanwhile
            if is_open(path):
                for place in given_in(path):
                    yield JournalReader(path / f"{place.uuid}.log", place=place)
            elif path.suffix == ".log":
                opened = open_any(path)
                if isinstance(opened, JournalReader):
                    yield opened
                    continue
                with opened:
                    for place in opened.places:
                        yield opened.reader(place)


def test_a_moved_over_red_database_root_captures_and_stops_when_uninstalled(
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: tuple[str, ...],
    tmp_path: Path,
) -> None:
    (engine_root.path / "plugins.conf").write_text(RED_DATABASE_PLUGINS)
    (engine_root.path / "replication.conf").write_text(RED_DATABASE_REPLICATION)
    server = ["--server", str(engine_root.path)]
    assert main(["install", *server, "--config", str(options_file)]) == 0
    database, journals = tmp_path / "shop.fdb", tmp_path / "new/journals"
    work(database, published)
    work(database, ["INSERT INTO T VALUES (1)", "INSERT INTO T VALUES (2)", "DELETE FROM T"])
    _await_operations(journals, "c", "c", "d", "d")

    assert main(["uninstall", *server]) == 0
    (engine_root.path / "replication.conf").write_text("")  # the old connector is not there
    work(database, ["INSERT INTO T VALUES (3)"])
    assert _operations(journals) == ["c", "c", "d", "d"]


def test_only_databases_named_by_a_red_database_server_are_captured(
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: tuple[str, ...],
    tmp_path: Path,
) -> None:
    named = [tmp_path / "shop.fdb", tmp_path / "crm.fdb"]
    replication = f"database\n{{\n}}\n{RED_DATABASE_TWO_DATABASES}"
    for written, database in zip(("/your/db.fdb", "/var/db/rdb.fdb"), named, strict=True):
        assert written in replication
        replication = replication.replace(written, str(database))
    (engine_root.path / "plugins.conf").write_text(RED_DATABASE_PLUGINS)
    (engine_root.path / "replication.conf").write_text(replication)
    assert main(["install", "--server", str(engine_root.path), "--config", str(options_file)]) == 0
    journals = tmp_path / "new/journals"
    for database in (*named, tmp_path / "other.fdb"):
        work(database, published)
        work(database, ["INSERT INTO T VALUES (1)"])
    _await_operations(journals, "c", "c")


@pytest.mark.parametrize(
    ("opening", "captured"), [("database {\n", True), ("database { # all of them\n", False)]
)
def test_a_comment_after_the_bracket_hides_a_section_and_check_says_so(
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: tuple[str, ...],
    tmp_path: Path,
    opening: str,
    captured: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = ["--server", str(engine_root.path)]
    assert main(["install", *server, "--config", str(options_file)]) == 0
    replication = engine_root.path / "replication.conf"
    keys = "plugin = Firebird_CDC\nreport_errors = true\ndisable_on_error = false\n"
    replication.write_text(f"{opening}{keys}}}\n")
    database, journals = tmp_path / "shop.fdb", tmp_path / "new/journals"
    work(database, published)
    work(database, ["INSERT INTO T VALUES (1)"])
    if captured:
        _await_operations(journals, "c")
    assert _operations(journals) == (["c"] if captured else [])
    capsys.readouterr()
    main(["check", *server])
    said = capsys.readouterr().out
    assert ("a comment after '{'" in said) is not captured


def test_key_in_letters_that_the_engine_does_not_know_is_written_anew(
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: tuple[str, ...],
    tmp_path: Path,
) -> None:
    replication = engine_root.path / "replication.conf"
    replication.write_text("database\n{\n\tPlugin = Debezium_Connector\n}\n")
    before = replication.read_bytes()
    server = ["--server", str(engine_root.path)]
    assert main(["install", *server, "--config", str(options_file)]) == 0
    database, journals = tmp_path / "shop.fdb", tmp_path / "new/journals"
    work(database, published)
    work(database, ["INSERT INTO T VALUES (1)"])
    _await_operations(journals, "c")
    assert main(["uninstall", *server]) == 0
    assert replication.read_bytes() == before


def test_database_with_a_section_above_that_names_no_plugin_is_named(
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database, other = tmp_path / "shop.fdb", tmp_path / "other.fdb"
    journals = tmp_path / "new/journals"
    replication = engine_root.path / "replication.conf"
    replication.write_text(f"database = {database}\n{{\n\tinclude_filter = T\n}}\n")
    server = ["--server", str(engine_root.path)]
    assert main(["install", *server, "--config", str(options_file)]) == 0
    note = f"{database} is not captured: its section in {replication}, line 1, names no plugin"
    assert note in capsys.readouterr().out
    for each in (database, other):
        work(each, published)
        work(each, ["INSERT INTO T VALUES (1)"])
    _await_operations(journals, "c")
    assert main(["install", *server, "--database", str(database)]) == 0
    assert "is not captured" not in capsys.readouterr().out
    work(database, ["INSERT INTO T VALUES (2)"])
    _await_operations(journals, "c", "c")
