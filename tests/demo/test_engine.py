"""The root of the embedded engine that the demo and the tests use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firebird_cdc.demo.engine import EmbeddedRoot
from firebird_cdc.demo.processes import Stack, await_condition

pytestmark = pytest.mark.engine

_PROGRAM = """
import os, sys
from firebird.driver import connect, create_database, driver_config
driver_config.fb_client_library.value = os.environ["FIREBIRD"] + "/lib/libfbclient.so.2"
def open_database(path, make):
    return (create_database if make else connect)(path, user="SYSDBA", charset="UTF8")
"""


def _python(root: EmbeddedRoot, stack: Stack, name: str, program: str, *arguments: object) -> str:
    argv = [sys.executable, "-c", _PROGRAM + program, *map(str, arguments)]
    stack.run(name, argv, root.environment())
    return stack.log_path(name).read_text(encoding="utf-8")


def test_two_processes_share_a_database(
    engine_root: EmbeddedRoot, stack: Stack, tmp_path: Path
) -> None:
    database = tmp_path / "shared.fdb"
    make = 'open_database(sys.argv[1], True).close(); print("made")'
    assert _python(engine_root, stack, "make", make, database) == "made\n"
    # Attached in one process, until the other has been seen to attach as well.
    hold = (
        "c = open_database(sys.argv[1], False); open(sys.argv[2], 'w').close()\n"
        "import time\n"
        "while not os.path.exists(sys.argv[3]): time.sleep(0.01)\n"
        "c.close()"
    )
    here, there = tmp_path / "here", tmp_path / "there"
    argv = [sys.executable, "-c", _PROGRAM + hold, database, here, there]
    holder = stack.start("hold", argv, engine_root.environment())
    await_condition("the first attachment", here.exists, 60)
    other = "c = open_database(sys.argv[1], False); open(sys.argv[2], 'w').close(); c.close()"
    _python(engine_root, stack, "other", other, database, there)
    assert holder.wait(60) == 0


def test_character_sets_time_zones_and_big_numbers_work(
    engine_root: EmbeddedRoot, stack: Stack, tmp_path: Path
) -> None:
    program = """
c = open_database(sys.argv[1], True)
cursor = c.cursor()
cursor.execute("select upper('žluť'), upper('ž' collate unicode_ci),"
    " cast(timestamp '2026-07-01 12:00 Europe/Prague' at time zone 'UTC' as varchar(30)),"
    " cast(2 as decimal(38)) / 3, cast(1 as decfloat(34)) / 3 from rdb$database")
print(*cursor.fetchone(), sep="|")
cursor.close(); c.close()
"""
    said = _python(engine_root, stack, "types", program, tmp_path / "types.fdb")
    upper, collated, moment, _, decimal = said.strip().split("|")
    assert (upper, collated.rstrip()) == ("ŽLUŤ", "Ž")
    assert moment.startswith("2026-07-01 10:00:00")
    assert decimal == "0." + "3" * 34


def test_a_root_made_twice_keeps_the_configuration_that_was_edited(tmp_path: Path) -> None:
    root = EmbeddedRoot(tmp_path / "root")
    (root.path / "plugins.conf").write_text("# mine\n")
    again = EmbeddedRoot(tmp_path / "root", settings={"DefaultDbCachePages": "512"})
    assert (again.path / "plugins.conf").read_text() == "# mine\n"
    assert "DefaultDbCachePages = 512" in (again.path / "firebird.conf").read_text()


def test_the_log_of_the_engine_is_in_its_root(
    engine_root: EmbeddedRoot, stack: Stack, tmp_path: Path
) -> None:
    # A process that leaves without closing its attachment is worth a line to the engine.
    program = "c = open_database(sys.argv[1], True)"
    _python(engine_root, stack, "leave", program, tmp_path / "left.fdb")
    assert "Shutting down" in (engine_root.path / "firebird.log").read_text()


def test_lock_files_of_a_killed_engine_stay_in_its_root(
    engine_root: EmbeddedRoot, stack: Stack, tmp_path: Path
) -> None:
    program = "c = open_database(sys.argv[1], True); os.kill(os.getpid(), 9)"
    argv = [sys.executable, "-c", _PROGRAM + program, tmp_path / "killed.fdb"]
    assert stack.start("killed", argv, engine_root.environment()).wait(60) == -9
    assert {"fb_init", "fb_lock", "fb_tpc"} <= {
        "_".join(path.name.split("_")[:2]) for path in engine_root.locks.iterdir()
    }
