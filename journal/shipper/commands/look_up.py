"""Finds the file of a journal by its UUID: in the journal folder, the quarantine or the archive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from firebird_cdc.errors import JournalError
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.folder.notes import QUARANTINE
from firebird_cdc.journal.folder.open_journals import LIVE, find_open
from firebird_cdc.journal.folder.segments import (
    SEGMENT_SUFFIX,
    find_packed,
    is_segment_name,
    list_segment,
)
from firebird_cdc.journal.format import SharedJournal


def find_journal(given: Path, config: Path | None) -> Path:
    """Return GIVEN if it is no UUID, else the file of the journal that it names.

    config: the connector options whose folders are searched; None: see `locate_config`. A journal
    in a segment is called ``<segment>/<uuid>.log``, a transaction in a shared journal
    ``<journal>/<uuid>.log``. Raises JournalError if there is no such journal, what `locate_config`
    raises, and ConfigError.
    """
    try:
        name = f"{UUID(str(given))}.log"
    except ValueError:
        return _as_it_is_named(given)
    if given.exists():
        return given
    from firebird_cdc.packaging.server.locating import locate_options, readable_folder

    options = locate_options(config)
    folder = readable_folder(options.journal_directory)
    folders = [folder, folder / STATE_DIRECTORY / QUARANTINE]
    archive = options.journal_archive_directory
    if archive is not None and archive.is_dir():
        folders.append(readable_folder(archive))
    for path in _places(folders, name):
        if path.exists():
            return path
    for segment in _segments(folders[-1]):
        with contextlib.suppress(JournalError, FileNotFoundError):  # damaged, or just removed
            if any(member == name for member, _ in list_segment(segment)):
                return segment / name
    uuid = name.removesuffix(".log")
    shared = find_shared(folders, uuid) or find_open(folder, uuid)
    if shared is not None:
        return shared / name
    for segment in _segments(folders[-1]):  # the last resort, as it unpacks journals
        with contextlib.suppress(FileNotFoundError):
            if (packed := find_packed(segment, uuid)) is not None:
                return segment / packed / name
    searched = ", ".join(map(str, folders))
    raise JournalError(given, -1, f"there is no journal of this name in {searched}")


def _as_it_is_named(given: Path) -> Path:
    """Return GIVEN; of a transaction in a journal that was closed since, or is not closed yet, the
    path with that one's name of now."""
    journal = given.parent
    if not journal.name.endswith((".log", LIVE)) or journal.exists():
        return given
    name = journal.name
    other = name.removesuffix(".live") if name.endswith(LIVE) else f"{name}.live"
    renamed = journal.with_name(other)
    return renamed / given.name if renamed.exists() else given


def find_shared(folders: list[Path], uuid: str) -> Path | None:
    """Return the shared journal whose index names a transaction, None if there is none."""
    for folder in folders:
        for path in folder.glob("*.log"):
            with contextlib.suppress(JournalError, OSError), SharedJournal(path) as journal:
                if journal.find(uuid) is not None:
                    return path
    return None


def _places(folders: list[Path], name: str) -> Iterator[Path]:
    for folder in folders:
        yield folder / name
        yield folder / f"{name}.live"


def _segments(folder: Path) -> Iterator[Path]:
    """Yield the segments in FOLDER, the newest first: that is what is looked for most."""
    found = [path for path in folder.glob(f"*{SEGMENT_SUFFIX}") if is_segment_name(path.name)]
    yield from sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
