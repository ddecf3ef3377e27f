"""Pauses between attempts, each twice as long as the one before."""

from __future__ import annotations

from time import monotonic

MAX_BACKOFF_S = 30.0
"""Longest pause between attempts."""

_LEAST_S = 0.01


class Backoff:
    """Pause after failures in a row. ``retry_at`` (monotonic): nothing is to be tried before."""

    __slots__ = ("_first_s", "_pause_s", "retry_at")

    def __init__(self, first_s: float) -> None:
        self.retry_at = 0.0
        self._first_s = self._pause_s = max(first_s, _LEAST_S)

    @property
    def is_over(self) -> bool:
        """Tell whether the next attempt is due."""
        return monotonic() >= self.retry_at

    def fail(self) -> float:
        """Pause before the next attempt; return the seconds."""
        pause = self._pause_s
        self.retry_at = monotonic() + pause
        self._pause_s = min(pause * 2, MAX_BACKOFF_S)
        return pause

    def succeed(self) -> None:
        """Have the next pause be as short as the first one."""
        self._pause_s = self._first_s

    def skip(self) -> None:
        """Try again at once."""
        self.retry_at = 0.0
