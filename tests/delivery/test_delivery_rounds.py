"""The shipper killed at every step while the broker suffers: each event exactly once, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from rounds import Eye, Nursery, Plan, Round, run_rounds
from soaked import few_of
from weather import WEATHER

from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def eye(broker: KafkaBroker) -> Iterator[Eye]:
    """A reader of the broker that all tests share."""
    made = Eye(broker.bootstrap)
    yield made
    made.close()


def test_shipper_killed_at_every_step_causes_no_delivery_fault(
    tmp_path: Path, own_broker: KafkaBroker
) -> None:
    tally = run_rounds(tmp_path / "rounds", own_broker, "ci", 25, extra=40)
    print(tally)
    assert not tally.faults, str(tally)
    assert not tally.never_fired, str(tally)
    assert tally.rounds["plain"] and tally.rounds["transactional"]
    assert {*tally.weather} == WEATHER
    assert tally.split
    assert 0 < tally.shared < tally.journals


# What the comparison has to object to, where a shipper has such a fault and dies at such a point.
_PLANTED = {
    "no_position": (True, "commit.after", "more than once"),
    "position_aside": (True, "commit.before", "lost"),
    "dispose_first": (True, "commit.before", "lost"),
    "cut": (True, "", "is split"),
    "swap": (True, "", "out of order"),
    "drop": (True, "", "lost"),
    "twice": (True, "", "more than once"),
    "dispose_unanswered": (False, "dispose.after", "lost"),
}


@pytest.mark.parametrize("fault", few_of([*_PLANTED], ["twice", "dispose_first", "cut", "swap"]))
def test_a_planted_fault_is_noticed(
    fault: str, tmp_path: Path, broker: KafkaBroker, nursery: Nursery, eye: Eye
) -> None:
    faults = round_with(fault, tmp_path, broker, nursery, eye)
    assert any(_PLANTED[fault][2] in each for each in faults), faults


@pytest.mark.parametrize("fault", few_of(("swap", "drop", "twice"), ["drop"]))
def test_a_planted_fault_is_noticed_without_transactions(
    fault: str, tmp_path: Path, broker: KafkaBroker, nursery: Nursery, eye: Eye
) -> None:
    faults = round_with(fault, tmp_path, broker, nursery, eye, transactional=False)
    words = "lost" if fault == "drop" else "was due"
    assert any(words in each for each in faults), faults


def test_shipper_killed_among_many_deletions_causes_no_gap(
    tmp_path: Path, broker: KafkaBroker, nursery: Nursery, eye: Eye
) -> None:
    points = [("delete.after", 30), ("delete.before", 45)]
    plan = Plan(
        "many",
        random.Random("many"),
        transactional=False,
        points=points,
        journals=300,
    )
    one = Round(plan, tmp_path / "round", broker.bootstrap)
    assert not one.run(nursery, eye)
    assert one.finding.repeats


def test_journals_resumed_by_a_new_client_keep_the_order_of_their_parts(
    tmp_path: Path, broker: KafkaBroker, nursery: Nursery, eye: Eye
) -> None:
    plan = Plan(
        "parts",
        random.Random("parts"),
        transactional=True,
        faults=("give_up",),
        journals=30,
        split=300,
    )
    one = Round(plan, tmp_path / "round", broker.bootstrap)
    assert not one.run(nursery, eye)
    assert one.finding.split
    assert "amid a journal, as planted" in (tmp_path / "round" / "ship-1.log").read_text("utf-8")


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "tx"])
def test_message_acknowledged_without_an_offset_is_sent_again(
    transactional: bool, tmp_path: Path, broker: KafkaBroker, nursery: Nursery, eye: Eye
) -> None:
    plan = Plan(
        "believed",
        random.Random("believed"),
        transactional=transactional,
        faults=("believe",),
    )
    one = Round(plan, tmp_path / "round", broker.bootstrap)
    faults = one.run(nursery, eye)
    # Without transactions what comes behind it is visible by then, and comes again with it.
    assert not [fault for fault in faults if transactional or "out of order" not in fault]
    log = (tmp_path / "round" / "ship-1.log").read_text("utf-8")
    assert "no broker has said where it is" in log


def round_with(
    fault: str,
    directory: Path,
    broker: KafkaBroker,
    nursery: Nursery,
    eye: Eye,
    *,
    transactional: bool | None = None,
) -> list[str]:
    """Run a round with FAULT in all of its lives; returns what the comparison finds."""
    planned, point, _ = _PLANTED[fault]
    plan = Plan(
        fault,
        random.Random(fault),
        planned if transactional is None else transactional,
        points=[(point, 1)] if point else (),
        faults=(fault,),
        shut_first=fault == "dispose_unanswered",
    )
    one = Round(plan, directory / "round", broker.bootstrap)
    faults = one.run(nursery, eye)
    assert all(fired for _, fired in one.fates), one.fates
    return faults
