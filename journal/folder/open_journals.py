"""Shared journals that are open, for whoever only looks: ledgers say what is committed there.

Needs nothing that is compiled, as Spark's tasks use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from firebird_cdc.journal.folder.ledger_lock import Noted, database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry, read_records
from firebird_cdc.journal.folder.ledger_tail import LedgerTail, ledgers_of
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.format import Place
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import (
    FileHeader,
    Void,
    aligned,
    is_shared,
    own_head,
    parse_file_header,
    walk,
)

_Offset = tuple[bytes, int]  # of a transaction: its journal's UUID, and where it begins there

LIVE = ".log.live"
"""Ending of the name of a journal that is not closed."""


def is_open(path: Path) -> bool:
    """Tell whether PATH is a shared journal that is not closed. Raises OSError."""
    if not path.name.endswith(LIVE):
        return False
    with path.open("rb") as file:
        return is_shared(file.read(FILE_BLOCK))


def given_in(path: Path) -> list[Place]:
    """Return the places of the committed transactions in the open journal at PATH, in the order of
    their numbers. Raises OSError."""
    return given_in_open(path.parent, [path.name]).get(path.name, [])


def given_in_open(directory: Path, names: Iterable[str]) -> dict[str, list[Place]]:
    """Return the same for the shared ones among the open journals NAMES of the folder DIRECTORY,
    by name; each ledger is read once. Raises OSError."""
    found: dict[str, list[Place]] = {}
    for name in names:
        with suppress(FileNotFoundError):  # closed meanwhile
            if is_open(directory / name):
                found[name] = []
    for entry in _given(directory) if found else ():
        if (places := found.get(f"{entry.home}{LIVE}")) is not None:
            places.append(entry.place)
    for places in found.values():
        places.sort(key=lambda place: place.stamp.number)
    return found


def find_open(directory: Path, uuid: str) -> Path | None:
    """Return the open journal of the folder DIRECTORY in which a transaction is committed, None if
    there is none. Raises OSError."""
    for entry in _given(directory):
        if str(entry.uuid) == uuid and (path := directory / f"{entry.home}{LIVE}").exists():
            return path
    return None


def undecided_in(directory: Path, database: str) -> list[tuple[str, Head]]:
    """Return the same as `OpenJournals.undecided`, for one look. The folder may be a copy, of whose
    ledger it is not noted how much is on disk."""
    with closing(OpenJournals(directory, database, is_synced=False)) as journals:
        return journals.undecided()


class OpenJournals:
    """Open journals of one DATABASE in the folder DIRECTORY, for whoever looks again and again: as
    journals and ledgers only grow at their end, what lies there is gone through once. IS_SYNCED:
    numbers count once they are on disk."""

    def __init__(self, directory: Path, database: str, *, is_synced: bool = True) -> None:
        self._directory = directory
        self._database = database
        key = database_key(database)
        self._ledger = LedgerTail(ledgers_of(directory), key, is_synced=is_synced)
        self._reached: dict[bytes, int] = {}
        self._undecided: dict[_Offset, tuple[str, Head]] = {}
        self._decided: set[_Offset] = set()  # those that may be met again, or are still to be met

    @property
    def noted(self) -> Noted:
        """Return what is noted of the ledger."""
        return self._ledger.noted

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def undecided(self) -> list[tuple[str, Head]]:
        """Return the journal's name and the head of each transaction that has neither a number nor
        a void. Raises OSError."""
        own: list[tuple[str, Head]] = []
        decided: set[_Offset] = set()
        reached: dict[bytes, int] = {}
        for path in self._directory.glob(f"*{LIVE}"):
            with suppress(FileNotFoundError), closing(Source(path)) as source:
                header = parse_file_header(source.read(FILE_BLOCK, 0))
                if header is None or header.database != self._database:
                    continue
                if not header.is_own:
                    reached[header.uuid.bytes], voids = self._go_through(source, header, path.name)
                    decided |= voids
                elif (head := own_head(source.read)) is not None:
                    own.append((path.name, head))
        # Afterwards: what was decided meanwhile is not undecided.
        while (entries := self._ledger.read()) is not None:
            given = {(each.home.bytes, each.offset) for each in entries if each.home}
            decided |= given
            self._decided |= given  # no later look reads of them again, even if this one fails
        self._reached = reached
        self._decided |= decided
        self._undecided = {
            place: found
            for place, found in self._undecided.items()
            if place[0] in reached and place not in self._decided
        }
        self._decided = {each for each in self._decided if self._is_to_come(each, each in decided)}
        found = [*own, *self._undecided.values()]
        return [each for each in found if (self._directory / each[0]).exists()]  # else it is closed

    def _is_to_come(self, place: _Offset, is_new: bool) -> bool:
        """Tell whether a later look may meet the transaction at PLACE. IS_NEW: it was decided since
        the last one, so that its journal may be new, too."""
        journal, offset = place
        reached = self._reached.get(journal)
        return is_new if reached is None else offset >= reached

    def _go_through(
        self, source: Source, header: FileHeader, name: str
    ) -> tuple[int, set[_Offset]]:
        """Note the transactions behind what was gone through before; return up to where that need
        not be done again, and the places that have voids."""
        journal, voids = header.uuid.bytes, set()
        end, is_whole = self._reached.get(journal, FILE_BLOCK), True
        for found in walk(source.read, source.size, header.uuid, end):
            if isinstance(found.what, Head):
                self._undecided[journal, found.offset] = (name, found.what)
            elif isinstance(found.what, Void):
                voids.add((found.what.journal, found.what.offset))
            else:
                is_whole = False  # or it was just being written
            if is_whole:
                end = aligned(found.end)  # where the file may not be long enough yet
        return end, voids


def _given(directory: Path) -> Iterator[LedgerEntry]:
    """Yield what the ledgers have of shared journals."""
    for ledger in (directory / STATE_DIRECTORY / "databases").glob("*.ledger"):
        with suppress(FileNotFoundError):
            for record in read_records(ledger.read_bytes(), only_shared=True):
                yield from (entry for entry in record.given if entry.home is not None)
