"""A session without Spark: reads journals in worker processes, keeps tables in DuckDB.

What a task yields lies in a Parquet file of its own, in a folder that goes with the session; of
that DuckDB reads what a query asks for. So no process holds more than a part of the history.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.replay.local.columns import KINDS, literal, quote
from firebird_cdc.journal.replay.local.frames import LocalTable
from firebird_cdc.journal.replay.local.workers import Workers
from firebird_cdc.journal.replay.relational import local_tables
from firebird_cdc.journal.replay.source.arrow import arrow_schema, rare_collections, read_schema
from firebird_cdc.journal.replay.source.readers import reader_of

_MEMORY = "384MiB"  # of DuckDB; beyond that it uses the disk
_ROWS = 16_384

_Task = TypeVar("_Task")


class LocalSession:
    """Session that stands for one of Spark as far as replay needs it; made by `local_session`."""

    is_local = True

    def __init__(self, scratch: Path) -> None:
        import duckdb  # type: ignore[import-untyped,import-not-found,unused-ignore]

        self.scratch = scratch
        self.workers = Workers()
        self._numbers = count(1)
        self._database = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "threads": str(self.workers.number),
                "temp_directory": str(scratch / "duckdb"),
                "preserve_insertion_order": "false",
                # Nothing is fetched from anywhere.
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )

    @property
    def read(self) -> _Reader:
        """Return a reader of journals, like ``spark.read`` with our data sources."""
        return _Reader(self)

    def createDataFrame(self, rows: Iterable[Sequence[Any]], schema: str) -> LocalTable:
        """Make a table of ROWS; SCHEMA: names and types as `schema_text` has them."""
        columns = read_schema(schema)
        values = list(rows)
        arrays = [
            pa.array([row[index] for row in values], field.type)
            for index, field in enumerate(arrow_schema(columns))
        ]
        name = f"given_{next(self._numbers)}"
        names = [name for name, _ in columns]
        self._database.register(name, pa.Table.from_arrays(arrays, names))
        return LocalTable(self, f"SELECT * FROM {name}")

    def in_tasks(
        self, tasks: Sequence[_Task], read: Callable[[_Task], Iterator[pa.RecordBatch]], schema: str
    ) -> LocalTable:
        """Return what READ, which pickles, yields of TASKS, each in a worker process."""
        folder = self.new_folder("table")
        each = [
            (read, task, folder / f"{number}.parquet", schema) for number, task in enumerate(tasks)
        ]
        self.workers.run(_write_rows, each)
        return self._table(folder, schema)

    def map(
        self,
        table: LocalTable,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: str,
    ) -> LocalTable:
        """Return what FUNCTION makes of the rows of TABLE, in this process."""
        folder = self.new_folder("table")
        _write(function(table.batches()), folder / "0.parquet", schema)
        return self._table(folder, schema)

    def _table(self, folder: Path, schema: str) -> LocalTable:
        columns = read_schema(schema)
        if not any(folder.iterdir()):
            return self.createDataFrame([], schema)
        # Times have no zone here, see `columns.KINDS`.
        items = ", ".join(f"CAST({quote(n)} AS {KINDS[kind]}) AS {quote(n)}" for n, kind in columns)
        place = literal(f"{folder}/*.parquet")
        return LocalTable(self, f"SELECT {items} FROM read_parquet({place})")

    def new_folder(self, kind: str) -> Path:
        """Return a new folder, which goes with the session."""
        folder = self.scratch / f"{kind}-{next(self._numbers)}"
        folder.mkdir()
        return folder

    def keep(self, sql: str) -> str:
        """Compute a query; return one for its result."""
        name = f"kept_{next(self._numbers)}"
        self._run(f"CREATE TABLE {name} AS {sql}")
        return f"SELECT * FROM {name}"

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        rows: list[tuple[Any, ...]] = self._run(sql).fetchall()
        return rows

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query."""
        with _plain_errors():
            yield from self._database.sql(sql).to_arrow_reader(_ROWS)

    def _run(self, sql: str) -> Any:
        with _plain_errors():
            return self._database.execute(sql)

    def progress(self) -> tuple[int, int, int, int] | None:
        """Return the numbers of tasks that are done, run, have failed, and all; None: no task."""
        done, tasks = self.workers.done, self.workers.tasks
        return (done, min(tasks - done, self.workers.number), 0, tasks) if tasks else None

    def close(self) -> None:
        """End the worker processes."""
        self.workers.close()
        self._database.close()


class _Reader:
    def __init__(self, session: LocalSession) -> None:
        self._session = session
        self._name = ""
        self._options: dict[str, str] = {}

    def format(self, name: str) -> _Reader:
        self._name = name
        return self

    def option(self, name: str, value: object) -> _Reader:
        self._options[name] = str(value)
        return self

    def load(self, folders: Sequence[str]) -> LocalTable:
        options = {**self._options, "paths": json.dumps(list(folders))}
        reader, schema = reader_of(self._name, options)
        return self._session.in_tasks(reader.partitions(), reader.read, schema)


@contextmanager
def local_session() -> Iterator[Any]:
    """Yield a session; what it keeps lies in the system's folder for temporary files until then.

    Meanwhile `relational.F` is not Spark's, in this thread.
    """
    with (
        tempfile.TemporaryDirectory(prefix="firebird-cdc-replay-") as scratch,
        local_tables(),
    ):
        session = LocalSession(Path(scratch))
        try:
            yield session
        finally:
            session.close()


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn errors of DuckDB's into ReplayError with the cause in one sentence."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        first, *_ = str(error).splitlines()
        raise ReplayError(f"this replay could not compute a table: {first}") from error


def _write_rows(
    read: Callable[[Any], Iterator[pa.RecordBatch]], task: Any, path: Path, schema: str
) -> None:
    """Do a task, in a worker process."""
    with rare_collections():
        _write(read(task), path, schema)


def _write(batches: Iterable[pa.RecordBatch], path: Path, schema: str) -> None:
    with pq.ParquetWriter(path, arrow_schema(read_schema(schema)), compression="lz4") as writer:
        for batch in batches:
            writer.write_batch(batch)
