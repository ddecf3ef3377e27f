"""Canaries: rows that the shipper writes, and that have to come out of the journals in time.

Nothing else notices an engine that captures nothing without a word: a publication switched off, a
plugin that is not loaded, a table left out. A write that fails is another matter, of the database.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import logbook

from firebird_cdc.clock import now_us
from firebird_cdc.config import ConnectorConfig
from firebird_cdc.config.attachment import CanaryTable, find_client_library
from firebird_cdc.errors import ConfigError
from firebird_cdc.journal.folder.subjects import CANARY
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics

_log = logbook.Logger("firebird_cdc.journal.shipper.tasks.canary")

_LOOK_S = 1.0  # while a write or its journal is awaited
_LOOKED_MOST_S = 5.0  # from one look to the next; in what is more, nobody could have seen a journal
_WRITE_S = 30.0  # longer no write may take; the process that does it ends itself then
_GRACE_S = 5.0  # beyond that
_CLOCK_US = 1_000_000  # by how much times of commits may differ between processes
_SEEN_KEPT = 64
_AWAITED_KEPT = 16
_REMIND_US = 60_000_000

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop(1).split(':'); "
    "from firebird_cdc.journal.shipper.tasks.canary_write import main; main()"
)


@dataclass(frozen=True, slots=True)
class _Write:
    """A write that is committed and awaited; ``deadline``: after so many seconds of watching it
    becomes an alarm."""

    transaction: int
    began_us: int
    written_us: int
    deadline: float


class Canary:
    """One canary table; a periodic task of the shipping thread, and the watch of its database.

    ``waiting``: how many journals of the database wait to be shipped.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        table: CanaryTable,
        statistics: Statistics,
        waiting: Callable[[], int],
    ) -> None:
        self.table = table
        self._attachment = config.attachment
        self._library = client_library(config)
        self._interval_s = config.canary_interval_ms / 1000
        self._timeout_s = config.canary_timeout_ms / 1000
        self._statistics = statistics
        self._figures = statistics.canary(table.identifier, table.database)
        self._subject = CANARY + table.identifier
        self._waiting = waiting
        self._process: subprocess.Popen[str] | None = None
        self._kill_at = 0.0
        self._turned_at: float | None = None
        self._watched_s = 0.0
        self._next_write = 0.0
        self._awaited: OrderedDict[int, _Write] = OrderedDict()
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._reached_us = 0
        self._alarm: tuple[int, int] | None = None  # the write, and when that was said
        self._unwritable = ""

    # What the journals say

    def reached(self, commit_us: int, /) -> None:
        """A journal is being read that was committed then."""
        self._reached_us = max(self._reached_us, commit_us)

    def saw(self, table: str, transaction: int, /) -> None:
        """It has a change of TABLE."""
        if table == self.table.table and transaction not in self._seen:
            self._seen[transaction] = now_us()
            while len(self._seen) > _SEEN_KEPT:
                self._seen.popitem(last=False)

    # The task

    def turn(self, now: float) -> float:
        """Write when it is time, and look for what was written; return when to be called again."""
        # Not the time of day, which may be set, nor that in which the shipper itself stood still.
        since_s = 0.0 if self._turned_at is None else max(now - self._turned_at, 0.0)
        self._turned_at = now
        self._watched_s += min(since_s, _LOOKED_MOST_S)
        if self._process is not None:
            self._look_at_process(now)
        self._look_for_writes()
        if self._process is None and not self._undecided and now >= self._next_write:
            self._next_write = now + self._interval_s
            self._begin(now)
        busy = self._process is not None or bool(self._awaited)
        return now + _LOOK_S if busy else self._next_write

    def close(self) -> None:
        """Let a write that is under way come to its end by itself, but not wait for it long."""
        if self._process is not None:
            with self._process as process:
                try:
                    process.wait(_LOOK_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    @property
    def _undecided(self) -> bool:
        """Tell whether a write may still come out of the journals in time."""
        return any(
            self._alarm is None or transaction > self._alarm[0] for transaction in self._awaited
        )

    # Writing

    def _begin(self, now: float) -> None:
        try:
            password = self._attachment.password()
        except ConfigError as error:
            self._tell_unwritable(str(error))
            return
        request = {
            "library": self._library,
            "target": self._attachment.target(self.table.database),
            "table": self.table.quoted,
            "user": self._attachment.user,
            "password": password,
            "statements": self._attachment.statements,
            "timeout_s": _WRITE_S,
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, ":".join(filter(None, sys.path))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert self._process.stdin is not None
            # Who has ended without reading it is told of like any that says nothing.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as requests:
                json.dump(request, requests)  # far less than a pipe holds
        except OSError as error:
            self._tell_unwritable(f"the process that writes can't be started: {error}")
        self._kill_at = now + _WRITE_S + _GRACE_S

    def _look_at_process(self, now: float) -> None:
        process = self._process
        assert process is not None
        if process.poll() is None:
            if now >= self._kill_at:
                process.kill()
            return
        self._process = None
        assert process.stdout is not None
        with process.stdout as answers:
            answer = answers.read()
        self._take(_parsed(answer, process.returncode))

    def _take(self, answer: dict[str, Any]) -> None:
        """Deal with what the writing process says."""
        if "error" in answer:
            self._tell_unwritable(str(answer["error"]))
            return
        if self._unwritable:
            self._unwritable = ""
            self._figures.unwritable = False
            _log.notice("{}: the canary can be written again", self.table.identifier)
            if self._alarm is None:
                self._statistics.clear(self._subject)
        written_us = int(answer["written_us"])
        self._awaited[int(answer["transaction"])] = _Write(
            int(answer["transaction"]),
            int(answer["began_us"]),
            written_us,
            self._watched_s + self._timeout_s,
        )
        while len(self._awaited) > _AWAITED_KEPT:
            self._awaited.popitem(last=False)

    def _tell_unwritable(self, why: str) -> None:
        """The write failed, so it tells nothing about capture."""
        if why != self._unwritable:
            _log.warning(
                "{}: the canary can't be written, so nothing tells now whether changes are"
                " captured: {}",
                self.table.identifier,
                why,
            )
        self._unwritable = why
        self._figures.unwritable = True
        if self._alarm is None:
            self._note_unwritable()

    def _note_unwritable(self) -> None:
        text = f"the canary can't be written: {self._unwritable}"
        self._statistics.trouble(self._subject, "warning", text)

    # Looking

    def _look_for_writes(self) -> None:
        """Find writes that have come out, and those that should have."""
        for write in list(self._awaited.values()):
            seen_us = self._seen.get(write.transaction)
            if seen_us is not None:
                self._came_out(write, seen_us)
        overdue = [write for write in self._awaited.values() if self._watched_s >= write.deadline]
        if overdue and self._should_be_out(overdue[-1]):
            self._raise_alarm(overdue[-1])

    def _should_be_out(self, write: _Write) -> bool:
        """Tell whether WRITE is not just behind other journals that wait for Kafka."""
        return self._reached_us > write.written_us + _CLOCK_US or self._waiting() == 0

    def _came_out(self, write: _Write, seen_us: int) -> None:
        # Journals come in the order of commits: what was written before won't come any more.
        for transaction in list(self._awaited):
            del self._awaited[transaction]
            if transaction == write.transaction:
                break
        if not self._figures.seen_us:
            _log.info("{}: the canary's writes arrive in the journals", self.table.identifier)
        self._figures.seen_us = seen_us
        self._figures.latency_ms = max(seen_us - write.began_us, 0) / 1000
        if self._alarm is not None:
            self._alarm = None
            self._figures.missing = False
            _log.notice(
                "{}: the canary's writes arrive in the journals again",
                self.table.identifier,
            )
        if self._unwritable:
            self._note_unwritable()
        else:
            self._statistics.clear(self._subject)

    def _raise_alarm(self, write: _Write) -> None:
        """WRITE is not in the journals, though it should be."""
        now = now_us()
        told = self._alarm
        if told is not None and (told[0] == write.transaction or now < told[1] + _REMIND_US):
            self._alarm = (write.transaction, told[1])
            return
        self._alarm = (write.transaction, now)
        self._figures.missing = True
        when = datetime.fromtimestamp(write.written_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
        text = (
            f"the canary's write of {when} UTC (transaction {write.transaction}) did not arrive in"
            f" the journals within {self._timeout_s:.0f} s: CHANGES OF THIS DATABASE ARE PROBABLY"
            " NOT CAPTURED. Look whether its publication is on and has the table, and into"
            f" replication.log; firebird-cdc check --database {self.table.database} looks for the"
            " cause"
        )
        _log.error("{}: {}", self.table.identifier, text)
        self._statistics.trouble(self._subject, "halted", text)


def _parsed(answer: str, code: int) -> dict[str, Any]:
    """Return the answer of the writing process, or an error which says that it gave none."""
    try:
        parsed: dict[str, Any] = json.loads(answer)
    except ValueError:
        ended = f"it took longer than {_WRITE_S:.0f} s" if code < 0 else f"exit code {code}"
        return {"error": f"the process that writes said nothing: {ended}"}
    return parsed


def client_library(config: ConnectorConfig) -> str | None:
    """Firebird's client library, None to have the driver look for it."""
    if config.attachment.client_library is not None:
        return str(config.attachment.client_library)
    # The configuration is in the server's folder, unless the user put it elsewhere.
    roots = [config.path.resolve().parent]
    if root := os.environ.get("FIREBIRD"):
        roots.insert(0, Path(root))
    return find_client_library(*roots)
