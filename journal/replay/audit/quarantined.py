"""Facts on journals in the quarantine, as it states them; read where the journals are read."""

from __future__ import annotations

from uuid import UUID

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from firebird_cdc.journal.folder.notes import Note
from firebird_cdc.journal.replay.source.storage import folder_at

_SHOWN_RANGES = 20

_SCHEMA = (
    "struct<reason: string, not_sent: string, has_note: boolean, database: string, epoch: bigint,"
    " sequence: bigint>"
)


def with_notes(files: DataFrame, quarantine: tuple[str, ...]) -> DataFrame:
    """Return those of FILES that lie in QUARANTINE, with what their notes say in ``note``."""
    read = F.udf(_read, _SCHEMA, useArrow=False)
    return files.where(lies_in(quarantine)).withColumn("note", read("file"))


def lies_in(folders: tuple[str, ...]) -> Column:
    """Return the condition that ``file`` lies in one of FOLDERS, or in a segment there."""
    inside = F.lit(False)
    for folder in folders:
        inside = inside | F.col("file").startswith(folder_at(folder).place(""))
    return inside


def _read(file: str) -> tuple[str, str | None, bool, str | None, int | None, int | None]:
    """Return reason, what was not sent, and the place of a journal that was set aside."""
    folder, _, name = file.rpartition("/")
    place, stem = folder_at(folder), name.removesuffix(".log")
    try:
        reason = place.read(f"{stem}.reason").decode("utf-8", "replace").strip()
    except OSError:
        reason = ""
    try:
        note = Note.from_json(UUID(stem), place.read(f"{stem}.json"))
    except (OSError, ValueError):
        return reason, None, False, None, None, None
    return reason, _not_sent(note), True, note.database, note.epoch, note.sequence


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
