"""Objects between the shipper and its reader processes, over pipes.

Each is marshalled behind its length: bytes and tuples of bytes pass at the speed of memory, and
nothing that arrives is executed. Both ends run the same Python.
"""

from __future__ import annotations

import io
import marshal
import select
import struct
from typing import IO, Any

_LENGTH = struct.Struct(">I")


def write_object(file: IO[bytes], content: Any) -> None:
    """Write CONTENT, of what marshal takes. Raises OSError, BrokenPipeError without a reader."""
    data = marshal.dumps(content)
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def read_object(file: io.BufferedIOBase | io.RawIOBase, silent_s: float | None = None) -> Any:
    """Return the next object; raises EOFError where the other end has closed, also in its midst.

    silent_s: raise TimeoutError where no byte comes for so long; FILE must not be buffered then.
    """
    (length,) = _LENGTH.unpack(_read(file, _LENGTH.size, silent_s))
    return marshal.loads(_read(file, length, silent_s))  # noqa: S302 - from a process of our own


def _read(file: io.BufferedIOBase | io.RawIOBase, length: int, silent_s: float | None) -> bytearray:
    data = bytearray(length)
    left = memoryview(data)
    while left:
        if silent_s is not None and not _is_readable(file.fileno(), silent_s):
            raise TimeoutError
        count = file.readinto(left)
        if not count:
            raise EOFError
        left = left[count:]
    return data


def _is_readable(fd: int, wait_s: float) -> bool:
    poll = select.poll()  # unlike select(2), for descriptors above 1023 too
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
