"""Journals as tables of Spark: the data sources ``firebird_journal`` and ``..._files``.

`JournalSource` gives one row per change, `JournalFileSource` one row per file. Both take a
folder or a list of folders and these options (names in any case, values as text):

========================== ============ ===================================================
option                     default      meaning
========================== ============ ===================================================
``partitionBytes``         33554432     bytes of journals that one task reads; a larger
                                        journal is read by several tasks
``partitionJournals``      2000         journals that one task reads
``noneCharset``            UTF-8        for texts of CHARACTER SET NONE
``rows``                   text         ``digest``: ``before`` and ``after`` as 128-bit digests
                                        of the row without its blobs
``onDamage``               fail         ``report``: a row with op ``damaged`` instead
``onMissing``              report       ``fail``: a file that vanishes ends the job; else a row
                                        with op ``missing``
``database``, ``table``    all          only this database (path), only rows of this table
========================== ============ ===================================================

Planning, on the driver, reads names and sizes only. Everything else happens in the tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from firebird_cdc.errors import JournalCorrupt, JournalError, ReplayError
from firebird_cdc.journal.canonical import RowText
from firebird_cdc.journal.format import (
    DATA_OFFSET,
    Column,
    DdlChange,
    Gap,
    JournalReader,
    RowChange,
    Table,
    Undecodable,
)
from firebird_cdc.journal.replay.ddl import read_statement
from firebird_cdc.journal.segments import (
    find_packed,
    is_segment_name,
    list_segment,
    open_journal,
)

_TEXT, _NUMBER = "string", "bigint"

_Columns = tuple[tuple[str, str], ...]

_CHANGE_COLUMNS: _Columns = (
    ("database", _TEXT),
    ("epoch", _NUMBER),
    ("sequence", _NUMBER),
    ("journal", _TEXT),
    ("txId", _NUMBER),
    ("commit_us", _NUMBER),
    ("path", _TEXT),
    ("pos", _NUMBER),
    ("op", _TEXT),
    ("table", _TEXT),
    ("table_shape", _TEXT),
    ("key", _TEXT),
    ("old_key", _TEXT),
    ("before", _TEXT),
    ("after", _TEXT),
    ("ddl", _TEXT),
    ("reason", _TEXT),
)
"""Columns of ``firebird_journal``.

``op``: c, u, d, ddl, gap, and where asked for ``damaged`` and ``missing``. ``key``: JSON text of
the key columns, after an update the new ones; ``old_key``: the former key if an update changed
it. ``before``, ``after``: the row as `firebird_cdc.journal.canonical` writes it. ``table_shape``:
digest of the columns' definitions. ``reason``: of a gap or of damage; of DDL what it does, as
`firebird_cdc.journal.replay.ddl` names it.
"""

_FILE_COLUMNS: _Columns = (
    ("path", _TEXT),
    ("size", _NUMBER),
    ("database", _TEXT),
    ("epoch", _NUMBER),
    ("sequence", _NUMBER),
    ("journal", _TEXT),
    ("txId", _NUMBER),
    ("commit_us", _NUMBER),
    ("events", _NUMBER),
    ("length", _NUMBER),
    ("problem", _TEXT),
    ("what", _TEXT),
)
"""Columns of ``firebird_journal_files``; ``problem``: null, ``damaged``, ``missing``, ``misnamed``.

