"""Readers of journals: the tasks of a table, and the rows of each; for Spark and without it.

A reader divides folders into tasks, and reads one of them; it pickles, as do the tasks.
`firebird_cdc.journal.replay.source.datasource` describes the tables and their options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.errors import (
    JournalEmpty,
    JournalError,
    JournalTorn,
    ReplayError,
)
from firebird_cdc.journal.format import (
    DdlChange,
    JournalReader,
)
from firebird_cdc.journal.replay.source.arrow import (
    NUMBER,
    TEXT,
    TIME,
    Columns,
    arrow_schema,
    record_batch,
    record_batches,
    schema_text,
)
from firebird_cdc.journal.replay.source.changes import (
    _BATCH_ROWS,
    CHANGE_COLUMNS,
    _columns_text,
    read_changes,
    table_shape,
)
from firebird_cdc.journal.replay.source.planning import (
    Found,
    JournalOptions,
    JournalPartition,
    find_journals,
    plan_partitions,
    stamp_of,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FILE_COLUMNS: Columns = (
    ("file", TEXT),
    ("size", NUMBER),
    ("database", TEXT),
    ("epoch", NUMBER),
    ("sequence", NUMBER),
    ("journal", TEXT),
    ("transaction", NUMBER),
    ("commit_time", TIME),
    ("events", NUMBER),
    ("length", NUMBER),
    ("problem", TEXT),
    ("what", TEXT),
)
"""Columns of ``firebird_journal_files``.

``problem``: null, ``damaged``, ``torn`` (the file ends early), ``missing``, ``misnamed``; ``what``:
one sentence on it. ``length``: bytes up to the journal's end. Of a damaged journal all that is
still intact is there; ``journal`` is its name then.
"""

SHAPE_COLUMNS: Columns = (
    ("database", TEXT),
    ("table", TEXT),
    ("shape", TEXT),
    ("epoch", NUMBER),
    ("sequence", NUMBER),
    ("last_epoch", NUMBER),
    ("last_sequence", NUMBER),
    ("columns", TEXT),
)
"""Columns of ``firebird_journal_shapes``: a row for each shape that a task met.

``epoch``, ``sequence``: the first journal with it that the task read; ``last_...``: the last one.
So the same shape comes from several tasks; ``columns`` is the same in all. It is JSON: a list of
objects, in the order in which the table shows its columns, with name, type (as CREATE TABLE has
it), sql_type, sub_type, scale, length, charset_id, char_length, precision, nullable, key_position,
storage (as `firebird_cdc.journal.format.Column`).
"""


def chosen(schema: StructType | None, columns: Columns) -> tuple[str, ...]:
    """Return the columns to make. Raises ReplayError if SCHEMA has one that there is not."""
    if schema is None:
        return tuple(name for name, _ in columns)
    kinds = dict(columns)
    for field in schema.fields:
        if kinds.get(field.name) != field.dataType.simpleString():
            raise ReplayError(
                f"firebird_journal has no column {field.name} of type"
                f" {field.dataType.simpleString()}; it has {schema_text(columns)}"
            )
    return tuple(schema.fieldNames())


class Reader(Protocol):
    """Reader of one of the tables."""

    def partitions(self) -> list[JournalPartition]:
        """Return the tasks."""

    def read(self, partition: JournalPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""


def reader_of(name: str, options: Mapping[str, str]) -> tuple[Reader, str]:
    """Return the reader of the table NAME, and its columns as `schema_text` has them."""
    given = JournalOptions.parse(options)
    if name == "firebird_journal":
        return ChangeReader(given, chosen(None, CHANGE_COLUMNS)), schema_text(CHANGE_COLUMNS)
    if name == "firebird_journal_files":
        return FileReader(given), schema_text(FILE_COLUMNS)
    return ShapeReader(given), schema_text(SHAPE_COLUMNS)


class ChangeReader:
    """Plans and reads ``firebird_journal``; only COLUMNS are made."""

    def __init__(self, options: JournalOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self.wanted = options.wanted

    def partitions(self) -> list[JournalPartition]:
        """Return the tasks."""
        return plan_partitions(self._options, split=True, wanted=self.wanted)

    def read(self, partition: JournalPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a task."""
        return read_changes(partition, self._options, self._columns, self.wanted)


