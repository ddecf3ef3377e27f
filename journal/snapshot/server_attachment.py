"""An attachment inside a server process, reached by its socket (`journal.folder.reading_socket`).

It has what snapshots use of firebird-driver's connection, by the same names, and raises the
driver's errors; rows and BLOBs come as `statements` has them. Not for several threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from firebird_cdc.errors import CaptureError, DatabaseUnreadable
from firebird_cdc.journal.folder.reading_socket import (
    LENGTH,
    MOST_ANSWER,
    NUMBER,
    PIECE_BYTES,
    Kind,
    Outcome,
    address_of,
    receive,
    send,
)
from firebird_cdc.journal.snapshot.statements import Shown, read_only_snapshot

if TYPE_CHECKING:
    from firebird_cdc.native._journal_files import FETCH_BUFFERED
else:
    try:
        from firebird_cdc.native._journal_files import FETCH_BUFFERED
    except ImportError:  # on Spark's executors, which have nothing compiled and read by the driver
        FETCH_BUFFERED = 0

_HEAD = struct.Struct("<IIII")  # type of a statement, parameters, bytes of a row, columns
_COLUMN = struct.Struct("<IiIiIIIH")
_SELECT = 1
_INFO_END = 1
_TRANSACTION_NUMBER, _OLDEST_INTERESTING = 4, 5  # isc_info_tra_id, isc_info_tra_oldest_interesting
_EPOCH = datetime(1858, 11, 17, tzinfo=UTC)  # of the engine's dates
_FRACTIONS = 10_000  # of a second, in its times
_FIND_S = 10  # which needs no engine
_ATTACH_S = 60  # the engine may be closing the database, or open it after a crash

_VARYING, _TEXT, _STAMP_WITH_ZONE, _STAMP = 448, 452, 32754, 510
_NUMBERS = {500: "<h", 496: "<i", 580: "<q", 32764: "<?"}


def is_served(sockets: Path, database: str) -> bool:
    """Tell whether a server process captures DATABASE, named as journals do, and reads it for
    others. sockets: the folder of those."""
    exchange = _find(sockets, database)
    if exchange is not None:
        exchange.close()
    return exchange is not None


def attach_by_server(sockets: Path, database: str) -> ServerAttachment | None:
    """Attach to DATABASE by the server process that captures it; None: there is none. Raises the
    driver's DatabaseError with the engine's words."""
    exchange = _find(sockets, database)
    if exchange is None:
        return None
    exchange.wait_for(_ATTACH_S)
    try:
        exchange.ask(Kind.ATTACH, _named(database))
    except BaseException:
        exchange.close()
        raise
    exchange.wait_for(None)  # a statement may take long
    return ServerAttachment(exchange)


def _find(sockets: Path, database: str) -> _Exchange | None:
    from firebird.driver import DatabaseError

    for path in sorted(sockets.glob("*")):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        exchange = _Exchange(connection)
        with contextlib.suppress(OSError, DatabaseError):  # of one that has ended
            exchange.wait_for(_FIND_S)
            with address_of(path) as address:
                connection.connect(address)
            if exchange.ask(Kind.CAPTURES, _named(database)) == b"\1":
                return exchange
        exchange.close()
    return None


def _named(database: str) -> bytes:
    return database.encode("utf-8", "surrogateescape")


class _Exchange:
    """Questions and answers. Raises firebird-driver's DatabaseError."""

    def __init__(self, connection: socket.socket) -> None:
        from firebird.driver import DatabaseError

        self._error: Any = DatabaseError
        self._connection = connection

    def ask(self, kind: Kind, *pieces: bytes) -> bytearray:
        """Return the answer to a question."""
        try:
            send(self._connection, kind, *pieces)
            outcome, content = receive(self._connection, MOST_ANSWER)
        except TimeoutError:
            raise self._error("the server process does not answer") from None
        except (OSError, EOFError, CaptureError) as error:
            why = str(error) or "it has ended, or has let the database go"
            raise self._error(f"the server process reads no more: {why}") from None
        if outcome == Outcome.ANSWERED:
            return content
        codes: tuple[int, ...] = ()
        if outcome == Outcome.FAILED:
            [count] = NUMBER.unpack_from(content)
            codes = struct.unpack_from(f"<{count}i", content, NUMBER.size)
            content = content[NUMBER.size + 4 * count :]
        failure = self._error(content.decode("utf-8", "replace"))
        failure.gds_codes = codes
        raise failure

    def wait_for(self, seconds: float | None) -> None:
        """Wait so long for an answer, None: as long as it takes."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """End the connection, and all that was opened by it."""
        self._connection.close()


class _Info:
    """Information on the attachment or on a transaction."""

    def __init__(self, exchange: _Exchange, number: Callable[[], int]) -> None:
        self._exchange, self._number = exchange, number

    def get_info(self, code: int) -> int:
        """Return the number that the engine answers to CODE."""
        answer = self._exchange.ask(
            Kind.INFO, NUMBER.pack(self._number()), bytes([code, _INFO_END])
        )
        length = int.from_bytes(answer[1:3], "little")
        if answer[0] != code:
            raise DatabaseUnreadable(f"the server does not answer to the question {code}")
        return int.from_bytes(answer[3 : 3 + length], "little")

    @property
    def id(self) -> int:
        """Number of the transaction."""
        return self.get_info(_TRANSACTION_NUMBER)

    @property
    def oit(self) -> int:
        """Oldest interesting transaction when it began."""
        return self.get_info(_OLDEST_INTERESTING)


class _Transaction:
    """A transaction that is begun and ended again and again."""

    def __init__(self, exchange: _Exchange, parameters: bytes) -> None:
        self._exchange, self._parameters = exchange, parameters
        self._number = 0
        self.info = _Info(exchange, lambda: self._number)

    @property
    def number(self) -> int:
        """Number by which the server knows it; 0: it is not active."""
        return self._number

    def is_active(self) -> bool:
        """Tell whether it has begun."""
        return self._number != 0

    def begin(self, parameters: bytes | None = None) -> None:
        """Begin it anew; an earlier one ends."""
        self.rollback()
        answer = self._exchange.ask(Kind.BEGIN, parameters or self._parameters)
        [self._number] = NUMBER.unpack(answer)

    def rollback(self) -> None:
        """End it; it has only read."""
        number, self._number = self._number, 0
        if number:
            self._exchange.ask(Kind.END, NUMBER.pack(number))

    def cursor(self) -> _Rows:
        """Return what runs a statement in it, which begins if it has not."""
        if not self._number:
            self.begin()
        return _Rows(self._exchange, self._number)


class _Rows:
    """A cursor over few rows, whose values are Python's; texts are the bytes that they have."""

    def __init__(self, exchange: _Exchange, transaction: int) -> None:
        self._exchange, self._transaction = exchange, transaction
        self._statement: ServerStatement | None = None

    def __enter__(self) -> _Rows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._statement is not None and error is None:
            self._statement.close()

    def execute(self, sql: str) -> None:
        """Open the rows of SQL."""
        self._statement = ServerStatement(self._exchange, self._transaction, sql)
        self._statement.open()

    def fetchmany(self, most: int) -> list[tuple[Any, ...]]:
        """Return so many rows at most."""
        return list(islice(self._fetched(), most))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows."""
        return list(self._fetched())

    def _fetched(self) -> Iterator[tuple[Any, ...]]:
        statement = self._statement
        assert statement is not None
        row = ctypes.create_string_buffer(statement.message_bytes)
        while statement.fetch(row):
            yield tuple(_value(row.raw, shown) for shown in statement.shown)


def _value(row: bytes, shown: Shown) -> Any:
    at, length = shown.offset, shown.length
    if row[shown.null_offset] or row[shown.null_offset + 1]:
        return None
    if (form := _NUMBERS.get(shown.sql_type)) is not None:
        return struct.unpack_from(form, row, at)[0]
    if shown.sql_type == _VARYING:
        return row[at + 2 : at + 2 + int.from_bytes(row[at : at + 2], "little")]
    if shown.sql_type == _TEXT:
        return row[at : at + length]
    if shown.sql_type in (_STAMP, _STAMP_WITH_ZONE):
        day, fractions = struct.unpack_from("<iI", row, at)
        stamp = _EPOCH + timedelta(days=day, seconds=fractions / _FRACTIONS)
        # The first is as the clock shows it; the second is of UTC, and the server's clock is ours.
        return stamp.astimezone() if shown.sql_type == _STAMP_WITH_ZONE else stamp
    raise DatabaseUnreadable(f"{shown.name}: type {shown.sql_type} is not expected here")


class _Buffered(ctypes.Structure):
    """Rows that were received; `fbc_buffered` of native/event_json.h."""

    _fields_ = (
        ("at", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("refill", ctypes.CFUNCTYPE(ctypes.c_int)),
    )


_REFILL = ctypes.CFUNCTYPE(ctypes.c_int)
_FETCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class ServerStatement:
    """`Statement` by a server's socket. Rows come many at a time."""

    def __init__(self, exchange: _Exchange, transaction: int, sql: str) -> None:
        self._exchange = exchange
        text = sql.encode("utf-8", "surrogateescape")
        answer = exchange.ask(Kind.PREPARE, NUMBER.pack(transaction), text)
        [self._number] = NUMBER.unpack_from(answer)
        kind, self.parameters, self.message_bytes, count = _HEAD.unpack_from(answer, NUMBER.size)
        self.is_select = kind == _SELECT
        self.shown: Sequence[Shown] = _columns(answer, NUMBER.size + _HEAD.size, count)
        self._content = bytearray()
        self._is_end = False
        self._failure: BaseException | None = None
        self._refill = _REFILL(self._receive)
        self._buffered = _Buffered(0, 0, self.message_bytes, self._refill)
        self._fetch = _FETCH(FETCH_BUFFERED)

    def open(self) -> None:
        """Open the rows."""
        self._exchange.ask(Kind.OPEN, NUMBER.pack(self._number))

    def _receive(self) -> int:
        """Have the next rows in the buffer; 0: there are none, or `check` raises why."""
        try:
            while not self._is_end:
                asked = NUMBER.pack(self._number), NUMBER.pack(PIECE_BYTES)
                content = self._exchange.ask(Kind.FETCH, *asked)
                self._is_end = bool(content[0])
                size = len(content) - 1
                if size % self.message_bytes:
                    raise DatabaseUnreadable("the server process sent a part of a row")
                if size:
                    self._content = content
                    place = ctypes.addressof(ctypes.c_char.from_buffer(content)) + 1
                    self._buffered.at, self._buffered.end = place, place + size
                    return 1
        except BaseException as error:  # nothing gets through C
            self._failure = error
        return 0

    @property
    def fetching(self) -> tuple[int, int, int]:
        """Addresses for C."""
        return FETCH_BUFFERED, ctypes.addressof(self._buffered), 0

    def fetch(self, row: Any) -> bool:
        """Put the next row into the buffer ROW; False: there is none."""
        if self._fetch(ctypes.addressof(self._buffered), None, row) == 0:
            return True
        self.check()
        return False

    def check(self) -> None:
        """Raise what kept C from fetching, if something did."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Close the rows, and forget the statement."""
        self._exchange.ask(Kind.FREE, NUMBER.pack(self._number))


