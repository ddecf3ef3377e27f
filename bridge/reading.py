"""Reads databases of this server for processes that have no password.

Where a server has its databases for itself (ServerMode = Super), nobody else can open them. So the
bridge has a socket (journal/folder/reading_socket.py) by which the reader process of a snapshot has
this process attach, and hand out raw rows. Decoding and all that is the user's stays out there.

Threads: fbc-reading hears of new connections, and of those that end while the engine works for
them; each connection has one of its own, fbc-read; fbc-yield watches whether somebody wants a
database for himself (`giving_way`).

Guarantees: only databases that this process has captured are attached to; transactions are
read-only, statements are SELECTs. All that a connection has opened ends with it. Nothing that is
sent here is executed but SQL, and each length is looked at. Assumes: who may connect (whom the
journal folder is for, see `firebird_cdc.access`) may also read the databases.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import logbook

from firebird_cdc import access
from firebird_cdc.bridge import giving_way
from firebird_cdc.bridge.engine_reading import EngineReading, EngineRefusal
from firebird_cdc.bridge.giving_way import BusyElsewhere, GivingWay
from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.reading_socket import (
    LENGTH,
    MOST_ANSWER,
    MOST_QUESTION,
    NUMBER,
    PIECE_BYTES,
    READING,
    Kind,
    Outcome,
    address_of,
    receive,
    send,
)

_log = logbook.Logger("firebird_cdc.bridge.reading")

_MOST_CONNECTIONS = 64
_MOST_OPEN = 64  # transactions, statements and BLOBs of a connection
_LOOK_MS = 1000
_STALLED_S = 60  # who does not attach, or take an answer, for so long is given up
_POLLRDHUP = 0x2000  # which Python's select has not
_PEER = struct.Struct("=iII")  # process, user and group of who has connected
_GROUP_CAN = 0o660
_OWN_CAN = 0o600

_SELECT = 1  # isc_info_sql_stmt_select
_TYPE_AND_PARAMETERS = struct.Struct("<III")
_VERSION, _READ, _AT_NUMBER = 3, 8, 23  # isc_tpb_version3, isc_tpb_read, isc_tpb_at_snapshot_number
_ALONE = frozenset({2, 6, 7, _READ})  # concurrency, wait, nowait: without anything behind them

# A SELECT, perhaps behind comments; possessive, as other ways to split them would take for ever.
_READS = re.compile(
    rb"(?:\s++|--[^\n]*+(?:\n|$)|/\*(?:[^*]|\*(?!/))*+\*/)*+(?:SELECT|WITH)\b", re.IGNORECASE
)
_DYNAMIC_SQL = 335544569  # isc_dsql_error: the fault is the statement's
# Words that have a sequence count on, which a read-only transaction does, too. Nothing is skipped
# between the two, as comments could be nested so that looking takes for ever.
_GEN_ID, _NEXT, _VALUE = (
    re.compile(rb'(?<!")\b' + word + rb'\b(?!")', re.IGNORECASE)
    for word in (b"GEN_ID", b"NEXT", b"VALUE")
)
# What `journal.snapshot.visibility` asks of the states of transactions.
_NUMBER_TYPE = rb"TYPE OF COLUMN RDB\$TRANSACTIONS\.RDB\$TRANSACTION_ID"
_STATES = re.compile(
    rb"EXECUTE BLOCK RETURNS \(T " + _NUMBER_TYPE + rb", CN " + _NUMBER_TYPE + rb"\)"
    rb" AS BEGIN T = \d+; WHILE \(T < \d+\) DO BEGIN CN = RDB\$GET_TRANSACTION_CN\(T\);"
    rb" IF \([CNIORBETWAD <>=(),\d-]+\) THEN SUSPEND; T = T \+ 1; END END"
)


# Information items that are told, each with isc_info_end behind it: number and oldest interesting
# one of a transaction; page size, oldest and next transaction of the database.
_OF_TRANSACTION = frozenset(bytes((item, 1)) for item in (4, 5))
_OF_DATABASE = frozenset(bytes((item, 1)) for item in (14, 104, 107))


class ReadingHost(giving_way.ReadingHost, Protocol):
    """Functions of the plugin that are needed here."""

    def captured(self) -> list[str]:
        """Return the paths of the databases that this process has captured since it began."""


class _NotAllowed(CaptureError):
    """A question that has no answer."""


def is_read_only(parameters: bytes) -> bool:
    """Tell whether PARAMETERS of a transaction are those of a snapshot that only reads."""
    if parameters[:1] != bytes([_VERSION]):
        return False
    at, has_read = 1, False
    while at < len(parameters):
        item = parameters[at]
        at += 1
        if item == _AT_NUMBER:
            if at + 9 > len(parameters) or parameters[at] != LENGTH.size:
                return False
            at += 9
        elif item not in _ALONE:
            return False
        has_read = has_read or item == _READ
    return has_read


def _refused(why: str) -> EngineRefusal:
    """Return the refusal of a statement, in the form of the engine's own ones."""
    return EngineRefusal(why, (_DYNAMIC_SQL,))


