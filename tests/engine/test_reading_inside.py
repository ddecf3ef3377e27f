"""Rows that a process with ServerMode = Super reads for others: the same, and harmlessly."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import snapshot_work
from capture import PATIENCE_S, Attachment, Capture, Client, SqlError, own_journals, until
from firebird.driver import DatabaseError
from soaked import few_of
from test_snapshot_tables import comparable, insert_everything, make_everything

from firebird_cdc.errors import DatabaseUnreadable
from firebird_cdc.journal.folder.reading_socket import (
    MOST_ANSWER,
    NUMBER,
    PIECE_BYTES,
    Kind,
    Outcome,
    address_of,
    receive,
    send,
)
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection, attach
from firebird_cdc.journal.snapshot.server_attachment import ServerAttachment, is_served
from firebird_cdc.journal.types.canonical import BLOB_LIMIT

pytestmark = pytest.mark.engine

_DRIVER = Path(__file__).with_name("snapshot_work.py")
_WORK = Path(__file__).with_name("reading_work.py")
_OURS = (
    "SELECT COUNT(*) AS N FROM MON$ATTACHMENTS WHERE MON$REMOTE_PROCESS = 'firebird-cdc snapshot'"
)
_LONG = "SELECT COUNT(*) FROM RDB$FIELDS A, RDB$FIELDS B, RDB$FIELDS C, RDB$FIELDS D"
_SMALL = ("CREATE TABLE T (ID INTEGER, V VARCHAR(20))", "CREATE SEQUENCE COUNTED")


def _sockets(capture: Capture) -> Path:
    return capture.journal_directory / ".firebird-cdc/reading"


@pytest.fixture(autouse=True)
def _by_server(capture: Capture) -> None:
    capture.write_config(connector_snapshot_by_server="true")


@pytest.fixture
def how(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> DatabaseConnection:
    """The way by the process that has the database; `snapshot_work` takes it, too."""
    found = DatabaseConnection(str(capture.database), sockets=_sockets(capture))
    monkeypatch.setattr(snapshot_work, "_how", lambda _: found)
    return found


def _serving(capture: Capture, *statements: str) -> tuple[Client, Attachment]:
    """Have a process that has captured something, and so reads for others."""
    capture.create(*statements)
    client = capture.client()
    attachment = client.attach(capture.database)
    attachment.execute("INSERT INTO T (ID) VALUES (0)")
    attachment.commit()
    until("the socket", lambda: is_served(_sockets(capture), str(capture.database)))
    return client, attachment


def _are_gone(attachment: Attachment) -> bool:
    [row] = attachment.execute(_OURS)
    attachment.commit()
    return not row["N"]


def test_rows_of_all_types_are_those_that_the_driver_reads(
    capture: Capture, how: DatabaseConnection
) -> None:
    make_everything(capture)
    client = capture.client()
    attachment = client.attach(capture.database)
    insert_everything(attachment)
    asked = [
        ("read_everything", BLOB_LIMIT),
        ("read_everything", 0),  # without room for BLOBs these are read when they are asked for
        ("read_where", "BLOBS", ["ID = 2", "B1 = 'b' -- x", "ID = ", "1/(ID - 2) = 0"], 1),
        ("read_selected", "KEY_NONE", ["SELECT * FROM KEY_NONE", "SELECT A FROM KEY_NONE"]),
        ("read_selected", "KEY_NONE", ["SELECT * FROM KEY_NONE FOR UPDATE", "SELECT nothing"]),
    ]
    by_server = [getattr(snapshot_work, name)(how.dsn, *rest) for name, *rest in asked]
    until("its attachments to go", lambda: _are_gone(attachment))
    client.end()
    capture.clients.remove(client)
    by_driver = [_by_driver(capture, name, how.dsn, *rest) for name, *rest in asked]
    for ours, theirs in zip(by_server[:2], by_driver[:2], strict=True):
        assert ours[1] == theirs[1] == []
        assert ours[0].keys() == theirs[0].keys()
        assert len(ours[0]) > 10
        for name, (table, rows) in theirs[0].items():
            assert ours[0][name][0] == table
            assert rows, name
            assert list(map(comparable, ours[0][name][1])) == list(map(comparable, rows)), name
    for ours, theirs in zip(by_server[2:], by_driver[2:], strict=True):
        assert _without_words(ours) == _without_words(theirs)


def _by_driver(capture: Capture, name: str, *arguments: Any) -> Any:
    """Return what a process finds that has the file for itself."""
    client = capture.client()
    found = client.perform(_DRIVER, name, *arguments)
    client.end()
    capture.clients.remove(client)
    return found


def _without_words(found: Sequence[Any]) -> list[Any]:
    """Leave out what is said of errors, but not their classes."""
    return [each[0] if isinstance(each, tuple) else each for each in found]


def _busy(attachment: ServerAttachment) -> Thread:
    """Have the engine work for ATTACHMENT for long; the thread ends when that is over."""

    def ask() -> None:
        with suppress(DatabaseError), attachment.cursor() as cursor:
            cursor.execute(_LONG)
            cursor.fetchall()

    thread = Thread(target=ask)
    thread.start()
    return thread


_RUNNING = (
    "SELECT COUNT(*) AS N FROM MON$STATEMENTS WHERE MON$STATE = 1 AND MON$SQL_TEXT STARTING WITH"
    " 'SELECT COUNT(*) FROM RDB$FIELDS A'"
)


def _await_running(attachment: Attachment) -> None:
    def runs() -> bool:
        [row] = attachment.execute(_RUNNING)
        attachment.commit()
        return row["N"] == 1

    until("the engine to be at work", runs)


@pytest.mark.parametrize("again", few_of({str(number): number for number in range(8)}, ["0"]))
def test_process_ends_in_peace_while_others_read(
    capture: Capture, how: DatabaseConnection, again: int
) -> None:
    client, attachment = _serving(capture, *_SMALL)
    with ExitStack() as stack:
        working, silent, _ = (stack.enter_context(closing(attach(how))) for _ in range(3))
        statement = silent.main_transaction
        statement.begin()
        silent.statements().prepare("SELECT * FROM T").open()
        thread = _busy(working)
        _await_running(attachment)
        client.end()
        capture.clients.remove(client)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        with pytest.raises(DatabaseError, match="reads no more"):
            silent.begin(b"")
    with pytest.raises(DatabaseUnreadable, match="no server"):
        attach(how)


def test_reader_that_dies_or_breaks_off_leaves_nothing(
    capture: Capture, how: DatabaseConnection
) -> None:
    _, attachment = _serving(capture, *_SMALL)
    working = attach(how)
    thread = _busy(working)
    _await_running(attachment)
    working._exchange._connection.shutdown(socket.SHUT_RDWR)
    until("what runs for it to end", lambda: _are_gone(attachment))
    thread.join(PATIENCE_S)
    working.close()
    with closing(attach(how)) as other:
        assert snapshot_work._values(other, "SELECT ID FROM T") == [0]


def test_database_is_let_go_for_a_drop(capture: Capture, how: DatabaseConnection) -> None:
    client, attachment = _serving(capture, *_SMALL)
    attachment.close()
    with closing(attach(how)) as reader:
        reader.main_transaction.begin()
        failures = client.perform(_WORK, "drop", how.dsn)
        assert all("in use" in each for each in failures)
        with pytest.raises(DatabaseError, match="reads no more"):
            reader.main_transaction.begin()
    assert not capture.database.exists()


@pytest.mark.parametrize(
    "method", few_of(["FORCED", "DENY_ATTACHMENTS", "DENY_TRANSACTIONS"], ["FORCED"])
)
def test_database_is_let_go_for_a_shutdown(
    capture: Capture, how: DatabaseConnection, method: str
) -> None:
    client, attachment = _serving(capture, *_SMALL)
    with closing(attach(how)) as reader, closing(attach(how)) as working:
        reader.main_transaction.begin()
        thread = _busy(working)
        _await_running(attachment)
        attachment.close()
        client.perform(_WORK, "shut_down", how.dsn, method)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        with pytest.raises(DatabaseError, match=r"reads no more|shutdown"):
            reader.main_transaction.begin()
    attachment = client.attach(capture.database)
    assert attachment.execute("SELECT ID FROM T") == [{"ID": 0}]


def test_readers_that_come_and_go_are_no_sign_of_a_drop(
    capture: Capture, how: DatabaseConnection
) -> None:
    client, attachment = _serving(capture, *_SMALL)
    with closing(attach(how)) as staying:
        for number in range(40):
            attach(how).close()
            if number % 10 == 0:
                client.attach(capture.database).close()
        assert snapshot_work._values(staying, "SELECT ID FROM T") == [0]
    until("all to go", lambda: _are_gone(attachment))


@contextmanager
def _connected(capture: Capture) -> Iterator[socket.socket]:
    [path] = _sockets(capture).iterdir()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        with address_of(path) as address:
            connection.connect(address)
        yield connection


def _asked(connection: socket.socket, kind: Kind, *pieces: bytes) -> tuple[int, bytes]:
    send(connection, kind, *pieces)
    outcome, content = receive(connection, 2 * MOST_ANSWER)
    return outcome, bytes(content)


_ALLOWED = {
    "SELECT ID FROM T": Outcome.ANSWERED,
    "-- of mine\n/* a ** b */ select ID FROM T": Outcome.ANSWERED,
    'SELECT 1 AS "NEXT", 2 AS "VALUE", 3 AS "GEN_ID" FROM T': Outcome.ANSWERED,
    "SELECT GEN_ID(COUNTED, 1) FROM T": Outcome.FAILED,
    "SELECT NEXT /* -- */ VALUE FOR COUNTED FROM T": Outcome.FAILED,
    "WITH A AS (SELECT 1 X FROM T) SELECT gen_id/**/(COUNTED, X) FROM A": Outcome.FAILED,
    "EXECUTE BLOCK RETURNS (A INTEGER) AS BEGIN A = 1; SUSPEND; END": Outcome.FAILED,
    "UPDATE T SET ID = 1 RETURNING ID": Outcome.FAILED,
    f"SELECT {', '.join(['CAST(V AS CHAR(32000))'] * 300)} FROM T": Outcome.FAILED,
}


def test_requests_beyond_the_bounds_are_refused(capture: Capture, how: DatabaseConnection) -> None:
    _, attachment = _serving(capture, *_SMALL)
    attachment.execute(
        "INSERT INTO T SELECT A.RDB$FIELD_ID, 'x' FROM RDB$RELATION_FIELDS A, RDB$DATABASE B"
    )
    for _ in range(5):
        attachment.execute("INSERT INTO T SELECT ID, V FROM T")
    attachment.commit()
    with ExitStack() as stack:
        connection = stack.enter_context(_connected(capture))
        assert _asked(connection, Kind.ATTACH, os.fsencode(how.dsn))[0] == Outcome.ANSWERED
        _, transaction = _asked(connection, Kind.BEGIN, bytes((3, 2, 6, 8)))
        outcomes = {
            sql: _asked(connection, Kind.PREPARE, transaction, sql.encode())[0] for sql in _ALLOWED
        }
        assert outcomes == _ALLOWED
        first_page = bytes((113, 4, 0, 0, 0, 0, 0, 1))  # fb_info_page_contents
        assert _asked(connection, Kind.INFO, bytes(4), first_page)[0] == Outcome.REFUSED
        _, answer = _asked(connection, Kind.PREPARE, transaction, b"SELECT * FROM T")
        statement = answer[: NUMBER.size]
        _asked(connection, Kind.OPEN, statement)
        _, rows = _asked(connection, Kind.FETCH, statement, struct.pack("<I", 0xFFFFFFFF))
        assert PIECE_BYTES // 2 < len(rows) <= PIECE_BYTES + 1
        for _ in range(80):  # those beyond the bound are let go at once
            with suppress(BlockingIOError):  # more at once than are let in
                stack.enter_context(_connected(capture))
        # Who stops reading, or comes with a claim and nothing behind it, holds up nobody else.
        for _ in range(20):
            send(connection, Kind.FETCH, statement, struct.pack("<I", PIECE_BYTES))
        connection.send(struct.pack("<IB", 1 << 20, Kind.PREPARE)[:3])
        attachment.execute("INSERT INTO T (ID) VALUES (-1)")
        attachment.commit()
    until("all to go", lambda: _are_gone(attachment))
    [row] = attachment.execute("SELECT GEN_ID(COUNTED, 0) AS N FROM RDB$DATABASE")
    assert row["N"] == 0
    with closing(attach(how)) as later:
        assert snapshot_work._values(later, "SELECT ID FROM T WHERE ID = -1") == [-1]


@own_journals
def test_bridge_that_starts_anew_elsewhere_reads_on(
    capture: Capture, how: DatabaseConnection
) -> None:
    _, attachment = _serving(capture, *_SMALL)
    elsewhere = capture.journal_directory.with_name("elsewhere")

    def is_served_anew() -> bool:
        try:
            attachment.execute("INSERT INTO T (ID) VALUES (1)")
            attachment.commit()
        except SqlError:  # until there is a bridge in another folder
            attachment.rollback()
        return is_served(_sockets(capture), how.dsn)

    with closing(attach(how)) as reader:
        capture.journal_directory.rename(elsewhere)
        until("another socket", is_served_anew)
        assert not is_served(elsewhere / ".firebird-cdc/reading", how.dsn)
        assert snapshot_work._values(reader, "SELECT COUNT(*) FROM T")[0] >= 1
    with closing(attach(how)) as other:
        assert snapshot_work._values(other, "SELECT COUNT(*) FROM T")[0] >= 2


def _prepared(capture: Capture) -> Path:
    """Make the state folder before there is a bridge; return where the sockets are to be."""
    capture.create(*_SMALL)
    folder = _sockets(capture)
    folder.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    capture.journal_directory.chmod(0o700)
    return folder


def _captures(capture: Capture) -> None:
    attachment = capture.attach()
    attachment.execute("INSERT INTO T (ID) VALUES (1)")
    attachment.commit()
    until("the journal", lambda: len(capture.journals()) == 1)


def test_bridge_does_not_listen_if_it_is_not_told_to(capture: Capture) -> None:
    capture.write_config()
    capture.create(*_SMALL)
    _captures(capture)
    assert not _sockets(capture).exists()


def test_bridge_starts_where_it_can_not_listen(capture: Capture) -> None:
    _prepared(capture).write_text("a file is where the folder has to be")
    _captures(capture)
    assert "can't listen there" in capture.log.read_text()


def test_bridge_starts_beside_a_socket_that_nobody_accepts_from(
    capture: Capture, how: DatabaseConnection
) -> None:
    folder = _prepared(capture)
    folder.mkdir(mode=0o700)
    with ExitStack() as stack, address_of(folder / "0") as address:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                full = stack.enter_context(socket.socket(socket.AF_UNIX))
                full.setblocking(False)
                full.connect(address)
        _captures(capture)
        with closing(attach(how)) as reader:
            assert snapshot_work._values(reader, "SELECT ID FROM T") == [1]