def _columns(answer: bytearray, at: int, count: int) -> list[Shown]:
    found = []
    for _ in range(count):
        kind, sub_type, length, scale, charset, offset, null_offset, size = _COLUMN.unpack_from(
            answer, at
        )
        at += _COLUMN.size
        name = answer[at : at + size].decode("utf-8", "replace")
        at += size
        found.append(
            # Above the character set is the collation.
            Shown(name, kind & ~1, sub_type, scale, length, charset & 0xFF, offset, null_offset)
        )
    return found


class ServerBlob:
    """`BlobContent` by a server's socket."""

    def __init__(self, exchange: _Exchange, transaction: int, number: bytes) -> None:
        self._exchange = exchange
        self._place = NUMBER.pack(transaction), number

    def length(self) -> int:
        """Return how many bytes it has."""
        answer = self._exchange.ask(Kind.READ_BLOB, *self._place)
        opened = bytes(answer[: NUMBER.size])
        if not any(opened):
            return len(answer) - NUMBER.size
        try:
            [length] = LENGTH.unpack(self._exchange.ask(Kind.BLOB_LENGTH, opened))
        finally:
            self._exchange.ask(Kind.CLOSE_BLOB, opened)
        return int(length)

    def pieces(self) -> Iterator[bytes]:
        """Yield it piece by piece, from its beginning."""
        answer = self._exchange.ask(Kind.READ_BLOB, *self._place)
        opened = bytes(answer[: NUMBER.size])
        try:
            if len(answer) > NUMBER.size:
                yield bytes(answer[NUMBER.size :])
            is_end = not any(opened)
            while not is_end:
                answer = self._exchange.ask(Kind.NEXT_PIECE, opened)
                is_end = bool(answer[0])
                if len(answer) > 1:
                    yield bytes(answer[1:])
        finally:
            if any(opened):
                self._exchange.ask(Kind.CLOSE_BLOB, opened)