def is_select(sql: bytes) -> bool:
    """Tell whether SQL begins as a SELECT does."""
    return _READS.match(sql) is not None


def has_count(sql: bytes) -> bool:
    """Tell whether SQL, which is a SELECT, has the words that have a sequence count on."""
    following = _NEXT.search(sql)
    return _GEN_ID.search(sql) is not None or (
        following is not None and _VALUE.search(sql, following.end()) is not None
    )


class _Opened:
    """Objects that a connection has opened, by the numbers that it was told."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._handles: dict[int, Any] = {}
        self._owners: dict[int, int] = {}  # transactions in which statements and BLOBs are
        self._last = 0

    def add(self, handle: Any, owner: int = 0) -> int:
        self._last += 1
        self._handles[self._last] = handle
        self._owners[self._last] = owner
        return self._last

    def require_room(self) -> None:
        if len(self._handles) >= _MOST_OPEN:
            raise _NotAllowed(f"no more than {_MOST_OPEN} {self._what}s at once")

    def get(self, number: int) -> Any:
        if number not in self._handles:
            raise _NotAllowed(f"there is no {self._what} {number}")
        return self._handles[number]

    def owner(self, number: int) -> int:
        return self._owners[number]

    def take(self, number: int) -> Any:
        handle = self.get(number)
        del self._handles[number], self._owners[number]
        return handle

    def of(self, owner: int) -> list[int]:
        return [number for number, each in self._owners.items() if each == owner]

    @property
    def numbers(self) -> list[int]:
        return list(self._handles)


class _Connection:
    """A process that reads, and the attachment that it has; answers on a thread of its own."""

    def __init__(self, host: ReadingHost, giving: GivingWay, connection: socket.socket) -> None:
        self.socket = connection
        self._host, self._giving = host, giving
        self._database = ""
        self._reading: EngineReading | None = None
        self._lengths: dict[int, int] = {}  # of the rows of statements
        self._transactions = _Opened("transaction")
        self._statements = _Opened("statement")
        self._blobs = _Opened("BLOB")
        self._has_gone = False
        self.is_over = threading.Event()
        self._answers: dict[int, Callable[[bytes], tuple[bytes | memoryview, ...]]] = {
            Kind.CAPTURES: self._captures,
            Kind.ATTACH: self._attach,
            Kind.BEGIN: self._begin,
            Kind.END: self._end,
            Kind.INFO: self._info,
            Kind.PREPARE: self._prepare,
            Kind.OPEN: self._open,
            Kind.FETCH: self._fetch,
            Kind.FREE: self._free,
            Kind.READ_BLOB: self._read_blob,
            Kind.NEXT_PIECE: self._next_piece,
            Kind.BLOB_LENGTH: self._blob_length,
            Kind.CLOSE_BLOB: self._close_blob,
        }

    def serve(self) -> None:
        """Answer until the connection ends, and let all go; never raises."""
        try:
            while not self._has_gone:
                kind, content = receive(self.socket, MOST_QUESTION)
                outcome, pieces = self._answer(kind, bytes(content))
                send(self.socket, outcome, *pieces)
        except (EOFError, OSError, CaptureError):
            pass
        except Exception:
            _log.exception("reading for another process failed")
        finally:
            self._let_go()
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.is_over.set()

    def give_up(self) -> None:
        """Have what the engine does for it end; nobody waits for that any more. For any thread."""
        self._has_gone = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if self._reading is not None:
            self._reading.cancel()

    def _answer(self, kind: int, content: bytes) -> tuple[int, tuple[bytes | memoryview, ...]]:
        try:
            answer = self._answers.get(kind)
            if answer is None:
                raise _NotAllowed(f"there is no question {kind}")
            return Outcome.ANSWERED, answer(content)
        except EngineRefusal as refusal:
            codes = struct.pack(f"<I{len(refusal.codes)}i", len(refusal.codes), *refusal.codes)
            return Outcome.FAILED, (codes, str(refusal).encode())
        except BusyElsewhere as error:
            self._has_gone = True
            return Outcome.REFUSED, (str(error).encode(),)
        except (_NotAllowed, struct.error) as error:
            return Outcome.REFUSED, (str(error).encode(),)

    def _let_go(self) -> None:
        reading = self._reading
        if reading is None:
            return
        with contextlib.suppress(Exception):
            for number in self._transactions.numbers:
                self._end_transaction(number)
        reading.detach()
        self._giving.leave(self._database, self)

    @property
    def _engine(self) -> EngineReading:
        if self._reading is None:
            raise _NotAllowed("no database is attached to")
        return self._reading

    # Answers

    def _captures(self, content: bytes) -> tuple[bytes, ...]:
        return (bytes([os.fsdecode(content) in self._host.captured()]),)

    def _attach(self, content: bytes) -> tuple[bytes, ...]:
        if self._reading is not None:
            raise _NotAllowed("a database is attached to already")
        database = os.fsdecode(content)
        if database not in self._host.captured():
            raise _NotAllowed("this server process does not capture that database")
        with self._giving.coming(database):
            reading = self._host.open_reading(database)
            self._database, self._reading = database, reading
            self._giving.enter(database, self)
        _set_patience(self.socket, socket.SO_RCVTIMEO, 0)
        return ()

    def _begin(self, content: bytes) -> tuple[bytes, ...]:
        engine = self._engine
        if not is_read_only(content):
            raise _NotAllowed("only read-only snapshot transactions can be begun")
        self._transactions.require_room()
        return (NUMBER.pack(self._transactions.add(engine.begin(content))),)

    def _end(self, content: bytes) -> tuple[bytes, ...]:
        [number] = NUMBER.unpack(content)
        self._transactions.get(number)
        self._end_transaction(number)
        return ()

    def _end_transaction(self, number: int) -> None:
        engine = self._engine
        for statement in self._statements.of(number):
            engine.free(self._statements.take(statement))
            del self._lengths[statement]
        for blob in self._blobs.of(number):
            engine.close_blob(self._blobs.take(blob))
        engine.end(self._transactions.take(number))

    def _info(self, content: bytes) -> tuple[bytes, ...]:
        number, items = _split(content)
        transaction = self._transactions.get(number) if number else None
        if items not in (_OF_TRANSACTION if number else _OF_DATABASE):
            raise _NotAllowed("that is not told")  # the engine would give any page away
        return (self._engine.info(transaction, items),)

    def _prepare(self, content: bytes) -> tuple[bytes, ...]:
        number, sql = _split(content)
        engine, transaction = self._engine, self._transactions.get(number)
        if not (is_select(sql) or _STATES.fullmatch(sql)):
            raise _refused("only SELECTs can be prepared")
        if has_count(sql):
            raise _refused("a SELECT may not have a sequence count on (GEN_ID, NEXT VALUE FOR)")
        self._statements.require_room()
        prepared, shown = engine.prepare(transaction, sql)
        kind, _, length = _TYPE_AND_PARAMETERS.unpack_from(shown)
        if kind != _SELECT:
            engine.free(prepared)
            raise _refused("this is no SELECT that only reads")
        if length >= MOST_ANSWER:
            engine.free(prepared)
            raise _refused(f"a row of {length} bytes is too long")
        statement = self._statements.add(prepared, number)
        self._lengths[statement] = length
        return NUMBER.pack(statement), shown

    def _open(self, content: bytes) -> tuple[bytes, ...]:
        [number] = NUMBER.unpack(content)
        statement = self._statements.get(number)
        transaction = self._transactions.get(self._statements.owner(number))
        self._engine.open(transaction, statement)
        return ()

    def _fetch(self, content: bytes) -> tuple[bytes | memoryview, ...]:
        number, wanted = struct.unpack("<II", content)
        statement, length = self._statements.get(number), self._lengths.get(number, 0)
        size = max(min(wanted, PIECE_BYTES), length)
        rows, count, is_end = self._engine.fetch(statement, size)
        return bytes([is_end]), self._engine.view(rows, count * length)

    def _free(self, content: bytes) -> tuple[bytes, ...]:
        [number] = NUMBER.unpack(content)
        self._engine.free(self._statements.take(number))
        del self._lengths[number]
        return ()

    def _read_blob(self, content: bytes) -> tuple[bytes, ...]:
        number, blob_number = struct.unpack("<I8s", content)
        engine, transaction = self._engine, self._transactions.get(number)
        self._blobs.require_room()
        blob = engine.open_blob(transaction, blob_number)
        try:
            piece, is_end = engine.blob_piece(blob, PIECE_BYTES)
        except EngineRefusal:
            engine.close_blob(blob)
            raise
        if is_end:
            engine.close_blob(blob)
            return NUMBER.pack(0), piece
        return NUMBER.pack(self._blobs.add(blob, number)), piece

    def _next_piece(self, content: bytes) -> tuple[bytes, ...]:
        [number] = NUMBER.unpack(content)
        piece, is_end = self._engine.blob_piece(self._blobs.get(number), PIECE_BYTES)
        return bytes([is_end]), piece

    def _blob_length(self, content: bytes) -> tuple[bytes, ...]:
        [number] = NUMBER.unpack(content)
        return (LENGTH.pack(self._engine.blob_length(self._blobs.get(number))),)

    def _close_blob(self, content: bytes) -> tuple[bytes, ...]:
        [number] = NUMBER.unpack(content)
        self._engine.close_blob(self._blobs.take(number))
        return ()


def _split(content: bytes) -> tuple[int, bytes]:
    return NUMBER.unpack_from(content)[0], content[NUMBER.size :]


class ReadingServer:
    """The socket of this process in a journal folder. ``use`` comes again with another folder, or
    after `end`. That it can't be made is logged: snapshots are owed then."""

    def __init__(self, host: ReadingHost) -> None:
        self._host = host
        self._giving = GivingWay(host)
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._former: list[socket.socket] = []  # of folders of before
        self._connections: dict[int, _Connection] = {}  # by their descriptors
        self._ending: list[_Connection] = []  # for which nobody is there any more

    def use(self, state: Path, name: str) -> None:
        """Listen as NAME in the state folder STATE from now on."""
        path = state / READING / name
        try:
            if path == self._path and path.is_socket():
                return
            access.make_directory(path.parent)
            _remove_dead(path.parent)
            listener = _listen(path)
            self._listen_by(listener, path)
        except (OSError, RuntimeError) as error:  # the second: no thread can be started
            _log.warning(
                "{path}: can't listen there, so that snapshots of databases of this server need"
                " database.hostname and database.user: {error}",
                path=path,
                error=error,
            )

    def end(self) -> None:
        """Listen no more, and have those go that are connected."""
        self._replace(None, None)

    def _listen_by(self, listener: socket.socket, path: Path) -> None:
        self._replace(listener, path)
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="fbc-reading", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            self.end()
            raise

    def _replace(self, listener: socket.socket | None, path: Path | None) -> None:
        with self._lock:
            former, self._listener = self._listener, listener
            former_path, self._path = self._path, path
            if former is not None:
                self._former.append(former)
                former.shutdown(socket.SHUT_RDWR)  # which wakes who waits for it
        if former_path not in (None, path):
            with contextlib.suppress(OSError):
                former_path.unlink()

    def _run(self) -> None:
        while self._goes_on():
            try:
                self._look(self._listener)
            except Exception:
                _log.exception("hearing of processes that want to read failed")
                time.sleep(_LOOK_MS / 1000)

    def _goes_on(self) -> bool:
        """Let go of sockets of before; tell whether there is one, or somebody who is to go."""
        with self._lock:
            former, self._former = self._former, []
            is_wanted = self._listener is not None
            is_over = not (is_wanted or self._connections or self._ending)
            if is_over:
                self._thread = None
        for each in former:
            each.close()
        if not is_wanted:
            self._ending += self._connections.values()
            self._connections.clear()
        return not is_over

    def _look(self, listener: socket.socket | None) -> None:
        """Wait for who connects, and for who ends; only a moment while some have not ended yet."""
        poll = select.poll()
        place = -1 if listener is None else listener.fileno()
        if listener is not None:
            poll.register(place, select.POLLIN)
        for fd in self._connections:
            poll.register(fd, _POLLRDHUP)
        for fd, _ in poll.poll(_LOOK_MS if self._ending else None):
            if fd != place:
                self._ending.append(self._connections.pop(fd))
            elif listener is not None and listener is self._listener:
                self._accept(listener)
        for each in list(self._ending):
            if each.is_over.is_set():
                self._ending.remove(each)
                each.socket.close()
            else:  # again, too: it may have been between two calls of the engine
                each.give_up()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptors are left
            time.sleep(_LOOK_MS / 1000)
            return
        try:
            connection.setblocking(True)
            is_one_more = len(self._connections) + len(self._ending) < _MOST_CONNECTIONS
            if not is_one_more or not _is_welcome(connection, self._path or Path()):
                connection.close()
                return
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                _set_patience(connection, option, _STALLED_S)
            served = _Connection(self._host, self._giving, connection)
            threading.Thread(target=served.serve, name="fbc-read", daemon=True).start()
        except BaseException:
            connection.close()
            raise
        self._connections[connection.fileno()] = served


def _set_patience(connection: socket.socket, option: int, seconds: int) -> None:
    """Have one direction of a connection fail after SECONDS of waiting; 0: never."""
    with contextlib.suppress(OSError):  # the other end has gone
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))


def _is_welcome(connection: socket.socket, path: Path) -> bool:
    """Tell whether who has connected is one of those that the journal folder is for."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(raw)
    return user in (0, os.geteuid()) or access.is_shared(path.parent)


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at PATH, where none is seen before it does."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with address_of(new) as address:
            listener.bind(address)
        new.chmod(_GROUP_CAN if access.is_shared(path.parent) else _OWN_CAN)
        listener.listen(_MOST_CONNECTIONS)
        listener.setblocking(False)
        new.rename(path)
    except BaseException:
        listener.close()
        new.unlink(missing_ok=True)
        raise
    return listener


def _remove_dead(folder: Path) -> None:
    """Remove the sockets of processes that have ended."""
    for path in folder.iterdir():
        if path.suffix == ".new" or not path.is_socket():
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # one that nobody accepts from may be full
            try:
                with address_of(path) as address:
                    probe.connect(address)
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass
