"""Shared journals that are open, for whoever only looks: ledgers say what is committed there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from firebird_cdc.journal.folder.ledger_records import LedgerEntry, read_records
from firebird_cdc.journal.folder.ledger_tail import ledgers_of
from firebird_cdc.journal.format import Place
from firebird_cdc.journal.format.layout import FILE_BLOCK
from firebird_cdc.journal.format.shared import is_shared

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
    name = path.name.removesuffix(LIVE)
    places = [entry.place for entry in _given(path.parent) if str(entry.home) == name]
    return sorted(places, key=lambda place: place.stamp.number)


def find_open(directory: Path, uuid: str) -> Path | None:
    """Return the open journal of the folder DIRECTORY in which a transaction is committed, None if
    there is none. Raises OSError."""
    for entry in _given(directory):
        if str(entry.uuid) == uuid and (path := directory / f"{entry.home}{LIVE}").exists():
            return path
    return None


def _given(directory: Path) -> Iterator[LedgerEntry]:
    """Yield what the ledgers have of shared journals."""
    for ledger in ledgers_of(directory).glob("*.ledger"):
        with suppress(FileNotFoundError):
            for record in read_records(ledger.read_bytes(), only_shared=True):
                yield from (entry for entry in record.given if entry.home is not None)
