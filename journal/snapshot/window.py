"""Window: a snapshot that is held open, with all that has to be true of what is read in it.

In this order, as each step is only right after the one before it:

1. the guard, a read-only snapshot transaction: the oldest interesting transaction, which the engine
   counts up, can't pass it;
2. that mark, and what the database file calls committed (`claims`);
3. the snapshot, its number, and the set of transactions that it sees (`visibility`);
4. others join it by its number and read;
5. `Window.find_flaws` asks once more, while the snapshot is open. Only then what was read counts.

`open_window` does it with an attachment; `begin_window` is the same without one, for tests. Another
process has part in the window by `join_window`, and asks for itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from firebird_cdc.errors import SnapshotVoid
from firebird_cdc.journal.snapshot.attachment import DatabaseConnection
from firebird_cdc.journal.snapshot.holder import Holder, attached_holder
from firebird_cdc.journal.snapshot.publication import (
    Barrier,
    OlderTransaction,
    begun_before,
    highest_bound,
    raise_barriers,
)
from firebird_cdc.journal.snapshot.visibility import (
    ACTIVE,
    VisibleSet,
    newly_seen,
    no_longer_seen,
    passed_for_joiners,
    read_visible_set,
)

if TYPE_CHECKING:
    from firebird.driver import Connection

_POLL_S = 0.05
_SHOWN = 10  # transactions in a sentence


@dataclass(frozen=True)
class Flaws:
    """Transactions by which reads in a window are not what its visible set says.

    ``passed``: outside, but seen by those that joined, if they were committed meanwhile.
    ``torn``: not seen at first, and seen later. ``not_seen``: committed before the snapshot, says
    the database file, and yet not in it; ``forgotten``: seen at first, and not seen later: by these
    two the engine's memory of transactions is damaged, and nothing that was read is proven.
    ``unpublished``: outside, and perhaps begun before their tables were published, so that no
    journal has what they write.
    """

    passed: frozenset[int] = frozenset()
    torn: frozenset[int] = frozenset()
    not_seen: frozenset[int] = frozenset()
    forgotten: frozenset[int] = frozenset()
    unpublished: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return any((self.passed, self.torn, self.damaged, self.unpublished))

    @property
    def damaged(self) -> frozenset[int]:
        """Transactions that the engine's memory has lost."""
        return self.not_seen | self.forgotten

    def sentences(self) -> list[str]:
        """Return a sentence on each kind that there is."""
        told = [
            (self.passed, "were open when it began, and are seen by those that joined it since"),
            (self.torn, "were being committed when it began, and are seen in a part of it"),
            (self.not_seen, "are committed in the database file, and not seen"),
            (self.forgotten, "were seen at first, and are no longer"),
            (self.unpublished, "may have been begun before their tables were published"),
        ]
        found = [f"transactions {_shown(who)} {what}" for who, what in told if who]
        if self.damaged:
            found.append(
                "the engine's memory of transactions is damaged (Firebird issue 9017): close all"
                " attachments to the database, then read again"
            )
        return found


@dataclass
class Window:
    """An open snapshot, made by `open_window` or `begin_window`.

    ``guard``: the guard's number. ``joined``: the oldest interesting transaction when the holder
    joined the snapshot; 0: it began it. ``barriers``: of what was published when the window began,
    for the record of whoever takes snapshots. ``not_seen``: see `Flaws`. ``unchecked``: why the
    database file was not asked, None if it was.
    """

    holder: Holder = field(repr=False)
    guard: int
    visible: VisibleSet
    barriers: Mapping[str, Barrier]
    not_seen: frozenset[int]
    unpublished: frozenset[int]
    unchecked: str | None
    joined: int = 0

    @property
    def connection(self) -> Connection:
        """The attachment, whose main transaction is in the snapshot."""
        return self.holder.connection

    @property
    def guid(self) -> UUID:
        """The database's GUID; nil: it has none."""
        return self.holder.guid

    @property
    def number(self) -> int:
        """The snapshot's number, by which others join it."""
        return self.visible.number

    @property
    def transaction(self) -> int:
        """The transaction that holds the snapshot."""
        return self.visible.transaction

    def sees(self, transaction: int) -> bool:
        """Tell whether what TRANSACTION committed is in the snapshot."""
        return self.visible.sees(transaction)

    def find_flaws(self, joined: Iterable[int] | None = None) -> Flaws:
        """Return what has become wrong by now with reads in the window.

        Ask when all have joined and read, and before the window ends. joined: the oldest
        interesting transaction of each reader when it joined; None: nobody knows, so that of now,
        which may have passed more, counts.
        """
        mark = self.holder.oldest() if joined is None else max(joined, default=0)
        mark = max(mark, self.joined)
        now = self.visible.read_again(self.holder.states)
        return Flaws(
            passed=passed_for_joiners(self.visible, mark) - self.not_seen,
            torn=newly_seen(self.visible, now),
            not_seen=self.not_seen,
            forgotten=no_longer_seen(self.visible, now),
            unpublished=self.unpublished,
        )

    def require_sound(self, joined: Iterable[int] | None = None) -> None:
        """Raise SnapshotVoid if `find_flaws` finds one."""
        if flaws := self.find_flaws(joined):
            raise SnapshotVoid(f"snapshot {self.number}: {'; '.join(flaws.sentences())}")


