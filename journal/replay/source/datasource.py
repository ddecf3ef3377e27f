"""Journals as tables of Spark: ``firebird_journal``, ``..._files`` and ``..._shapes``.

`JournalSource` gives one row per change, `JournalFileSource` one row per file, `JournalShapeSource`
the definitions of tables. All take a folder or a list of folders, as
`firebird_cdc.journal.replay.source.storage` reads them, and these options (names in any case,
values as text):

========================== ============ ===================================================
option                     default      meaning
========================== ============ ===================================================
``partitionBytes``         33554432     bytes of journals that one task reads, at most about;
                                        a larger journal is read by several tasks
``partitionJournals``      2000         journals that one task reads, at most
``minPartitions``          2 a core     tasks, at least, unless there is little to read
``noneCharset``            UTF-8        for texts of CHARACTER SET NONE
``rows``                   text         ``digest``: ``before`` and ``after`` as 128-bit digests
                                        of the row without its blobs; ``state``: ``before``
                                        only for tables without a key
``onDamage``               fail         ``report``: a row with operation ``damaged`` instead
``onMissing``              report       ``fail``: a file that vanishes ends the job; else a row
                                        with operation ``missing``
``onEmpty``                fail         ``accept``: folders without any journal are an empty
                                        table
``database``, ``table``    all          only this database (path), only rows of this table
``epoch``                  all          only journals of this epoch
``fromSequence``,          all          only journals from and to this sequence number
``toSequence``
``fromTime``, ``toTime``   all          only journals committed from and to this time, as
                                        ISO 8601 has it, without a zone in UTC
``pushFilters``            false        ``true``: take the conditions of the query, too
========================== ============ ===================================================

Journals outside of the range that the options give are not decoded, and segments not opened; only
what is damaged where that can't be told is there all the same. With ``pushFilters`` the conditions
of a query on database, epoch, sequence, journal, transaction, commit_time, table and operation are
applied in the same way, if Spark hands them over (``spark.sql.python.filterPushdown.enabled``);
else the result is the same, and all is read. It is an option because of a fault of Spark 4.1
(`PythonDataSourceV2` keeps what the last query pushed for all others of the same ``load``): a
DataFrame with it is good for one query, in which it occurs once.

Only the columns in ``schema(...)`` are made, if the reader is given one: leaving out ``before`` and
``after`` saves most of the work.

``readStream`` takes these options and those of `firebird_cdc.journal.replay.source.streaming`.

Planning, on the driver, reads names and sizes only. Everything else happens in the tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

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
from firebird_cdc.journal.replay.source.filters import read_condition
from firebird_cdc.journal.replay.source.planning import (
    Found,
    JournalOptions,
    find_journals,
    plan_partitions,
    stamp_of,
)

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


_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class JournalSource(DataSource):
    """``firebird_journal``: one row per change; columns `CHANGE_COLUMNS`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "firebird_journal"

    def schema(self) -> str:
        """Return the columns."""
        return schema_text(CHANGE_COLUMNS)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """Return what plans and reads; it pickles."""
        options = JournalOptions.parse(self.options)
        columns = _chosen(schema, CHANGE_COLUMNS)
        takes_filters = options.take_filters and _hands_filters_over()
        return (_FilteringReader if takes_filters else ChangeReader)(options, columns)

    def streamReader(self, schema: StructType | None) -> DataSourceStreamReader:
        """Return what plans and reads the batches of a stream; it pickles."""
        from firebird_cdc.journal.replay.source.streaming import JournalStreamReader, StreamOptions

        columns = _chosen(schema, CHANGE_COLUMNS)
        return JournalStreamReader(StreamOptions.parse(self.options), columns)


class JournalFileSource(DataSource):
    """``firebird_journal_files``: one row per file; columns `FILE_COLUMNS`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "firebird_journal_files"

    def schema(self) -> str:
        """Return the columns."""
        return schema_text(FILE_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return what plans and reads; it pickles."""
        return _FileReader(JournalOptions.parse(self.options))


class JournalShapeSource(DataSource):
    """``firebird_journal_shapes``: definitions of tables; columns `SHAPE_COLUMNS`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "firebird_journal_shapes"

    def schema(self) -> str:
        """Return the columns."""
        return schema_text(SHAPE_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return what plans and reads; it pickles."""
        return _ShapeReader(JournalOptions.parse(self.options))


SOURCES: tuple[type[DataSource], ...] = (JournalSource, JournalFileSource, JournalShapeSource)
"""All data sources, for ``spark.dataSource.register``."""


def _hands_filters_over() -> bool:
    """Tell whether Spark asks for a reader to hand filters over to it.

    PySpark 4.1 refuses a reader that could take filters where they are not enabled, and doesn't
    tell the source. But if they are, it runs another worker.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", None) == _PUSHDOWN_WORKER


def _chosen(schema: StructType | None, columns: Columns) -> tuple[str, ...]:
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


class ChangeReader(DataSourceReader):
    """Plans and reads ``firebird_journal``; only COLUMNS are made."""

    def __init__(self, options: JournalOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._wanted = options.wanted

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return plan_partitions(self._options, split=True, wanted=self._wanted)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a task."""
        return read_changes(partition, self._options, self._columns, self._wanted)


class _FilteringReader(ChangeReader):
    """The same, where Spark hands filters over."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Take note of FILTERS; Spark applies them once more, since not all can be applied here."""
        conditions = [found for each in filters if (found := read_condition(each)) is not None]
        self._wanted = self._wanted.and_also(conditions)
        return filters


class _FileReader(DataSourceReader):
    def __init__(self, options: JournalOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        return plan_partitions(options, split=False, headers_only=True, wanted=options.wanted)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        only = self._options.database
        found = find_journals(partition, self._options, self._options.wanted)
        rows = (row for row in map(_file_row, found) if only in (None, row[2]) or row[2] is None)
        return record_batches(rows, arrow_schema(FILE_COLUMNS), _BATCH_ROWS)


class _ShapeReader(DataSourceReader):
    def __init__(self, options: JournalOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return plan_partitions(self._options, split=False, wanted=self._options.wanted)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
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


# Changes.


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
