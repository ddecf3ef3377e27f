"""Scenarios of the syncs of snapshots and signals (sync_scenarios.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from earlier_messages import configuration

from firebird_cdc.journal.folder.locks import STATE_DIRECTORY
from firebird_cdc.journal.shipper.requests import RequestFolder, write_request
from firebird_cdc.journal.shipper.snapshots.intake import Signals, follow_requests
from firebird_cdc.journal.shipper.snapshots.state import (
    SNAPSHOTS,
    Kind,
    Snapshot,
    SnapshotState,
    StateFolder,
)

Step = Callable[[], None]

_DATABASE = "/data/shop.fdb"
_EXECUTE = {"data-collections": [f"{_DATABASE}.ITEM"]}


class _Control:
    """Takes snapshots by their ids, as the states do."""

    def __init__(self) -> None:
        self.databases = [_DATABASE]
        self.taken: list[str] = []

    def request(self, _: str, snapshot: Snapshot) -> bool:
        if snapshot.id in self.taken:
            return False
        self.taken.append(snapshot.id)
        return True

    def refuse(self, id: str, type: str, channel: str, why: str) -> None:
        raise AssertionError((id, type, channel, why))


def kept_snapshot(root: Path) -> tuple[Step, Step]:
    """The state of a database's snapshots is kept."""
    (root / STATE_DIRECTORY).mkdir()
    state = SnapshotState(_DATABASE, waiting=[Snapshot("it", Kind.BLOCKING, "command")])

    def act() -> None:
        StateFolder(root).write(state)

    def check() -> None:
        [found] = StateFolder(root).read()
        assert [each.id for each in found.waiting] == ["it"]

    return act, check


def signalled(root: Path) -> tuple[Step, Step]:
    """A signal comes by a file."""
    folder = root / STATE_DIRECTORY / SNAPSHOTS
    folder.parent.mkdir()
    inbox = root / "inbox"
    inbox.mkdir(mode=0o700)
    options = {"signal.enabled.channels": "file", "signal.file": str(inbox / "signals")}
    config: Any = configuration(root, options)
    signal = {"id": "it", "type": "execute-snapshot", "data": _EXECUTE}
    (inbox / "signals").write_text(json.dumps(signal) + "\n")
    control = _Control()

    def take(by: Any) -> None:
        signals = Signals(config, folder, by)
        try:
            signals.take()
        finally:
            signals.close()

    def act() -> None:
        take(control)
        take(control)  # what is kept of the first time lets the file go
        assert control.taken == ["it"]

    def check() -> None:
        after = _Control()
        take(after)
        assert control.taken == ["it"] or after.taken == ["it"]

    return act, check


def asked_for_snapshot(root: Path) -> tuple[Step, Step]:
    """A snapshot is asked for by command."""
    (root / STATE_DIRECTORY).mkdir()
    control: Any = _Control()
    content = {
        "id": "it",
        "type": "execute-snapshot",
        "data": json.dumps(_EXECUTE),
        "database": None,
    }
    found: list[Path] = []

    def act() -> None:
        if not found:
            found.append(write_request(root, content, SNAPSHOTS))
        follow_requests(RequestFolder(found[0].parent), control)
        if not found[0].with_suffix(".answer").exists():
            raise OSError("no answer")

    def check() -> None:
        assert control.taken == ["it"]
        assert json.loads(found[0].with_suffix(".answer").read_bytes())["is_taken"]

    return act, check
