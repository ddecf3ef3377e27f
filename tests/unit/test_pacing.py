"""Pauses of the confirmer between groups, by a clock that is played."""

from __future__ import annotations

import time

import pytest

from firebird_cdc.bridge.confirm import pacing


def test_backlog_is_worked_off_in_ever_shorter_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now)
    pauses_of = pacing.Pacing()

    def pause_after(published: int, taken_s: float) -> float:
        return pauses_of.after_group(published, taken_s)

    per_s, waiting = 500, 60.0
    pauses: list[float] = []
    for _ in range(400):  # one second and more, after a standstill
        pauses.append(pause_after(round(waiting), 0.0005 + 0.00005 * waiting))
        passed = pauses[-1] + 0.0005 + 0.00005 * waiting
        now += passed
        waiting = max(1.0, per_s * passed)
    assert max(pauses[20:]) < 0.001

    for _ in range(400):
        pauses.append(pause_after(20, 0.002))
        now += 0.010
    assert pauses[-1] == 0.010
    for _ in range(20):
        pauses.append(pause_after(100, 0.01))
        now += 0.090
    assert pauses[-1] == 0.080
