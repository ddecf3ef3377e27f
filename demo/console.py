"""Output for a person at a terminal: steps with their time, and tables."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

_BOLD, _DIM, _RED, _GREEN, _BLUE, _OFF = (
    "\x1b[1m",
    "\x1b[2m",
    "\x1b[31m",
    "\x1b[32m",
    "\x1b[34m",
    "\x1b[0m",
)
_CLEAR_LINE = "\r\x1b[K"
_NEWS_EVERY_S = 10.0  # between progress lines where they can't be overwritten


class Step:
    """A running step; ``progress`` tells how far it is."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._last_news = time.monotonic()
        self.result = ""

    def progress(self, text: str) -> None:
        """Show TEXT beside the title: at once on a terminal, now and then in a log."""
        if self._console.is_terminal:
            self._console.overwrite(f"  {self._title} … {text}")
        elif time.monotonic() - self._last_news > _NEWS_EVERY_S:
            self._last_news = time.monotonic()
            self._console.line(f"  {self._title} … {text}")


class Console:
    """Writes steps and tables to a stream, in colour if it is a terminal (NO_COLOR is heeded)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self.is_terminal = self._stream.isatty()
        self._coloured = self.is_terminal and "NO_COLOR" not in os.environ

    def line(self, text: str = "") -> None:
        """Write one line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def overwrite(self, text: str) -> None:
        """Replace the unfinished line on a terminal."""
        width = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._stream.write(f"{_CLEAR_LINE}{text[: width - 1]}")
        self._stream.flush()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Announce a step, and close it with its time and the ``result`` that it was given."""
        step = Step(self, title)
        begun = time.monotonic()
        if self.is_terminal:
            self.overwrite(f"  {title} …")
        try:
            yield step
        except BaseException:
            self._close(self.paint("✗", _RED), title, begun, "")
            raise
        self._close(self.paint("✓", _GREEN), title, begun, step.result)

    def _close(self, sign: str, title: str, begun: float, result: str) -> None:
        seconds = self.paint(f"{time.monotonic() - begun:5.1f} s", _DIM)
        start = _CLEAR_LINE if self.is_terminal else ""
        self.line(f"{start}{sign} {seconds}  {self.paint(title, _BOLD)}{result and ': '}{result}")

    def paint(self, text: str, colour: str) -> str:
        """Return TEXT in COLOUR where colours are shown."""
        return f"{colour}{text}{_OFF}" if self._coloured else text

    def good(self, text: str) -> str:
        """Return TEXT as good news."""
        return self.paint(text, _GREEN)

    def bad(self, text: str) -> str:
        """Return TEXT as bad news."""
        return self.paint(text, _RED)

    def name(self, text: str) -> str:
        """Return TEXT as the name of something."""
        return self.paint(text, _BLUE)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table; all columns but the first and the last are numbers."""
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

        def cells(row: Sequence[str]) -> list[str]:
            last = len(row) - 1
            return [
                text.ljust(widths[i]) if i in (0, last) else text.rjust(widths[i])
                for i, text in enumerate(row)
            ]

        self.line(self.paint("  " + "  ".join(cells(head)), _BOLD))
        self.line("  " + "  ".join("─" * width for width in widths))
        for row in rows:
            text = cells(row)
            text[-1] = self.good(row[-1]) if row[-1] == "yes" else self.bad(row[-1])
            self.line("  " + "  ".join(text))
