"""The pauses of the confirmer between two questions about what waits."""

from __future__ import annotations

import time

# Between two questions: a busy server's commits are decided in groups, as each group costs some
# syncs. Up to _SOME_PER_S the pause is as long as a group took, for each journal in it: single
# commits wait for no others, and what has piled up is worked off in ever smaller groups. Beyond
# that it is GATHER_S, which leaves the server a tenth more commits (one connection, on two cores).
_SOME_PER_S = 600
GATHER_S = 0.010
"""The pause between two groups of a busy server, in seconds."""

_GATHER_MORE_S = 0.080  # after a group of _MANY and more then
_MANY = 32
_COUNTING_S = 0.1
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
        now = time.monotonic()
        self._again = _AGAIN_S
        self._counted += published
        if (counted_s := now - self._counting_since) >= _COUNTING_S:
            self._is_busy = self._counted > _SOME_PER_S * counted_s
            self._counted, self._counting_since = 0, now
        if not self._is_busy:  # a long pause now would make the next group as large again
            return min(taken_s * published, GATHER_S)
        return _GATHER_MORE_S if published >= _MANY else GATHER_S

    def after_nothing(self) -> float:
        """Return how long to pause after a turn in which all was still active."""
        pause, self._again = self._again, min(1.5 * self._again, AGAIN_MOST_S)
        return pause
