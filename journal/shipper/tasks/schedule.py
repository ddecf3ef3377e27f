"""Periodic tasks of the shipping thread, beside shipping: heartbeats, canaries, a status file.

``build_tasks`` is the one place that knows which of them a configuration asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import logbook

from firebird_cdc.config import ConnectorConfig
from firebird_cdc.journal.folder.disk_usage import DiskLimits
from firebird_cdc.journal.folder.subjects import TASK
from firebird_cdc.journal.shipper.control import RetryControl
from firebird_cdc.journal.shipper.delivery.base import Delivery
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.nameless import NamelessWatch
from firebird_cdc.journal.shipper.tasks.archive import ArchiveKeeper, Retention
from firebird_cdc.journal.shipper.tasks.canary import Canary
from firebird_cdc.journal.shipper.tasks.disk import DiskWatch
from firebird_cdc.journal.shipper.tasks.failures import FailureWatch
from firebird_cdc.journal.shipper.tasks.heartbeat import Heartbeat
from firebird_cdc.journal.shipper.tasks.service_manager import ServiceNotices
from firebird_cdc.journal.shipper.tasks.watches import (
    ConfirmerWatch,
    DoubtWatch,
    LogWatch,
    ProcessWatch,
)

_log = logbook.Logger("firebird_cdc.journal.shipper.tasks.schedule")

LEAST_PAUSE_S = 1.0
"""A periodic task is not called more often, whatever it asks for."""


class PeriodicTask(Protocol):
    """Periodic task on the shipping thread, which waits meanwhile.

    So a call takes a few milliseconds at most; what takes longer runs on a thread of the
    task's own.
    """

    def turn(self, now: float) -> float:
        """Do what is due at NOW (monotonic); return when to be called again."""
        ...

    def close(self) -> None:
        """The shipper ends: give everything back, and wait for nothing long."""
        ...


def build_tasks(
    config: ConnectorConfig, delivery: Delivery, statistics: Statistics, *, once: bool = False
) -> list[PeriodicTask]:
    """Return the periodic tasks that CONFIG asks for; ONCE: of a shipper that only sends what is
    there."""
    limits = DiskLimits.of(config)
    tasks: list[PeriodicTask] = [
        DiskWatch(config.journal_directory, limits, statistics),
        ConfirmerWatch(config.journal_directory, statistics),
        DoubtWatch(config.journal_directory, statistics),
        ProcessWatch(config.journal_directory, statistics),
        LogWatch(config.journal_directory, statistics),
        NamelessWatch(config.journal_directory, statistics),
        FailureWatch(config.journal_directory, config.path, statistics),
        RetryControl(config.journal_directory, delivery),
        ServiceNotices(),
    ]
    archive = config.journal_archive_directory
    if archive is not None:
        retention = Retention(
            config.journal_archive_retention_ms, config.journal_archive_retention_bytes
        )
        segment_bytes = config.journal_archive_segment_bytes
        tasks.append(ArchiveKeeper(archive, segment_bytes, retention, statistics))
    if once:
        return tasks
    if config.heartbeat_interval_ms:
        tasks.append(Heartbeat(config, delivery))
    canaries = [
        Canary(config, table, statistics, partial(_waiting, delivery, table.database))
        for table in config.canary_tables
    ]
    delivery.plan.renderer.canaries = {
        # Journals have the path without links.
        str(Path(canary.table.database).resolve()): canary
        for canary in canaries
    }
    return [*tasks, *canaries]


def _waiting(delivery: Delivery, database: str) -> int:
    """Return the number of journals of DATABASE that wait or are on their way."""
    database = str(Path(database).resolve())
    if queue := delivery.queues.get(database):
        return queue.pending
    return len(delivery.backlog.queues.get(database, ()))


class TaskList:
    """Calls each periodic task when it is due. An error of one ends neither it nor the shipper: it
    is logged once, told as long as it lasts, and the task is called again later."""

    def __init__(self, tasks: Sequence[PeriodicTask], statistics: Statistics) -> None:
        self._tasks = tasks
        self._statistics = statistics
        self._due = [0.0] * len(tasks)
        self._troubles = [""] * len(tasks)
        self.next_at = 0.0 if tasks else float("inf")

    def turn(self, now: float) -> None:
        """Call those that are due at NOW (monotonic); ``next_at`` tells when others will be."""
        if now < self.next_at:
            return
        for index, task in enumerate(self._tasks):
            if now >= self._due[index]:
                self._due[index] = max(self._call(index, task, now), now + LEAST_PAUSE_S)
        self.next_at = min(self._due, default=float("inf"))

    def _call(self, index: int, task: PeriodicTask, now: float) -> float:
        name = type(task).__name__
        try:
            due = task.turn(now)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._troubles[index]:
                _log.exception("{} failed and is tried again", name)
            self._troubles[index] = trouble
            text = f"{name} fails and is tried again, so it looks after nothing: {trouble}"
            self._statistics.trouble(TASK + name, "warning", text)
            return now
        if self._troubles[index]:
            self._troubles[index] = ""
            self._statistics.clear(TASK + name)
        return due

    def close(self) -> None:
        """Have all of them end, whatever one of them raises."""
        for task in self._tasks:
            try:
                task.close()
            except Exception:
                _log.exception("{} failed to end", type(task).__name__)
