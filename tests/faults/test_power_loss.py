"""The power is cut while the engine is captured; see power_loss.py, which runs as many as asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_loss import run

pytestmark = pytest.mark.engine


def test_what_was_committed_is_in_the_journals_after_a_power_cut(tmp_path: Path) -> None:
    """A seeded share; `make soak` runs all."""
    outcomes = run(tmp_path, cuts=25, seed="share", classic=0.4)
    assert len(outcomes) == 25
    assert not [
        f"{outcome.cut}: {outcome.problems[:3]}" for outcome in outcomes if outcome.problems
    ]
    assert sum(outcome.recovered for outcome in outcomes) > 25, "the cuts left nothing to recover"


def test_without_syncs_a_power_cut_loses_what_was_committed(tmp_path: Path) -> None:
    """What the option connector.journal.fsync: false says of itself; and the cuts can fail."""
    outcomes = run(tmp_path, cuts=4, seed="unsynced", fsync=False, classic=0)
    assert any(outcome.lost for outcome in outcomes)
