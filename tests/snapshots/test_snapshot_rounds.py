"""Rounds of snapshots with kills: consumers have what the databases have, and nothing twice."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from soaked import few_of

_TESTS = Path(__file__).parents[1]
sys.path[1:1] = [str(_TESTS / room) for room in ("delivery", "faults")]

from rounds import Eye, Nursery  # noqa: E402
from snapshot_rounds import Plan, Round, run_rounds  # noqa: E402
from snapshot_sites import Sites  # noqa: E402

from firebird_cdc.demo.kafka import KafkaBroker  # noqa: E402
from firebird_cdc.demo.processes import Stack  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.kafka]


def test_kills_of_all_that_takes_part_in_snapshots_cause_no_fault(
    tmp_path: Path, own_broker: KafkaBroker
) -> None:
    places = ("classic", "super-ddl", "classic-ddl", "super")
    rounds = tmp_path / "rounds"
    tally = run_rounds(rounds, own_broker, "ci", 6, places=places, weather_pause_s=12.0)
    print(tally)
    assert not tally.faults, str(tally)
    assert tally.rows
    assert tally.kills


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Yield a nursery that brings up shippers that take snapshots."""
    made = Nursery("snapshot_steps")
    yield made
    made.close()


# What the comparison has to object to, where a shipper has such a fault.
_PLANTED = {
    "send_twice": ("classic", "incremental", "rows"),
    "send_nothing": ("super", "incremental", ""),
    "send_late": ("classic", "blocking", "behind newer events"),
    "leave_out": ("super", "incremental", "changes add up to"),
}


@pytest.mark.parametrize("fault", few_of([*_PLANTED], ["send_twice"]))
def test_a_planted_fault_is_noticed(
    fault: str, tmp_path: Path, broker: KafkaBroker, stack: Stack, nursery: Nursery
) -> None:
    place, kind, words = _PLANTED[fault]
    # Changes have to come while rows are read.
    rows = 10_000 if fault == "send_late" else 2000
    plan = Plan(
        fault, random.Random(fault), transactional=True, kind=kind, points=[], place=place,
        fault=fault, rows=rows, many_windows=True, signals=False,
    )  # fmt: skip
    eye = Eye(broker.bootstrap)
    try:
        with Sites(stack).site(plan.site, tmp_path / "round") as site:
            found = Round(plan, site, broker.bootstrap).run(nursery, eye)
    finally:
        eye.close()
    assert any(words in each for each in found), (found, plan)
