"""Tables and blobs that a reader has met in a journal so far."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.format.content import Blob, Source
from firebird_cdc.journal.format.definitions import completed, parse_definition
from firebird_cdc.journal.format.layout import LAST_CHUNK, TABLE, U64, UNAVAILABLE, Malformed
from firebird_cdc.journal.format.model import Table
from firebird_cdc.journal.format.row_decoder import RowDecoder, compile_decoder, fields_of

MAX_KEPT_DEFINITION = 16 * 1024
"""Bytes of a definition; a larger one is compiled once more rather than kept here."""


def _definition(
    kind: int, number: int, body: bytes, completion: bytes | None, none_codec: str
) -> tuple[Table, RowDecoder]:
    """Return the table that a TABLE record defines, and the decoder for its rows.

    COMPLETION: what the catalogue has for it.
    """
    table = parse_definition(number, body, kind == TABLE)
    if completion is not None:
        if table.resolved:
            raise Malformed(f"the catalogue completes table {table.name}, which is complete")
        table = completed(table, completion)
    return table, compile_decoder(fields_of(table, none_codec))


kept_definition = functools.lru_cache(maxsize=256)(_definition)
"""Equal definitions in many journals are one and the same ``Table`` object."""


class OpenTables(dict[int, tuple[Table, RowDecoder]]):
    """The tables defined so far, by number, each with its decoder.

    ``completed``: the definitions in the catalogue, by number. ``decoder``: makes the decoder of
    a table, instead of that for whole rows. ``find_earlier``: defines one by its number, if a
    reader has begun behind it.
    """

    __slots__ = ("_completed", "_decoder", "_none_codec", "find_earlier")

    def __init__(
        self,
        none_codec: str,
        completed: Mapping[int, bytes],
        decoder: Callable[[Table], RowDecoder] | None = None,
    ) -> None:
        self._none_codec = none_codec
        self._completed = completed
        self._decoder = decoder
        self.find_earlier: Callable[[int], None] | None = None

    def __missing__(self, number: int) -> tuple[Table, RowDecoder]:
        if self.find_earlier is not None:
            self.find_earlier(number)
            if number in self:
                return self[number]
        raise Malformed(f"a row refers to table number {number}, which is not defined")

    def copy(self) -> OpenTables:
        """Return the same tables, to which others may be added."""
        copied = OpenTables(self._none_codec, self._completed, self._decoder)
        copied.update(self)
        return copied

    def define(self, kind: int, number: int, body: bytes) -> None:
        if number == 0 or number in self:
            raise Malformed(f"table number {number} is not free to be defined")
        define = kept_definition if len(body) <= MAX_KEPT_DEFINITION else _definition
        defined = define(kind, number, body, self._completed.get(number), self._none_codec)
        if self._decoder is not None:
            defined = (defined[0], self._decoder(defined[0]))
        self[number] = defined


class PendingBlobs(dict[int, list[tuple[int, int, int]]]):
    """Blobs whose chunks have been met and whose row is still to come: the chunks by number."""

    __slots__ = ("_finished", "_source")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._finished: dict[int, bool] = {}

    def add(self, flags: int, payload: bytes, body: int, end: int, file_offset: int) -> None:
        """Note the chunk in PAYLOAD[BODY:END]; FILE_OFFSET: where the payload lies."""
        if end - body < 8 or flags & ~(LAST_CHUNK | UNAVAILABLE):
            raise Malformed("a chunk of a blob has no number, or unknown flags")
        (number,) = U64.unpack_from(payload, body)
        if number == 0 or number in self._finished:
            raise Malformed(f"a chunk of blob {number} comes after the last one")
        start = body + 8
        extents = self.setdefault(number, [])
        if end > start:
            crc = crc32c.value(payload[start:end])
            extents.append((file_offset + start, end - start, crc))
        if flags & LAST_CHUNK:
            self._finished[number] = not flags & UNAVAILABLE

    def __call__(self, number: int) -> Blob:
        available = self._finished.get(number)
        if available is None:
            raise Malformed(f"a row refers to blob {number}, which does not come before it")
        return Blob(number, available, self._source, self[number])

    def clear(self) -> None:
        """Forget them: a row has come."""
        super().clear()
        self._finished.clear()