class ServerStatements:
    """`Statements` by a server's socket."""

    def __init__(self, exchange: _Exchange, transaction: int) -> None:
        self._exchange, self._transaction = exchange, transaction

    def prepare(self, sql: str) -> ServerStatement:
        """Prepare SQL."""
        return ServerStatement(self._exchange, self._transaction, sql)

    def blob(self, number: bytes) -> ServerBlob:
        """Return the BLOB of this number."""
        return ServerBlob(self._exchange, self._transaction, number)


class ServerAttachment:
    """Attachment with that part of firebird-driver's connection which snapshots use."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self.main_transaction = _Transaction(exchange, read_only_snapshot())
        self.info = _Info(exchange, lambda: 0)

    def statements(self) -> ServerStatements:
        """Return the statements in the main transaction."""
        return ServerStatements(self._exchange, self.main_transaction.number)

    def begin(self, parameters: bytes) -> None:
        """Begin the main transaction."""
        self.main_transaction.begin(parameters)

    def rollback(self) -> None:
        """End the main transaction."""
        self.main_transaction.rollback()

    def transaction_manager(self, parameters: bytes) -> _Transaction:
        """Return another transaction."""
        return _Transaction(self._exchange, parameters)

    def cursor(self) -> _Rows:
        """Return what runs a statement in the main transaction."""
        return self.main_transaction.cursor()

    def close(self) -> None:
        """Detach."""
        self._exchange.close()
