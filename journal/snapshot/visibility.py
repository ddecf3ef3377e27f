"""Transactions that a snapshot sees, by the numbers that the engine gives to commits.

A commit gets a number, counted up; a snapshot sees what has a number up to its own. As long as the
snapshot is open the engine answers with these numbers for every transaction that was active when
the oldest open snapshot began; for older ones it says 1. Sources: tra.cpp and tpc.cpp of Firebird
4.0 and 5.0, function RDB$GET_TRANSACTION_CN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from firebird_cdc.errors import DatabaseUnreadable
from firebird_cdc.journal.snapshot.attachment import fetch_all

ACTIVE, IN_LIMBO, FAILED = 0, -1, -2
"""States of a transaction; any other number is that of its commit."""

_MOST_LISTED = 100_000  # transactions that one answer may name


class StateSource(Protocol):
    """Source of transactions' states."""

    def unsettled(self, first: int, end: int, number: int) -> list[tuple[int, int]]:
        """Return number and state of those from FIRST up to END that are not committed, or were
        committed by a number above NUMBER."""

    def settled(self, first: int, end: int, number: int) -> list[int]:
        """Return those from FIRST up to END that were committed by a number up to NUMBER."""

    def of(self, transaction: int) -> int | None:
        """Return the state of TRANSACTION; None: the engine has not given that number yet."""


class EngineStates:
    """States of transactions as the engine tells them, asked in a transaction that stays open.

    0.4 us per transaction that is looked at.
    """

    # Databases of dialect 1 don't have the word BIGINT.
    _NUMBER = "TYPE OF COLUMN RDB$TRANSACTIONS.RDB$TRANSACTION_ID"
    _LOOP = (
        f"EXECUTE BLOCK RETURNS (T {_NUMBER}, CN {_NUMBER})"
        " AS BEGIN T = {first}; WHILE (T < {end}) DO"
        " BEGIN CN = RDB$GET_TRANSACTION_CN(T); IF ({wanted}) THEN SUSPEND; T = T + 1; END END"
    )

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def unsettled(self, first: int, end: int, number: int) -> list[tuple[int, int]]:
        """Return those from FIRST to END that snapshot NUMBER does not see, with their states.

        Raises DatabaseUnreadable if they are too many to be listed.
        """
        return self._listed(first, end, f"CN < 1 OR CN > {number}")

    def settled(self, first: int, end: int, number: int) -> list[int]:
        """Return those from FIRST to END that snapshot NUMBER sees.

        Raises DatabaseUnreadable if they are too many to be listed.
        """
        return [t for t, _ in self._listed(first, end, f"CN BETWEEN 1 AND {number}")]

    def undecided(self, first: int, end: int) -> list[int]:
        """Return those from FIRST up to END that are active or in limbo."""
        wanted = f"CN IN ({ACTIVE}, {IN_LIMBO})"
        return [t for t, _ in self._listed(first, end, wanted)]

    def of(self, transaction: int) -> int | None:
        """Return the state of TRANSACTION; None: there was none of that number yet."""
        sql = f"SELECT RDB$GET_TRANSACTION_CN({transaction}) FROM RDB$DATABASE"  # noqa: S608
        [(state,)] = fetch_all(self._transaction, sql)
        return None if state is None else int(state)

    def _listed(self, first: int, end: int, wanted: str) -> list[tuple[int, int]]:
        with self._transaction.cursor() as cursor:
            cursor.execute(self._LOOP.format(first=first, end=end, wanted=wanted))
            rows: list[tuple[int, int]] = cursor.fetchmany(_MOST_LISTED + 1)
        if len(rows) > _MOST_LISTED:
            raise DatabaseUnreadable(
                f"more than {_MOST_LISTED} transactions failed since the database was last swept;"
                " sweep it (gfix -sweep), then try again"
            )
        return rows


@dataclass(frozen=True)
class VisibleSet:
    """Transactions that a snapshot sees.

    ``number``: the snapshot's; ``transaction``: the one that holds it; ``oldest``: all before it
    are seen; ``following``: the last number given when the set was read. ``outside``: transactions
    before ``transaction`` that are not seen, but for those that failed, which are in ``dead``.
    ``inside``: later ones that are seen, as a transaction has its number before its snapshot.
    """

    number: int
    transaction: int
    oldest: int
    following: int
    outside: frozenset[int]
    inside: frozenset[int]
    dead: frozenset[int]

    def sees(self, transaction: int) -> bool:
        """Tell whether what TRANSACTION committed is in the snapshot."""
        if transaction > self.transaction:
            return transaction in self.inside
        return transaction not in self.outside and transaction not in self.dead

    @property
    def told(self) -> dict[str, Any]:
        """Content for a pipe, as `of` takes it."""
        return {
            "number": self.number,
            "transaction": self.transaction,
            "oldest": self.oldest,
            "following": self.following,
            "outside": tuple(self.outside),
            "inside": tuple(self.inside),
            "dead": tuple(self.dead),
        }

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> VisibleSet:
        """Return what was `told`, perhaps among other things."""
        return cls(
            told["number"],
            told["transaction"],
            told["oldest"],
            told["following"],
            frozenset(told["outside"]),
            frozenset(told["inside"]),
            frozenset(told["dead"]),
        )

    def read_again(self, states: StateSource) -> VisibleSet:
        """Return the set of the same snapshot as STATES have it now."""
        return read_visible_set(
            states,
            number=self.number,
            transaction=self.transaction,
            oldest=self.oldest,
            following=self.following,
        )


def read_visible_set(
    states: StateSource, *, number: int, transaction: int, oldest: int, following: int
) -> VisibleSet:
    """Return what the open snapshot NUMBER sees.

    oldest: the oldest interesting transaction, read BEFORE the snapshot began: later it may have
    passed one that the snapshot does not see. following: the last transaction's number, read after.
    """
    unsettled = states.unsettled(oldest, transaction, number)
    return VisibleSet(
        number=number,
        transaction=transaction,
        oldest=oldest,
        following=following,
        outside=frozenset(each for each, state in unsettled if state != FAILED),
        inside=frozenset(states.settled(transaction + 1, following + 1, number)),
        dead=frozenset(each for each, state in unsettled if state == FAILED),
    )


def passed_for_joiners(visible: VisibleSet, oldest: int) -> frozenset[int]:
    """Return transactions outside the snapshot that those may see that joined it by its number.

    A transaction that joins takes all before the oldest interesting transaction of its own start
    for committed, before it looks at numbers. oldest: the highest of these marks.
    """
    return frozenset(each for each in visible.outside if each < oldest)


def newly_seen(before: VisibleSet, now: VisibleSet) -> frozenset[int]:
    """Return transactions that came to be seen while the snapshot was open.

    The engine counts the number of a commit up and then stores it: one that was between the two
    when the snapshot began is not seen at first, and seen later. What had failed can't be one,
    though the engine says 1 for it once the database was swept.
    """
    return (before.outside - now.outside - now.dead) | (now.inside - before.inside)


def no_longer_seen(before: VisibleSet, now: VisibleSet) -> frozenset[int]:
    """Return transactions that the snapshot saw, and that the engine has forgotten the number of.

    No rule of the engine allows it; its issue 9017 does it, which clears a block of states in use.
    """
    return ((now.outside | now.dead) - before.outside - before.dead) | (before.inside - now.inside)
