"""The end of a shipper: how long it may still wait for Kafka, and what happens if it takes longer.

Journals are safe whenever a shipper ends: what Kafka has not acknowledged stays in its journal, and
the next shipper's first act ends what this one left open. So an end waits for Kafka only while that
answers, and has a limit (``kafka.producer.close.timeout.ms``) that holds for the whole process,
whatever stands in its way: its service manager, and with an embedded shipper that of the database
server, waits as long.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from math import inf
from time import monotonic
from typing import NoReturn

import logbook

_log = logbook.Logger("firebird_cdc.journal.shipper.ending")

SILENT_S = 2.0
"""Without any acknowledgement for so long, an end waits for no more of them."""

LEAST_S = 1.0
"""The least that a process is given for its end, however small the limit: to end its threads and to
write what it knows."""

_CLEANING_SHARE = 0.25  # of the limit is kept for letting go of everything, but
_CLEANING_MOST_S = 2.0
_CLEANING_LEAST_S = 0.4
_KAFKA_LAST_S = 2.0  # for the last word to Kafka, at most
_LOG_S = 0.2  # for a line in the log when there is no time any more
_WAKE = b"\0"  # no signal has that number


class Ending:
    """Decides when the orderly end of one shipper is over.

    ``asked``: how often somebody has told it to end; ``has_begun_as_asked``: and the time for that
    runs. ``why``: why it does not wait any more for what is under way, empty while it does.
    ``last_resort``: sees to it that the process is gone in time; None where others work in it.
    """

    def __init__(self, limit_s: float, last_resort: LastResort | None = None) -> None:
        self.asked = 0
        self.has_begun_as_asked = False
        self.why = ""
        self.last_resort = last_resort
        self._limit_s = limit_s
        self._asked_at = 0.0
        self._ends_at: float | None = None
        self._gone_at = 0.0
        self._heard_at = 0.0
        self._acknowledged = 0

    def ask(self) -> None:
        """Note that somebody wants the end; safe in a signal handler."""
        if not self.asked:
            self._asked_at = monotonic()
        self.asked += 1

    @property
    def has_begun(self) -> bool:
        """Tell whether the time for the end runs."""
        return self._ends_at is not None

    def begin(self, under_way: int, acknowledged: int) -> None:
        """Let the time run, from when it was asked for or from now; UNDER_WAY: journals, and
        ACKNOWLEDGED: messages so far."""
        now = monotonic()
        begun = self._asked_at if self.asked else now
        spare = min(self._limit_s * _CLEANING_SHARE, _CLEANING_MOST_S)
        self._ends_at = begun + self._limit_s - spare
        self._gone_at = begun + max(self._limit_s, LEAST_S)
        self._heard_at, self._acknowledged = now, acknowledged
        if self.asked:
            self.has_begun_as_asked = True
            self._arm()
        _log.info(
            "stopping: {} transactions under way; at most {:g} s, and less if Kafka acknowledges"
            " nothing for {:g} s",
            under_way,
            max(self._limit_s, LEAST_S),
            SILENT_S,
        )

    def call_off(self) -> None:
        """There is no reason any more: a server has come back."""
        self._ends_at = None

    def is_over(self, acknowledged: int, *, is_busy: bool) -> bool:
        """Return whether the shipper has to leave what is under way, ACKNOWLEDGED messages being
        answered by now; IS_BUSY: it has to do something else first. Once yes, always yes."""
        if self.why:
            return True
        now = monotonic()
        if self.asked > 1:
            self.why = "it was told to stop a second time"
        elif self._ends_at is None:
            return False
        elif now >= self._ends_at:
            self.why = f"kafka.producer.close.timeout.ms, {self._limit_s:g} s, is over"
        elif is_busy or acknowledged != self._acknowledged:
            self._heard_at, self._acknowledged = now, acknowledged
        elif now - self._heard_at >= SILENT_S:
            self.why = f"Kafka acknowledged nothing for {SILENT_S:g} s"
        return bool(self.why)

    @property
    def patience_s(self) -> float:
        """Longest last wait for Kafka; 0 if Kafka is silent or the end was asked for twice."""
        if self.why and (self.asked > 1 or monotonic() - self._heard_at >= SILENT_S):
            return 0.0
        if self._ends_at is None:
            return _KAFKA_LAST_S
        left = self._gone_at - monotonic() - _CLEANING_LEAST_S
        return max(min(_KAFKA_LAST_S, left), 0.0)

    def leave(self) -> None:
        """Nothing more is sent: from here on the process has to get to its end."""
        if self._ends_at is not None:
            self._arm()

    def allow(self, seconds: float) -> None:
        """Have the process be there for so long from now, unless somebody asks for its end: what it
        still does needs no Kafka."""
        if self.last_resort is not None:
            self.last_resort.put_off(monotonic() + seconds)

    def _arm(self) -> None:
        if self.last_resort is not None:
            self.last_resort.arm(self._gone_at)


class LastResort:
    """Ends this process at the moment it has to be gone, or when it is told to stop a second time.

    It works whatever the process is held up by: a call of a library, a lock, a disk. The kernel
    hands the numbers of signals to it through a pipe. Made in the main thread, once per process,
    before the handlers of the signals; LIMIT_S counts from the first of them.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = max(limit_s, LEAST_S)
        self._gone_at = inf
        self._told_until = inf  # by the first signal, which nothing puts off
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._run, name="last-resort", daemon=True).start()

    def arm(self, moment: float) -> None:
        """End the process at MOMENT (monotonic), if it is there then; the earliest one counts."""
        self.put_off(min(moment, self._gone_at))

    def put_off(self, moment: float) -> None:
        """End the process at MOMENT (monotonic) and not before, but for signals."""
        self._gone_at = moment
        os.write(self._write, _WAKE)

    def _run(self) -> None:
        signals = 0
        while True:
            gone_at = min(self._gone_at, self._told_until)
            wait = None if gone_at == inf else max(gone_at - monotonic(), 0.0)
            if not select.select([self._read], [], [], wait)[0]:
                self._end(
                    "the shipper ends now, with work unfinished, as its time"
                    f" (kafka.producer.close.timeout.ms, {self._limit_s:g} s) is over"
                )
            signals += sum(number != 0 for number in os.read(self._read, 64))
            if signals > 1:
                self._end("the shipper ends now, with work unfinished: told to stop a second time")
            if signals and self._told_until == inf:
                self._told_until = monotonic() + self._limit_s

    @staticmethod
    def _end(why: str) -> NoReturn:
        # The log may be what everything waits for.
        teller = threading.Thread(
            target=_log.warning, args=("{}; its journals stay where they are", why), daemon=True
        )
        teller.start()
        teller.join(_LOG_S)
        os._exit(0)
