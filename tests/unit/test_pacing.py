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


def test_burst_behind_a_slow_sync_is_confirmed_as_soon_as_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now)
    pauses = pacing.Pacing()
    for second in range(100):
        taken_s = 0.04 if second % 30 == 20 else 0.001
        now += taken_s  # 500 commits/s
        waited_s = pauses.after_group(max(1, round(500 * taken_s)), taken_s)
        assert waited_s <= 0.004
        now += waited_s


def test_busy_confirmer_works_for_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now)
    pauses = pacing.Pacing()
    paused_s = taken_s = 0.0
    for _ in range(200):
        pause_s = pauses.after_group(40, 0.002)
        now += pause_s + 0.002
        paused_s, taken_s = paused_s + pause_s, taken_s + 0.002
    assert taken_s < 0.1 * paused_s
    assert pauses.after_group(4, 0.0001) >= pacing.GATHER_S  # others get time to join
    assert pauses.after_group(4000, 0.1) < 0.1  # and nobody waits for long
