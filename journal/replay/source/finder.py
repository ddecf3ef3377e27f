"""Finds journals where they are now: one that was listed may have been archived or packed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from firebird_cdc.errors import JournalCorrupt, ReplayError
from firebird_cdc.journal.folder.segments import is_segment_name
from firebird_cdc.journal.format import JournalReader
from firebird_cdc.journal.replay.source.storage import (
    OPEN_SUFFIX,
    Folder,
    folder_at,
    folder_of,
    split_name,
)

T = TypeVar("T")


class JournalFinder:
    """Finds journals that have left their place there, or in another one of FOLDERS.

    Names are those of `Folder`. EXPECTED: names of journals, without a segment's, whose segments
    are remembered once they were looked into for one of them. Belongs to one thread.
    """

    def __init__(self, folders: Sequence[Folder], expected: Iterable[str] = ()) -> None:
        self._folders = folders
        self._expected = frozenset(expected)
        self._packed: dict[str, tuple[Folder, str]] = {}
        self._known_segments: set[tuple[str, str]] = set()

    def open(
        self, folder: Folder, name: str, none_charset: str = "UTF-8"
    ) -> tuple[Folder, str, JournalReader]:
        """Return where a journal is that was NAME in FOLDER, and its reader.

        Raises FileNotFoundError if it is gone, and as a reader does.
        """
        return self.find(folder, name, lambda place, found: place.journal(found, none_charset))

    def open_file(self, file: str, none_charset: str) -> tuple[Folder, str, JournalReader]:
        """Open a journal by its full name, also in a folder that is none of FOLDERS; see `open`."""
        try:
            folder, name = self._place_of(file)
        except ReplayError:  # that folder can't be used from here
            journal, transaction = split_name(file)
            folder, name = self._folders[0], journal.rpartition("/")[2] + transaction
        return self.open(folder, name, none_charset)

    def find(
        self, folder: Folder, name: str, use: Callable[[Folder, str], T]
    ) -> tuple[Folder, str, T]:
        """Return the result of USE for the first place at which it finds the journal, and that
        place."""
        try:
            return folder, name, use(folder, name)
        except FileNotFoundError as error:
            file, transaction = split_name(name)
            closed = file.rpartition("/")[2].removesuffix(OPEN_SUFFIX)
            for place, found in self.elsewhere(folder, closed):
                with suppress(FileNotFoundError):
                    return place, found + transaction, use(place, found + transaction)
            raise FileNotFoundError(
                f"{folder.place(name)}: the file vanished while the folder was being read"
            ) from error

    def elsewhere(self, former: Folder, journal: str) -> Iterator[tuple[Folder, str]]:
        """Yield where JOURNAL may be that left FORMER. Twice: it may go from a folder that was not
        looked into yet to one that was."""
        folders = {folder.url: folder for folder in (former, *self._folders)}.values()
        for _ in range(2):
            if journal in self._packed:
                yield self._packed[journal]
            for folder in folders:
                if folder.exists(journal):
                    yield folder, journal
            self._look_into_segments(folders, journal)
        if journal in self._packed:
            yield self._packed[journal]

    def _look_into_segments(self, folders: Iterable[Folder], journal: str) -> None:
        wanted = self._expected | {journal}
        for folder in folders:
            with suppress(FileNotFoundError):
                for name, _ in folder.entries():
                    if is_segment_name(name) and (folder.url, name) not in self._known_segments:
                        self._look_into(folder, name, wanted)

    def _look_into(self, folder: Folder, segment: str, wanted: frozenset[str]) -> None:
        try:
            members = folder.members(segment)
        except (FileNotFoundError, JournalCorrupt):
            return
        if self._expected:
            self._known_segments.add((folder.url, segment))
        for member, _ in members:
            if member in wanted:
                self._packed[member] = folder, f"{segment}/{member}"

    def _place_of(self, file: str) -> tuple[Folder, str]:
        if any(file.startswith(folder.place("")) for folder in self._folders):
            return folder_of(file, self._folders)
        journal, transaction = split_name(file)
        head, _, name = journal.rpartition("/")
        packed, _, segment = head.rpartition("/")
        if is_segment_name(segment):
            return folder_at(packed), f"{segment}/{name}{transaction}"
        return folder_at(head), name + transaction
