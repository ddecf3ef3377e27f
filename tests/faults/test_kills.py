"""kill -9 at random instants and between any two steps: what the journals say is what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Libraries, Plan, Tally, most_hits, random_lives, run_lives
from points import CONFIRMING, RECOVERING, native_points, python_points

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_killed_at_random_in_50_rounds(tmp_path: Path, libraries: Libraries) -> None:
    tally = Tally()
    run_lives(tmp_path, libraries, tally, random_lives("ci", 50, ["Super"]))
    print(tally)
    assert not tally.faults, str(tally)
    assert tally.rounds == 50
    assert tally.transactions > 500


def test_killed_on_each_side_of_every_step(tmp_path: Path, libraries: Libraries) -> None:
    tally = Tally()
    points = native_points() + python_points(CONFIRMING)
    starts = python_points(RECOVERING)

    def lives() -> Iterator[tuple[str, Plan]]:
        for number, point in enumerate(points):
            start = starts[number % len(starts)]
            for attempt in range(3):  # what has to be hit may not have come about
                hit = 1 + number % most_hits(point) if not attempt else 1
                yield "Super", Plan(point=point, hit=hit, recovery_point=start)
                if tally.kills[point] and tally.kills[f"start: {start}"]:
                    break

    run_lives(tmp_path, libraries, tally, lives())
    print(tally)
    assert not tally.faults, str(tally)
    assert set(tally.kills) >= {*points, *(f"start: {each}" for each in starts)}, str(tally)
