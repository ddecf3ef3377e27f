"""Transactions of a real engine as ``status`` tells of them, from the folder alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from firebird_cdc.cli import main
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.shipper.commands.status import read_status

if TYPE_CHECKING:
    from conftest import Work

    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.engine

# Carries out a statement, or an end, for each line that comes, and answers.
_TALK = """
import sys
from firebird.driver import connect, driver_config
driver_config.fb_client_library.value = sys.argv[1]
connection = connect(sys.argv[2], user="SYSDBA")
for line in sys.stdin:
    line = line.strip()
    if line in ("commit", "rollback"):
        getattr(connection, line)()
    else:
        connection.execute_immediate(line)
    print("done", flush=True)
"""


class Client:
    """A client of its own process, which has the embedded engine."""

    def __init__(self, engine_root: EmbeddedRoot, database: Path) -> None:
        library = str(engine_root.client_library)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _TALK, library, str(database)],
            env=engine_root.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, what: str) -> None:
        """Have it carry out a statement, ``commit`` or ``rollback``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        """End it in the middle of what it does."""
        self.process.kill()
        self.process.communicate()


def test_status_tells_open_and_waiting_transactions_of_an_engine_and_none_of_an_idle_journal(
    engine_root: EmbeddedRoot,
    options_file: Path,
    work: Work,
    published: tuple[str, ...],
    tmp_path: Path,
) -> None:
    server = ["--server", str(engine_root.path)]
    assert main(["install", *server, "--config", str(options_file)]) == 0
    database, journals = tmp_path / "shop.fdb", tmp_path / "new/journals"
    work(database, published)

    def told() -> tuple[int, int]:
        backlog = read_status(journals)["backlog"]
        return backlog["pending"], backlog["live"]

    def await_told(pending: int, live: int) -> None:
        await_condition("the counts", lambda: told() == (pending, live), 60)

    client = Client(engine_root, database)
    try:
        client.do("INSERT INTO T VALUES (1)")
        await_told(0, 1)
        client.do("commit")
        await_told(1, 0)
        assert list(journals.glob("*.log.live"))
        client.do("INSERT INTO T VALUES (2)")
        assert told() == (1, 1)
        client.do("rollback")
        assert told() == (1, 0)
        client.do("INSERT INTO T VALUES (3)")
        client.do("commit")
        await_told(2, 0)
        client.do("INSERT INTO T VALUES (4)")
        assert told() == (2, 1)
    finally:
        client.kill()
    assert told() == (2, 0)
    (row,) = read_status(journals)["databases"]
    assert (row["path"], row["pending"]) == (str(database), 2)
