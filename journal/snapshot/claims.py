"""Claims of the database file on what a snapshot has to see.

The engine gives a commit its number, then writes the state into the inventory page. So what the
pages call committed before a snapshot begins has a number below the snapshot's. Where the engine
has it otherwise, its memory is wrong: issue 9017 of Firebird 4.0 and 5.0, by which a block of
states in use is cleared, and a transaction that was committed long ago gets a new number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from firebird_cdc.errors import CaptureError
from firebird_cdc.journal.folder.inventory import TransactionInventory, TransactionState
from firebird_cdc.journal.snapshot.visibility import VisibleSet


@dataclass(frozen=True)
class Claims:
    """States of transactions in the database file at one moment.

    ``unread``: why there are none, None if there are.
    """

    state: Callable[[int], TransactionState] = lambda _: TransactionState.UNKNOWN
    unread: str | None = None

    def not_seen(self, visible: VisibleSet) -> frozenset[int]:
        """Return transactions that the file calls committed and that VISIBLE has outside; the
        claims are from before its snapshot."""
        return frozenset(
            each
            for each in visible.outside | visible.dead
            if self.state(each) is TransactionState.COMMITTED
        )


def read_claims(file: Path | None, guid: UUID, first: int) -> Claims:
    """Return what FILE says now of transactions from FIRST on.

    file: None: the database is not of this machine. guid: of the database that must be there.
    """
    if file is None:
        return Claims(unread="the database is on another machine")
    try:
        inventory = TransactionInventory(file, guid)
    except (CaptureError, OSError) as error:
        return Claims(unread=_told(file, error))
    try:
        return Claims(inventory.copy_states(first).state)
    except (CaptureError, OSError) as error:
        return Claims(unread=_told(file, error))
    finally:
        inventory.close()


def _told(file: Path, error: CaptureError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{file} can't be read here: {error.strerror or error}"
    return str(error)
