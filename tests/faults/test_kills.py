"""kill -9 at random instants and between any two steps: what the journals say is what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Libraries, Plan, Tally, most_hits, random_lives, run_lives
from points import CONFIRMING, RECOVERING, python_points, work_points
from soaked import few_of

pytestmark = pytest.mark.engine

_ROUNDS = 20


def test_kills_at_random_lose_and_invent_nothing_in_20_rounds(
    tmp_path: Path, libraries: Libraries
) -> None:
    tally = Tally()

    def lives() -> Iterator[tuple[str, Plan]]:
        for life in random_lives("ci", 4 * _ROUNDS):
            # How much is committed until a kill depends on how fast the machine is.
            if tally.rounds >= _ROUNDS and tally.transactions > tally.rounds:
                return
            yield life

    run_lives(tmp_path, libraries, tally, lives())
    print(tally)
    assert not tally.faults, str(tally)
    assert tally.rounds >= _ROUNDS
    assert tally.transactions > tally.rounds


@pytest.mark.parametrize("form", few_of(["own", "shared"], ["shared"]))
def test_kill_on_each_side_of_every_step_loses_and_invents_nothing(
    tmp_path: Path, libraries: Libraries, form: str
) -> None:
    tally = Tally()
    # The second kill is in the recovery from the first one: in a server, then in a shipper, which
    # writes no journals of its own.
    if form == "own":
        work = [point for point in work_points() if not point.startswith(("shared.", "void."))]
        starts, confirming = python_points(RECOVERING), python_points(CONFIRMING)
    else:
        # No transaction of the workload that is small enough is prepared and then rolled back:
        # tests/engine/test_rollbacks.py has some, whose savepoints do not add up.
        work = [point for point in work_points() if point.startswith("shared.")]
        work += python_points(CONFIRMING)
        starts, confirming = python_points({"scan": RECOVERING["scan"]}), []
    again = [("start", point) for point in starts]
    again += [("shipper", point) for point in starts if not point.startswith("mark_owner")]
    again += [("shipper", point) for point in confirming]

    def lives() -> Iterator[tuple[str, Plan]]:
        for number in range(max(len(work), len(again))):
            point = first = work[number % len(work)]
            process, second = again[number % len(again)]
            hit = 1 + number % most_hits(point)
            for _ in range(8):  # what has to be hit may not have come about
                yield (
                    "Super",
                    Plan(
                        point=point,
                        hit=hit,
                        recovery_point=second,
                        by_shipper=process == "shipper",
                    ),
                )
                if not tally.kills[first]:
                    hit = 1
                elif not tally.kills[f"{process}: {second}"]:
                    point, hit = "publish.before", 1  # so there is something to be published
                else:
                    break

    run_lives(tmp_path, libraries, tally, lives(), shares=form == "shared")
    print(tally)
    assert not tally.faults, str(tally)
    wanted = {*work, *(": ".join(each) for each in again)}
    assert set(tally.kills) >= wanted, f"never: {wanted - set(tally.kills)}"
