"""Messages of a replay about the progress of Spark."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from firebird_cdc.journal.replay.cluster import progress
from firebird_cdc.journal.replay.cluster.progress import (
    Progress,
    StageProgress,
    add_up,
    describe,
    doing,
    pause,
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Spark:
    """Stands for a session: one stage of four tasks that gets on with each look."""

    def __init__(self, fails: bool = False) -> None:
        self.sparkContext: Any = self
        self.described: list[str | None] = []
        self.looks = 0
        self.looked = threading.Event()
        self._fails = fails

    def statusTracker(self) -> _Spark:
        return self

    def getActiveStageIds(self) -> list[int]:
        self.looks += 1
        if self.looks >= 4:
            self.looked.set()
        if self._fails:
            self.looked.set()
            raise ConnectionRefusedError
        return [7, 8]

    def getStageInfo(self, number: int) -> Any:
        if number == 8:
            return None  # forgotten meanwhile
        done = min(self.looks, 2)
        return SimpleNamespace(
            numTasks=4, numActiveTasks=1, numCompletedTasks=done, numFailedTasks=0
        )

    def getLocalProperty(self, _: str) -> str | None:
        return self.described[-1] if self.described else None

    def setLocalProperty(self, _: str, value: str | None) -> None:
        self.described.append(value)

    def setJobDescription(self, value: str) -> None:
        self.described.append(value)


def _follow(spark: _Spark, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(progress, "_DRAW_S", 0.001)
    monkeypatch.setattr(progress, "_FIRST_LINE_S", 0.001)
    with doing(spark, "reading"), Progress(spark, "replay audit", stream):
        assert spark.looked.wait(20)
    return stream.getvalue()


def test_progress_lines_are_printed_only_on_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _follow(_Spark(), io.StringIO(), monkeypatch).splitlines()
    assert 1 <= len(lines) <= 2 + 2, (
        "of four looks two were alike; what is being done may begin late"
    )
    assert lines[-1].startswith("replay audit: reading: 2 of 4 tasks done, 1 running, 0:0")


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _follow(_Spark(), _Terminal(), monkeypatch)
    assert "\n" not in drawn
    assert "\r" in drawn
    assert drawn.endswith("\r\x1b[K")


def test_spark_failure_ends_only_the_progress_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _follow(_Spark(fails=True), io.StringIO(), monkeypatch) == ""
    with pytest.raises(ValueError, match="its own"), Progress(_Spark(fails=True), "x"):
        raise ValueError("its own")


def test_descriptions_of_jobs_nest() -> None:
    spark = _Spark()
    with doing(spark, "outer"), doing(spark, "inner"):
        pass
    assert spark.described == ["outer", "inner", "outer", None]


def test_progress_is_told_in_words_and_more_rarely_with_time() -> None:
    assert add_up([None]) is None
    told = describe("x", StageProgress(1, 2, 3, 9), 75.9)
    assert told == "x: 1 of 9 tasks done, 2 running, 3 failed and tried again, 1:15 min"
    assert [pause(seconds) for seconds in (0, 200, 9999)] == [5.0, 10.0, 60.0]


class _Faulty(_Spark):
    def getActiveStageIds(self) -> list[int]:
        self.looked.set()
        raise IndexError


def test_own_fault_in_the_progress_output_is_not_taken_for_a_lost_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda seen: raised.append(seen.exc_type))
    _follow(_Faulty(), _Terminal(), monkeypatch)
    assert raised == [IndexError]
