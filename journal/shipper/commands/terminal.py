"""Lines on a terminal that are drawn over; elsewhere, lines that are written now and then."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple, TextIO

from firebird_cdc.output import printable

BAR = 20
_PAUSE_S = 5.0


def duration(seconds: float) -> str:
    """Return SECONDS as people say it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def bar(done: int, of: int) -> str:
    """Return a bar that tells that DONE parts OF all are done."""
    full = BAR * done // of if of else 0
    return f"[{'#' * full}{'.' * (BAR - full)}]"


class Told(NamedTuple):
    """A line about something that goes on. ``step``: where that differs it is told at once."""

    text: str
    step: tuple[object, ...]


class Follower:
    """Writes to STREAM how things go on, each by its name."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._drawn = 0
        self._told: dict[str, tuple[Told, float]] = {}

    def show(self, lines: Mapping[str, Told]) -> None:
        """Show LINES; what was shown before has to be among them."""
        if self._is_terminal:
            self._draw([printable(each.text) for each in lines.values()])
        else:
            self._write(lines)
        self._stream.flush()

    def _draw(self, lines: Sequence[str]) -> None:
        width, height = shutil.get_terminal_size()
        some = lines[: height - 1]
        back = f"\x1b[{self._drawn}A" if self._drawn else ""
        body = "".join(f"\r{line[: width - 1]}\x1b[K\n" for line in some)
        self._stream.write(back + body)
        self._drawn = len(some)

    def _write(self, lines: Mapping[str, Told]) -> None:
        now = monotonic()
        for name, line in lines.items():
            former, at = self._told.get(name, (None, 0.0))
            is_new = former is None or former.step != line.step
            if is_new or (former != line and now - at >= _PAUSE_S):
                self._stream.write(f"{printable(line.text)}\n")
                self._told[name] = line, now
