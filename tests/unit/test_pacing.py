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
    for _ in range(400):  # half a second and more, after a standstill
        published = int(waiting)
        taken_s = 0.0005 + 0.00005 * published
        pauses.append(pause_after(published, taken_s))
        waiting += per_s * (pauses[-1] + taken_s) - published
        idle_s = max(0.0, 1.0 - waiting) / per_s  # nothing is done before there is one
        waiting += per_s * idle_s
        now += pauses[-1] + taken_s + idle_s
    assert max(pauses[-200:]) < 0.001

    for _ in range(400):
        pauses.append(pause_after(20, 0.002))
        now += 0.010
    assert pauses[-1] == 0.010
    for _ in range(20):
        pauses.append(pause_after(100, 0.01))
        now += 0.090
    assert pauses[-1] == 0.080
