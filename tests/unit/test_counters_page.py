"""The reader of the page of counters, on what is none."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from counter_pages import BOUNDS, counters_page

from firebird_cdc.journal.folder.counters import (
    TIMINGS,
    ConfirmerCounts,
    Counters,
    DatabaseCounters,
    read_counters,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / ".firebird-cdc").mkdir()
    return tmp_path / ".firebird-cdc" / "counters"


def test_counters_and_times_are_read_by_database(place: Path) -> None:
    place.write_bytes(counters_page("/a.fdb", "/b.fdb"))
    times = ConfirmerCounts(place.parent)
    times.add("/b.fdb", [0.0000005, 0.003, 1000.0])
    times.add("/elsewhere.fdb", [0.1])
    found = read_counters(place.parent.parent)
    assert list(found.databases) == ["/a.fdb", "/b.fdb"]
    counted = found.databases["/b.fdb"]
    assert (counted.captured, counted.bytes) == (1, 8)
    confirm = counted.timings["confirm"]
    assert confirm.bounds_s == tuple(ns / 1e9 for ns in BOUNDS)
    assert (confirm.counts[0], confirm.counts[-1], confirm.count) == (1, 1, 3)
    assert confirm.sum_s == pytest.approx(1000.0030005)
    assert not any(counted.timings[name].count for name in TIMINGS if name != "confirm")
    assert set(counted.timings) == set(DatabaseCounters(timings=counted.timings).timings)


def test_malformed_counters_page_reads_as_empty(place: Path) -> None:
    folder = place.parent.parent
    times = ConfirmerCounts(place.parent)
    assert read_counters(folder) == Counters()
    good = counters_page("/a.fdb")
    seed = random.Random(6)
    garbage = [
        b"",
        good[:100],
        good[:-2000],
        good[:8] + b"\2" + good[9:],
        good[:17] + b"\0" + good[18:],
        good[:28] + b"\xff" + good[29:],
        good[:40] + bytes(8) + good[48:],
        *(seed.randbytes(65536) for _ in range(3)),
        *(good[:8] + seed.randbytes(24) + good[32:] for _ in range(50)),
    ]
    for content in garbage:
        place.write_bytes(content)
        assert read_counters(folder) == Counters()
        times.add("/a.fdb", [1.0])
        assert place.read_bytes() == bytes(content)
    place.unlink()
    place.mkdir()
    assert read_counters(folder) == Counters()
    place.rmdir()
    os.mkfifo(place)
    assert read_counters(folder) == Counters()
    place.unlink()
    place.symlink_to("/etc/passwd")
    assert read_counters(folder) == Counters()
    times.add("/a.fdb", [1.0])
