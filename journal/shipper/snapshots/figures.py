"""Figures and words for people of a snapshot, by its record alone: without what takes it."""

from __future__ import annotations

from firebird_cdc.journal.shipper.monitoring.snapshot_figures import (
    SnapshotFigures,
    TableFigures,
    WindowFigures,
)
from firebird_cdc.journal.shipper.snapshots.state import GONE, Snapshot, SnapshotState, Status

_TABLES_NAMED = 10


def figures_of(state: SnapshotState, snapshot: Snapshot) -> SnapshotFigures:
    """Return what STATE tells of SNAPSHOT, which it has."""
    is_paused = state.is_paused and not snapshot.ended_us
    return SnapshotFigures(
        snapshot.id,
        str(snapshot.kind),
        "paused" if is_paused else str(snapshot.status),
        snapshot.requested_us,
        snapshot.started_us,
        snapshot.ended_us,
        tuple(
            TableFigures(each.name, str(each.status), each.rows, each.left_out, each.why)
            for each in snapshot.tables or ()
        ),
        max(len(state.waiting) - 1, 0),
        windows=WindowFigures(snapshot.windows),
        reached=sum(table.reached for table in snapshot.tables or ()),
        extent=sum(table.extent for table in snapshot.tables or ()),
    )


def shown_in(state: SnapshotState) -> Snapshot | None:
    """Return the snapshot of STATE that is taken, or comes next, or was the last one."""
    if state.waiting:
        return state.waiting[0]
    return state.past[-1] if state.past else None


def missing_in(snapshot: Snapshot) -> str:
    """Return which rows and tables SNAPSHOT lacks as they could not be sent, for people; empty:
    none. Who takes tables out knows it."""
    found = []
    for table in snapshot.tables or ():
        if table.left_out:
            found.append(f"{table.left_out} rows of {table.name}")
        if table.unread:
            found.append(f"values of {table.unread} rows of {table.name}")
        if table.status is Status.SKIPPED and table.why != GONE:
            found.append(f"all of {table.name} ({table.why})")
    more = len(found) - _TABLES_NAMED
    return ", ".join(found[:_TABLES_NAMED]) + (f" and {more} tables more" if more > 0 else "")
