"""Progress of a snapshot, table by table: what becomes of it with a batch, a window, or a change of
its kind. All of it works on the state alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    SeenSet,
    Snapshot,
    SnapshotState,
    Status,
    TableProgress,
)
from firebird_cdc.journal.snapshot.signals import matches
from firebird_cdc.journal.snapshot.visibility import VisibleSet

if TYPE_CHECKING:
    from firebird_cdc.journal.shipper.snapshots.rows import Batch

CROWDED = "too many changes waited"
"""Reason of what had to make room for them."""

WAS_STOPPED = "it was stopped"
"""Reason of what somebody has ended."""

OLD_TRANSACTIONS = "transactions have to end that may be older than the publication of a table"
"""Beginning of what a snapshot waits for then."""


def table_of(snapshot: Snapshot, name: str) -> TableProgress:
    """Return the table NAME of SNAPSHOT, which it has."""
    return next(each for each in snapshot.tables or () if each.name == name)


def apply_batch(snapshot: Snapshot, batch: Batch) -> None:
    """Note in SNAPSHOT that Kafka has BATCH."""
    table = table_of(snapshot, batch.table)
    table.rows += batch.rows - len(batch.left_out)
    table.left_out += len(batch.left_out)
    table.unread += len(batch.unread) + len(batch.undecoded)
    if batch.last is not None:
        table.after = batch.last.hex()
    if table.status is not Status.STOPPED:
        table.status = Status.COMPLETED if batch.is_end else Status.RUNNING


def stop_tables(database: str, snapshot: Snapshot, patterns: Sequence[str]) -> list[TableProgress]:
    """Take the tables of DATABASE that match one of PATTERNS out of SNAPSHOT; return them."""
    stopped = []
    for table in snapshot.open_tables:
        if any(matches(each, f"{database}.{table.name}") for each in patterns):
            table.status = Status.STOPPED
            stopped.append(table)
    return stopped


def end_of(snapshot: Snapshot) -> Status:
    """Return how SNAPSHOT has ended, of which no table is open: STOPPED where tables were stopped,
    and none is complete."""
    statuses = {table.status for table in snapshot.tables or ()}
    is_stopped = Status.STOPPED in statuses and Status.COMPLETED not in statuses
    return Status.STOPPED if is_stopped else Status.COMPLETED


def renew_tables(snapshot: Snapshot) -> None:
    """Begin those tables of SNAPSHOT anew that have to be of one moment: a window begins."""
    for table in snapshot.tables or ():
        if table.status in (Status.SKIPPED, Status.STOPPED):
            continue
        if snapshot.kind is not Kind.INCREMENTAL or (table.is_open and table.torn_by_pause):
            table.begin_anew()


def follow_database(state: SnapshotState, guid: str) -> bool:
    """Note the GUID of the database that was attached to; tell whether it is another one than that
    of before, as after a restore, in which nothing that is known of rows and transactions holds."""
    is_another = state.guid not in ("", guid)
    state.guid = guid
    if is_another:
        state.barriers = {}
        state.seen = None
        for snapshot in state.waiting:
            for table in snapshot.tables or ():
                if table.status not in (Status.SKIPPED, Status.STOPPED):
                    table.begin_anew()
                    table.shape = None
    return is_another


def is_of_one_moment(snapshot: Snapshot) -> bool:
    """Tell whether the rows behind those that were sent have to be of the same moment."""
    if snapshot.kind is not Kind.INCREMENTAL:
        return True
    return any(table.torn_by_pause for table in snapshot.open_tables[:1])


def put_last(snapshot: Snapshot, table: TableProgress) -> None:
    """Have TABLE of SNAPSHOT wait behind the others, as a row of it can't be sent."""
    table.status = Status.WAITING
    snapshot.tables = [*(each for each in snapshot.tables or () if each is not table), table]


def give_way(
    state: SnapshotState, snapshot: Snapshot, why: str, *, keeps_torn: bool = False
) -> list[TableProgress]:
    """Have SNAPSHOT go on part by part, for this reason; return the tables that it drops: one that
    is half read and has no key can't be read in parts. KEEPS_TORN: it is read anew."""
    snapshot.kind = Kind.INCREMENTAL
    dropped = []
    for table in snapshot.open_tables:
        if (torn := table.torn_by_pause) and not keeps_torn:
            table.status = Status.SKIPPED
            table.why = f"{why}, and {torn}"
            dropped.append(table)
    if state.seen is not None:
        state.seen.tables = _whole(state.seen, snapshot)
    return dropped


def end_initial(state: SnapshotState, snapshot: Snapshot, *, is_first: bool) -> None:
    """Leave changes of those tables out that SNAPSHOT, an initial one that ends, has sent as a
    whole. IS_FIRST: its rows stand before all changes."""
    if state.seen is not None:
        state.seen.tables = _whole(state.seen, snapshot)
        if not is_first or not state.seen.tables:
            state.seen = None


def _whole(seen: SeenSet, snapshot: Snapshot) -> list[str]:
    """Return the tables in SEEN of which SNAPSHOT has sent all rows."""
    whole = {each.name for each in snapshot.tables or () if each.status is Status.COMPLETED}
    return [name for name in seen.tables if name in whole]


def nothing_seen() -> SeenSet:
    """Return the set of an initial snapshot whose rows go between journals: nothing is left out."""
    return SeenSet(0, 0, [], [], [], [])


def seen_by(snapshot: Snapshot, visible: VisibleSet, epoch: int) -> SeenSet:
    """Return what is left out of the journals of EPOCH behind an initial SNAPSHOT."""
    return SeenSet(
        epoch,
        visible.transaction,
        sorted(visible.outside),
        sorted(visible.inside),
        sorted(visible.dead),
        [each.name for each in snapshot.open_tables],
    )


def told_end(snapshot: Snapshot, status: Status) -> str:
    """Return what the log tells of SNAPSHOT, which has ended as STATUS."""
    word = "complete" if status is Status.COMPLETED else status
    tables = len(snapshot.tables or ())
    return (
        f"{snapshot.kind} snapshot {snapshot.id} is {word}: {snapshot.rows} rows of {tables} tables"
        f" in {snapshot.windows} windows"
    )


class LeftOut(NamedTuple):
    """Changes of TABLES that an initial snapshot has seen, in EPOCH."""

    epoch: int
    visible: VisibleSet
    tables: frozenset[str]


def left_out_by(state: SnapshotState) -> LeftOut | None:
    """Return the changes that are not sent as the initial snapshot saw them, None: all are."""
    seen = state.seen
    if seen is None or not seen.tables:
        return None
    tables = seen.tables
    for snapshot in state.waiting:
        if snapshot.kind is Kind.INITIAL:
            if snapshot.tables is None or snapshot.open_tables:
                return None  # what it has seen is only sent in part, or will be of another moment
            tables = _whole(seen, snapshot)
    outside, inside, dead = map(frozenset, (seen.outside, seen.inside, seen.dead))
    visible = VisibleSet(0, seen.transaction, 0, 0, outside, inside, dead)
    return LeftOut(seen.epoch, visible, frozenset(tables))
