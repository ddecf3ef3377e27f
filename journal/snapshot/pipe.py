"""Objects between the shipper and its reader processes, over pipes.

Each is marshalled behind its length: bytes and tuples of bytes pass at the speed of memory, and
nothing that arrives is executed. Both ends run the same Python.
"""

from __future__ import annotations

import marshal
import struct
from typing import IO, Any

_LENGTH = struct.Struct(">I")


def write_object(file: IO[bytes], content: Any) -> None:
    """Write CONTENT, of what marshal takes. Raises OSError, BrokenPipeError without a reader."""
    data = marshal.dumps(content)
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def read_object(file: IO[bytes]) -> Any:
    """Return the next object; raises EOFError where the other end has closed, also in its midst."""
    (length,) = _LENGTH.unpack(_read(file, _LENGTH.size))
    return marshal.loads(_read(file, length))  # noqa: S302 - from a process of our own


def _read(file: IO[bytes], length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return data