def begin_window(
    holder: Holder, known: Mapping[str, Barrier] | None = None, patience_s: float = 0
) -> Window:
    """Begin guard and snapshot, and read what that sees.

    known: barriers of snapshots before; None: nobody asks for transactions that are older than a
    publication. patience_s: how long to wait for transactions that were begun before the guard.
    """
    guard = holder.begin_guard()
    _await_older(holder, guard, patience_s)
    # These two before the snapshot: afterwards they would speak of what it does not see.
    oldest = holder.oldest()
    claims = holder.claims(oldest)
    snapshot = holder.begin_snapshot()
    # Asked at once: what is committed later gets a higher number than the snapshot's.
    visible = read_visible_set(
        holder.states,
        number=snapshot.number,
        transaction=snapshot.transaction,
        oldest=oldest,
        following=holder.following(),
    )
    barriers = {} if known is None else meet_publication(holder, known)
    return Window(
        holder=holder,
        guard=guard,
        visible=visible,
        barriers=barriers,
        not_seen=claims.not_seen(visible),
        unpublished=_unpublished(holder, visible, barriers),
        unchecked=claims.unread,
    )


def join_window(holder: Holder, visible: VisibleSet, barriers: Mapping[str, Barrier]) -> Window:
    """Join a window that another process holds, which has VISIBLE and BARRIERS, and in which it has
    found no flaw."""
    guard = holder.begin_guard()
    joined = holder.join_snapshot(visible.number)
    nothing: frozenset[int] = frozenset()
    return Window(holder, guard, visible, barriers, nothing, nothing, None, joined)


def meet_publication(holder: Holder, known: Mapping[str, Barrier]) -> dict[str, Barrier]:
    """Return the barriers of what is published. Keep them: those that KNOWN lacks, or has with
    another version, are of tables that need a snapshot, once `find_older` finds nothing."""
    publication = holder.publication()
    # In this order: whoever is begun later sees what is published.
    return raise_barriers(publication, known, holder.following() + 1)


def find_older(holder: Holder, barriers: Mapping[str, Barrier]) -> list[OlderTransaction]:
    """Return the transactions that have to end before a snapshot of what BARRIERS protect is of
    use: all that may write, and may have been begun before one of the tables was published."""
    bound = highest_bound(barriers)
    undecided = holder.undecided(holder.oldest(), bound)
    if not undecided:
        return []
    monitored = holder.monitored(bound)
    numbers = begun_before(undecided, barriers, monitored.readers)
    return [monitored.writers.get(each, OlderTransaction(each)) for each in sorted(numbers)]


def _unpublished(
    holder: Holder, visible: VisibleSet, barriers: Mapping[str, Barrier]
) -> frozenset[int]:
    """Return what `Flaws` calls so: it ended after the snapshot, or has not ended yet."""
    later = range(visible.transaction + 1, min(highest_bound(barriers), visible.following + 1))
    unseen = visible.outside | (frozenset(later) - visible.inside)
    suspects = begun_before(unseen, barriers, ())
    if not suspects:
        return suspects
    return suspects - holder.monitored(max(suspects) + 1).readers


def _await_older(holder: Holder, guard: int, patience_s: float) -> None:
    if patience_s <= 0:
        return
    waiting = holder.undecided(holder.oldest(), guard)
    deadline = time.monotonic() + patience_s
    while waiting and time.monotonic() < deadline:
        waiting = [each for each in waiting if holder.states.of(each) == ACTIVE]
        if waiting:
            time.sleep(_POLL_S)


@contextlib.contextmanager
def open_window(
    how: DatabaseConnection, known: Mapping[str, Barrier] | None = None, patience_s: float = 0
) -> Iterator[Window]:
    """Open a window and hold it while the context lasts; arguments as of `begin_window`.

    Raises DatabaseUnreadable, also for what the driver raises within the context.
    """
    with attached_holder(how) as holder:
        yield begin_window(holder, known, patience_s)


def _shown(transactions: frozenset[int]) -> str:
    """Return TRANSACTIONS for people, the first of many."""
    ordered = sorted(transactions)
    return ", ".join(map(str, ordered[:_SHOWN])) + (", ..." if len(ordered) > _SHOWN else "")
