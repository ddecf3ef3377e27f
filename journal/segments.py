"""Segments of the archive: many small journals in one file, each as readable as before.

A segment is a ZIP file. Its members are journals, byte by byte as they were shipped, under their
own names and in the order of their sequence; what lies behind a journal's end is left out. So
any ``unzip`` gets one back, and ``ARCHIVE/SEGMENT.zip/<uuid>.log`` is its path to ours (`unpack`).
A segment's name tells database, epoch and range of sequences, its time of modification is the
last commit in it. Spark's tasks import this: nothing here needs a compiled part of ours.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.format import JournalReader

SEGMENT_SUFFIX = ".zip"

SEGMENT_NAME = re.compile(r"([0-9a-f]{16})-(\d+)-(\d+)-(\d+)\.zip")
"""Digest of the database's path, epoch, first and last sequence."""


def is_segment_name(name: str) -> bool:
    """Whether NAME is one that a segment has."""
    return SEGMENT_NAME.fullmatch(name) is not None


def list_segment(segment: Path) -> list[tuple[str, int]]:
    """Return name and length of every journal in SEGMENT, in order. Raises JournalCorrupt."""
    try:
        with zipfile.ZipFile(segment) as content:
            return [(member.filename, member.file_size) for member in content.infolist()]
    except zipfile.BadZipFile as error:
        raise JournalCorrupt(segment, -1, f"this segment can't be read: {error}") from error


def unpack(path: Path) -> bytes:
    """Return the journal at PATH, ``.../SEGMENT.zip/<uuid>.log``.

    Raises JournalCorrupt if the segment is damaged there, FileNotFoundError if there is no such
    segment or no such journal in it. Segments stay open for the next journal; one thread only.
    """
    try:
        return _opened(path.parent).read(path.name)
    except KeyError:
        raise FileNotFoundError(f"{path.parent} holds no journal {path.name}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise JournalCorrupt(path, -1, f"its segment is damaged: {error}") from error


@lru_cache(maxsize=4)
def _opened(segment: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(segment)


def find_packed(path: Path) -> Path | None:
    """Where the journal is now that was at PATH until it was packed; None: in no segment there."""
    with os.scandir(path.parent) as entries:
        segments = [
            (entry.stat().st_ctime_ns, Path(entry.path))
            for entry in entries
            if is_segment_name(entry.name)
        ]
    for _, segment in sorted(segments, reverse=True):
        if any(name == path.name for name, _ in list_segment(segment)):
            return segment / path.name
    return None


def open_journal(path: Path, none_charset: str = "UTF-8") -> JournalReader:
    """Return a reader of the journal at PATH, in a segment or not. Raises as both do."""
    if is_segment_name(path.parent.name):
        return JournalReader(path, none_charset, content=unpack(path))
    return JournalReader(path, none_charset)
