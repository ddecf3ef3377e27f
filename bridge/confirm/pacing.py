"""The pauses of the confirmer between two questions about what waits."""

from __future__ import annotations

import time

# Between two questions: a busy server's commits are decided in groups, as each group costs some
# syncs, and Python's time. Up to _SOME_PER_S the pause is as long as a group took, for each journal
# in it, within limits: those who come behind a slow sync have waited already. Beyond that no more
# than one part in _PARTS of the time goes into groups, which leaves the processors to the server.
_SOME_PER_S = 800
GATHER_S = 0.010
"""The shortest pause between two groups of a busy server, in seconds."""

_GATHER_MOST_S = 0.080
_PARTS = 16
_AT_ONCE_S, _AT_ONCE_MOST = 0.001, 4  # the limits, for a server that is not busy
_COUNTING_S = 0.05
_AGAIN_S = 0.0002  # first pause after "still active"; grows up to AGAIN_MOST_S
AGAIN_MOST_S = 0.050


class Pacing:
    """The pauses of one confirmer. All times are in seconds."""

    def __init__(self) -> None:
        self._again = _AGAIN_S
        self._counted, self._counting_since = 0, time.monotonic()  # published, and since when
        self._is_busy = False  # so many were published lately that they go in groups

    def after_group(self, published: int, taken_s: float) -> float:
        """Return how long to pause after a turn that decided something, PUBLISHED of it in a group
        that took TAKEN_S, for others to join the next one."""
        began = time.monotonic() - taken_s  # the group came before that
        self._again = _AGAIN_S
        self._counted += published
        if (counted_s := began - self._counting_since) >= _COUNTING_S:
            self._is_busy = self._counted > _SOME_PER_S * counted_s
            self._counted, self._counting_since = 0, began
        if not self._is_busy:
            return min(taken_s, _AT_ONCE_S) * min(published, _AT_ONCE_MOST)
        return min(max(_PARTS * taken_s, GATHER_S), _GATHER_MOST_S)

    def after_nothing(self) -> float:
        """Return how long to pause after a turn in which all was still active."""
        pause, self._again = self._again, min(1.5 * self._again, AGAIN_MOST_S)
        return pause
