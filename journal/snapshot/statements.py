"""Statements and BLOBs as the engine has them: its own messages, and by whom they are reached.

`Statements` is all that readers need of an attachment beyond the few rows of catalogues. There are
two: by firebird-driver, here, and by the socket of a server (`server_attachment`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

_ROW = 0  # StateResult.OK
_END = 1  # StateResult.NO_DATA
_PIECE = 65_535
_TPB_VERSION, _TPB_CONCURRENCY, _TPB_WAIT, _TPB_READ, _TPB_AT_NUMBER = 3, 2, 6, 8, 23


class Shown(NamedTuple):
    """Description of one value in a message: what it is, and where it and its null flag are."""

    name: str
    sql_type: int
    sub_type: int
    scale: int
    length: int
    charset_id: int
    offset: int
    null_offset: int


class Statement(Protocol):
    """A statement that is prepared, and its rows once they are open.

    ``message_bytes``: of a row, without its BLOBs; ``parameters``: how many it has. ``fetching``:
    addresses of a fetchNext and of the two things that it takes first, for C. Raises the driver's
    errors.
    """

    is_select: bool
    parameters: int
    shown: Sequence[Shown]
    message_bytes: int

    def open(self) -> None:
        """Open the rows."""

    @property
    def fetching(self) -> tuple[int, int, int]:
        """Addresses for C."""

    def fetch(self, row: Any) -> bool:
        """Put the next row into the buffer ROW; False: there is none."""

    def check(self) -> None:
        """Raise what kept C from fetching, if something did."""

    def close(self) -> None:
        """Close the rows, and forget the statement."""


class BlobContent(Protocol):
    """Content of a BLOB. Raises the driver's errors."""

    def length(self) -> int:
        """Return how many bytes it has."""

    def pieces(self) -> Iterator[bytes]:
        """Yield it piece by piece, from its beginning."""


class Statements(Protocol):
    """Source of statements and BLOBs in one transaction of an attachment, which joins snapshots."""

    def prepare(self, sql: str) -> Statement:
        """Prepare SQL, which is a SELECT."""

    def blob(self, number: bytes) -> BlobContent:
        """Return the BLOB of this number."""


def statements_of(connection: Any) -> Statements:
    """Return the statements in the main transaction of CONNECTION, which is active."""
    if hasattr(connection, "statements"):
        found: Statements = connection.statements()
        return found
    return DriverStatements(connection)


def read_only_snapshot(number: int | None = None) -> bytes:
    """Return the parameters of a read-only snapshot transaction; NUMBER: of the one that it joins,
    None: it takes its own."""
    parameters = bytes((_TPB_VERSION, _TPB_CONCURRENCY, _TPB_WAIT, _TPB_READ))
    if number is None:
        return parameters
    return parameters + bytes((_TPB_AT_NUMBER, 8)) + number.to_bytes(8, "little")


class DriverStatements:
    """`Statements` by firebird-driver."""

    def __init__(self, connection: Any) -> None:
        self._attachment = connection._att
        self._transaction = connection.main_transaction._tra

    def prepare(self, sql: str) -> DriverStatement:
        """Prepare SQL."""
        return DriverStatement(self._attachment, self._transaction, sql)

    def blob(self, number: bytes) -> DriverBlob:
        """Return the BLOB of this number."""
        return DriverBlob(self._attachment, self._transaction, number)


class DriverStatement:
    """`Statement` by firebird-driver."""

    def __init__(self, attachment: Any, transaction: Any, sql: str) -> None:
        from firebird.driver.types import StatementType

        self._transaction = transaction
        self._cursor: Any = None
        self._statement = attachment.prepare(transaction, sql, 3)
        try:
            self.is_select = self._statement.get_type() == StatementType.SELECT
            with self._statement.get_input_metadata() as parameters:
                self.parameters = int(parameters.get_count())
            with self._statement.get_output_metadata() as meta:
                self.shown: Sequence[Shown] = [
                    _shown(meta, index) for index in range(meta.get_count())
                ]
                self.message_bytes = int(meta.get_message_length())
        except BaseException:
            self._statement.free()
            raise

    def open(self) -> None:
        """Open the rows."""
        from firebird.driver.types import CursorFlag

        with self._statement.get_output_metadata() as meta:
            self._cursor = self._statement.open_cursor(
                self._transaction, None, None, meta, CursorFlag.NONE
            )
        # Not by fetch_next: to look at the status of each row costs a fifth of the time.
        self._fetch, self._status = self._cursor.vtable.fetchNext, self._cursor.status

    @property
    def fetching(self) -> tuple[int, int, int]:
        """Addresses for C."""
        fetch, cursor, status = (
            ctypes.cast(each, ctypes.c_void_p).value or 0
            for each in (self._fetch, self._cursor._as_parameter_, self._status._as_parameter_)
        )
        return fetch, cursor, status

    def fetch(self, row: Any) -> bool:
        """Put the next row into the buffer ROW; False: there is none."""
        if self._fetch(self._cursor, self._status, row) == _ROW:
            return True
        self._cursor._check()
        return False

    def check(self) -> None:
        """Raise what kept C from fetching, if something did."""
        self._cursor._check()

    def close(self) -> None:
        """Close the rows, and forget the statement."""
        try:
            if self._cursor is not None:
                self._cursor.close()
        finally:
            self._statement.free()


def _shown(meta: Any, index: int) -> Shown:
    return Shown(
        meta.get_alias(index),
        int(meta.get_type(index)) & ~1,
        meta.get_subtype(index),
        meta.get_scale(index),
        meta.get_length(index),
        meta.get_charset(index) & 0xFF,  # above it is the collation
        meta.get_offset(index),
        meta.get_null_offset(index),
    )


class DriverBlob:
    """`BlobContent` by firebird-driver."""

    def __init__(self, attachment: Any, transaction: Any, number: bytes) -> None:
        self._place = attachment, transaction, number

    def _open(self) -> Any:
        from firebird.driver.fbapi import ISC_QUAD

        attachment, transaction, number = self._place
        return attachment.open_blob(transaction, ISC_QUAD.from_buffer_copy(number))

    def length(self) -> int:
        """Return how many bytes it has."""
        from firebird.driver.types import BlobInfoCode

        blob = self._open()
        try:
            return int(blob.get_info2(BlobInfoCode.TOTAL_LENGTH))
        finally:
            blob.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield it piece by piece, from its beginning."""
        from firebird.driver.fbapi import Cardinal

        blob = self._open()
        buffer = ctypes.create_string_buffer(_PIECE)
        size = Cardinal(0)
        try:
            while True:
                result = int(blob.get_segment(_PIECE, buffer, ctypes.byref(size)))
                if result == _END:
                    return
                yield buffer.raw[: size.value]
        finally:
            blob.close()
