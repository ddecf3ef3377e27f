"""The power is cut while the engine is captured; see power_loss.py, which runs as many as asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_loss import run

pytestmark = pytest.mark.engine


def test_without_syncs_a_power_cut_loses_what_was_committed(tmp_path: Path) -> None:
    """What the option connector.journal.fsync: false says of itself; and the cuts can fail."""
    outcomes = run(tmp_path, cuts=4, seed="unsynced", fsync=False, classic=0)
    assert any(outcome.lost for outcome in outcomes)
