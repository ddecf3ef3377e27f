"""The pause before the next shipper is started, by how long those before have run."""

from __future__ import annotations

from typing import Final

SHORT_LIFE_S: Final = 10.0
"""A shipper that ends sooner has a fault that a new one will have too."""

FIRST_PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 60.0


class Restarts:
    """The pauses between the starts of shippers, twice as long after each short life.

    The time that a shipper works counts as a part of the pause: none is made after one that ran for
    as long as the pause would be, the longest included, and all is forgotten. Times are monotonic,
    in seconds.
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S

    def pause_after(self, lived_s: float) -> float:
        """Return how long to wait behind a shipper that lived for LIVED_S."""
        if lived_s < SHORT_LIFE_S:
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
            return self._pause_s
        if lived_s < self._pause_s:
            return self._pause_s - lived_s
        self._pause_s = FIRST_PAUSE_S
        return 0.0
