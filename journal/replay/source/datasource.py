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

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
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
    Column,
    DdlChange,
    Gap,
    JournalReader,
    RowChange,
    Table,
    TableChange,
    TableState,
    Undecodable,
)
from firebird_cdc.journal.replay.source.arrow import (
    Columns,
    arrow_schema,
    record_batch,
    record_batches,
    schema_text,
)
from firebird_cdc.journal.replay.source.ddl import read_statement
from firebird_cdc.journal.replay.source.filters import Condition, Wanted, read_condition
from firebird_cdc.journal.replay.source.planning import (
    Found,
    JournalOptions,
    find_journals,
    open_partition,
    plan_partitions,
    stamp_of,
)
from firebird_cdc.journal.types.canonical import RowText
from firebird_cdc.journal.types.names import type_expression

_TEXT, _NUMBER, _TIME = "string", "bigint", "timestamp"

CHANGE_COLUMNS: Columns = (
    ("database", _TEXT),
    ("epoch", _NUMBER),
    ("sequence", _NUMBER),
    ("journal", _TEXT),
    ("transaction", _NUMBER),
    ("commit_time", _TIME),
    ("file", _TEXT),
    ("position", _NUMBER),
    ("operation", _TEXT),
    ("table", _TEXT),
    ("shape", _TEXT),
    ("key", _TEXT),
    ("old_key", _TEXT),
    ("before", _TEXT),
    ("after", _TEXT),
    ("ddl", _TEXT),
    ("catalogue", _TEXT),
    ("reason", _TEXT),
)
"""Columns of ``firebird_journal``.

``operation``: c, u, d, ddl, gap, and where asked for ``damaged`` and ``missing``. ``key``: JSON
text of the key columns, after an update the new ones; ``old_key``: the former key if an update
changed it. ``before``, ``after``: the row as `firebird_cdc.journal.types.canonical` writes it.
``shape``: digest of the columns' definitions. ``catalogue``: of DDL, which tables it changed and
how they are after its transaction, as JSON: a list of objects with kind (CREATE, ALTER, DROP),
table and columns, null where they are not known; each with name, type, nullable, default,
generated, key_position (from 1; 0: none). ``reason``: of a gap or of damage; of DDL what it does,
as `firebird_cdc.journal.replay.source.ddl` names it. ``file``: where the journal was when it was
read.
"""

FILE_COLUMNS: Columns = (
    ("file", _TEXT),
    ("size", _NUMBER),
    ("database", _TEXT),
    ("epoch", _NUMBER),
    ("sequence", _NUMBER),
    ("journal", _TEXT),
    ("transaction", _NUMBER),
    ("commit_time", _TIME),
    ("events", _NUMBER),
    ("length", _NUMBER),
    ("problem", _TEXT),
    ("what", _TEXT),
)
"""Columns of ``firebird_journal_files``.

``problem``: null, ``damaged``, ``torn`` (the file ends early), ``missing``, ``misnamed``; ``what``:
one sentence on it. ``length``: bytes up to the journal's end. Of a damaged journal all that is
still intact is there; ``journal`` is its name then.
"""

SHAPE_COLUMNS: Columns = (
    ("database", _TEXT),
    ("table", _TEXT),
    ("shape", _TEXT),
    ("epoch", _NUMBER),
    ("sequence", _NUMBER),
    ("last_epoch", _NUMBER),
    ("last_sequence", _NUMBER),
    ("columns", _TEXT),
)
"""Columns of ``firebird_journal_shapes``: a row for each shape that a task met.

``epoch``, ``sequence``: the first journal with it that the task read; ``last_...``: the last one.
So the same shape comes from several tasks; ``columns`` is the same in all. It is JSON: a list of
objects, in the order in which the table shows its columns, with name, type (as CREATE TABLE has
it), sql_type, sub_type, scale, length, charset_id, char_length, precision, nullable, key_position,
storage (as `firebird_cdc.journal.format.Column`).
"""

# Rows and characters of text after which a batch goes to the JVM; guesses.
_BATCH_ROWS = 8192
_BATCH_CHARACTERS = 4 * 1024 * 1024

