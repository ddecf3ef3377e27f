"""Tells on stderr how far a replay is while it runs: a line every few seconds, or one in place.

Nothing depends on it: a Spark or a terminal that is gone ends the telling, and nothing else.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from firebird_cdc.journal.replay.relational import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRAW_S = 0.5  # on a terminal
_FIRST_LINE_S = 5.0
_LONGEST_S = 60.0
_SHARE = 20  # of the time so far passes between two lines, at least
_JOIN_S = 5.0

_doing: list[str] = []  # the innermost last


def when_gone() -> tuple[type[Exception], ...]:
    """Return what PySpark raises once its context was stopped or its Java process is gone."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

    # Parts of a stopped context are None, and asserted not to be.
    return Py4JError, OSError, AttributeError, AssertionError


@contextmanager
def doing(spark: SparkSession, what: str) -> Iterator[None]:
    """Say that the jobs started inside are for WHAT, a few words such as ``comparing topics``.

    Shown by `Progress`, and by Spark's own user interface as the jobs' description.
    """
    if is_local(spark):
        _doing.append(what)
        try:
            yield
        finally:
            _doing.remove(what)
        return
    context: Any = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(what)
    _doing.append(what)
    try:
        yield
    finally:
        _doing.remove(what)
        with suppress(*when_gone()):  # and why it is gone is on its way already
            context.setLocalProperty("spark.job.description", before)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of the stages that run now, in tasks."""

    done: int
    running: int
    failed: int
    tasks: int


class Progress:
    """Tells how far a session is, from a thread of its own; a context manager.

    On a terminal one line is drawn over and over; else lines are written, seldom, and only if
    something has changed. A run of a few seconds writes none.
    """

    def __init__(self, spark: SparkSession, name: str, stream: TextIO | None = None) -> None:
        self._session: Any = spark
        self._name = name
        self._stream = stream if stream is not None else sys.stderr
        self._in_place = self._stream.isatty()
        self._began = monotonic()
        self._drawn = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fbc-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_JOIN_S)

    def _work(self) -> None:
        gone = () if is_local(self._session) else when_gone()
        with suppress(*gone, OSError, ValueError):  # of a stream that is closed
            try:
                if self._in_place:
                    self._draw()
                else:
                    self._write_lines()
            finally:
                self._clear()

    def _draw(self) -> None:
        while not self._stopping.wait(_DRAW_S):
            progress = self.progress()
            if progress is None:
                self._clear()
                continue
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{self._line(progress)[:width]}\x1b[K")
            self._stream.flush()
            self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def _write_lines(self) -> None:
        told: object = None
        while not self._stopping.wait(pause(monotonic() - self._began)):
            progress = self.progress()
            if progress is not None and (progress, _doing[-1:]) != told:
                print(self._line(progress), file=self._stream, flush=True)
                told = progress, _doing[-1:]

    def progress(self) -> StageProgress | None:
        """Return the progress of tasks, None if none runs just now."""
        if is_local(self._session):
            found = self._session.progress()
            return None if found is None else StageProgress(*found)
        tracker = self._session.sparkContext.statusTracker()
        return add_up([tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()])

    def _line(self, progress: StageProgress) -> str:
        what = f"{self._name}: {_doing[-1]}" if _doing else self._name
        return describe(what, progress, monotonic() - self._began)


def pause(elapsed_s: float) -> float:
    """Return the seconds to wait for the next line of a run that has taken ELAPSED_S."""
    return min(max(_FIRST_LINE_S, elapsed_s / _SHARE), _LONGEST_S)


def add_up(stages: list[Any]) -> StageProgress | None:
    """Add up what Spark's status tracker tells of stages; a stage it has forgotten is None."""
    known = [stage for stage in stages if stage is not None]
    if not known:
        return None
    return StageProgress(
        done=sum(stage.numCompletedTasks for stage in known),
        running=sum(stage.numActiveTasks for stage in known),
        failed=sum(stage.numFailedTasks for stage in known),
        tasks=sum(stage.numTasks for stage in known),
    )


def describe(what: str, progress: StageProgress, elapsed_s: float) -> str:
    """Return the line for a progress."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    failed = f", {progress.failed} failed and tried again" if progress.failed else ""
    return (
        f"{what}: {progress.done} of {progress.tasks} tasks done,"
        f" {progress.running} running{failed}, {minutes}:{seconds:02} min"
    )
