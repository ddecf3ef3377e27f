"""Rows of a live database as texts that can be compared, read by Spark's tasks side by side.

Each task joins the snapshot for itself, and reads ranges of data pages (`journal.snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.replay.source.arrow import Columns, arrow_schema, record_batch
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.catalogue import DatabaseTable, PageRange
from firebird_cdc.journal.snapshot.reader import SnapshotReader
from firebird_cdc.journal.types.canonical import RowText

# Rows and characters of text after which a batch goes to the JVM; guesses.
_BATCH_ROWS = 8192
_BATCH_CHARACTERS = 4 * 1024 * 1024


class DatabaseRow(NamedTuple):
    """``key`` None: the table has none. ``version``: the transaction that wrote the row."""

    table: str
    key: str | None
    row: str
    version: int


ROW_COLUMNS: Columns = (
    ("table", "string"),
    ("key", "string"),
    ("row", "string"),
    ("version", "bigint"),
)
"""Columns that Spark has of a `DatabaseRow`."""


def read_rows(
    how: DatabaseConnection,
    number: int,
    tables: Sequence[DatabaseTable],
    ranges: Iterable[PageRange],
    none_charset: str,
) -> Iterator[DatabaseRow]:
    """Attach, join snapshot NUMBER, and yield the rows of RANGES. Raises DatabaseUnreadable."""
    with SnapshotReader(how, number, none_charset) as reader:
        for each in ranges:
            table = tables[each.table]
            text = RowText(table.table, none_charset=none_charset)
            name, key_of, row_of = table.table.name, text.key, text.row
            for values, version in reader.rows(table, each):
                yield DatabaseRow(name, key_of(values), row_of(values), version)


@dataclass(frozen=True)
class RowBatches:
    """Function that a task of the audit runs; a small value that pickles.

    Shows no password: Spark prints the names of functions, not what they hold.
    """

    how: DatabaseConnection
    number: int
    tables: tuple[DatabaseTable, ...]
    none_charset: str

    def __call__(self, ranges: Sequence[PageRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of RANGES, columns `ROW_COLUMNS`."""
        schema = arrow_schema(ROW_COLUMNS)
        gathered: list[DatabaseRow] = []
        characters = 0
        for row in read_rows(self.how, self.number, self.tables, ranges, self.none_charset):
            gathered.append(row)
            characters += len(row.row)
            if len(gathered) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                yield record_batch(gathered, schema)
                gathered, characters = [], 0
        if gathered:
            yield record_batch(gathered, schema)
