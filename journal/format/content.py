"""The bytes of a journal wherever they are, and BLOBs, which are read when somebody asks for
them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.format.layout import pread


class Closeable(ABC):
    """Something that a ``with`` statement closes at its end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give up what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RandomAccess(Protocol):
    """A file that is read at any place; pyarrow's ``NativeFile`` is one."""

    def size(self) -> int:
        """Bytes of the file."""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """Return up to NBYTES at OFFSET; fewer only where the file ends."""

    def close(self) -> None:
        """Give up what is open."""


class Source:
    """A journal's file: read as the reader opened it, or opened anew once that is closed.

    ``content``: all of it, where it is in memory already. ``opener``: opens it where it is no
    file of this machine, that PATH would name. ``base``: where in the file the journal begins,
    whose name is PATH then, and the file the folder that it names.
    """

    __slots__ = ("_base", "_opener", "content", "fd", "file", "path")

    def __init__(
        self,
        path: Path | str,
        content: bytes | None = None,
        opener: Callable[[], RandomAccess] | None = None,
        base: int = 0,
    ) -> None:
        self.path = path
        self.content = content
        self.fd = -1
        self.file: RandomAccess | None = None
        self._opener = opener
        self._base = base
        if content is None:
            if opener is not None:
                self.file = opener()
            else:
                file = Path(path).parent if base else path
                self.fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def size(self) -> int:
        """Bytes of the file, from where the journal begins."""
        if self.content is not None:
            return len(self.content)
        size = self.file.size() if self.file is not None else os.fstat(self.fd).st_size
        return size - self._base

    def read(self, length: int, offset: int) -> bytes:
        """Return up to LENGTH bytes at OFFSET; fewer only where the file ends."""
        if self.fd >= 0:
            return pread(self.fd, length, offset + self._base)
        if self.content is not None:
            return self.content[offset : offset + length]
        if self.file is not None:
            return self.file.read_at(length, offset + self._base)
        again = Source(self.path, None, self._opener, self._base)
        try:
            return again.read(length, offset)
        finally:
            again.close()

    def close(self) -> None:
        """Close the file if it is open; `read` opens it anew for each call then."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.file is not None:
            self.file.close()
            self.file = None


class Blob:
    """The content of a BLOB or ARRAY value, read from the journal when it is asked for.

    Holds the places of its chunks in the file, not the content: 32 KiB or so are in memory
    at a time. Pickling reads the content and carries it along. ``length``: bytes; text is in
    the column's character set. ``available`` False: the writer could not read the content,
    and what is here is what it got.
    """

    __slots__ = ("_content", "_extents", "_source", "available", "length", "number")

    def __init__(
        self,
        number: int,
        available: bool,
        source: Source | None,
        extents: Sequence[tuple[int, int, int]],
        content: bytes = b"",
    ) -> None:
        self.number = number
        self.available = available
        self.length = len(content) if source is None else sum(size for _, size, _ in extents)
        self._source = source
        self._extents = extents
        self._content = content

    def chunks(self) -> Iterator[bytes]:
        """Yield the content piece by piece; the pieces are those of the writer.

        Raises JournalCorrupt if the file no longer holds what was checked when the row was
        read, OSError if the file is gone.
        """
        if self._source is None:
            yield self._content
            return
        for offset, size, crc in self._extents:
            piece = self._source.read(size, offset)
            if len(piece) != size or crc32c.value(piece) != crc:
                what = "the content of a blob has changed since its row was read"
                raise JournalCorrupt(self._source.path, offset, what)
            yield piece

    def read(self) -> bytes:
        """Return the whole content."""
        return b"".join(self.chunks())

    def __reduce__(self) -> tuple[object, ...]:
        return (Blob, (self.number, self.available, None, (), self.read()))

    def __repr__(self) -> str:
        return f"Blob(number={self.number}, length={self.length}, available={self.available})"
