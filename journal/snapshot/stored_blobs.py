"""BLOBs of a database, read from it piece by piece."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from firebird_cdc.errors import DatabaseUnreadable
from firebird_cdc.journal.format import Blob
from firebird_cdc.journal.snapshot.attachment import one_line

_PIECE = 65_535
_NOT_THERE = ("BLOB not found", "invalid BLOB ID")  # the first has no code of its own
_END = 1  # StateResult.NO_DATA


class StoredBlob(Blob):
    """The content of a BLOB or an ARRAY in the database.

    ``kept``: bytes of it in memory: all, or none if it is longer than is to be kept; it is read
    anew then when somebody asks for it, piece by piece, as long as its snapshot is joined.
    ``available`` False: the engine does not find it, which is the row's fault and not the reader's.
    """

    __slots__ = ("_pieces", "_place", "kept")

    def __init__(self, attachment: Any, transaction: Any, number: bytes, most_kept: int) -> None:
        from firebird.driver import DatabaseError

        super().__init__(0, True, None, ())
        self._place = attachment, transaction, number
        pieces: list[bytes] = []
        self._pieces: list[bytes] | None = pieces
        try:
            for piece in _pieces(*self._place):
                self.length += len(piece)
                if self.length > most_kept:
                    self._pieces = None
                    self.length = _length(*self._place)
                    break
                pieces.append(piece)
        except DatabaseError as error:
            if not any(words in str(error) for words in _NOT_THERE):
                raise
            self.available = False
        self.kept = 0 if self._pieces is None else self.length

    def chunks(self) -> Iterator[bytes]:
        """Yield the content piece by piece. Raises DatabaseUnreadable if it is read anew and can't
        be."""
        from firebird.driver import Error

        if self._pieces is not None:
            yield from self._pieces
            return
        try:
            yield from _pieces(*self._place)
        except Error as error:
            raise DatabaseUnreadable(
                f"a BLOB of {self.length} bytes can't be read any more: {one_line(error)}"
            ) from error


def _open(attachment: Any, transaction: Any, number: bytes) -> Any:
    from firebird.driver.fbapi import ISC_QUAD

    return attachment.open_blob(transaction, ISC_QUAD.from_buffer_copy(number))


def _length(attachment: Any, transaction: Any, number: bytes) -> int:
    from firebird.driver.types import BlobInfoCode

    blob = _open(attachment, transaction, number)
    try:
        return int(blob.get_info2(BlobInfoCode.TOTAL_LENGTH))
    finally:
        blob.close()


def _pieces(attachment: Any, transaction: Any, number: bytes) -> Iterator[bytes]:
    from firebird.driver.fbapi import Cardinal

    blob = _open(attachment, transaction, number)
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
