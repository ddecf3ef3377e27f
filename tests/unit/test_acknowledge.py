"""Files that commands leave for the shipper: their owner, and strange ones among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from firebird_cdc.journal.events.bad_event import BEGIN, OUT_OF_BAND
from firebird_cdc.journal.shipper.local_offsets import Shipped, acknowledge, remembered
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.offset_tracker import OffsetTracker


def test_acknowledgement_by_root_is_readable_by_the_shipper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat()
    given: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        os, "chown", lambda path, uid, gid: given.append((Path(path).name, uid, gid))
    )
    (tmp_path / ".firebird-cdc").mkdir()
    acknowledge(tmp_path, "/srv/a.fdb")
    (request,) = (tmp_path / ".firebird-cdc/shipped").glob("*.acknowledged")
    ids = (owner.st_uid, owner.st_gid)
    assert given == [("shipped", *ids), (f".{request.name}.part", *ids)]


def test_unreadable_acknowledgement_does_not_block_others(tmp_path: Path) -> None:
    memory = Shipped(tmp_path, "positions")
    acknowledge(tmp_path, "/srv/a.fdb")
    (request,) = (tmp_path / ".firebird-cdc/shipped").glob("*.acknowledged")
    request.rename(request.with_name(f"z{request.name}"))
    for name in ("0", "zz"):
        request.with_name(f"{name}{request.name}").write_bytes(b"\xff")
    assert memory.acknowledgements(0.0) == ["/srv/a.fdb"]


def test_gap_noticed_after_an_acknowledgement_stays_reported(
    tmp_path: Path,
) -> None:
    link: Any = None  # nothing is read from Kafka here
    statistics = Statistics()
    offsets = OffsetTracker(tmp_path, "positions", link, statistics)
    offsets.miss("/srv/a.fdb", ((0, 3), (0, 3)))
    acknowledge(tmp_path, "/srv/a.fdb")
    (request,) = (tmp_path / ".firebird-cdc/shipped").glob("*.acknowledged")
    early = request.stat().st_mtime_ns - 60_000_000_000
    os.utime(request, ns=(early, early))
    assert offsets.turn() == ["/srv/a.fdb"]
    assert list(statistics.troubles) == ["missing:/srv/a.fdb"]


def test_notice_is_on_disk_when_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = None  # nothing is read from Kafka here
    statistics = Statistics()
    offsets = OffsetTracker(tmp_path, "positions", link, statistics)
    found: list[list[str]] = []

    def shown(*_: str) -> None:
        found.append([what for memory in remembered(tmp_path) for what in memory.unknown])

    monkeypatch.setattr(statistics, "trouble", shown)
    offsets.miss("/srv/a.fdb", ((0, 3), (0, 3)))
    offsets.leave_out("/srv/b.fdb", [BEGIN])
    missing = "journal 3 (epoch 0) missing in the folder"
    assert found == [[missing], [missing, f"{OUT_OF_BAND[BEGIN]} (1)"]]
