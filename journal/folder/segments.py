"""Segments of the archive: many small journals in one file, each as readable as before.

A segment is a ZIP file. Its members are journals, byte by byte as they were shipped, under their
own names and in the order of their sequence; what lies behind a journal's end is left out, and
so is what was rolled back in one that transactions share. So
any ``unzip`` gets one back, and ``ARCHIVE/SEGMENT.zip/<uuid>.log`` is its path to ours (`unpack`).
A segment's name tells database, epoch and range of sequences, its time of modification is the
last commit in it. Spark's tasks import this: nothing here needs a compiled part of ours.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import IO, BinaryIO

from firebird_cdc.errors import JournalCorrupt, JournalError
from firebird_cdc.journal.format import JournalReader, SharedJournal, open_any
from firebird_cdc.journal.format.layout import MAGIC, VERSION

SEGMENT_SUFFIX = ".zip"

SMALL_BYTES = 1024 * 1024
"""Journals up to this length are packed; a reader has one of them in memory at a time."""

SEGMENT_JOURNALS = 10_000
"""Journals in one segment, at most."""

_SINGLE = MAGIC + VERSION.to_bytes(2, "little")
"""First bytes of a journal of one transaction, as version 1 has it."""

_ZIP_TIMES_S = 315_532_800, 4_354_819_198  # first and last that ZIP has: 1980 to 2107, UTC

SEGMENT_NAME = re.compile(r"([0-9a-f]{16})-(\d+)-(\d+)-(\d+)\.zip")
"""Digest of the database's path, epoch, first and last sequence."""


def database_digest(database: str) -> str:
    """Return what stands for the path of a database in the names of segments."""
    return blake2b(database.encode(), digest_size=8).hexdigest()


def segment_name(database: str, epoch: int, first: int, last: int) -> str:
    """Return the name of the segment that holds journals FIRST to LAST of EPOCH, without suffix."""
    return f"{database_digest(database)}-{epoch}-{first}-{last}"


def is_segment_name(name: str) -> bool:
    """Tell whether NAME is one that a segment has."""
    return SEGMENT_NAME.fullmatch(name) is not None


def list_segment(segment: Path | str, file: BinaryIO | None = None) -> list[tuple[str, int]]:
    """Return name and length of every journal in SEGMENT, in order. Raises JournalCorrupt.

    FILE: its content, where it is not on this machine; SEGMENT is only its name then.
    """
    try:
        with zipfile.ZipFile(file or segment) as content:
            return [(member.filename, member.file_size) for member in content.infolist()]
    except zipfile.BadZipFile as error:
        raise JournalCorrupt(segment, -1, f"this segment can't be read: {error}") from error


def find_packed(segment: Path, uuid: str) -> str | None:
    """Return the name of the journal in SEGMENT that transactions share, UUID among them; None if
    there is none. What is damaged is passed over. Raises OSError if the segment can't be read."""
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(segment) as content:
        for member in content.infolist():
            with suppress(JournalError, zipfile.BadZipFile, zlib.error, EOFError):
                with content.open(member) as journal:
                    if journal.read(len(_SINGLE)) == _SINGLE:
                        continue  # as thousands may be: no more of them is unpacked
                place = f"{segment}/{member.filename}"
                with SharedJournal(place, content.read(member)) as shared:
                    if shared.find(uuid) is not None:
                        return member.filename
    return None


def pack(file: IO[bytes], journals: Iterable[tuple[str, int, bytes]]) -> None:
    """Write a segment to FILE: JOURNALS by name, time of commit in microseconds, and content.

    Each is dated by its commit.
    """
    first_s, last_s = _ZIP_TIMES_S
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as segment:
        for name, commit_us, content in journals:
            when_s = min(max(commit_us // 1_000_000, first_s), last_s)
            when = datetime.fromtimestamp(when_s, UTC)
            time = when.year, when.month, when.day, when.hour, when.minute, when.second
            entry = zipfile.ZipInfo(name, time)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100600 << 16
            segment.writestr(entry, content)


def unpack(segment: Path | str, name: str, opener: Callable[[], BinaryIO] | None = None) -> bytes:
    """Return the journal NAME of SEGMENT, which OPENER opens if it is not on this machine.

    Raises JournalCorrupt if the segment is damaged there, FileNotFoundError if there is no such
    segment or no such journal in it. Segments stay open for the next journal; one thread only.
    """
    try:
        return _opened(str(segment), opener).read(name)
    except KeyError:
        raise FileNotFoundError(f"{segment} holds no journal {name}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        what = f"its segment is damaged: {error}"
        raise JournalCorrupt(f"{segment}/{name}", -1, what) from error


def close_segments() -> None:
    """Close what `unpack` left open, so that the next look at a segment finds it as it is now."""
    while _open:
        _close_oldest()


_open: OrderedDict[str, tuple[BinaryIO, zipfile.ZipFile]] = OrderedDict()
_MOST_OPEN = 4


def _opened(segment: str, opener: Callable[[], BinaryIO] | None) -> zipfile.ZipFile:
    if segment in _open:
        _open.move_to_end(segment)
        return _open[segment][1]
    file = opener() if opener is not None else Path(segment).open("rb")  # noqa: SIM115
    try:
        _open[segment] = file, zipfile.ZipFile(file)
    except BaseException:
        file.close()
        raise
    if len(_open) > _MOST_OPEN:
        _close_oldest()
    return _open[segment][1]


def _close_oldest() -> None:
    _, (file, opened) = _open.popitem(last=False)
    opened.close()
    file.close()


def open_journal(path: Path, none_charset: str = "UTF-8") -> JournalReader | SharedJournal:
    """Return a reader of the journal at PATH, in a segment or not, or of one transaction in it:
    ``JOURNAL/<uuid>.log``; of a journal that transactions share, that. Raises as all these do, and
    JournalError if the journal has no such transaction."""
    if path.parent.suffix == ".log" and not path.parent.is_dir():
        return _open_transaction(path, none_charset)
    content = None
    if is_segment_name(path.parent.name):
        content = unpack(path.parent, path.name)
    return open_any(path, none_charset, content)


def _open_transaction(path: Path, none_charset: str) -> JournalReader:
    with open_journal(path.parent) as journal:
        if isinstance(journal, SharedJournal):
            place = journal.find(path.stem)
            if place is not None:
                return journal.reader(place, none_charset)
    raise JournalError(path.parent, -1, f"it holds no transaction {path.stem}")
