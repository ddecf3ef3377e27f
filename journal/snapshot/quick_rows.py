"""Events of rows written in C, straight from the engine's messages (`native/event_json.c`)."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence

from firebird_cdc.journal.events.snapshot_rows import RowPlan
from firebird_cdc.journal.format import Column, Storage
from firebird_cdc.journal.format.model import BLOB_STORAGES
from firebird_cdc.journal.snapshot.cursor import TEXT, VARYING, Cursor, WriteRows

# Offsets of value and null flag, the most bytes that a text has, and how the value lies there.
_LAYOUT = struct.Struct("<IIIB")
_FIXED, _VARYING, _PADDED, _BYTES, _STAMP, _CONTENT = range(6)


def writer_of(cursor: Cursor, columns: Sequence[Column], plan: RowPlan) -> WriteRows | None:
    """Return what writes the rows of CURSOR, which has COLUMNS, as PLAN says; None: Python does."""
    if sys.byteorder != "little":
        return None
    layout = layout_of(columns, cursor.places[: len(columns)])
    return cursor.writer(
        (layout, plan.row, plan.key or b"", plan.value, plan.around_key, plan.room)
    )


def layout_of(columns: Sequence[Column], places: Sequence[tuple[int, int]]) -> bytes:
    """Return how messages have COLUMNS; PLACES: offsets of each one's value and null flag."""
    return b"".join(
        _LAYOUT.pack(offset, null_offset, column.length, _lying(column))
        for column, (offset, null_offset) in zip(columns, places, strict=True)
    )


def _lying(column: Column) -> int:
    if column.sql_type == VARYING:
        return _VARYING
    if column.sql_type == TEXT:
        return _BYTES if column.storage is Storage.OCTETS else _PADDED
    if column.storage in BLOB_STORAGES:
        return _CONTENT
    return _STAMP if column.storage is Storage.TIMESTAMP else _FIXED
