"""Rows of snapshots, as those see them who send journals: something that comes between these."""

from __future__ import annotations

from typing import Protocol

from firebird_cdc.journal.shipper.inbox.queue import Entry


class BetweenJournals(Protocol):
    """Rows of a snapshot, which have their place between journals. ``are_near``: whether the
    journals that come next may be concerned."""

    @property
    def are_near(self) -> bool: ...

    def stops(self, entry: Entry) -> bool:
        """Tell whether ENTRY, which would be the next one, has to wait for rows."""

    def left_out_of(self, entry: Entry) -> frozenset[str]:
        """Return the tables whose changes in ENTRY are not sent, as rows have them."""


class _NoRows:
    are_near = False

    def stops(self, _: Entry) -> bool:
        return False

    def left_out_of(self, _: Entry) -> frozenset[str]:
        return frozenset()


NO_ROWS = _NoRows()
"""No rows: no snapshot is taken."""


class SnapshotSource(Protocol):
    """Source of rows. ``is_busy``: something is to be done that waits for nobody else;
    ``awaits_answers``: changes are held up until Kafka has answered; ``progress``: a number that
    differs while a snapshot goes on."""

    @property
    def is_busy(self) -> bool: ...
    @property
    def awaits_answers(self) -> bool: ...
    @property
    def progress(self) -> int: ...

    def meet(self, database: str) -> BetweenJournals:
        """Return the rows of DATABASE, of which journals have come."""

    def load(self) -> None:
        """Take over what the folder says. Raises ShipError."""

    def advance(self) -> bool:
        """Do what can be done now; tell whether something was."""

    def close(self) -> None:
        """End the reader processes."""


class _NoSnapshots:
    is_busy = False
    awaits_answers = False
    progress = 0

    def meet(self, _: str) -> BetweenJournals:
        return NO_ROWS

    def load(self) -> None:
        pass

    def advance(self) -> bool:
        return False

    def close(self) -> None:
        pass


NO_SNAPSHOTS = _NoSnapshots()
"""Source of none."""
