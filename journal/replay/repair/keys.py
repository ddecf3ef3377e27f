"""Keys of messages that a change concerns."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.filters import MessageKeys
from firebird_cdc.journal.format import Row, RowChange, Table
from firebird_cdc.journal.types.canonical import RowText

NONE_AS_STORED = "UTF-8"
"""Character set of NONE texts with which journals are read: what `RepairWriter` asks for."""

_MOST_TABLES = 1000  # whose texts are kept


class Change(NamedTuple):
    """Effect of a change on a key: the row that it has from now on, or, if ``is_gone``, had.

    ``is_sent``: whether an event tells it, as ``skipped.operations`` has it.
    """

    digest: bytes
    row: Row
    is_gone: bool
    is_sent: bool = True


class Keys:
    """Tells which keys of messages a change concerns, as digests."""

    def __init__(self, config: ConnectorConfig, database: str) -> None:
        self._message_keys = MessageKeys(config)
        # A repair's current state of a key is sent in any case.
        self._skipped = config.skipped_operations - {"r"}
        self._database = database
        self._texts: dict[int, tuple[Table, RowText]] = {}
        self.of_statements = blake2b(b"\0", digest_size=16).digest()

    def _text(self, table: Table) -> RowText:
        known = self._texts.get(id(table))
        if known is not None:
            return known[1]
        shown = [table.columns[index].name for index in table.order]
        indices = self._message_keys.indices(self._database, table.name, shown)
        keyed = table
        if indices is not None:
            numbers = {table.order[each]: number for number, each in enumerate(indices, 1)}
            columns = (
                replace(column, key_position=numbers.get(index, 0))
                for index, column in enumerate(table.columns)
            )
            keyed = replace(table, columns=tuple(columns))
        text = RowText(keyed, none_charset=NONE_AS_STORED)
        if len(self._texts) > _MOST_TABLES:
            self._texts.clear()
        self._texts[id(table)] = table, text
        return text

    def _digest(self, table: Table, row: Row) -> bytes | None:
        text = self._text(table).key(row)
        if text is None:
            return None
        return blake2b(f"{table.name}\0{text}".encode(), digest_size=16).digest()

    def of(self, change: RowChange) -> list[Change]:
        """Return the effects of CHANGE on keys, none for a table without a key."""
        _, op, table, before, after = change
        old = None if before is None else self._digest(table, before)
        new = None if after is None else self._digest(table, after)
        is_split = old is not None and new is not None and old != new
        found = []
        if before is not None and old is not None and old != new:
            found.append(Change(old, before, True, "d" not in self._skipped))
        if after is not None and new is not None:
            is_sent = ("c" if is_split else op) not in self._skipped
            found.append(Change(new, after, False, is_sent))
        return found

    def sent(self, change: RowChange) -> list[bytes]:
        """Return the digests of the keys of the events that CHANGE gives."""
        return [each.digest for each in self.of(change) if each.is_sent]
