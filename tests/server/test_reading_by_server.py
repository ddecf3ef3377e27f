"""Existing rows of a Super server that nobody has credentials for: the server itself reads them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from soaked import few_of

from firebird_cdc.demo.events import read_topics
from firebird_cdc.demo.firebird4 import Firebird4
from firebird_cdc.demo.processes import await_condition, members, stand_still
from firebird_cdc.errors import SetupError
from firebird_cdc.journal.events.topic_encoding import REPLACE, topic_of
from firebird_cdc.journal.folder.reading_socket import Kind, Outcome, receive, send

if TYPE_CHECKING:
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = [pytest.mark.server, pytest.mark.kafka]

_ROWS = 4000
_PATIENCE_S = 180
_ANSWER_S = 45  # less than the minute after which the server gives up who stands still
_READERS = "SELECT COUNT(*) FROM MON$ATTACHMENTS WHERE MON$REMOTE_PROCESS = 'firebird-cdc snapshot'"


class _Shop:
    """A server with a database whose rows were there before its publication, and no credentials."""

    def __init__(self, server: Firebird4, client: Any, broker: KafkaBroker, prefix: str) -> None:
        self.server, self.client = server, client
        self._bootstrap = broker.bootstrap
        self.journals, _ = server.install(broker.bootstrap, prefix)
        with (server.folder / "connector.yaml").open("a") as options:
            options.write("connector.snapshot.by.server: true\n")
        self.database = server.folder / "shop.fdb"
        self.topic = topic_of(REPLACE, prefix, str(server.inner(self.database)), "ITEM")

    def configure(self, *lines: str) -> None:
        file = self.server.folder / "connector.yaml"
        text = file.read_text().replace("snapshot.mode: never\n", "")
        file.write_text(text + "".join(f"{line}\n" for line in lines))

    def fill(self, rows: int = _ROWS) -> None:
        with self.client.create_database(self.server.dsn(self.database)) as connection:
            for statement in (
                "CREATE TABLE ITEM (ID INTEGER PRIMARY KEY, NAME VARCHAR(40), NOTE BLOB,"
                " STAMP TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP)",
                f"EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < {rows}) DO"
                " BEGIN INSERT INTO ITEM (ID, NAME, NOTE) VALUES (:I, 'old',"
                " IIF(:I < 4000 AND MOD(:I, 100) = 0, LPAD(CAST('' AS BLOB), 100 * :I, 'note '),"
                " NULL)); I = I + 1; END END",
                "ALTER DATABASE INCLUDE ALL TO PUBLICATION",
                "ALTER DATABASE ENABLE PUBLICATION",
            ):
                connection.execute_immediate(statement)
                connection.commit()

    def connect(self) -> Any:
        return self.client.connect(self.server.dsn(self.database), charset="UTF8")

    def change(self, number: int) -> None:
        with self.connect() as connection:
            connection.execute_immediate(f"UPDATE ITEM SET NAME = 'new' WHERE ID = {number}")
            connection.commit()

    def rows(self) -> dict[int, tuple[str, int | None]]:
        """Return name and length of the note of each row in the database."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT ID, NAME, OCTET_LENGTH(NOTE) FROM ITEM")
            return {number: (name, length) for number, name, length in cursor.fetchall()}

    def told(self) -> tuple[dict[int, tuple[str, int | None]], list[str]]:
        """Return the same of what a consumer has, and the operations."""
        rows: dict[int, tuple[str, int | None]] = {}
        operations = []
        for key, envelope in read_topics(self._bootstrap, [self.topic])[self.topic]:
            if envelope is None:
                continue
            payload, number = envelope["payload"], key["payload"]["ID"]
            operations.append(payload["op"])
            if payload["op"] == "d":
                rows.pop(number, None)
                continue
            after = payload["after"]
            note = after["NOTE"]
            length = None if note is None else len(base64.b64decode(note))
            rows[number] = (after["NAME"], length)
        return rows, operations

    def states(self) -> list[dict[str, Any]]:
        found = (self.journals / ".firebird-cdc/snapshots").glob("*.json")
        return [json.loads(path.read_bytes()) for path in found]

    def is_over(self) -> bool:
        return any(state["past"] for state in self.states())

    def until(
        self,
        what: str,
        condition: Callable[[], object],
        patience: float = _PATIENCE_S,
        interval: float = 0.05,
    ) -> None:
        try:
            await_condition(what, condition, patience, interval)
        except SetupError as error:
            pytest.fail(f"{error}\n{self.states()}\n{self.server.evidence()}")

    def attachments(self) -> int:
        """Return how many attachments there are by which the server reads."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(_READERS)
            count: int = cursor.fetchone()[0]
            return count

    def processes(self, words: str) -> list[int]:
        """Return the processes of the server's side with WORDS in their command line."""
        found = []
        for process in members(self.server.stack.mark):
            with contextlib.suppress(OSError):
                if words.encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
        return found

    @property
    def sockets(self) -> list[Path]:
        return [
            path
            for path in (self.journals / ".firebird-cdc/reading").iterdir()
            if path.suffix != ".new"
        ]