``length``: bytes up to the end of the seal; ``what``: one sentence on the problem.
"""

_SUFFIX = ".log"
_DEFAULT_BYTES = 32 * 1024 * 1024
_DEFAULT_JOURNALS = 2000
# Rows and characters of text after which a batch goes to the JVM; guesses.
_BATCH_ROWS = 8192
_BATCH_CHARACTERS = 4 * 1024 * 1024

_CONSTANTS = 7  # columns of _CHANGE_COLUMNS, from the left, that are the same for a whole journal
_Facts = tuple[str | None, int | None, int | None, str | None, int | None, int | None, str]


class JournalPartition(InputPartition):
    """What one task reads: whole journals, or one byte range of one journal.

    ``names``: file names in ``folder``, which may be a segment of the archive, joined by slashes
    so that a million of them stay small. ``start``, ``end``: bytes; a block belongs to the range in
    which it starts.
    """

    def __init__(self, folder: str, names: str, start: int = 0, end: int | None = None) -> None:
        self.folder = folder
        self.names = names
        self.start = start
        self.end = end

    def paths(self) -> Iterator[Path]:
        """Yield the journals to read."""
        for name in self.names.split("/"):
            yield Path(self.folder, name)


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The options of both sources, checked; see the module's text."""

    folders: tuple[str, ...]
    partition_bytes: int
    partition_journals: int
    none_charset: str
    digest: bool
    report_damage: bool
    fail_on_missing: bool
    database: str | None
    table: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> JournalOptions:
        """Read what Spark hands over. Raises ReplayError naming option and allowed values."""
        given = {name.lower(): value for name, value in options.items()}
        if "paths" in given:
            folders = tuple(json.loads(given["paths"]))
        elif "path" in given:
            folders = (given["path"],)
        else:
            raise ReplayError("firebird_journal needs a folder of journals: load(FOLDER)")

        def number(name: str, default: int) -> int:
            text = given.get(name.lower(), str(default))
            if not text.isdecimal() or int(text) < 1:
                raise ReplayError(
                    f"option {name} of firebird_journal is {text!r}; give a whole number above 0"
                )
            return int(text)

        def choice(name: str, *allowed: str) -> str:
            text = given.get(name.lower(), allowed[0])
            if text not in allowed:
                raise ReplayError(
                    f"option {name} of firebird_journal is {text!r}; allowed: {', '.join(allowed)}"
                )
            return text

        return cls(
            folders=folders,
            partition_bytes=number("partitionBytes", _DEFAULT_BYTES),
            partition_journals=number("partitionJournals", _DEFAULT_JOURNALS),
            none_charset=given.get("nonecharset", "UTF-8"),
            digest=choice("rows", "text", "digest") == "digest",
            report_damage=choice("onDamage", "fail", "report") == "report",
            fail_on_missing=choice("onMissing", "report", "fail") == "fail",
            database=given.get("database"),
            table=given.get("table"),
        )


def _journals(folders: tuple[str, ...]) -> Iterator[tuple[str, str, int]]:
    """Yield (folder, name, size in bytes) of every ``*.log``, a name only once.

    A journal on its way into the archive, or into a segment there, may for a moment be seen in two
    places. Segments come last: what was packed since the folder was read is found there.
    """
    seen: set[str] = set()
    for folder in folders:
        for entry in _entries(folder):
            name = entry.name
            if name.endswith(_SUFFIX) and name not in seen:
                try:
                    if not entry.is_file():
                        continue
                    size = entry.stat().st_size
                except FileNotFoundError:
                    continue  # shipped and deleted since the folder was opened
                seen.add(name)
                yield folder, name, size
        segments = [entry.path for entry in _entries(folder) if is_segment_name(entry.name)]
        for segment in sorted(segments):
            try:
                members = list_segment(Path(segment))
            except FileNotFoundError:
                continue  # it was too old to be kept
            except JournalCorrupt:
                yield folder, Path(segment).name, 0  # whoever reads it reports it
                continue
            for name, size in members:
                if name not in seen:
                    seen.add(name)
                    yield segment, name, size


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = os.scandir(folder)
    except OSError as error:
        raise ReplayError(
            f"cannot read the folder of journals {folder}: {error.strerror};"
            " it has to be there on the driver and on every executor"
        ) from error
    with entries:
        yield from entries


def _open(path: Path, none_charset: str) -> JournalReader:
    """Open a journal, also if it was packed since the tasks were planned."""
    try:
        return open_journal(path, none_charset)
    except FileNotFoundError:
        packed = None if is_segment_name(path.parent.name) else find_packed(path)
        if packed is None:
            raise
        return open_journal(packed, none_charset)


def plan_partitions(options: JournalOptions, *, split: bool) -> list[InputPartition]:
    """Group the journals of the folders into tasks of bounded size.

    split: give a journal above ``partition_bytes`` to several tasks.
    """
    partitions: list[InputPartition] = []
    names: list[str] = []
    group_folder, group_bytes = "", 0
    limit = options.partition_bytes

    def close_group() -> None:
        nonlocal group_bytes
        if names:
            partitions.append(JournalPartition(group_folder, "/".join(names)))
            names.clear()
        group_bytes = 0

    for folder, name, size in _journals(options.folders):
        if split and size > limit:
            for start in range(0, size, limit):
                end = start + limit if start + limit < size else None
                partitions.append(JournalPartition(folder, name, start, end))
            continue
        full = len(names) >= options.partition_journals or (split and group_bytes + size > limit)
        if full or folder != group_folder:
            close_group()
            group_folder = folder
        names.append(name)
        group_bytes += size
    close_group()
    return partitions


