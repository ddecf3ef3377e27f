"""The last quarter of an hour in figures, so that a page opened now shows what was before."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

SAMPLE_S = 2
"""Seconds between two samples."""

SAMPLES = 450
"""Number of samples that are kept: a quarter of an hour."""

FIELDS = ("time_ms", "pending", "events", "journals", "bytes", "latency_ms", "queue", "oldest_ms")
"""Fields of a sample: totals where the page draws rates, which it works out itself."""


class History:
    """A ring of samples. One thread adds, others read; its memory is taken at once."""

    def __init__(self) -> None:
        self._samples = array("q", bytes(8 * len(FIELDS) * SAMPLES))
        self._added = 0

    def add(self, report: Mapping[str, Any]) -> None:
        """Take a sample of REPORT."""
        totals, backlog = report["totals"], report["backlog"]
        values = (
            report["written_us"] // 1000,
            backlog["pending"],
            totals["events"],
            totals["journals"],
            totals["bytes"],
            int(max((database["latency_ms"] for database in report["databases"]), default=0)),
            report["queue"]["messages"],
            int(backlog["oldest_s"] * 1000),
        )
        at = self._added % SAMPLES * len(FIELDS)
        self._samples[at : at + len(FIELDS)] = array("q", values)
        self._added += 1

    def rows(self) -> list[list[int]]:
        """The samples, oldest first."""
        samples, added = self._samples[:], self._added
        width = len(FIELDS)
        return [
            list(samples[at * width : (at + 1) * width])
            for at in (number % SAMPLES for number in range(max(added - SAMPLES, 0), added))
        ]