@pytest.fixture
def shop(firebird4: Firebird4, client: Any, broker: KafkaBroker, topic_prefix: str) -> _Shop:
    return _Shop(firebird4, client, broker, topic_prefix)


@contextlib.contextmanager
def _writers(shop: _Shop) -> Iterator[None]:
    """Have somebody insert, update and delete rows meanwhile."""
    end = Event()

    def write(first: int) -> None:
        with shop.connect() as connection:
            number = first
            while not end.is_set():
                for statement in (
                    f"UPDATE ITEM SET NAME = 'n{number}' WHERE ID = {number % _ROWS}",
                    f"INSERT INTO ITEM (ID, NAME) VALUES ({_ROWS + number}, 'more')",
                    f"DELETE FROM ITEM WHERE ID = {number * 7 % _ROWS}",
                ):
                    connection.execute_immediate(statement)
                    connection.commit()
                number += 2
                end.wait(0.002)

    threads = [Thread(target=write, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_initial_snapshot_without_credentials_has_all_rows_beside_writers(shop: _Shop) -> None:
    shop.configure("snapshot.max.threads: 2", "snapshot.fetch.size: 300")
    shop.server.start()
    shop.fill()
    with _writers(shop):
        shop.until("the initial snapshot to end", shop.is_over)
    wanted = shop.rows()
    shop.until("all rows", lambda: shop.told()[0] == wanted)
    _, operations = shop.told()
    assert operations.count("r") >= _ROWS // 2
    shop.until("the server to have let go", lambda: shop.attachments() == 0)


def _hold(shop: _Shop) -> list[int]:
    """Have the server read in a window, whose reader processes stand still then; return these."""
    shop.configure("snapshot.fetch.size: 20")
    shop.server.start()
    shop.fill(40_000)
    shop.change(0)
    readers: list[int] = []

    def are_held() -> bool:
        readers[:] = shop.processes("snapshot.worker")
        _tell(readers, signal.SIGSTOP)
        if readers and shop.attachments() > 0:
            return True
        _tell(readers, signal.SIGCONT)  # between two attachments, or about to end
        return False

    shop.until("readers that stand still as they read", are_held)
    assert not shop.is_over()
    return readers


def _tell(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            stand_still(process) if number == signal.SIGSTOP else os.kill(process, number)


@pytest.mark.soak  # tests/engine/test_reading_inside.py has connections break off
@pytest.mark.parametrize("victim", ["snapshot.worker", "ship"])
def test_kill_of_who_reads_ends_what_the_server_has_open(shop: _Shop, victim: str) -> None:
    readers = _hold(shop)
    _tell(readers if victim != "ship" else shop.processes(victim), signal.SIGKILL)
    shop.until("the attachments to go", lambda: shop.attachments() == 0)


@pytest.mark.parametrize("reconnects", few_of({"prompt": False, "script": True}, ["script"]))
def test_database_can_be_dropped_while_the_server_reads_it(shop: _Shop, reconnects: bool) -> None:
    _hold(shop)
    connection = shop.connect()
    failures = []

    def is_dropped() -> bool:
        nonlocal connection
        if reconnects:
            connection.close()
            connection = shop.connect()
        try:
            connection._att.drop_database()  # its own drop_database forgets the attachment
        except shop.client.DatabaseError as error:
            failures.append(str(error))
            return False
        connection._att = None
        return True

    # Who could end the readers, which stand still, does so, too; and the server gives up who takes
    # no answer for a minute. Tried as people do.
    shippers = shop.processes("ship")
    _tell(shippers, signal.SIGSTOP)
    try:
        shop.until("the database to be dropped", is_dropped, 50, 1)
    finally:
        connection.close()
        _tell(shippers, signal.SIGCONT)
    assert all("in use" in each for each in failures), failures
    assert not shop.database.exists()
    with shop.client.create_database(shop.server.dsn(shop.database)) as again:
        again.execute_immediate("CREATE TABLE A (ID INTEGER)")
        again.commit()


@pytest.mark.soak  # tests/engine/test_reading_inside.py has a database shut down
@pytest.mark.parametrize("how", ["-force", "-attach"])
def test_shut_down_while_the_server_reads_it(shop: _Shop, how: str) -> None:
    readers = _hold(shop)

    def gfix(*arguments: str) -> None:
        name = ["-user", "SYSDBA", "-password", shop.server.password]
        database = shop.server.dsn(shop.database)
        shop.server.system.run("gfix", *arguments, *name, database)

    gfix("-shut", "full", how, "8")
    with pytest.raises(shop.client.DatabaseError, match="shutdown"):
        shop.connect()
    gfix("-online")
    _tell(readers, signal.SIGCONT)
    shop.until("the snapshot to be taken after all", shop.is_over)
    wanted = shop.rows()
    shop.until("all rows", lambda: shop.told()[0] == wanted)


@pytest.mark.soak  # tests/engine/test_reading_inside.py has processes end
def test_server_stops_while_it_reads(shop: _Shop) -> None:
    _hold(shop)
    process = shop.server._process
    process.terminate()
    assert process.wait(_ANSWER_S) == 0
    shop.server._process = None
    shop.server.start()
    shop.change(1)
    shop.until("the snapshot to be taken anew", shop.is_over)


def _ask(path: Path, *questions: tuple[int, bytes]) -> list[tuple[int, bytes]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(str(path))
        answers = []
        for kind, content in questions:
            send(connection, kind, content)
            outcome, told = receive(connection, 1 << 24)
            answers.append((outcome, bytes(told)))
        return answers


def test_socket_serves_what_is_captured_and_minds_what_is_sent(shop: _Shop, tmp_path: Path) -> None:
    shop.configure("snapshot.mode: never")
    shop.server.start()
    shop.fill(10)
    shop.change(0)
    other = shop.server.folder / "other.fdb"
    shop.client.create_database(shop.server.dsn(other)).close()
    [path] = shop.sockets
    assert path.stat().st_mode & 0o777 == 0o600
    near = tmp_path / "s"
    near.symlink_to(path)
    captured, foreign = (os.fsencode(shop.server.inner(each)) for each in (shop.database, other))
    read_only, writing = bytes((3, 2, 6, 8)), bytes((3, 2, 6, 9))
    transaction = struct.pack("<I", 1)
    answers = _ask(
        near,
        (Kind.CAPTURES, captured),
        (Kind.CAPTURES, foreign),
        (Kind.BEGIN, read_only),
        (Kind.ATTACH, foreign),
        (Kind.ATTACH, b"/etc/passwd"),
        (Kind.ATTACH, captured),
        (Kind.BEGIN, writing),
        (Kind.BEGIN, read_only + bytes((23, 8))),
        (Kind.BEGIN, read_only),
        (Kind.PREPARE, transaction + b"DELETE FROM ITEM"),
        (Kind.PREPARE, transaction + b"SELECT * FROM ITEM FOR UPDATE WITH LOCK"),
        (Kind.PREPARE, transaction + b"SELECT nothing FROM nowhere"),
        (Kind.PREPARE, struct.pack("<I", 77) + b"SELECT 1 FROM RDB$DATABASE"),
        (Kind.FETCH, struct.pack("<II", 5, 0xFFFFFFFF)),
        (Kind.READ_BLOB, transaction + b"\xff" * 8),
        (Kind.END, b""),
        (200, b"?"),
        (Kind.PREPARE, transaction + b"SELECT COUNT(*) FROM ITEM"),
    )
    outcomes = [outcome for outcome, _ in answers]
    done, failed, refused = Outcome.ANSWERED, Outcome.FAILED, Outcome.REFUSED
    assert outcomes == [
        *(done, done, refused, refused, refused, done),
        *(refused, refused, done, failed, failed, failed, refused, refused, failed),
        *(refused, refused, done),
    ]
    assert [answers[0][1], answers[1][1]] == [b"\1", b"\0"]
    noise = [os.urandom(3000), b"\xff" * 64, struct.pack("<IB", 1 << 31, Kind.ATTACH), b"\0" * 4]
    for each in noise:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(near))
            with contextlib.suppress(OSError):
                connection.sendall(each)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
    assert _ask(near, (Kind.CAPTURES, captured)) == [(done, b"\1")]
    shop.until("nothing to be left open", lambda: shop.attachments() == 0)
