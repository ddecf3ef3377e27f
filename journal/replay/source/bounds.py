"""Ends of a range of the history, and times, as users name them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

_NUMBER = re.compile(r"(?:(\d{1,9}):)?(\d{1,18})")

HistoryPoint = tuple[int, int, int]
"""Point in the history of a database: epoch, sequence of the journal, pos of the event in it."""


def microseconds(time: datetime) -> int:
    """Return TIME in microseconds since 1970; without a zone it is in UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since_1970 = time - datetime(1970, 1, 1, tzinfo=UTC)
    return since_1970 // since_1970.resolution


def microseconds_of(text: str) -> int:
    """Return the time TEXT, as ISO 8601 has it, as `microseconds` does. Raises ValueError."""
    return microseconds(datetime.fromisoformat(text))


class Bound(NamedTuple):
    """One end of a range of the history; what it names is inside.

    Either ``sequence``, of ``epoch`` (None: of each database's last one), or ``time_us``, the time
    of a commit in microseconds since 1970, UTC.
    """

    sequence: int | None
    epoch: int | None = None
    time_us: int | None = None

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Read ``SEQUENCE``, ``EPOCH:SEQUENCE`` or a time as ISO 8601 writes it, without a zone
        in UTC. Raises ValueError."""
        number = _NUMBER.fullmatch(text)
        if number is not None:
            epoch, sequence = number.groups()
            return cls(int(sequence), None if epoch is None else int(epoch))
        try:
            return cls(None, None, microseconds_of(text))
        except ValueError:
            raise ValueError(
                f"{text!r} is no SEQUENCE, no EPOCH:SEQUENCE and no time such as"
                " 2024-02-29T23:59:59Z"
            ) from None

    def __str__(self) -> str:
        if self.time_us is not None:
            when = datetime.fromtimestamp(self.time_us / 1_000_000, UTC)
            return when.isoformat().replace("+00:00", "Z")
        return f"{self.sequence}" if self.epoch is None else f"{self.epoch}:{self.sequence}"
