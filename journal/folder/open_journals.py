"""Shared journals that are open, for whoever only looks: ledgers say what is committed there.

Needs nothing that is compiled, as Spark's tasks use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID

from firebird_cdc.journal.folder.ledger_lock import Noted, database_key
from firebird_cdc.journal.folder.ledger_records import LedgerEntry, read_records
from firebird_cdc.journal.folder.ledger_tail import LedgerTail, ledgers_of
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
        self._voids: set[_Offset] = set()
        self._given: dict[UUID, bytes] = {}  # and in which journal

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
        reached: dict[bytes, int] = {}
        voids: set[_Offset] = set()
        for path in self._directory.glob(f"*{LIVE}"):
            with suppress(FileNotFoundError), closing(Source(path)) as source:
                header = parse_file_header(source.read(FILE_BLOCK, 0))
                if header is None or header.database != self._database:
                    continue
                if not header.is_own:
                    reached[header.uuid.bytes] = self._go_through(source, header, path.name, voids)
                elif (head := own_head(source.read)) is not None:
                    own.append((path.name, head))
        self._voids |= voids
        given = self._read_ledger()  # afterwards: what was decided meanwhile is not undecided
        self._undecided = {
            place: (name, head)
            for place, (name, head) in self._undecided.items()
            if place[0] in reached
            and place not in self._voids
            and head.header.uuid not in self._given
        }
        if reached.keys() != self._reached.keys():  # of what is new the journal may be so, too
            self._voids = {each for each in self._voids if each[0] in reached or each in voids}
            self._given = {
                uuid: journal
                for uuid, journal in self._given.items()
                if journal in reached or uuid in given
            }
        self._reached = reached
        found = [*own, *self._undecided.values()]
        return [each for each in found if (self._directory / each[0]).exists()]  # else it is closed

    def _read_ledger(self) -> set[UUID]:
        """Note the transactions that were given a number since the last look, and return them."""
        new: set[UUID] = set()
        while (entries := self._ledger.read()) is not None:
            given = {each.uuid: each.home.bytes for each in entries if each.home is not None}
            self._given |= given
            new.update(given)
        return new

    def _go_through(
        self, source: Source, header: FileHeader, name: str, voids: set[_Offset]
    ) -> int:
        """Note the transactions behind what was gone through before, and the places of VOIDS.
        Return up to where that need not be done again."""
        journal = header.uuid.bytes
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
        return end


def _given(directory: Path) -> Iterator[LedgerEntry]:
    """Yield what the ledgers have of shared journals."""
    for ledger in ledgers_of(directory).glob("*.ledger"):
        with suppress(FileNotFoundError):
            for record in read_records(ledger.read_bytes(), only_shared=True):
                yield from (entry for entry in record.given if entry.home is not None)
