"""Reader process of a snapshot, as the shipper sees it: questions go in, answers come out."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from io import BufferedReader
from threading import Thread
from typing import Any

from firebird_cdc.journal.snapshot.pipe import read_object, write_object
from firebird_cdc.journal.snapshot.worker import Setup

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop(1).split(':'); "
    "from firebird_cdc.journal.snapshot.worker import main; main()"
)
END_S = 5.0
"""A process has so long to leave the database by itself. Only then it is killed: where processes
share a database file, one that dies as it wakes another up has that one wait for ever."""

_PIPE_BYTES = 1024 * 1024  # what a process may have without privileges

_SILENT_S = 15.0
"""A process that does not say for so long that it runs is given up. Where processes share a
database file, one that stands still may hold a page that all others need."""

ENDED = "Ended"
"""Kind of failure: there is no process any more."""


class ReaderProcess:
    """A process that reads, and a thread that waits for its answers.

    ``awaited``: answers that are still to come. ``wake``: called, from that thread, when one is
    there or the process has ended. Raises OSError if it can't be started.
    """

    def __init__(self, setup: Setup, wake: Callable[[], object]) -> None:
        self.awaited = 0
        self._wake = wake
        self._answers: deque[dict[str, Any]] = deque()
        self._has_ended = False
        self._is_silent = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, ":".join(filter(None, sys.path))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pipesize=_PIPE_BYTES,
        )
        self._thread = Thread(target=self._listen, name="snapshot reader", daemon=True)
        self._thread.start()
        self._write(setup.dumped())

    def ask(self, question: Mapping[str, Any]) -> None:
        """Have QUESTION answered, after those before it."""
        self.awaited += 1
        self._write(question)

    def take(self) -> dict[str, Any] | None:
        """Return the next answer, None if it is not there yet."""
        if self._answers:
            self.awaited -= 1
            return self._answers.popleft()
        if not (self._has_ended and self.awaited):
            return None
        self.awaited -= 1
        if self._is_silent:
            return {"failed": "the reader process does not answer: it stood still", "kind": ENDED}
        code = self._process.poll()
        return {"failed": f"the reader process has ended (exit status {code})", "kind": ENDED}

    def leave(self) -> None:
        """Let the process leave the database by itself, and wait for it elsewhere."""
        self.dismiss()
        Thread(target=self.close, name="snapshot reader ends", daemon=True).start()

    def close(self, wait_s: float = END_S) -> None:
        """Let the process leave the database by itself, but not wait for it long."""
        self.dismiss()
        self._end(wait_s)
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def dismiss(self) -> None:
        """Let the process leave the database by itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.send_signal(signal.SIGCONT)  # or it can't

    def _end(self, wait_s: float) -> None:
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, content: object) -> None:
        assert self._process.stdin is not None
        # One that has ended, or was dismissed, is told of by its missing answer.
        with contextlib.suppress(BrokenPipeError, ValueError):
            write_object(self._process.stdin, content)

    def _listen(self) -> None:
        # Seen here, not where answers are taken: it may be long until somebody asks again.
        assert isinstance(self._process.stdout, BufferedReader)
        try:
            while True:
                answer = read_object(self._process.stdout.raw, _SILENT_S)
                if answer is not None:
                    self._answers.append(answer)
                    self._wake()
        except TimeoutError:
            self._is_silent = True
            self.dismiss()
        except (EOFError, OSError, ValueError):
            pass
        self._end(END_S)
        self._has_ended = True
        self._wake()