class JournalSource(DataSource):
    """``firebird_journal``: one row per change; columns `_CHANGE_COLUMNS`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "firebird_journal"

    def schema(self) -> str:
        """Return the columns."""
        return _ddl(_CHANGE_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return what plans and reads; it pickles."""
        return _ChangeReader(JournalOptions.parse(self.options))


class JournalFileSource(DataSource):
    """``firebird_journal_files``: one row per file; columns `_FILE_COLUMNS`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "firebird_journal_files"

    def schema(self) -> str:
        """Return the columns."""
        return _ddl(_FILE_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return what plans and reads; it pickles."""
        return _FileReader(JournalOptions.parse(self.options))


class _ChangeReader(DataSourceReader):
    def __init__(self, options: JournalOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return plan_partitions(self._options, split=True)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, JournalPartition):
            return  # the folder holds no journal
        batch = _Batch(_CHANGE_COLUMNS)
        for path in partition.paths():
            yield from _read_changes(path, partition, self._options, batch)
        yield from batch.flush()


class _FileReader(DataSourceReader):
    def __init__(self, options: JournalOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return plan_partitions(self._options, split=False)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, JournalPartition):
            return
        schema = _arrow_schema(_FILE_COLUMNS)
        rows = []
        for path in partition.paths():
            row = _file_row(path)
            if self._options.database in (None, row[2]) or row[2] is None:
                rows.append(row)
            if len(rows) == _BATCH_ROWS:
                yield _record_batch(schema, list(zip(*rows, strict=True)))
                rows = []
        if rows:
            yield _record_batch(schema, list(zip(*rows, strict=True)))


def _ddl(columns: _Columns) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def _arrow_schema(columns: _Columns) -> pa.Schema:
    return pa.schema(
        (name, pa.int64() if kind == _NUMBER else pa.string()) for name, kind in columns
    )


