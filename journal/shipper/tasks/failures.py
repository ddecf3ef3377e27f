"""Has the statistics tell of transactions that were refused or lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from firebird_cdc.journal.folder.failures import acknowledged_us, pages, troubles
from firebird_cdc.journal.folder.subjects import FAILURES
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.packaging.server.counted import configs_on, told_nowhere
from firebird_cdc.packaging.server.layout import Server
from firebird_cdc.packaging.server.locating import servers_on

_LOOK_S = 2.0
_SEARCH_S = 20.0  # of what takes longer: who works on the folder, and their logs


class CounterPages:
    """The pages that count what was refused or lost, for a shipper, who looks all the time: who
    works on the folder it asks every 20 seconds only."""

    def __init__(self, directory: Path, config: Path) -> None:
        self._directory = directory
        self._config = config
        self._configs = [config]
        self._servers: list[Server] = []
        self._next_search = 0.0

    def pages(self) -> list[Path]:
        """Return the pages of all who work on the folder."""
        self._search()
        return pages(self._directory, self._configs)

    def nowhere(self, found: Sequence[Path]) -> list[str]:
        """Return a sentence for all that was counted in none of the pages FOUND. Reads logs."""
        self._search()
        return [*told_nowhere(self._servers, found)]

    def _search(self) -> None:
        if monotonic() >= self._next_search:
            self._servers = servers_on(self._directory)
            self._configs = configs_on(self._directory, self._servers, [self._config])
            self._next_search = monotonic() + _SEARCH_S


class FailureWatch:
    """A periodic task of the shipper: has the statistics tell what was refused or lost until
    somebody acknowledges it."""

    def __init__(self, directory: Path, config: Path, statistics: Statistics) -> None:
        self._places = CounterPages(directory, config)
        self._statistics = statistics
        self._nowhere: list[str] = []
        self._next_log = 0.0
        self._known_us = 0

    def turn(self, now: float) -> float:
        """Look at what is counted."""
        found = self._places.pages()
        known_us = acknowledged_us(found)
        if now >= self._next_log or known_us != self._known_us:
            self._nowhere = self._places.nowhere(found)
            self._next_log, self._known_us = now + _SEARCH_S, known_us
        texts = dict(troubles(found))
        texts |= {f"{FAILURES}log-{index}": text for index, text in enumerate(self._nowhere)}
        for subject, text in texts.items():
            self._statistics.trouble(subject, "warning", text)
        for subject in [*self._statistics.troubles]:
            if subject.startswith(FAILURES) and subject not in texts:
                self._statistics.clear(subject)
        return now + _LOOK_S

    def close(self) -> None:
        """Nothing is held."""
