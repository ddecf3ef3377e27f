"""States of snapshots, as the journal folder and Kafka know them, and what follows for journals."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.shipper.snapshots.state import SnapshotState, StateFolder
from firebird_cdc.journal.snapshot.visibility import VisibleSet

_NO_TABLES: frozenset[str] = frozenset()


class LeftOut:
    """Changes that are in journals and are not sent, as an initial snapshot has them in its rows.

    A small value that pickles: tasks look up journals in it.
    """

    def __init__(self, states: Iterable[SnapshotState] = ()) -> None:
        self._seen = {
            state.database: (
                seen.epoch,
                VisibleSet(
                    0,
                    seen.transaction,
                    0,
                    0,
                    frozenset(seen.outside),
                    frozenset(seen.inside),
                    frozenset(seen.dead),
                ),
                frozenset(seen.tables),
            )
            for state in states
            if (seen := state.seen) is not None
        }

    def __bool__(self) -> bool:
        return bool(self._seen)

    def tables_of(self, database: str, epoch: int, transaction: int) -> frozenset[str]:
        """Return the tables whose changes by TRANSACTION of DATABASE are left out."""
        seen = self._seen.get(database)
        if seen is None or seen[0] != epoch or not seen[1].sees(transaction):
            return _NO_TABLES
        return seen[2]


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
