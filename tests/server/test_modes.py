"""A real server as Super and as Classic: several clients over TCP, and kill -9."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import random_work
from capture import Attachment, Client, Journal, SqlError, fold, read_folder, until
from effects import EFFECTS, assert_adds_up, surviving_rows
from shared_folder import committed_in, live_in
from soaked import half_of

from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import members

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

pytestmark = pytest.mark.server

# Starting a server and its shipper can take long on a busy machine.
_PATIENCE_S = 120.0
_NOWHERE = "127.0.0.1:9"  # no broker: what is shipped can't be looked at any more
_RANDOM_WORK = Path(random_work.__file__)
_MODES = ("Super", "Classic")
_both_modes = pytest.mark.parametrize("server_mode", _MODES)
_modes_and_forms = pytest.mark.parametrize(
    ("server_mode", "transactions"), half_of(_MODES, {"own": 1, "shared": 0})
)
_T = TypeVar("_T")


def _until(what: str, condition: Callable[[], _T]) -> _T:
    return until(what, condition, _PATIENCE_S)


class Site:
    """A started server with the plugin, a published database, and clients in other processes."""

    def __init__(
        self, server: Firebird4, root: EmbeddedRoot, directory: Path, transactions: int
    ) -> None:
        self.server = server
        self.journals, self.archive = server.install(_NOWHERE, "modes")
        self.database = server.folder / "modes.fdb"
        self.clients: list[Client] = []
        self._root = root
        self._directory = directory
        with (server.folder / "connector.yaml").open("a") as options:
            options.write(
                "kafka.producer.close.timeout.ms: 500\n"
                f"connector.journal.transactions: {transactions}\n"
            )
        server.start()

    def create(self, *statements: str) -> None:
        """Make the database with these tables, all published."""
        client = self.client()
        attachment = client.attach(self.dsn, create=True)
        attachment.script(
            *statements,
            "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
            "ALTER DATABASE ENABLE PUBLICATION",
        )
        client.end()
        self.clients.remove(client)

    @property
    def dsn(self) -> Path:
        """Name by which a client calls the database; a path, for Client.attach."""
        return Path(self.server.dsn(self.database))

    def client(self) -> Client:
        """Start a client process."""
        environment = self.server.stack.environment(self._root.environment())
        environment["ISC_PASSWORD"] = self.server.password
        errors = self._directory / f"client-{len(self.clients) + 1}.log"
        client = Client(self._root.client_library, environment, errors)
        self.clients.append(client)
        return client

    def attach(self) -> Attachment:
        """Attach to the database in a process of its own."""
        return self.client().attach(self.dsn)

    def gfix(self, *arguments: str) -> None:
        """Do something to the database as a DBA does, over TCP."""
        name = ["-user", "SYSDBA", "-password", self.server.password, str(self.dsn)]
        self.server.system.run("gfix", *arguments, *name)

    def drop_clients(self) -> None:
        """End the clients, whose server may be gone, at once."""
        while self.clients:
            client = self.clients.pop()
            if client.process.poll() is None:
                client.kill()

    def committed(self) -> list[Path]:
        return committed_in(self.journals)

    def _open(self) -> list[Path]:
        return list(self.journals.glob("*.log.live"))

    def aside(self) -> list[Path]:
        return list((self.journals / ".firebird-cdc/quarantine").glob("*.reason"))

    def settled(self, is_running: bool = True) -> list[Journal]:
        """Return the journals in order, once none is undecided; none may be missing or aside. With
        no server that may write to them, they are closed, too."""

        def is_settled() -> bool:
            return not (live_in(self.journals) if is_running else self._open())

        try:
            _until("all journals to be decided", is_settled)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.server.evidence()}") from error
        assert not self.aside(), self.aside()[0].read_text()
        found = read_folder(self.journals)
        assert [journal.sequence for journal in found] == list(range(1, len(found) + 1))
        return found

    def assert_exact(self, tables: list[str]) -> None:
        """Assert that the journals add up to what the tables hold."""
        folded = fold(self.settled())
        reader = self.attach()
        for table in tables:
            assert folded.get(table, {}) == reader.rows(table), table

    def shippers(self) -> list[int]:
        """Return the shippers that the plugin has started, ready or not."""
        found = []
        for process in members(self.server.stack.mark):
            try:
                command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if "--embedded" in command:
                found.append(process)
        return found


@pytest.fixture
def transactions() -> int:
    """connector.journal.transactions: as by default, small transactions share journals."""
    return 0


@pytest.fixture
def site(
    firebird4: Firebird4, engine_root: EmbeddedRoot, tmp_path: Path, transactions: int
) -> Iterator[Site]:
    made = Site(firebird4, engine_root, tmp_path, transactions)
    yield made
    made.drop_clients()


def _server_process(attachment: Attachment) -> tuple[int, int]:
    """Return the process that serves the connection, and the connection's number."""
    [row] = attachment.execute(
        "SELECT MON$SERVER_PID AS PID, MON$ATTACHMENT_ID AS NUMBER FROM MON$ATTACHMENTS"
        " WHERE MON$ATTACHMENT_ID = CURRENT_CONNECTION"
    )
    attachment.commit()
    return row["PID"], row["NUMBER"]


