"""The shipping thread's tasks: called when they are due, and never the shipper's end."""

from __future__ import annotations

import logbook
import pytest

from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.tasks.schedule import TaskList


class _Task:
    """Asks to be called every PAUSE seconds; fails with FAULT while there is one."""

    def __init__(self, pause: float, fault: Exception | None = None) -> None:
        self.pause = pause
        self.fault = fault
        self.calls: list[float] = []
        self.closed = 0

    def turn(self, now: float) -> float:
        self.calls.append(now)
        if self.fault:
            raise self.fault
        return now + self.pause

    def close(self) -> None:
        self.closed += 1
        if self.fault:
            raise self.fault


def _turn(tasks: TaskList, until: float, step: float = 0.25) -> None:
    """Turn the loop every STEP seconds from 0 until UNTIL."""
    for number in range(int(until / step) + 1):
        tasks.turn(number * step)


def test_each_periodic_task_is_called_at_its_requested_time() -> None:
    often, seldom = _Task(2), _Task(5)
    tasks = TaskList([often, seldom], Statistics())
    _turn(tasks, 10)
    assert often.calls == [0, 2, 4, 6, 8, 10]
    assert seldom.calls == [0, 5, 10]
    assert tasks.next_at == 12


def test_no_periodic_task_is_called_more_often_than_once_a_second() -> None:
    eager = _Task(-1)
    _turn(TaskList([eager], Statistics()), 3)
    assert eager.calls == [0, 1, 2, 3]


def test_failing_periodic_task_is_logged_once_told_meanwhile_and_called_again() -> None:
    broken, sound = _Task(1, OSError("no")), _Task(1)
    statistics = Statistics()
    tasks = TaskList([broken, sound], statistics)
    with logbook.TestHandler() as log:
        _turn(tasks, 3)
        assert len(log.records) == 1
        [told] = statistics.troubles.values()
        assert told.kind == "warning" and "_Task fails and is tried again" in told.text
        broken.fault = None
        _turn(tasks, 5)
        assert len(log.records) == 1
        assert not statistics.troubles
    assert len(broken.calls) == len(sound.calls)


@pytest.mark.parametrize("fault", [None, ValueError("no")])
def test_all_periodic_tasks_are_closed(fault: Exception | None) -> None:
    tasks = [_Task(1, fault), _Task(1)]
    with logbook.TestHandler():
        TaskList(tasks, Statistics()).close()
    assert [task.closed for task in tasks] == [1, 1]


def test_without_periodic_tasks_nothing_is_ever_due() -> None:
    tasks = TaskList([], Statistics())
    tasks.turn(5)
    assert tasks.next_at == float("inf")
