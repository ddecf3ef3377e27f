"""``enable``, ``disable`` and ``tables`` on databases that the embedded engine opens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest

if TYPE_CHECKING:
    from conftest import Work

    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine

_TABLES = (
    'CREATE TABLE "Größe" (ID INTEGER NOT NULL PRIMARY KEY, V INTEGER)',
    "CREATE TABLE ORDERS (N INTEGER NOT NULL, ID INTEGER NOT NULL, PRIMARY KEY (ID, N))",
    "CREATE TABLE LOG$1 (MADE TIMESTAMP, WHAT VARCHAR(10))",
    "CREATE TABLE NOTES (WHAT VARCHAR(10))",
    "CREATE TABLE TMP_1 (ID INTEGER PRIMARY KEY)",
    "CREATE VIEW SEEN AS SELECT ID FROM ORDERS",
    "CREATE GLOBAL TEMPORARY TABLE GONE (ID INTEGER)",
)


class Shop:
    """A database, and the commands about it, run as from a shell."""

    def __init__(self, root: EmbeddedRoot, options: Path, database: Path) -> None:
        self.database, self.options = database, options
        self._environment = root.environment()

    def run(self, command: str, *words: str, code: int = 0) -> str:
        """Return all that the command prints."""
        argv = [sys.executable, "-P", "-m", "firebird_cdc", command, str(self.database), *words]
        done = forked.run(
            [*argv, "--config", str(self.options)],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def tables(self) -> dict[str, Any]:
        """Return what ``tables`` tells, by the names of the tables."""
        lines = self.run("tables", "--json").splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return {each["table"]: each for each in told}

    def captured(self) -> list[str]:
        return sorted(name for name, told in self.tables().items() if told["captured"])


@pytest.fixture
def shop(engine_root: EmbeddedRoot, options_file: Path, work: Work, tmp_path: Path) -> Shop:
    with options_file.open("a") as options:
        options.write("table.exclude.list: .*[.]TMP_.*\nmessage.key.columns: .*[.]LOG[$]1:MADE\n")
    database = tmp_path / "shop.fdb"
    work(database, _TABLES)
    return Shop(engine_root, options_file, database)


def test_all_tables_are_captured_and_later_ones_join(shop: Shop, work: Work) -> None:
    preview = shop.run("enable", "--dry-run")
    assert "would run ALTER DATABASE INCLUDE ALL TO PUBLICATION" in preview
    assert shop.captured() == []
    said = shop.run("enable")
    assert "ran ALTER DATABASE ENABLE PUBLICATION" in said
    assert "warning: tables without primary or unique key: NOTES;" in said
    assert "table TMP_1 is published, and no event tells of its changes: left out by" in said
    work(shop.database, ["CREATE TABLE LATER (ID INTEGER PRIMARY KEY)"])
    assert shop.captured() == ["Größe", "LATER", "LOG$1", "NOTES", "ORDERS"]
    told = shop.tables()
    assert {name: each["key"] for name, each in told.items() if each["captured"]} == {
        "Größe": ["ID"],
        "LATER": ["ID"],
        "LOG$1": ["MADE"],
        "NOTES": [],
        "ORDERS": ["N", "ID"],
    }
    assert told["ORDERS"]["topic"].endswith("_shop.fdb.ORDERS")
    assert "Nothing to do" in shop.run("enable")

    assert "ran ALTER DATABASE EXCLUDE ALL FROM PUBLICATION" in shop.run("disable")
    assert shop.captured() == []
    assert "Nothing to do" in shop.run("disable")


def test_named_tables_alone_are_captured_and_let_go(shop: Shop) -> None:
    shop.run("enable", "--tables", "log$1", "größe", "ord.*")
    assert shop.captured() == ["Größe", "LOG$1", "ORDERS"]
    assert "Nothing to do" in shop.run("enable", "--tables", "ORDERS")
    shop.run("disable", "--tables", "Größe", "NOTES")
    assert shop.captured() == ["LOG$1", "ORDERS"]
    assert "Nothing to do" in shop.run("disable", "--tables", "Größe")
    assert "An initial snapshot (snapshot.mode) begins" in shop.run("enable", "--tables", "Größe")
    with shop.options.open("a") as options:
        options.write("snapshot.mode: never\n")
    said = shop.run("enable", "--tables", "NOTES")
    assert "Rows that are there already are not sent (snapshot.mode: never). See" in said


def test_tables_that_would_share_a_topic_are_named(shop: Shop, work: Work) -> None:
    work(shop.database, ['CREATE TABLE "A.B" (ID INTEGER)', "CREATE TABLE A_B (ID INTEGER)"])
    said = shop.run("enable", "--tables", "A.B", "a_b")
    assert "would have the topics" in said
    assert "differ only in . and _" in said
    assert shop.captured() == ["A.B"]


def test_tables_that_are_not_there_are_refused_and_nothing_is_changed(shop: Shop) -> None:
    said = shop.run("enable", "--tables", "ORDERS", "SEEN", "N", "*", code=2)
    assert "--tables SEEN: " in said
    assert "--tables N: " in said
    assert "* is not a regular expression" in said.replace("(*)", "*")
    assert shop.captured() == []


def test_databases_that_can_t_be_changed_are_told_with_what_to_do(
    shop: Shop, engine_root: EmbeddedRoot, work: Work
) -> None:
    gfix = [sys.executable, "-P", "-c", _READ_ONLY, str(engine_root.client_library)]
    subprocess.run([*gfix, str(shop.database)], env=engine_root.environment(), check=True)
    said = shop.run("enable", code=1)
    assert f"gfix -mode read_write {shop.database}" in said
    assert "warning: forced writes are off" in said
    shop.database = shop.database.with_name("absent.fdb")
    assert "there is no such database" in shop.run("enable", code=1)
    assert not shop.database.exists()


_READ_ONLY = """
import sys
from firebird import driver
from firebird.driver import DbAccessMode, DbWriteMode
driver.driver_config.fb_client_library.value = sys.argv[1]
driver.driver_config.register_server("local").user.value = "SYSDBA"
with driver.connect_server("local") as server:
    server.database.set_write_mode(database=sys.argv[2], mode=DbWriteMode.ASYNC)
    server.database.set_access_mode(database=sys.argv[2], mode=DbAccessMode.READ_ONLY)
"""
