"""The changes of journals as rows of the data source, batch by batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.errors import JournalError, ReplayError
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
from firebird_cdc.journal.format.model import ROW_OPERATIONS
from firebird_cdc.journal.replay.source.arrow import NUMBER, TEXT, TIME, Columns, arrow_schema
from firebird_cdc.journal.replay.source.ddl import read_statement
from firebird_cdc.journal.replay.source.filters import Condition, Wanted
from firebird_cdc.journal.replay.source.planning import (
    Found,
    JournalOptions,
    JournalPartition,
    open_partition,
    stamp_of,
)
from firebird_cdc.journal.types.canonical import RowText
from firebird_cdc.journal.types.names import type_expression

CHANGE_COLUMNS: Columns = (
    ("database", TEXT),
    ("epoch", NUMBER),
    ("sequence", NUMBER),
    ("journal", TEXT),
    ("transaction", NUMBER),
    ("commit_time", TIME),
    ("file", TEXT),
    ("position", NUMBER),
    ("operation", TEXT),
    ("table", TEXT),
    ("shape", TEXT),
    ("key", TEXT),
    ("old_key", TEXT),
    ("before", TEXT),
    ("after", TEXT),
    ("ddl", TEXT),
    ("catalogue", TEXT),
    ("reason", TEXT),
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


_Facts = tuple[str | None, int | None, int | None, str | None, int | None, int | None, str | None]

# Rows and characters of text after which a batch goes to the JVM; guesses.
_BATCH_ROWS = 8192


_BATCH_CHARACTERS = 4 * 1024 * 1024


_CONSTANTS = 7  # columns of CHANGE_COLUMNS, from the left, that are the same for a whole journal


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
        """Tell whether it is time to flush."""
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
    partition: JournalPartition | None,
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
    all_operations = len(operations) == len(ROW_OPERATIONS)
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
