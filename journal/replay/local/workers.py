"""Worker processes, which run what are tasks of Spark elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, NamedTuple, TypeVar

from firebird_cdc.errors import FirebirdCdcError, ReplayError

_Result = TypeVar("_Result")

# Loaded once, in the process that the workers are forked from: a task of a small history takes
# less time than these.
_PRELOADED = [
    "firebird_cdc.journal.replay.local.workers",
    "firebird_cdc.journal.replay.source.readers",
    "firebird_cdc.journal.replay.state.folding",
    "pyarrow.parquet",
]


class _Failed(NamedTuple):
    """Outcome of a task that could not be done: errors of ours need not survive a pickle."""

    sentence: str


def _try(task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return task(*arguments)
    except FirebirdCdcError as error:
        return _Failed(str(error))
    except Exception as error:
        return _Failed(f"a task of this replay stopped: {type(error).__name__}: {error}")


def _begin() -> None:
    """Prepare a worker process."""
    # Of an interrupt the process that has started it makes an end in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _program_unnamed() -> Iterator[None]:
    """Spare worker processes that start meanwhile the loading of the program that starts them: no
    task is a part of it, and of a script it would be another run."""
    main = sys.modules["__main__"]
    before = {name: vars(main).get(name) for name in ("__spec__", "__file__")}
    vars(main).update(dict.fromkeys(before))
    try:
        yield
    finally:
        vars(main).update(before)


class Workers:
    """As many worker processes as this one may use cores, from the first task on that has company.

    ``done``, ``tasks``: of what runs now.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self.number = len(os.sched_getaffinity(0))
        self.done = self.tasks = 0

    def run(self, task: Callable[..., _Result], each: Sequence[tuple[Any, ...]]) -> list[_Result]:
        """Return what TASK returns for the arguments in EACH, in their order.

        All have to be what pickle takes. Raises ReplayError if a task fails, or its process ends.
        """
        self.done, self.tasks = 0, len(each)
        try:
            if len(each) == 1:
                return [_checked(_try(task, each[0]))]
            return list(self._spread(task, each))
        finally:
            self.done = self.tasks = 0

    def _spread(
        self, task: Callable[..., _Result], each: Sequence[tuple[Any, ...]]
    ) -> Iterator[_Result]:
        if self._pool is None:
            # Not a fork of this process, which has threads.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(_PRELOADED)
            self._pool = ProcessPoolExecutor(self.number, context, _begin)
        futures: list[Future[Any]] = []
        try:
            with _program_unnamed():
                futures += [self._pool.submit(_try, task, arguments) for arguments in each]
            for future in as_completed(futures):
                _checked(future.result())
                self.done += 1
        except BrokenProcessPool as error:
            raise ReplayError(
                "a worker process of this replay was killed, so its result is not complete: see the"
                " system's log for why (memory?), and run it again"
            ) from error
        finally:
            for future in futures:
                future.cancel()
        return (future.result() for future in futures)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _checked(outcome: Any) -> Any:
    if isinstance(outcome, _Failed):
        raise ReplayError(outcome.sentence)
    return outcome
