"""Requests of ``firebird-cdc snapshot``, as the shipper finds them in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from firebird_cdc.journal.shipper.snapshots.intake import RequestFolder
from firebird_cdc.journal.shipper.snapshots.state import Snapshot


class _Control:
    """Takes note of what is asked for."""

    databases = ("/srv/shop.fdb",)

    def __init__(self) -> None:
        self.paused: list[bool] = []

    def request(self, database: str, snapshot: Snapshot) -> bool:
        raise AssertionError(f"{database}: {snapshot}")

    def stop(self, database: str, collections: tuple[str, ...] | None) -> int:
        raise AssertionError(f"{database}: {collections}")

    def pause(self, database: str, *, is_paused: bool) -> None:
        assert database == self.databases[0]
        self.paused.append(is_paused)

    def position(self, database: str) -> str:
        raise AssertionError(database)

    def refuse(self, id: str, type: str, channel: str, why: str) -> None:
        raise AssertionError((id, type, channel, why))


def test_requests_that_waited_are_followed_in_the_order_in_which_they_were_made(
    tmp_path: Path,
) -> None:
    for number, name in enumerate(("c", "a", "d", "b")):
        path = tmp_path / f"{name}.request"
        kind = "resume-snapshot" if number % 2 else "pause-snapshot"
        content = {"id": name, "type": kind, "data": '{"type": "incremental"}', "database": None}
        path.write_text(json.dumps(content))
        os.utime(path, ns=(0, number))
    control = _Control()
    RequestFolder(tmp_path, control).turn()  # type: ignore[arg-type]
    assert control.paused == [True, False, True, False]
    assert len(list(tmp_path.glob("*.answer"))) == 4
    assert not list(tmp_path.glob("*.request"))
