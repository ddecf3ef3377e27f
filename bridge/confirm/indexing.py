"""Journals that end: each gets its index, and the name of one that is closed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import UUID

from firebird_cdc.errors import JournalCorrupt
from firebird_cdc.journal.folder.journal_folder import JournalFolder
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.journal_index import Entry, find_index, pack_index, unpack_entries
from firebird_cdc.journal.format.layout import FILE_BLOCK, pwrite
from firebird_cdc.journal.format.shared import aligned

_THREADS, _WORTH_THREADS = 8, 4  # for syncs, which the file system does together

TryAgain = Callable[[UUID, Exception], None]


class Indexing:
    """Ends journals of one folder. Belongs to one thread, and to whoever leads."""

    def __init__(self, folder: JournalFolder, fsync: bool) -> None:
        self._folder = folder
        self._fsync = fsync
        self._ended: list[tuple[UUID, int]] = []  # with an index, and descriptors

    def end(self, journal: UUID, start: int, entries: list[Entry]) -> None:
        """Have a journal end with its index, which begins at byte START; ``name_ended`` names it.
        The index is written also where it is there: a sync of it may have failed. Raises
        OSError."""
        self._ended.append((journal, self.write_index(journal, start, entries)))

    def write_index(self, journal: UUID, start: int, entries: list[Entry]) -> int:
        """Return a descriptor of the file, of which nothing is synced."""
        index = pack_index(entries, journal, start)
        fd = os.open(self._folder.live(journal), os.O_RDWR | os.O_CLOEXEC)
        try:
            pwrite(fd, index, start)
            os.ftruncate(fd, start + len(index))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def name_ended(self, try_again: TryAgain) -> list[UUID]:
        """Give those that have their index their names, once that is on disk; return them.
        TRY_AGAIN: hears of those of which it is not. Raises OSError."""
        ended, self._ended = self._ended, []
        if not ended:
            return []
        # From before they get these: of a failed sync each opening is told, but only once.
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder.journal_fd)
        try:
            return self._name(ended, folder, try_again)
        finally:
            os.close(folder)

    def _name(self, ended: list[tuple[UUID, int]], folder: int, try_again: TryAgain) -> list[UUID]:
        named = []
        for (journal, fd), error in zip(ended, self._sync([fd for _, fd in ended]), strict=True):
            os.close(fd)
            if error is not None:
                try_again(journal, error)
                continue
            with contextlib.suppress(FileNotFoundError):  # removed by somebody
                self._folder.live(journal).rename(self._folder.committed(journal))
            named.append(journal)
        self._sync_names(named, folder)
        return named

    def _sync(self, files: list[int]) -> list[OSError | None]:
        """Wait until FILES are on disk, several at a time; return what came of each."""
        if not self._fsync:
            return [None] * len(files)
        if len(files) < _WORTH_THREADS:
            return [_sync_file(fd) for fd in files]
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(_sync_file, files))

    def _sync_names(self, closed: Sequence[UUID], folder: int) -> None:
        """Wait until the names of CLOSED journals in FOLDER are on disk. Raises OSError; then they
        have their former ones, to be named again: another sync would pass over them."""
        if not closed or not self._fsync:
            return
        try:
            os.fsync(folder)
        except OSError:
            for journal in closed:
                with contextlib.suppress(FileNotFoundError):  # removed, or archived already
                    self._folder.committed(journal).rename(self._folder.live(journal))
            raise


def index_of(path: Path, journal: UUID) -> tuple[int, list[Entry]] | None:
    """Return where the index of a live journal begins, and what it names; None: it has none
    that is whole. Raises OSError."""
    with closing(Source(path)) as source:
        index = find_index(path, source.read, source.size, journal.bytes)
        if index is None or index.end != source.size:
            return None
        try:
            entries = unpack_entries(index.packed(source.read))
        except JournalCorrupt:
            return None
    # One without numbers was on its way to the quarantine.
    return (index.start, entries) if all(each.sequence for each in entries) else None


def end_of(entries: Sequence[Entry]) -> int:
    """Return the first byte behind what ENTRIES name where an index may begin."""
    ends = (entry.offset + entry.length for entry in entries)
    return aligned(max(ends, default=0), FILE_BLOCK)


def _sync_file(fd: int) -> OSError | None:
    try:
        os.fsync(fd)
    except OSError as error:
        return error
    return None
