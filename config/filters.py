"""Decides which tables and columns are captured, and which columns are the message key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import logbook

from firebird_cdc.config.connector import ConnectorConfig
from firebird_cdc.config.families import Patterns

_log = logbook.Logger("firebird_cdc.config.filters")

_SYSTEM_PREFIXES = ("RDB$", "MON$", "SEC$")

# Answers kept: more than the tables and columns that one server usually publishes.
_CACHE_SIZE = 65536


class TableFilter:
    """Applies the four lists of a configuration; answers are cached.

    A pattern has to match the whole identifier, in any case of letters. Of a pair of lists
    the exclude list alone decides when both are set (load_config empties the other).
    """

    def __init__(self, config: ConnectorConfig) -> None:
        self._tables = (config.table_include_list, config.table_exclude_list)
        self._columns = (config.column_include_list, config.column_exclude_list)
        self.captures = lru_cache(_CACHE_SIZE)(self._captures)
        self.keeps_column = lru_cache(_CACHE_SIZE)(self._keeps_column)

    def _captures(self, database: str, table: str) -> bool:
        """Tell whether changes of TABLE (as stored) in DATABASE (its real path) become events."""
        if table.startswith(_SYSTEM_PREFIXES):
            return False
        return _passes(f"{database}.{table}", *self._tables)

    def _keeps_column(self, database: str, table: str, column: str) -> bool:
        """Tell whether COLUMN belongs in the value; key columns stay in the key in any case."""
        return _passes(f"{database}.{table}.{column}", *self._columns)


def _passes(identifier: str, include: Patterns, exclude: Patterns) -> bool:
    if exclude:
        return not any(pattern.fullmatch(identifier) for pattern in exclude)
    return not include or any(pattern.fullmatch(identifier) for pattern in include)


class MessageKeys:
    """Applies ``message.key.columns``."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._parts = config.message_key_columns

    def indices(self, database: str, table: str, columns: Sequence[str]) -> tuple[int, ...] | None:
        """Return the indexes of the key columns among COLUMNS, the table's, in key order.

        None if the option says nothing of TABLE in DATABASE: its own key applies. A column
        that is not there is named in the log.
        """
        found: dict[int, None] = {}  # each once, in order
        for part in self._parts:
            if not part.table.fullmatch(f"{database}.{table}"):
                continue
            for pattern, written in zip(part.columns, part.names, strict=True):
                matching = [i for i, name in enumerate(columns) if pattern.fullmatch(name)]
                found.update(dict.fromkeys(matching))
                if not matching:
                    _log.warning(
                        "message.key.columns: table {} in {} has no column {}",
                        table,
                        database,
                        written,
                    )
        return tuple(found) or None
