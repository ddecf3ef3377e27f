"""Facts on journals in the quarantine, as it states them; read where the journals are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]

from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.replay.relational import F
from firebird_cdc.journal.replay.source.arrow import (
    NUMBER,
    TEXT,
    Columns,
    arrow_schema,
    map_in_arrow,
    record_batches,
    schema_text,
)
from firebird_cdc.journal.replay.source.storage import (
    JOURNAL_SUFFIX,
    NOTE_SUFFIX,
    folder_at,
    split_name,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHOWN_RANGES = 20

_ROWS = 1000

_COLUMNS: Columns = (
    ("file", TEXT),
    ("reason", TEXT),
    ("not_sent", TEXT),
    ("noted_database", TEXT),
    ("noted_epoch", NUMBER),
    ("noted_sequence", NUMBER),
)


def with_notes(files: DataFrame, quarantine: tuple[str, ...]) -> DataFrame:
    """Return those of FILES that lie in QUARANTINE, with what their notes say: ``reason``,
    ``not_sent``, and the place as ``noted_database``, ``noted_epoch``, ``noted_sequence``."""
    kept = files.where(lies_in(quarantine))
    notes = map_in_arrow(kept.select("file"), _read_notes, schema_text(_COLUMNS))
    return kept.join(notes, "file")


def _read_notes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = ((file, *_read(file)) for batch in batches for file in batch.column(0).to_pylist())
    return record_batches(rows, arrow_schema(_COLUMNS), _ROWS)


def lies_in(folders: tuple[str, ...]) -> Column:
    """Return the condition that ``file`` lies in one of FOLDERS, or in a segment there."""
    inside = F.lit(False)
    for folder in folders:
        inside = inside | F.col("file").startswith(folder_at(folder).place(""))
    return inside


def _read(file: str) -> tuple[str, str | None, str | None, int | None, int | None]:
    """Return reason, what was not sent, and the place of a journal that was quarantined."""
    journal, _ = split_name(file)
    folder, _, name = journal.rpartition("/")
    place, stem = folder_at(folder), name.removesuffix(JOURNAL_SUFFIX)
    try:
        reason = place.read(f"{stem}.reason").decode("utf-8", "replace").strip()
    except OSError:
        reason = ""
    try:
        note = Note.from_json(UUID(stem), place.read(f"{stem}{NOTE_SUFFIX}"))
    except (OSError, ValueError):
        return reason, None, None, None, None
    return reason, _not_sent(note), note.database, note.epoch, note.sequence


def _not_sent(note: Note) -> str | None:
    """Return the events that were not sent, as ``events 3, 5 to 9 and all behind 12``."""
    if note.rest_after == 0:
        return "all events"
    ranges = [
        str(first) if first == last else f"{first} to {last}" for first, last, _ in note.left_out
    ]
    parts = ranges[:_SHOWN_RANGES]
    if len(ranges) > _SHOWN_RANGES:
        parts.append(f"{len(ranges) - _SHOWN_RANGES} more ranges")
    if note.rest_after is not None:
        parts.append(f"all behind {note.rest_after}")
    return f"events {', '.join(parts)}" if parts else None