def _is_gone(attachment: Attachment) -> bool:
    """Tell whether the server has closed a connection; it does so in its own time."""
    try:
        attachment.execute("SELECT 1 FROM RDB$DATABASE")
    except SqlError:
        return True
    return False


@_modes_and_forms
def test_kills_while_clients_work_lose_and_invent_nothing(site: Site, server_mode: str) -> None:
    site.create(*random_work.TABLES, *EFFECTS)
    chance = random.Random(f"modes {server_mode}")
    for life in range(3):
        enough = len(site.committed()) + chance.randint(10, 60)
        for number in range(2):
            arguments = (str(site.dsn), f"life {life} of {number}", 3, 10_000)
            site.client().start("perform", str(_RANDOM_WORK), "work", arguments)
        _until(f"{enough} journals", lambda: len(site.committed()) >= enough)  # noqa: B023
        site.server.kill()
        site.drop_clients()
        if life == 2:
            site.settled(is_running=False)
        site.server.start()
    attachment = site.attach()
    attachment.execute("INSERT INTO LOG_ VALUES (-1, 'last')")
    attachment.commit()
    tables = surviving_rows(attachment, site.database)
    assert_adds_up(site.settled(), tables, killed=True)


@_modes_and_forms
def test_a_commit_before_a_kill_is_completed_without_a_server(site: Site) -> None:
    site.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    attachment = site.attach()
    attachment.execute("INSERT INTO T VALUES (1)")
    attachment.commit()
    _until("the shipper", site.shippers)
    other = site.attach()
    other.execute("INSERT INTO T VALUES (2)")
    attachment.execute("INSERT INTO T VALUES (3)")
    attachment.commit()
    site.server.kill()
    settled = site.settled(is_running=False)
    rows = [row["ID"] for journal in settled for _, _, row in journal.brief() if row]
    assert rows == [1, 3]
    site.drop_clients()
    site.server.start()
    site.assert_exact(["T"])


@_both_modes
def test_database_shut_or_dropped_right_after_a_commit_loses_nothing(site: Site) -> None:
    site.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    attachment = site.attach()
    for number in range(3):
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
    attachment.close()
    # Fails if somebody stays attached for that many seconds.
    site.gfix("-shut", "full", "-attach", "30")
    site.gfix("-online")
    site.assert_exact(["T"])
    site.drop_clients()
    attachment = site.attach()

    def is_alone() -> bool:
        query = "SELECT COUNT(*) AS ATTACHED FROM MON$ATTACHMENTS WHERE MON$SYSTEM_FLAG = 0"
        [found] = attachment.execute(query)
        attachment.commit()
        return bool(found["ATTACHED"] == 1)

    _until("the server to notice that others are gone", is_alone)
    attachment.execute("INSERT INTO T VALUES (3)")
    attachment.commit()
    attachment.drop_database()
    assert not site.database.exists()
    rows = [row["ID"] for journal in site.settled() for _, _, row in journal.brief() if row]
    assert rows == [0, 1, 2, 3]


