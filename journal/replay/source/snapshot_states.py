"""States of snapshots, as the journal folder and Kafka know them, and what follows for journals."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.shipper.snapshots.progress import left_out_by
from firebird_cdc.journal.shipper.snapshots.state import SnapshotState, StateFolder

_NO_TABLES: frozenset[str] = frozenset()


class LeftOut:
    """Changes that are in journals and are not sent, as an initial snapshot has them in its rows.

    A small value that pickles: tasks look up journals in it.
    """

    def __init__(self, states: Iterable[SnapshotState] = ()) -> None:
        self._of = {
            state.database: found for state in states if (found := left_out_by(state)) is not None
        }

    def tables_of(self, database: str, epoch: int, transaction: int) -> frozenset[str]:
        """Return the tables whose changes by TRANSACTION of DATABASE are left out."""
        found = self._of.get(database)
        if found is None or found.epoch != epoch or not found.visible.sees(transaction):
            return _NO_TABLES
        return found.tables


def states_in_folder(journals: Path) -> list[SnapshotState]:
    """Return the states that a journal folder has; none where it has none, or is not there.

    Raises ReplayError if they can't be read.
    """
    folder = StateFolder(journals)
    try:
        return list(folder.read())
    except (OSError, ValueError) as error:
        raise ReplayError(
            f"what {folder.folder} says of snapshots can't be read: {error}"
        ) from None


def newest_states(states: Iterable[SnapshotState]) -> dict[str, SnapshotState]:
    """Return the state of each database with the highest number, as the shipper does."""
    found: dict[str, SnapshotState] = {}
    for state in states:
        known = found.get(state.database)
        if known is None or state.serial > known.serial:
            found[state.database] = state
    return found
