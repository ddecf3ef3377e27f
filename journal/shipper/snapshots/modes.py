"""Rules of ``snapshot.mode``: the snapshot that a database is due, and whether changes follow."""

from __future__ import annotations

from uuid import uuid4

from firebird_cdc.config.snapshots import SnapshotOptions
from firebird_cdc.journal.shipper.snapshots.state import Kind, Snapshot

ORIGIN = "snapshot.mode"

_OF_NEW = ("initial", "initial_only", "always", "when_needed")


def due_at_start(
    options: SnapshotOptions, *, has_any: bool, is_new: bool, has_lost: bool
) -> Snapshot | None:
    """Return the snapshot that a database is due when its first journal is met after a start.

    has_any: one waits or runs, or has ended. is_new: Kafka has nothing of it. has_lost: it is told
    that changes are not in Kafka.
    """
    kind = None
    if is_new and not has_any and _wants_rows(options):
        kind = Kind.INITIAL
    elif options.mode == "always":
        kind = Kind.INITIAL if is_new else Kind.BLOCKING
    elif has_lost and (options.mode == "when_needed" or options.configured.on_data_error):
        kind = Kind.BLOCKING
    return None if kind is None else Snapshot(str(uuid4()), kind, ORIGIN)


def sends_changes(options: SnapshotOptions) -> bool:
    """Tell whether changes are sent behind the snapshot."""
    if options.mode == "configuration_based":
        return options.configured.stream
    return options.mode != "initial_only"


def _wants_rows(options: SnapshotOptions) -> bool:
    if options.mode == "configuration_based":
        return options.configured.data
    return options.mode in _OF_NEW
