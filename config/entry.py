"""One option as a file has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a file as written.

    ``value``: the scalar's text, the texts of a YAML list, or None for YAML's null.
    ``line``: the line of the key, from 1.
    """

    key: str
    line: int
    value: str | tuple[str, ...] | None