def _record_batch(schema: pa.Schema, columns: list[Any]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Batch:
    """Gathers changes until they are worth sending: columns constant in a journal only once."""

    def __init__(self, columns: _Columns) -> None:
        self._schema = _arrow_schema(columns)
        self._rows: list[tuple[Any, ...]] = []
        self._runs: list[tuple[_Facts, int]] = []  # facts and the number of rows before the run
        self._characters = 0

    def begin(self, facts: _Facts) -> None:
        """Set what all rows from now on have in common."""
        self._runs.append((facts, len(self._rows)))

    def add(self, row: tuple[Any, ...], characters: int) -> bool:
        """Take a row; return whether it is time to flush."""
        self._rows.append(row)
        self._characters += characters
        return len(self._rows) >= _BATCH_ROWS or self._characters >= _BATCH_CHARACTERS

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield what was gathered, if anything, and begin anew with the same facts."""
        if not self._rows:
            return
        columns: list[list[Any]] = [[] for _ in range(_CONSTANTS)]
        ends = [start for _, start in self._runs[1:]] + [len(self._rows)]
        for (facts, start), end in zip(self._runs, ends, strict=True):
            for column, fact in zip(columns, facts, strict=True):
                column.extend([fact] * (end - start))
        yield _record_batch(self._schema, [*columns, *zip(*self._rows, strict=True)])
        self._runs = [(self._runs[-1][0], 0)]
        self._rows = []
        self._characters = 0


@lru_cache(maxsize=1024)
def _shape(
    name: str,
    key_kind: int,
    columns: tuple[Column, ...],
    order: tuple[int, ...],
    none_charset: str,
    with_blobs: bool,
) -> tuple[str, RowText]:
    """Return digest and writer of a table's shape; most journals repeat the shapes of others."""
    digest = hashlib.blake2b(repr((name, columns, order)).encode(), digest_size=8).hexdigest()
    table = Table(1, name, key_kind, columns, order)
    return digest, RowText(table, none_charset=none_charset, with_blobs=with_blobs)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _sequence_of(reader: JournalReader) -> int:
    if reader.stamp is None:
        raise JournalCorrupt(
            reader.path, -1, "it has no stamp, so nothing says that its transaction is committed"
        )
    return reader.stamp.sequence


def _first_block(reader: JournalReader, start: int) -> int | None:
    """Return the offset of the first block at or after START; None if there is none."""
    assert reader.stamp is not None
    if start >= reader.stamp.journal_length:
        return None
    try:
        return next((offset for offset in reader.block_offsets() if offset >= start), None)
    except JournalError:
        return None  # damage before START is the business of the task that reads it


def _read_changes(
    path: Path, partition: JournalPartition, options: JournalOptions, batch: _Batch
) -> Iterator[pa.RecordBatch]:
    """Yield full batches; what is left stays in BATCH."""
    facts: _Facts = (None, None, None, None, None, None, str(path))
    problem, reason = "missing", "the file vanished while the folder was being read"
    try:
        with _open(path, options.none_charset) as reader:
            header = reader.header
            facts = (
                None,
                header.epoch,
                None,
                str(header.uuid),
                header.transaction,
                None,
                str(path),
            )
            sequence = _sequence_of(reader)
            assert reader.stamp is not None
            commit_us = reader.stamp.commit_us
            database = reader.database
            if options.database not in (None, database):
                return
            facts = (
                database, reader.stamp.epoch, sequence, facts[3], facts[4], commit_us, str(path),
            )  # fmt: skip
            start: int | None = 0
            if partition.start > DATA_OFFSET:
                start = _first_block(reader, partition.start)
            if start is None or (partition.end is not None and start >= partition.end):
                return
            batch.begin(facts)
            for row, characters in _change_rows(reader, start, partition.end, options):
                if batch.add(row, characters):
                    yield from batch.flush()
            return
    except FileNotFoundError:
        if options.fail_on_missing:
            raise ReplayError(f"{path} vanished while the folder was being read") from None
    except JournalError as error:
        if not options.report_damage:
            raise
        problem, reason = "damaged", str(error)
    batch.begin(facts)
    if batch.add((None, problem, *[None] * 7, reason), len(reason)):
        yield from batch.flush()


def _change_rows(
    reader: JournalReader, start: int, end: int | None, options: JournalOptions
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the columns of each change from ``pos`` on, and about how long its texts are."""
    seen: Table | None = None
    digest, writer = "", None
    finish: Callable[[str], str] = _digest if options.digest else str
    only = options.table
    for change in reader.changes(start, end):
        if isinstance(change, RowChange):
            pos, op, table, before, after = change
            if only is not None and table.name != only:
                continue
            if table is not seen:
                digest, writer = _shape(
                    table.name,
                    table.key_kind,
                    table.columns,
                    table.order,
                    options.none_charset,
                    not options.digest,
                )
                seen = table
            assert writer is not None
            old_text = new_text = key = old_key = None
            if before is not None:
                old_text = finish(writer.row(before))
                key = old_key = writer.key(before)
            if after is not None:
                new_text = finish(writer.row(after))
                key = writer.key(after)
            changed = old_key if op == "u" and old_key != key else None
            yield (
                (pos, op, table.name, digest, key, changed, old_text, new_text, None, None),
                len(old_text or "") + len(new_text or ""),
            )
        elif isinstance(change, DdlChange):
            sql = change.sql
            if isinstance(sql, Undecodable):
                sql = sql.raw.decode("ascii", "backslashreplace")
            action, name = read_statement(sql)
            yield (change.pos, "ddl", name, *[None] * 5, sql, action), len(sql)
        elif isinstance(change, Gap):
            yield (change.pos, "gap", *[None] * 7, change.reason), len(change.reason)


def _file_row(path: Path) -> tuple[Any, ...]:
    """Return one row of `_FILE_COLUMNS`: sectors and first block of the file are read."""
    row: list[Any] = [str(path)] + [None] * 11
    try:
        with _open(path, "UTF-8") as reader:
            row[1] = reader.size
            header, stamp = reader.header, reader.stamp
            row[3], row[5], row[6] = header.epoch, str(header.uuid), header.transaction
            row[2] = reader.database
            row[4] = _sequence_of(reader)
            assert stamp is not None
            row[3], row[7] = stamp.epoch, stamp.commit_us
            row[8], row[9] = stamp.event_count, stamp.journal_length
            if path.stem != str(header.uuid):
                row[10], row[11] = "misnamed", f"{path}: holds journal {header.uuid}"
    except FileNotFoundError:
        row[10] = "missing"
        row[11] = f"{path}: the file vanished while the folder was being read"
    except JournalError as error:
        row[10], row[11] = "damaged", str(error)
    return tuple(row)
