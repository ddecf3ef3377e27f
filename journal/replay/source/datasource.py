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

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from firebird_cdc.journal.replay.source.arrow import schema_text
from firebird_cdc.journal.replay.source.changes import CHANGE_COLUMNS
from firebird_cdc.journal.replay.source.filters import read_condition
from firebird_cdc.journal.replay.source.planning import JournalOptions
from firebird_cdc.journal.replay.source.readers import (
    FILE_COLUMNS,
    SHAPE_COLUMNS,
    ChangeReader,
    FileReader,
    Reader,
    ShapeReader,
    chosen,
)

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
        columns = chosen(schema, CHANGE_COLUMNS)
        takes_filters = options.take_filters and _hands_filters_over()
        reader = ChangeReader(options, columns)
        return _FilteringReader(reader) if takes_filters else _Reader(reader)

    def streamReader(self, schema: StructType | None) -> DataSourceStreamReader:
        """Return what plans and reads the batches of a stream; it pickles."""
        from firebird_cdc.journal.replay.source.streaming import JournalStreamReader, StreamOptions

        columns = chosen(schema, CHANGE_COLUMNS)
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
        return _Reader(FileReader(JournalOptions.parse(self.options)))


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
        return _Reader(ShapeReader(JournalOptions.parse(self.options)))


SOURCES: tuple[type[DataSource], ...] = (JournalSource, JournalFileSource, JournalShapeSource)
"""All data sources, for ``spark.dataSource.register``."""


def _hands_filters_over() -> bool:
    """Tell whether Spark asks for a reader to hand filters over to it.

    PySpark 4.1 refuses a reader that could take filters where they are not enabled, and doesn't
    tell the source. But if they are, it runs another worker.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", None) == _PUSHDOWN_WORKER


class _Reader(DataSourceReader):
    """Reader as Spark wants it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(task) for task in self._reader.partitions()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self._reader.read(None if partition is None else partition.value)


class _FilteringReader(_Reader):
    """The same, where Spark hands filters over."""

    def __init__(self, reader: ChangeReader) -> None:
        super().__init__(reader)
        self._changes = reader

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Take note of FILTERS; Spark applies them once more, since not all can be applied here."""
        conditions = [found for each in filters if (found := read_condition(each)) is not None]
        self._changes.wanted = self._changes.wanted.and_also(conditions)
        return filters
