"""Small transactions of shared journals, each checked and taken apart by one call in C: one block
that holds nothing but rows, which are left as they are, and what defines their tables.

For the shipper; `small_transactions` decodes the rows of such ones, with that call or, as on
Spark's executors, without it. All others, and those in which anything is wrong, are left to
`JournalReader`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from firebird_cdc.journal.format.definitions import parse_begin
from firebird_cdc.journal.format.layout import (
    BEGIN,
    DELETE,
    INSERT,
    TABLE,
    U32,
    Malformed,
    new_tuple,
)
from firebird_cdc.journal.format.model import Place, Table
from firebird_cdc.journal.format.open_tables import MAX_KEPT_DEFINITION, kept_definition
from firebird_cdc.journal.format.row_decoder import RowDecoder, UndecodedChange, codec_for_none
from firebird_cdc.native._journal_files import split_transaction

MOST_EVENTS = 64
"""Events of a transaction that is read so."""

_KEPT = 256  # bodies of records that are known


class TransactionSplitter:
    """Takes small transactions apart, of any shared journals. What is said of tables in each of
    them is known by its bytes. ``none_charset``: as of `JournalReader`."""

    def __init__(self, none_charset: str) -> None:
        self._none_codec = codec_for_none(none_charset)
        self._begins: set[bytes] = set()
        self._tables: dict[tuple[int, bytes], tuple[Table, RowDecoder]] = {}

    def changes(self, content: bytes, at: int, place: Place) -> list[UndecodedChange] | None:
        """Return the changes of the transaction of PLACE, whose head is at AT of CONTENT: those
        that `JournalReader` gives, their rows still to be decoded. None: it is to be read by
        that."""
        uuid, _, _, seal_end, stamp = place
        _, _, _, _, length, events, transaction, catalogue = stamp
        if catalogue or length != seal_end or events > MOST_EVENTS:
            return None
        records = split_transaction(content, at, uuid.bytes, transaction, seal_end, events)
        if records is None:
            return None
        changes: list[UndecodedChange] = []
        tables: dict[int, tuple[Table, RowDecoder]] = {}
        try:
            for kind, number, start, end in records:
                if kind == INSERT:
                    fields = (len(changes) + 1, "c", *tables[number], None, (start, end))
                    changes.append(new_tuple(UndecodedChange, fields))
                elif kind == TABLE:
                    if number == 0 or number in tables:
                        return None
                    body = content[start:end]
                    tables[number] = self._tables.get((number, body)) or self._define(number, body)
                elif kind == BEGIN:
                    body = content[start:end]
                    if body not in self._begins:
                        _keep(self._begins.clear, len(self._begins))
                        parse_begin(body)
                        self._begins.add(body)
                elif kind == DELETE:
                    pos = len(changes) + 1
                    changes.append(UndecodedChange(pos, "d", *tables[number], (start, end), None))
                else:
                    middle = start + 4 + U32.unpack_from(content, start)[0]
                    if middle > end:
                        return None
                    pos, before = len(changes) + 1, (start + 4, middle)
                    change = UndecodedChange(pos, "u", *tables[number], before, (middle, end))
                    changes.append(change)
        except (Malformed, KeyError, struct.error, UnicodeDecodeError):
            return None
        return changes

    def _define(self, number: int, body: bytes) -> tuple[Table, RowDecoder]:
        """Return what `JournalReader` has for a definition, too."""
        if len(body) > MAX_KEPT_DEFINITION:
            raise Malformed("a definition is too large to be kept")
        _keep(self._tables.clear, len(self._tables))
        made = kept_definition(TABLE, number, body, None, self._none_codec)
        self._tables[number, body] = made
        return made


def _keep(forget: Callable[[], None], many: int) -> None:
    """Begin anew where MANY are kept: tables are altered now and then."""
    if many >= _KEPT:
        forget()
