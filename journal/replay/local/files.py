"""Files that a replay without Spark writes, with the content that Spark would give them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.errors import ReplayError

_ESCAPE = re.compile(r"(\\\\)|\\u([0-9a-f]{4})")


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make FOLDER, and turn errors of writing there into ReplayError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ReplayError(f"can't write {error.filename or folder}: {error.strerror}") from error


def part_name(number: int, suffix: str) -> str:
    """Return the name of a part of a table."""
    return f"part-{number:05}.{suffix}"


def write_rows(batches: Iterable[pa.RecordBatch], folder: Path, form: str) -> None:
    """Write the rows of BATCHES into FOLDER as one part, ``json`` or ``parquet``."""
    with new_folder(folder):
        write = write_parquet if form == "parquet" else _write_json
        write(batches, folder / part_name(0, form))


def write_parquet(
    batches: Iterable[pa.RecordBatch], path: Path, schema: pa.Schema | None = None
) -> int:
    """Write BATCHES to the file PATH; return the number of rows. SCHEMA: theirs, if there may be
    none: then a file without rows is written."""
    found = iter(batches)
    first = next(found, None)
    if first is None and schema is None:
        return 0
    rows = 0
    of = first.schema if first is not None else schema
    with pq.ParquetWriter(path, of, compression="snappy") as writer:
        for batch in chain([first] if first is not None else [], found):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_json(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            for row in batch.to_pylist():
                file.write(_line(row))


def _line(row: dict[str, Any]) -> str:
    """Return a row as Spark writes it: without nulls, and with capitals in escapes."""
    given = {name: value for name, value in row.items() if value is not None}
    text = json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    if "\\u" in text:
        text = _ESCAPE.sub(lambda found: found[1] or f"\\u{found[2].upper()}", text)
    return f"{text}\n"
