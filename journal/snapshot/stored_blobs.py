"""BLOBs of a database, read from it piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from firebird_cdc.errors import DatabaseUnreadable
from firebird_cdc.journal.format import Blob
from firebird_cdc.journal.snapshot.attachment import one_line
from firebird_cdc.journal.snapshot.statements import BlobContent

_NOT_THERE = ("BLOB not found", "invalid BLOB ID")  # the first has no code of its own


class StoredBlob(Blob):
    """The content of a BLOB or an ARRAY in the database.

    ``kept``: bytes of it in memory: all, or none if it is longer than is to be kept; it is read
    anew then when somebody asks for it, piece by piece, as long as its snapshot is joined.
    ``available`` False: the engine does not find it, which is the row's fault and not the reader's.
    """

    __slots__ = ("_pieces", "_stored", "kept")

    def __init__(self, content: BlobContent, most_kept: int) -> None:
        from firebird.driver import DatabaseError

        super().__init__(0, True, None, ())
        self._stored = content
        pieces: list[bytes] = []
        self._pieces: list[bytes] | None = pieces
        try:
            for piece in self._stored.pieces():
                self.length += len(piece)
                if self.length > most_kept:
                    self._pieces = None
                    self.length = self._stored.length()
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
            yield from self._stored.pieces()
        except Error as error:
            raise DatabaseUnreadable(
                f"a BLOB of {self.length} bytes can't be read any more: {one_line(error)}"
            ) from error
