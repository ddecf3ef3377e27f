"""The power is cut while the engine is captured; see power_loss.py, which runs as many as asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_loss import FORMS, MODES, Outcome, Scene, run
from soaked import few_of, in_turn

pytestmark = pytest.mark.engine

_BOTH = "two processes at the restart"
_JOINED = "processes that joined"
_MOST_RUNS = 4


def _problems(outcomes: list[Outcome]) -> list[str]:
    return [f"{outcome.cut}: {outcome.problems[:3]}" for outcome in outcomes if outcome.problems]


@pytest.mark.parametrize("form", few_of(FORMS, ["shared"]))
def test_committed_transactions_are_in_the_journals_after_a_power_cut(
    tmp_path: Path, form: str
) -> None:
    """A seeded share; `make soak` runs all."""
    outcomes: list[Outcome] = []
    for attempt in range(_MOST_RUNS):  # what waits at a cut depends on how fast the machine is
        home = tmp_path / str(attempt)
        home.mkdir()
        seed = "share" + "+" * attempt
        found = run(home, cuts=12, seed=seed, scenes=[Scene()], forms=[form])
        assert [outcome.mode for outcome in found] == ["Super"] * 12 + ["Classic"] * 12
        assert not _problems(found)
        outcomes += found
        cases = {case for outcome in outcomes for case in outcome.cases}
        recovered = sum(outcome.recovered for outcome in outcomes)
        if _BOTH in cases and recovered > 24:
            break
    assert recovered > 24, "the cuts left nothing to recover"
    assert cases - {_JOINED} == {_BOTH, f"{form} journals"}


@pytest.mark.parametrize("form", few_of(FORMS, ["shared"]))
def test_a_cut_between_the_header_and_the_page_with_the_commit_loses_nothing(
    tmp_path: Path, form: str
) -> None:
    scene = Scene(is_slow=True, is_directed=True)
    within = 0
    for attempt in range(_MOST_RUNS):  # whether there is a window depends on how the writes fall
        home = tmp_path / str(attempt)
        home.mkdir()
        seed = "directed" + "+" * attempt
        outcomes = run(home, cuts=10, seed=seed, modes=["Super"], scenes=[scene], forms=[form])
        assert not _problems(outcomes)
        within += sum("in a window" in outcome.cases for outcome in outcomes)
        if within >= 10:
            break
    assert within >= 10


@in_turn("maker", ["bridge", "shipper"])
@in_turn("form", FORMS)
def test_a_cut_in_a_first_run_loses_nothing_though_no_folder_was_there(
    tmp_path: Path, maker: str, form: str
) -> None:
    scene = Scene(is_slow=True, maker=maker)
    outcomes = run(tmp_path, cuts=8, seed="first", modes=MODES[:1], scenes=[scene], forms=[form])
    assert not _problems(outcomes)


@pytest.mark.soak
def test_power_cut_without_syncs_loses_committed_transactions(tmp_path: Path) -> None:
    """Check the statement of the option connector.journal.fsync: false about itself, and that the
    cuts can fail."""
    for attempt in range(_MOST_RUNS):  # whether one loses anything depends on when it comes
        home = tmp_path / str(attempt)
        home.mkdir()
        seed = "unsynced" + "+" * attempt
        outcomes = run(home, cuts=4, seed=seed, fsync=False, modes=["Super"])
        if any(outcome.lost for outcome in outcomes):
            break
    assert any(outcome.lost for outcome in outcomes)
