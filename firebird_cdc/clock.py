"""The time of day as this project writes it: in microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import datetime
from time import time_ns


def now_us() -> int:
    """The time of day in microseconds since 1970, UTC."""
    return time_ns() // 1000


def local_time(us: int) -> str:
    """Return a time of day, microseconds since 1970, as people here write it."""
    return datetime.fromtimestamp(us / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
