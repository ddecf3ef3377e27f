"""Words for a snapshot on a terminal, made of what a report has of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from firebird_cdc.journal.folder.processes import status_path
from firebird_cdc.journal.shipper.commands.terminal import duration
from firebird_cdc.journal.shipper.monitoring.snapshot_figures import WAITS
from firebird_cdc.journal.shipper.snapshots.figures import figures_of
from firebird_cdc.journal.shipper.snapshots.state import Snapshot, SnapshotState

_TABLES = 5
_SHOUTED = ("owed", "paused")


def is_on(snapshot: Mapping[str, Any] | None) -> bool:
    """Tell whether SNAPSHOT, of a report, has not ended; None: there is none."""
    return snapshot is not None and snapshot["status"] in WAITS


def told_by_shipper(journals: Path) -> dict[str, dict[str, Any]]:
    """Return what the shipper that runs, or the last one, told of snapshots, by database."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        report = orjson.loads(status_path(journals).read_bytes())
        return {each["path"]: each["snapshot"] for each in report["databases"] if each["snapshot"]}
    return {}


def snapshot_of(
    state: SnapshotState, snapshot: Snapshot, told: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return SNAPSHOT of STATE as a report has it, and why it waits, as a shipper TOLD."""
    found = figures_of(state, snapshot).as_json()
    live = told.get(state.database)
    if live is not None and live["id"] == found["id"] and is_on(found):
        names = ("waits_for", "waits_since_us", "rows_per_s", "remaining_s")
        found |= {name: live[name] for name in names}
    return found


def brief(snapshot: Mapping[str, Any]) -> str:
    """Return the progress of SNAPSHOT in a few words."""
    status = snapshot["status"]
    parts = [status.upper() if status in _SHOUTED else status]
    if tables := snapshot["tables"]:
        parts.append(f"{tables - snapshot['open_tables']} of {tables} tables")
    parts.append(f"{snapshot['rows']:,} rows")
    if status == "running":
        parts.append(f"{snapshot['rows_per_s']:,.0f} rows/s")
        if (remaining_s := snapshot["remaining_s"]) is not None:
            parts.append(f"about {duration(remaining_s)} left")
    if count := snapshot["left_out"]:
        parts.append(f"{count:,} rows LEFT OUT")
    return ", ".join(parts)


def lines_of(snapshot: Mapping[str, Any], now_us: int) -> Iterator[str]:
    """Yield what is to be known of SNAPSHOT, which has not ended."""
    yield f"{snapshot['kind']} {snapshot['id']}: {brief(snapshot)}"
    if since_us := snapshot["waits_since_us"]:
        minutes = (now_us - since_us) / 60e6
        yield f"waits for {minutes:.0f} min: {snapshot['waits_for'] or 'to be begun'}"
    elif snapshot["waits_for"]:
        yield f"waits: {snapshot['waits_for']}"
    still = [each["table"] for each in snapshot["by_table"] if each["status"] == "waiting"]
    if still:
        more = snapshot["open_tables"] - sum(
            each["status"] == "running" for each in snapshot["by_table"]
        )
        more -= len(still[:_TABLES])
        yield f"to come: {', '.join(still[:_TABLES])}" + (f" and {more} more" if more > 0 else "")
    for each in snapshot["by_table"]:
        if each["status"] == "skipped":
            yield f"{each['table']} is left out: {each['why']}"
    if behind := snapshot["behind"]:
        yield "1 more waits behind it" if behind == 1 else f"{behind} more wait behind it"
