"""Sockets by which a server process lets rows be read: where they lie, and what is said there.

A server that has its databases for itself (ServerMode = Super) reads for processes that have no
password (``bridge.reading``). Each server process has a socket in the state folder's ``reading``;
who asks (``journal.snapshot.server_attachment``) tries them all, and takes the first one that
captures its database.

A question is u32 length, u8 kind, and so many bytes; an answer is u32 length, u8 outcome, and so
many bytes; numbers are little-endian. All that is opened has a number, which the server gives, and
ends with the connection.

============  ======================================  ===========================================
kind          question                                answer
============  ======================================  ===========================================
CAPTURES      path of a database                      u8 1: it is captured here
ATTACH        path of such a one                      (nothing)
BEGIN         parameters of a transaction             u32 transaction
END           u32 transaction                         (nothing)
INFO          u32 transaction, 0: the database;       what the engine answers
              items
PREPARE       u32 transaction; SQL                    u32 statement; what its rows are
                                                      (native/reading.h)
OPEN          u32 statement                           (nothing)
FETCH         u32 statement, u32 bytes                u8 1 at the end; so many rows
FREE          u32 statement                           (nothing)
READ_BLOB     u32 transaction, 8 bytes of a number    u32 BLOB, 0 at the end; its first bytes
NEXT_PIECE    u32 BLOB                                u8 1 at the end; its next bytes
BLOB_LENGTH   u32 BLOB                                i64 bytes
CLOSE_BLOB    u32 BLOB                                (nothing)
============  ======================================  ===========================================
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from firebird_cdc.errors import CaptureError

READING = "reading"
"""Folder of the sockets, in the state folder."""

HEAD = struct.Struct("<IB")
NUMBER = struct.Struct("<I")
LENGTH = struct.Struct("<q")

MOST_QUESTION = 1024 * 1024
MOST_ANSWER = 8 * 1024 * 1024
"""Bytes of a question and of an answer."""

PIECE_BYTES = 256 * 1024
"""Bytes of rows, or of a BLOB, that are sent at once."""

_DIRECT_BYTES = 100  # of an address, which has room for 108


class Kind(IntEnum):
    """Kind of a question."""

    ATTACH = 1
    BEGIN = 2
    END = 3
    INFO = 4
    PREPARE = 5
    OPEN = 6
    FETCH = 7
    FREE = 8
    READ_BLOB = 9
    NEXT_PIECE = 10
    BLOB_LENGTH = 11
    CLOSE_BLOB = 12
    CAPTURES = 13


class Outcome(IntEnum):
    """Outcome of a question: it is answered; the engine says no, with i32 codes behind their u32
    count, and words; it is not allowed, with the reason."""

    ANSWERED = 0
    FAILED = 1
    REFUSED = 2


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Have an address of the socket PATH, however long that is. Raises OSError."""
    if len(os.fsencode(path)) <= _DIRECT_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def send(connection: socket.socket, kind: int, *pieces: bytes | memoryview) -> None:
    """Send a question or an answer. Raises OSError."""
    length = sum(map(len, pieces))
    # Without a signal, which a process that others wrote may die of, if nobody is there any more.
    connection.sendall(HEAD.pack(length, kind) + b"".join(pieces), socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, most: int) -> tuple[int, bytearray]:
    """Return kind and content of the next question or answer.

    Raises EOFError at the end; CaptureError if it has more than MOST bytes; OSError.
    """
    length, kind = HEAD.unpack(_exactly(connection, HEAD.size))
    if length > most:
        raise CaptureError(f"more than {most} bytes are sent at once")
    return kind, _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    content = bytearray(count)
    rest = memoryview(content)
    while rest:
        received = connection.recv_into(rest)
        if not received:
            raise EOFError
        rest = rest[received:]
    return content
