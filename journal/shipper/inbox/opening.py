"""Opens waiting transactions: journals of their own, and runs of small ones in shared journals."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from firebird_cdc.errors import JournalShared
from firebird_cdc.journal.format import JournalReader, Place, alone, open_any, pread
from firebird_cdc.journal.format.row_decoder import UndecodedChange
from firebird_cdc.journal.format.split_transactions import TransactionSplitter
from firebird_cdc.journal.shipper.inbox.queue import Entry, with_file
from firebird_cdc.native._journal_files import START, read_start

_WINDOW = 256 * 1024
_SMALL = _WINDOW // 4
_BEHIND = 16 * 1024  # numbers may go back by so many bytes, as prepare and commit do not keep order
_MOST_WINDOWS = 16


def _read(length: int, offset: int, path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return pread(fd, length, offset)
    finally:
        os.close(fd)


class JournalOpener:
    """Opens the journals of a folder. What it has read of a shared one is kept until others need
    the room: some 4 MiB in all."""

    def __init__(self, directory: Path, none_charset: str) -> None:
        self._folder = f"{directory}{os.sep}"
        self._none_charset = none_charset
        self._windows: OrderedDict[UUID, tuple[int, bytes]] = OrderedDict()
        self._home: UUID | None = None  # the last one that was asked for, and what is held of it
        self._held = (0, b"")
        self._splitter = TransactionSplitter(none_charset)

    def open(self, entry: Entry) -> JournalReader:
        """Return a reader of ENTRY. Raises as JournalReader does."""
        place = entry.place
        if entry.home is None or place is None:
            path = f"{self._folder}{entry.name}"
            start = read_start(path)
            try:
                content = start if len(start) < START else None
                return JournalReader(path, self._none_charset, content)
            except JournalShared:  # by the look of it: nothing else is in it
                return alone(open_any(path, self._none_charset), self._none_charset)
        if place.stamp.journal_length <= _SMALL:
            held, at = self._window(entry, entry.home, place)
            content = held[at : at + place.stamp.journal_length]
            path = f"{self._folder}{entry.name}"
            return JournalReader(path, self._none_charset, content, None, place)
        return with_file(self._folder, entry, partial(self._open_large, entry.uuid, place))

    def _open_large(self, uuid: UUID, place: Place, path: str) -> JournalReader:
        return JournalReader(f"{path}/{uuid}.log", self._none_charset, None, None, place)

    def forget(self, entry: Entry) -> None:
        """Read the file of ENTRY anew the next time: what was read of it may have been mended."""
        if entry.home is not None:
            self._windows.pop(entry.home, None)
            self._home = None

    def small_changes(self, entry: Entry) -> tuple[bytes, Sequence[UndecodedChange]]:
        """Return the changes of ENTRY, and in what they lie, if it is small and usual; without any
        it has to be opened. Raises OSError."""
        place = entry.place
        if entry.home is None or place is None or place.stamp.journal_length > _SMALL:
            return b"", ()
        held, at = self._window(entry, entry.home, place)
        return held, self._splitter.changes(held, at, place) or ()

    def _window(self, entry: Entry, home: UUID, place: Place) -> tuple[bytes, int]:
        """Return bytes of the journal HOME, and where in them the transaction of ENTRY begins; not
        all of it is there where the file ends. Raises OSError."""
        length = place.stamp.journal_length
        if home is self._home:  # nearly always: to look for a uuid takes its time
            start, held = self._held
            if start <= place.offset <= start + len(held) - length:
                return held, place.offset - start
        start, held = self._windows.get(home, (0, b""))
        if not start <= place.offset <= start + len(held) - length:
            start = max(place.offset - _BEHIND, 0)
            # What is behind that may be just being written.
            most = min(_WINDOW, entry.whole_to - start)
            held = with_file(self._folder, entry, partial(_read, most, start))
            self._windows[home] = start, held
            if len(self._windows) > _MOST_WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(home)
        self._home, self._held = home, (start, held)
        return held, place.offset - start
