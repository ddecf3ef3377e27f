"""Reader processes of one database: one that opens windows, and those that have part in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from firebird_cdc.journal.shipper.snapshots.reader_process import END_S, ReaderProcess
from firebird_cdc.journal.snapshot.worker import Setup


class Readers:
    """COUNT reader processes, by their numbers from 0; the first one opens windows.

    ``wake``: see `ReaderProcess`. Raises OSError if one can't be started.
    """

    def __init__(self, setup: Setup, wake: Callable[[], object], count: int) -> None:
        self._processes: list[ReaderProcess] = []
        try:
            for _ in range(count):
                self._processes.append(ReaderProcess(setup, wake))
        except OSError:
            self.leave()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def are_awaited(self) -> bool:
        """Tell whether answers are still to come."""
        return any(each.awaited for each in self._processes)

    def is_awaited(self, number: int) -> bool:
        """Tell whether answers of the reader NUMBER are still to come."""
        return self._processes[number].awaited > 0

    def ask(self, number: int, question: Mapping[str, Any]) -> None:
        """Have QUESTION answered by the reader NUMBER, after those before it."""
        self._processes[number].ask(question)

    def ask_all(self, question: Mapping[str, Any], *, first: int = 0) -> None:
        """Have QUESTION answered by each reader from number FIRST on."""
        for each in self._processes[first:]:
            each.ask(question)

    def take(self) -> tuple[int, dict[str, Any]] | None:
        """Return an answer and the number of the reader, None if none is there yet."""
        for number, each in enumerate(self._processes):
            if (answer := each.take()) is not None:
                return number, answer
        return None

    def leave(self) -> None:
        """Let the processes leave the database by themselves, and wait for them elsewhere."""
        for each in self._processes:
            each.leave()

    def close(self) -> None:
        """Let the processes leave the database by themselves, but not wait for them long."""
        for each in self._processes:
            each.dismiss()
        end = monotonic() + END_S
        for each in self._processes:
            each.close(max(end - monotonic(), 0))