class FileReader:
    """Plans and reads ``firebird_journal_files``."""

    def __init__(self, options: JournalOptions) -> None:
        self._options = options

    def partitions(self) -> list[JournalPartition]:
        """Return the tasks."""
        options = self._options
        return plan_partitions(options, split=False, headers_only=True, wanted=options.wanted)

    def read(self, partition: JournalPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the files of a task."""
        only = self._options.database
        found = find_journals(partition, self._options, self._options.wanted)
        rows = (row for row in map(_file_row, found) if only in (None, row[2]) or row[2] is None)
        return record_batches(rows, arrow_schema(FILE_COLUMNS), _BATCH_ROWS)


class ShapeReader:
    """Plans and reads ``firebird_journal_shapes``."""

    def __init__(self, options: JournalOptions) -> None:
        self._options = options

    def partitions(self) -> list[JournalPartition]:
        """Return the tasks."""
        return plan_partitions(self._options, split=False, wanted=self._options.wanted)

    def read(self, partition: JournalPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the shapes of a task."""
        options = self._options
        met: dict[tuple[str, str, str], list[Any]] = {}
        for found in find_journals(partition, options, options.wanted):
            try:
                reader, stamp = found.stamped()
                database = reader.database
                if options.database not in (None, database):
                    continue
                here = (stamp.epoch, stamp.sequence)
                for what in reader.outline():
                    if isinstance(what, DdlChange) or options.table not in (None, what[1].name):
                        continue
                    table = what[1]
                    shape = table_shape(table)
                    row = met.setdefault(
                        (database, table.name, shape), [here, here, _columns_text(table)]
                    )
                    row[:2] = min(row[0], here), max(row[1], here)
            except (JournalError, FileNotFoundError):
                if not options.report_damage:
                    raise
        if met:
            yield record_batch(
                [(*key, *first, *last, columns) for key, (first, last, columns) in met.items()],
                arrow_schema(SHAPE_COLUMNS),
            )


# Files.


def _file_row(found: Found) -> tuple[Any, ...]:
    """Return one row of `FILE_COLUMNS`: sectors and first block of the file are read."""
    place, reader = found.place, found.reader
    row: list[Any] = [place] + [None] * 11
    try:
        if not isinstance(reader, JournalReader):
            raise reader
        row[1] = reader.size
        header = reader.header
        row[5], row[6] = str(header.uuid), header.transaction
        row[2] = reader.database
        stamp = stamp_of(reader)
        row[3], row[4], row[7] = stamp.epoch, stamp.sequence, stamp.commit_us
        row[8], row[9] = stamp.event_count, stamp.journal_length
        if reader.size < stamp.journal_length:
            row[10] = "torn"
            row[11] = (
                f"{place}: the file ends at byte {reader.size:,}, the journal in it"
                f" at {stamp.journal_length:,}"
            )
        elif reader.path.stem != str(header.uuid):
            row[10], row[11] = "misnamed", f"{place}: holds journal {header.uuid}"
    except FileNotFoundError:
        row[10] = "missing"
        row[11] = f"{place}: the file vanished while the folder was being read"
    except JournalError as error:
        is_torn = isinstance(error, JournalEmpty | JournalTorn)
        row[10], row[11] = "torn" if is_torn else "damaged", str(error)
        # It is damaged, and is told; this is what may be had of it beyond that.
        with suppress(ValueError, OSError, JournalError):
            _salvage(found, error, row)
    return tuple(row)


def _salvage(found: Found, error: JournalError, row: list[Any]) -> None:
    """Fill in ROW what is still intact of a damaged journal that is named by its uuid."""
    row[5] = row[5] or str(UUID(error.path.stem))
    row[1], remains = found.salvage()
    row[2] = row[2] or remains.database
    row[6], row[7] = remains.transaction, remains.commit_us
    if remains.stamp is not None:
        row[3], row[4] = remains.stamp.epoch, remains.stamp.sequence
        row[8], row[9] = remains.stamp.event_count, remains.stamp.journal_length
        if row[1] < row[9]:
            row[10] = "torn"