_CONSTANTS = 7  # columns of CHANGE_COLUMNS, from the left, that are the same for a whole journal
_ROW_OPERATIONS = 3  # c, u and d
_Facts = tuple[str | None, int | None, int | None, str | None, int | None, int | None, str | None]

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
    """Whether Spark asks for a reader to hand filters over to it.

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


class _Batch:
    """Gathers changes until they are worth sending, column by column.

    ``positions`` and ``operations`` have a value for each row. The other lists are filled up with
    nulls when a value comes, or at last: what is mostly null costs nothing.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        kinds = dict(CHANGE_COLUMNS)
        self._constant = {
            name: index for index, (name, _) in enumerate(CHANGE_COLUMNS[:_CONSTANTS])
        }
        self._schema = arrow_schema(tuple((name, kinds[name]) for name in columns))
        # What is the same for several rows, and the number of rows before them.
        self._runs: list[tuple[_Facts, int]] = []
        self._tables: list[tuple[tuple[str | None, str | None], int]] = []
        self.positions: list[int | None] = []
        self.operations: list[str] = []
        self.keys: list[str | None] = []
        self.old_keys: list[str | None] = []
        self.before: list[str | None] = []
        self.after: list[str | None] = []
        self.ddl: list[str | None] = []
        self.catalogues: list[str | None] = []
        self.reasons: list[str | None] = []
        self.characters = 0

    def begin(self, facts: _Facts) -> None:
        """Set what all rows from now on have in common."""
        self._runs.append((facts, len(self.positions)))

    def begin_table(self, name: str | None, shape: str | None) -> None:
        """Set the table of all rows from now on."""
        self._tables.append(((name, shape), len(self.positions)))

    def add_other(
        self,
        position: int | None,
        operation: str,
        table: str | None,
        ddl: str | None,
        catalogue: str | None,
        reason: str | None,
    ) -> None:
        """Take what is no change of a row."""
        rows = len(self.positions)
        self.begin_table(table, None)
        self.positions.append(position)
        self.operations.append(operation)
        for values, value in (
            (self.ddl, ddl),
            (self.catalogues, catalogue),
            (self.reasons, reason),
        ):
            if value is not None:
                _put(values, rows, value)
                self.characters += len(value)

    @property
    def is_full(self) -> bool:
        """Whether it is time to flush."""
        return len(self.positions) >= _BATCH_ROWS or self.characters >= _BATCH_CHARACTERS

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield what was gathered, if anything, and begin anew with the same facts."""
        rows = len(self.positions)
        if not rows:
            return
        lists: dict[str, list[Any]] = {
            "position": self.positions,
            "operation": self.operations,
            "key": self.keys,
            "old_key": self.old_keys,
            "before": self.before,
            "after": self.after,
            "ddl": self.ddl,
            "catalogue": self.catalogues,
            "reason": self.reasons,
        }
        arrays = []
        for field in self._schema:
            name, kind = field.name, field.type
            if name in self._constant:
                arrays.append(_repeated(self._runs, self._constant[name], kind, rows))
            elif name in ("table", "shape"):
                arrays.append(_repeated(self._tables, int(name == "shape"), kind, rows))
            elif not lists[name]:
                arrays.append(pa.nulls(rows, kind))
            else:
                values = lists[name]
                if len(values) < rows:
                    values.extend([None] * (rows - len(values)))
                arrays.append(pa.array(values, kind))
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._runs = [(self._runs[-1][0], 0)]
        self._tables = [(self._tables[-1][0], 0)]
        for values in lists.values():
            values.clear()
        self.characters = 0


def _put(values: list[Any], row: int, value: object) -> None:
    """Make VALUE that of ROW, and null those between it and the last one."""
    missing = row - len(values)
    if missing:
        values.extend([None] * missing)
    values.append(value)


def _repeated(
    runs: Sequence[tuple[tuple[Any, ...], int]], index: int, kind: pa.DataType, rows: int
) -> pa.Array:
    """Return the values at INDEX of RUNS, each as often as its run has rows."""
    first = runs[0][0][index]
    if all(values[index] == first for values, _ in runs):
        return pa.repeat(pa.scalar(first, kind), rows)
    ends = [start for _, start in runs[1:]] + [rows]
    column: list[Any] = []
    for (values, start), end in zip(runs, ends, strict=True):
        column.extend([values[index]] * (end - start))
    return pa.array(column, kind)


def read_changes(
    partition: InputPartition | None,
    options: JournalOptions,
    columns: tuple[str, ...],
    wanted: Wanted,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a task; what WANTED leaves out may be there all the same."""
    batch = _Batch(columns)
    if options.table is not None:
        wanted = wanted.and_also([Condition("table", "eq", options.table)])
    for found in open_partition(partition, options, wanted):
        yield from _read_journal(found, options, columns, wanted, batch)
    yield from batch.flush()


