"""Shared journals that are open, for whoever only looks: ledgers say what is committed there.

Needs nothing that is compiled, as Spark's tasks use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from firebird_cdc.journal.folder.ledger_records import LedgerEntry, read_records
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.format import Place
from firebird_cdc.journal.format.content import Source
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.sectors import Head
from firebird_cdc.journal.format.shared import Void, is_shared, own_head, parse_file_header, walk

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


def undecided_in(directory: Path, database: str) -> Iterator[tuple[str, Head]]:
    """Yield the journal's name and the head of each transaction in the open journals of the folder
    DIRECTORY that is of DATABASE and has neither a number nor a void. Raises OSError."""
    heads: list[tuple[str, Head]] = []
    decided: set[tuple[bytes, int]] = set()
    for path in directory.glob(f"*{LIVE}"):
        with suppress(FileNotFoundError), closing(Source(path)) as source:
            header = parse_file_header(source.read(FILE_BLOCK, 0))
            if header is None or header.database != database:
                continue
            if header.is_own:
                own = own_head(source.read)
                heads += [] if own is None else [(path.name, own)]
                continue
            for found in walk(source.read, source.size, header.uuid):
                if isinstance(found.what, Void):
                    decided.add((found.what.journal, found.what.offset))
                elif isinstance(found.what, Head):
                    heads.append((path.name, found.what))
    # Afterwards: what was decided meanwhile is not undecided.
    given = {entry.uuid for entry in _given(directory)}
    for name, head in heads:
        is_decided = (head.journal, head.offset) in decided or head.header.uuid in given
        if not is_decided and (directory / name).exists():  # else it is closed
            yield name, head


def _given(directory: Path) -> Iterator[LedgerEntry]:
    """Yield what the ledgers have of shared journals."""
    for ledger in (directory / STATE_DIRECTORY / "databases").glob("*.ledger"):
        with suppress(FileNotFoundError):
            for record in read_records(ledger.read_bytes(), only_shared=True):
                yield from (entry for entry in record.given if entry.home is not None)