@_both_modes
def test_savepoints_that_end_out_of_turn_are_refused_and_others_are_exact(site: Site) -> None:
    """Firebird 4 keeps a savepoint's end to itself wherever its name is set again."""
    site.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    attachment = site.attach()
    for name, number in (("A", 1), ("B", 2)):
        attachment.immediate(f"SAVEPOINT {name}")
        attachment.execute("INSERT INTO T VALUES (?)", number)
    attachment.immediate("ROLLBACK TO SAVEPOINT B")
    attachment.execute("INSERT INTO T VALUES (3)")
    attachment.immediate("RELEASE SAVEPOINT A")
    attachment.execute("INSERT INTO T VALUES (4)")
    attachment.commit()
    for number in (5, 6):
        attachment.immediate("SAVEPOINT S")
        attachment.execute("INSERT INTO T VALUES (?)", number)
    attachment.commit()
    for number in (7, 8):
        attachment.immediate("SAVEPOINT S")
        attachment.execute("INSERT INTO T VALUES (?)", number)
    attachment.immediate("ROLLBACK TO SAVEPOINT S")
    with pytest.raises(SqlError, match="a savepoint was released out of turn"):
        attachment.commit()
    attachment.rollback()
    written = [[row["ID"] for _, _, row in journal.brief() if row] for journal in site.settled()]
    assert [rows for rows in written if rows] == [[1, 3, 4], [5, 6]]
    site.assert_exact(["T"])


@_both_modes
def test_one_connection_ends_and_the_others_go_on(site: Site, server_mode: str) -> None:
    site.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    first, second, third = (site.attach() for _ in range(3))
    for number, attachment in enumerate((first, second, third)):
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
    served_by, number = _server_process(first)
    processes = {served_by, *(_server_process(attachment)[0] for attachment in (second, third))}
    assert len(processes) == (3 if server_mode == "Classic" else 1)
    first.execute("INSERT INTO T VALUES (10)")  # never committed
    if server_mode == "Classic":
        os.kill(served_by, signal.SIGKILL)
    else:
        second.execute("DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID = ?", number)
        second.commit()
    _until("the first connection to be gone", lambda: _is_gone(first))
    for number in range(3):
        second.execute("INSERT INTO T VALUES (?)", 20 + number)
        second.commit()
        third.execute("INSERT INTO T VALUES (?)", 30 + number)
        third.commit()
    _until("what was committed", lambda: len(site.committed()) == 9)
    # Each process of Classic tries to be the one with the shipper, and gives up if it is not.
    _until("one shipper", lambda: len(site.shippers()) == 1)
    _until("the server to wait for the children it had", lambda: not _zombies(site.server))
    # What was never committed was in memory alone: nothing of it waits for the others to end.
    assert len(site.settled()) == 9
    site.drop_clients()
    _until("the connections to end", lambda: not _connected(site.server, server_mode))
    last = site.attach()
    last.execute("INSERT INTO T VALUES (40)")
    last.commit()
    rows = {row["ID"] for journal in site.settled() for _, _, row in journal.brief() if row}
    assert rows == {0, 1, 2, 20, 21, 22, 30, 31, 32, 40}
    site.assert_exact(["T"])


def _connected(server: Firebird4, mode: str) -> bool:
    """Tell whether there are processes that serve connections (Classic)."""
    return mode == "Classic" and len(server.processes()) > 1


def _zombies(server: Firebird4) -> list[str]:
    """Return the children of the server's processes that ended and were not waited for."""
    parents = set(server.processes())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(") ")
        except OSError:
            continue  # ended meanwhile
        state, parent = rest.split()[:2]
        if state == "Z" and int(parent) in parents:
            found.append(name)
    return found