def missing_numbers(
    gaps: Iterable[tuple[str, int, int, int]], columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield a row ``missing`` for each of GAPS: database, epoch, first and last number."""
    batch = _Batch(columns)
    for database, epoch, first, last in gaps:
        batch.begin((database, epoch, first, None, None, None, None))
        reason = f"no journal has the sequence numbers {first} to {last} of epoch {epoch}"
        batch.add_other(None, "missing", None, None, None, reason)
    yield from batch.flush()


def _read_journal(
    found: Found,
    options: JournalOptions,
    columns: tuple[str, ...],
    wanted: Wanted,
    batch: _Batch,
) -> Iterator[pa.RecordBatch]:
    """Yield full batches; what is left stays in BATCH."""
    place, reader = found.place, found.reader
    facts: _Facts = (None, None, None, None, None, None, place)
    problem, reason = "missing", "the file vanished while the folder was being read"
    try:
        if not isinstance(reader, JournalReader):
            raise reader
        header = reader.header
        uuid = str(header.uuid)
        facts = (None, None, None, uuid, header.transaction, None, place)
        stamp = stamp_of(reader)
        facts = (
            None, stamp.epoch, stamp.sequence, uuid, header.transaction, stamp.commit_us, place,
        )  # fmt: skip
        database = reader.database
        if options.database not in (None, database):
            return
        if wanted.tells_database and not wanted.admits(database=database):
            return
        facts = (database, *facts[1:])
        batch.begin(facts)
        yield from _gather(reader, found.start, found.end, options, columns, wanted, batch)
        return
    except FileNotFoundError:
        if options.fail_on_missing:
            raise ReplayError(f"{place} vanished while the folder was being read") from None
    except JournalError as error:
        if not options.report_damage:
            raise
        problem, reason = "damaged", str(error)
    batch.begin(facts)
    batch.add_other(None, problem, None, None, None, reason)
    if batch.is_full:
        yield from batch.flush()


def _gather(
    reader: JournalReader,
    start: int,
    end: int | None,
    options: JournalOptions,
    columns: tuple[str, ...],
    wanted: Wanted,
    batch: _Batch,
) -> Iterator[pa.RecordBatch]:
    """Put the changes of a range into BATCH; yield full batches."""
    seen: Table | None = None
    is_wanted = has_key = has_before = True
    row_of: Callable[[Any], str | None] = _nothing
    key_of: Callable[[Any], str | None] = _nothing
    table_wanted, operations = wanted.table, wanted.operations
    all_operations = len(operations) == _ROW_OPERATIONS
    with_before, with_after = "before" in columns, "after" in columns
    with_keys = "key" in columns or "old_key" in columns
    keys, old_keys, before_texts, after_texts = (
        batch.keys, batch.old_keys, batch.before, batch.after,
    )  # fmt: skip
    add_position, add_operation = batch.positions.append, batch.operations.append
    rows = len(batch.positions)
    characters = 0
    for change in reader.changes(start, end):
        if change.__class__ is RowChange:
            position, operation, table, before, after = change
            if table is not seen:
                seen = table
                is_wanted = table_wanted is None or table_wanted(table.name)
                if is_wanted:
                    shape, (row_of, key_of) = _shape(
                        table.name, table.key_kind, table.columns, table.order,
                        options.none_charset, options.rows == "digest",
                    )  # fmt: skip
                    batch.begin_table(table.name, shape)
                    has_key = key_of is not _nothing
                    has_before = with_before and not (options.rows == "state" and has_key)
                    has_key = has_key and with_keys
            if not is_wanted or not (all_operations or operation in operations):
                continue
            if has_key:
                key = key_of(before if after is None else after)
                _put(keys, rows, key)
                if operation == "u" and (old_key := key_of(before)) != key:
                    _put(old_keys, rows, old_key)
            if has_before and before is not None:
                text = row_of(before)
                characters += len(text)  # type: ignore[arg-type]
                _put(before_texts, rows, text)
            if with_after and after is not None:
                text = row_of(after)
                characters += len(text)  # type: ignore[arg-type]
                _put(after_texts, rows, text)
            add_position(position)
            add_operation(operation)
            rows += 1
            if rows < _BATCH_ROWS and characters < _BATCH_CHARACTERS:
                continue
        elif isinstance(change, DdlChange):
            sql = change.sql
            if isinstance(sql, Undecodable):
                sql = sql.raw.decode("ascii", "backslashreplace")
            action, of_table = read_statement(sql)
            catalogue = _catalogue_text(change.table_changes)
            batch.add_other(change.pos, "ddl", of_table, sql, catalogue, action)
            seen = None  # the batch is at another table now
        elif isinstance(change, Gap):
            batch.add_other(change.pos, "gap", None, None, None, change.reason)
            seen = None
        batch.characters += characters
        characters = 0
        if batch.is_full:
            yield from batch.flush()
        rows = len(batch.positions)
    batch.characters += characters


def _nothing(values: Any) -> None:  # noqa: ARG001
    return None


@lru_cache(maxsize=1024)
def _shape(
    name: str,
    key_kind: int,
    columns: tuple[Column, ...],
    order: tuple[int, ...],
    none_charset: str,
    as_digest: bool,
) -> tuple[str, tuple[Callable[[Any], str | None], Callable[[Any], str | None]]]:
    """Return the digest of a table's shape and what writes its rows and keys; most journals repeat
    the shapes of others."""
    table = Table(1, name, key_kind, columns, order)
    writer = RowText(table, none_charset=none_charset, with_blobs=not as_digest)
    write = writer.row
    row: Callable[[Any], str | None] = (
        (lambda values: _digest(write(values))) if as_digest else write
    )
    return table_shape(table), (row, writer.key if table.key_columns else _nothing)


def table_shape(table: Table) -> str:
    """Return the digest of the definition of a table's columns."""
    content = repr((table.name, table.columns, table.order))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _catalogue_text(changes: tuple[TableChange, ...] | None) -> str | None:
    """Return column ``catalogue``; null if the journal doesn't tell."""
    if changes is None:
        return None
    return json.dumps(
        [
            {
                "kind": change.kind,
                "table": change.name,
                "columns": None if change.state is None else _state_columns(change.state),
            }
            for change in changes
        ],
        ensure_ascii=False,
    )


def _state_columns(state: TableState) -> list[dict[str, Any]]:
    facts = list(zip(state.table.columns, state.defaults, state.generated, strict=True))
    return [
        {
            "name": column.name,
            "type": type_expression(column),
            "nullable": column.nullable,
            "default": default,
            "generated": generated,
            "key_position": column.key_position,
        }
        for column, default, generated in (facts[index] for index in state.table.order)
    ]


def _columns_text(table: Table) -> str:
    """Return column ``columns`` of ``firebird_journal_shapes``."""
    return json.dumps(
        [
            {
                "name": column.name,
                "type": type_expression(column),
                "sql_type": column.sql_type,
                "sub_type": column.sub_type,
                "scale": column.scale,
                "length": column.length,
                "charset_id": column.charset_id,
                "char_length": column.char_length,
                "precision": column.precision,
                "nullable": column.nullable,
                "key_position": column.key_position,
                "storage": column.storage.name,
            }
            for column in (table.columns[index] for index in table.order)
        ],
        ensure_ascii=False,
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
